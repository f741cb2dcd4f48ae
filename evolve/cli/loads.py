"""The options that describe a load in place of an experiments file: of `predict` and `plan`."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click

from evolve.cli.options import gathered
from simulator.common.errors import InputError, shown
from simulator.common.json import JsonObject
from simulator.serving.limits import MOST_REQUESTS, MOST_USERS
from simulator.serving.spec import DURATION_S, REQUESTS, WARMUP
from simulator.serving.traces.read import files_beside
from simulator.serving.workload_entry import Files

LEAST_RPS, MOST_RPS = round(1.0 / DURATION_S, 4), MOST_REQUESTS // DURATION_S  # one request, and the most
LENGTH = "write TOKENS, or a distribution such as uniform:min=800,max=1000 or lognormal:mean=900,sd=400"
_PREFIX = re.compile(r"([0-9]{1,9})(?::([0-9]{1,9}))?")


@dataclass(frozen=True, slots=True)
class Load:
    """The load in these options; None for what was not given.

    prompt_len, output_len: as in an experiments file. shared_prefix: tokens, and groups of prompts that share them.
    trace: a file of requests, which has rate and lengths.
    """

    rate_rps: float | None = None
    concurrency: int | None = None
    requests: int | None = None
    prompt_len: int | JsonObject | None = None
    output_len: int | JsonObject | None = None
    shared_prefix: tuple[int, int] | None = None
    trace: str | None = None

    @property
    def given(self) -> bool:
        """True if any option is given."""
        return self != Load()

    @property
    def lacking(self) -> list[str]:
        """The options that are missing for a load."""
        if self.trace:
            return []
        level = self.rate_rps or self.concurrency
        needed = {"--rate": level, "--prompt-len": self.prompt_len, "--output-len": self.output_len}
        return [name for name, value in needed.items() if not value]

    @property
    def files(self) -> Files:
        """A reader of the trace, relative to the current folder."""
        return files_beside(Path("plan.yaml"))

    def entry(self) -> JsonObject:
        """The `workload` of an experiments file. Raises InputError for options that exclude each other."""
        if self.trace:
            if replace(self, trace=None, concurrency=None).given:
                raise InputError("--trace has rates and lengths of its own: leave out the other options of the load")
            closed = {} if self.concurrency is None else {"concurrency": self.concurrency}
            return {"name": "plan", "trace": self.trace, **closed}
        if self.concurrency is not None and self.rate_rps is not None:
            raise InputError("--rate and --concurrency exclude each other: give one of them")
        if self.requests is not None and self.concurrency is None:
            raise InputError("--requests goes with --concurrency: give both")
        load: JsonObject = {"stages": [{"rate": self.rate_rps, "duration_s": DURATION_S}]}
        if users := self.concurrency:
            load = {"concurrency": users, "requests": self.requests or REQUESTS * users}
            load |= {"warmup_requests": WARMUP * users}
        prompts: JsonObject = {"prompt_len": self.prompt_len}
        if self.shared_prefix:
            tokens, groups = self.shared_prefix
            shared = {"groups": groups, "system_prompt_len": tokens, "question_len": self.prompt_len}
            prompts = {"shared_prefix": shared}
        return {"name": "plan", **load, **prompts, "output_len": self.output_len}


def load_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options; the command receives them as `load`, a Load."""
    options = {
        "rate_rps": click.option(
            "--rate",
            "rate_rps",
            type=click.FloatRange(LEAST_RPS, MOST_RPS),
            metavar="REQUESTS/S",
            help="Load: Poisson arrivals for ten minutes.",
        ),
        "concurrency": click.option(
            "--concurrency",
            type=click.IntRange(1, MOST_USERS),
            metavar="CLIENTS",
            help="Load instead of --rate: clients, each of whom waits for its answer before it asks again.",
        ),
        "requests": click.option(
            "--requests",
            type=click.IntRange(1, MOST_REQUESTS),
            help=f"With --concurrency: all requests after a warm-up.  [default: {REQUESTS} for each client, warm-up "
            f"{WARMUP}]",
        ),
        "prompt_len": click.option(
            "--prompt-len",
            metavar="TOKENS|DISTRIBUTION",
            callback=_length,
            help="Prompt length, e.g. 1000, uniform:min=800,max=1000 or lognormal:mean=900,sd=400.",
        ),
        "output_len": click.option(
            "--output-len", metavar="TOKENS|DISTRIBUTION", callback=_length, help="Answer length, written likewise."
        ),
        "shared_prefix": click.option(
            "--shared-prefix",
            metavar="TOKENS[:GROUPS]",
            callback=_prefix,
            help="Tokens before those of --prompt-len that all prompts share, or those of each of GROUPS groups.",
        ),
        "trace": click.option("--trace", metavar="FILE", help="Load instead of all these: recorded requests."),
    }
    return gathered("load", "", options, _load)(command)


def _load(given: Mapping[str, Any]) -> Load:
    return Load(**given)


def _length(_context: click.Context, option: click.Parameter, text: str | None) -> int | JsonObject | None:
    """A number of tokens, or a distribution as an experiments file has it; its values are checked there."""
    if text is None:
        return None
    if text.isdecimal():
        return int(text)
    kind, colon, pairs = text.partition(":")
    values: JsonObject = {}
    for pair in pairs.split(","):
        name, _, value = pair.partition("=")
        try:
            values[name.strip()] = float(value)
        except ValueError:
            colon = ""
    if not colon or not kind:
        raise InputError(f"{option.opts[0]} {shown(text)}: is no length: {LENGTH}")
    return {kind: {name: int(x) if x.is_integer() else x for name, x in values.items()}}


def _prefix(_context: click.Context, option: click.Parameter, text: str | None) -> tuple[int, int] | None:
    if text is None:
        return None
    found = _PREFIX.fullmatch(text)
    if not found or int(found[2] or 1) < 1 or int(found[1]) < 1:
        raise InputError(f"{option.opts[0]} {shown(text)}: is no prefix: write TOKENS or TOKENS:GROUPS")
    return int(found[1]), int(found[2] or 1)
