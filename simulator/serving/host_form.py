"""The facts of the host's trained-physics form: a deployment counted as the host counts it, not as it is.

The form (dense models and mixtures of experts, without data parallelism) is in the host's sim/latency. Its facts differ
from the other fields where the host reads or counts otherwise:

- a head is `hidden / heads` wide, whatever `head_dim` says
- with `interleave_moe_layer_step` N, one layer in N + 1 has experts, and the others are dense; else all have them
- Llama 4's shared experts are not read
- a feed-forward block has three matrices, and all of a model's weights have the type of the quantized ones
- the all-reduce goes over memory bandwidth
"""

from __future__ import annotations

from simulator.common.errors import Section
from simulator.model.architecture import REMEDY, Architecture

KV_BYTES = 2  # of an element of the KV cache
ACTIVATION_BYTES = 2
STEP = "interleave_moe_layer_step"


def host_form(a: Architecture, c: Section, tp: int, flops_per_us: float, bytes_per_us: float) -> dict[str, float]:
    """The static `s.host_*` fields of a model on `tp` GPUs.

    `c` has the terms of its config.json. `flops_per_us` is the peak that the host takes: the one for fp8 where weights
    have a byte each and the GPU has one, else that of bf16.
    """
    moe_layers, dense_layers = host_layers(a, c)
    kv = a.kv_heads * (a.hidden // a.heads)
    projections = a.layers * a.hidden * (2 * a.hidden + 2 * kv)
    matrix = 3 * a.hidden  # a feed-forward block's weights for each unit of its width
    shared_ffn = 0 if c.has(STEP) else a.shared_ffn
    dense = dense_layers * matrix * a.ffn + moe_layers * matrix * shared_ffn
    expert = moe_layers * matrix * a.moe_ffn
    weight_bytes = a.weight_bits / 8
    units = 2 * a.layers  # all-reduces: after attention, and after the feed-forward block of either kind
    return {
        "host_gemm_us_per_token": 2 * (projections + dense + expert * a.active) / tp / flops_per_us,
        "host_attention_us_per_pair": a.layers * 4 * (a.heads / tp) * (a.hidden // a.heads) / flops_per_us,
        "host_kv_us_per_token": a.layers * 2 * (kv / tp) * KV_BYTES / bytes_per_us,
        "host_weights_us": (projections + dense + expert * a.experts) * weight_bytes / tp / bytes_per_us,
        "host_allreduce_us_per_token": units * a.hidden * ACTIVATION_BYTES * 2 * ((tp - 1) / tp) / bytes_per_us,
        "host_interleaved_moe_layers": moe_layers if c.has(STEP) else 0,
    }


def host_layers(a: Architecture, c: Section) -> tuple[int, int]:
    """How many layers have routed experts and how many are dense, as the host counts them."""
    if not a.experts:
        return 0, a.layers
    step = c.whole(STEP, REMEDY, least=0) if c.has(STEP) else 0
    moe_layers = a.layers // (step + 1) if step else a.layers
    return moe_layers, a.layers - moe_layers
