"""Pareto dominance and the ranks of NSGA-II, with deap's routines."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

from deap import base, tools
from deap.tools.emo import assignCrowdingDist

from archive.elite import Elite


def dominates(a: Elite, b: Elite) -> bool:
    """Whether `a` is at least as good as `b` in every objective and better in one. Soundness is an objective too.

    >>> from archive.elite import example
    >>> dominates(example(joint=2.0), example(joint=3.0)), dominates(example(), example())
    (True, False)
    """
    if a.joint > b.joint or a.worst3 > b.worst3:  # so it is with most pairs, and this is much faster than the rest
        return False
    ours, theirs = ((not e.sound, *e.objectives) for e in (a, b))
    return ours != theirs and all(x <= y for x, y in zip(ours, theirs, strict=True))


def fronts(objectives: Sequence[Sequence[float]]) -> list[list[int]]:
    """Indices of the rows, front by front. All objectives are minimised and must be finite.

    >>> fronts([(1.0, 4.0), (2.0, 2.0), (3.0, 3.0)])
    [[0, 1], [2]]
    """
    points = [_Point(i, row) for i, row in enumerate(objectives)]
    if len(points) < 2:
        return [[p.index for p in points]] if points else []
    return [sorted(p.index for p in front) for front in tools.sortNondominated(points, len(points))]


def ranks(objectives: Sequence[Sequence[float]]) -> list[tuple[int, float]]:
    """(front number, minus crowding distance) of every row; smaller is fitter (NSGA-II, Deb et al. 2002).

    >>> ranks([(1.0, 4.0), (2.0, 2.0), (3.0, 3.0)])  # the ends of a front have an infinite distance
    [(0, -inf), (0, -inf), (1, -inf)]
    """
    points = [_Point(i, row) for i, row in enumerate(objectives)]
    ranked: list[tuple[int, float]] = [(0, 0.0)] * len(points)
    for number, members in enumerate(fronts(objectives)):
        assignCrowdingDist([points[i] for i in members])
        for i in members:
            ranked[i] = (number, -float(points[i].fitness.crowding_dist))
    return ranked


def fitness(elites: Sequence[Elite]) -> list[tuple[float, ...]]:
    """What a tournament compares; smaller is fitter: soundness first, then the ranks among the equally sound.

    >>> from archive.elite import example
    >>> sound, unsound = example(joint=3.0), example(joint=1.0, sound=False)
    >>> fitness([sound, unsound])
    [(0.0, 0.0, -inf), (1.0, 0.0, -inf)]
    """
    values: list[tuple[float, ...]] = [()] * len(elites)
    for unsound in (False, True):
        group = [i for i, e in enumerate(elites) if e.sound is not unsound]
        for i, rank in zip(group, ranks([elites[i].objectives for i in group]), strict=True):
            values[i] = (float(unsound), *map(float, rank))
    return values


class _Point:
    """A row of objectives in the form that deap expects: an object with a fitness."""

    def __init__(self, index: int, objectives: Sequence[float]) -> None:
        self.index = index
        self.fitness: Any = _fitness_class(len(objectives))(tuple(objectives))


@cache
def _fitness_class(size: int) -> type:
    """deap's fitness of `size` objectives, all minimised."""
    return type(f"Minimise{size}", (base.Fitness,), {"weights": (-1.0,) * size})
