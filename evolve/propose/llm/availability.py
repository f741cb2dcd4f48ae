"""Which models answer, which ones rest for a while, and what an answer costs, learned from the log of calls alone."""

from __future__ import annotations

from collections import Counter, defaultdict

from archive.proposal import MODEL
from evolve.propose.llm.calls import CallLog, proposes
from evolve.run.config import Config

DOWN_AFTER = 2  # calls in a row without an answer, after which a model rests
LONGEST_REST = 16  # generations


class Availability:
    """Failures, rests and costs of every model, from the calls of finished generations."""

    def __init__(self) -> None:
        self._failures: Counter[str] = Counter()
        self._rests_until: dict[str, int] = {}  # generation
        self._usd: defaultdict[str, float] = defaultdict(float)
        self._answers: Counter[str] = Counter()

    def learn(self, log: CallLog, generation: int) -> None:
        """Take in the calls of a finished generation, in their order."""
        for name in log.of_generation(generation):
            answer, lost = log.answers.get(name), log.given_up.get(name)
            if answer is not None:
                model = answer.model
                self._failures[model] = 0
                self._rests_until.pop(model, None)
                if proposes(name.split("/")[1]):
                    self._usd[model] += answer.usd
                    self._answers[model] += 1
            elif lost is not None and not lost.limit:
                model = lost.model
                self._failures[model] += 1
                if self._failures[model] >= DOWN_AFTER:
                    rest = min(2 ** (self._failures[model] - DOWN_AFTER), LONGEST_REST)
                    self._rests_until[model] = generation + 1 + rest

    def up(self, model: str, generation: int) -> bool:
        """Whether a model is asked in this generation, that is, does not rest."""
        return self._rests_until.get(model, 0) <= generation

    def costs(self, config: Config) -> dict[str, float]:
        """The cost of each model's proposal to a bandit, in proposals of an operator.

        An evaluation is worth its share of the budget, a dollar its share of max_usd.
        """
        if not config.llm.max_usd:
            return {}
        evaluations_per_usd = config.budget / config.llm.max_usd
        return {
            MODEL + model: 1.0 + evaluations_per_usd * (usd / self._answers[model] / config.llm.programs)
            for model, usd in self._usd.items()
        }
