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
    own, gpus = tuple(dict.fromkeys(n for member in members for n in clients_of(member))), e.gpus
    levels = {2**i for i in range(max(LEAST, *own).bit_length())} | set(own)
    [block] = sweep(source, [e.spec], seeds, Axes(concurrency=tuple(sorted(levels))), (), Line(True)).blocks
    predicted = [
        CurvePoint(setting.concurrency or 1, 1e3 / run.itl_ms.mean, figures.output_tokens_per_s / gpus)
        for setting, figures in block.predicted
        if (run := figures.run) and run.itl_ms.mean
    ]
    tokens, measured = float(output_lengths(e.workload).mean()), []
    for stage, seen in ((s, o) for m in members for s, o in zip(m.workload.stages, m.observed_stages, strict=False)):
        itl, ttft = seen.itl_ms.mean, seen.ttft_ms.mean
        if itl and ttft is not None:
            e2e_ms = seen.e2e_ms.mean or ttft + itl * (tokens - 1.0)
            measured.append(CurvePoint(stage.users or 1, 1e3 / itl, stage.rate_at(e2e_ms) * tokens / gpus))
    return Curve(e.id, own, tuple(predicted), tuple(measured))
