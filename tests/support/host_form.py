"""The host's trained-physics form in plain Python, term by term from its description, as a second opinion.

Reads the terms of config.json and the datasheet themselves, none of this project's fields. Dense models and mixtures of
experts without latent attention or first dense layers, one data-parallel rank.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

# Published by the host: alpha in us before the queue, at completion, per output token; beta in the order b1a, b2a, b3,
# b4, b5, b6, b7, b8, b1b, b2b, b_EP.
ALPHA = (15563.199579, 777.3455, 45.907545)
BETA = (
    0.152128,
    0.0,
    1.36252915,
    0.752037,
    32.09546717,
    4.41684444,
    126.024825,
    481.8613888,
    0.0,
    1.94710771,
    0.752037,
)


def host_step_us(
    config: Mapping[str, Any],
    gpu: Mapping[str, Any],
    tp: int,
    beta: Sequence[float],
    batch: Sequence[tuple[int, int, int]],
) -> int:
    """The step time in whole us of a batch of (prompt length, tokens done, new tokens)."""
    layers, d, heads = config["num_hidden_layers"], config["hidden_size"], config["num_attention_heads"]
    head_dim = d // heads
    kv = config["num_key_value_heads"] * head_dim
    experts, k = config.get("num_local_experts", config.get("num_experts", 0)), config.get("num_experts_per_tok", 0)
    every = config.get("interleave_moe_layer_step", 0)
    moe = 0 if experts < 2 else layers // (every + 1) if every else layers
    dense = layers - moe
    width = config["intermediate_size"]
    moe_ffn, dense_ffn = config.get("moe_intermediate_size", width), config.get("intermediate_size_mlp", width)
    method = config.get("quantization") or config.get("quantization_config", {}).get("quant_method")
    fp8 = method == "fp8"
    w = {"fp8": 1, "mxfp4": 0.5}.get(method, 2)  # of all weights alike
    peak = (gpu["fp8_tflops"] if fp8 and gpu["fp8_tflops"] else gpu["bf16_tflops"]) * 1e6  # FLOP/us
    bandwidth = gpu["memory_tb_per_s"] * 1e6  # byte/us

    prefills = [(prompt, new) for prompt, done, new in batch if done < prompt]
    contexts = [done for prompt, done, _ in batch if done >= prompt]
    p, n_decode = sum(new for _, new in prefills), len(contexts)

    def matrices(tokens: int) -> float:
        """FLOPs of projections and feed-forward blocks."""
        projections = layers * 2 * tokens * d * (2 * d + 2 * kv) / tp
        return projections + dense * 6 * d * dense_ffn * tokens / tp + moe * 6 * d * moe_ffn * (tokens * k) / tp

    attention = layers * sum(4 * (heads / tp) * new * (prompt + new / 2) * head_dim for prompt, new in prefills)
    prefill_compute = (matrices(p) + attention) / peak
    decode_compute = (matrices(n_decode) + layers * 4 * (heads / tp) * sum(contexts) * head_dim) / peak
    prefill_kv = layers * 2 * kv / tp * 2 * p / bandwidth
    decode_kv = layers * 2 * kv / tp * 2 * (sum(contexts) + n_decode) / bandwidth
    ffn = dense * 3 * d * dense_ffn * w / tp + moe * (experts / tp) * 3 * d * moe_ffn * w
    weights = (layers * d * (2 * d + 2 * kv) * w / tp + ffn) / bandwidth
    reduced = (layers + dense + moe) * (p + n_decode) * d * 2 * 2 * (tp - 1) / tp / bandwidth
    b1a, b2a, b3, b4, b5, b6, b7, b8, b1b, b2b, _ = beta
    us = b1a * prefill_compute + b1b * prefill_kv + b2a * decode_compute + b2b * decode_kv + b3 * weights + b4 * reduced
    us += b5 * layers + b6 * len(batch) + b7 + (b8 * moe if every else 0.0)
    return max(1, int(us))
