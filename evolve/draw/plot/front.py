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
from evolve.draw.plot import style
from evolve.summary.searched import Searched

CLEAR = 0.97  # quantile of the leave-group-out errors of the front up to which colours differ
MOST_DOMINATED = 100  # dominated programs drawn, evenly spaced: more would merge, and make a large file


@style.styled()
def draw(searched: Searched) -> Figure:
    """Draw a run's programs: the Pareto front by leave-group-out error, dominated ones grey, the champion named."""
    figure = Figure(figsize=(style.COLUMN, 3.1))
    axes = figure.subplots()
    best, front = searched.champion, searched.archive.front_by_size()
    on_front = {elite.id for elite in front}
    dominated = [elite for elite in searched.archive.by_id.values() if elite.id not in on_front]
    every = max(-(-len(dominated) // MOST_DOMINATED), 1)
    lowest, highest = min(e.mean_error for e in front), max(e.mean_error for e in (*front, best))
    style.log_axis(axes.yaxis, 0.94 * lowest, 1.15 * highest)
    groups = {
        f"dominated{style.one_in(every)}": _points(axes, dominated[::every], s=3, color=style.PALE, linewidths=0),
        "Pareto front": _measured(figure, axes, [e for e in front if e.group_out is not None]),
        "Pareto front, no group-out": _points(
            axes, [e for e in front if e.group_out is None], s=10, color="white", edgecolors=style.GREY, linewidths=0.6
        ),
        "Pareto front, inconsistent": _points(
            axes, [e for e in front if not e.consistent], s=9, marker="x", color=style.VERMILION, linewidths=0.6
        ),
    }
    axes.set_xlim(0, 1.03 * max(e.complexity for e in (*front, *dominated)))
    _mark(axes, best)
    axes.set_xlabel("complexity: operations + constants")
    axes.set_ylabel("mean error, percent")
    entries: dict[str, Artist] = {name: points for name, points in groups.items() if points is not None}
    if groups["Pareto front"] is not None:  # its points have many colours
        entries["Pareto front"] = Line2D([], [], marker="o", markersize=3, linestyle="none", color=style.SHADES(0.2))
    style.explain(figure, list(entries.values()), list(entries), "left", 2)
    style.heading(figure, style.label(searched.name))
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
    norm = style.shades_between(low, high)
    # Without clipping, which these points do not need, an SVG is a third smaller.
    look: dict[str, Any] = {"s": 8, "linewidths": 0, "clip_on": False, "zorder": 2}
    points = _points(axes, elites, c=errors, cmap=style.SHADES, norm=norm, **look)
    assert points is not None
    style.scale_of(figure, axes, points, (low, high), "leave-group-out error, percent", high < max(errors))
    return points


def _mark(axes: Axes, best: Elite) -> None:
    """Mark the champion, and name it at the upper edge, where programs are worse than smaller ones."""
    low, high = axes.get_xlim()
    share = (best.complexity - low) / (high - low)
    side = "left" if share < 0.3 else "right" if share > 0.7 else "center"
    edge = axes.get_ylim()[1]
    axes.plot([best.complexity] * 2, [best.mean_error, edge], color=style.BLACK, linewidth=0.5, zorder=2.5)
    _points(axes, [best], s=60, marker="*", color=style.VERMILION, edgecolors=style.BLACK, linewidths=0.5, zorder=3)
    name = f"champion ({best.id}): {best.mean_error:.2f} %"
    axes.text(best.complexity, edge, name, fontsize=style.SMALL, ha=side, va="bottom")
