"""The language models that the environment configures: what an offline run says of them, and what AUTO asks."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from importlib.util import find_spec

from evolve.run.config import AUTO, Config
from evolve.run.llm_settings import API_BASES, DEFAULT_MODELS, LlmSettings, check, is_private
from evolve.search.llm.calls import Price
from evolve.search.llm.client import SELF_HOSTED, served
from evolve.search.llm.question import TYPICAL
from evolve.search.llm.setup import price_table
from simulator.common.errors import InputError

OPENAI = "https://api.openai.com"  # no server of the user's: the model of DEFAULT_MODELS is there


def offer(config: Config, searches: int) -> str:
    """A line for `searches` offline searches together: which models could propose, by which option, and the cost.

    "" if none is configured. Nothing is sent, and litellm is not imported.
    """
    if config.search.proposer != "offline":
        return ""
    try:
        llm = _with_server(config.llm)
    except InputError:  # auto says it; operators need no server
        return ""
    found = _keyed(llm)
    asks = ", ".join(llm.ensemble() or found) or (f"the server at {llm.api_base}" if llm.api_base else "")
    if not asks:
        return ""
    setup = "" if find_spec("litellm") else " after `make setup-llm`"
    line = f"language models could propose too: --proposer auto{setup} asks {asks}"
    if found and not llm.models:
        line += f" ({', '.join(found.values())} is set)"
    return f"{line}: {_cost(replace(llm, models=llm.models or tuple(found)), config.budget * searches)}"


def with_models(config: Config, note: Callable[[str], None]) -> Config:
    """The configuration with the configured models if AUTO names none; without such, operators propose alone.

    `note` is called with a line if operators propose alone. Raises InputError for a server that names no model.
    """
    if config.search.proposer != AUTO:
        return config
    llm = configured(config.llm)
    if not llm.models:
        note(
            "--proposer auto: operators propose alone, because no language model is configured. "
            f"Set {next(iter(DEFAULT_MODELS))} or the like, or give --api-base or --llm."
        )
        return replace(config, search=replace(config.search, proposer="offline"))
    return replace(config, llm=llm)


def configured(llm: LlmSettings) -> LlmSettings:
    """The settings with the configured models if they name none; unchanged without such.

    Raises InputError for a server that names no model.
    """
    if llm.models:
        return llm
    found = _with_server(llm)
    if not found.api_base:
        return replace(llm, models=tuple(_keyed(llm)))
    names = served((SELF_HOSTED[0],), found.api_base)
    if not names:
        raise InputError(
            f"cannot ask the server at {found.api_base}: it lists no model. Start it, or name one: --llm openai/NAME."
        )
    found = replace(found, models=(f"{SELF_HOSTED[0]}{next(iter(names))}",))
    check(found, f"the first model of {found.api_base}")
    return found


def _with_server(llm: LlmSettings) -> LlmSettings:
    """The settings with the server that the environment names, unless they name models or a server."""
    for name in API_BASES:
        address = os.environ.get(name, "").strip()
        if address and not address.startswith(OPENAI) and not llm.models and not llm.api_base:
            llm = replace(llm, api_base=address)
            check(llm, name)
    return llm


def _keyed(llm: LlmSettings) -> dict[str, str]:
    """The models whose providers' keys are in the environment, and the names of these variables.

    None beside a server of the user's: a key is that server's.
    """
    found = {model: name for name, model in DEFAULT_MODELS.items() if os.environ.get(name, "").strip()}
    return {} if llm.api_base else found


def _cost(llm: LlmSettings, budget: int) -> str:
    """The cost of models that make their first share of a budget of candidates: by our prices, and at most."""
    most, weights = f"at most {llm.max_usd:g} USD (--max-usd)", llm.ensemble()
    if is_private(llm.api_base) and all(model.startswith(SELF_HOSTED) for model in weights):
        return "free, on a server of your own"
    prices = price_table() | llm.prices
    if not weights or not prices.keys() >= weights.keys():
        return most
    answers = llm.rounds * llm.share * budget / llm.programs
    usd = answers * sum(weight * Price(*prices[model]).usd(*TYPICAL) for model, weight in weights.items())
    return f"about {usd:.2f} USD, {most}" if usd < llm.max_usd else most
