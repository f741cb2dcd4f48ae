"""The times of a step's operations on one deployment, as curves over the tokens or requests of the step.

A decode step of n requests runs `layers * (QKV + attention + output + feed-forward + 2 all-reduces) + logits +
sampler`, nearly all of them kernels that were measured (see tables.py). Curves are sums over layers, in us. A program
reads them as the kernel fields of the schema.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

import numpy as np

from simulator.common.knots import knots
from simulator.kernels.allreduce import allreduce
from simulator.kernels.attention import Heads, decode, prefill
from simulator.kernels.matrices import ACTIVATION_BYTES, gemm, moe
from simulator.kernels.roofline import DATASHEET, KernelGpu, Timing
from simulator.model.architecture import Architecture, Sampling

TOKENS = knots(14)  # 1 to 16,384 tokens or requests in a step
LENGTHS = knots(17)  # 1 to 131,072 tokens of a prompt
ELEMENTWISE_LAUNCH_US = 2.0  # inside a captured graph; the shortest matrix product in the tables takes 2.5
DIGITS = 7  # significant digits of the values at knots, so that they are short in Go, and the same there
UP = 1.0 + 2.0**-40  # decides ties before rounding, which maths libraries would decide by their last bits


@dataclass(frozen=True, slots=True)
class Deployed:
    """A model on its GPUs, with everything that the times of kernels depend on."""

    architecture: Architecture
    gpu: KernelGpu
    tp: int
    sampling: Sampling
    dp: int = 1
    ep: int = 1
    pp: int = 1


@dataclass(frozen=True, slots=True)
class Operation:
    """One kernel of a step."""

    name: str
    curve: str  # the curve that it is part of
    calls: int  # in a step
    shape: str  # in words
    timing: Timing  # of a call


@dataclass(frozen=True)
class Kernels:
    """The operations of a deployment, and every curve: float64[knots], in us for all layers together."""

    operations: tuple[Operation, ...]
    curves: Mapping[str, np.ndarray]


CURVES = (
    *("gemm", "elementwise", "moe", "moe_quantized", "router", "allreduce", "lm_head", "sampler"),
    *("decode_launch", "decode_per_token", "prefill_per_pair"),
)


@cache
def kernels(d: Deployed) -> Kernels:
    """Every operation of a step of the deployment, and its curves. Raises InputError if the GPU has no tables."""
    operations = (*_linear(d), *_elementwise(d), *_experts(d), *_attention(d), *_between(d), *_sampler(d))
    curves = {}
    for name in CURVES:
        mine = [o for o in operations if o.curve == name]
        size = LENGTHS if name == "prefill_per_pair" else TOKENS
        curves[name] = total = sum((o.calls * o.timing.us for o in mine), np.zeros(len(size)))
        if mine:  # most deployments have no kernel of some curves
            curves[name] = np.array([float(f"{x:.{DIGITS}g}") for x in (total * UP).tolist()])
    return Kernels(operations, curves)


def _gemm(d: Deployed, name: str, calls: int, n: int, k: int, weight_bytes: float, curve: str = "gemm") -> Operation:
    n, k = max(n, 1), max(k, 1)
    return Operation(name, curve, calls, f"{k} to {n}", gemm(d.gpu, TOKENS, n, k, weight_bytes))


def _linear(d: Deployed) -> list[Operation]:
    """The linear layers; each rank holds its share of the heads and of the feed-forward width."""
    a, tp = d.architecture, d.tp
    size, attention = a.weights.bytes, a.formats.attention.bytes
    own, kv = a.heads * a.head_dim // tp, max(a.kv_heads // tp, 1) * a.head_dim
    operations = [
        _gemm(d, "QKV projection", a.layers, own + 2 * kv, a.hidden, attention),
        _gemm(d, "attention output", a.layers, a.hidden, own, attention),
    ]
    blocks = (("feed-forward", a.dense_layers, a.ffn), ("shared expert", a.moe_layers, a.shared_ffn))
    for name, layers, width in blocks:
        if layers and width:
            first = "gate and up" if a.mlp_matrices == 3 else "up"
            operations.append(_gemm(d, f"{name}: {first}", layers, (a.mlp_matrices - 1) * width // tp, a.hidden, size))
            operations.append(_gemm(d, f"{name}: down", layers, a.hidden, width // tp, size))
    operations.append(_gemm(d, "logits", 1, a.vocab // tp, a.hidden, 2.0, "lm_head"))
    return operations


def _elementwise(d: Deployed) -> list[Operation]:
    """The operations between the matrix products, estimated because no table has them.

    Each takes its bytes at the datasheet's bandwidth, but at least a launch. A launch hides the bytes of a few hundred
    tokens, which come from the L2 cache anyway. The compiler fuses residuals with norms, and the gate with the
    activation.
    """
    a, tp = d.architecture, d.tp
    own, kv = a.heads * a.head_dim // tp, max(a.kv_heads // tp, 1) * a.head_dim
    dense, shared = a.dense_layers, a.moe_layers if a.shared_ffn else 0
    rows = (
        ("residual and norm", 2 * a.layers, 4 * a.hidden),
        ("rotary embedding", a.layers, 2 * (own + kv)),
        ("KV cache write", a.layers, 2 * kv + a.kv_bytes * kv),  # read in 16 bits
        ("activation", dense, a.mlp_matrices * a.ffn // tp),
        ("activation: shared expert", shared, a.mlp_matrices * a.shared_ffn // tp),
    )
    operations = []
    for name, calls, scalars in rows:
        if calls:
            bound = TOKENS * scalars * ACTIVATION_BYTES / d.gpu.bytes
            timing = Timing(np.maximum(bound, ELEMENTWISE_LAUNCH_US), bound, DATASHEET, "none")
            operations.append(Operation(name, "elementwise", calls, f"{scalars} scalars a token", timing))
    return operations


def _experts(d: Deployed) -> list[Operation]:
    a = d.architecture
    if not a.moe_layers:
        return []
    shape = a.hidden, max(a.moe_ffn // d.tp, 1), a.experts, a.active
    in_words = f"{a.active} of {a.experts} experts of {a.hidden} x {shape[1]}"
    routed = moe(d.gpu, TOKENS, shape, a.weight_bits / 8)
    return [
        _gemm(d, "router", a.moe_layers, a.experts, a.hidden, 2.0, "router"),
        Operation("routed experts", "moe" if a.weight_bits >= 16 else "moe_quantized", a.moe_layers, in_words, routed),
    ]


def _attention(d: Deployed) -> list[Operation]:
    """Attention: launch and token of context in decode, token pair in prefill."""
    a, own = d.architecture, d.architecture.heads // d.tp
    kv = max(a.kv_heads // d.tp, 1)
    decodes = Heads(own, kv, a.head_dim, 2 * kv * a.head_dim, a.kv_bytes)
    if a.is_latent:  # one latent vector for all heads
        decodes = Heads(own, 1, a.head_dim, int(a.main.cached(d.tp)), a.kv_bytes)
    one = decode(d.gpu, TOKENS, decodes)
    per_pair = prefill(d.gpu, LENGTHS, Heads(own, kv, a.head_dim, decodes.kv_width, a.kv_bytes))
    in_words = f"{own} heads, {kv} KV heads of {a.head_dim}"
    return [
        Operation("decode attention: launch", "decode_launch", a.layers, in_words, one.launch),
        Operation("decode attention: a token of context", "decode_per_token", a.layers, in_words, one.per_token),
        Operation("prefill attention: a token pair", "prefill_per_pair", a.layers, in_words, per_pair),
    ]


def _between(d: Deployed) -> list[Operation]:
    message = TOKENS * d.architecture.hidden * ACTIVATION_BYTES
    in_words = f"{d.architecture.hidden} x 2 bytes a token on {d.tp} GPUs"
    return [Operation("all-reduce", "allreduce", 2 * d.architecture.layers, in_words, allreduce(d.gpu, message, d.tp))]


def _sampler(d: Deployed) -> list[Operation]:
    vocab = d.architecture.vocab
    timed = [(part, sampler(d.gpu, TOKENS, vocab, part)) for part in parts(d.sampling)]
    return [Operation(p.name, "sampler", 1, f"{vocab} logits a request, {p.bytes} bytes each", t) for p, t in timed]


# The sampler, in launches and bytes, because no table has it. The engine draws every token from the distribution that
# the model's generation_config shapes. The sampler runs outside the captured graph, as plain PyTorch operations over
# requests x vocabulary logits in float32. Each is bound by memory, and the bytes that each moves can be counted in the
# sources: vLLM 0.15 (vllm/v1/sample, model_executor/layers/utils.py) and PyTorch 2.9
# (aten/src/ATen/native/cuda/SortStable.cu).
#
# Two unknowns are left: the time of a launch, and the share of the bandwidth that such operations reach. 5 us and 0.5
# reproduce the timings of the sorting part that vLLM's developers published within 12 %: 0.35 ms for 48 requests of
# 32,768 words, 0.39 for 56, 1.07 to 1.16 for 64 of 131,072 and 2.32 for 128 (vllm-project/vllm, pull requests 33538,
# 40376, 51507; on an H100 where they name the GPU; the last of them has 4.18 ms for 128).

EAGER_LAUNCH_US = 5.0  # of an operation outside the graph, which the CPU launches on its own
BANDWIDTH = 0.5  # the share of the memory bandwidth that it reaches


@dataclass(frozen=True, slots=True)
class SamplerPart:
    """A part of the sampler: its launches, and the bytes that they read and write per logit."""

    name: str
    launches: int
    bytes: int


# Conversion to float32 (6 bytes), division by the temperature (8), softmax (12), exponential noise (4), division by it
# (12), argmax (4). In addition the rows are gathered, and the tokens converted and copied.
DRAW = SamplerPart("sampling: draw", 10, 46)
# Radix sort of all rows at once by value: indices (8), histogram (4), four passes over keys and indices (96); then by
# row, one pass (24), and writing the results (24). Softmax, cumulative sum, comparison, mask, scatter (58).
SORT = SamplerPart("sampling: sort", 24, 214)
# Occurrences in prompt and answer as two int64 counts and masks of the vocabulary (34); the repetition kernel (10);
# frequency and presence penalties, which are applied even if they are zero (41).
PENALTIES = SamplerPart("sampling: penalties", 16, 85)


def parts(sampling: Sampling) -> tuple[SamplerPart, ...]:
    """The parts that run, in the engine's order."""
    wanted = {PENALTIES: sampling.penalises, SORT: sampling.sorts, DRAW: True}
    return tuple(part for part, runs in wanted.items() if runs)


def sampler(gpu: KernelGpu, requests: np.ndarray, vocab: int, part: SamplerPart) -> Timing:
    """The time of a part of the sampler by requests. Every rank has the logits of the whole vocabulary."""
    moved = requests * vocab * part.bytes / gpu.bytes
    return Timing(part.launches * EAGER_LAUNCH_US + moved / BANDWIDTH, moved, DATASHEET, "torch")
