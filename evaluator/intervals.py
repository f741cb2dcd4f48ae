"""Prediction intervals from held-out errors and from the disagreement of near-optimal programs.

Normalised conformal prediction (Papadopoulos, Gammerman and Vovk 2008; Lei et al. 2018, JASA 113:1094): the residual of
a held-out figure, log(observed / predicted), is divided by a scale that is known before the run is measured. The
interval of a new figure is its own scale times a quantile of these quotients. The scale is sqrt(floor^2 + spread^2):
the spread is the disagreement of an ensemble of programs that fit equally well, the floor the median residual. The
coverage holds if a new run resembles the fitted runs as the held-out runs resembled theirs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from evaluator.metrics import WAITING, components_ms, observe, queued_ms, run_means_ms
from evaluator.score import Prediction, ScoreSet, score_set
from simulator.clock.replay import replay_all
from simulator.common.records import stored
from simulator.language.ir import Number, Op, Program, with_step_times
from simulator.language.opcodes import assemble
from simulator.serving.experiment import Experiment
from simulator.serving.facts import has_curves
from simulator.serving.observations import Observation
from simulator.serving.trace import rows_by_stage

# Figure -> (latency, statistic). No run has observed percentiles of ITL, so these have no residuals.
STATISTICS = {name: (f"{name}_ms", "mean") for name in ("e2e", "ttft", "itl")}
STATISTICS |= {f"{name}_{p}": (f"{name}_ms", p) for name in ("e2e", "ttft") for p in ("p90", "p99")}
FIGURES = ("e2e", "ttft", "itl", "e2e_p99")  # of STATISTICS: three means, and the p99 of the E2E
LEVELS = (0.8, 0.95)
BETWEEN = " without "  # separates the kind of a fold from the group that it held out, in the name of the fold
# Factors on step times, about the held-out error of the mean ITL. Figures change by far more where a queue may grow.
PACES = (0.97, 1.03)

Interval = tuple[float, float]


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


@dataclass(frozen=True, slots=True)
class Residual:
    """A held-out prediction: log(observed / predicted) and the spread of the ensemble by figure, None if missing.

    fold: its kind and the group that it held out, see BETWEEN. closed: of a run of a fixed concurrency.
    """

    fold: str
    experiment: str
    log_ratio: Mapping[str, float | None]
    spread: Mapping[str, float | None]
    closed: bool = stored(default=False, brief=True)

    @property
    def kind(self) -> str:
        return self.fold.partition(BETWEEN)[0]

    @property
    def held_out(self) -> str:
        return self.fold.partition(BETWEEN)[2]

    def error_pct(self, figure: str) -> float | None:
        """(predicted - observed) / observed of a figure, in percent."""
        ratio = self.log_ratio.get(figure)
        return None if ratio is None else 100.0 * math.expm1(-ratio)


@dataclass(frozen=True, slots=True)
class Scale:
    """The sorted quotients of residual and scale of one figure, and the floor of the scale."""

    quotients: tuple[float, ...]
    floor: float

    def half_width(self, spread: float, level: float) -> float:
        """Half the width of the interval of log(observed / predicted), from n quotients.

        The ceil((n + 1) level)-th smallest quotient times the scale. With too few quotients for a high level it is the
        largest one, which covers n / (n + 1) of the cases.
        """
        n = len(self.quotients)
        return self.quotients[min(math.ceil((n + 1) * level), n) - 1] * math.hypot(self.floor, spread)

    def deviation(self, spread: float) -> float:
        """The standard deviation of log(observed / predicted): the root mean square quotient times the scale."""
        return math.sqrt(np.square(self.quotients).mean()) * math.hypot(self.floor, spread)


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


def scales(residuals: Sequence[Residual]) -> dict[str, Scale]:
    found = {}
    for figure in STATISTICS:
        every = ((r.log_ratio[figure], r.spread[figure]) for r in residuals)
        pairs = [(abs(ratio), spread) for ratio, spread in every if ratio is not None and spread is not None]
        if pairs:
            floor = float(np.median([ratio for ratio, _ in pairs]))
            sizes = [math.hypot(floor, spread) for _, spread in pairs]
            quotients = (ratio / size if size else 0.0 for (ratio, _), size in zip(pairs, sizes, strict=True))
            found[figure] = Scale(tuple(sorted(quotients)), floor)
    return found


def interval(predicted: float, spread: float, scale: Scale, level: float) -> Interval:
    width = math.exp(scale.half_width(spread, level))
    return predicted / width, predicted * width


@dataclass(frozen=True, slots=True)
class Coverage:
    """The coverage of the intervals of one figure on the held-out runs, and their median widths in percent."""

    runs: int
    covered_80: float
    covered_95: float
    width_80_pct: float
    width_95_pct: float


def coverage(residuals: Sequence[Residual], among: Sequence[Residual]) -> dict[str, Coverage]:
    """The coverage by figure. The interval of a residual comes from those `among` of other folds and experiments."""
    rows: dict[str, list[list[float]]] = {figure: [] for figure in STATISTICS}
    for r in residuals:
        others = scales([x for x in among if x.fold != r.fold and x.experiment != r.experiment])
        for figure, scale in others.items():
            ratio, spread = r.log_ratio[figure], r.spread[figure]
            if ratio is not None and spread is not None:
                half = [scale.half_width(spread, level) for level in LEVELS]
                widths = [100.0 * (math.exp(h) - math.exp(-h)) for h in half]
                rows[figure].append([*(float(abs(ratio) <= h) for h in half), *widths])
    return {
        figure: Coverage(
            len(of_figure),
            *np.mean([row[:2] for row in of_figure], axis=0).tolist(),
            *np.median([row[2:] for row in of_figure], axis=0).tolist(),
        )
        for figure, of_figure in rows.items()
        if of_figure
    }
