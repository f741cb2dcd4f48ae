"""Throughput against speed along a load."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from evolve.draw.plot.style import COLUMN, HUES, SMALL, explain, heading, label, styled
from evolve.plan.curve import Curve
from simulator.common.errors import InputError


@styled()
def draw(name: str, curves: Sequence[Curve]) -> Figure:
    """Output tokens/s per GPU against those of each client, a line an experiment; its own clients, or requests/s, are a
    dot with their number, and what was measured a cross.

    Raises InputError if there are more loads than colours.
    """
    if len(curves) > len(HUES):
        raise InputError(f"--kind curve: {len(curves)} loads, at most {len(HUES)} are drawn: choose some with --id")
    figure = Figure(figsize=(COLUMN, COLUMN))
    axes = figure.subplots()
    for curve, colour in zip(curves, HUES, strict=False):
        places = {p.level: (p.client_tokens_per_s, p.gpu_tokens_per_s) for p in curve.predicted}
        axes.plot([x for x, _ in places.values()], [y for _, y in places.values()], color=colour)
        for level in set(curve.own) & places.keys():
            axes.plot(*([value] for value in places[level]), "o", color=colour, markersize=4)
            text = f"{level:g}" if curve.closed else f"{level:.3g}/s"
            axes.annotate(text, places[level], (4, 4), textcoords="offset points", fontsize=SMALL, color=colour)
        for p in curve.measured:
            axes.plot([p.client_tokens_per_s], [p.gpu_tokens_per_s], "x", color=colour, markersize=6)
    axes.set_xlabel("tokens/s of each client")
    axes.set_ylabel("tokens/s per GPU")
    axes.set_xlim(left=0)
    axes.set_ylim(bottom=0)
    lines = [Line2D([], [], color=colour) for _, colour in zip(curves, HUES, strict=False)]
    explain(figure, lines, [label(curve.experiment) for curve in curves], "left", 1)
    heading(figure, f"{label(name)}: throughput and speed")
    return figure
