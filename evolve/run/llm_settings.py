"""Settings of language models as proposers: the `llm` section of a configuration."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from simulator.common.errors import InputError

# The model that `--proposer auto` asks where the environment has its provider's key: one with a price of ours.
DEFAULT_MODELS = {
    "OPENAI_API_KEY": "openai/gpt-5.4-mini",
    "ANTHROPIC_API_KEY": "anthropic/claude-haiku-5-5",
    "GEMINI_API_KEY": "gemini/gemini-3.8-flash",
    "MISTRAL_API_KEY": "mistral/mistral-large-latest",
    "DEEPSEEK_API_KEY": "deepseek/deepseek-chat",
    "XAI_API_KEY": "xai/grok-4.3",
}
API_BASES = ("OPENAI_BASE_URL", "OPENAI_API_BASE")  # variables with the address of an OpenAI-compatible server
LOCAL_NAMES = (".localhost", ".local", ".internal")  # ends of names that no public server can have


@dataclass(frozen=True, slots=True)
class LlmSettings:
    """Settings of the proposing language models and their cost. Models are named PROVIDER/MODEL as in litellm."""

    models: tuple[str, ...] = ()  # models that propose; PROVIDER/MODEL=WEIGHT in an ensemble
    share: float = 0.25  # share of the proposals that models start with in a search by auto
    # a research loop: ideas with hypotheses, gates before a fit, a folder for each in RUN/ideas
    ideas: bool = False
    programs: int = 4  # that a question asks for
    parents: int = 2  # programs that a question shows, the champion among them
    rounds: int = 3  # of a question: after each one the model sees the scores of its programs
    # Generations in a row without a new candidate, after which the search ends. In six generations, up to twelve
    # questions of three rounds saw the scores of earlier answers: a model without a new idea by then repeats itself.
    patience: int = 6
    api_base: str = ""  # OpenAI-compatible server of models named openai/NAME
    prices: dict[str, list[float]] = field(default_factory=dict)  # model: [input, output] in USD per million tokens
    max_usd: float = 5.0  # that the run may spend
    max_calls: int = 0  # requests that the run may send; 0: no limit
    max_tokens: int = 0  # that the run may use, input and output; 0: no limit
    answer_tokens: int = 8192  # most tokens of an answer
    timeout_s: float = 180.0  # for an answer
    attempts: int = 4  # per call
    backoff_s: float = 2.0  # wait before the second attempt; it doubles each time
    rpm: int = 60  # requests per minute; 0: no limit
    concurrency: int = 8  # requests at a time
    notes_every: int = 10  # generations between notes on the lessons so far; 0: none
    summariser: str = ""  # model that writes the notes; empty: the first of `models`
    judges: tuple[str, ...] = ()  # models that review proposals after their trial
    judge_below: float = 4.0  # average mark, of 10, below which a proposal is refused after its trial
    prompts: str = ""  # folder of templates that replace those of evolve/search/llm/prompts
    cache: str = ""  # folder that keeps answers across runs
    problem: str = ""  # file with what to study
    background: tuple[str, ...] = ()  # files and folders to read before proposing
    documents_tokens: int = 2000  # most tokens of `problem` and `background` in a question
    library: str = ""  # folder of papers, notes and BibTeX, of which questions quote passages
    library_tokens: int = 800  # most tokens of these passages

    @property
    def named(self) -> tuple[str, ...]:
        return (*self.models, *self.judges, *filter(None, [self.summariser]))

    def ensemble(self) -> dict[str, float]:
        """The chance of each proposing model; the chances add up to 1."""
        weights = dict(weighted(name, "llm.models") for name in self.models)
        total = sum(weights.values())
        return {name: weight / total for name, weight in weights.items()}


def check(llm: LlmSettings, where: str) -> None:
    """Raises InputError, naming `where` and the key, for an impossible setting."""
    for name in llm.named:
        weighted(name, where)
    for names in (llm.models, llm.judges):
        if len({name.partition("=")[0] for name in names}) < len(names):
            raise InputError(f"{where}: {', '.join(names)}: names a model twice: give it once, with a weight")
    for name, price in llm.prices.items():
        pair = isinstance(price, list) and len(price) == 2 and all(isinstance(x, (int, float)) for x in price)
        if not pair or not all(0 <= x < float("inf") for x in price):
            raise InputError(
                f"{where}: llm.prices.{name} must be [input, output] in USD per million tokens, got {price!r}"
            )
    if re.search("[@?#]", llm.api_base):
        raise InputError(f"{where}: llm.api_base must not hold a key: keys come from the environment only")
    if llm.api_base and not _is_address(llm.api_base):
        raise InputError(
            f"{where}: llm.api_base {llm.api_base!r} is not an address: give e.g. http://127.0.0.1:8000/v1"
        )


def _is_address(text: str) -> bool:
    try:
        parts = urlsplit(text)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # an unmatched bracket, or a port that is not a number
        return False


def is_private(api_base: str) -> bool:
    """Return True for an address on this machine or in a private network. Its text decides; no name is looked up."""
    host = (urlsplit(api_base).hostname or "").rstrip(".")
    try:
        return ipaddress.ip_address(host).is_private
    except ValueError:  # a name
        return f".{host}".endswith(LOCAL_NAMES)


def weighted(name: str, where: str) -> tuple[str, float]:
    """The name and the weight in `provider/model=WEIGHT`; without =WEIGHT the weight is 1.

    Raises InputError, naming `where`, for anything else.
    """
    model, _, weight = name.partition("=")
    try:
        value = float(weight or 1.0)
    except ValueError:
        value = -1.0
    if not re.fullmatch(r"[\w.-]+/[^\s=]+", model) or not 0 < value < float("inf"):
        raise InputError(
            f"{where}: {name!r} is not a model: give provider/model or provider/model=WEIGHT, e.g. openai/gpt-5.4-mini"
        )
    return model, value
