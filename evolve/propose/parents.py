"""Who becomes a parent: tournaments by NSGA-II's ranks, or on greedy islands by the merit of a champion."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from archive.elite import Elite
from archive.pareto import fitness
from evolve.run.config import Config

GREED = 8  # times as many compete on greedy islands: most of their children are of the very best
EXCESS = 0.1  # percent of merit for a percent of E2E that the worst experiment is beyond the rule's limit


def entrants(config: Config, island: int) -> tuple[int, int]:
    """How many elites compete to be the first parent, and to be another."""
    size = config.search.tournament
    return size * (GREED if greedy(config, island) else 1), size


def order_of(elites: Sequence[Elite], config: Config, island: int) -> list[tuple[float, ...]]:
    """What a tournament compares, smaller is fitter: NSGA-II's ranks, or on greedy islands the merit by which a
    champion is chosen, worsened by what its worst experiment is beyond the rule."""
    if config.search.selection == "lexicographic":
        return [(e.worst3, e.joint if e.itl is None else e.itl, float(e.complexity)) for e in elites]
    if greedy(config, island):
        rule = config.score.rule
        beyond = [EXCESS * max(e.worst_e2e - rule.worst_pct, 0.0) for e in elites]
        return [
            (float(not e.sound), rule.merit(e) + more, float(e.complexity))
            for e, more in zip(elites, beyond, strict=True)
        ]
    return fitness(elites)


def greedy(config: Config, island: int) -> bool:
    """Whether an island follows the merit: three of four do, and one that is alone."""
    return config.search.islands == 1 or island % 4 != 0


def tournament(
    elites: Sequence[Elite], order: Sequence[tuple[float, ...]], size: int, rng: np.random.Generator
) -> Elite:
    entrants = rng.integers(len(elites), size=size)
    return elites[min(entrants, key=lambda i: (order[i], elites[i].id))]
