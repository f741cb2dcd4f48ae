"""The champion's errors during the search: of one run with its candidates, or of several with their spread."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import cycle

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from archive.elite import Elite
from archive.proposal import ENDING, TRIM
from evolve.draw.plot import style
from evolve.summary.searched import Searched
from evolve.summary.story import Story

MEASURES = {
    "mean_error": ("mean error", style.BLUE),
    "group_out": ("group-out error", style.VERMILION),
}
MOST_POINTS = 400  # candidates drawn, evenly spaced: more would merge, and make a large file
BAND_FROM = 3  # runs from which quartiles are drawn
Curve = tuple[np.ndarray, np.ndarray]  # fitted candidates, percent


@dataclass(frozen=True, slots=True)
class BestSoFar:
    """The champion after so many fitted candidates: its errors in percent; group_out None if not measured."""

    candidates: int
    mean_error: float
    group_out: float | None


@dataclass(frozen=True, slots=True)
class Course:
    """The course of a search.

    scored: each scored candidate, with the number fitted by then. best: the champion so far. generations: the number of
    fitted candidates at the end of each, that of the starting programs first; none if unknown.
    """

    scored: tuple[tuple[int, Elite], ...]
    best: tuple[BestSoFar, ...]
    generations: tuple[int, ...]


def course_of(searched: Searched) -> Course:
    story, fitted, ends, scored = Story(searched.run.config), [0], dict[int, int](), list[tuple[int, Elite]]()
    for outcome in searched.outcomes:
        story.add(outcome)
        fitted.append(fitted[-1] + (bool(outcome.key) and outcome.proposal.operator != TRIM))
        generation = story.rows[-1].generation
        if generation is not None:
            ends[generation] = fitted[-1]
        elif outcome.proposal.operator not in ENDING:
            ends.clear()
        if outcome.elite:
            scored.append((fitted[-1], outcome.elite))
    best = (BestSoFar(fitted[p.after], p.champion.mean_error, p.champion.group_out) for p in story.points())
    return Course(tuple(scored), tuple(best), tuple(ends.values()))


@style.styled()
def draw(runs: Sequence[Searched]) -> Figure:
    """Draw the champion's errors over the fitted candidates; for several runs, in a panel for each measure."""
    courses = [course_of(run) for run in runs]
    return _one(runs[0].name, courses[0]) if len(runs) == 1 else _several([run.name for run in runs], courses)


def _one(name: str, course: Course) -> Figure:
    figure = Figure(figsize=(style.COLUMN, 2.6))
    axes = figure.subplots()
    curves = {measure: _curve(course, measure) for measure in MEASURES}
    if not len(curves["group_out"][0]):
        del curves["group_out"]
    _percent_axis(axes, [values for _, values in curves.values()])
    every = -(-len(course.scored) // MOST_POINTS)
    points = course.scored[::every]
    x, mean_error = [candidates for candidates, _ in points], [elite.mean_error for _, elite in points]
    cloud = axes.scatter(x, mean_error, s=3, color=style.PALE, linewidths=0, zorder=1)
    ends = []
    for measure, (title, colour) in MEASURES.items():
        if measure in curves:
            axes.step(*curves[measure], where="post", color=colour)
            ends.append((float(curves[measure][1][-1]), title, colour))
    style.beside(figure, axes, ends)
    axes.set_xlabel("fitted candidates")
    axes.set_ylabel("percent")
    axes.set_xlim(0, max(course.best[-1].candidates, 1))
    _generations(axes, course)
    style.explain(figure, [cloud], [f"mean error of a candidate{style.one_in(every)}"], "left", 1)
    style.heading(figure, style.label(name))
    return figure


def _several(names: Sequence[str], courses: Sequence[Course]) -> Figure:
    figure = Figure(figsize=(style.PAGE, 2.6))
    band, lines = len(courses) >= BAND_FROM, list[Line2D]()
    for axes, (measure, (title, colour)) in zip(figure.subplots(1, 2, sharex=True), MEASURES.items(), strict=True):
        curves = [_curve(course, measure) for course in courses]
        _percent_axis(axes, [values for _, values in curves])
        looks = [(style.PALE, 0.6) if band else (hue, 1.2) for hue, _ in zip(cycle(style.HUES), curves)]
        lines = [
            axes.step(*curve, where="post", color=hue, linewidth=width)[0]
            for curve, (hue, width) in zip(curves, looks, strict=True)
        ]
        if band and all(len(x) for x, _ in curves):
            x, (low, median, high) = quartiles(curves)
            axes.fill_between(x, low, high, step="post", color=colour, alpha=0.25, linewidth=0)
            axes.step(x, median, where="post", color=colour)
        axes.set_title(f"{title} of the champion")
        axes.set_xlabel("fitted candidates")
        axes.set_xlim(0, max(course.best[-1].candidates for course in courses))
    figure.axes[0].set_ylabel("percent")
    if band:
        parts = [lines[0], Line2D([], [], color=style.GREY), Patch(color=style.GREY, alpha=0.25, linewidth=0)]
        style.explain(figure, parts, ["a run", "median", "quartiles"], "center", 3)
        style.heading(figure, f"{len(names)} runs")
    else:
        style.explain(figure, lines, list(map(style.label, names)), "center", 1)
    return figure


def _curve(course: Course, measure: str) -> Curve:
    """The champion's error over the fitted candidates, without those at which it was not measured."""
    known = [(best.candidates, value) for best in course.best if (value := getattr(best, measure)) is not None]
    return np.array([x for x, _ in known]), np.array([value for _, value in known])


def quartiles(curves: Sequence[Curve]) -> Curve:
    """The steps of all curves, and the quartiles there, three rows.

    An ended run keeps its last error. The first step is where every run has an error.
    """
    first = max(x[0] for x, _ in curves)
    places = np.unique(np.concatenate([x for x, _ in curves]))
    places = places[places >= first]
    heights = [values[np.searchsorted(x, places, side="right") - 1] for x, values in curves]
    return places, np.percentile(heights, (25, 50, 75), axis=0)


def _percent_axis(axes: Axes, curves: Sequence[np.ndarray]) -> None:
    values = np.concatenate([values for values in curves if len(values)] or [np.array([1.0])])
    style.log_axis(axes.yaxis, 0.93 * float(values.min()), 1.15 * float(values.max()))


def _generations(axes: Axes, course: Course) -> None:
    last = len(course.generations) - 1
    if last < 1:
        return
    step = next(m * 10**d for d in range(9) for m in (1, 2, 5) if last <= 6 * m * 10**d)
    numbers = range(0, last + 1, step)
    top = axes.secondary_xaxis("top")
    top.set_xticks([course.generations[n] for n in numbers], labels=[str(n) for n in numbers])
    top.set_xlabel("generation")
    top.tick_params(colors=style.GREY)
    top.xaxis.label.set_color(style.GREY)
