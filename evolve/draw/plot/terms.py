"""The time that each term of a program adds to a decode step, over batch sizes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from evolve.draw.plot.style import HUES, PAGE, PALE, SMALL, explain, heading, label, log_axis, styled
from evolve.inspect.step_shares import CONTEXT, StepShares
from simulator.common.errors import InputError

MOST_PANELS, COLUMNS = 6, 3
OTHER = "other terms"
ABOVE, NAME = 128, 215  # points; the room for a line above a panel, and in a column of the legend
LEAST_US = 1e-9  # of a step, so that a share is a number
TICKS = 5  # batch sizes that are named


@styled()
def draw(name: str, shares: Sequence[StepShares]) -> Figure:
    """The step time of the program `name` by term, a panel for each of up to six deployments.

    Raises InputError if no term adds anything.
    """
    shares = [deployment for deployment in shares if deployment.terms]
    if not shares:
        raise InputError(f"{name}: no term adds time to a decode step. Choose another program.")
    shown = shares[:MOST_PANELS]
    rows = -(-len(shown) // COLUMNS)
    colours = _colours(shown)
    legend_rows = -(-len(colours) // 2)
    figure = Figure(figsize=(PAGE, 0.3 + 1.8 * rows + 0.15 * legend_rows))
    panels = list(figure.subplots(rows, COLUMNS, squeeze=False).flat)
    for i, axes in enumerate(panels):
        if i >= len(shown):
            axes.set_axis_off()
            continue
        _panel(axes, shown[i], colours)
        if i % COLUMNS == 0:
            axes.set_ylabel("step time, ms")
        if i + COLUMNS >= len(shown):
            axes.set_xlabel("requests in the step")
    patches = [Patch(color=colour, linewidth=0) for colour in colours.values()]
    explain(figure, patches, [label(term, NAME) for term in colours], "left", 2)
    some = f"; {len(shown)} of {len(shares)} deployments" if len(shown) < len(shares) else ""
    heading(figure, f"{label(name)}: decode steps, {CONTEXT:,} tokens of context a request{some}")
    return figure


def _colours(shares: Sequence[StepShares]) -> dict[str, str]:
    """The colour of each term, those with the largest shares first; OTHER if there are more terms than colours."""
    weights: dict[str, float] = defaultdict(float)
    for deployment in shares:
        us = np.abs(np.array(deployment.us))
        for term, part in zip(deployment.terms, (us / np.maximum(us.sum(axis=0), LEAST_US)).mean(axis=1), strict=True):
            weights[term] += float(part)
    terms = sorted(weights, key=lambda term: -weights[term])
    if len(terms) > len(HUES) + 1:  # one more may be grey without a name for all
        return {**dict(zip(terms, HUES, strict=False)), OTHER: PALE}
    return dict(zip(terms, (*HUES, PALE), strict=False))


def layers(deployment: StepShares, named: Sequence[str]) -> dict[str, np.ndarray]:
    """ms per batch size of each of the `named` terms, and of all that are not among them together as OTHER."""
    parts: dict[str, np.ndarray] = {}
    for term, us in zip(deployment.terms, deployment.us, strict=True):
        name = term if term in named else OTHER
        parts[name] = parts.get(name, np.zeros(len(us))) + np.array(us) / 1000.0
    return {name: parts[name] for name in named if name in parts}


def _panel(axes: Axes, deployment: StepShares, colours: Mapping[str, str]) -> None:
    """Stack the terms: those that add time from zero upwards, those that take some off downwards."""
    batch = np.array(deployment.batch)
    above, below = np.zeros(len(batch)), np.zeros(len(batch))
    for name, ms in layers(deployment, list(colours)).items():
        more, less = np.maximum(ms, 0.0), np.minimum(ms, 0.0)
        axes.fill_between(batch, above, above + more, color=colours[name], edgecolor="white", linewidth=0.3)
        if less.any():
            axes.fill_between(batch, below, below + less, color=colours[name], edgecolor="white", linewidth=0.3)
        above, below = above + more, below + less
    axes.set_ylim(1.05 * float(below.min()), 1.05 * float(above.max()))
    log_axis(axes.xaxis, float(batch[0]), float(batch[-1]))
    ticks = _spread(deployment.batch)
    axes.set_xticks(ticks, [str(n) for n in ticks])
    model, _, rest = deployment.deployment.rpartition(" on ")
    axes.set_title(f"{label(model, ABOVE)}\n{label(rest, ABOVE)}", fontsize=SMALL)


def _spread(batch: Sequence[int]) -> list[int]:
    """About TICKS of these ascending numbers, the first among them, evenly spread over a logarithmic axis."""
    factor = (batch[-1] / batch[0]) ** (1 / (TICKS - 1))
    ticks = [batch[0]]
    for n in batch:
        if n >= 0.99 * factor * ticks[-1]:
            ticks.append(n)
    return ticks
