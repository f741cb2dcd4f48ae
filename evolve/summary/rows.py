"""Rows of a run: its candidates, Pareto front and grid, and the errors of its champion on every experiment."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from archive.archive import Archive
from archive.elite import Elite
from archive.proposal import SCORED, Outcome
from archive.score import Errors
from evaluator.score import MEANS
from evolve.output.columns import flag, number, several, text, whole

ELITES = (
    whole("id", "number of its proposal: `RUN:ID` names the program", paper=True),
    text("operator", "what proposed it", paper=True),
    several("parents", "ids of the programs that it was made from"),
    number("worst3_pct", "mean of the three largest E2E errors", paper=True),
    number("mean_error_pct", "mean error: the mean of those of E2E, TTFT and ITL that were observed", paper=True),
    number("group_out_pct", "leave-group-out error; missing if it was not measured", paper=True),
    number("e2e_pct", "mean absolute error of the mean E2E over the fitted experiments", paper=True),
    number("ttft_pct", "the same of the mean TTFT", paper=True),
    number("itl_pct", "the same of the mean ITL", paper=True),
    number("ttft_p99_pct", "the same of the p99 of TTFT over replayed experiments", paper=True),
    whole("operations", "number of operations"),
    whole("constants", "number of constants"),
    whole("features", "number of distinct fields that it reads"),
    whole("complexity", "operations plus constants", paper=True),
    flag("consistent", "whether it contradicts no datasheet and no measured kernel", paper=True),
    text("key", "identifies the form as it was proposed; constants that do nothing are dropped from the text"),
    text("text", "the program, with its fitted constants"),
)
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


def front_rows(archive: Archive) -> list[dict[str, object]]:
    """The rows of ELITES on the Pareto front, from the simplest program to the largest."""
    return [elite_row(e) for e in archive.front_by_size()]


def grid_rows(archive: Archive) -> list[dict[str, object]]:
    """The rows of GRID: the cells of the MAP-Elites grid that hold a program, column by column."""
    cells = sorted(archive.grid.cells.items())
    return [{"operations_bin": x, "features_bin": y, **elite_row(e)} for (x, y), e in cells]


def program_rows(outcomes: Sequence[Outcome], archive: Archive, champion: Elite | None) -> Iterator[dict[str, object]]:
    """The rows of PROGRAMS: every candidate of a run in the order of proposals, and the polished finalists.

    A candidate is a program that was fitted. One that was refused afterwards has no errors and no sizes.
    """
    on_front = {e.id for e in archive.front}
    in_cells = {e.id for e in archive.grid.cells.values()}
    best = champion.id if champion else None
    for outcome in outcomes:
        p, elite, refused = outcome.proposal, outcome.elite, outcome.rejection
        if not (outcome.key or elite):
            continue
        fitted = elite_row(elite) if elite else {"text": p.text, "key": outcome.key}
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


def error_rows(
    rows: Iterable[Errors],
    fitted: Collection[str],
    quality: Mapping[str, str],
    observed_ms: Mapping[str, Sequence[float | None]],
) -> Iterator[dict[str, object]]:
    """The rows of ERRORS: the errors of the champion on each experiment of a run, fitted or not.

    `fitted`: ids. `quality`, and `observed_ms`, the means of E2E, TTFT and ITL: by id.
    """
    for e in rows:
        observed = zip(MEANS, observed_ms[e.experiment], strict=True)
        yield {
            "experiment": e.experiment,
            "fitted": e.experiment in fitted,
            "quality": quality[e.experiment],
            **{f"{x}_error_pct": getattr(e, x) for x in MEANS},
            **{f"observed_{x}_mean_ms": value for x, value in observed},
        }


def elite_row(e: Elite) -> dict[str, object]:
    """The columns ELITES of an elite."""
    s = e.score
    errors = {"worst3": s.worst3, "mean_error": s.mean_error, "group_out": e.group_out}
    errors |= {"e2e": s.e2e, "ttft": s.ttft, "itl": s.itl, "ttft_p99": s.ttft_p99}
    sizes = ("operations", "constants", "features", "complexity")
    return {
        **{f"{name}_pct": value for name, value in errors.items()},
        **{name: getattr(e, name) for name in ("id", "operator", "parents", *sizes, "consistent", "key", "text")},
    }
