"""The MAP-Elites grid: the lowest mean error of programs of each size."""

from __future__ import annotations

import numpy as np
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from evolve.draw.plot.style import PAGE, SHADES, SMALL, VERMILION, heading, label, scale_of, shades_between, styled
from evolve.summary.searched import Searched

EMPTY = "#f2f2f2"
DARK = 0.55  # of the scale of colours: below it, numbers are white


@styled()
def draw(searched: Searched) -> Figure:
    """Draw the cells of a run's grid, each with the mean error of its program as colour and number."""
    grid, best = searched.archive.grid, searched.champion
    errors = np.full((grid.feature_bins, grid.operation_bins), np.nan)
    for (column, row), elite in grid.cells.items():
        errors[row, column] = elite.mean_error
    low, high = float(np.nanmin(errors)), float(np.nanmax(errors))
    norm = shades_between(low, high)
    figure = Figure(figsize=(PAGE, 0.9 + 0.36 * grid.feature_bins))
    axes = figure.subplots()
    axes.grid(False)
    axes.pcolormesh(np.zeros_like(errors), cmap=ListedColormap([EMPTY]), edgecolors="white", linewidth=1.5)
    mesh = axes.pcolormesh(np.ma.masked_invalid(errors), cmap=SHADES, norm=norm, edgecolors="white", linewidth=1.5)
    for (column, row), elite in grid.cells.items():
        shade = float(norm(elite.mean_error)) if low < high else 1.0
        error, colour = f"{elite.mean_error:.2f}", "white" if shade < DARK else "black"
        shown = error if elite.consistent else f"{error}*"
        axes.text(column + 0.5, row + 0.5, shown, ha="center", va="center", color=colour, fontsize=SMALL)
    column, row = grid.cell(best)
    axes.add_patch(Rectangle((column + 0.03, row + 0.05), 0.94, 0.9, fill=False, edgecolor=VERMILION, linewidth=1.6))
    columns, rows = grid.spans("–")
    axes.set_xticks(np.arange(grid.operation_bins) + 0.5, columns)
    axes.set_yticks(np.arange(grid.feature_bins) + 0.5, rows)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    axes.set_xlabel("operations")
    axes.set_ylabel("features")
    scale_of(figure, axes, mesh, (low, high), "mean error, percent", more=False)
    inconsistent = "; *: inconsistent" if any(not elite.consistent for elite in grid.cells.values()) else ""
    heading(figure, f"{label(searched.name)}; frame: champion {best.id}, {best.mean_error:.2f} %{inconsistent}")
    return figure
