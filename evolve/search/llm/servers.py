"""The models of a run before it starts: what they cost, and whether its questions fit into their servers' context."""

from __future__ import annotations

import math
from collections.abc import Mapping

from evolve.run.config import Config
from evolve.search.llm import client, prompt
from evolve.search.llm.calls import LlmCall, Messages
from evolve.search.llm.prices import FREE, Price
from evolve.search.llm.templates import Templates
from evolve.search.vocabulary import field_set
from simulator.common.errors import InputError

MARGIN = 4096  # tokens; programs, their errors and the front take about as many in a question


def plan(config: Config, prices: Mapping[str, Price], texts: Templates) -> list[str]:
    """A line for each model: its price, and how much of its context a question takes if its server says how much fits.

    Raises InputError if no question of the run can fit.
    """
    base = config.llm.api_base
    own, context = client.own_models(list(prices), base), client.context_tokens(list(prices), base) if base else {}
    least = client.count_tokens(smallest_question(config, texts))
    lines = []
    for model, price in prices.items():
        line = f"{model}: {_cost(model, price, model in own, config)}"
        if model in config.llm.ensemble():  # judges and the summariser are asked less
            line += f"; {_room(model, least, config.llm.answer_tokens, context.get(model.partition('/')[2]))}"
        lines.append(line)
    return lines


def check_affordable(config: Config, prices: Mapping[str, Price], texts: Templates, searches: int) -> None:
    """Raises InputError if an equal share of the limits for each of `searches` searches allows no model one question.

    Counted are the most tokens and USD that the smallest question and its answer can take, as before every request.
    """
    llm = config.llm
    tokens_in, tokens_out = LlmCall(1, "propose", 0, "", smallest_question(config, texts)).most(llm.answer_tokens)
    usd, model = min((prices[name].usd(tokens_in, tokens_out), name) for name in llm.ensemble())
    each = "leaves" if searches == 1 else f"leaves each of {searches} searches"
    if usd > llm.max_usd / searches:
        enough = math.ceil(100 * searches * prices[model].usd(tokens_in + MARGIN, tokens_out)) / 100
        raise InputError(
            f"--max-usd {llm.max_usd:g}: {each} {llm.max_usd / searches:.4f} USD, and one question to {model} may take "
            f"{usd:.4f}: give {enough:.2f} or more, or name a cheaper model"
        )
    tokens = tokens_in + tokens_out
    if llm.max_tokens and tokens > llm.max_tokens // searches:
        raise InputError(
            f"--max-tokens {llm.max_tokens}: {each} {llm.max_tokens // searches} tokens, and one question may take "
            f"{tokens}: give {searches * (tokens + MARGIN)} or more"
        )


def smallest_question(config: Config, texts: Templates) -> Messages:
    """What every question of a run contains: the task, and the template that programs and their errors are put in."""
    system = prompt.task(texts, config.caps, field_set(config.search.fields), config.llm.rounds)
    return (("system", system), ("user", texts["propose"]))


def _cost(model: str, price: Price, own: bool, config: Config) -> str:
    if own and price == Price(*FREE) and model not in config.llm.prices:
        return f"free, on a server of your own (--price {model}=IN,OUT if it is not)"
    return f"{price.input_usd:g} USD per million tokens in, {price.output_usd:g} out"


def _room(model: str, least: int, answer: int, context: int | None) -> str:
    """Whether a question of at least `least` tokens and an answer of at most `answer` fit into the context."""
    takes = f"a question takes {least} tokens or more, an answer up to {answer}"
    if context is None:
        return takes
    if least + answer > context:
        raise InputError(
            f"--llm {model}: {takes}, but its server takes {context} in all: serve it with a longer context "
            f"(--max-model-len {least + answer + MARGIN} or more), or lower llm.answer_tokens"
        )
    return f"{takes}, of {context} that fit"
