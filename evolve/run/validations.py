"""RUN/validate.jsonl: a line per validate call, so that every look at held-out figures is recorded."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from archive.journal import Journal, read_journal
from evolve.output.files import REMEDY
from evolve.run.config import Config
from evolve.run.config_file import renewed_setting, to_mapping
from evolve.run.folder import RunFolder
from simulator.common.documents import read_json
from simulator.common.errors import LARGEST_WHOLE, InputError
from simulator.common.json import JsonObject, renamed
from simulator.common.records import from_json, read_by, record_class, stored

LOG = "validate.jsonl"
BUDGET = "fold budget"  # the protocol's key for the budget of a fold's search
FORMS = "forms"  # the key of a line for the source of its folds' forms, a key of SOURCES
SEARCHED, RECORDED, REFITTED = "searched", "recorded", "refitted"
# The file of a run that has the figures, by the source of the folds' forms.
FILES = {SEARCHED: "validate.json", RECORDED: "validate-recorded.json", REFITTED: "validate-hindsight.json"}
# The source of the folds' forms, in words that go with every figure.
SOURCES = {
    SEARCHED: "form, constants and choice inside the fold",
    RECORDED: "forms recorded from a search that saw all data; fitted and chosen inside the fold",
    REFITTED: "form chosen with hindsight, constants refitted in each fold",
}
OPTIMISTIC = "figures are optimistic if anything was changed or chosen after an earlier one"


@record_class
class _Line:
    """What is read of a call's line."""

    call: int = stored(limits=(1, LARGEST_WHOLE))
    forms: Literal["searched", "recorded", "refitted"] | None = stored(lacking=None)
    protocol: Mapping[str, Any]
    mean_abs_error_pct: Mapping[str, Mapping[str, float | None]]


def calls(run_path: Path) -> list[JsonObject]:
    """The validate calls of a run, the first one first. Raises InputError if the file is damaged."""
    try:
        lines = [_renewed(line) for line in read_journal(run_path / LOG)]
        for number, line in enumerate(lines, 1):
            from_json(_Line, line, f"{run_path / LOG}:{number}")
        return lines
    except InputError:
        raise
    except ValueError as e:
        raise InputError(f"{e}: restore the file from a copy") from None


def _renewed(line: JsonObject) -> JsonObject:
    """A line of an older release under today's names."""
    if not isinstance(settings := line.get("protocol"), dict):
        return line
    return line | {"protocol": dict(renewed_setting(key, value) for key, value in settings.items())}


def read_figures(path: Path) -> JsonObject:
    """The JSON object of one of the FILES. Raises OSError, and InputError if it is not JSON."""
    return read_by(_figures, read_json(path, REMEDY, kept=True), path)


def _figures(raw: JsonObject) -> JsonObject:
    """The figures under today's names."""
    old = {"known": "baselines", "best_known": "best_baseline", "worst_e2e_pct": "worst_e2e_error_pct"}
    rows = [renamed(row, {"known": "baselines"}) for row in raw["rows"]]
    return raw | {"rows": rows, "summary": {kind: renamed(s, old) for kind, s in raw["summary"].items()}}


def call_of(lines: Sequence[JsonObject], number: int | None) -> JsonObject:
    """The line of the call of this number; the last line for None, or if there is no such call. `lines`: not empty."""
    return next((line for line in lines if number and line.get("call") == number), lines[-1])


def calls_note(run_path: Path) -> str:
    """The number of validate calls, with a warning about optimistic figures after several."""
    count = len(calls(run_path))
    if count < 2:
        return "none yet, `evolve validate` gives some" if count == 0 else "1 validate call"
    return f"{count} validate calls: {OPTIMISTIC}"


def sources_note(run_path: Path) -> str:
    """A sentence per source of forms other than a search in every fold; "" if all calls searched."""
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
    """The source of the forms of a call, a key of SOURCES. Lines of older releases lack it."""
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
    """A phrase for each setting of the `current` protocol that differs from the first call.

    The budget is compared with that of the first call whose forms came from the same source (`forms`).
    """
    lines = calls(run_path)
    protocols = [line["protocol"] for line in lines]
    if not protocols:
        return []
    budgets = [line["protocol"].get(BUDGET) for line in lines if forms_of(line) == forms]
    # Settings that an older release did not have yet count as today's defaults: that is how it behaved.
    first = flat(to_mapping(Config())) | protocols[0] | {BUDGET: budgets[0] if budgets else current[BUDGET]}
    names = [n for n in {**first, **current} if first.get(n) != current.get(n)]
    return [f"{n} was {first.get(n)}, is {current.get(n)}" for n in names]
