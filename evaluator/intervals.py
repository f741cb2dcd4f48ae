"""Prediction intervals: how far a figure may be off, by held-out errors and by how much near-optimal programs disagree.

Normalised conformal prediction (Papadopoulos, Gammerman and Vovk 2008; Lei et al. 2018, JASA 113:1094): the residual of
a held-out figure, log(observed / predicted), is divided by a scale that is known before the run is measured, and a new
figure's interval is its own scale times a quantile of these quotients. The scale is sqrt(floor^2 + spread^2): the
spread is the disagreement of a committee of programs that fit equally well, the floor the median residual. Intervals
cover as often as they say if a new run is to the fitted ones as the held-out runs were to theirs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from evaluator.metrics import components_ms, observe, run_means_ms
from evaluator.score import Prediction, ScoreSet, score_set
from simulator.clock.replay import replay_all
from simulator.language.ir import Number, Op, Program, with_step_times
from simulator.language.opcodes import assemble
from simulator.serving.experiment import Experiment, Observation
from simulator.serving.facts import has_curves
from simulator.serving.trace import rows_by_stage

# {figure: (latency, statistic)}; of ITL only the mean was observed anywhere, so its percentiles have no residuals.
STATISTICS = {
    "e2e": ("e2e_ms", "mean"), "ttft": ("ttft_ms", "mean"), "itl": ("itl_ms", "mean"),
    "e2e_p90": ("e2e_ms", "p90"), "e2e_p99": ("e2e_ms", "p99"),
    "ttft_p90": ("ttft_ms", "p90"), "ttft_p99": ("ttft_ms", "p99"),
}  # fmt: skip
FIGURES = ("e2e", "ttft", "itl", "e2e_p99")  # of STATISTICS: three means, and the p99 of the E2E
LEVELS = (0.8, 0.95)
BETWEEN = " without "  # a fold's kind, and what it held out, in the name of a residual's fold
# Step times that are off by this factor, about the held-out error of the mean ITL: where a queue may grow, the figures
# of these two differ by far more.
PACES = (0.97, 1.03)
# Share of the mean E2E spent in the queue, beyond which a queue may grow: twice that of the fullest calm run shipped.
WAITING = 0.05

LONGER = 1.5  # times as long as the first half waits the second half of the requests, from which on the queue grows

Interval = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Disagreement:
    """How the committee's predictions of a run differ from the program's.

    spread: by figure, the root mean square of log(theirs / ours); None where either has no such figure. saturated: the
    share of all of them, ours and those of PACES included, under which more than WAITING of the E2E is spent in the
    queue. members, paces: log(theirs / ours) of the mean E2E, of each `able` member of the committee and under each of
    PACES.
    """

    spread: Mapping[str, float | None]
    saturated: float
    members: tuple[float | None, ...] = ()
    paces: tuple[float | None, ...] = ()


@dataclass(frozen=True, slots=True)
class Residual:
    """A held-out prediction: log(observed / predicted) by figure, and the spread of the fold's committee; None where
    either is missing. fold: what was held out with it."""

    fold: str
    experiment: str
    log_ratio: Mapping[str, float | None]
    spread: Mapping[str, float | None]

    @property
    def kind(self) -> str:
        """The kind of the fold."""
        return self.fold.partition(BETWEEN)[0]

    @property
    def held_out(self) -> str:
        """What the fold held out."""
        return self.fold.partition(BETWEEN)[2]

    def error_pct(self, figure: str) -> float | None:
        """(predicted - observed) / observed of a figure, in percent."""
        ratio = self.log_ratio.get(figure)
        return None if ratio is None else 100.0 * math.expm1(-ratio)


@dataclass(frozen=True, slots=True)
class Scale:
    """The quotients of residual and scale of one figure, sorted, and the floor of the scale."""

    quotients: tuple[float, ...]
    floor: float

    def half_width(self, spread: float, level: float) -> float:
        """Half the width of the interval of log(observed / predicted).

        With n residuals it is the ceil((n + 1) level)-th smallest quotient times the scale. With too few residuals for
        a high level it is the largest, which covers n / (n + 1) of the cases.
        """
        n = len(self.quotients)
        return self.quotients[min(math.ceil((n + 1) * level), n) - 1] * math.hypot(self.floor, spread)

    def deviation(self, spread: float) -> float:
        """The standard deviation of log(observed / predicted): the root mean square quotient times the scale."""
        return math.sqrt(np.square(self.quotients).mean()) * math.hypot(self.floor, spread)


def figure_of(run: Observation | None, figure: str) -> float | None:
    """The predicted or observed figure of a run in ms; None without one, as if no request completes."""
    latency, statistic = STATISTICS[figure]
    value: float | None = getattr(getattr(run, latency), statistic) if run else None
    return value


def waiting_share(prediction: Prediction) -> float:
    """The share of the mean E2E that requests spend in the queue; 0 if none completes."""
    return _share(prediction.components["waiting"], figure_of(prediction.predicted.summary, "e2e"))


def _share(waiting_ms: float, mean_ms: float | None) -> float:
    return waiting_ms / mean_ms if mean_ms else 0.0


def queue_grows(prediction: Prediction) -> bool:
    """Whether requests wait, and later ones longer than earlier ones: in a queue that grows steadily from an empty one
    the second half of them waits three times as long as the first, in one that is merely long as long."""
    return waits_longer(waiting_share(prediction), prediction.later_wait)


def waits_longer(share: float, later_wait: float) -> bool:
    """Whether requests that spend this share of their time in the queue, and later ones so many times as long as
    earlier ones, say that it grows."""
    return share > WAITING and later_wait > LONGER


def slowed(program: Program, factor: float) -> Program:
    """The program with all of its step times times `factor`."""
    return with_step_times(program, lambda time: Op("*", Number(factor), time))


def disagreements(
    program: Program,
    committee: Sequence[Program],
    experiments: Sequence[Experiment],
    seed: int,
    *,
    last_stage: bool = False,
) -> list[Disagreement]:
    """How the committee, and the program with other step times, differ from the program on each experiment, all under
    the same arrivals. Only members that are `able` take part. `last_stage`: in the last load stage alone.
    """
    data = score_set(experiments, [seed])
    members = able(committee, experiments)
    paced = (slowed(program, factor) for factor in PACES)
    found = []
    for outcomes in zip(*(_outcomes(p, data, last_stage) for p in (program, *members, *paced)), strict=True):
        run, *runs = (run for run, _ in outcomes)
        logs = {name: _logs(figure_of(run, name), [figure_of(r, name) for r in runs]) for name in STATISTICS}
        every = [waiting > WAITING for _, waiting in outcomes]
        found.append(
            Disagreement(
                {name: _spread(of_figure) for name, of_figure in logs.items()},
                sum(every) / len(every),
                tuple(logs["e2e"][: len(members)]),
                tuple(logs["e2e"][len(members) :]),
            )
        )
    return found


def _outcomes(program: Program, data: ScoreSet, last_stage: bool) -> list[tuple[Observation, float]]:
    """For each experiment its run, or last load stage, under the program, and the share of the E2E that is waiting.

    Only what a disagreement needs of `predictions`, which would take half as long again.
    """
    every = data.deployments.bind(assemble(program), program.theta)
    found = []
    for i, (e, [load]) in enumerate(zip(data.experiments, data.loads, strict=True)):
        [replay] = replay_all([load], every.at(i))
        stage = replay.requests.stage
        rows = rows_by_stage(stage, len(e.workload.stages))[-1] if last_stage else np.flatnonzero(stage >= 0)
        found.append((observe(replay, rows), _share(components_ms(replay)["waiting"], run_means_ms(replay)[0])))
    return found


def able(committee: Sequence[Program], experiments: Sequence[Experiment]) -> list[Program]:
    """The members that can predict all of the experiments: those that read measured kernels cannot if one of the
    deployments has none."""
    measured = all(has_curves(e.facts) for e in experiments)
    return [p for p in committee if measured or not assemble(p).curves]


def _logs(ours: float | None, theirs: Sequence[float | None]) -> list[float | None]:
    """log(theirs / ours), None where either has no figure."""
    return [math.log(x / ours) if x and ours else None for x in theirs]


def _spread(logs: Sequence[float | None]) -> float | None:
    """The root mean square of those that are known."""
    known = [x for x in logs if x is not None]
    return math.sqrt(sum(x * x for x in known) / len(known)) if known else None


def scales(residuals: Sequence[Residual]) -> dict[str, Scale]:
    """The scale of each figure that has residuals."""
    found = {}
    for figure in STATISTICS:
        pairs = [
            (abs(ratio), spread)
            for ratio, spread in ((r.log_ratio[figure], r.spread[figure]) for r in residuals)
            if ratio is not None and spread is not None
        ]
        if pairs:
            floor = float(np.median([ratio for ratio, _ in pairs]))
            sizes = [math.hypot(floor, spread) for _, spread in pairs]
            quotients = (ratio / size if size else 0.0 for (ratio, _), size in zip(pairs, sizes, strict=True))
            found[figure] = Scale(tuple(sorted(quotients)), floor)
    return found


def interval(predicted: float, spread: float, scale: Scale, level: float) -> Interval:
    """The interval of a figure, in its own unit."""
    width = math.exp(scale.half_width(spread, level))
    return predicted / width, predicted * width


@dataclass(frozen=True, slots=True)
class Coverage:
    """How the intervals of one figure do on the held-out runs, each judged by the residuals of the others alone.

    covered_80, covered_95: the shares of runs inside. width_80_pct, width_95_pct: the median widths of the intervals,
    in percent of the prediction.
    """

    runs: int
    covered_80: float
    covered_95: float
    width_80_pct: float
    width_95_pct: float


def coverage(residuals: Sequence[Residual]) -> dict[str, Coverage]:
    """The coverage of each figure's intervals. A residual is judged by those of other folds and other experiments."""
    rows: dict[str, list[list[float]]] = {figure: [] for figure in STATISTICS}
    for r in residuals:
        others = scales([x for x in residuals if x.fold != r.fold and x.experiment != r.experiment])
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
