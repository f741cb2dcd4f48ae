"""The deployments that are baked into the Go, and the checks of their facts and curves."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from simulator.common.errors import InputError
from simulator.kernels.curves import Deployed
from simulator.kernels.roofline import Gpu
from simulator.kernels.sampler import Sampling
from simulator.model.architecture import Architecture
from simulator.schema import READABLE
from simulator.serving.facts import Facts, curve_of
from translate_go.generic.known import HostConfig, host_name
from translate_go.naming import BackendName
from translate_go.spelling import words

# facts that may be 0, because a model or an engine need not have that part
MAY_BE_ZERO = words(
    "dense_layers moe_layers ffn moe_ffn experts active_experts tp_log2 is_moe is_fp8 sampling_sort "
    "repetition_penalty kv_cpu_offload experts_us allreduce_us_per_token host_allreduce_us_per_token "
    "host_interleaved_moe_layers"
)
COUNTS = words(
    "layers hidden heads kv_heads kv_heads_per_gpu head_dim vocab tp kv_blocks max_num_seqs max_num_batched_tokens "
    "max_model_len block_size"
)
# settings of the engine: the host has them as flags, and its backends are not told
SETTINGS = words("max_num_seqs kv_blocks max_num_batched_tokens block_size max_model_len")
FEW = 8  # deployments that get a constructor each
FACTS = tuple(name for scope, name in READABLE if scope == "s" and name != "reference_step_us")

# Mixtral 8x7B on two H100, rounded: the deployment of recorded vectors if none is given
_EXAMPLE = {
    "layers": 32, "dense_layers": 0, "moe_layers": 32, "hidden": 4096, "heads": 32, "kv_heads": 8,
    "kv_heads_per_gpu": 4, "head_dim": 128, "ffn": 14336, "moe_ffn": 14336, "vocab": 32000, "experts": 8,
    "active_experts": 2, "tp": 2, "tp_log2": 1, "is_moe": 1, "is_fp8": 0, "sampling_sort": 0,
    "repetition_penalty": 0, "kv_blocks": 20000, "kv_cpu_offload": 1, "model_params_b": 46.7,
    "active_params_b": 12.88, "max_num_seqs": 128, "max_num_batched_tokens": 2048, "max_model_len": 32768,
    "block_size": 16, "flops_per_us": 989.5e6, "bytes_per_us": 3.35e6, "link_bytes_per_us": 450e3,
    "kv_bytes_per_token": 65536, "shared_weights_us": 439.9, "experts_us": 13461.8, "weights_us": 13901.7,
    "kv_us_per_token": 0.01956, "gemm_us_per_token": 12.75, "attention_us_per_pair": 0.000265,
    "logits_us_per_row": 0.2089, "allreduce_us_per_token": 1.165, "host_gemm_us_per_token": 12.75,
    "host_attention_us_per_pair": 0.000265, "host_kv_us_per_token": 0.01956, "host_weights_us": 13862.6,
    "host_allreduce_us_per_token": 0.1565, "host_interleaved_moe_layers": 0,
}  # fmt: skip
_EXAMPLE_KERNELS = Deployed(
    Architecture(
        layers=32, moe_layers=32, hidden=4096, heads=32, kv_heads=8, head_dim=128, ffn=14336, moe_ffn=14336,
        shared_ffn=0, vocab=32000, experts=8, active=2, mla_width=0, longest=32768, tied=False, weight_bits=16,
        attention_bits=16, is_fp8=False, kv_bytes=2,
    ),
    Gpu("h100_sxm", bf16_flops=989.5e6, fp8_flops=1979e6, bytes=3.35e6, link_bytes=450e3),
    tp=2, sampling=Sampling(),
)  # fmt: skip
EXAMPLE = Facts({name: float(value) for name, value in _EXAMPLE.items()}, _EXAMPLE_KERNELS)


@dataclass(frozen=True)
class Deployment:
    """A model on its GPUs."""

    name: str
    facts: Mapping[str, float]  # s. fields by name; simulator.serving.facts.Facts if curves are read
    model: str = ""  # label of the coefficients
    hardware: str = ""  # label of the coefficients
    engine_version: str = ""  # label of the coefficients: 0.15.1; "" = not known
    long_prefill_token_threshold: int = 0  # of the engine, tokens; 0 = none
    config: HostConfig | None = None  # what the host knows of it, for a backend that is generic over deployments
    model_names: tuple[str, ...] = ()  # other names of the model
    gpu_names: tuple[str, ...] = ()  # other names of the GPU

    @property
    def tp(self) -> int:
        """The number of GPUs."""
        return int(self.facts["tp"])

    @property
    def place(self) -> str:
        """The model on its GPUs as MODEL/GPU/tpN, whatever the deployment's own name is."""
        return f"{self.model}/{self.hardware}/tp{self.tp}"

    @property
    def host_gpu(self) -> str:
        """The GPU as the host's command line has it."""
        return host_name((self.hardware, *self.gpu_names))

    @property
    def words(self) -> list[str]:
        """The parts of the name that are letters and digits: `llama-2-7b` -> llama, 2, 7b."""
        return "".join(c if c.isascii() and c.isalnum() else " " for c in self.name).split() or ["deployment"]

    @property
    def go_name(self) -> str:
        """The name as part of the constructor's: `llama-2-7b` -> `Llama_2_7b` in `NewFittedForLlama_2_7b`."""
        name = "".join(p[0].upper() + p[1:] if not p[0].isdigit() else f"_{p}" for p in self.words)
        return name.lstrip("_") or "Deployment"


