"""Pareto dominance and NSGA-II ranks, with deap's routines."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

from deap import base, tools
from deap.tools.emo import assignCrowdingDist

from archive.elite import Elite


@cache
def _fitness(size: int) -> type:

    return type(f"Minimise{size}", (base.Fitness,), {"weights": (-1.0,) * size})


class _Point:
    """A row of objectives as deap wants it: something with a fitness."""

    def __init__(self, index: int, objectives: Sequence[float]) -> None:
        self.index = index
        self.fitness: Any = _fitness(len(objectives))(tuple(objectives))


def fronts(objectives: Sequence[Sequence[float]]) -> list[list[int]]:
    """Indices of the rows, front by front; all objectives are minimised and must be finite."""
    points = [_Point(i, row) for i, row in enumerate(objectives)]
    if len(points) < 2:
        return [[p.index for p in points]] if points else []
    return [sorted(p.index for p in front) for front in tools.sortNondominated(points, len(points))]


def dominates(a: Elite, b: Elite) -> bool:
    """Whether `a` is at least as good as `b` in every objective, soundness one of them, and better in one."""
    mine, other = ((not e.sound, *e.objectives) for e in (a, b))
    return mine != other and all(x <= y for x, y in zip(mine, other, strict=True))


def ranks(objectives: Sequence[Sequence[float]]) -> list[tuple[int, float]]:
    """(front number, minus crowding distance) of every row: the smaller, the fitter (Deb et al. 2002, NSGA-II)."""
    points = [_Point(i, row) for i, row in enumerate(objectives)]
    out: list[tuple[int, float]] = [(0, 0.0)] * len(points)
    for number, members in enumerate(fronts(objectives)):
        assignCrowdingDist([points[i] for i in members])
        for i in members:
            out[i] = (number, -float(points[i].fitness.crowding_dist))
    return out


def fitness(elites: Sequence[Elite]) -> list[tuple[float, ...]]:
    """What a tournament compares, smaller is fitter: soundness, then NSGA-II's ranks among the equally sound."""
    out: list[tuple[float, ...]] = [()] * len(elites)
    for unsound in (False, True):
        same = [i for i, e in enumerate(elites) if e.sound is not unsound]
        for i, rank in zip(same, ranks([elites[i].objectives for i in same]), strict=True):
            out[i] = (float(unsound), *map(float, rank))
    return out
