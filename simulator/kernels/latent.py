"""Latent attention from measured modules: what is left of a module's time without its matrix products.

The modules were timed with their projections. A step takes these once for all its tokens, so they are subtracted: the
rest of a decode is a launch and a time per token of context, the rest of a prompt a time per token pair. Sparse
attention (DeepSeek-V3.2) reads at most `topk` tokens, and its indexer all of them.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import scipy

from simulator.kernels.attention import ELEMENT_BYTES, LEAST_CONTEXT, LEAST_PROMPT, Decode, kv_type, line, pair_share
from simulator.kernels.matrices import gemm
from simulator.kernels.roofline import DATASHEET, LAUNCH_US, MEASURED, NEAREST, KernelGpu, Timing, octaves, rising
from simulator.kernels.tables import tables
from simulator.model.architecture import Architecture
from simulator.model.formats import BF16, FP8_BLOCK, NVFP4, Format
from simulator.model.layers import Attention, Latent

# The modules that were timed: DeepSeek-V3, whose attention with all its heads has these widths, and V3.2.
_DENSE, _SPARSE = Latent(512, 64, 128, 128, 1536), Latent(512, 64, 128, 128, 1536, 2048, 64, 128)
TIMED = {"latent": (7168, _DENSE), "sparse": (7168, _SPARSE)}
TYPES: dict[str, tuple[Format, ...]] = {
    "fp8": (FP8_BLOCK, BF16),
    "fp8_block": (FP8_BLOCK, BF16),
    "nvfp4": (NVFP4, BF16),
}
LEAST_US = 4 * LAUNCH_US  # of a decode without its products: norms, rotation, cache write, attention
UNMEASURED = 0.5  # efficiency of attention on GPUs without modules


def latent(
    gpu: KernelGpu, at: np.ndarray, lengths: np.ndarray, group: Attention, heads: int, a: Architecture
) -> tuple[Decode, Timing]:
    """Decode by requests and prefill by prompt length of a layer with so many heads on a GPU."""
    m = group.latent
    assert m is not None
    kind = "sparse" if m.topk else "latent"
    width = m.rank + m.rope
    token_us = width * a.kv_bytes / gpu.bytes
    flops = 2.0 * heads * (m.nope + m.rope + m.value)
    pair_us = np.full(len(lengths), flops / gpu.bf16_flops)
    rows = tables(gpu.tables).rows
    if f"{kind}_decode" not in rows:
        kind = "latent"
    if f"{kind}_decode" not in rows:
        launch = Timing(np.full(len(at), LEAST_US), np.full(len(at), LAUNCH_US), DATASHEET, "none")
        per_token = np.full(len(at), token_us)
        return (
            Decode(launch, Timing(per_token / UNMEASURED, per_token, DATASHEET, "none")),
            Timing(pair_us / UNMEASURED, pair_us, DATASHEET, "none"),
        )
    hidden, timed = TIMED[kind]
    kv = kv_type(gpu.tables, f"{kind}_decode", a.kv_bytes)
    measured_heads = _heads(gpu.tables, f"{kind}_decode", kv)
    own = min(measured_heads, key=lambda n: (octaves(n, heads), n))
    off = octaves(own, heads)
    exact = off == 0.0 and (m, a.hidden) == (timed, hidden) and a.kv_bytes == ELEMENT_BYTES[kv]
    sure = MEASURED if exact else NEAREST
    for weights in TYPES.get(a.formats.attention.name, (BF16,)):
        if not _rows(gpu.tables, f"{kind}_decode", kv, weights.name, own).any():
            continue
        batches, launch_us, slope, kernel = decode_lines(gpu, kind, kv, weights, own)
        per_token = np.interp(np.log(at), np.log(batches), slope)
        per_token *= gpu.timed.bytes / gpu.bytes * width / (timed.rank + timed.rope) * a.kv_bytes / ELEMENT_BYTES[kv]
        start = np.interp(at, batches, launch_us)
        beyond = at > batches[-1]
        start[beyond] = launch_us[-1] * at[beyond] / batches[-1]
        share = prefill_share(gpu, kind, kv, weights, own, tuple(lengths.tolist()))
        one = Decode(
            Timing(start, np.full(len(at), LAUNCH_US), sure, kernel, off),
            Timing(per_token, np.full(len(at), token_us), sure, kernel, off),
        )
        return one, Timing(pair_us * share, pair_us, sure, kernel, off)
    raise AssertionError(kind)


def _rows(name: str, operation: str, kv: str, dtype: str, heads: int) -> np.ndarray:
    rows = tables(name).rows[operation]
    hidden = TIMED[operation.partition("_")[0]][0]
    found: np.ndarray = (
        (rows["kv"] == kv) & (rows["dtype"] == dtype) & (rows["heads"] == heads) & (rows["hidden"] == hidden)
    )
    return found


def _heads(name: str, operation: str, kv: str) -> list[int]:
    rows = tables(name).rows[operation]
    return sorted({int(n) for n in rows["heads"][rows["kv"] == kv]})


def _products(gpu: KernelGpu, kind: str, tokens: np.ndarray, heads: int, weights: Format) -> np.ndarray:
    """The time of the projections of a module that was timed, in us."""
    hidden, timed = TIMED[kind]
    layer = Attention(1, heads, heads, timed.nope + timed.rope, timed.value, latent=timed)
    total = np.zeros(len(tokens))
    for m in layer.matrices(hidden):
        total += gemm(gpu.timed, tokens, m.n, m.k, weights).us
    return total


@cache
def decode_lines(
    gpu: KernelGpu, kind: str, kv: str, weights: Format, heads: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray, str]:
    """(decodes, launch in us, us per token of context, kernel) of modules without their products."""
    operation = f"{kind}_decode"
    rows = tables(gpu.tables).rows[operation]
    mine = _rows(gpu.tables, operation, kv, weights.name, heads)
    batch, context, us = (rows[c][mine].astype(float) for c in ("batch", "context", "latency_us"))
    least = TIMED[kind][1].topk or LEAST_CONTEXT
    sizes, starts, slopes = [], [], []
    for n in np.unique(batch):
        one = (batch == n) & (context >= least)
        total, time = n * context[one], us[one]
        if len(total) < 2:
            continue
        start, slope = line(total, time)
        if slope > 0.0:
            sizes.append(n)
            starts.append(start)
            slopes.append(slope)
    at = np.array(sizes)
    launch = np.maximum(np.array(starts) - _products(gpu, kind, at, heads, weights), LEAST_US)
    kernel = str(rows["kernel"][mine][np.argmax(context)])
    return at, scipy.optimize.isotonic_regression(launch).x, rising(np.array(slopes)), kernel


@cache
def prefill_share(
    gpu: KernelGpu, kind: str, kv: str, weights: Format, heads: int, lengths: tuple[float, ...]
) -> np.ndarray:
    """The time of a token pair over its FLOP time, by prompt length, of modules without their products."""
    operation = f"{kind}_prefill"
    rows = tables(gpu.tables).rows[operation]
    mine = _rows(gpu.tables, operation, kv, weights.name, heads)
    at = np.unique(rows["context"][mine]).astype(float)
    us = np.array([rows["latency_us"][mine][rows["context"][mine] == n].min() for n in at])
    timed = TIMED[kind][1]
    flops_us = 2.0 * heads * (timed.nope + timed.rope + timed.value) / gpu.timed.bf16_flops
    short = at < LEAST_PROMPT
    rest = us - _products(gpu, kind, at, heads, weights)
    pairs = at * (at + 1.0) / 2.0
    least = flops_us * pairs * (0.1 if timed.topk else 1.0)
    above = np.maximum(rest - np.median(rest[short]), least)[~short]
    at, pairs = at[~short], pairs[~short]
    return pair_share(np.array(lengths), at, above, pairs, flops_us)
