"""The options of `run` for language models, and their configuration."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import click

from evolve.cli.options import Decorator, gathered
from evolve.run.config import PROPOSERS, Config
from evolve.run.config_file import config_from, to_mapping
from evolve.run.llm_settings import weighted
from simulator.common.errors import InputError

KEY = "Its key comes from the environment only, e.g. OPENAI_API_KEY."
# {setting: (option, type, placeholder of its value, help)}
OPTIONS: dict[str, tuple[str, Any, str | None, str]] = {
    "proposer": (
        "--proposer",
        click.Choice(PROPOSERS),
        None,
        "Proposers: operators, language models, or both (auto) [default: offline].",
    ),
    "models": (
        "--llm",
        str,
        "PROVIDER/MODEL[=WEIGHT]",
        f"A model as litellm names it (repeatable) [default of auto: that of your keys or server]. {KEY}",
    ),
    "api_base": ("--api-base", str, "URL", "OpenAI-compatible server of the models named openai/NAME."),
    "prices": ("--price", str, "MODEL=IN,OUT", "USD per million tokens in and out (repeatable); 0,0: free."),
    "max_usd": ("--max-usd", click.FloatRange(min=0), None, "Limit on the cost of all searches together [default: 5]."),
    "max_calls": ("--max-calls", click.IntRange(min=0), None, "Stop after this many requests [default: 0: no limit]."),
    "max_tokens": ("--max-tokens", click.IntRange(min=0), None, "The same for tokens [default: 0: no limit]."),
    "rpm": ("--rpm", click.IntRange(min=0), None, "Requests per minute [default: 60; 0: no limit]."),
    "concurrency": ("--concurrency", click.IntRange(min=1), None, "Requests at a time [default: 8]."),
    "timeout_s": (
        "--timeout",
        click.FloatRange(min=0, min_open=True),
        "SECONDS",
        "Wait this long for an answer [default: 180].",
    ),
    "judges": ("--judge", str, "PROVIDER/MODEL", "A model that reviews proposals after their trial (repeatable)."),
    "notes_every": (
        "--notes-every",
        click.IntRange(min=0),
        "N",
        "Generations between a model's notes on what was learned [default: 10; 0: no notes].",
    ),
    "prompts": ("--prompts", str, "DIR", "Your own prompts instead of the project's, e.g. DIR/propose.md."),
    "problem": ("--problem", str, "FILE", "What to study, in your words: a text that every question quotes."),
    "background": (
        "--background",
        str,
        "FILE|DIR",
        "Text, PDF or BibTeX for models to read, 2,000 tokens with --problem (repeatable).",
    ),
    "library": ("--library", str, "DIR", "PDFs, notes and BibTeX: questions quote the nearest passages."),
    "cache": ("--cache", str, "DIR", "Keep answers here, and reuse them in later runs."),
}
REPEATABLE = ("models", "prices", "judges", "background")


def llm_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add these options; the command receives the given ones as a mapping `llm` by setting."""
    options = {
        name: click.option(
            option, f"llm_{name}", type=kind, metavar=placeholder, help=text, multiple=name in REPEATABLE
        )
        for name, (option, kind, placeholder, text) in OPTIONS.items()
    }
    return gathered("llm", "llm_", options)(command)


def limit_options(what: str) -> Decorator:
    """Add the options that limit language models; the command receives the given ones as a mapping `limits`.

    `what` begins the help of --max-usd.
    """
    helps = {
        "max_usd": f"{what} [default: the run's].",
        "max_calls": "The same for requests; 0: no limit.",
        "max_tokens": "The same for tokens; 0: no limit.",
    }
    options = {
        name: click.option(option_of(name), name, type=OPTIONS[name][1], help=text) for name, text in helps.items()
    }
    return gathered("limits", "", options)


def option_of(setting: str) -> str:
    """The option of a setting: --max-usd of max_usd."""
    return OPTIONS[setting][0]


def llm_config(config: Config, llm: dict[str, Any]) -> Config:
    """The configuration with these settings of the command line. Raises InputError for an impossible one."""
    if not llm:
        return config
    changed = dict(llm)
    proposer = changed.pop("proposer", config.search.proposer)
    if changed and proposer == "offline":
        raise InputError(f"{OPTIONS[next(iter(changed))][0]} is for --proposer auto or llm: give one of them")
    if changed.get("api_base") == "":
        raise InputError("--api-base is empty: give the server's address, e.g. http://127.0.0.1:8000/v1")
    if "prices" in changed:
        changed["prices"] = {**config.llm.prices, **dict(map(_price, changed["prices"]))}
    search, settings = replace(config.search, proposer=proposer), replace(config.llm, **changed)
    changed_config = config_from(to_mapping(replace(config, search=search, llm=settings)), "command line")
    named = [weighted(name, "llm.models")[0] for name in changed_config.llm.named]
    for text in llm.get("prices", ()):
        if named and (model := _price(text)[0]) not in named:
            raise InputError(f"--price {text}: {model} is not asked: the models are {', '.join(dict.fromkeys(named))}")
    return changed_config


def two_prices(text: str) -> list[float]:
    """The USD per million tokens in `IN,OUT`; empty for any other text."""
    try:
        price = [float(x) for x in text.split(",")]
    except ValueError:
        return []
    return price if len(price) == 2 else []


def _price(text: str) -> tuple[str, list[float]]:
    """The model and its prices in `MODEL=IN,OUT`."""
    model, _, figures = text.rpartition("=")
    price = two_prices(figures)
    if not model or not price:
        raise InputError(f"--price {text}: give MODEL=IN,OUT in USD per million tokens, e.g. openai/mine=0.5,1.5")
    return model, price
