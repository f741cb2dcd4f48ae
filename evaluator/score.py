"""Scores of programs: errors per experiment in percent, and the objectives computed from them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from archive.score import Errors, Score
from evaluator.cells import cell_of, mean_error, run_weights, weighted_mean
from evaluator.metrics import (
    LATENCIES,
    average,
    components_ms,
    error_pct,
    evicted,
    mean,
    mean_abs,
    observe_all,
    queue_grows,
    run_means_ms,
    step_tokens,
    ttft_p99_ms,
)
from evaluator.requests import Singles, singles
from evaluator.throughput import NOTHING, Served, served
from simulator.clock.bind import BoundAll, Deployments, deployments_in_order
from simulator.clock.replay import PoolReplay, Replay, replay_all
from simulator.language.ir import Program
from simulator.language.opcodes import Code, assemble
from simulator.serving.experiment import Experiment
from simulator.serving.load import Load, load_of
from simulator.serving.observations import Observation, Observed
from simulator.serving.trace import Trace
from simulator.serving.workload import late_requests, seeds_of

ALL_GIVE_UP, ALL_REFUSED = "every client gives up", "all are longer than max_model_len and were refused"
SCORE_SEEDS = (1, 2, 3)  # arrival seeds of reported figures; a fit uses other seeds


@dataclass(frozen=True)
class ScoreSet:
    """Experiments with the loads of every arrival seed that a statistic is averaged over."""

    experiments: tuple[Experiment, ...]
    loads: tuple[tuple[Load, ...], ...]

    @cached_property
    def deployments(self) -> Deployments:
        """The deployment of each experiment, named by its position."""
        return deployments_in_order(self.experiments)

    def subset(self, keep: Sequence[int]) -> ScoreSet:
        """The experiments at the positions `keep`, with their loads."""
        return ScoreSet(tuple(self.experiments[i] for i in keep), tuple(self.loads[i] for i in keep))


@dataclass(frozen=True)
class Prediction:
    """A program's predictions for one experiment, averaged over arrival seeds; components in ms.

    The others are counts, the mean over seeds rounded up: times clamped, preemptions, requests refused (longer than
    max_model_len or than the KV cache), requests whose client gave up, turns of conversations that are `late`
    (workload.late_requests), `uncached` tokens (metrics.step_tokens),
    requests whose prompt was `evicted` from the cache and computed again, KV blocks `loaded` from host memory, and
    requests that a decode pool `dropped` for want of KV blocks. queue_grows: see metrics.queue_grows. served:
    requests and tokens per second.
    singles: the errors of single requests, for a trace that has their latencies.
    """

    experiment: str
    predicted: Observed
    components: dict[str, float]
    clamped: int
    preemptions: int = 0
    refused: int = 0
    gave_up: int = 0
    late: int = 0
    uncached: int = 0
    evicted: int = 0
    dropped: int = 0
    loaded: int = 0
    queue_grows: bool = False
    served: Served = NOTHING
    singles: Singles | None = None


MEANS = ("e2e", "ttft", "itl")  # the latencies of Errors, in the order in which people name them


class NothingCompletes(Exception):
    """No request of an observed experiment completes under a program: its clients all give up, or all
    requests are too long."""


def score_set(experiments: Sequence[Experiment], seeds: Sequence[int] = SCORE_SEEDS) -> ScoreSet:
    """`experiments` with their loads under the arrival seeds; a trace is the same under all of them."""
    loads = tuple(tuple(load_of(e, seed) for seed in seeds_of(e.workload, seeds)) for e in experiments)
    return ScoreSet(tuple(experiments), loads)


def predictions(program: Program, data: ScoreSet, of_requests: bool = False) -> list[Prediction]:
    """Predictions for every experiment, from a replay under every seed; step times out of range are clamped.

    of_requests: with the errors of single requests, where they are known. Raises InputError if a GPU has no measured
    kernels and the program reads them.
    """
    every = data.deployments.bind(assemble(program), program.theta)
    runs = zip(_replays(every, data), data.experiments, strict=True)
    return [prediction_of(e, replays, of_requests) for replays, e in runs]


def prediction_of(experiment: Experiment, replays: Sequence[Replay], of_requests: bool = False) -> Prediction:
    """The prediction for an experiment from its replays, one per arrival seed; see `predictions`."""
    count = len(experiment.workload.stages)
    observed = [observe_all(r, count) for r in replays]
    summaries = [o.summary for o in observed if o.summary is not None]
    stages = tuple(average([o.stages[i] for o in observed]) for i in range(count))
    parts = [components_ms(r) for r in replays]
    return Prediction(
        experiment.id,
        Observed(average(summaries), stages),
        {name: sum(p[name] for p in parts) / len(parts) for name in parts[0]},
        clamped=_mean_count(r.clamped for r in replays),
        preemptions=_mean_count(r.run.preemptions for r in replays),
        refused=_mean_count(int((~r.load.accepted).sum()) for r in replays),
        gave_up=_mean_count(int(r.run.gave_up.sum()) for r in replays),
        late=_mean_count(late_requests(experiment.workload, r.requests) for r in replays),
        uncached=_mean_count(map(step_tokens, replays)),
        evicted=_mean_count(map(evicted, replays)),
        dropped=_mean_count(int(r.pools.dropped.sum()) if isinstance(r, PoolReplay) else 0 for r in replays),
        loaded=_mean_count(r.run.loaded for r in replays),
        queue_grows=queue_grows(replays, count),
        served=served(experiment.workload, replays),
        singles=_singles(experiment, replays) if of_requests else None,
    )


def _singles(experiment: Experiment, replays: Sequence[Replay]) -> Singles | None:
    source = experiment.workload.source
    if not isinstance(source, Trace) or source.recorded is None:
        return None
    return singles(replays[0], source.recorded)  # a trace has a single replay


def errors(prediction: Prediction, experiment: Experiment) -> Errors:
    """The signed errors of the run's means; None where nothing was observed."""
    summary = prediction.predicted.summary
    return _errors(experiment, None if summary is None else [getattr(summary, name).mean for name in LATENCIES])


