"""How models stand: who answers, who rests for a while, what an answer of each costs. Learned from the book alone."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping

from archive.proposal import MODEL
from evolve.propose.llm.calls import Book
from evolve.run.config import Config

DOWN_AFTER = 2  # calls in a row without an answer, and a model rests
LONGEST_REST = 16  # generations
PROPOSING = ("propose", "repair")  # purposes of calls that count as a proposer's cost


class Availability:
    """Of every model, from the calls of the generations that are over."""

    def __init__(self) -> None:
        self._failures: Counter[str] = Counter()
        self._rests: dict[str, int] = {}  # until which generation
        self._usd: defaultdict[str, float] = defaultdict(float)
        self._answers: Counter[str] = Counter()

    def learn(self, book: Book, generation: int) -> None:
        """Take in the calls of a generation that is over, in their order."""
        for name in book.of_generation(generation):
            answer, lost = book.answers.get(name), book.given_up.get(name)
            if answer is not None:
                model = answer.model
                self._failures[model] = 0
                self._rests.pop(model, None)
                if name.split("/")[1] in PROPOSING:
                    self._usd[model] += answer.usd
                    self._answers[model] += 1
            elif lost is not None and not lost.limit:
                model = lost.model
                self._failures[model] += 1
                if self._failures[model] >= DOWN_AFTER:
                    rest = min(2 ** (self._failures[model] - DOWN_AFTER), LONGEST_REST)
                    self._rests[model] = generation + 1 + rest

    def up(self, model: str, generation: int) -> bool:
        """Whether it is asked in this generation."""
        return self._rests.get(model, 0) <= generation

    def costs(self, config: Config) -> dict[str, float]:
        """What a proposal of each model costs a bandit, in proposals of an operator.

        An evaluation is worth its share of the budget, a dollar its share of max_usd.
        """
        if not config.llm.max_usd:
            return {}
        evaluations_a_dollar = config.budget / config.llm.max_usd
        means: Mapping[str, float] = {m: usd / self._answers[m] / config.llm.programs for m, usd in self._usd.items()}
        return {MODEL + model: 1.0 + evaluations_a_dollar * usd for model, usd in means.items()}
