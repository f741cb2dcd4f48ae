"""The user's options: the GPU's name, engine settings, and the config.json of unknown models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from evolve.ingest.read.values import plain, read_json
from simulator.common.errors import OWN_GPU, InputError, Section, nearest, nearest_listed
from simulator.common.json import JsonObject
from simulator.model.architecture import architecture
from simulator.model.config_keys import VERDICTS, KeyVerdict
from simulator.serving.engine import SETTINGS, TYPES, Setting
from simulator.serving.gpu import hardware_table
from simulator.serving.known import read_config
from simulator.serving.spec import OTHER_SETTINGS, engine_of
from simulator.serving.speculation import CONFIG, unfolded

Terms = Mapping[str, Any]
"""The terms of a model's config.json."""

GENERATION = "generation_config.json"
_SAMPLING = ("top_p", "top_k", "repetition_penalty")
_WHOLE = ("quantization_config", "rope_scaling", "rope_parameters")


@dataclass(frozen=True, slots=True)
class Given:
    """The GPU's name, engine settings (see `parse_overrides`), and terms by model (see `parse_models`)."""

    hardware: str | None = None
    engine: Mapping[str, Setting] = field(default_factory=dict)
    models: Mapping[str, Terms] = field(default_factory=dict)


def check_hardware(name: str | None) -> None:
    """Raises InputError for a GPU that is not in the hardware table."""
    if name is not None and name not in hardware_table():
        hint = nearest_listed(name, tuple(hardware_table()), OWN_GPU)
        raise InputError(f"--hardware {plain(name)}: is not in the hardware table: {hint}")


def parse_overrides(pairs: Sequence[str]) -> dict[str, Setting]:
    """`KEY=VALUE` texts of --engine as checked settings; of vLLM's speculative_config, those that it stands for. Raises
    InputError for an unknown key or a wrong value."""
    given: dict[str, Setting] = {}
    for pair in pairs:
        key, equals, value = (part.strip() for part in pair.partition("="))
        if not equals or not key:
            raise InputError(f"--engine {plain(pair)}: is not KEY=VALUE: write it like --engine max_num_seqs=64")
        if key == CONFIG:
            given |= unfolded(Section("--engine", "", {CONFIG: value})).raw
            continue
        if key not in SETTINGS:
            hint = OTHER_SETTINGS.get(key) or nearest(key, SETTINGS)
            raise InputError(f"--engine {plain(key)}: is not an engine setting: {hint}")
        if key in given:
            raise InputError(f"--engine {plain(key)}: is given twice: give it once")
        given[key] = value if TYPES[key] is str else _scalar(value)
    engine_of(Section("--engine", "", given))
    return given


def _scalar(text: str) -> Setting:
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def parse_models(pairs: Sequence[str]) -> dict[str, Terms]:
    """`NAME=FILE` texts of --model-config as terms by model, where FILE is the model's config.json.

    The sampling parameters of the generation_config.json next to it are included, because the engine applies them.
    Raises InputError for a file that cannot be read or is not a config.json that the simulator understands.
    """
    given: dict[str, Terms] = {}
    for pair in pairs:
        name, equals, file = (part.strip() for part in pair.partition("="))
        where = f"--model-config {plain(file)}"
        if not equals or not name or not file:
            raise InputError(f"--model-config {plain(pair)}: is not MODEL=FILE: give a model's id and config.json")
        config = _terms(read_config(Path(file)))
        generation = Path(file).with_name(GENERATION)
        if generation.is_file():
            sampling = read_json(generation, f"--model-config {plain(str(generation))}")
            if isinstance(sampling, Mapping):
                config["generation_config"] = {k: sampling[k] for k in _SAMPLING if sampling.get(k) is not None}
        architecture(config, where)
        given[name] = config
    return given


def _terms(raw: Terms) -> JsonObject:
    """The terms that may change cost: keys that are judged so, and numbers of unknown ones. Others may be paths."""
    kept: JsonObject = {}
    for key, value in raw.items():
        verdict = VERDICTS.get(key)
        if value is None or verdict is KeyVerdict.FREE:
            continue
        if isinstance(value, Mapping) and key not in _WHOLE:
            value = _terms(value)
        if verdict is not None or isinstance(value, int | float):
            kept[key] = value
    return kept
