"""How accurate a program is, as the table that goes with its Go: in sample, and held out where that was measured."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence

from evaluator.intervals import Residual
from evaluator.metrics import mean_abs
from evaluator.score import MEANS
from evolve.output.printing import plain
from evolve.output.table import Column, Row, Table, number
from evolve.run.program import Source
from evolve.run.ranges import described
from evolve.run.trust import CLASSES, trust_of

WIDTH = 110  # of a line in a comment, and in an indented block
TITLE = "Mean absolute errors of the means, percent of what was measured:"
IN_SAMPLE = "in sample: on the runs it was fitted on"
# by kind of fold: what the search, and the fit of what it chose, did not see
WITHOUT = {
    "models": "the model",
    "workloads": "the workload",
    "tp": "the TP degree",
    "architectures": "dense models or mixtures of experts",
    "hardware": "the GPU type",
    "files": "the runs of the same file",
    "stages": "the last load stage",
}
NOTHING = "No run was held out from this fit: expect larger errors on other models, loads and GPUs."


def accuracy(source: Source) -> tuple[str, ...]:
    """The lines of the table, and what the fitted runs span; none of a program without a record of them.

    Held out: the whole search was repeated without these runs, which its choice then predicted, so these rows are
    about the way of finding the program. A program fitted to other runs afterwards has none.
    """
    record, trust = source.record, trust_of(source)
    if record is None or not record.errors:
        return ()
    rows = [_row(IN_SAMPLE, len(record.errors), lambda figure: [getattr(r, figure) for r in record.errors])]
    residuals = [r for name in CLASSES for r in trust.residuals(name)] if trust and trust.data is None else []
    for kind, what in WITHOUT.items():
        if of_kind := [r for r in residuals if r.kind == kind]:
            runs = len({r.experiment for r in of_kind})
            rows.append(_row(f"held out: searched and fitted without {what}", runs, _errors(of_kind)))
    columns = Column(""), *(Column(name, right=True, width=6) for name in ("runs", "E2E", "TTFT", "ITL"))
    lines = plain(Table("", columns, tuple(rows))).splitlines()
    fits = [("Fitted on", record.ranges)] if record.ranges else []
    fits += [("The fit started from constants that were fitted on", ranges) for ranges in record.ranges_before]
    spans = [f"{how}: {text}." for how, ranges in fits if (text := described(ranges))]
    wrapped = [line for text in spans for line in textwrap.wrap(text, WIDTH)]
    return (TITLE, *(f"  {line}" for line in lines), *[NOTHING] * (len(rows) == 1), *wrapped)


def _errors(residuals: Sequence[Residual]) -> Callable[[str], list[float | None]]:
    return lambda figure: [r.error_pct(figure) for r in residuals]


def _row(name: str, runs: int, errors: Callable[[str], list[float | None]]) -> Row:
    return Row((name, str(runs), *(number(mean_abs(errors(figure)), signed=False) for figure in MEANS)))
