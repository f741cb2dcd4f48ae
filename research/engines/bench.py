"""The inputs of rival engines: a configuration, fields, residuals, and their own random numbers."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from archive.population import Population
from archive.proposal import Proposal
from evolve.run.config import Config
from evolve.run.program import seed_texts
from evolve.search.offline import ResidualProbe, operator_weights, propose
from evolve.search.vocabulary import Vocabulary
from evolve.search.workers import Workers
from simulator.common.streams import stream
from simulator.language.complete import complete
from simulator.language.ir import Program
from simulator.language.parse import parse

PROPOSALS = 200  # per candidate of the budget: an engine that needs more hardly finds new forms, and is stopped


@dataclass(frozen=True)
class Bench:
    """The inputs of a rival engine."""

    config: Config  # with the seed and the budget of this search
    words: Vocabulary  # the fields that step_time may read
    probe: ResidualProbe  # the residuals of programs on the fitted experiments
    workers: Workers  # of the search

    def seeds(self) -> list[Program]:
        """The shipped programs that every search starts from, completed but not fitted."""
        return [complete(parse(text, name)) for name, text in seed_texts()]

    def stream(self, population: Population) -> np.random.Generator:
        """The random stream of the next proposal, given by the seed of the search and the proposal's number."""
        return stream(self.config.seed, population.proposals)

    def left(self, population: Population) -> int:
        """The number of proposals that the engine may still make."""
        return max(PROPOSALS * self.config.budget - population.proposals, 0)

    def changed(self, first: Program, second: Program, rng: np.random.Generator, blind: bool = False) -> Program:
        """`first`, changed by one of our operators; crossing takes parts from `second`.

        `blind`: without the operators that look at the residuals of `first`.
        """
        search, probe = self.config.search, None if blind else self.probe
        weights = operator_weights(search.operators)
        return propose(first, second, self.words, rng, search.evolve, weights, probe, self.config.caps)[0]


def numbered(population: Population, operator: str, texts: Sequence[str]) -> list[Proposal]:
    """Proposals of these texts for the only island, with the next numbers."""
    first = population.numbered
    population.numbered += len(texts)
    return [Proposal(first + i, 0, text, operator, ()) for i, text in enumerate(texts)]


class GlobalRandom:
    """A context in which Python's global random stream is an engine's own. Outside, the stream is left as it was.

    deap and OpenEvolve draw from the global stream.
    """

    def __init__(self, seed: int) -> None:
        self.seed = int(np.random.SeedSequence(seed).generate_state(1)[0])
        self._inside = random.Random(self.seed).getstate()
        self._outside = self._inside

    def __enter__(self) -> GlobalRandom:
        self._outside = random.getstate()
        random.setstate(self._inside)
        return self

    def __exit__(self, *raised: object) -> None:
        self._inside = random.getstate()
        random.setstate(self._outside)
