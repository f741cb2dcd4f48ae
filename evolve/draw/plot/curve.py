"""Throughput against speed along the clients of a closed load, as benchmarks publish it."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from evolve.draw.plot.style import COLUMN, HUES, explain, heading, label, styled
from evolve.output.progress import Line
from evolve.plan.axes import Axes as SweepAxes
from evolve.plan.sweep import sweep
from evolve.plan.sweep_result import Block
from evolve.run.program import Source
from simulator.common.errors import InputError
from simulator.serving.experiment import Experiment
from simulator.serving.spec import Spec
from simulator.serving.workload import output_lengths

LEAST = 64  # clients up to which a curve goes at least


@styled()
def draw(source: Source, experiments: Sequence[Experiment], seeds: Sequence[int]) -> Figure:
    """Output tokens/s per GPU against those of each client, at 1, 2, 4, ... clients, a line an experiment; its own
    clients are a dot, and what was measured a cross.

    Raises InputError if no load is closed, or more are than there are colours.
    """
    closed = [e for e in experiments if e.workload.closed and e.spec]
    if not closed:
        raise InputError("no load has concurrency: give experiments that have, or choose another --kind")
    if len(closed) > len(HUES):
        raise InputError(f"{len(closed)} loads have concurrency, at most {len(HUES)} are drawn: choose some with --id")
    figure = Figure(figsize=(COLUMN, COLUMN))
    axes = figure.subplots()
    for e, colour in zip(closed, HUES, strict=False):
        assert e.spec
        _line(axes, e, _block(source, e.spec, seeds), colour)
    axes.set_xlabel("tokens/s of each client")
    axes.set_ylabel("tokens/s per GPU")
    axes.set_xlim(left=0)
    axes.set_ylim(bottom=0)
    lines = [Line2D([], [], color=colour) for _, colour in zip(closed, HUES, strict=False)]
    explain(figure, lines, [label(e.id) for e in closed], "left", 1)
    heading(figure, f"{label(source.name)}: throughput and speed")
    return figure


def _block(source: Source, spec: Spec, seeds: Sequence[int]) -> Block:
    most = max(LEAST, *(stage.users or 1 for stage in spec.workload.stages))
    levels = {2**i for i in range(most.bit_length())} | {stage.users or 1 for stage in spec.workload.stages}
    [block] = sweep(source, [spec], seeds, SweepAxes(concurrency=tuple(sorted(levels))), (), Line(True)).blocks
    return block


def _line(axes: Axes, e: Experiment, block: Block, colour: str) -> None:
    tp, own = e.engine.tensor_parallel, {stage.users for stage in e.workload.stages}
    points = [
        (1e3 / run.itl_ms.mean, figures.output_tokens_per_s / tp, setting.concurrency)
        for setting, figures in block.predicted
        if (run := figures.run) and run.itl_ms.mean
    ]
    axes.plot([x for x, _, _ in points], [y for _, y, _ in points], color=colour)
    for x, y, users in points:
        if users in own:
            axes.plot([x], [y], "o", color=colour, markersize=4)
    tokens = float(output_lengths(e.workload).mean())
    for stage, seen in zip(e.workload.stages, e.observed_stages, strict=False):
        itl, ttft = seen.itl_ms.mean, seen.ttft_ms.mean
        if itl and ttft is not None:
            e2e_ms = seen.e2e_ms.mean or ttft + itl * (tokens - 1.0)
            axes.plot([1e3 / itl], [stage.rate_at(e2e_ms) * tokens / tp], "x", color=colour, markersize=6)
