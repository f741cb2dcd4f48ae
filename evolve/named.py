"""Models and GPUs by the names that a user gives: an id or alias of the shipped tables, or a model's config.json."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from evaluator.experiments import hardware_table, model_table
from simulator.errors import InputError, nearest


def known_model(name: str, label: str) -> dict[str, Any]:
    """The config.json terms of a shipped model; `label` names the argument in an error message.

    Raises InputError for an unknown name.
    """
    models = model_table()
    if name not in models:
        raise InputError(f"{label}: is not a known model: {nearest(name, sorted(models))}")
    entry = models[name]
    return {
        **entry["config"],
        "generation_config": entry.get("generation_config") or {},
        "_name_or_path": entry["id"],
    }


def known_gpu(name: str, said: str) -> Mapping[str, Any]:
    """A GPU's entry in the shipped table; `said` is what an error message calls the argument.

    Raises InputError for an unknown name.
    """
    gpus = hardware_table()
    if name not in gpus:
        raise InputError(f"{said}: is not a known GPU: {nearest(name, sorted(gpus))}")
    return gpus[name]


def model_config(name: str) -> dict[str, Any]:
    """The config.json terms of a shipped model, or of a config.json file or the folder that holds one.

    Raises InputError for an unknown name and for a file that is not a JSON object.
    """
    if name in model_table():
        return known_model(name, f"MODEL {name}")
    path = Path(name)
    if path.is_dir():
        path = path / "config.json"
    elif not path.exists() and path.suffix != ".json":
        hint = nearest(name, sorted(model_table()))
        raise InputError(f"MODEL {name}: is neither a known model nor a config.json: {hint}")
    try:
        found = json.loads(path.read_bytes())
    except OSError as error:
        why = error.strerror or type(error).__name__
        raise InputError(f"{path}: cannot be read ({why}): give a model's config.json") from None
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: is not JSON ({error}): give a model's config.json") from None
    if not isinstance(found, dict):
        raise InputError(f"{path}: is not a JSON object: give a model's config.json")
    return found
