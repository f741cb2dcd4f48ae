"""The error scale of `evolve drift`: the usual error of a program on new runs without drift."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from evaluator.intervals import Disagreement, Residual, scales
from evaluator.score import MEANS, Prediction
from evolve.plan.prediction_intervals import class_of
from evolve.run.records import Record
from evolve.run.trust import CLASSES, Trust
from simulator.serving.experiment import Experiment

HELD_OUT, IN_SAMPLE = "held-out errors", "errors in sample"


@dataclass(frozen=True)
class Yardstick:
    """The usual errors of predictions of the runs: float64[runs, 3], standard deviations of the logarithm of E2E, TTFT
    and ITL, of `freedom` degrees of freedom; NaN where nothing says so."""

    of: str
    sizes: np.ndarray
    freedom: int


def yardstick(
    record: Record,
    trust: Trust | None,
    runs: Sequence[Experiment],
    predicted: Sequence[Prediction],
    doubts: Sequence[Disagreement],
) -> Yardstick:
    """The usual errors on these runs: those of held-out runs of their class, or else those in sample."""
    if trust is None or not (trust.inside or trust.outside):
        errors = [[getattr(r, name) for name in MEANS] for r in record.errors]
        logs = np.log1p(np.array(errors, dtype=float).reshape(-1, len(MEANS)) / 100.0)
        with np.errstate(invalid="ignore"):
            sizes = np.sqrt(np.nansum(np.square(logs), axis=0) / np.sum(~np.isnan(logs), axis=0))
        return Yardstick(IN_SAMPLE, np.tile(sizes, (len(runs), 1)), max(len(logs) - 1, 1))
    sizes, freedom = np.full((len(runs), len(MEANS)), np.nan), list[int]()
    for i, (e, prediction, doubt) in enumerate(zip(runs, predicted, doubts, strict=True)):
        residuals = _residuals(trust, class_of(trust, record, e, prediction, doubt), e.workload.closed)
        freedom.append(len({r.experiment for r in residuals}) - 1)
        of_figure = scales(residuals)
        for j, name in enumerate(MEANS):
            if name in of_figure:
                sizes[i, j] = of_figure[name].deviation(doubt.spread[name] or 0.0)
    return Yardstick(HELD_OUT, sizes, max(min(freedom), 1))


def _residuals(trust: Trust, which: str, closed: bool) -> tuple[Residual, ...]:
    """The held-out residuals of the class, of another one if it has none."""
    return next(r for name in (which, *reversed(CLASSES[:2])) if (r := trust.residuals(name, closed)))
