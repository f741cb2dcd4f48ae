"""Attention: decode as a line in the context of the batch, prefill as token pairs at the efficiency of their length.

The two never share a coefficient. Decode reads the KV cache and is bound by memory: it takes 90 to 100 times its FLOP
time. Prefill is bound by compute: it takes 1.3 to 1.6 times its FLOP time from 4k tokens on, and more below.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import scipy

from simulator.kernels.roofline import LAUNCH_US, MEASURED, NEAREST, KernelGpu, Timing, octaves, rising
from simulator.kernels.tables import tables

MOST_KV_HEADS = 8  # in the decode tables; for more, the part above the launch is scaled
# A kernel that is timed repeatedly finds its KV cache in the L2 cache if it fits. In a real step every layer reads its
# own KV cache, which is never there. So only measurements above this size count.
COLD_BYTES = 48e6
LEAST_CONTEXT = 256  # tokens; below it the kernel is not bound by memory
LEAST_PROMPT = 128  # tokens; shorter prompts take the time of the launch, independent of their length
ELEMENT_BYTES = {"bf16": 2, "fp8": 1}  # of the measured KV caches
STEEPER = 1.05  # prefill attention grows at least with this power of the length, so that interpolation never falls


@dataclass(frozen=True, slots=True)
class Heads:
    """One GPU's share of a layer's attention; `kv_width` is the number of cached scalars per token, of `kv_bytes`."""

    heads: int
    kv_heads: int
    head_dim: int
    kv_width: int
    kv_bytes: int


@dataclass(frozen=True, slots=True)
class Decode:
    """Decode attention of one layer: us = launch(n) + per_token(n) * (tokens of context of the n decodes)."""

    launch: Timing
    per_token: Timing


def decode(gpu: KernelGpu, at: np.ndarray, heads: Heads) -> Decode:
    """The time of decode attention for `at` decodes.

    Where the tables have 16-bit KV caches alone, one of 8 bits takes half as long for a token of context, and the same
    launch. Neither part falls as their number grows, so that more work never takes less time.
    """
    limit = min(heads.kv_heads, MOST_KV_HEADS)
    wanted = max(heads.heads * limit // heads.kv_heads, 1), limit, heads.head_dim
    kv = kv_type(gpu.tables, "decode_attention", heads.kv_bytes)
    rows = decode_rows(gpu.tables, kv)
    shape = nearest_decode(gpu.tables, wanted, kv)
    batches, launch, slope = decode_lines(gpu.tables, shape, kv)
    bound = np.full(len(at), heads.kv_width * heads.kv_bytes / gpu.bytes)
    # The kernel is bound by memory: scale the slope of the measured shape by the bytes of this one, and by bandwidth.
    per_token = np.interp(np.log(at), np.log(batches), slope) * heads.kv_width / (2 * shape[1] * shape[2])
    per_token *= gpu.timed.bytes / gpu.bytes
    per_token *= heads.kv_bytes / ELEMENT_BYTES[kv]
    start = np.interp(at, batches, launch)
    if at[-1] > batches[-1]:
        rate = (launch[-1] - launch[-2]) / (batches[-1] - batches[-2])
        start = np.where(at > batches[-1], launch[-1] + rate * (at - batches[-1]), start)
    kernel = rows[shape][1]
    off = max(_off(shape, wanted), octaves(heads.kv_heads, limit))
    measured = shape == wanted and heads.kv_heads <= MOST_KV_HEADS and heads.kv_bytes == ELEMENT_BYTES[kv]
    if not measured:  # a smaller cache may have been in the L2 cache in part
        per_token = np.maximum(per_token, bound)
    kind = MEASURED if measured else NEAREST
    return Decode(
        Timing(start, np.full(len(at), LAUNCH_US), kind, kernel, off), Timing(per_token, bound, kind, kernel, off)
    )


def verifying(one: Decode, width: int, pair_us: float) -> Decode:
    """Decode attention of `width` tokens of each decode, which reads the KV cache once.

    A token of context takes at least as long as its pairs with them, `pair_us` each, at the speed of long prompts.
    """
    us = np.maximum(one.per_token.us, width * pair_us)
    return replace(one, per_token=replace(one.per_token, us=us))


def prefill(gpu: KernelGpu, at: np.ndarray, heads: Heads) -> Timing:
    """The time of one attended token pair, for prompts of `at` tokens.

    Without the launch, which a step with decodes makes anyway. The time of a whole prompt grows at least with its
    length and at most with its square, even where the table is noisy.
    """
    rows = prefill_rows(gpu.tables, kv_type(gpu.tables, "prefill_attention", heads.kv_bytes))
    wanted = heads.heads, heads.kv_heads, heads.head_dim
    shape = _nearest(rows, wanted)
    (lengths, us), kernel = rows[shape]
    pairs = lengths * (lengths + 1.0) / 2.0
    flops_us = 4.0 * shape[0] * shape[2] / gpu.timed.bf16_flops
    short = lengths < LEAST_PROMPT
    above = np.maximum(us - np.median(us[short]), flops_us * pairs)[~short]
    lengths, pairs = lengths[~short], pairs[~short]
    times_flops = pair_share(at, lengths, above, pairs, flops_us)
    bound = np.full(len(at), 4.0 * heads.heads * heads.head_dim / gpu.bf16_flops)
    kind = MEASURED if shape == wanted else NEAREST
    return Timing(times_flops * bound, bound, kind, kernel, _off(shape, wanted))


def pair_share(at: np.ndarray, lengths: np.ndarray, us: np.ndarray, pairs: np.ndarray, flops_us: float) -> np.ndarray:
    """The time of a token pair over its FLOP time, for prompts of `at` tokens, where prompts of `lengths` took `us`."""
    grown = rising(us / lengths**STEEPER) * lengths**STEEPER
    share = np.exp(scipy.optimize.isotonic_regression(np.log(grown / pairs), increasing=False).x) / flops_us
    times: np.ndarray = np.exp(np.interp(np.log(at), np.log(lengths), np.log(share)))
    # Prompts shorter than any measured: the time of the shortest, in proportion to the length.
    return np.where(at < lengths[0], share[0] * (lengths[0] + 1.0) / (at + 1.0), times)


def windowed(per_pair: Timing, at: np.ndarray, window: int) -> Timing:
    """Prefill attention to a sliding window: the pairs in it, at the time of a pair in a prompt as long as the window.

    It is still the time of a pair of the whole prompt, of `at` tokens, so that it falls beyond the window. Never more
    than without a window, which a noisy table may have in prompts little longer than it.
    """
    pairs = at * (at + 1.0) / 2.0
    inside = np.where(at > window, window * (at - (window - 1.0) / 2.0), pairs)
    at_window = np.exp(np.interp(np.log(np.minimum(at, window)), np.log(at), np.log(per_pair.us)))
    share = inside / pairs
    us = np.minimum(at_window * share, per_pair.us)
    return replace(per_pair, us=us, bound_us=per_pair.bound_us * share)


Shape = tuple[int, int, int]  # heads, KV heads, head_dim


def _off(shape: Shape, wanted: Shape) -> float:
    return max(octaves(a, b) for a, b in zip(shape, wanted, strict=True))


def _nearest(rows: Mapping[Shape, object], wanted: Shape) -> Shape:
    """The measured shape closest to the wanted one, first in KV heads and head_dim, then in heads."""

    def distance(shape: Shape) -> tuple[float, float]:
        return octaves(shape[1], wanted[1]) + octaves(shape[2], wanted[2]), octaves(shape[0], wanted[0])

    return min(sorted(rows), key=distance)


@cache
def kv_type(name: str, operation: str, kv_bytes: int) -> str:
    """The type of KV cache in the tables for one of so many bytes: 16 bits where 8 were not measured."""
    measured = set(tables(name).rows[operation]["kv"])
    return "fp8" if kv_bytes == 1 and "fp8" in measured else "bf16"


def _grouped(name: str, operation: str, kv: str, columns: tuple[str, ...]) -> dict[Shape, tuple[list[np.ndarray], str]]:
    """Shape -> the columns of its rows without a window, in order, and the kernel."""
    rows = tables(name).rows[operation]
    chosen = rows["kv"] == kv
    if "window" in rows:
        chosen &= rows["window"] == 0
    keys = np.stack([rows[c][chosen] for c in ("heads", "kv_heads", "head_dim")], axis=1)
    grouped = {}
    shapes, of_row = np.unique(keys, axis=0, return_inverse=True)
    for i, key in enumerate(shapes):
        mine = np.flatnonzero(chosen)[of_row == i]
        mine = mine[np.lexsort([rows[c][mine] for c in reversed(columns)])]  # rows of several kernels are apart
        shape = int(key[0]), int(key[1]), int(key[2])
        # Name the kernel of the longest context: a few of the shortest may use a different one.
        kernel = str(rows["kernel"][mine][np.argmax(rows["context"][mine])])
        grouped[shape] = [rows[c][mine].astype(float) for c in columns], kernel
    return grouped


@cache
def decode_rows(name: str, kv: str = "bf16") -> dict[Shape, tuple[list[np.ndarray], str]]:
    return _grouped(name, "decode_attention", kv, ("batch", "context", "latency_us"))


@cache
def nearest_decode(name: str, wanted: Shape, kv: str) -> Shape:
    """The closest shape with a line: of some, all KV caches fit in the L2 cache."""
    rows = dict(decode_rows(name, kv))
    while len(decode_lines(name, shape := _nearest(rows, wanted), kv)[0]) < 2:
        del rows[shape]
    return shape


@cache
def prefill_rows(name: str, kv: str = "bf16") -> dict[Shape, tuple[list[np.ndarray], str]]:
    """Shape -> ([lengths, us], kernel), in order of length."""
    return _grouped(name, "prefill_attention", kv, ("context", "latency_us"))


def line(total: np.ndarray, us: np.ndarray) -> tuple[float, float]:
    """(start, slope) of the line through times by tokens of context, by least squares of the relative errors."""
    a = np.stack([np.ones_like(total), total], axis=1) / us[:, None]
    start, slope = np.linalg.lstsq(a, np.ones_like(us), rcond=None)[0]
    return float(start), float(slope)


@cache
def decode_lines(name: str, shape: Shape, kv: str = "bf16") -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(decodes, launch in us, us per token of context): a line for every measured number of decodes."""
    (batch, cached, us), _ = decode_rows(name, kv)[shape]
    context = cached + 1.0  # the table does not count the new token
    token_bytes = 2 * shape[1] * shape[2] * ELEMENT_BYTES[kv]
    lines = []
    for n in np.unique(batch):
        mine = (batch == n) & (context >= LEAST_CONTEXT) & (batch * context * token_bytes >= COLD_BYTES)
        if mine.sum() >= 2:
            total, time = n * context[mine], us[mine]
            start, slope = line(total, time)
            if slope > 0.0:
                lines.append((float(n), start, slope, total, time))
    sizes = np.array([n for n, *_ in lines])
    slopes = rising(np.array([slope for _, _, slope, *_ in lines]))
    starts = [
        max(float(np.median(time - slope * total)), LAUNCH_US)
        for slope, (_, _, _, total, time) in zip(slopes, lines, strict=True)
    ]
    return sizes, scipy.optimize.isotonic_regression(starts).x, slopes
