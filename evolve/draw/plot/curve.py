"""Throughput against speed along the clients of a closed load."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from evolve.draw.plot.style import COLUMN, HUES, SMALL, explain, heading, label, styled
from evolve.plan.curve import Curve
from simulator.common.errors import InputError


@styled()
def draw(name: str, curves: Sequence[Curve]) -> Figure:
    """Output tokens/s per GPU against those of each client, a line an experiment; its own clients are a dot with their
    number, and what was measured a cross.

    Raises InputError if no load is closed, or more are than there are colours.
    """
    if not curves:
        raise InputError("no load has concurrency: give experiments that have, or choose another --kind")
    if len(curves) > len(HUES):
        raise InputError(f"{len(curves)} loads have concurrency, at most {len(HUES)} are drawn: choose some with --id")
    figure = Figure(figsize=(COLUMN, COLUMN))
    axes = figure.subplots()
    for curve, colour in zip(curves, HUES, strict=False):
        places = {p.clients: (p.client_tokens_per_s, p.gpu_tokens_per_s) for p in curve.predicted}
        axes.plot([x for x, _ in places.values()], [y for _, y in places.values()], color=colour)
        for clients in set(curve.own) & places.keys():
            axes.plot(*([value] for value in places[clients]), "o", color=colour, markersize=4)
            axes.annotate(
                str(clients), places[clients], (4, 4), textcoords="offset points", fontsize=SMALL, color=colour
            )
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
