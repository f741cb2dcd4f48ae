"""Proposers: what a search asks for programs, and tells the outcomes.

Operators, language models, their mixture and every rival engine are proposers. Proposals may depend on the
configuration, the population and the outcomes, never on a clock or on the number of workers.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Protocol, TypeAlias

import numpy as np

from archive.elite import SEED, Elite
from archive.population import Offered, Population, proposers, tournament
from archive.proposal import ENDING, MODEL, Form, Outcome, Proposal, Rejected
from evolve.run.config import AUTO, Config
from evolve.search.offline import operator_weights
from evolve.search.pool.pool import Promise
from simulator.common.streams import stream


class Proposer(Protocol):
    """The source of a search's programs."""

    def ask(self, population: Population, generation: int) -> Iterable[Proposal]:
        """The proposals of generation 1, 2, ..., as they are made; none end the search."""

    def tell(self, outcomes: Sequence[Offered]) -> None:
        """Learn the outcomes of the last generation (first those of the seeds)."""


Chosen: TypeAlias = tuple[str, str, np.random.Generator]  # the texts of two parents, and a proposal's random stream


@dataclass(frozen=True, slots=True)
class Changed:
    """A changed copy of the first text, the name of what changed it, and its form, or why it is refused."""

    text: str
    operator: str
    form: Form | Rejected


FLOOR = 0.02  # the least chance of an operator that may be used at all
MEMORY = 0.98  # weight of older trials after each new one of the same operator: about the last fifty count
DOUBT = 5.0  # trials, at the average rate of gains, that every operator starts with
ENDLESS = 10**9  # generations: a recording ends its search
TOGETHER = 4  # proposals that a worker makes at once: one takes 10 ms, and on a cluster every task takes some more


class OperatorWorkers(Protocol):
    """Workers that apply operators, possibly in other processes (see evolve.search.workers)."""

    def propose(self, number: int, chosen: Sequence[Chosen], weights: Mapping[str, float]) -> Promise[list[Changed]]:
        """Changed copies of the texts chosen for the proposals from number `number` on."""


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


@dataclass
class Bandit:
    """Trials and gains of every arm: an operator or a language model.

    `prior` is an arm's weight before any trial; one with weight 0 is never used. `trials` counts candidates; those of a
    language model include the cost of its answers.
    """

    prior: Mapping[str, float]
    trials: dict[str, float] = field(default_factory=dict)
    gains: dict[str, float] = field(default_factory=dict)

    def learn(self, name: str, gain: float) -> None:
        """Count a candidate of arm `name`, and its gain."""
        self.trials[name] = MEMORY * self.trials.get(name, 0.0) + 1.0
        self.gains[name] = MEMORY * self.gains.get(name, 0.0) + gain

    def charge(self, name: str, candidates: float) -> None:
        """Count what arm `name` took besides its candidates, in candidates."""
        self.trials[name] = self.trials.get(name, 0.0) + candidates

    def chances(self) -> dict[str, float]:
        """The chance of every arm that may be used; they add up to 1."""
        names = [name for name, weight in self.prior.items() if weight > 0]
        rate = (sum(self.gains.values()) + 1.0) / (sum(self.trials.values()) + 2.0)
        worth = {
            name: self.prior[name] * (self.gains.get(name, 0.0) + DOUBT * rate) / (self.trials.get(name, 0.0) + DOUBT)
            for name in names
        }
        total = sum(worth.values())
        spare = 1.0 - FLOOR * len(names)
        return {name: FLOOR + spare * worth[name] / total for name in names}


