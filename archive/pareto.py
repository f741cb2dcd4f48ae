"""Pareto dominance and NSGA-II ranks, with deap's routines."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any


@cache
def _fitness(size: int) -> type:
    from deap import base

    return type(f"Minimise{size}", (base.Fitness,), {"weights": (-1.0,) * size})


class _Point:
    """A row of objectives as deap wants it: something with a fitness."""

    def __init__(self, index: int, objectives: Sequence[float]) -> None:
        self.index = index
        self.fitness: Any = _fitness(len(objectives))(tuple(objectives))


def fronts(objectives: Sequence[Sequence[float]]) -> list[list[int]]:
    """Indices of the rows, front by front; all objectives are minimised and must be finite."""
    from deap import tools

    points = [_Point(i, row) for i, row in enumerate(objectives)]
    if len(points) < 2:
        return [[p.index for p in points]] if points else []
    return [sorted(p.index for p in front) for front in tools.sortNondominated(points, len(points))]


def front(objectives: Sequence[Sequence[float]]) -> list[int]:
    """Indices of the rows that no other row dominates."""
    return fronts(objectives)[0] if objectives else []


def ranks(objectives: Sequence[Sequence[float]]) -> list[tuple[int, float]]:
    """(front number, minus crowding distance) of every row: the smaller, the fitter (Deb et al. 2002, NSGA-II)."""
    from deap.tools.emo import assignCrowdingDist

    points = [_Point(i, row) for i, row in enumerate(objectives)]
    out: list[tuple[int, float]] = [(0, 0.0)] * len(points)
    for number, members in enumerate(fronts(objectives)):
        assignCrowdingDist([points[i] for i in members])
        for i in members:
            out[i] = (number, -float(points[i].fitness.crowding_dist))
    return out
