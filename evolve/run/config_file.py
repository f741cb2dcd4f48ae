"""Configuration files: YAML as the settings of a run, and back. Unknown keys are errors."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from importlib import resources
from operator import attrgetter
from pathlib import Path
from typing import Any

from archive.champion import OLD_RULES
from evolve.run.config import (
    AUTO,
    FIELD_SETS,
    FITS,
    FOLDS,
    LEFT_OUT,
    METHODS,
    OPERATORS,
    PROPOSERS,
    RULES,
    SELECTIONS,
    STAGES,
    Config,
)
from evolve.run.llm_settings import check
from simulator.common.documents import parse_yaml, read_bytes
from simulator.common.errors import InputError, nearest, shown, unreadable

BEGIN = "write a setting such as `budget: 800`"


def load_config(name: str) -> Config:
    """The configuration of this bundled name (`default`, `smoke`, ...) or path.

    Raises InputError, naming the file and the key, if it cannot be read or a setting is wrong.
    """
    bundled = resources.files("configs").joinpath(f"{name}.yaml")
    path = Path(name)
    if "/" not in name and not name.endswith((".yaml", ".yml")) and bundled.is_file():
        return config_from(parse_yaml(bundled.read_bytes(), f"configs/{name}.yaml", BEGIN), f"configs/{name}.yaml")
    if name.startswith("configs/") and not path.exists() and resources.files("configs").joinpath(path.name).is_file():
        return load_config(path.stem)
    try:
        raw = read_bytes(path)
    except OSError as e:
        names = ", ".join(bundled_configs())
        raise unreadable(name, e, f"name a file, or one of {names}") from None
    values = parse_yaml(raw, name, BEGIN)
    if isinstance(values, dict) and "experiments" in values:
        raise InputError(f"{name}: is a file of experiments, not a configuration: give it with --experiments {name}")
    return config_from({"name": path.stem} | values if isinstance(values, dict) else values, name)


def bundled_configs() -> list[str]:
    files = (f.name for f in resources.files("configs").iterdir() if f.name.endswith(".yaml"))
    data = ("experiments_", "models.", "hardware.", "llm_prices.", "leaderboard.")
    return sorted(f.removesuffix(".yaml") for f in files if not f.startswith(data))


# Keys of older releases' files, and values of keys, with today's.
OLD_KEYS = {"search.hopeless": "search.prune_above"}
# Settings that there are no longer; their values are not looked at.
GONE = ("search.transfer_within", "search.group_out_within", "score.tail", "score.nearer")
OLD_VALUES: Mapping[str, Mapping[str, str]] = {"score.champion": OLD_RULES, "search.proposer": {"mixed": AUTO}}


def _renewed(raw: object) -> object:
    """The values of an older release's file under today's names. `llm.repair` was a second round, or none."""
    if not isinstance(raw, dict):
        return raw
    llm = raw.get("llm")
    if isinstance(llm, dict) and isinstance(llm.get("repair"), bool):
        rest = {name: value for name, value in llm.items() if name != "repair"}
        raw = raw | {"llm": rest if llm["repair"] else {"rounds": 1} | rest}
    sections = {name: section for name, section in raw.items() if isinstance(section, dict)}
    return raw | {name: _renewed_section(name, section) for name, section in sections.items()}


def _renewed_section(name: str, section: Mapping[Any, Any]) -> dict[str, Any]:
    settings = (
        renewed_setting(f"{name}.{key}", value) for key, value in section.items() if f"{name}.{key}" not in GONE
    )
    return {key.removeprefix(f"{name}."): value for key, value in settings}


def renewed_setting(key: str, value: Any) -> tuple[str, Any]:
    """A setting `section.key` of an older release, and its value, under today's names."""
    new = OLD_KEYS.get(key, key)
    return new, OLD_VALUES.get(new, {}).get(value, value) if isinstance(value, str) else value


CHOICES: Mapping[str, Sequence[str]] = {
    "search.proposer": PROPOSERS,
    "search.selection": SELECTIONS,
    "search.fields": FIELD_SETS,
    "search.evolve": METHODS,
    "search.fit": FITS,
    "score.champion": RULES,
    "data.stages": STAGES,
    "validate.folds": FOLDS,
    "score.left_out": LEFT_OUT,
}


def _keys(text: str) -> tuple[str, ...]:
    return tuple(text.split())


POSITIVE = _keys("""
    budget search.batch search.tournament search.generations search.patience search.islands search.migrate_every
    search.operation_bins search.feature_bins score.seeds caps.operations caps.constants score.moe_weight
    score.worst_pct validate.budget llm.programs llm.parents llm.attempts llm.rounds llm.patience llm.answer_tokens
    llm.timeout_s llm.concurrency
""")
NOT_NEGATIVE = _keys("""
    seed search.patience_gain score.within search.migrants search.finalists search.limit_s caps.conditionals
    llm.max_usd llm.max_calls llm.max_tokens llm.rpm llm.backoff_s llm.notes_every llm.documents_tokens
    llm.library_tokens
""")
# (settings, the test of their values, what they must be, the remedy)
CHECKS: Sequence[tuple[Sequence[str], Callable[[float], bool], str, str]] = (
    (POSITIVE, lambda x: x > 0, "> 0", "give a positive number"),
    (NOT_NEGATIVE, lambda x: x >= 0, ">= 0", "give 0 or more"),
    (["search.prune_above"], lambda x: x == 0 or x >= 1, "0 or at least 1", "give 0 for no limit"),
    (["score.seeds"], lambda x: x <= 100, "at most 100", "give fewer"),
    (["search.islands", "search.batch"], lambda x: x <= 1000, "at most 1000", "give fewer"),
    (["llm.share"], lambda x: 0 < x < 1, "between 0 and 1", "give e.g. 0.25"),
    (["llm.max_usd"], lambda x: x < math.inf, "a number of USD", "give what the run may spend"),
    (["llm.judge_below"], lambda x: 0 <= x <= 10, "between 0 and 10", "marks are out of 10"),
    (["llm.timeout_s"], lambda x: x <= 86400, "at most 86400", "give less than a day"),
)


