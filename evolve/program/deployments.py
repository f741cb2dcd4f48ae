"""The deployments that Go is emitted for: those of experiments, those named by model and GPU, and all of the host."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from evaluator.deployments import KnownDeployment, known_model, measured_deployments, named_deployment
from evaluator.experiments import hardware_table, known_models, model_table
from evaluator.own_models import own_models
from simulator.errors import InputError
from simulator.experiment.deployment import sampling_of
from simulator.experiment.experiment import Experiment
from translate_go import Deployment
from translate_go.generic.known import Host, KnownGpu, KnownModel, host_config

HUGGING_FACE = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+", re.ASCII)  # a name there: ORGANISATION/MODEL


def of_experiment(experiment: Experiment) -> Deployment:
    """The deployment of an experiment."""
    engine = experiment.engine
    return Deployment(
        experiment.id, experiment.facts, experiment.model, experiment.hardware,
        engine.version or "", engine.long_prefill_token_threshold,
        model_names=model_names(experiment.model),
        gpu_names=_names(hardware_table(), experiment.hardware),
    )  # fmt: skip


def of_names(model: str, hardware: str, tp: int, option: str = "") -> Deployment:
    """A known model on a known GPU with the engine's defaults. Raises InputError for an unknown name."""
    return of_known(named_deployment(model, hardware, tp, option))


def of_known(known: KnownDeployment) -> Deployment:
    """A known deployment with every name of its model and GPU."""
    models, gpus = model_names(known.model), _names(hardware_table(), known.hardware)
    return Deployment(known.name, known.facts, known.model, known.hardware, model_names=models, gpu_names=gpus)


def of_text(text: str) -> Deployment:
    """The deployment that `MODEL,HARDWARE` or `MODEL,HARDWARE,TP` names. Raises InputError for anything else."""
    parts = [part.strip() for part in text.split(",")]
    tp = parts[2] if len(parts) == 3 else "1"
    if len(parts) not in (2, 3) or not all(parts) or not (tp.isascii() and tp.isdigit() and int(tp) > 0):
        raise InputError(f"--deployment {text}: is not MODEL,HARDWARE[,TP]: for example llama-2-7b,H100-SXM-80GB,1")
    return of_names(parts[0], parts[1], int(tp), f"--deployment {text}")


def model_names(model: str) -> tuple[str, ...]:
    """The other names of a known model: its aliases.

    Of one of the user's own, the Hugging Face name that its config.json has, unless another model is known by it.
    """
    models = known_models()
    if model not in own_models():
        return _names(models, model)
    published = models[model]["config"].get("_name_or_path")
    if not isinstance(published, str) or not HUGGING_FACE.fullmatch(published) or published in models:
        return ()
    return (published,)


def _names(table: Mapping[str, Mapping[str, Any]], name: str) -> tuple[str, ...]:
    """The other names of a model or a GPU, if the table has it."""
    return tuple(table[name]["aliases"]) if name in table else ()


def known_host() -> Host:
    """The shipped GPUs and models by all their names."""
    gpus = {str(entry["name"]): entry for entry in hardware_table().values()}
    models = {str(entry["id"]): entry for entry in model_table().values()}
    return Host(
        tuple(
            KnownGpu((name, *gpu.get("aliases", ())), float(gpu["link_gb_per_s"]), gpu.get("kernels") or "")
            for name, gpu in gpus.items()
        ),
        tuple(
            KnownModel((name, *model.get("aliases", ())), sampling_of(known_model(name, name), name))
            for name, model in models.items()
        ),
    )


def host_deployments() -> list[Deployment]:
    """Every shipped model on one to eight of every GPU with measured kernels, with what the host knows of it, by the
    host's names."""
    deployments = []
    for deployment in map(of_known, measured_deployments()):
        model, gpu, tp = deployment.model, deployment.host_gpu, deployment.tp
        config = host_config(known_model(model, model), hardware_table()[deployment.hardware], model, gpu, tp)
        deployments.append(replace(deployment, name=f"{model}/{gpu}/tp{tp}", config=config))
    return deployments
