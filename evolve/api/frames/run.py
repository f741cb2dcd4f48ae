"""Frames of a run: its candidates, Pareto front and grid, and the errors of its champion on every experiment."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

import pandas as pd

from archive.archive import Archive
from archive.elite import Elite
from archive.proposal import SCORED, Outcome
from evaluator.score import MEANS, Errors
from evolve.output.columns import flag, frame, number, several, text, whole

ELITES = (
    whole("id", "number of its proposal: `RUN:ID` names the program", paper=True),
    text("operator", "what proposed it", paper=True),
    several("parents", "ids of the programs that it was made from"),
    number("worst3_pct", "mean of the three largest E2E errors", paper=True),
    number("joint_pct", "joint error: the mean of those of E2E, TTFT and ITL that were observed", paper=True),
    number("transfer_pct", "transfer error; missing if it was not measured", paper=True),
    number("e2e_pct", "mean absolute error of the mean E2E over the fitted experiments", paper=True),
    number("ttft_pct", "the same of the mean TTFT", paper=True),
    number("itl_pct", "the same of the mean ITL", paper=True),
    whole("operations", "number of operations"),
    whole("constants", "number of constants"),
    whole("features", "number of distinct fields that it reads"),
    whole("complexity", "operations plus constants", paper=True),
    flag("sound", "whether it contradicts no datasheet and no measured kernel", paper=True),
    text("key", "identifies the form as it was proposed; constants that do nothing are dropped from the text"),
    text("text", "the program, with its fitted constants"),
)
FRONT = ELITES
GRID = (
    whole("operations_bin", "column of the grid, from 0", paper=True),
    whole("features_bin", "row of the grid, from 0", paper=True),
    *ELITES,
)
PROGRAMS = (
    *ELITES,
    whole("island", "island that it was proposed for; missing: all of them"),
    text("verdict", "`scored`, or the stage that refused it after it was fitted"),
    text("why", "why it was refused"),
    flag("in_front", "whether it is on the Pareto front"),
    flag("in_grid", "whether it holds a cell of the grid"),
    flag("champion", "whether it is the champion"),
    text("call", "the call to a language model that proposed it"),
    text("idea", "the language model's idea, in a sentence"),
)

ERRORS = (
    text("experiment", "its id", paper=True),
    flag("fitted", "whether the search fitted it", paper=True),
    text("quality", "`clean` or what is wrong with it", paper=True),
    *(number(f"{x}_error_pct", f"signed error of the mean {x.upper()}", paper=True) for x in MEANS),
    *(number(f"observed_{x}_mean_ms", f"observed mean {x.upper()}") for x in MEANS),
)


def front(archive: Archive) -> pd.DataFrame:
    """The Pareto front, from the simplest program to the largest."""
    return frame(FRONT, map(_elite, archive.front_by_size()))


def grid(archive: Archive) -> pd.DataFrame:
    """The cells of the MAP-Elites grid that hold a program, column by column."""
    cells = sorted(archive.grid.cells.items())
    rows = ({"operations_bin": x, "features_bin": y, **_elite(e)} for (x, y), e in cells)
    return frame(GRID, rows)


def programs(outcomes: Sequence[Outcome], archive: Archive, champion: Elite | None) -> pd.DataFrame:
    """Every candidate of a run in the order of proposals, and the finalists whose constants were polished.

    A candidate is a program that was fitted. One that was refused afterwards has no errors and no sizes.
    """
    on_front = {e.id for e in archive.front}
    in_cells = {e.id for e in archive.grid.cells.values()}
    best = champion.id if champion else None

    def rows() -> Iterable[dict[str, object]]:
        for outcome in outcomes:
            p, elite, refused = outcome.proposal, outcome.elite, outcome.rejection
            if not (outcome.key or elite):
                continue
            fitted = _elite(elite) if elite else {"text": p.text, "key": outcome.key}
            yield {
                **fitted,
                "id": p.id,
                "operator": p.operator,
                "parents": p.parents,
                "island": p.island,
                "verdict": refused.stage if refused else SCORED,
                "why": refused.why if refused else None,
                "in_front": p.id in on_front,
                "in_grid": p.id in in_cells,
                "champion": p.id == best,
                "call": p.call or None,
                "idea": p.idea or None,
            }

    return frame(PROGRAMS, rows())


def errors(
    rows: Iterable[Errors],
    fitted: Collection[str],
    quality: Mapping[str, str],
    observed_ms: Mapping[str, Sequence[float | None]],
) -> pd.DataFrame:
    """A row for each experiment of a run, fitted or not, with the errors of its champion.

    `fitted`: ids. `quality`, and `observed_ms`, the means of E2E, TTFT and ITL: by id.
    """

    def row(e: Errors) -> dict[str, object]:
        observed = zip(MEANS, observed_ms[e.experiment], strict=True)
        return {
            "experiment": e.experiment,
            "fitted": e.experiment in fitted,
            "quality": quality[e.experiment],
            **{f"{x}_error_pct": getattr(e, x) for x in MEANS},
            **{f"observed_{x}_mean_ms": value for x, value in observed},
        }

    return frame(ERRORS, map(row, rows))


def _elite(e: Elite) -> dict[str, object]:
    """The columns ELITES of an elite."""
    errors = ("worst3", "joint", "transfer", "e2e", "ttft", "itl")
    sizes = ("operations", "constants", "features", "complexity")
    return {
        **{f"{name}_pct": getattr(e, name) for name in errors},
        **{name: getattr(e, name) for name in ("id", "operator", "parents", *sizes, "sound", "key", "text")},
    }
