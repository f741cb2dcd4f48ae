"""The pictures of a plan: latency against load, throughput against speed, and cost against load."""

from __future__ import annotations

from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from evolve.draw.plot.curve import frame
from evolve.draw.plot.style import BLACK, BLUE, COLUMN, GREY, HUES, SMALL, VERMILION, explain, heading, label, styled
from evolve.plan.pictures import Pictures
from simulator.common.errors import InputError


@styled()
def draw_latency(p: Pictures) -> Figure:
    """Each limited latency of the first deployment against the load of the service, with its 80 % interval, the limit
    and the asked load. Raises InputError for a plan without limits."""
    if not p.latency:
        raise InputError("the plan has no limits: give --slo, or choose another --kind")
    figure = Figure(figsize=(COLUMN, 0.8 * COLUMN * len(p.limits)))
    panels = figure.subplots(len(p.limits), 1, squeeze=False, sharex=True)[:, 0]
    for axes, (name, most_ms) in zip(panels, p.limits.items(), strict=True):
        known = [(point.load, ms) for point in p.latency if (ms := point.ms[name]) is not None]
        banded = [point for point in p.latency if name in point.low_ms]
        axes.fill_between(
            [point.load for point in banded],
            [point.low_ms[name] for point in banded],
            [point.high_ms[name] for point in banded],
            color=BLUE,
            alpha=0.2,
            linewidth=0,
        )
        axes.plot([load for load, _ in known], [ms for _, ms in known], "o-", color=BLUE, markersize=3)
        axes.axhline(most_ms, color=VERMILION, linestyle="--")
        axes.axvline(p.asked, color=GREY, linestyle=":")
        axes.set_ylim(0, 2.5 * most_ms)  # beyond the knee latencies grow without end
        axes.set_ylabel(f"{name.replace('_', ' ')}, ms")
    panels[-1].set_xlabel(f"{p.unit} of the service")
    parts = [
        Line2D([], [], color=BLUE, marker="o", markersize=3),
        Line2D([], [], color=VERMILION, linestyle="--"),
        Line2D([], [], color=GREY, linestyle=":"),
    ]
    explain(figure, parts, ["predicted, with its 80 % interval", "limit", "asked load"], "left", 1)
    heading(figure, f"{p.replicas} x {label(p.deployment)}")
    return figure


@styled()
def draw_speed(p: Pictures) -> Figure:
    """Output tokens/s of a GPU against those of each client, along 1, 2, 4, ... clients of one replica; crosses were
    measured. Raises InputError for a plan without such curves."""
    curves = [curve for curve in p.speed if curve.predicted]
    if not curves:
        raise InputError("the plan's load is a trace, whose lengths are not drawn: choose another --kind")
    figure = Figure(figsize=(COLUMN, COLUMN))
    axes = figure.subplots()
    for curve, colour in zip(curves, HUES, strict=False):
        places = [(point.client_tokens_per_s, point.gpu_tokens_per_s) for point in curve.predicted]
        axes.plot([x for x, _ in places], [y for _, y in places], "o-", color=colour, markersize=3)
        for point in curve.measured:
            axes.plot([point.client_tokens_per_s], [point.gpu_tokens_per_s], "x", color=colour, markersize=6)
        last, at = curve.predicted[-1], places[-1]
        axes.annotate(f"{last.level:g}", at, (4, 4), textcoords="offset points", fontsize=SMALL, color=colour)
    frame(figure, axes, "tokens/s of each client", "tokens/s per GPU", [curve.deployment for curve in curves])
    heading(figure, "throughput and speed of one replica")
    return figure


@styled()
def draw_cost(p: Pictures) -> Figure:
    """Dollars per hour, or GPUs, against the load of the service, and the asked load."""
    figure = Figure(figsize=(COLUMN, COLUMN))
    axes = figure.subplots()
    for curve, colour in zip(p.cost, HUES, strict=False):
        axes.step(p.loads, curve.cost, where="pre", color=colour)
    axes.axvline(p.asked, color=BLACK, linestyle=":")
    frame(figure, axes, f"{p.unit} of the service", p.costs, [curve.deployment for curve in p.cost])
    heading(figure, "cost within the limits")
    return figure
