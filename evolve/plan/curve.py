"""Throughput against speed along the clients of a closed load, as benchmarks publish it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from evolve.output.progress import Line
from evolve.plan.axes import Axes
from evolve.plan.sweep import sweep
from evolve.run.program import Source
from simulator.serving.experiment import Experiment
from simulator.serving.workload import output_lengths

LEAST = 64  # clients up to which a curve goes at least


@dataclass(frozen=True, slots=True)
class CurvePoint:
    """So many clients: output tokens/s of each while it decodes, and of each GPU."""

    clients: int
    client_tokens_per_s: float
    gpu_tokens_per_s: float


@dataclass(frozen=True, slots=True)
class Curve:
    """An experiment under 1, 2, 4, ... clients and its `own`; `measured`: what was observed of these."""

    experiment: str
    own: tuple[int, ...]
    predicted: tuple[CurvePoint, ...]
    measured: tuple[CurvePoint, ...]


def curves_of(source: Source, experiments: Sequence[Experiment], seeds: Sequence[int]) -> list[Curve]:
    """The curve of every experiment whose load is closed."""
    return [_curve(source, e, seeds) for e in experiments if e.workload.closed and e.spec]


def _curve(source: Source, e: Experiment, seeds: Sequence[int]) -> Curve:
    assert e.spec
    own, gpus = tuple(stage.users or 1 for stage in e.workload.stages), e.engine.gpus
    levels = {2**i for i in range(max(LEAST, *own).bit_length())} | set(own)
    [block] = sweep(source, [e.spec], seeds, Axes(concurrency=tuple(sorted(levels))), (), Line(True)).blocks
    predicted = [
        CurvePoint(setting.concurrency or 1, 1e3 / run.itl_ms.mean, figures.output_tokens_per_s / gpus)
        for setting, figures in block.predicted
        if (run := figures.run) and run.itl_ms.mean
    ]
    tokens, measured = float(output_lengths(e.workload).mean()), []
    for stage, seen in zip(e.workload.stages, e.observed_stages, strict=False):
        itl, ttft = seen.itl_ms.mean, seen.ttft_ms.mean
        if itl and ttft is not None:
            e2e_ms = seen.e2e_ms.mean or ttft + itl * (tokens - 1.0)
            measured.append(CurvePoint(stage.users or 1, 1e3 / itl, stage.rate_at(e2e_ms) * tokens / gpus))
    return Curve(e.id, own, tuple(predicted), tuple(measured))
