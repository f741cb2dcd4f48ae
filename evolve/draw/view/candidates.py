"""The candidates of a run as columns, one entry per outcome, and the ids of notable candidates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from archive.elite import Elite
from archive.grid import Grid
from archive.proposal import SCORED, Outcome, ancestors
from archive.score import Errors
from evolve.summary.story import Story, Told
from simulator.common.json import JsonObject

_OF_SCORE = ("mean_error", "worst3", "e2e", "ttft", "itl")
_OF_ELITE = ("group_out", "operations", "constants", "features", "consistent")
MOST_EXAMPLES = 5  # of proposals that a stage rejected


@dataclass(frozen=True, slots=True)
class CandidateNames:
    """The words that columns refer to by their position."""

    operators: tuple[str, ...]
    stages: tuple[str, ...]  # the first one is SCORED


def names_of(story: Story) -> CandidateNames:
    """The operators and stages of a run, in the order of their first appearance."""
    operators = dict.fromkeys(row.outcome.proposal.operator for row in story.rows)
    stages = dict.fromkeys((SCORED, *(r.stage for row in story.rows if (r := row.outcome.rejection))))
    return CandidateNames(tuple(operators), tuple(stages))


def columns(
    rows: Sequence[Told],
    names: CandidateNames,
    grid: Grid,
    fitted: Sequence[str],
    cpu_s: Mapping[int, float],
) -> JsonObject:
    """The columns of these rows. `fitted`: the ids of the experiments, in the order of the errors."""
    operators = {name: i for i, name in enumerate(names.operators)}
    stages = {name: i for i, name in enumerate(names.stages)}
    outcomes = [row.outcome for row in rows]
    elites = [outcome.elite for outcome in outcomes]
    return {
        "id": [o.proposal.id for o in outcomes],
        "island": [o.proposal.island for o in outcomes],
        "operator": [operators[o.proposal.operator] for o in outcomes],
        "parents": [list(o.proposal.parents) for o in outcomes],
        "stage": [stages[o.rejection.stage] if o.rejection else 0 for o in outcomes],
        "why": [o.rejection.why if o.rejection else None for o in outcomes],
        "text": [o.elite.text if o.elite else o.proposal.text for o in outcomes],
        "key": [o.key or (o.elite.key if o.elite else "") for o in outcomes],
        "idea": [o.proposal.idea or None for o in outcomes],
        "generation": [row.generation for row in rows],
        **{name: [getattr(e.score, name) if e else None for e in elites] for name in _OF_SCORE},
        **{name: [getattr(e, name) if e else None for e in elites] for name in _OF_ELITE},
        "cell": [list(grid.cell(e)) if e else None for e in elites],
        "kept": [row.kept for row in rows],
        "cpu_s": [cpu_s.get(o.proposal.id) for o in outcomes],
        "errors": [_errors(e, fitted) if e else None for e in elites],
    }


def _errors(elite: Elite, fitted: Sequence[str]) -> list[float | None]:
    """The signed errors of E2E, TTFT and ITL on each of these experiments, one after the other."""
    rows = elite.score.rows
    if len(rows) != len(fitted) or any(row.experiment != id for row, id in zip(rows, fitted, strict=True)):
        by_id = {row.experiment: row for row in rows}
        rows = tuple(by_id.get(id, Errors(id, None, None, None)) for id in fitted)
    return [x for row in rows for x in row.figures]


def marked(story: Story, champion: int | None) -> set[int]:
    """The ids that a page names: front, champion, holders of cells, every improvement, and all their ancestors."""
    archive = story.population.archive
    ids = {e.id for e in archive.members()} | {point.champion.id for point in story.best} | _lowest(story.rows)
    if champion is not None:
        ids.add(champion)
    parents = {row.outcome.proposal.id: row.outcome.proposal.parents for row in story.rows}
    return ids | ancestors(ids, parents)


def _lowest(rows: Sequence[Told]) -> set[int]:
    """The ids of candidates with a lower mean error than all before them."""
    ids, least = set[int](), float("inf")
    for row in rows:
        elite = row.outcome.elite
        if elite and elite.mean_error < least:
            least = elite.mean_error
            ids.add(elite.id)
    return ids


def rejections(outcomes: Sequence[Outcome]) -> dict[str, JsonObject]:
    """By stage, how many proposals it rejected, with up to MOST_EXAMPLES examples."""
    stages: dict[str, JsonObject] = {}
    for outcome in outcomes:
        if rejection := outcome.rejection:
            of_stage = stages.setdefault(rejection.stage, {"count": 0, "examples": []})
            of_stage["count"] += 1
            if len(of_stage["examples"]) < MOST_EXAMPLES:
                of_stage["examples"].append({"id": outcome.proposal.id, "why": rejection.why})
    return stages
