"""Throughput against speed along a load, its clients or its rate, as benchmarks publish it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest

from evaluator.cells import precision_of
from evolve.output.progress import Line
from evolve.plan.axes import Axes
from evolve.plan.sweep import sweep
from evolve.run.program import Source
from simulator.serving.experiment import Experiment
from simulator.serving.observations import Observation
from simulator.serving.trace import Trace
from simulator.serving.workload import Stage, duration_s, mean_rate, output_lengths, prompt_lengths

LEAST = 64  # clients up to which a curve goes at least
RATES = 8  # evenly spaced, up to the highest
# Settings that follow the number of clients in some launch scripts.
FOLLOWING = ("max_num_seqs", "cudagraph_capture_max", "given")


@dataclass(frozen=True, slots=True)
class CurvePoint:
    """A load of so many clients or requests/s: output tokens/s of each client while it decodes, and of each GPU."""

    level: float
    client_tokens_per_s: float
    gpu_tokens_per_s: float


@dataclass(frozen=True, slots=True)
class Curve:
    """Experiments that differ in their level alone (`family`): under 1, 2, 4, ... clients or RATES, and their `own`.

    experiment: the one with the highest. measured: what was observed of these.
    """

    experiment: str
    closed: bool
    own: tuple[float, ...]
    predicted: tuple[CurvePoint, ...]
    measured: tuple[CurvePoint, ...]


def curves_of(source: Source, experiments: Sequence[Experiment], seeds: Sequence[int]) -> list[Curve]:
    """The curve of every family of experiments."""
    families: dict[tuple[object, ...], list[Experiment]] = {}
    for e in experiments:
        if e.spec:
            families.setdefault(family(e), []).append(e)
    return [_curve(source, members, seeds) for members in families.values()]


def family(e: Experiment) -> tuple[object, ...]:
    """What a load has in common with those that differ in their level alone. Traces are alike by their mean lengths."""
    engine = tuple((k, v) for k, v in sorted(e.engine.to_entry().items()) if k not in FOLLOWING)
    lengths = repr(e.workload.source) if len(e.workload.stages) == 1 else e.id
    if isinstance(e.workload.source, Trace):
        lengths = ", ".join(f"{of(e.workload).mean():.2g}" for of in (prompt_lengths, output_lengths))
    return e.model, e.hardware, precision_of(e), repr(engine), e.replicas, e.workload.closed, lengths


def _loads(e: Experiment) -> list[tuple[Stage, Observation | None]]:
    """The load stages, and what was observed in each. A trace at a rate is one, because a sweep plays all of it."""
    if isinstance(e.workload.source, Trace) and not e.workload.closed:
        whole = Stage(mean_rate(e.workload) or 0.0, duration_s(e.workload))
        return [(whole, e.observed.summary if e.observed else None)]
    return [*zip_longest(e.workload.stages, e.observed_stages)]


def _curve(source: Source, members: Sequence[Experiment], seeds: Sequence[int]) -> Curve:
    e = max(members, key=lambda m: [stage.level for stage, _ in _loads(m)])
    assert e.spec
    own, gpus, closed = tuple(dict.fromkeys(s.level for m in members for s, _ in _loads(m))), e.gpus, e.workload.closed
    if closed:
        users = {2**i for i in range(max(LEAST, *map(int, own)).bit_length())} | {*map(int, own)}
        axes = Axes(concurrency=tuple(sorted(users)))
    else:
        axes = Axes(rate=tuple(sorted({max(own) * i / RATES for i in range(1, RATES + 1)} | {*own})))
    [block] = sweep(source, [e.spec], seeds, axes, (), Line(True)).blocks
    every = (point(s.level or 1.0, f.run, f.output_tokens_per_s / gpus) for s, f in block.predicted)
    measured = (p for m in members for p in measured_points(m))
    return Curve(e.id, closed, own, tuple(p for p in every if p), tuple(measured))


def point(level: float, run: Observation | None, gpu_tokens_per_s: float) -> CurvePoint | None:
    """The point of a run; None if no request of it decodes."""
    itl_ms = run.itl_ms.mean if run else None
    return CurvePoint(level, 1e3 / itl_ms, gpu_tokens_per_s) if itl_ms else None


def measured_points(e: Experiment) -> Iterator[CurvePoint]:
    """What was measured under each load."""
    tokens = float(output_lengths(e.workload).mean())
    for stage, seen in _loads(e):
        if seen and seen.itl_ms.mean and seen.ttft_ms.mean is not None:
            itl, ttft = seen.itl_ms.mean, seen.ttft_ms.mean
            e2e_ms = seen.e2e_ms.mean or ttft + itl * (tokens - 1.0)
            yield CurvePoint(stage.level, 1e3 / itl, stage.rate_at(e2e_ms) * tokens / e.gpus)
