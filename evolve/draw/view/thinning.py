"""Thinning a run's document: candidates that are only one among many lose their texts, then their places."""

from __future__ import annotations

from collections.abc import Iterator, Set

from simulator.common.json import JsonObject

_BARE = ("text", "errors")  # the columns that take most room
NAMED = "the Pareto front, the champion, the programs of cells, every improvement, and all their ancestors"
HALVINGS = 12
LIVE = 20_000  # outcomes up to which a page that follows a search has all of them


def thinned(run: JsonObject, marked: Set[int]) -> Iterator[JsonObject]:
    """The run, then ever smaller versions of it that keep every `marked` candidate whole.

    First the others lose texts and errors (at once, if the run has more than LIVE outcomes). Then each version drops an
    evenly spaced half of them. The last one drops all details but the champion's.
    """
    yield run if len(run["candidates"]["id"]) <= LIVE else thin(run, marked, 1)
    for halving in range(HALVINGS + 1):
        yield thin(run, marked, 1 << halving)
    least = thin(run, marked, 0)
    yield least
    yield least | {"details": {id: detail for id, detail in run["details"].items() if id == str(run["champion"])}}


def live(run: JsonObject, marked: Set[int]) -> JsonObject:
    """The run as a page gets it that follows the search: thinned to about LIVE outcomes."""
    count = len(run["candidates"]["id"])
    return run if count <= LIVE else thin(run, marked, -(-count // LIVE))


def thin(run: JsonObject, marked: Set[int], every: int) -> JsonObject:
    """The run with every marked candidate and, without texts and errors, each `every`-th of the others (0: none)."""
    columns = run["candidates"]
    rows, others = list[int](), 0
    for i, id in enumerate(columns["id"]):
        others += id not in marked
        if id in marked or (every and others % every == 0):
            rows.append(i)
    thin_columns = {name: [column[i] for i in rows] for name, column in columns.items()}
    for name in _BARE:
        column = thin_columns[name]
        thin_columns[name] = [x if id in marked else None for id, x in zip(thin_columns["id"], column, strict=True)]
    return run | {"candidates": thin_columns, "thinned": _about(len(columns["id"]), len(rows), every)}


def _about(of: int, kept: int, every: int) -> JsonObject:
    sample = {0: "no others", 1: "the others without texts and errors"}
    others = sample.get(every, f"one in {every} of the others, without texts and errors")
    return {"of": of, "kept": kept, "rule": f"{NAMED}; {others}"}
