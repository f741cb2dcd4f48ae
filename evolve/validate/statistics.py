"""Figures over held-out experiments, by kind of fold and by group, and the spread of a figure over seeds."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from archive.score import CellErrors
from evaluator.baselines import SEEDS
from evaluator.cells import mean_error
from evaluator.metrics import mean_abs, present
from evaluator.score import MEANS
from evaluator.statistics import (
    SignedRank,
    bias,
    clustered_interval,
    mean_abs_interval,
    median_abs,
    paired,
    signed_rank,
)
from evolve.validate.held_out import FIGURES, ByFigure, HeldOutRow
from simulator.language.ir import Program
from simulator.language.measure import features

Interval = tuple[float, float] | None


@dataclass(frozen=True, slots=True)
class BaselineErrors:
    """The mean absolute errors, in percent, of a baseline fitted in the same folds."""

    name: str
    e2e: float | None
    ttft: float | None
    itl: float | None
    over: int  # experiments with an E2E error


@dataclass(frozen=True, slots=True)
class Against:
    """The rival of our programs: the program given, or else the best baseline."""

    label: str
    e2e: float | None  # mean absolute error, percent
    test: SignedRank | None  # of paired absolute E2E errors


@dataclass(frozen=True, slots=True)
class Paired:
    """The mean errors (evaluator.cells) of our programs less those of a seed program, fitted in the same folds.

    ours_pct, theirs_pct: means over cells. difference_pct, its standard error and its 95 % interval are paired by cell.
    """

    label: str
    cells: int
    ours_pct: float
    theirs_pct: float
    difference_pct: float
    standard_error_pct: float | None  # None for a single cell
    interval_95: Interval


@dataclass(frozen=True, slots=True)
class SpreadSummary:
    """The errors of all rows of one kind of fold, in percent."""

    experiments: int
    models: int
    without_prediction: int  # observed experiments that have no predicted E2E latency
    mean_abs_error_pct: ByFigure
    median_abs_error_pct: ByFigure
    bias_pct: ByFigure
    worst_e2e_error_pct: float | None  # signed
    interval_95: dict[str, Interval]  # bootstrap interval of the mean, experiments resampled
    interval_95_by_model: dict[str, Interval]  # the same with whole models resampled
    baselines: Sequence[BaselineErrors]  # by mean absolute E2E error
    best_baseline: str | None  # the first of them that predicts every observed mean E2E
    against: Against | None
    paired: Sequence[Paired] = ()  # with each fitted seed program


@dataclass(frozen=True, slots=True)
class RunGroup:
    """The errors on the held-out experiments of one architecture, workload or TP degree, in percent."""

    by: str  # architecture, workload or tp
    group: str  # its value
    experiments: int
    mean_abs_error_pct: ByFigure
    bias_pct: ByFigure


@dataclass(frozen=True, slots=True)
class FieldCounts:
    """The number of programs that read each field."""

    programs: int
    fields: dict[str, int]  # programs by field, the most frequent field first


def summary(rows: Sequence[HeldOutRow], seed: int) -> SpreadSummary:
    """The summary of the rows of one kind of fold. `seed`: of the bootstrap."""
    models = [r.model for r in rows]
    answers = _answers(rows)
    e2e = present(_column(rows, "e2e"))
    return SpreadSummary(
        experiments=len(rows),
        models=len(set(models)),
        without_prediction=sum(r.errors["e2e"] is None and r.observed for r in rows),
        mean_abs_error_pct={name: mean_abs(_column(rows, name)) for name in FIGURES},
        median_abs_error_pct={name: median_abs(_column(rows, name)) for name in FIGURES},
        bias_pct={name: bias(_column(rows, name)) for name in FIGURES},
        worst_e2e_error_pct=max(e2e, key=abs, default=None),
        interval_95={name: mean_abs_interval(_column(rows, name), seed) for name in MEANS},
        interval_95_by_model={name: clustered_interval(_column(rows, name), models, seed) for name in MEANS},
        baselines=answers,
        best_baseline=_best(answers, rows),
        against=_against(rows, _best(answers, rows)),
        paired=[found for name in SEEDS if (found := _paired(rows, f"seed {name}"))],
    )


def _paired(rows: Sequence[HeldOutRow], label: str) -> Paired | None:
    """The comparison with a fitted seed program; None if it predicts none of these runs."""
    both = [r for r in rows if label in r.baselines]
    ours, theirs = (
        [_mean_error(e) for e in of] for of in ([r.errors for r in both], [r.baselines[label] for r in both])
    )
    known = [i for i, pair in enumerate(zip(ours, theirs, strict=True)) if None not in pair]
    cells = [both[i].cell for i in known]
    if not cells:
        return None
    a, b = (_by_cell(cells, [present([of[i]])[0] for i in known]) for of in (ours, theirs))
    difference, error = a.above(b)
    interval = paired(a, b)[1]
    return Paired(label, len(a.cells), a.mean, b.mean, difference, error if interval else None, interval)


def _mean_error(errors: ByFigure) -> float | None:
    e2e, ttft, itl = (None if errors[name] is None else abs(errors[name] or 0.0) for name in MEANS)
    return mean_error(e2e, ttft, itl)


def _by_cell(cells: Sequence[str], errors: Sequence[float]) -> CellErrors:
    of_cells = {cell: [e for c, e in zip(cells, errors, strict=True) if c == cell] for cell in dict.fromkeys(cells)}
    return CellErrors(tuple((cell, float(np.mean(values))) for cell, values in of_cells.items()))


def _best(answers: Sequence[BaselineErrors], rows: Sequence[HeldOutRow]) -> str | None:
    return next((answer.name for answer in answers if answer.over == sum(r.observed for r in rows)), None)


def _against(rows: Sequence[HeldOutRow], best_baseline: str | None) -> Against | None:
    given = [r.against for r in rows if r.against]
    if given:
        label, theirs = given[0].label, [rival.errors["e2e"] for rival in given]
    elif best_baseline:
        label, theirs = best_baseline, [r.baselines[best_baseline]["e2e"] for r in rows]
    else:
        return None
    return Against(label, mean_abs(theirs), signed_rank(_column(rows, "e2e"), theirs))


def _answers(rows: Sequence[HeldOutRow]) -> list[BaselineErrors]:
    answers = []
    for name in dict.fromkeys(name for r in rows for name in r.baselines):
        figures = [r.baselines[name] for r in rows if name in r.baselines]
        e2e, ttft, itl = (mean_abs([f[x] for f in figures]) for x in MEANS)
        answers.append(BaselineErrors(name, e2e, ttft, itl, sum(f["e2e"] is not None for f in figures)))
    return sorted(answers, key=lambda a: float("inf") if a.e2e is None else a.e2e)


def breakdown(rows: Sequence[HeldOutRow]) -> list[RunGroup]:
    """The errors of the rows of one kind of fold, by architecture, workload and TP degree."""
    keys = {
        "architecture": lambda r: "MoE" if r.moe else "dense",
        "workload": lambda r: r.workload,
        "tp": lambda r: str(r.tp),
    }
    groups = []
    for by, key in keys.items():
        for value in sorted({key(r) for r in rows}):
            group = [r for r in rows if key(r) == value]
            means = {name: mean_abs(_column(group, name)) for name in MEANS}
            groups.append(RunGroup(by, value, len(group), means, {name: bias(_column(group, name)) for name in MEANS}))
    return groups


def fields_used(programs: Iterable[Program]) -> FieldCounts:
    """The number of these programs that read each field."""
    read = [features(program) for program in programs]
    counts = {name: sum(name in fields for fields in read) for name in sorted({n for fields in read for n in fields})}
    return FieldCounts(len(read), dict(sorted(counts.items(), key=lambda item: (-item[1], item[0]))))


def _column(rows: Sequence[HeldOutRow], name: str) -> list[float | None]:
    return [r.errors[name] for r in rows]


@dataclass(frozen=True, slots=True)
class Spread:
    """A figure over several seeds. If a seed has no value, there are no median and quartiles."""

    median: float | None
    low: float | None  # first quartile
    high: float | None  # third quartile
    values: Sequence[float | None]  # by seed

    def __str__(self) -> str:
        """Median and quartiles as in `1.42 [1.31-1.60]`; of a single value, only the median.

        >>> str(spread([1.0, 2.0, 3.0]))
        '2.00 [1.50-2.50]'
        """
        if self.median is None:
            return "-"
        middle = f"{self.median:.2f}"
        return middle if len(self.values) < 2 else f"{middle} [{self.low:.2f}-{self.high:.2f}]"


def spread(values: Sequence[float | None]) -> Spread:
    """The spread of a figure over seeds, with quartiles by linear interpolation."""
    numbers = [float("inf") if v is None else v for v in values]
    complete = bool(numbers) and bool(np.isfinite(numbers).all())
    low, median, high = (float(np.percentile(numbers, q)) if complete else None for q in (25, 50, 75))
    return Spread(median, low, high, list(values))
