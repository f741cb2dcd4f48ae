"""RUN/validate.jsonl: a line per validate call, which records how often held-out figures were looked at."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from archive.journal import Journal, read_journal
from evolve.run.config import Config
from evolve.run.config_file import to_mapping
from evolve.run.folder import RunFolder
from simulator.common.errors import InputError
from simulator.common.json import JsonObject

LOG = "validate.jsonl"
BUDGET = "fold budget"  # the protocol's key for the budget of a fold's search
FORMS = "forms"  # the key of a line for where the forms of its folds come from, a key of SOURCES
SEARCHED, RECORDED, REFITTED = "searched", "recorded", "refitted"
# The file of a run that has the figures, by where the forms of the folds come from.
FILES = {SEARCHED: "validate.json", RECORDED: "validate-recorded.json", REFITTED: "validate-hindsight.json"}
# Where the forms of the folds come from, in words that go with every figure.
SOURCES = {
    SEARCHED: "form, constants and choice inside the fold",
    RECORDED: "forms recorded from a search that saw all data; fitted and chosen inside the fold",
    REFITTED: "form chosen with hindsight, constants refitted in each fold",
}
OPTIMISTIC = "figures are optimistic if anything was changed or chosen after an earlier one"


def calls(run_path: Path) -> list[JsonObject]:
    """The validate calls of a run, the first one first. Raises InputError if the file is damaged."""
    try:
        return read_journal(run_path / LOG)
    except ValueError as e:
        raise InputError(f"{e}: restore the file from a copy") from None


def call_of(lines: Sequence[JsonObject], number: int | None) -> JsonObject:
    """The line of the call of this number; the last line for None, or if there is no such call. `lines`: not empty."""
    return next((line for line in lines if number and line.get("call") == number), lines[-1])


def calls_note(run_path: Path) -> str:
    """How many validate calls there were, and what that means for the figures."""
    count = len(calls(run_path))
    if count < 2:
        return "none yet, `evolve validate` gives some" if count == 0 else "1 validate call"
    return f"{count} validate calls: {OPTIMISTIC}"


def sources_note(run_path: Path) -> str:
    """Where the forms came from in each call that did not search in every fold, a sentence per source; "" if in all."""
    counts = Counter(forms_of(line) for line in calls(run_path))
    return " ".join(f"In {n} of the calls: {SOURCES[name]}." for name, n in counts.items() if name != SEARCHED)


def append(run_path: Path, line: JsonObject) -> None:
    """Add the line of a finished call."""
    journal = Journal(run_path / LOG)
    try:
        journal.append([line])
    finally:
        journal.close()


def forms_of(line: Mapping[str, Any]) -> str:
    """Where the forms of a call come from, a key of SOURCES. Lines of older releases do not say it."""
    forms: str = line.get(FORMS, REFITTED if line.get("form_chosen_with_hindsight") else SEARCHED)
    return forms


def protocol(run: RunFolder, budget: int | None) -> JsonObject:
    """The settings that held-out figures depend on, as {section.key: value}. `budget`: None if no fold is searched."""
    return {**flat(to_mapping(run.config)), BUDGET: budget}


def flat(mapping: JsonObject) -> JsonObject:
    """The mapping of a configuration as {section.key: value}."""
    settings: JsonObject = {}
    for name, value in mapping.items():
        settings |= {f"{name}.{k}": v for k, v in value.items()} if isinstance(value, dict) else {name: value}
    return settings


def changed(run_path: Path, current: JsonObject, forms: str) -> list[str]:
    """How the `current` protocol differs from that of the first call, a phrase per setting.

    The budget is compared with that of the first call whose forms came from the same source (`forms`).
    """
    lines = calls(run_path)
    protocols = [line["protocol"] for line in lines]
    if not protocols:
        return []
    budgets = [line["protocol"][BUDGET] for line in lines if forms_of(line) == forms]
    # Settings that an older release did not have yet count as today's defaults: that is how it behaved.
    first = flat(to_mapping(Config())) | protocols[0] | {BUDGET: budgets[0] if budgets else current[BUDGET]}
    names = [n for n in {**first, **current} if first.get(n) != current.get(n)]
    return [f"{n} was {first.get(n)}, is {current.get(n)}" for n in names]