def config_from(raw: object, where: str) -> Config:
    """The configuration that YAML values describe; `where` names their source in messages.

    Raises InputError for an unknown key, a wrong type or a value out of range.
    """
    config: Config = _build(Config, _renewed(raw), where, "")
    for key, allowed in CHOICES.items():
        value = attrgetter(key)(config)
        for one in value if isinstance(value, tuple) else (value,):
            if one not in allowed:
                raise InputError(f"{where}: {key} must be one of {', '.join(allowed)}, got {shown(one)}: choose one")
    for keys, right, words, remedy in CHECKS:
        for key in keys:
            if not right(number := attrgetter(key)(config)):
                raise InputError(f"{where}: {key} must be {words}, got {number}: {remedy}")
    for name, weight in config.search.operators.items():
        if name not in OPERATORS:
            raise InputError(
                f"{where}: search.operators has no {shown(name)}: the operators are {', '.join(OPERATORS)}"
            )
        if not isinstance(weight, (int, float)) or not 0 <= weight < float("inf"):
            raise InputError(f"{where}: search.operators.{name} must be a weight >= 0, got {shown(weight)}")
    if config.search.only_start and not config.search.start:
        raise InputError(f"{where}: search.only_start leaves no program to start from: name one in search.start")
    if config.search.operators and not any(config.search.operators.values()):
        raise InputError(f"{where}: search.operators are all 0: give at least one a weight")
    check(config.llm, where)
    return config


def _build(kind: type, raw: object, where: str, prefix: str) -> Any:
    """The settings dataclass `kind` with the values of `raw`; `prefix` is its place in the file, such as "search."."""
    if not isinstance(raw, dict):
        raise InputError(
            f"{where}: {prefix.rstrip('.') or 'the file'} must be a mapping of settings, got {type(raw).__name__}"
        )
    names = [f.name for f in fields(kind)]
    default = kind()
    values: dict[str, Any] = {}
    for key, value in raw.items():
        if key not in names:
            remedy = _place(str(key)) or nearest(str(key), names) or "remove it"
            raise InputError(f"{where}: unknown key {prefix}{str(key)[:60]}: {remedy}")
        current = getattr(default, key)
        if dataclasses.is_dataclass(current):
            values[key] = _build(type(current), value, where, f"{prefix}{key}.")
        else:
            values[key] = _value(current, value, where, f"{prefix}{key}")
    return kind(**values)


def _place(key: str) -> str:
    """Advice for a setting named in the wrong mapping, without a mapping or with a dot; "" without such a setting."""
    mapping, _, name = key.rpartition(".")
    for f in fields(Config):
        settings = getattr(Config(), f.name)
        known = [each.name for each in fields(settings)] if dataclasses.is_dataclass(settings) else []
        if name in known and mapping in ("", f.name):
            return f"write `{f.name}: {{{name}: ...}}`"
        if key == f.name:
            return f"write `{key}: ...` at the top of the file"
    return ""


WANTED: dict[type, str] = {tuple: "a list of names", dict: "a mapping", str: "text", bool: "true or false"}
WANTED |= {int: "a whole number", float: "a number"}


def _value(default: Any, value: object, where: str, key: str) -> Any:
    """The value, checked against the type of the setting's default."""
    kind, remedy = type(default), "correct the value"
    if any("\0" in text for text in (value if isinstance(value, list) else [value]) if isinstance(text, str)):
        raise InputError(f"{where}: {key} has a NUL character, got {shown(value)}: {remedy}")
    if kind is tuple and isinstance(value, list) and all(isinstance(v, str) for v in value):
        return tuple(value)
    if kind is float and isinstance(value, int | float) and not isinstance(value, bool) and value == value:
        return float(value)
    if kind not in (tuple, float) and type(value) is kind:
        return value
    if kind is tuple and isinstance(value, str):
        remedy = f"write `{key.rpartition('.')[2]}: [{value[:60]}]`"
    raise InputError(f"{where}: {key} must be {WANTED[kind]}, got {shown(value)}: {remedy}")


def to_mapping(config: Config) -> dict[str, Any]:
    """The configuration as plain YAML values, which `config_from` reads back."""

    def plain(value: Any) -> Any:
        if isinstance(value, dict):
            return {k: plain(v) for k, v in value.items()}
        return list(value) if isinstance(value, tuple) else value

    return plain(dataclasses.asdict(config))  # type: ignore[no-any-return]
