"""Models: the terms of a config.json that a deployment needs, and the models that are known by name.

The user's own models are a folder with a JSON file for each, in the terms of configs/models.yaml, which `evolve model
add` writes (evolve.inspect.models). They are known wherever a deployment is named, but take no part in results that
must be the same on every machine: gates, baselines, and deployments baked in unasked.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

from simulator.common.documents import read_json, shipped
from simulator.common.errors import OWN_MODEL, InputError, Section, nearest_listed, shown, unreadable
from simulator.common.home import home
from simulator.common.json import JsonObject
from simulator.model.architecture import Architecture, Sampling, architecture
from simulator.model.omissions import Omission, omissions
from simulator.serving.limits import MOST_GIB

ModelTable = Mapping[str, Mapping[str, Any]]
"""Entries of configs/models.yaml by id and by every alias."""

EXTRA_WEIGHTS = "extra_weights_gib"  # no term of config.json, but a fact of the model's checkpoint
GENERATION = "generation_config"
VARIABLE = "EVOLVE_MODELS"  # of the environment: the folder of the user's own models, if not ~/.config/evolve/models
REMEDY = "add the model again with `evolve model add --replace`, or remove the file"


@dataclass(frozen=True)
class Model:
    """A model in the terms of its config.json.

    name: the Hugging Face id of a known model, else the user's name. config: all terms, with `generation_config` where
    it is known. sampling: what generation_config asks of the engine. extra_weights_gib: memory of weights that the
    formulas leave out. omitted: what no field counts. given: the user's own `model_config`, None without one. called:
    the name or alias as the user wrote it.
    """

    name: str
    config: Mapping[str, Any]
    architecture: Architecture
    sampling: Sampling
    extra_weights_gib: float
    omitted: tuple[Omission, ...]
    given: Mapping[str, Any] | None = None
    called: str = field(default="", compare=False)

    @classmethod
    def of(
        cls,
        config: Mapping[str, Any],
        where: str,
        name: str = "",
        given: Mapping[str, Any] | None = None,
        called: str = "",
    ) -> Model:
        """The model of a config.json. Raises InputError, which begins with `where`, for one that is not modelled."""
        c = Section(where, "model_config", config)
        own = architecture(config, where)
        extra = 0.0
        if c.has(EXTRA_WEIGHTS):
            extra = c.number(EXTRA_WEIGHTS, "give GiB, or leave it out", least=0.0, most=MOST_GIB)
        omitted = omissions(config, own, where)
        return cls(name or called, config, own, sampling_of(config, where), extra, omitted, given, called or name)

    @property
    def sampling_known(self) -> bool:
        """True if it is known what generation_config says."""
        return GENERATION in self.config


@cache
def model_table() -> dict[str, Mapping[str, Any]]:
    """Entries of configs/models.yaml under their Hugging Face id and every alias."""
    entries = shipped("models.yaml")["models"]
    return {name: entry for entry in entries for name in (entry["id"], *entry["aliases"])}


def known_models() -> ModelTable:
    """The shipped models under their names, and the user's own. Raises InputError if a file of these is damaged."""
    return {**model_table(), **own_models()}


def known_model(name: str, label: str) -> JsonObject:
    """The config.json terms of a known model; `label` names the argument in an error message.

    Raises InputError for an unknown name.
    """
    models = known_models()
    if name not in models:
        raise InputError(f"{label}: is not a known model: {nearest_listed(name, sorted(models), OWN_MODEL)}")
    config = known_config(models[name])
    named = {"_name_or_path": config.get("_name_or_path") or models[name]["id"]}
    return config | {GENERATION: config.get(GENERATION) or {}} | named


def read_model(top: Section, models: ModelTable | None = None) -> Model:
    """The keys `model` and `model_config` of an experiment. `models` are known by name, by default `known_models`."""
    models = known_models() if models is None else models
    called = top.name("model", "give a Hugging Face id or an alias of the model table")
    entry = models.get(called)
    name = str(entry["id"]) if entry else called
    given = None
    if top.has("model_config"):
        given = dict(top.section("model_config", "give the terms of the model's config.json").raw)
        config = _completed(given, entry)
    elif entry:
        config = known_config(entry)
    else:
        own = "give model_config in config.json terms, or keep the model with `evolve model add`"
        raise top.error("model", f"{shown(called)} is not in the model table", nearest_listed(called, (*models,), own))
    config["_name_or_path"] = config.get("_name_or_path") or name
    return Model.of(config, top.where, name, given, called)


def known_config(entry: Mapping[str, Any]) -> JsonObject:
    """The terms of a model of a table, with its generation_config if that is known."""
    config = dict(entry["config"])
    if GENERATION in entry:
        config[GENERATION] = entry[GENERATION]
    return config


def _completed(given: Mapping[str, Any], entry: Mapping[str, Any] | None) -> JsonObject:
    """The user's terms, completed by what is known of the model: all of it if only generation_config is given, else
    what is no term of config.json."""
    if entry is None:
        return dict(given)
    known = known_config(entry)
    if given.keys() != {GENERATION}:
        known = {key: known[key] for key in (GENERATION, EXTRA_WEIGHTS) if key in known}
    return {**known, **given}


def sampling_of(config: Mapping[str, Any], where: str) -> Sampling:
    """The sampling that generation_config asks of the engine by default."""
    c = Section(where, "model_config", config)
    if not c.has(GENERATION):
        return Sampling()
    g = c.section(GENERATION, "give a mapping, {} for none")

    def setting(key: str, default: float) -> float:
        return g.number(key, "copy it from the model's generation_config.json") if g.has(key) else default

    sorts = setting("top_p", 1.0) < 1 or setting("top_k", 0.0) > 0
    return Sampling(sorts, setting("repetition_penalty", 1.0) != 1)


def folder() -> Path:
    """The folder of the user's own models, which need not exist."""
    if given := os.environ.get(VARIABLE):
        return Path(given)
    return Path(os.environ.get("XDG_CONFIG_HOME") or home() / ".config") / "evolve" / "models"


def file_of(ident: str) -> Path:
    """The file of a model; every id has a different one."""
    return folder() / f"{quote(ident, safe='')}.json"


def own_names() -> list[str]:
    """The ids of the user's own models, also of those whose file is damaged."""
    return list(_files(folder()))


def own_models() -> Mapping[str, Mapping[str, Any]]:
    """The user's own models by id. Raises InputError, naming the file, if one cannot be read."""
    return _read(folder())


def reread() -> None:
    """Read the folder again when the models are next asked for."""
    _read.cache_clear()


def _files(folder: Path) -> dict[str, Path]:
    return {unquote(path.stem): path for path in sorted(folder.glob("*.json"))}


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
    top.only(("id", "config", GENERATION))
    config = top.section("config", REMEDY).raw
    if top.text("id", REMEDY) != unquote(path.stem):
        raise top.error("id", "is not that of the file's name", REMEDY)
    entry = {"id": raw["id"], "aliases": (), "config": config}
    if top.has(GENERATION):
        entry[GENERATION] = top.section(GENERATION, REMEDY).raw
    return entry
