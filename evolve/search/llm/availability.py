"""Which models answer, which rest for a while, what an answer costs, and which model is asked instead of another.

All of it follows from the log of calls and from prices, never from a clock.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Mapping

from archive.proposal import MODEL
from evolve.run.config import Config
from evolve.search.llm.call_log import CallLog
from evolve.search.llm.calls import LlmCall, proposes
from evolve.search.llm.prices import Price

DOWN_AFTER = 2  # calls in a row without an answer, after which a model rests
LONGEST_REST = 16  # generations
SAME_CLASS = 3.0  # prices that differ by at most this factor are of one class
TYPICAL = (6000, 2000)  # tokens of a question and of its answer, by which prices are compared


def fallback(model: str, tried: Collection[str], prices: Mapping[str, Price], up: Callable[[str], bool]) -> str | None:
    """The model that is asked what `model` did not answer; None if none of those with a price is left.

    First those of its class, the nearest in price first, then the cheaper ones, the dearest first. Never one that was
    tried or is not up, and never one dearer than its class.

    >>> prices = {name: Price(usd, usd) for name, usd in (("a", 9.0), ("b", 3.0), ("c", 2.0), ("d", 0.0), ("e", 28.0))}
    >>> fallback("a", ["a"], prices, lambda name: True), fallback("a", ["a", "b"], prices, lambda name: True)
    ('b', 'c')
    """
    if model not in prices:
        return None
    own = prices[model].usd(*TYPICAL)
    usd = {name: price.usd(*TYPICAL) for name, price in prices.items() if name not in {model, *tried} and up(name)}
    alike = [name for name, other in usd.items() if max(own, other) <= SAME_CLASS * min(own, other)]
    if alike:
        return min(alike, key=lambda name: (abs(usd[name] - own), name))
    return min((name for name in usd if usd[name] < own), key=lambda name: (-usd[name], name), default=None)


def asked_again(rank: int) -> str:
    """The purpose of the call that puts a question to its second, third, ... model."""
    return f"propose-{rank}"


def next_model(
    log: CallLog, call: LlmCall, rank: int, prices: Mapping[str, Price], up: Callable[[str], bool]
) -> str | None:
    """The model that is number `rank` to be asked what `call` asked; None if there is none.

    There is none either if `call` was answered or was given up because of a limit of the run. A choice in the log is
    repeated, because prices may have changed since.
    """
    lost = log.given_up.get(call.name)
    if lost is None or lost.limit:
        return None
    purposes = ["propose", *(asked_again(k) for k in range(2, rank + 1))]
    models = [log.model_of(f"{call.generation}/{purpose}/{call.number}") for purpose in purposes]
    return models[-1] or fallback(models[0], models[:-1], prices, up)


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
