"""Proposers: what a search asks for programs, and tells the outcomes.

Operators, language models, their mixture and every rival engine are proposers. Proposals may depend on the
configuration, the population and the outcomes, never on a clock or on the number of workers.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from archive.elite import Elite
from archive.population import Population, proposers, tournament
from archive.proposal import MODEL, Outcome, Proposal
from evolve.pool.pool import Promise
from evolve.propose.bandit import Bandit
from evolve.propose.offline import operator_weights
from evolve.run.config import Config
from simulator.stream import stream


class Proposer(Protocol):
    """The source of a search's programs."""

    def ask(self, population: Population, generation: int) -> Iterable[Proposal]:
        """The proposals of generation 1, 2, ..., as they are made; none end the search."""

    def tell(self, outcomes: Sequence[tuple[Outcome, bool]]) -> None:
        """Learn the outcomes of the last generation (first those of the seeds).

        True means that the elite took a place on its island.
        """


class Workers(Protocol):
    """Where operators are applied, possibly in other processes (see evolve.search.workers)."""

    def propose(
        self, number: int, first: str, second: str, rng: np.random.Generator, weights: Mapping[str, float]
    ) -> Promise[tuple[str, str]]:
        """A changed copy of the program text `first`, and the name of what changed it; `number`: of the proposal."""


@dataclass(frozen=True, slots=True)
class Place:
    """A place in a generation: the proposal's number, its island, the possible parents, and what tournaments compare.

    `left` counts the places from this one to the island's last.
    """

    number: int
    island: int
    parents: Sequence[Elite]
    order: Sequence[tuple[float, ...]]
    left: int


def places(population: Population, batch: int) -> Iterator[Place]:
    """The places of the next generation, `batch` for each island. Every island first drops all but its fittest.

    There are none where no starting program could be scored, because then there are no parents.
    """
    number = population.numbered
    for i, island in enumerate(population.islands):
        island.select()
        parents = island.members()
        if not parents:
            continue
        order = population.order(parents, i)
        for left in range(batch, 0, -1):
            yield Place(number, i, parents, order, left)
            number += 1


class Operators:
    """The offline proposer: operators change copies of elites, with chances that a bandit learns.

    Every proposal has its own random stream, derived from its number. For `remembered` proposals no texts are made,
    because their outcomes are in the journal.
    """

    def __init__(self, config: Config, workers: Workers, remembered: Collection[int] = ()) -> None:
        self.bandit = Bandit(arms(config))
        self._config, self._workers, self._remembered = config, workers, remembered

    def ask(self, population: Population, generation: int) -> Iterator[Proposal]:
        weights = self.weights()
        # start all before waiting for any, since workers make them in parallel
        started = [self.start(place, population, weights) for place in places(population, self._config.search.batch)]
        population.numbered += len(started)
        for finish in started:
            yield finish()

    def tell(self, outcomes: Sequence[tuple[Outcome, bool]]) -> None:
        for outcome, gained in outcomes:
            operator = outcome.proposal.operator
            # An operator's proposal counts only if it was fitted. A language model's always counts, because models are
            # expected to write programs that can be fitted.
            if outcome.proposal.island is not None and (outcome.key or operator.startswith(MODEL)):
                for name in proposers(operator):
                    self.bandit.learn(name, gained)

    def weights(self) -> dict[str, float]:
        """The current chances of the operators, without those of language models."""
        chances = self.bandit.chances() if self._config.search.bandit else self.bandit.prior
        return {name: chance for name, chance in chances.items() if not name.startswith(MODEL)}

    def start(self, place: Place, population: Population, weights: Mapping[str, float]) -> Callable[[], Proposal]:
        """Start making a proposal; the function returned waits for its text."""
        number = place.number
        if number in self._remembered:
            return lambda: Proposal(number, place.island, "", "", ())
        rng = stream(self._config.seed, number)
        first, second = (
            tournament(place.parents, place.order, size, rng) for size in population.entrants(place.island)
        )
        future = self._workers.propose(number, first.text, second.text, rng, dict(weights))

        def finish() -> Proposal:
            text, operator = future.result()
            return Proposal(number, place.island, text, operator, (first.id, second.id))

        return finish


def arms(config: Config) -> dict[str, float]:
    """The bandit's arms with their prior weights: operators and, in a mixed search, language models."""
    operators = operator_weights(config.search.operators)
    if config.search.proposer != "mixed":
        return operators
    mass = sum(operators.values()) * config.llm.share / (1.0 - config.llm.share)
    return operators | {MODEL + name: mass * weight for name, weight in config.llm.ensemble().items()}
