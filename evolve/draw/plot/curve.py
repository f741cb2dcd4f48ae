"""Throughput against speed along a load."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes
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
    frame(figure, axes, "tokens/s of each client", "tokens/s per GPU", [curve.experiment for curve in curves])
    heading(figure, f"{label(name)}: throughput and speed")
    return figure


def frame(figure: Figure, axes: Axes, across: str, up: str, names: Sequence[str]) -> None:
    """Name axes that begin at 0, and the lines, which have HUES in order."""
    axes.set_xlabel(across)
    axes.set_ylabel(up)
    axes.set_xlim(left=0)
    axes.set_ylim(bottom=0)
    lines = [Line2D([], [], color=colour) for _, colour in zip(names, HUES, strict=False)]
    explain(figure, lines, [label(name) for name in names], "left", 1)
