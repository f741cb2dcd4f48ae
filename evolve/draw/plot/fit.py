"""Predicted against observed means of E2E, TTFT and ITL."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from evaluator.intervals import LEVELS
from evaluator.score import MEANS
from evolve.draw.plot.style import BLUE, GREY, PAGE, PALE, SMALL, VERMILION, explain, heading, label, log_axis, styled
from evolve.plan.forecast import Forecast, Forecasts
from simulator.common.errors import InputError

SECONDS_FROM_MS = 500.0  # smallest latency of a panel that is drawn in seconds
NEAR = 0.1  # relative distance from the diagonal within which the panel is shaded
# Looks of experiments by their use: True for fitted ones, None if the use is unknown.
USES = {  # name, symbol, colour, colour of its inside
    True: ("fitted", "o", BLUE, BLUE),
    False: ("predicted", "D", VERMILION, "white"),
    None: ("unknown use", "s", GREY, GREY),
}


@dataclass(frozen=True, slots=True)
class FitPoint:
    """A mean latency in ms, with its 80 % interval if there is one."""

    observed_ms: float
    predicted_ms: float
    interval_ms: tuple[float, float] | None

    @property
    def error_pct(self) -> float:
        """The signed error in percent."""
        return 100.0 * (self.predicted_ms / self.observed_ms - 1.0)


@styled()
def draw(forecasts: Forecasts) -> Figure:
    """Draw a panel for each latency. Raises InputError if no mean was both observed and predicted."""
    if not any(points(forecasts.experiments, name) for name in MEANS):
        if lost := [e.id for e in forecasts.experiments if e.empty and e.summary.observed]:
            raise InputError(
                f"nothing to compare: no request of {lost[0]} completes in the replay. `evolve predict` "
                "gives the reason. Correct the engine's settings or the load."
            )
        raise InputError("nothing to compare: no experiment has observed means. Add measurements, or choose others.")
    figure = Figure(figsize=(PAGE, 2.9))
    entries: dict[str, Artist] = {}
    for axes, latency in zip(figure.subplots(1, 3), MEANS, strict=True):
        entries |= _panel(axes, forecasts.experiments, latency)
    explain(figure, list(entries.values()), list(entries), "center", len(entries))
    uses = {name: sum(e.fitted is use for e in forecasts.experiments) for use, (name, *_) in USES.items()}
    counts = ", ".join(f"{count} {name}" for name, count in uses.items() if count)
    heading(figure, f"{label(forecasts.name)}: mean latencies of experiments, {counts}")
    return figure


def points(experiments: Sequence[Forecast], latency: str) -> list[tuple[Forecast, FitPoint]]:
    """The experiments with an observed and a predicted mean of this latency, and both means."""
    found = []
    for e in experiments:
        predicted, observed = (getattr(o, f"{latency}_ms", None) for o in (e.summary.predicted, e.summary.observed))
        if predicted and observed and predicted.mean and observed.mean:
            bands = e.summary.intervals.get(latency)
            interval = bands.at[LEVELS[0]] if bands else None
            found.append((e, FitPoint(observed.mean, predicted.mean, interval)))
    return found


def _panel(axes: Axes, experiments: Sequence[Forecast], latency: str) -> dict[str, Artist]:
    compared = points(experiments, latency)
    if not compared:
        axes.set_axis_off()
        axes.set_title(f"{latency.upper()}: not observed")
        return {}
    values = [x for _, p in compared for x in (p.observed_ms, p.predicted_ms, *(p.interval_ms or ())) if x > 0.0]
    unit, ms = ("s", 1000.0) if min(values) >= SECONDS_FROM_MS else ("ms", 1.0)
    ends = np.array([0.8 * min(values), 1.25 * max(values)]) / ms
    log_axis(axes.xaxis, *ends)
    log_axis(axes.yaxis, *ends)
    axes.set_aspect("equal")
    entries: dict[str, Artist] = {}
    means = []
    for use, (name, symbol, colour, inside) in USES.items():
        of_use = [p for e, p in compared if e.fitted is use]
        if not of_use:
            continue
        bars = [(p.observed_ms / ms, *(x / ms for x in p.interval_ms)) for p in of_use if p.interval_ms]
        if bars:
            axes.vlines(*zip(*bars, strict=True), color=colour, linewidth=0.7)
            entries["80 % interval"] = Line2D([], [], color=GREY, linewidth=0.8, marker="|", linestyle="none")
        x, y = [p.observed_ms / ms for p in of_use], [p.predicted_ms / ms for p in of_use]
        look: dict[str, Any] = {"linestyle": "none", "markersize": 3.5, "markeredgewidth": 0.8, "zorder": 3}
        [entries[name]] = axes.plot(x, y, marker=symbol, color=colour, markerfacecolor=inside, **look)
        mean = sum(abs(p.error_pct) for p in of_use) / len(of_use)
        means.append(f"{name} {mean:.1f} %")
    [diagonal] = axes.plot(ends, ends, color=GREY, linewidth=0.6, zorder=1)
    near = axes.fill_between(ends, (1 - NEAR) * ends, (1 + NEAR) * ends, color=PALE, alpha=0.4, linewidth=0, zorder=0.5)
    axes.set_title(f"{latency.upper()}, mean absolute error:\n{', '.join(means)}", fontsize=SMALL)
    axes.set_xlabel(f"observed, {unit}")
    axes.set_ylabel(f"predicted, {unit}")
    return entries | {"predicted = observed": diagonal, f"within {100 * NEAR:.0f} %": near}