def error_rows(program: Program, data: ScoreSet) -> list[Errors]:
    """The `errors` of `predictions` for every experiment, in order, without the cost of the other statistics."""
    return error_rows_of(data.deployments.bind(assemble(program), program.theta), data)


def error_rows_of(every: BoundAll, data: ScoreSet, *, stop_when_hostile: bool = False) -> list[Errors]:
    """`error_rows` of the program that is bound to the deployment of each experiment.

    Raises HostileStep if `stop_when_hostile` and a step time lies outside [1, 10^10] us.
    """
    replayed = zip(_replays(every, data, stop_when_hostile), data.experiments, strict=True)
    return [_replayed_errors(e, replays) for replays, e in replayed]


def _replayed_errors(experiment: Experiment, replays: Sequence[Replay]) -> Errors:
    means_ms = [run_means_ms(r) for r in replays]
    return _errors(experiment, [mean(values) for values in zip(*means_ms, strict=True)])


def _ttft_p99_error(experiment: Experiment, replays: Sequence[Replay]) -> float | None:
    """The signed error in percent of the TTFT's p99; None if none was observed."""
    observed = experiment.observed.summary if experiment.observed else None
    if observed is None or not observed.ttft_ms.p99:
        return None
    return error_pct(mean([ttft_p99_ms(r) for r in replays]), observed.ttft_ms.p99)


