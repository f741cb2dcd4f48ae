"""The times of a step's operations on one deployment, as curves over the tokens or requests of the step.

A decode step of n requests runs `layers * (QKV + attention + output + feed-forward + 2 all-reduces) + logits +
sampler`, nearly all of them kernels that were measured (see tables.py). Curves are sums over layers, in us. A program
reads them as the kernel fields of the schema.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache

import numpy as np

from simulator.common.knots import knots
from simulator.kernels.allreduce import allreduce, collective
from simulator.kernels.attention import Heads, decode, prefill, verifying, windowed
from simulator.kernels.latent import latent
from simulator.kernels.matrices import ACTIVATION_BYTES, UNIFORM, Experts, gemm, moe
from simulator.kernels.recurrent import recurrent
from simulator.kernels.roofline import DATASHEET, KernelGpu, Timing
from simulator.model.architecture import Architecture, Sampling
from simulator.model.draft import Draft
from simulator.model.formats import BF16, Format
from simulator.model.layers import Attention

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
    routing: str = UNIFORM
    reduces: bool = True  # False: all-reduces take no time
    draft: Draft | None = None

    @property
    def width(self) -> int:
        """New tokens of a decode in a step."""
        return self.draft.width if self.draft else 1


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
    *("gemm", "elementwise", "small", "moe", "moe_quantized", "router", "allreduce", "lm_head", "sampler"),
    *("decode_launch", "decode_per_token", "window_per_token", "prefill_per_pair"),
)


@cache
def kernels(d: Deployed) -> Kernels:
    """Every operation of a step of the deployment, and its curves. Raises InputError if the GPU has no tables."""
    operations = _together((*_layers(d), *_sampler(d), *(_drafting(d, d.draft.architecture) if d.draft else ())))
    curves = {}
    for name in CURVES:
        mine = [o for o in operations if o.curve == name]
        size = LENGTHS if name == "prefill_per_pair" else TOKENS
        curves[name] = total = sum((o.calls * o.timing.us for o in mine), np.zeros(len(size)))
        if mine:  # most deployments have no kernel of some curves
            curves[name] = np.array([float(f"{x:.{DIGITS}g}") for x in (total * UP).tolist()])
    return Kernels(operations, curves)


def _layers(d: Deployed) -> list[Operation]:
    return [*_linear(d), *_elementwise(d), *_small(d), *_experts(d), *_attention(d), *_between(d)]


def _drafting(d: Deployed, own: Architecture | None) -> Iterator[Operation]:
    """The passes of the draft. The first has all tokens of the step, as in vLLM (vllm/v1/spec_decode/eagle.py), so that
    its kernels add to the target's. Every later one has a token of each decode, and all of it adds to `decode_launch`,
    but the KV cache that it reads. Output matrix and argmax come after each pass."""
    if not d.draft or not own:
        return
    first, later = replace(d, architecture=own), replace(d, architecture=own, draft=None)
    joining = (
        [_gemm(d, "joins hidden states", 1, own.hidden, d.draft.joined * own.hidden, BF16)] if d.draft.joined else []
    )
    for o in (*_layers(first), *joining):
        if o.curve != "lm_head":
            yield replace(o, name=f"draft: {o.name}")
    drawn = Operation("argmax", "lm_head", 1, f"{own.vocab} logits", sampler(d.gpu, TOKENS, own.vocab, GREEDY))
    for o in (*_layers(later), *joining, drawn):
        passes = d.draft.tokens if o.curve == "lm_head" else d.draft.tokens - 1
        if passes and o.curve != "prefill_per_pair":
            curve = o.curve if o.curve in ("decode_per_token", "window_per_token") else "decode_launch"
            yield replace(o, name=f"draft, pass by pass: {o.name}", curve=curve, calls=passes * o.calls)


def _together(operations: Sequence[Operation]) -> tuple[Operation, ...]:
    """The operations, those of one name and shape as one: layers with and without a window share most of theirs."""
    found: dict[tuple[str, str, str], Operation] = {}
    for o in operations:
        key = o.name, o.curve, o.shape
        before = found.get(key)
        found[key] = replace(o, calls=o.calls + before.calls) if before else o
    return tuple(found.values())


@cache
def _product(gpu: KernelGpu, n: int, k: int, weights: Format) -> Timing:
    """`gemm` at TOKENS: deployments that differ in little share most of their products."""
    return gemm(gpu, TOKENS, n, k, weights)


@cache
def _routed(gpu: KernelGpu, shape: Experts, weights: Format, routing: str) -> Timing:
    return moe(gpu, TOKENS, shape, weights, routing)


def _gemm(d: Deployed, name: str, calls: int, n: int, k: int, weights: Format, curve: str = "gemm") -> Operation:
    n, k = max(n, 1), max(k, 1)
    return Operation(name, curve, calls, f"{k} to {n}", _product(d.gpu, n, k, weights))


def _linear(d: Deployed) -> list[Operation]:
    """The linear layers; each rank holds its share of the heads and of the feed-forward width."""
    a, tp, kinds = d.architecture, d.tp, d.architecture.formats
    operations = []
    for group in a.attention:
        own = replace(group, heads=group.heads // tp, kv_heads=group.kv_on(tp))
        for m in own.matrices(a.hidden):
            operations.append(_gemm(d, m.name, group.layers, m.n, m.k, kinds.attention))
    for kind in a.recurrent:
        for m in kind.matrices(a.hidden):
            operations.append(_gemm(d, m.name, kind.layers, *m.on(tp), kinds.attention))
    blocks = (
        ("feed-forward", a.dense_layers, a.ffn, kinds.dense),
        ("shared expert", a.moe_layers, a.shared_ffn, kinds.shared),
    )
    for name, layers, width, weights in blocks:
        if layers and width:
            first = "gate and up" if a.mlp_matrices == 3 else "up"
            n = (a.mlp_matrices - 1) * width // tp
            operations.append(_gemm(d, f"{name}: {first}", layers, n, a.hidden, weights))
            operations.append(_gemm(d, f"{name}: down", layers, a.hidden, width // tp, weights))
    if a.expert_hidden:
        operations.append(_gemm(d, "experts: into their width", a.moe_layers, a.expert_hidden, a.hidden, kinds.shared))
        operations.append(_gemm(d, "experts: out of it", a.moe_layers, a.hidden, a.expert_hidden, kinds.shared))
    operations.append(_gemm(d, "logits", 1, a.vocab // tp, a.hidden, BF16, "lm_head"))
    return operations


def _elementwise(d: Deployed) -> list[Operation]:
    """The operations between the matrix products, estimated because no table has them.

    Each takes its bytes at the datasheet's bandwidth, but at least a launch. A launch hides the bytes of a few hundred
    tokens, which come from the L2 cache anyway. The compiler fuses residuals with norms, and the gate with the
    activation.
    """
    a, tp = d.architecture, d.tp
    dense, shared = a.dense_layers, a.moe_layers if a.shared_ffn else 0
    rows = [("residual and norm", a.blocks, 4 * a.hidden)]
    for group in a.attention:
        own, kv = group.heads * group.head_dim // tp, group.kv_on(tp) * group.head_dim
        if not group.latent:  # whose modules were measured with both
            rows += [
                ("rotary embedding", group.layers, 2 * (own + kv)),
                ("KV cache write", group.layers, 2 * kv + a.kv_bytes * kv),  # read in 16 bits
            ]
    rows += [
        ("activation", dense, a.mlp_matrices * a.ffn // tp),
        ("activation: shared expert", shared, a.mlp_matrices * a.shared_ffn // tp),
    ]
    return _counted(d, "elementwise", rows)


def _counted(d: Deployed, curve: str, rows: Sequence[tuple[str, int, int]]) -> list[Operation]:
    """The launches that no table has, by name, calls in a step and scalars a token."""
    operations = []
    for name, calls, scalars in rows:
        if calls:
            bound = TOKENS * scalars * ACTIVATION_BYTES / d.gpu.bytes
            timing = Timing(np.maximum(bound, ELEMENTWISE_LAUNCH_US), bound, DATASHEET, "none")
            operations.append(Operation(name, curve, calls, f"{scalars} scalars a token", timing))
    return operations


def _small(d: Deployed) -> list[Operation]:
    """The launches that a plain dense layer in 16 bits has not, counted because no table has them.

    Around routed experts: top-k, sorting tokens by expert, quantization or copies, weighted sum. Before products of
    activations in blocks of 8 bits: their quantization. A norm of queries and keys over all heads needs a small
    all-reduce of its own.
    """
    a, kinds = d.architecture, d.architecture.formats
    rows: list[tuple[str, int, int]] = [("experts: top-k, sort, copy, sum", 4 * a.moe_layers, a.active * a.hidden)]
    for kind, layers in ((kinds.attention, a.mixing_layers), (kinds.dense, a.dense_layers)):
        if kind.name == "fp8_block":
            rows.append(("quantization of activations", 2 * layers, 2 * a.hidden))
    for group in a.attention:
        if group.normed:
            rows.append(("norm of queries and keys", group.layers, 2 * group.heads * group.head_dim // d.tp))
    operations = _counted(d, "small", rows)
    across = sum(group.layers for group in a.attention if group.normed)
    if across and d.tp > 1 and d.reduces:
        one = allreduce(d.gpu, TOKENS * 2 * 4, d.tp)  # a variance of queries and one of keys, in 32 bits
        operations.append(Operation("all-reduce of their norms", "small", across, "8 bytes a token", one))
    return operations


def _experts(d: Deployed) -> list[Operation]:
    a = d.architecture
    if not a.moe_layers:
        return []
    split = 1 if d.ep > 1 else d.tp * d.dp
    shape = Experts(a.expert_hidden or a.hidden, max(a.moe_ffn // split, 1), a.experts, a.active, d.ep)
    in_words = f"{a.active} of {a.experts} experts of {shape.hidden} x {shape.ffn}"
    weights = a.formats.experts
    routed = _routed(d.gpu, shape, weights, d.routing)
    return [
        _gemm(d, "router", a.moe_layers, a.experts, a.hidden, BF16, "router"),
        Operation("routed experts", "moe" if weights == BF16 else "moe_quantized", a.moe_layers, in_words, routed),
    ]


def _attention(d: Deployed) -> list[Operation]:
    """Attention of each kind of layers: launch and token of context in decode, token pair in prefill.

    Recurrent layers have the same curves, without a context.
    """
    operations = [o for group in d.architecture.attention for o in _attention_of(d, group)]
    for kind in d.architecture.recurrent:
        # It reads a state, and writes one for each new token.
        decodes, per_pair = recurrent(d.gpu, TOKENS * ((1 + d.width) / 2), LENGTHS, kind, d.tp)
        words = f"{kind.value_heads // d.tp} heads, states of {kind.key_dim} x {kind.value_dim}"
        operations += [
            Operation(f"{kind.kind} decode", "decode_launch", kind.layers, words, decodes),
            Operation(f"{kind.kind} prefill", "prefill_per_pair", kind.layers, words, per_pair),
        ]
    return operations


def _attention_of(d: Deployed, group: Attention) -> list[Operation]:
    kv, own, kv_bytes = group.kv_on(d.tp), group.heads // d.tp, d.architecture.kv_bytes
    in_words = f"{own} heads, {kv} KV heads of {group.head_dim}"
    if group.latent:
        in_words = f"{own} heads, latent vectors of {group.latent.rank + group.latent.rope}"
        one, per_pair = latent(d.gpu, TOKENS, LENGTHS, group, own, d.architecture)
        m = group.latent  # a decode multiplies latent vectors, a prompt the narrower keys and values made of them
        wider = (2 * m.rank + m.rope) / (m.nope + m.rope + m.value)
    else:
        heads = Heads(own, kv, group.head_dim, kv * (group.head_dim + group.value_dim), kv_bytes)
        one, per_pair, wider = decode(d.gpu, TOKENS, heads), prefill(d.gpu, LENGTHS, heads), 1.0
    if d.width > 1:
        one = verifying(one, d.width, wider * float(per_pair.us[-1]))
    token, which = "decode_per_token", ""
    if group.window:
        which = f", window {group.window:,}"
        widest = max(of.window for of in d.architecture.attention)  # whose context the curve is multiplied by
        per_token = replace(one.per_token, us=one.per_token.us * (group.window / widest))
        one = replace(one, per_token=per_token)
        token, per_pair = "window_per_token", windowed(per_pair, LENGTHS, group.window)
    return [
        Operation(f"decode attention{which}: launch", "decode_launch", group.layers, in_words, one.launch),
        Operation(f"decode attention{which}: KV cache", token, group.layers, in_words, one.per_token),
        Operation(f"prefill attention{which}", "prefill_per_pair", group.layers, in_words, per_pair),
    ]


def _between(d: Deployed) -> list[Operation]:
    """What GPUs exchange: an all-reduce after each block, and the tokens of all ranks before and after experts.

    Of data-parallel ranks, every one gathers the tokens of all, as many as its own from each, and scatters the results
    (vLLM's `allgather_reducescatter`, its default).
    """
    if not d.reduces:
        return []
    a = d.architecture
    message = TOKENS * a.hidden * ACTIVATION_BYTES
    in_words = f"{a.hidden} x 2 bytes a token on {d.tp} GPUs"
    operations = [Operation("all-reduce", "allreduce", a.blocks, in_words, allreduce(d.gpu, message, d.tp))]
    if d.dp > 1 and a.moe_layers:
        in_words = f"{a.hidden} x 2 bytes a token of {d.dp} ranks"
        for name, operation in (("experts: gather tokens", "allgather"), ("experts: scatter tokens", "reducescatter")):
            timing = collective(d.gpu, operation, d.dp * message, d.dp)
            operations.append(Operation(name, "allreduce", a.moe_layers, in_words, timing))
    return operations


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
# Of a draft: maximum of the logits in 16 bits.
GREEDY = SamplerPart("sampling: argmax", 2, 2)
PENALTIES = SamplerPart("sampling: penalties", 16, 85)


def parts(sampling: Sampling) -> tuple[SamplerPart, ...]:
    """The parts that run, in the engine's order."""
    wanted = {PENALTIES: sampling.penalises, SORT: sampling.sorts, DRAW: True}
    return tuple(part for part, runs in wanted.items() if runs)


def sampler(gpu: KernelGpu, requests: np.ndarray, vocab: int, part: SamplerPart) -> Timing:
    """The time of a part of the sampler by requests. Every rank has the logits of the whole vocabulary."""
    moved = requests * vocab * part.bytes / gpu.bytes
    return Timing(part.launches * EAGER_LAUNCH_US + moved / BANDWIDTH, moved, DATASHEET, "torch")
