"""What rival engines work with: a configuration, fields, residuals, and random numbers that are theirs alone."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from archive.population import Population
from archive.proposal import Proposal
from evolve.propose.offline import Probe, operator_weights, propose
from evolve.propose.vocabulary import Vocabulary
from evolve.run.config import Config
from evolve.run.program import seed_texts
from simulator.language.complete import complete
from simulator.language.ir import Program
from simulator.language.parse import parse
from simulator.stream import stream

PROPOSALS = 200  # for each candidate of the budget: an engine that finds so few new forms has come to its end


@dataclass(frozen=True)
class Bench:
    """What a rival engine works with: the configuration (seed and budget in it), the fields that step_time may read,
    and the residuals of programs on the fitted experiments."""

    config: Config
    words: Vocabulary
    probe: Probe

    def seeds(self) -> list[Program]:
        """The shipped programs that every search starts from, unfitted and complete."""
        return [complete(parse(text, name)) for name, text in seed_texts()]

    def stream(self, population: Population) -> np.random.Generator:
        """The random stream of the next proposal: the seed of the search and the proposal's number."""
        return stream(self.config.seed, population.proposals)

    def ended(self, population: Population) -> bool:
        """Whether the engine finds so few new forms that it has come to its end."""
        return population.proposals >= PROPOSALS * self.config.budget

    def changed(self, first: Program, second: Program, rng: np.random.Generator, blind: bool = False) -> Program:
        """`first` after one proposal of our operators; `second` is what crossing takes from. `blind`: without the
        operators that look at the errors of `first`."""
        search, probe = self.config.search, None if blind else self.probe
        weights = operator_weights(search.operators)
        return propose(first, second, self.words, rng, search.evolve, weights, probe, self.config.caps)[0]


def numbered(population: Population, operator: str, texts: Sequence[str]) -> list[Proposal]:
    """Texts as proposals with the next numbers, for the only island."""
    first = population.numbered
    population.numbered += len(texts)
    return [Proposal(first + i, 0, text, operator, ()) for i, text in enumerate(texts)]


class GlobalRandom:
    """A context in which Python's global random numbers are an engine's own; outside they are as they were before.

    deap and OpenEvolve draw from the global stream. `seed` is the number that the engine's stream begins with.
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