class Operators:
    """The offline proposer: operators change copies of elites, with chances that a bandit learns.

    The bandit's gain is a cell taken or, in a search by AUTO, the percent that the selection score falls.

    Every proposal has its own random stream, derived from its number. For `remembered` proposals no texts are made,
    because their outcomes are in the journal.
    """

    def __init__(self, config: Config, workers: OperatorWorkers, remembered: Collection[int] = ()) -> None:
        self.bandit = Bandit(arms(config))
        self._config, self._workers, self._remembered = config, workers, remembered

    def ask(self, population: Population, generation: int) -> Iterator[Proposal]:
        weights = self.weights()
        free = list(places(population, self._config.search.batch))
        # start all before waiting for any, since workers make them in parallel
        started = [
            finish
            for i in range(0, len(free), TOGETHER)
            for finish in self.start(free[i : i + TOGETHER], population, weights)
        ]
        population.numbered += len(started)
        for finish in started:
            yield finish()

    def tell(self, outcomes: Sequence[Offered]) -> None:
        auto = self._config.search.proposer == AUTO
        for outcome, kept, gain_pct in outcomes:
            operator = outcome.proposal.operator
            # An operator's proposal counts only if it was fitted. A language model's always counts, because models are
            # expected to write programs that can be fitted.
            if outcome.proposal.island is not None and (outcome.key or operator.startswith(MODEL)):
                for name in proposers(operator):
                    self.bandit.learn(name, gain_pct if auto else kept)

    def weights(self) -> dict[str, float]:
        chances = self.bandit.chances() if self._config.search.bandit else self.bandit.prior
        return {name: chance for name, chance in chances.items() if not name.startswith(MODEL)}

    def start(
        self, free: Sequence[Place], population: Population, weights: Mapping[str, float]
    ) -> list[Callable[[], Proposal]]:
        """Start making proposals for these places, together. Each function returned waits for one of them."""
        drawn = {p.number: self._drawn(p, population) for p in free if p.number not in self._remembered}
        chosen = [(first.text, second.text, rng) for first, second, rng in drawn.values()]
        making = self._workers.propose(min(drawn), chosen, dict(weights)) if drawn else None

        def finish(place: Place) -> Proposal:
            if making is None or place.number not in drawn:
                return Proposal(place.number, place.island, "", "", ())
            first, second, _ = drawn[place.number]
            made = making.result()[list(drawn).index(place.number)]
            form, refused = (None, made.form) if isinstance(made.form, Rejected) else (made.form, None)
            parents = first.id, second.id
            return Proposal(place.number, place.island, made.text, made.operator, parents, refused=refused, form=form)

        return [partial(finish, place) for place in free]

    def _drawn(self, place: Place, population: Population) -> tuple[Elite, Elite, np.random.Generator]:
        """The two parents of a proposal, which tournaments chose, and its random stream."""
        rng = stream(self._config.seed, place.number)
        first, second = (
            tournament(place.parents, place.order, size, rng) for size in population.entrants(place.island)
        )
        return first, second, rng


def arms(config: Config) -> dict[str, float]:
    """The bandit's arms with their prior weights: operators and, in a search by AUTO, language models."""
    operators = operator_weights(config.search.operators)
    if config.search.proposer != AUTO:
        return operators
    mass = sum(operators.values()) * config.llm.share / (1.0 - config.llm.share)
    return operators | {MODEL + name: mass * weight for name, weight in config.llm.ensemble().items()}


class RecordedProposals:
    """Proposes every form that another run fitted, under the same numbers; starting programs come before them.

    A form is as its journal has it: of a scored program without the terms that the fit had set to 0. What was not
    fitted there (unreadable, a duplicate, refused by judges) is left out.
    """

    def __init__(self, outcomes: Iterable[Outcome], batch: int) -> None:
        self._forms = forms_of(outcomes)
        self._batch, self._next = batch, 0

    def ask(self, population: Population, generation: int) -> list[Proposal]:
        proposals = self._forms[self._next : self._next + self._batch]
        self._next += len(proposals)
        if proposals:
            population.numbered = proposals[-1].id + 1
        return proposals

    def tell(self, outcomes: Sequence[Offered]) -> None:
        """Learns nothing: what comes next is recorded."""


def forms_of(outcomes: Iterable[Outcome]) -> list[Proposal]:
    """The fitted forms of a journal as new proposals, without starting programs, polished ones, calls and reviews."""
    return [
        replace(_as_scored(outcome), call="", idea="", reviews=(), motivation="", judges=0)
        for outcome in outcomes
        if outcome.key and not outcome.proposal.operator.startswith((SEED, *ENDING))
    ]


def _as_scored(outcome: Outcome) -> Proposal:
    elite = outcome.elite
    return replace(outcome.proposal, text=elite.text) if elite else outcome.proposal


def to_the_end(config: Config) -> Config:
    """The settings of a search that ends with its recording or its budget, not where it no longer improves."""
    return replace(config, search=replace(config.search, generations=ENDLESS, patience=ENDLESS))
