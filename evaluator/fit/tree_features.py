"""What ensembles of trees know of a batch: features, each a formula of the language, and their values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from evaluator.fit.steps import StepRun
from simulator.clock.bind import bind
from simulator.language.ir import Function, Program
from simulator.language.opcodes import assemble, feature


@dataclass(frozen=True, slots=True)
class TreeFeature:
    """A feature by its name, and its formula, whose units need not fit. rises: more of it never takes less time."""

    name: str
    formula: str
    rises: bool = False


OWN = (
    TreeFeature("prefill tokens", "b.prefill_tokens", True),
    TreeFeature("decode tokens", "b.decode_reqs", True),
    TreeFeature("tokens", "b.tokens", True),
    TreeFeature("prefill requests", "b.prefill_reqs"),
    TreeFeature("requests", "b.batch_size"),
    TreeFeature("mixed", "min(b.prefill_reqs, 1) * min(b.decode_reqs, 1)"),
    TreeFeature("largest chunk", "b.max_prefill_chunk", True),
    TreeFeature("KV sum", "b.kv_sum", True),
    TreeFeature("KV mean", "b.kv_mean", True),
    TreeFeature("KV max", "b.kv_max", True),
    TreeFeature("KV variance", "b.kv_var"),
    TreeFeature("KV mean of decodes", "b.kv_decode_mean", True),
    TreeFeature("KV max of decodes", "b.kv_decode_max", True),
    TreeFeature("FLOPs of prefill products", "b.prefill_gemm_us * s.flops_per_us", True),
    TreeFeature("FLOPs of decode products", "b.decode_gemm_us * s.flops_per_us", True),
    TreeFeature("FLOPs of attention", "b.attention_flops", True),
    TreeFeature("FLOPs", "b.total_flops", True),
    TreeFeature("arithmetic intensity", "b.total_flops / b.total_bytes"),
    TreeFeature("attention's share of FLOPs", "b.attention_flops / b.total_flops"),
    TreeFeature("weights' share of bytes", "b.weight_read_us * s.bytes_per_us / b.total_bytes"),
    TreeFeature("tokens per active parameter", "b.tokens / s.active_params_b"),
    TreeFeature("tensor parallelism", "s.tp"),
    TreeFeature("experts", "s.is_moe"),
    TreeFeature("active share of parameters", "s.active_params_b / s.model_params_b"),
    TreeFeature("parameters", "s.model_params_b"),
    TreeFeature("active parameters", "s.active_params_b"),
    TreeFeature("layers", "s.layers"),
    TreeFeature("KV bytes of a token", "s.kv_bytes_per_token"),
)
# The six analytic components (schema.PHASES): matrix products, attention and bytes of either phase.
COMPONENTS = tuple(
    TreeFeature(f"{phase} {what} us", f"b.{phase}_{what}_us", True)
    for phase in ("prefill", "decode")
    for what in ("gemm", "attention", "bytes")
)
FEATURES: Mapping[str, tuple[TreeFeature, ...]] = {"own": OWN, "with components": (*OWN, *COMPONENTS)}


def feature_values(features: Sequence[TreeFeature], steps: StepRun) -> np.ndarray:
    """float64[steps, features]: the features of every batch, as a program's opcodes compute them."""
    values = np.empty((len(steps.raw), len(features)))
    for i, f in enumerate(features):
        code = assemble(Program((Function("step_time", (), (), feature(f.formula)),)))
        values[:, i] = bind(code, (), steps.facts).steps_us(steps.raw)
    return values
