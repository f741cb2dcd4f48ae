"""Random search and hill climbing with our operators, to show what selection adds."""

from __future__ import annotations

from collections.abc import Sequence

from archive.elite import Elite
from archive.population import Offered, Population
from archive.proposal import Proposal
from research.engines.bench import Bench, numbered
from simulator.language.unparse import unparse

CHANGES = 8  # most operators that random search applies to a seed program


class RandomSearch:
    """Applies one to CHANGES operators to a random seed program. No selection: results never become parents."""

    def __init__(self, bench: Bench) -> None:
        self._bench, self._seeds = bench, bench.seeds()

    def ask(self, population: Population, generation: int) -> list[Proposal]:
        if not self._bench.left(population):
            return []
        rng, seeds = self._bench.stream(population), self._seeds
        child = seeds[rng.integers(len(seeds))]
        for _ in range(rng.integers(1, CHANGES + 1)):
            child = self._bench.changed(child, seeds[rng.integers(len(seeds))], rng, blind=True)
        return numbered(population, "random", [unparse(child)])

    def tell(self, outcomes: Sequence[Offered]) -> None:
        pass


class HillClimbing:
    """Changes the program with the lowest mean error so far; a better child replaces it."""

    def __init__(self, bench: Bench) -> None:
        self._bench, self._seeds = bench, bench.seeds()
        self._best: Elite | None = None

    def ask(self, population: Population, generation: int) -> list[Proposal]:
        if not self._bench.left(population):
            return []
        rng, seeds = self._bench.stream(population), self._seeds
        second = seeds[rng.integers(len(seeds))]
        first = self._best.program if self._best else seeds[rng.integers(len(seeds))]
        return numbered(population, "climb", [unparse(self._bench.changed(first, second, rng))])

    def tell(self, outcomes: Sequence[Offered]) -> None:
        for outcome, *_ in outcomes:
            elite = outcome.elite
            if elite and (self._best is None or elite.mean_error < self._best.mean_error):
                self._best = elite
