"""The user's own models: a folder with a JSON file for each, in the terms of configs/models.yaml.

`evolve model add` writes them (evolve.inspect.models). They are known by name wherever a deployment is named, but take
no part in what must be the same on every machine: gates, known answers, and what `evolve emit` bakes in unasked.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

from simulator.common.documents import read_json
from simulator.common.errors import InputError, Section, unreadable

VARIABLE = "EVOLVE_MODELS"  # of the environment: the folder, if not ~/.config/evolve/models
ENTRY = ("id", "config", "generation_config")
REMEDY = "add the model again with `evolve model add --replace`, or remove the file"


def folder() -> Path:
    """The folder of the user's own models, which need not exist."""
    if given := os.environ.get(VARIABLE):
        return Path(given)
    return Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "evolve" / "models"


def file_of(ident: str) -> Path:
    """The file of a model; every id has a different one."""
    return folder() / f"{quote(ident, safe='')}.json"


def own_names() -> list[str]:
    """The ids of the user's own models, also of those whose file is damaged."""
    return list(_files(folder()))


def own_models() -> Mapping[str, Mapping[str, Any]]:
    """The user's own models by id. Raises InputError, naming the file, if one cannot be read."""
    return _read(folder())


def forget() -> None:
    """Read the folder again when the models are next asked for."""
    _read.cache_clear()


def _files(home: Path) -> dict[str, Path]:
    return {unquote(path.stem): path for path in sorted(home.glob("*.json"))}


@cache
def _read(home: Path) -> Mapping[str, Mapping[str, Any]]:
    return {ident: _entry(path) for ident, path in _files(home).items()}


def _entry(path: Path) -> Mapping[str, Any]:
    try:
        raw = read_json(path, REMEDY)
    except OSError as e:
        raise unreadable(path, e, REMEDY) from None
    if not isinstance(raw, dict):
        raise InputError(f"{path}: is not a model: {REMEDY}")
    top = Section(str(path), "", raw)
    top.only(ENTRY)
    config = top.section("config", REMEDY).raw
    if top.text("id", REMEDY) != unquote(path.stem):
        raise top.error("id", "is not that of the file's name", REMEDY)
    entry = {"id": raw["id"], "aliases": (), "config": config}
    if top.has("generation_config"):
        entry["generation_config"] = top.section("generation_config", REMEDY).raw
    return entry