def score(
    code: Code, theta: Sequence[float], data: ScoreSet, moe_weight: float = 1.0, in_steps: Sequence[RunErrors] = ()
) -> Score:
    """The score on `data`, and on runs `in_steps`, of the program with these opcodes, at the constants `theta`.

    The means weigh runs by evaluator.cells. Each cell of runs in steps has a row of mean absolute errors.

    Raises HostileStep for a step time outside [1, 10^10] us, and NothingCompletes."""
    rows, tails = [], []
    every = data.deployments.bind(code, tuple(theta))
    for replays, e in zip(_replays(every, data, stop_when_hostile=True), data.experiments, strict=True):
        rows.append(_replayed_errors(e, replays))
        tails.append(_ttft_p99_error(e, replays))
    for row, e, loads in zip(rows, data.experiments, data.loads, strict=True):
        summary = e.observed.summary if e.observed else None
        if summary is not None and _lacking(row, summary):
            accepted = any(load.accepted.any() for load in loads)
            why = ALL_GIVE_UP if accepted else ALL_REFUSED
            raise NothingCompletes(f"no request of {e.id} completes: {why}")
    moe = {e.id: moe_weight for e in data.experiments if e.facts["is_moe"]}
    ttft_p99 = mean_abs(tails)
    if not in_steps:
        return replace(summarise(rows, moe, run_weights(data.experiments)), ttft_p99=ttft_p99)
    weights = run_weights([*data.experiments, *(run.experiment for run in in_steps)])
    whole = summarise([*rows, *(run.errors for run in in_steps)], moe, weights)
    cells: dict[str, list[Errors]] = {}
    for run in in_steps:
        cells.setdefault(cell_of(run.experiment), []).append(run.errors)
    of_cells = [_cell_row(f"{cell}, {len(errors)} runs", errors) for cell, errors in cells.items()]
    return replace(whole, rows=(*rows, *of_cells), ttft_p99=ttft_p99)


@dataclass(frozen=True, slots=True)
class RunErrors:
    """A run and its errors, without a replay."""

    experiment: Experiment
    errors: Errors


def _cell_row(name: str, errors: Sequence[Errors]) -> Errors:
    """The mean absolute errors of a cell."""
    return Errors(name, *(mean_abs(column) for column in zip(*(e.figures for e in errors), strict=True)))


def _lacking(row: Errors, observed: Observation) -> bool:
    """True if a mean was observed that is not predicted: without its error, the run would not count."""
    means = (getattr(observed, name).mean for name in LATENCIES)
    return any(mean and error is None for mean, error in zip(means, row.figures, strict=True))


def summarise(
    rows: Sequence[Errors], weights: Mapping[str, float] | None = None, run_weights: Iterable[float] | None = None
) -> Score:
    """The objectives of these experiments. `weights` multiplies an experiment's E2E error in worst3; `run_weights`:
    weight of each row in the means, by default 1."""
    shares = [1.0] * len(rows) if run_weights is None else [*run_weights]
    e2e, ttft, itl = (weighted_mean([_size(getattr(r, name)) for r in rows], shares) for name in MEANS)
    weights = weights or {}
    mean = mean_error(e2e, ttft, itl)
    joint = float("nan") if mean is None else mean
    e2es = (abs(r.e2e) * weights.get(r.experiment, 1.0) for r in rows if r.e2e is not None)
    largest = sorted(e2es, reverse=True)[:3]
    worst3 = sum(largest) / len(largest) if largest else joint
    return Score(tuple(rows), e2e, ttft, itl, joint, worst3)


def _size(error: float | None) -> float | None:
    return None if error is None else abs(error)


def _replays(every: BoundAll, data: ScoreSet, stop_when_hostile: bool = False) -> Iterator[list[Replay]]:
    for i, loads in enumerate(data.loads):
        yield replay_all(loads, every.at(i), stop_when_hostile=stop_when_hostile)


def _mean_count(counts: Iterable[int]) -> int:
    counts = list(counts)
    return math.ceil(sum(counts) / len(counts))


def _errors(experiment: Experiment, means_ms: Sequence[float | None] | None) -> Errors:
    """The errors of predicted mean E2E, TTFT and ITL in ms."""
    summary = experiment.observed.summary if experiment.observed else None
    if summary is None or means_ms is None:
        return Errors(experiment.id, None, None, None)
    observed = (getattr(summary, name).mean for name in LATENCIES)
    return Errors(experiment.id, *(error_pct(p, o) for p, o in zip(means_ms, observed, strict=True)))
