"""One budget for the language models of several searches: each search has an equal share, fixed when it starts.

Together they stay within the limits, none depends on another's progress, and an interrupted study continues exactly.
No search gets what another one leaves: compared searches have equal terms.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from evolve.run.config import Config
from evolve.run.folder import REPORT, RunFolder
from evolve.run.llm_settings import LlmSettings
from evolve.search.llm.calls import call_log
from evolve.search.llm.setup import with_limits
from evolve.summary.result import finished
from simulator.common.errors import InputError

LIMITS = ("max_usd", "max_calls", "max_tokens")
PACE = ("rpm", "concurrency")  # shared too, because the searches of a study go on side by side


def limits_of(llm: LlmSettings) -> dict[str, float]:
    """The limits among these settings: USD, requests and tokens; 0 requests or tokens: no limit."""
    return {name: getattr(llm, name) for name in LIMITS}


def with_totals(llm: LlmSettings, limits: Mapping[str, float]) -> LlmSettings:
    """The settings with other limits."""
    return replace(llm, **{name: type(getattr(llm, name))(limit) for name, limit in limits.items()})


def share(llm: LlmSettings, searches: int) -> LlmSettings:
    """The settings of each of `searches` searches, if `llm` are those of all of them together.

    Raises InputError if a limit leaves a search nothing.

    >>> share(LlmSettings(max_usd=6.0, max_calls=100), 3).max_calls
    33
    """
    for name in ("max_calls", "max_tokens"):
        limit = getattr(llm, name)
        if 0 < limit < searches:
            raise InputError(
                f"{_option(name)} {limit}: leaves none of {searches} searches anything: give {searches} or more"
            )
    return replace(
        llm,
        max_usd=llm.max_usd / searches,
        max_calls=llm.max_calls // searches,
        max_tokens=llm.max_tokens // searches,
        rpm=max(llm.rpm // searches, 1) if llm.rpm else 0,
        concurrency=max(llm.concurrency // searches, 1),
    )


def shares_line(llm: LlmSettings, searches: int, noun: str) -> str:
    """The share of each search in words; `noun` names the searches.

    >>> shares_line(LlmSettings(max_usd=6.0, max_calls=7), 2, "repeats")
    'each of 2 repeats has an equal share: 3 of 6 USD, 3 of 7 requests'
    """
    each = share(llm, searches)
    units = {"max_usd": "USD", "max_calls": "requests", "max_tokens": "tokens"}
    parts = [
        f"{getattr(each, name):g} of {getattr(llm, name):g} {unit}"
        for name, unit in units.items()
        if getattr(llm, name) or name == "max_usd"
    ]
    return f"each of {searches} {noun} has an equal share: {', '.join(parts)}"


def check_spent(runs: Sequence[RunFolder], searches: int, llm: LlmSettings) -> None:
    """Raises InputError if one of the `runs` has spent more than its share of `llm` among `searches` searches.

    That happens if searches are added to a study: what the others have spent cannot be shared out again.
    """
    each = share(llm, searches)
    for run in runs:
        spent = call_log(run.calls()).spent
        took = {
            "max_usd": spent.usd + spent.possibly_usd,
            "max_calls": spent.requests,
            "max_tokens": spent.tokens + spent.possibly_tokens,
        }
        for name, used in took.items():
            least, limit = getattr(each, name), getattr(llm, name)
            if (limit or name == "max_usd") and used > least * (1.0 + 1e-12):
                together = used * searches
                enough = f"{math.ceil(100.0 * together) / 100.0:.2f}" if name == "max_usd" else f"{together}"
                raise InputError(
                    f"{run.path}: has spent more ({name} {used:g}) than its share of {name} {limit:g} "
                    f"among {searches} searches: give {_option(name)} {enough} or more"
                )


def shared_out(run: RunFolder, each: LlmSettings) -> RunFolder:
    """An existing run of a study with its share, if that has changed.

    A finished run that a limit had stopped is to go on: its report is removed.
    """
    limits = limits_of(each)
    if limits_of(run.config.llm) == limits:
        return run
    changed = with_limits(run, limits)
    report = finished(run.path)
    if report is not None and report.calls.get("stopped"):
        (run.path / REPORT).unlink()
    return changed


def without_limits(config: Config) -> Config:
    """The settings that results depend on: without limits and pace, which may change while a study goes on."""
    default = LlmSettings()
    return replace(config, llm=replace(config.llm, **{name: getattr(default, name) for name in (*LIMITS, *PACE)}))


def no_models(path: Path, limits: Mapping[str, float]) -> InputError:
    """The error that a study is given limits and asks no language model."""
    return InputError(f"{path}: calls no language model: leave out {_option(next(iter(limits)))}")


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"
