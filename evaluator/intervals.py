"""Prediction intervals from held-out errors and from the disagreement of near-optimal programs.

The residual of a held-out figure is log(observed / predicted). Its scale is known before the run is measured:
sqrt(floor^2 + spread^2), where the spread is the disagreement of an ensemble of programs that fit equally well, and the
floor the root mean square residual. The interval of a new figure is its own scale times the root mean square quotient
of residual and scale, times Student's t of as many degrees of freedom as there are folds.

Runs of one fold err together. So each fold has the same weight in a mean square, however many runs it has, and counts
as one error: exact for normal errors that a fold's runs share, a little too wide for errors of each run alone. The
coverage holds if a new run resembles the fitted runs as the held-out runs resembled theirs.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import scipy

from evaluator.metrics import WAITING, components_ms, observe, queued_ms, run_means_ms
from evaluator.score import Prediction, ScoreSet, score_set
from simulator.clock.replay import replay_all
from simulator.common.records import stored
from simulator.language.ir import Number, Op, Program, with_step_times
from simulator.language.opcodes import assemble
from simulator.serving.experiment import Experiment
from simulator.serving.facts import has_curves
from simulator.serving.observations import QUANTITIES, Observation
from simulator.serving.trace import rows_by_stage

# Figure -> (latency, statistic): all that a limit on latencies can name. A mean has the name of its latency alone.
STATISTICS = {
    name if q == "mean" else f"{name}_{q}": (f"{name}_ms", q) for q in QUANTITIES for name in ("e2e", "ttft", "itl")
}
FIGURES = ("e2e", "ttft", "itl", "e2e_p99")  # of STATISTICS: three means, and the p99 of the E2E
LEVELS = (0.8, 0.95)
LEAST_FOLDS = 3  # that must have measured a figure for calibrated intervals
# A figure that no run measured has the scale of the nearest measured one, this many times as wide. By the scale of
# their mean, p90 and p99 of the 20 held-out runs at a rate are so covered 17 to 19 times at 80 %, and 20 at 95 %.
BORROWED = 2.0
NEAREST = {"e2e": ("e2e", "itl", "ttft"), "itl": ("itl", "e2e", "ttft"), "ttft": ("ttft", "e2e", "itl")}  # latencies
BETWEEN = " without "  # separates the kind of a fold from the group that it held out, in the name of the fold
# Factors on step times, about the held-out error of the mean ITL. Figures change by far more where a queue may grow.
PACES = (0.97, 1.03)

Interval = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Bands:
    """The intervals of a figure by level (LEVELS), in ms. calibrated: see Scale."""

    at: Mapping[float, Interval]
    calibrated: bool


@dataclass(frozen=True, slots=True)
class Disagreement:
    """Differences between predictions of a run: of the `able` members of an ensemble, and at PACES, from the program's.

    spread: by figure, the root mean square of log(theirs / ours); None where either has no such figure. saturated: the
    share of all programs under which more than WAITING of the E2E is time in the queue. members, paces: log(theirs /
    ours) of the mean E2E.
    """

    spread: Mapping[str, float | None]
    saturated: float
    members: tuple[float | None, ...] = ()
    paces: tuple[float | None, ...] = ()


def _known(figures: Mapping[str, float | None]) -> dict[str, float]:
    return {name: x for name, x in figures.items() if x is not None}


@dataclass(frozen=True, slots=True)
class Residual:
    """A held-out prediction: log(observed / predicted) and the spread of the ensemble by figure, None if missing.

    fold: its kind and the group that it held out, see BETWEEN. closed: of a run of a fixed concurrency. cell: of the
    run (evaluator.cells); "" in files of older releases.
    """

    fold: str
    experiment: str
    log_ratio: Mapping[str, float | None] = stored(write=_known)
    spread: Mapping[str, float | None] = stored(write=_known)
    closed: bool = stored(default=False, brief=True)
    cell: str = stored(default="", brief=True)

    @property
    def kind(self) -> str:
        return self.fold.partition(BETWEEN)[0]

    @property
    def held_out(self) -> str:
        return self.fold.partition(BETWEEN)[2]

    @property
    def group(self) -> str:
        """The type of weights and the GPU, as in `bf16 H100`; "" if they are unknown."""
        return " ".join(self.cell.split()[-2:])

    def error_pct(self, figure: str) -> float | None:
        """(predicted - observed) / observed of a figure, in percent."""
        ratio = self.log_ratio.get(figure)
        return None if ratio is None else 100.0 * math.expm1(-ratio)


@dataclass(frozen=True, slots=True)
class Scale:
    """The scale of a figure's residuals: the floor, the root mean square quotient, and the number of folds.

    calibrated: False if too few folds measured the figure; it may be another figure's scale then.
    """

    floor: float
    quotient: float
    folds: int
    calibrated: bool = True

    def half_width(self, spread: float, level: float) -> float:
        """Half the width of the interval of log(observed / predicted)."""
        return float(scipy.special.stdtrit(self.folds, 0.5 + 0.5 * level)) * self.deviation(spread)

    def deviation(self, spread: float) -> float:
        """The standard deviation of log(observed / predicted)."""
        return self.quotient * math.hypot(self.floor, spread)


def figure_of(run: Observation | None, figure: str) -> float | None:
    """The predicted or observed figure of a run in ms; None without one."""
    latency, statistic = STATISTICS[figure]
    value: float | None = getattr(getattr(run, latency), statistic) if run else None
    return value


def waiting_share(prediction: Prediction) -> float:
    """The share of the mean E2E in the queue; 0 if no request completes."""
    return _share(queued_ms(prediction.components), figure_of(prediction.predicted.summary, "e2e"))


def _share(waiting_ms: float, mean_ms: float | None) -> float:
    return waiting_ms / mean_ms if mean_ms else 0.0


def slowed(program: Program, factor: float) -> Program:
    """The program with its step times multiplied by `factor`."""
    return with_step_times(program, lambda time: Op("*", Number(factor), time))


def disagreements(
    program: Program,
    ensemble: Sequence[Program],
    experiments: Sequence[Experiment],
    seed: int,
    *,
    last_stage: bool = False,
) -> list[Disagreement]:
    """The disagreement of `able` members and of the program at PACES with the program, on each experiment.

    All under the arrivals of `seed`. `last_stage`: in the last load stage alone.
    """
    data = score_set(experiments, [seed])
    members = able(ensemble, experiments)
    paced = (slowed(program, factor) for factor in PACES)
    found = []
    for outcomes in zip(*(_outcomes(p, data, last_stage) for p in (program, *members, *paced)), strict=True):
        run, *runs = (run for run, _ in outcomes)
        logs = {name: _logs(figure_of(run, name), [figure_of(r, name) for r in runs]) for name in STATISTICS}
        every = [waiting > WAITING for _, waiting in outcomes]
        spread = {name: _spread(of_figure) for name, of_figure in logs.items()}
        of_members, of_paces = tuple(logs["e2e"][: len(members)]), tuple(logs["e2e"][len(members) :])
        found.append(Disagreement(spread, sum(every) / len(every), of_members, of_paces))
    return found


def _outcomes(program: Program, data: ScoreSet, last_stage: bool) -> list[tuple[Observation, float]]:
    """(run or last load stage, share of the E2E in the queue) of each experiment, without the cost of `predictions`."""
    every = data.deployments.bind(assemble(program), program.theta)
    found = []
    for i, (e, [load]) in enumerate(zip(data.experiments, data.loads, strict=True)):
        [replay] = replay_all([load], every.at(i))
        stage = replay.requests.stage
        rows = rows_by_stage(stage, len(e.workload.stages))[-1] if last_stage else np.flatnonzero(stage >= 0)
        found.append((observe(replay, rows), _share(queued_ms(components_ms(replay)), run_means_ms(replay)[0])))
    return found


def able(ensemble: Sequence[Program], experiments: Sequence[Experiment]) -> list[Program]:
    """The members that can predict all experiments: kernels that they read are measured on all deployments."""
    measured = all(has_curves(e.facts) for e in experiments)
    return [p for p in ensemble if measured or not assemble(p).curves]


def _logs(ours: float | None, theirs: Sequence[float | None]) -> list[float | None]:
    """log(theirs / ours); None where either has no figure."""
    return [math.log(x / ours) if x and ours else None for x in theirs]


def _spread(logs: Sequence[float | None]) -> float | None:
    known = [x for x in logs if x is not None]
    return math.sqrt(sum(x * x for x in known) / len(known)) if known else None


def scales(
    residuals: Sequence[Residual], closed: bool | None = None, least_folds: int = LEAST_FOLDS
) -> dict[str, Scale]:
    """The scale of every figure of STATISTICS; none without residuals.

    It is calibrated by at least so many folds; with `closed`, by those of such loads.
    """
    found = ((figure, _scale(residuals, figure, closed, least_folds)) for figure in STATISTICS)
    measured = {figure: scale for figure, scale in found if scale}
    enough = {figure: scale for figure, scale in measured.items() if scale.calibrated}
    return {figure: measured.get(figure) or _borrowed(figure, enough or measured) for figure in STATISTICS if measured}


def _scale(residuals: Sequence[Residual], figure: str, closed: bool | None, least_folds: int) -> Scale | None:
    every = ((r, r.log_ratio[figure], r.spread[figure]) for r in residuals)
    known = [(r, x, spread) for r, x, spread in every if x is not None and spread is not None]
    if not known:
        return None
    runs, ratios, spreads = zip(*known, strict=True)
    folds = [r.fold for r in runs]
    counts = Counter(folds)
    weights = np.array([1.0 / counts[fold] for fold in folds]) / len(counts)
    squares = np.square(np.array(ratios))
    floor = float(weights @ squares)
    sizes = floor + np.square(np.array(spreads))
    quotient = math.sqrt(weights @ np.divide(squares, sizes, out=np.zeros(len(sizes)), where=sizes > 0.0))
    of_load = _independent({r.fold for r in runs if closed is None or r.closed == closed})
    return Scale(math.sqrt(floor), quotient, _independent(counts.keys()), of_load >= least_folds)


def _independent(folds: Collection[str]) -> int:
    """The number of folds of the most frequent kind: folds of several kinds hold out the same runs."""
    return max(Counter(fold.rpartition(BETWEEN)[0] for fold in folds).values(), default=0)


def _borrowed(figure: str, measured: Mapping[str, Scale]) -> Scale:
    """The scale of the nearest measured figure, BORROWED times as wide."""
    latency, statistic = figure.partition("_")[0], QUANTITIES.index(STATISTICS[figure][1])

    def distance(other: str) -> tuple[int, int]:
        apart = abs(QUANTITIES.index(STATISTICS[other][1]) - statistic)
        return NEAREST[latency].index(other.partition("_")[0]), apart

    scale = measured[min(measured, key=distance)]
    return replace(scale, quotient=BORROWED * scale.quotient, calibrated=False)


def interval(predicted: float, spread: float, scale: Scale, level: float) -> Interval:
    width = math.exp(scale.half_width(spread, level))
    return predicted / width, predicted * width


def bands(predicted: float, spread: float, scale: Scale) -> Bands:
    return Bands({level: interval(predicted, spread, scale, level) for level in LEVELS}, scale.calibrated)
