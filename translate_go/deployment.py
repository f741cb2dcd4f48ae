"""The deployments that are baked into the Go, and the checks of their facts and curves."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from simulator.common.errors import InputError
from simulator.kernels.curves import Deployed
from simulator.kernels.roofline import KernelGpu
from simulator.model.architecture import Architecture, Sampling
from simulator.model.layers import Attention
from simulator.schema import READABLE, marked
from simulator.serving.facts import Facts, curve_of
from translate_go.generic.known import HostConfig, host_name
from translate_go.kernel_host.rank import Source
from translate_go.naming import BackendName

# settings of the engine: the host has them as flags, and its backends are not told
SETTINGS = frozenset(f.name for f in marked("setting"))
FEW = 8  # deployments that get a constructor each
FACTS = tuple(name for scope, name in READABLE if scope == "s" and name != "reference_step_us")

# Mixtral 8x7B on two H100: the deployment of recorded vectors if none is given
_FACTS = {name: READABLE["s", name].example for name in FACTS}
_MODEL = Architecture(
    layers=32,
    hidden=4096,
    vocab=32000,
    tied=False,
    longest=32768,
    attention=(Attention(layers=32, heads=32, kv_heads=8, head_dim=128, value_dim=128),),
    dense_layers=0,
    ffn=14336,
    moe_layers=32,
    experts=8,
    active=2,
    moe_ffn=14336,
)
_GPU = KernelGpu("h100_sxm", bf16_flops=989.5e6, fp8_flops=1979e6, bytes=3.35e6, link_bytes=450e3)
EXAMPLE = Facts(_FACTS, Deployed(_MODEL, _GPU, tp=2, sampling=Sampling()))


@dataclass(frozen=True)
class Deployment:
    """A model on its GPUs.

    facts: s. fields by name; simulator.serving.facts.Facts if curves are read. model, hardware, engine_version: labels
    of the coefficients, "" where not known. long_prefill_token_threshold: of the engine, tokens; 0 = none. config: what
    the host knows of it, for a backend that computes facts itself. model_names, gpu_names: other names. source: what it
    is made of, for a host that asks for its memory.
    """

    name: str
    facts: Mapping[str, float]
    model: str = ""
    hardware: str = ""
    engine_version: str = ""
    long_prefill_token_threshold: int = 0
    config: HostConfig | None = None
    model_names: tuple[str, ...] = ()
    gpu_names: tuple[str, ...] = ()
    source: Source | None = None

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
    return READABLE["s", name].least


def check_deployments(
    deployments: Sequence[Deployment], facts: Sequence[str], curves: Sequence[str], name: BackendName
) -> None:
    """Raise InputError for a fact or curve that is missing or impossible, and for two deployments with one name."""
    named: dict[str, Deployment] = {}
    for deployment in deployments:
        _check(deployment, facts, curves)
        other = named.setdefault(deployment.go_name, deployment)
        if other is not deployment:
            raise InputError(
                f"cannot emit deployments {other.name} and {deployment.name}: both constructors would be called "
                f"New{name.exported}For{deployment.go_name}. Name each deployment once."
            )


def _check(deployment: Deployment, facts: Sequence[str], curves: Sequence[str]) -> None:
    where = f"cannot emit deployment {deployment.name}"
    for name in facts:
        value = deployment.facts.get(name)
        if value is None:
            raise InputError(f"{where}: no fact {name}, which the program reads. Give it.")
        if not (math.isfinite(value) and value >= least(name)):
            bound = {0.0: "at least 0", 1.0: "at least 1"}.get(least(name), "positive")
            raise InputError(f"{where}: {name} must be finite and {bound}, got {value:g}. Correct it.")
    for name in curves:
        knots = curve_of(deployment.facts, name)
        if not (np.isfinite(knots) & (knots >= 0.0)).all():
            raise InputError(f"{where}: the curve {name} must be finite and at least 0. Correct the GPU's tables.")