def least(name: str) -> float:
    """The smallest value that a fact may have: the least positive float64 if it only has to be positive."""
    if name in MAY_BE_ZERO:
        return 0.0
    return 1.0 if name in COUNTS else math.ulp(0.0)


def by_name(deployments: Sequence[Deployment]) -> bool:
    """Whether the Go has a table of the deployments by name, because they are too many for a constructor each."""
    return len(deployments) > FEW


def checks_names(deployments: Sequence[Deployment]) -> bool:
    """Whether the factory compares the host's names of model and GPU with those of the deployments: of a table, or of
    the only one if it says which it is for."""
    return by_name(deployments) or (len(deployments) == 1 and bool(deployments[0].model and deployments[0].hardware))


def check_deployments(
    deployments: Sequence[Deployment], facts: Sequence[str], curves: Sequence[str], name: BackendName
) -> None:
    """Raise InputError for a fact or curve that is missing or impossible, and for two deployments with one name."""
    named: dict[str, Deployment] = {}
    for deployment in deployments:
        _check_facts(deployment, facts)
        _check_curves(deployment, curves)
        other = named.setdefault(deployment.go_name, deployment)
        if other is not deployment:
            raise InputError(
                f"deployments {other.name} and {deployment.name}: both constructors would be called "
                f"New{name.exported}For{deployment.go_name}: name each deployment once"
            )


def _check_facts(deployment: Deployment, used: Sequence[str]) -> None:
    where = f"deployment {deployment.name}"
    for name in used:
        value = deployment.facts.get(name)
        if value is None:
            raise InputError(f"{where}: no fact {name}, which the program reads: give it")
        if not (math.isfinite(value) and value >= least(name)):
            bound = {0.0: "at least 0", 1.0: "at least 1"}.get(least(name), "positive")
            raise InputError(f"{where}: {name} must be finite and {bound}, got {value:g}: correct it")


def _check_curves(deployment: Deployment, used: Sequence[str]) -> None:
    where = f"deployment {deployment.name}"
    for name in used:
        knots = curve_of(deployment.facts, name)
        if not (np.isfinite(knots) & (knots >= 0.0)).all():
            raise InputError(f"{where}: the curve {name} must be finite and at least 0: correct the GPU's tables")
