"""The deployments that Go is emitted for: those of experiments, those named by model and GPU, and all of the host."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from simulator.common.errors import InputError, shown
from simulator.model.architecture import Architecture, architecture
from simulator.model.formats import BF16, FP8, IN_16, Formats
from simulator.serving.defaults import is_blackwell, issue_us
from simulator.serving.engine import Engine
from simulator.serving.experiment import Experiment
from simulator.serving.gpu import gpu_named, gpu_names, hardware_table
from simulator.serving.known import KnownDeployment, measured_deployments, model_names, named_deployment
from simulator.serving.model import Model, known_model, model_table, sampling_of
from translate_go import Deployment
from translate_go.generic.known import Host, KnownGpu, KnownModel, host_config
from translate_go.kernel_host.rank import Source


def of_experiment(experiment: Experiment) -> Deployment:
    """An experiment's deployment. Raises InputError for separate pools, of which the host asks each."""
    e, engine = experiment, experiment.engine
    if e.pools:
        problem = "cannot bake in two pools: the host has a latency model for each"
        raise InputError(f"experiment {e.id!r}: {problem}. Give each pool's engine as an experiment of its own")
    version, threshold = engine.version or "", engine.long_prefill_token_threshold
    names = model_names(e.model), gpu_names(e.hardware)
    made = Source(e.spec.model, e.spec.gpu, engine) if e.spec else None
    labels = e.model, e.hardware, version, threshold
    return Deployment(e.id, e.facts, *labels, model_names=names[0], gpu_names=names[1], source=made)


def of_names(model: str, hardware: str, tp: int, option: str = "") -> Deployment:
    """A known model on a known GPU with the engine's defaults. Raises InputError for an unknown name."""
    known = of_known(named_deployment(model, hardware, tp, option))
    made = Model.of(known_model(model, model), known.name, known.model, called=model)
    return replace(known, source=Source(made, gpu_named(known.hardware), Engine(tensor_parallel=tp)))


def of_known(known: KnownDeployment) -> Deployment:
    """A known deployment with every name of its model and GPU."""
    models, gpus = model_names(known.model), gpu_names(known.hardware)
    return Deployment(known.name, known.facts, known.model, known.hardware, model_names=models, gpu_names=gpus)


def of_text(text: str) -> Deployment:
    """The deployment that `MODEL,HARDWARE` or `MODEL,HARDWARE,TP` names. Raises InputError for anything else."""
    parts = [part.strip() for part in text.split(",")]
    tp = parts[2] if len(parts) == 3 else "1"
    if len(parts) not in (2, 3) or not all(parts) or not (tp.isascii() and tp.isdigit() and int(tp) > 0):
        raise InputError(f"--deployment {text}: is not MODEL,HARDWARE[,TP]: for example llama-2-7b,H100-SXM-80GB,1")
    return of_names(parts[0], parts[1], int(tp), f"--deployment {text}")


def gpus_of(names: Sequence[str]) -> tuple[str, ...]:
    """The GPUs of these names, by the names of the hardware table. Raises InputError for one without tables."""
    named = []
    for name in names:
        gpu = hardware_table().get(name)
        if gpu is None or not gpu.get("kernels"):
            measured = (str(entry["name"]) for entry in hardware_table().values() if entry.get("kernels"))
            there = ", ".join(dict.fromkeys(measured))
            raise InputError(f"--gpus {shown(name)}: no measured kernels of this GPU. Choose among {there}.")
        named.append(str(gpu["name"]))
    return tuple(dict.fromkeys(named))


def known_host(measured: Sequence[str]) -> Host:
    """The shipped GPUs and models by all their names, with the kernels of the `measured` GPUs."""
    gpus, models = [], []
    for gpu in {str(entry["name"]): entry for entry in hardware_table().values()}.values():
        names = str(gpu["name"]), *gpu.get("aliases", ())
        gpus.append(
            KnownGpu(
                names,
                float(gpu["link_gb_per_s"]),
                issue_us(gpu_named(names[0])),
                is_blackwell(gpu_named(names[0])),
                (gpu.get("kernels") or "") if names[0] in measured else "",
            )
        )
    for model in {str(entry["id"]): entry for entry in model_table().values()}.values():
        name = str(model["id"])
        config = known_model(name, name)
        a, names = architecture(config, name), (name, *model.get("aliases", ()))
        windowed = [group for group in a.attention if group.window]
        window, layers = max((g.window for g in windowed), default=0), sum(g.layers for g in windowed)
        models.append(KnownModel(names, sampling_of(config, name), window, layers, told(a)))
    return Host(tuple(gpus), tuple(models))


def told(a: Architecture) -> bool:
    """True if the host's configuration says all that a model's kernels depend on.

    It says nothing of recurrent layers, norms across heads, scales of blocks, and other types than fp8. Attention in 16
    bits beside fp8 is taken for Llama 4's.
    """
    plain = not a.is_latent and not a.recurrent and not a.expert_hidden
    in_fp8 = Formats.all(FP8)
    formats = (IN_16, in_fp8, replace(in_fp8, attention=BF16))
    return plain and not any(group.normed for group in a.attention) and a.formats in formats


def host_deployments(measured: Sequence[str]) -> list[Deployment]:
    """Every shipped model that the host tells on one to eight of each of these GPUs, by its names."""
    deployments = []
    for deployment in map(of_known, measured_deployments()):
        if deployment.hardware not in measured:
            continue
        model, gpu, tp = deployment.model, deployment.host_gpu, deployment.tp
        terms = known_model(model, model)
        if not told(architecture(terms, model)):
            continue
        config = host_config(terms, hardware_table()[deployment.hardware], model, gpu, tp)
        deployments.append(replace(deployment, name=f"{model}/{gpu}/tp{tp}", config=config))
    return deployments
