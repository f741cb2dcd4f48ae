"""What the operations of a step cost on one deployment, as curves over the tokens or requests of the step.

A decode step of n requests runs `layers * (QKV + attention + output + feed-forward + 2 all-reduces) + logits +
sampler`, nearly all of them kernels that were measured (see tables). Sums over layers, in us; a program reads them as
the kernel fields of the schema.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

import numpy as np

from simulator.architecture import Architecture
from simulator.kernels.allreduce import allreduce
from simulator.kernels.attention import Heads, decode, prefill
from simulator.kernels.matrices import ACTIVATION_BYTES, gemm, moe
from simulator.kernels.roofline import DATASHEET, Gpu, Timing
from simulator.kernels.sampler import Sampling, parts, sampler
from simulator.knots import knots

TOKENS = knots(14)  # 1 to 16,384 tokens or requests in a step
LENGTHS = knots(17)  # 1 to 131,072 tokens of a prompt
ELEMENTWISE_LAUNCH_US = 2.0  # inside a captured graph; the shortest matrix product of the tables takes 2.5
DIGITS = 7  # significant digits of a knot, so that a curve in Go is short to read and the same


@dataclass(frozen=True, slots=True)
class Deployed:
    """A model on its GPUs, as far as kernels are concerned."""

    architecture: Architecture
    gpu: Gpu
    tp: int
    sampling: Sampling


@dataclass(frozen=True, slots=True)
class Operation:
    """One kernel of a step: `curve` that it adds to, how often a step calls it, its shape in words, the time of a
    call."""

    name: str
    curve: str
    calls: int
    shape: str
    timing: Timing


@dataclass(frozen=True)
class Kernels:
    """The operations of a deployment, and float64[knots] of every curve in us for all layers together."""

    operations: tuple[Operation, ...]
    curves: Mapping[str, np.ndarray]


CURVES = (
    *("gemm", "elementwise", "moe", "moe_quantized", "router", "allreduce", "lm_head", "sampler"),
    *("decode_launch", "decode_per_token", "prefill_per_pair"),
)


@cache
def kernels(d: Deployed) -> Kernels:
    """Every operation of a step of the deployment. Raises InputError if the GPU has no tables."""
    found = (*_linear(d), *_elementwise(d), *_experts(d), *_attention(d), *_between(d), *_sampler(d))
    curves = {}
    for name in CURVES:
        mine = [o for o in found if o.curve == name]
        size = LENGTHS if name == "prefill_per_pair" else TOKENS
        total = sum((o.calls * o.timing.us for o in mine), np.zeros(len(size)))
        curves[name] = np.array([float(f"{x:.{DIGITS}g}") for x in total])
    return Kernels(found, curves)


def _gemm(d: Deployed, name: str, calls: int, n: int, k: int, weight_bytes: float, curve: str = "gemm") -> Operation:
    n, k = max(n, 1), max(k, 1)
    return Operation(name, curve, calls, f"{k} to {n}", gemm(d.gpu, TOKENS, n, k, weight_bytes))


def _linear(d: Deployed) -> list[Operation]:
    """The linear layers; each rank holds its share of the heads and of the feed-forward width."""
    a, tp = d.architecture, d.tp
    size, attention = a.weight_bits / 8, a.attention_bits / 8
    own, kv = a.heads * a.head_dim // tp, max(a.kv_heads // tp, 1) * a.head_dim
    found = [
        _gemm(d, "QKV projection", a.layers, own + 2 * kv, a.hidden, attention),
        _gemm(d, "attention output", a.layers, a.hidden, own, attention),
    ]
    blocks = (("feed-forward", a.layers - a.moe_layers, a.ffn), ("shared expert", a.moe_layers, a.shared_ffn))
    for name, layers, width in blocks:
        if layers and width:
            found.append(_gemm(d, f"{name}: gate and up", layers, 2 * width // tp, a.hidden, size))
            found.append(_gemm(d, f"{name}: down", layers, a.hidden, width // tp, size))
    found.append(_gemm(d, "logits", 1, a.vocab // tp, a.hidden, 2.0, "lm_head"))
    return found


def _elementwise(d: Deployed) -> list[Operation]:
    """What stands between the matrices: no table has it, so it takes its bytes at the datasheet's bandwidth, at least a
    launch, which hides the bytes of a few hundred tokens (they come from the L2 cache besides). Residuals and norms are
    fused by the compiler, and so is the gate with the activation."""
    a, tp = d.architecture, d.tp
    own, kv = a.heads * a.head_dim // tp, max(a.kv_heads // tp, 1) * a.head_dim
    dense, shared = a.layers - a.moe_layers, a.moe_layers if a.shared_ffn else 0
    rows = (
        ("residual and norm", 2 * a.layers, 4 * a.hidden),
        ("rotary embedding", a.layers, 2 * (own + kv)),
        ("KV cache write", a.layers, 4 * kv),
        ("activation", dense, 3 * a.ffn // tp),
        ("activation: shared expert", shared, 3 * a.shared_ffn // tp),
    )
    found = []
    for name, calls, scalars in rows:
        if calls:
            bound = TOKENS * scalars * ACTIVATION_BYTES / d.gpu.bytes
            timing = Timing(np.maximum(bound, ELEMENTWISE_LAUNCH_US), bound, DATASHEET, "none")
            found.append(Operation(name, "elementwise", calls, f"{scalars} scalars a token", timing))
    return found


def _experts(d: Deployed) -> list[Operation]:
    a = d.architecture
    if not a.moe_layers:
        return []
    shape = a.hidden, max(a.moe_ffn // d.tp, 1), a.experts, a.active
    said = f"{a.active} of {a.experts} experts of {a.hidden} x {shape[1]}"
    routed = moe(d.gpu, TOKENS, shape, a.weight_bits / 8)
    return [
        _gemm(d, "router", a.moe_layers, a.experts, a.hidden, 2.0, "router"),
        Operation("routed experts", "moe" if a.weight_bits >= 16 else "moe_quantized", a.moe_layers, said, routed),
    ]


def _attention(d: Deployed) -> list[Operation]:
    a, own = d.architecture, d.architecture.heads // d.tp
    kv = max(a.kv_heads // d.tp, 1)
    decodes = Heads(own, kv, a.head_dim, a.mla_width or 2 * kv * a.head_dim)
    if a.mla_width:  # one latent vector for all heads
        decodes = Heads(own, 1, a.head_dim, a.mla_width)
    one = decode(d.gpu, TOKENS, decodes)
    said = f"{own} heads, {kv} KV heads of {a.head_dim}"
    return [
        Operation("decode attention: launch", "decode_launch", a.layers, said, one.launch),
        Operation("decode attention: a token of context", "decode_per_token", a.layers, said, one.per_token),
        Operation(
            "prefill attention: a token pair", "prefill_per_pair", a.layers, said,
            prefill(d.gpu, LENGTHS, Heads(own, kv, a.head_dim, decodes.kv_width)),
        ),
    ]  # fmt: skip


def _between(d: Deployed) -> list[Operation]:
    message = TOKENS * d.architecture.hidden * ACTIVATION_BYTES
    said = f"{d.architecture.hidden} x 2 bytes a token on {d.tp} GPUs"
    return [Operation("all-reduce", "allreduce", 2 * d.architecture.layers, said, allreduce(d.gpu, message, d.tp))]


def _sampler(d: Deployed) -> list[Operation]:
    vocab = d.architecture.vocab
    found = [(part, sampler(d.gpu, TOKENS, vocab, part)) for part in parts(d.sampling)]
    return [Operation(p.name, "sampler", 1, f"{vocab} logits a request, {p.bytes} bytes each", t) for p, t in found]
