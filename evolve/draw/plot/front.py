"""The Pareto front: mean error against complexity."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.collections import PathCollection
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from archive.elite import Elite
from evolve.draw.plot.style import (
    BLACK,
    COLUMN,
    GREY,
    PALE,
    SHADES,
    SMALL,
    VERMILION,
    explain,
    heading,
    label,
    log_axis,
    one_in,
    scale_of,
    shades_between,
    styled,
)
from evolve.summary.searched import Searched

CLEAR = 0.97  # share of the front with distinct colours of leave-group-out error; higher ones look alike
MOST_DOMINATED = 100  # programs that are drawn, evenly spaced: more are one blot, and a large file


@styled()
def draw(searched: Searched) -> Figure:
    """The programs of a run: its front by leave-group-out error, the others grey, the champion named."""
    figure = Figure(figsize=(COLUMN, 3.1))
    axes = figure.subplots()
    best, front = searched.champion, searched.archive.front_by_size()
    on_front = {elite.id for elite in front}
    dominated = [elite for elite in searched.archive.by_id.values() if elite.id not in on_front]
    every = max(-(-len(dominated) // MOST_DOMINATED), 1)
    log_axis(axes.yaxis, 0.94 * min(e.mean_error for e in front), 1.15 * max(e.mean_error for e in (*front, best)))
    groups = {
        f"dominated{one_in(every)}": _points(axes, dominated[::every], s=3, color=PALE, linewidths=0),
        "front": _measured(figure, axes, [e for e in front if e.group_out is not None]),
        "front, group-out not measured": _points(
            axes, [e for e in front if e.group_out is None], s=10, color="white", edgecolors=GREY, linewidths=0.6
        ),
        "front, inconsistent": _points(
            axes, [e for e in front if not e.consistent], s=9, marker="x", color=VERMILION, linewidths=0.6
        ),
    }
    axes.set_xlim(0, 1.03 * max(e.complexity for e in (*front, *dominated)))
    _mark(axes, best)
    axes.set_xlabel("complexity: operations + constants")
    axes.set_ylabel("mean error, percent")
    entries: dict[str, Artist] = {name: points for name, points in groups.items() if points is not None}
    if groups["front"] is not None:  # its points have many colours
        entries["front"] = Line2D([], [], marker="o", markersize=3, linestyle="none", color=SHADES(0.2))
    explain(figure, list(entries.values()), list(entries), "left", 2)
    heading(figure, label(searched.name))
    return figure


def _points(axes: Axes, elites: Sequence[Elite], **look: Any) -> PathCollection | None:
    if not elites:
        return None
    return axes.scatter([e.complexity for e in elites], [e.mean_error for e in elites], **look)


def _measured(figure: Figure, axes: Axes, elites: Sequence[Elite]) -> PathCollection | None:
    """The points of these elites, coloured by leave-group-out error, with the scale of colours."""
    errors = [e.group_out for e in elites if e.group_out is not None]
    if not errors:
        return None
    # A few simple programs are far worse than all others and would leave these one colour.
    low, high = min(errors), float(np.quantile(errors, CLEAR))
    x, y = [e.complexity for e in elites], [e.mean_error for e in elites]
    # Without clipping, which these points do not need, an SVG is a third smaller.
    points = axes.scatter(
        x, y, s=8, c=errors, cmap=SHADES, norm=shades_between(low, high), linewidths=0, clip_on=False, zorder=2
    )
    scale_of(figure, axes, points, (low, high), "leave-group-out error, percent", high < max(errors))
    return points


def _mark(axes: Axes, best: Elite) -> None:
    """Mark the champion, and name it at the upper edge, where programs are worse than smaller ones."""
    low, high = axes.get_xlim()
    share = (best.complexity - low) / (high - low)
    side = "left" if share < 0.3 else "right" if share > 0.7 else "center"
    edge = axes.get_ylim()[1]
    axes.plot([best.complexity] * 2, [best.mean_error, edge], color=BLACK, linewidth=0.5, zorder=2.5)
    _points(axes, [best], s=60, marker="*", color=VERMILION, edgecolors=BLACK, linewidths=0.5, zorder=3)
    axes.text(
        best.complexity, edge, f"champion ({best.id}): {best.mean_error:.2f} %", fontsize=SMALL, ha=side, va="bottom"
    )
