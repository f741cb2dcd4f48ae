"""Throughput against speed along the clients of a closed load, as benchmarks publish it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from evaluator.cells import precision_of
from evolve.output.progress import Line
from evolve.plan.axes import Axes
from evolve.plan.sweep import sweep
from evolve.run.program import Source
from simulator.serving.experiment import Experiment
from simulator.serving.observations import Observation
from simulator.serving.workload import Profile, output_lengths

LEAST = 64  # clients up to which a curve goes at least
# Settings that follow the number of clients in some launch scripts.
FOLLOWING = ("max_num_seqs", "cudagraph_capture_max", "given")


@dataclass(frozen=True, slots=True)
class CurvePoint:
    """So many clients: output tokens/s of each while it decodes, and of each GPU."""

    clients: int
    client_tokens_per_s: float
    gpu_tokens_per_s: float


@dataclass(frozen=True, slots=True)
class Curve:
    """Experiments that differ in their clients alone (`family`), under 1, 2, 4, ... clients and their `own`.

    experiment: the one with most clients. measured: what was observed of these.
    """

    experiment: str
    own: tuple[int, ...]
    predicted: tuple[CurvePoint, ...]
    measured: tuple[CurvePoint, ...]


def curves_of(source: Source, experiments: Sequence[Experiment], seeds: Sequence[int]) -> list[Curve]:
    """The curve of every family of experiments whose load is closed."""
    families: dict[tuple[object, ...], list[Experiment]] = {}
    for e in experiments:
        if e.workload.closed and e.spec:
            families.setdefault(family(e), []).append(e)
    return [_curve(source, members, seeds) for members in families.values()]


def family(e: Experiment) -> tuple[object, ...]:
    """What a closed load has in common with those that differ in their clients alone."""
    engine = tuple((k, v) for k, v in sorted(e.engine.to_entry().items()) if k not in FOLLOWING)
    alike = isinstance(e.workload.source, Profile) and len(e.workload.stages) == 1
    lengths = repr(e.workload.source) if alike else e.id
    return e.model, e.hardware, precision_of(e), repr(engine), e.replicas, e.workload.name, lengths


def clients_of(e: Experiment) -> list[int]:
    return [stage.users or 1 for stage in e.workload.stages]


def _curve(source: Source, members: Sequence[Experiment], seeds: Sequence[int]) -> Curve:
    e = max(members, key=clients_of)
    assert e.spec
    own = tuple(dict.fromkeys(n for member in members for n in clients_of(member)))
    levels = {2**i for i in range(max(LEAST, *own).bit_length())} | set(own)
    [block] = sweep(source, [e.spec], seeds, Axes(concurrency=tuple(sorted(levels))), (), Line(True)).blocks
    every = (point(s.concurrency or 1, f.run, f.output_tokens_per_s / e.gpus) for s, f in block.predicted)
    return Curve(e.id, own, tuple(p for p in every if p), tuple(measured_points(members)))


def point(clients: int, run: Observation | None, gpu_tokens_per_s: float) -> CurvePoint | None:
    """The point of a run; None if no request of it decodes."""
    itl_ms = run.itl_ms.mean if run else None
    return CurvePoint(clients, 1e3 / itl_ms, gpu_tokens_per_s) if itl_ms else None


def measured_points(members: Sequence[Experiment]) -> list[CurvePoint]:
    """The points of what was observed of these experiments."""
    measured = []
    for e in members:
        tokens = float(output_lengths(e.workload).mean())
        for stage, seen in zip(e.workload.stages, e.observed_stages, strict=False):
            itl, ttft = seen.itl_ms.mean, seen.ttft_ms.mean
            if itl and ttft is not None:
                e2e_ms = seen.e2e_ms.mean or ttft + itl * (tokens - 1.0)
                measured.append(CurvePoint(stage.users or 1, 1e3 / itl, stage.rate_at(e2e_ms) * tokens / e.gpus))
    return measured
