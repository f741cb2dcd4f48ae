"""What `run` takes for language models, and the configuration that comes of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import wraps
from typing import Any

import click

from evolve.run.config import config_from, to_mapping
from simulator.errors import InputError

KEY = "Its key is read from the environment only, e.g. OPENAI_API_KEY."
# by the name of the setting: the option, its type, what it stands for, and what it is
OPTIONS: dict[str, tuple[str, Any, str | None, str]] = {
    "proposer": ("--proposer", click.Choice(["offline", "llm", "mixed"]), None,
                 "Who proposes: operators, language models, or both [default: offline]."),
    "models": ("--llm", str, "PROVIDER/MODEL[=WEIGHT]", f"A model as litellm has it; repeat it for an ensemble. {KEY}"),
    "api_base": ("--api-base", str, "URL", "OpenAI-compatible server of models named openai/NAME."),
    "prices": ("--price", str, "MODEL=IN,OUT", "USD per million tokens in and out (repeatable); 0,0: costs nothing."),
    "max_usd": ("--max-usd", click.FloatRange(min=0), None, "Stop before more is spent [default: 5]."),
    "max_calls": ("--max-calls", click.IntRange(min=0), None, "Stop after as many requests [default: 0: no limit]."),
    "max_tokens": ("--max-tokens", click.IntRange(min=0), None, "The same for tokens in and out [default: 0: none]."),
    "rpm": ("--rpm", click.IntRange(min=0), None, "Requests a minute [default: 60; 0: any]."),
    "concurrency": ("--concurrency", click.IntRange(min=1), None, "Requests at a time [default: 8]."),
    "timeout_s": ("--timeout", click.FloatRange(min=0, min_open=True), "SECONDS", "For an answer [default: 180]."),
    "judges": ("--judge", str, "PROVIDER/MODEL", "A model that reviews proposals before they are fitted (repeatable)."),
    "notes_every": ("--notes-every", click.IntRange(min=0), "N",
                    "Generations between a model's notes on what was learned [default: 10; 0: none]."),
    "prompts": ("--prompts", str, "DIR", "Prompts of your own in place of the project's, e.g. DIR/propose.md."),
    "cache": ("--cache", str, "DIR", "Keep answers here, and ask nothing again that is answered here."),
}  # fmt: skip
REPEATABLE = ("models", "prices", "judges")


def llm_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options above, handed to the command as one mapping `llm` of those that are given."""

    @wraps(command)
    def with_llm(**options: Any) -> Any:
        found = {name: options.pop(f"llm_{name}") for name in OPTIONS}
        return command(llm={name: value for name, value in found.items() if value not in (None, ())}, **options)

    for name, (option, kind, stands_for, text) in reversed(OPTIONS.items()):
        with_llm = click.option(option, f"llm_{name}", type=kind, metavar=stands_for, help=text,
                                multiple=name in REPEATABLE)(with_llm)  # fmt: skip
    return with_llm


def llm_config(config: Any, llm: dict[str, Any]) -> Any:
    """The configuration with what the command line says of language models. Raises InputError for what cannot be."""
    if not llm:
        return config
    changed = dict(llm)
    proposer = changed.pop("proposer", config.search.proposer)
    if changed and proposer == "offline":
        raise InputError(f"{OPTIONS[next(iter(changed))][0]} is for --proposer llm or mixed: say which")
    if changed.get("api_base") == "":
        raise InputError("--api-base is empty: give the server's address, e.g. http://127.0.0.1:8000/v1")
    if "prices" in changed:
        changed["prices"] = {**config.llm.prices, **dict(map(_price, changed["prices"]))}
    made = replace(config, search=replace(config.search, proposer=proposer), llm=replace(config.llm, **changed))
    return config_from(to_mapping(made), "command line")


def _price(text: str) -> tuple[str, list[float]]:

    model, _, figures = text.rpartition("=")
    try:
        price = [float(x) for x in figures.split(",")]
    except ValueError:
        price = []
    if not model or len(price) != 2:
        raise InputError(f"--price {text}: give MODEL=IN,OUT in USD per million tokens, e.g. openai/mine=0.5,1.5")
    return model, price
