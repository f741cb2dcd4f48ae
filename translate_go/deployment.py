"""The static facts of a deployment, baked into the Go file or left to its caller."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from simulator.errors import InputError
from simulator.schema import FIELDS
from translate_go.spelling import words

# facts that may be 0: parts that a model or an engine need not have
MAY_BE_ZERO = words(
    "dense_layers moe_layers ffn moe_ffn experts active_experts tp_log2 is_moe is_fp8 sampling_sort "
    "repetition_penalty kv_cpu_offload experts_us allreduce_us_per_token"
)
COUNTS = words(
    "layers hidden heads kv_heads kv_heads_per_gpu head_dim vocab tp kv_blocks max_num_seqs max_num_batched_tokens "
    "max_model_len block_size"
)
FACTS = tuple(name for scope, name in FIELDS if scope == "s" and name != "reference_step_us")

# Mixtral 8x7B on two H100, rounded: the facts of recorded vectors where no deployment is given
EXAMPLE = {
    "layers": 32, "dense_layers": 0, "moe_layers": 32, "hidden": 4096, "heads": 32, "kv_heads": 8,
    "kv_heads_per_gpu": 4, "head_dim": 128, "ffn": 14336, "moe_ffn": 14336, "vocab": 32000, "experts": 8,
    "active_experts": 2, "tp": 2, "tp_log2": 1, "is_moe": 1, "is_fp8": 0, "sampling_sort": 0,
    "repetition_penalty": 0, "kv_blocks": 20000, "kv_cpu_offload": 1, "model_params_b": 46.7,
    "active_params_b": 12.88, "max_num_seqs": 128, "max_num_batched_tokens": 2048, "max_model_len": 32768,
    "block_size": 16, "flops_per_us": 989.5e6, "bytes_per_us": 3.35e6, "link_bytes_per_us": 450e3,
    "kv_bytes_per_token": 65536, "shared_weights_us": 439.9, "experts_us": 13461.8, "weights_us": 13901.7,
    "kv_us_per_token": 0.01956, "gemm_us_per_token": 12.75, "attention_us_per_pair": 0.000265,
    "logits_us_per_row": 0.2089, "allreduce_us_per_token": 1.165,
}  # fmt: skip


@dataclass(frozen=True)
class Deployment:
    """A model on its GPUs. `facts` are the s. fields by name; `model` and `hardware` label the coefficients.

    The name becomes part of the constructor's: `llama-2-7b` -> `NewEvolvedForLlama_2_7b`.
    """

    name: str
    facts: Mapping[str, float]
    model: str = ""
    hardware: str = ""

    @property
    def go_name(self) -> str:
        parts = "".join(c if c.isascii() and c.isalnum() else " " for c in self.name).split()
        name = "".join(p[0].upper() + p[1:] if not p[0].isdigit() else f"_{p}" for p in parts)
        return name.lstrip("_") or "Deployment"


def least(name: str) -> float:
    """The smallest value that a fact may have; the least positive float64 where it must only be positive."""
    if name in MAY_BE_ZERO:
        return 0.0
    return 1.0 if name in COUNTS else math.ulp(0.0)


def checked(deployment: Deployment, used: Iterable[str]) -> Deployment:
    """The deployment itself; raises InputError for a fact that is missing, not finite or too small."""
    where = f"deployment {deployment.name}"
    for name in used:
        value = deployment.facts.get(name)
        if value is None:
            raise InputError(f"{where}: no fact {name}, which the program reads: give it")
        if not (math.isfinite(value) and value >= least(name)):
            bound = {0.0: "at least 0", 1.0: "at least 1"}.get(least(name), "positive")
            raise InputError(f"{where}: {name} must be finite and {bound}, got {value:g}: correct it")
    return deployment
