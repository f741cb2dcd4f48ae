"""How good a program is: errors per experiment, and the objectives made from them (contracts: errors in percent)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from evaluator.fit.uncached import evicted, step_tokens
from evaluator.metrics import LATENCIES, average, components_ms, error_pct, mean, observe_all, run_means_ms
from simulator.bind import bind
from simulator.clock.steps import steps_of
from simulator.experiment.experiment import Experiment, Observed
from simulator.experiment.load import Load, load_of
from simulator.language.ir import Program
from simulator.language.opcodes import Code, assemble
from simulator.replay import Replay, replay_bound

SCORE_SEEDS = (1, 2, 3)  # arrival seeds of reported figures; never those of a fit


@dataclass(frozen=True)
class ScoreSet:
    """Experiments with the loads of every arrival seed that a statistic is averaged over."""

    experiments: tuple[Experiment, ...]
    loads: tuple[tuple[Load, ...], ...]


@dataclass(frozen=True)
class Prediction:
    """What a program predicts for one experiment, averaged over arrival seeds; components in ms.

    clamped, preemptions, refused (longer than max_model_len or than the KV cache), gave_up: counts, the
    mean over seeds rounded up. So are `uncached` (evaluator.fit.uncached.step_tokens)
    and `evicted` (requests that compute a prompt again).
    """

    experiment: str
    predicted: Observed
    components: dict[str, float]
    clamped: int
    preemptions: int = 0
    refused: int = 0
    gave_up: int = 0
    uncached: int = 0
    evicted: int = 0


@dataclass(frozen=True, slots=True)
class Errors:
    """Signed errors of an experiment's mean E2E, TTFT and ITL in percent; None where not observed."""

    experiment: str
    e2e: float | None
    ttft: float | None
    itl: float | None


@dataclass(frozen=True, slots=True)
class Score:
    """Mean absolute errors over experiments in percent, None where a latency was never observed; joint = the mean of
    those that were (NaN if none); worst3 = mean of the three largest E2E errors (joint where there is no E2E)."""

    rows: tuple[Errors, ...]
    e2e: float | None
    ttft: float | None
    itl: float | None
    joint: float
    worst3: float


def score_set(experiments: Sequence[Experiment], seeds: Sequence[int] = SCORE_SEEDS) -> ScoreSet:
    return ScoreSet(tuple(experiments), tuple(tuple(load_of(e, s) for s in seeds) for e in experiments))


def subset(data: ScoreSet, keep: Sequence[int]) -> ScoreSet:
    """The experiments `keep`, positions in `data.experiments`, with the loads they have."""
    return ScoreSet(tuple(data.experiments[i] for i in keep), tuple(data.loads[i] for i in keep))


def predictions(program: Program, data: ScoreSet, *, stop_when_hostile: bool = False) -> list[Prediction]:
    """Replay every experiment under every seed. Raises HostileStep if `stop_when_hostile`."""
    code, out = assemble(program), []
    for replays, e in zip(_replays(program, code, data, stop_when_hostile), data.experiments, strict=True):
        seen = [observe_all(r) for r in replays]
        summaries = [o.summary for o in seen if o.summary is not None]
        stages = tuple(average([o.stages[i] for o in seen]) for i in range(len(e.workload.stages)))
        parts = [components_ms(r) for r in replays]
        components = {name: sum(p[name] for p in parts) / len(parts) for name in parts[0]}
        out.append(
            Prediction(
                e.id,
                Observed(average(summaries), stages),
                components,
                clamped=_count(r.clamped for r in replays),
                preemptions=_count(r.run.preemptions for r in replays),
                refused=_count(int((~r.load.accepted).sum()) for r in replays),
                gave_up=_count(int(r.run.gave_up.sum()) for r in replays),
                uncached=_count(map(step_tokens, replays)),
                evicted=_count(map(evicted, replays)),
            )
        )
    return out


def _count(values: Iterable[int]) -> int:
    known = list(values)
    return math.ceil(sum(known) / len(known))


def _replays(program: Program, code: Code, data: ScoreSet, stop_when_hostile: bool) -> Iterator[list[Replay]]:
    """The replays of every experiment, one an arrival seed."""
    for e, loads in zip(data.experiments, data.loads, strict=True):
        bound = bind(code, program.theta, e.facts)
        steps = steps_of(bound, loads[0].limits)
        yield [replay_bound(load, bound, steps=steps, stop_when_hostile=stop_when_hostile) for load in loads]


def errors(prediction: Prediction, experiment: Experiment) -> Errors:
    """The signed errors of the run's means; None where nothing was observed."""
    summary = prediction.predicted.summary
    return _errors(experiment, None if summary is None else [getattr(summary, name).mean for name in LATENCIES])


def _errors(experiment: Experiment, means_ms: Sequence[float | None] | None) -> Errors:
    """Of mean E2E, TTFT and ITL in ms."""
    summary = experiment.observed.summary if experiment.observed else None
    if summary is None or means_ms is None:
        return Errors(experiment.id, None, None, None)
    observed = (getattr(summary, name).mean for name in LATENCIES)
    return Errors(experiment.id, *(error_pct(p, o) for p, o in zip(means_ms, observed, strict=True)))


def error_rows(program: Program, data: ScoreSet, *, stop_when_hostile: bool = False) -> list[Errors]:
    """The signed errors of `program` on every experiment, in their order: those of `predictions`, without the rest."""
    code, out = assemble(program), []
    for replays, e in zip(_replays(program, code, data, stop_when_hostile), data.experiments, strict=True):
        seeds = [run_means_ms(r) for r in replays]
        out.append(_errors(e, [mean(values) for values in zip(*seeds, strict=True)]))
    return out


def _mean_abs(values: Sequence[float | None]) -> float | None:
    known = [abs(v) for v in values if v is not None]
    return sum(known) / len(known) if known else None


def summarise(rows: Sequence[Errors], weights: Mapping[str, float] | None = None) -> Score:
    """The objectives of these experiments; `weights` multiplies an experiment's E2E error in worst3."""
    e2e, ttft, itl = (_mean_abs([getattr(r, name) for r in rows]) for name in ("e2e", "ttft", "itl"))
    weights = weights or {}
    measured = [x for x in (e2e, ttft, itl) if x is not None]
    joint = sum(measured) / len(measured) if measured else float("nan")
    e2es = (abs(r.e2e) * weights.get(r.experiment, 1.0) for r in rows if r.e2e is not None)
    largest = sorted(e2es, reverse=True)[:3]
    worst3 = sum(largest) / len(largest) if largest else joint
    return Score(tuple(rows), e2e, ttft, itl, joint, worst3)


class NothingCompletes(Exception):
    """No request of an observed experiment completes under a program: its clients all give up."""


def score(program: Program, data: ScoreSet, moe_weight: float = 1.0) -> Score:
    """The program's score on `data`. Raises HostileStep for a step time outside [1, 10^10] us, and NothingCompletes."""
    rows = error_rows(program, data, stop_when_hostile=True)
    for row, e in zip(rows, data.experiments, strict=True):
        summary = e.observed.summary if e.observed else None
        if summary is not None and summary.e2e_ms.mean and row.e2e is None:
            raise NothingCompletes(f"no request of {e.id} completes: every client gives up")
    return summarise(rows, {e.id: moe_weight for e in data.experiments if e.facts["is_moe"]})
