"""Proposers: what a search asks for programs, and tells what became of them.

Operators, language models, their mixture and every rival engine are proposers. What one proposes may depend on the
configuration, the population and the outcomes it was told, never on a clock or on how many workers there are.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from archive.elite import Elite
from archive.population import Population, proposers, tournament
from archive.proposal import MODEL, Outcome, Proposal
from evolve.propose.bandit import Bandit
from evolve.propose.offline import operator_weights
from evolve.run.config import Config
from simulator.stream import stream


class Proposer(Protocol):
    """Where a search's programs come from."""

    def ask(self, population: Population, generation: int) -> list[Proposal]:
        """The proposals of generation 1, 2, ...; an empty list ends the search."""

    def tell(self, outcomes: Sequence[tuple[Outcome, bool]]) -> None:
        """Learn what became of the last generation, the seeds first; True: the elite took a place on its island."""


class Workers(Protocol):
    """Where operators are applied, possibly in other processes (see evolve.search.workers)."""

    def propose(
        self, first: str, second: str, rng: np.random.Generator, weights: Mapping[str, float]
    ) -> Future[tuple[str, str]]:
        """A changed copy of the program text `first`, and the name of what changed it."""


@dataclass(frozen=True, slots=True)
class Place:
    """A place in a generation: the proposal's number, its island, who may be a parent, and what tournaments compare.
    `left` counts the places from this one to the last of the island."""

    number: int
    island: int
    parents: Sequence[Elite]
    order: Sequence[tuple[float, ...]]
    left: int


def places(population: Population, batch: int) -> Iterator[Place]:
    """The places of the next generation, `batch` for each island, which first keeps its fittest only."""
    number = population.numbered
    for i, island in enumerate(population.islands):
        island.select()
        parents = island.members()
        order = population.order(parents, i)
        for left in range(batch, 0, -1):
            yield Place(number, i, parents, order, left)
            number += 1


class Operators:
    """The offline proposer: operators change copies of elites, at chances that a bandit learns.

    Proposal i draws from its own random stream. The texts of `remembered` proposals are not made, because their
    outcomes are in the journal.
    """

    def __init__(self, config: Config, workers: Workers, remembered: Collection[int] = ()) -> None:
        self.bandit = Bandit(arms(config))
        self._config, self._workers, self._remembered = config, workers, remembered

    def ask(self, population: Population, generation: int) -> list[Proposal]:
        weights = self.weights()
        begun = [self.begin(place, population, weights) for place in places(population, self._config.search.batch)]
        population.numbered += len(begun)
        return [finish() for finish in begun]

    def tell(self, outcomes: Sequence[tuple[Outcome, bool]]) -> None:
        for outcome, gained in outcomes:
            operator = outcome.proposal.operator
            # an operator's proposal counts once it was fitted; a model is to deliver programs that can be
            if outcome.proposal.island is not None and (outcome.key or operator.startswith(MODEL)):
                for name in proposers(operator):
                    self.bandit.learn(name, gained)

    def weights(self) -> dict[str, float]:
        """The chances of the operators now, language models left out."""
        chances = self.bandit.chances() if self._config.search.bandit else self.bandit.prior
        return {name: chance for name, chance in chances.items() if not name.startswith(MODEL)}

    def begin(self, place: Place, population: Population, weights: Mapping[str, float]) -> Callable[[], Proposal]:
        """Start to make a proposal; the function returned waits for its text."""
        number = place.number
        if number in self._remembered:
            return lambda: Proposal(number, place.island, "", "", ())
        rng = stream(self._config.seed, number)
        first, second = (
            tournament(place.parents, place.order, size, rng) for size in population.entrants(place.island)
        )
        future = self._workers.propose(first.text, second.text, rng, dict(weights))

        def finish() -> Proposal:
            text, operator = future.result()
            return Proposal(number, place.island, text, operator, (first.id, second.id))

        return finish


def arms(config: Config) -> dict[str, float]:
    """What the bandit chooses among, with prior weights: operators, and in a mixed search the language models."""
    operators = operator_weights(config.search.operators)
    if config.search.proposer != "mixed":
        return operators
    mass = sum(operators.values()) * config.llm.share / (1.0 - config.llm.share)
    return operators | {MODEL + name: mass * weight for name, weight in config.llm.ensemble().items()}
