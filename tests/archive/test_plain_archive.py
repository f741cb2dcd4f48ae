"""Archive, islands, fronts and the champion's rule against plain versions: each definition in its shortest loop."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest
from deap import base, tools
from elites import dominates, elite

from archive.archive import Archive
from archive.champion import Rule, champion, contenders, within
from archive.elite import OBJECTIVES, Elite
from archive.grid import Added, Grid
from archive.pareto import fitness, fronts
from archive.population import Island, Population
from archive.score import Errors


@dataclass
class PlainArchive:
    grid: Grid = field(default_factory=Grid)
    front: list[Elite] = field(default_factory=list)

    def add(self, new: Elite) -> Added:
        added = self.grid.add(new)
        if not any(dominates(e, new) for e in self.front):
            self.front = [e for e in self.front if not dominates(new, e)] + [new]
            added = added or Added.BETTER
        return added

    def members(self) -> list[Elite]:
        return sorted({e.id: e for e in (*self.grid.cells.values(), *self.front)}.values(), key=lambda e: e.id)


@dataclass
class PlainIsland:
    size: int
    grid: Grid = field(default_factory=Grid)
    survivors: list[Elite] = field(default_factory=list)

    def add(self, new: Elite) -> Added:
        if any(e.key == new.key and e.mean_error <= new.mean_error for e in self.survivors):
            return Added.NOT
        self.survivors.append(new)
        return self.grid.add(new)

    def select(self) -> None:
        if len(self.survivors) > self.size:
            order = fitness(self.survivors)
            chosen = sorted(range(len(self.survivors)), key=lambda i: (order[i], self.survivors[i].id))
            self.survivors = [self.survivors[i] for i in chosen[: self.size]]


def plain_within(elites: Sequence[Elite], rule: Rule) -> list[Elite]:
    close, rule = contenders(elites, rule)
    limit = (1.0 + rule.within) * min(map(rule.selection_score, close), default=0.0)
    return [e for e in close if rule.selection_score(e) <= limit]


def drawn(seed: int, count: int = 250) -> list[Elite]:
    """Elites of few distinct errors, so that many tie in some or in all objectives; forms come again, and so do ids."""
    rng = np.random.default_rng(seed)
    steps = int(rng.integers(2, 40))  # distinct errors: from nothing but ties to nearly none

    def error() -> float:
        return round(2.0 + float(rng.integers(steps)) / steps, 6)

    return [
        elite(
            i if rng.random() < 0.98 else int(rng.integers(i + 1)),
            error(),
            error(),
            operations=int(rng.integers(1, 45)),
            constants=int(rng.integers(3)),
            features=int(rng.integers(1, 12)),
            key=f"k{rng.integers(count)}",
            group_out=error() if rng.random() < 0.8 else None,
            consistent=bool(rng.random() < (0.9 if seed % 3 else 0.1)),
            rows=(Errors("a", float(rng.normal(0.0, 6.0)), None, None), Errors("b", None, 1.0, 1.0)),
        )
        for i in range(count)
    ]


@pytest.mark.parametrize("seed", range(12))
def test_the_archive_keeps_what_a_plain_one_keeps_in_the_same_order(seed: int) -> None:
    archive, plain, rule = Archive(Grid()), PlainArchive(), Rule(("mean_error", "group_out")[seed % 2])
    population = Population(archive, [], rule)
    for new in drawn(seed):
        assert archive.add(new) is plain.add(new)
        assert archive.front == plain.front and archive.grid == plain.grid
        assert archive.members() == plain.members()
        assert population.champion() is champion(plain.members(), rule)
    again = Archive(Grid(), front=[*archive.front])  # an archive may begin with a front
    for new in drawn(seed + 100, 50):
        again.add(new)
        plain.add(new)
    assert again.front == plain.front


@pytest.mark.parametrize("seed", range(12))
def test_an_island_keeps_what_a_plain_one_keeps_in_the_same_order(seed: int) -> None:
    island, plain = Island(Grid(), size=20), PlainIsland(size=20)
    for i, new in enumerate(drawn(seed)):
        assert island.add(new) is plain.add(new)
        if i % 30 == 29:
            island.select()
            plain.select()
        assert island.survivors == plain.survivors and island.grid == plain.grid
    again = Island(island.grid, 20, survivors=[*island.survivors])  # an island may begin with survivors
    for new in drawn(seed + 100, 50):
        assert again.add(new) is plain.add(new)
    assert again.survivors == plain.survivors


@pytest.mark.parametrize("by", ["mean_error", "group_out"])
@pytest.mark.parametrize("worst_pct", [0.0, 0.5, 10.0])  # of which nearly all elites are beyond the first
def test_within_is_what_a_plain_rule_keeps(by: str, worst_pct: float) -> None:
    for seed in range(6):
        rule = Rule(by, within=0.05, worst_pct=worst_pct)
        for count in (0, 1, 5, 100):
            elites = drawn(seed, count)
            assert within(elites, rule)[0] == plain_within(elites, rule)
            assert within(elites, rule)[1] == contenders(elites, rule)[1]


def test_fronts_are_those_of_deap() -> None:
    for seed in range(12):
        rows = [e.objectives for e in drawn(seed, 90)]
        points = [_Row(i, row) for i, row in enumerate(rows)]
        expected = [sorted(p.index for p in front) for front in tools.sortNondominated(points, len(points))]
        assert fronts(rows) == expected
    assert fronts([]) == [] and fronts([(1.0, 2.0)]) == [[0]]


class _Fitness(base.Fitness):  # type: ignore[misc]
    weights = (-1.0,) * OBJECTIVES


class _Row:
    def __init__(self, index: int, objectives: Sequence[float]) -> None:
        self.index, self.fitness = index, _Fitness(tuple(objectives))
