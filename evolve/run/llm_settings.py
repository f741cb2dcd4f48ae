"""Settings of language models as proposers: the part `llm` of a configuration."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from simulator.errors import InputError

MOST_TIMEOUT_S = 86_400.0  # a day


@dataclass(frozen=True, slots=True)
class LlmSettings:
    """Language models as proposers. `models`: provider/model as litellm has them, in an ensemble with =WEIGHT behind
    each. A call shows `parents` programs and asks for `programs`; what is refused is sent back once if `repair`.
    In a mixed search the models start with `share` of the proposals together.

    `api_base` is of the models behind an OpenAI-compatible server. `prices`: model -> [input, output] in USD per
    million tokens. Limits of the run, 0 for none except `max_usd`: `max_usd`, `max_calls` (requests sent), `max_tokens`
    (in and out). Of a call: `answer_tokens` at most, `timeout_s` seconds, `attempts` in all, the first wait `backoff_s`
    seconds, then twice as long. Of all: `rpm` requests a minute (0: any) and `concurrency` at a time.

    Every `notes_every` generations (0: never) the `summariser` (the first model if empty) writes down what was learned.
    `judges` review what models propose before it is fitted; below `judge_below` of 10 on average it is not.
    `prompts`: a folder with templates that replace those of evolve/llm/prompts. `cache`: a folder of answers.
    """

    models: tuple[str, ...] = ()
    share: float = 0.25
    programs: int = 4
    parents: int = 3
    repair: bool = True
    api_base: str = ""
    prices: dict[str, list[float]] = field(default_factory=dict)
    max_usd: float = 5.0
    max_calls: int = 0
    max_tokens: int = 0
    answer_tokens: int = 8192
    timeout_s: float = 180.0
    attempts: int = 4
    backoff_s: float = 2.0
    rpm: int = 60
    concurrency: int = 8
    notes_every: int = 10
    summariser: str = ""
    judges: tuple[str, ...] = ()
    judge_below: float = 4.0
    prompts: str = ""
    cache: str = ""

    @property
    def named(self) -> tuple[str, ...]:
        """Every model as it is written, proposers first."""
        return (*self.models, *self.judges, *filter(None, [self.summariser]))

    def ensemble(self) -> dict[str, float]:
        """The chance of every proposing model; they add up to 1."""
        weights = dict(weighted(name, "llm.models") for name in self.models)
        total = sum(weights.values())
        return {name: weight / total for name, weight in weights.items()}


def check(llm: LlmSettings, where: str) -> None:
    """Raises InputError naming `where` and the key, for what cannot be a setting."""
    if not 0 < llm.share < 1:
        raise InputError(f"{where}: llm.share must be between 0 and 1, got {llm.share}: give e.g. 0.25")
    for name in llm.named:
        weighted(name, where)
    for names in (llm.models, llm.judges):
        if len({name.partition("=")[0] for name in names}) < len(names):
            raise InputError(f"{where}: {', '.join(names)}: names a model twice: give it once, with a weight")
    for name, price in llm.prices.items():
        if not (isinstance(price, list) and len(price) == 2 and all(isinstance(x, (int, float)) for x in price)
                and all(0 <= x < float("inf") for x in price)):  # fmt: skip
            raise InputError(
                f"{where}: llm.prices.{name} must be [input, output] in USD per million tokens, got {price!r}"
            )
    if not llm.max_usd < float("inf"):
        raise InputError(f"{where}: llm.max_usd must be a number of USD, got {llm.max_usd}: give what may be spent")
    if not 0 <= llm.judge_below <= 10:
        raise InputError(f"{where}: llm.judge_below must be between 0 and 10, got {llm.judge_below}: marks are of 10")
    if not llm.timeout_s <= MOST_TIMEOUT_S:
        raise InputError(f"{where}: llm.timeout_s must be at most {MOST_TIMEOUT_S:g}, got {llm.timeout_s}: give less")
    if re.search("[@?#]", llm.api_base):
        raise InputError(f"{where}: llm.api_base must not hold a key: keys come from the environment only")
    if llm.api_base and not _is_address(llm.api_base):
        raise InputError(f"{where}: llm.api_base {llm.api_base!r} is no address: give e.g. http://127.0.0.1:8000/v1")


def _is_address(text: str) -> bool:
    try:
        parts = urlsplit(text)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # of a bracket that stands alone, or a port that is no number
        return False


def weighted(name: str, where: str) -> tuple[str, float]:
    """(provider/model, weight) of `provider/model=WEIGHT`; the weight is 1 if it is not given.

    Raises InputError for anything else."""
    model, _, weight = name.partition("=")
    try:
        value = float(weight or 1.0)
    except ValueError:
        value = -1.0
    if not re.fullmatch(r"[\w.-]+/[^\s=]+", model) or not 0 < value < float("inf"):
        raise InputError(
            f"{where}: {name!r} is no model: give provider/model or provider/model=WEIGHT, e.g. openai/gpt-5.4-mini"
        )
    return model, value
