"""Models and deployments by name, from the shipped tables or a model's config.json."""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import product
from pathlib import Path

from simulator.common.documents import read_json
from simulator.common.errors import OWN_MODEL, InputError, nearest_listed, unreadable
from simulator.common.json import JsonObject
from simulator.model.quantization import is_quantized, with_quant_file
from simulator.serving.deployment import deployment_facts
from simulator.serving.engine import Engine
from simulator.serving.facts import Facts
from simulator.serving.gpu import known_gpu, measured_gpus
from simulator.serving.model import Model, known_model, known_models, model_table, own_models

HUGGING_FACE = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+", re.ASCII)  # a name there: ORGANISATION/MODEL
QUANTIZATION = "hf_quant_config.json"  # of NVIDIA's checkpoints, beside config.json
GPU = "H100-SXM-80GB"  # the GPU of the shipped runs
TPS = (1, 2, 4)
MEASURED_TPS = (1, 2, 4, 8)


@dataclass(frozen=True, slots=True)
class KnownDeployment:
    """A known model on known GPUs with the engine's defaults; `facts` are its s. fields."""

    name: str
    facts: Facts
    model: str
    hardware: str


def model_config(name: str) -> JsonObject:
    """The config.json terms of a known model, or of a config.json file or a folder with one.

    Raises InputError for an unknown name and for a file that is not a JSON object.
    """
    if name in known_models():
        return known_model(name, name)
    path = Path(name)
    if path.is_dir():
        path = path / "config.json"
    elif not path.exists() and path.suffix != ".json":
        hint = nearest_listed(name, sorted(known_models()), OWN_MODEL)
        raise InputError(f"MODEL {name}: is neither a known model nor a config.json: {hint}")
    return read_config(path)


def read_config(path: Path) -> JsonObject:
    """The config.json terms in a file, with the quantization of the hf_quant_config.json beside it.

    Raises InputError for a file that is not a JSON object, and for a hf_quant_config.json without a quantization.
    """
    config = _read_object(path, "give a model's config.json")
    beside = path.with_name(QUANTIZATION)
    if is_quantized(config) or not beside.exists():
        return config
    quantization = _read_object(beside, "copy that of the checkpoint")
    if not isinstance(quantization.get("quantization"), dict):
        raise InputError(f"cannot read {beside}: it has no mapping `quantization`: copy that of the checkpoint")
    return with_quant_file(config, quantization)


def _read_object(path: Path, remedy: str) -> JsonObject:
    try:
        value = read_json(path, remedy, foreign=True)
    except OSError as error:
        raise unreadable(path, error, remedy) from None
    if not isinstance(value, dict):
        raise InputError(f"{path}: is not a JSON object: {remedy}")
    return value


def facts_of(model: str, hardware: str, engine: Engine, option: str = "") -> Facts:
    """The deployment fields of a known model on a known GPU.

    Raises InputError for an unknown name. `option`: the option that the user gave, if not --model, --hardware and --tp.
    """
    return _deployed(model, hardware, engine, option).facts


def named_deployment(model: str, hardware: str, tp: int, option: str = "") -> KnownDeployment:
    """A known model on `tp` known GPUs with the engine's defaults. Raises InputError like `facts_of`."""
    return _deployed(model, hardware, Engine(tensor_parallel=tp), option)


def _deployed(model: str, hardware: str, engine: Engine, option: str) -> KnownDeployment:
    where = option or f"--model {model} --hardware {hardware} --tp {engine.tensor_parallel}"
    config = known_model(model, f"{option}: {model}" if option else f"--model {model}")
    gpu = known_gpu(hardware, f"{option}: {hardware}" if option else f"--hardware {hardware}")
    known = Model.of(config, where, str(known_models()[model]["id"]))
    facts = deployment_facts(known, gpu, engine, where)
    return KnownDeployment(f"{model}/{gpu.name}/tp{engine.tensor_parallel}", facts, known.name, gpu.name)


def measured_deployments() -> list[KnownDeployment]:
    """Every shipped model on one to eight of every GPU with measured kernels, if its weights fit."""
    deployments = []
    for model, gpu, tp in product(known_model_names(), measured_gpus(), MEASURED_TPS):
        with suppress(InputError):  # the weights do not fit, or the heads cannot be split evenly
            deployments.append(named_deployment(model, gpu.name, tp))
    return deployments


def kernel_deployments() -> dict[str, Mapping[str, float]]:
    """The fields of all `measured_deployments` by name."""
    return {deployment.name: deployment.facts for deployment in measured_deployments()}


def datasheet_deployments() -> dict[str, Mapping[str, float]]:
    """The fields of every shipped model on one, two and four of the shipped runs' GPU, if its weights fit."""
    deployments: dict[str, Mapping[str, float]] = {}
    for model, tp in product(known_model_names(), TPS):
        with suppress(InputError):  # the weights do not fit, or the heads cannot be split evenly
            deployments[f"{model} tp{tp}"] = facts_of(model, GPU, Engine(tensor_parallel=tp))
    return deployments


def known_model_names() -> list[str]:
    """The ids of the shipped models."""
    return list(dict.fromkeys(str(entry["id"]) for entry in model_table().values()))


def model_names(model: str) -> tuple[str, ...]:
    """The other names of a known model: its aliases.

    A model of the user's own has the Hugging Face name of its config.json, unless another model is known by it.
    """
    models = known_models()
    if model not in own_models():
        return tuple(models[model]["aliases"]) if model in models else ()
    published = models[model]["config"].get("_name_or_path")
    if not isinstance(published, str) or not HUGGING_FACE.fullmatch(published) or published in models:
        return ()
    return (published,)
