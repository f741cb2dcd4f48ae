"""Pareto dominance and the ranks of NSGA-II, with deap's crowding distance."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
from deap import base
from deap.tools.emo import assignCrowdingDist

from archive.elite import Elite


def point(elite: Elite) -> tuple[float, ...]:
    """The values that a front compares, all minimised: inconsistent (0 or 1), then `Elite.objectives`."""
    return (float(not elite.consistent), *elite.objectives)


def relations(points: np.ndarray, point: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(the points that dominate `point`, those that it dominates), bool[points]. Axis 0 has the objectives, minimised.

    One point dominates another if it is at least as good in every objective and better in one.

    >>> points = np.array([[1.0, 2.0, 3.0], [1.0, 2.0, 3.0]])  # three points, one in each column
    >>> better, worse = relations(points, np.array([[2.0], [2.0]]))
    >>> better.tolist(), worse.tolist()
    ([True, False, False], [False, False, True])
    """
    no_worse, no_better = np.all(points <= point, axis=0), np.all(points >= point, axis=0)
    return no_worse & ~no_better, no_better & ~no_worse


def fronts(objectives: Sequence[Sequence[float]]) -> list[list[int]]:
    """Indices of the rows, front by front. All objectives are minimised and must be finite.

    >>> fronts([(1.0, 4.0), (2.0, 2.0), (3.0, 3.0)])
    [[0, 1], [2]]
    """
    if not objectives:
        return []
    points = np.array(objectives).T
    dominates, _ = relations(points[:, :, np.newaxis], points[:, np.newaxis, :])  # row by column
    left, found = np.arange(len(objectives)), []
    while left.size:
        best = ~dominates[np.ix_(left, left)].any(axis=0)
        found.append(left[best].tolist())
        left = left[~best]
    return found


def ranks(objectives: Sequence[Sequence[float]]) -> list[tuple[int, float]]:
    """(front number, minus crowding distance) of every row; smaller is fitter (NSGA-II, Deb et al. 2002).

    >>> ranks([(1.0, 4.0), (2.0, 2.0), (3.0, 3.0)])  # the ends of a front have an infinite distance
    [(0, -inf), (0, -inf), (1, -inf)]
    """
    points = [_Point(row) for row in objectives]
    ranked: list[tuple[int, float]] = [(0, 0.0)] * len(points)
    for number, members in enumerate(fronts(objectives)):
        assignCrowdingDist([points[i] for i in members])
        for i in members:
            ranked[i] = (number, -float(points[i].fitness.crowding_dist))
    return ranked


def fitness(elites: Sequence[Elite]) -> list[tuple[float, ...]]:
    """The values of a tournament, smaller is fitter: inconsistent (0 or 1), then the rank among its equals."""
    values: list[tuple[float, ...]] = [()] * len(elites)
    for inconsistent in (False, True):
        group = [i for i, e in enumerate(elites) if e.consistent is not inconsistent]
        for i, rank in zip(group, ranks([elites[i].objectives for i in group]), strict=True):
            values[i] = (float(inconsistent), *map(float, rank))
    return values


class _Point:
    """A row of objectives in the form that deap expects: an object with a fitness."""

    def __init__(self, objectives: Sequence[float]) -> None:
        self.fitness: Any = _fitness_class(len(objectives))(tuple(objectives))


@cache
def _fitness_class(size: int) -> type:
    """deap's fitness of `size` objectives, all minimised."""
    return type(f"Minimise{size}", (base.Fitness,), {"weights": (-1.0,) * size})
