"""Matrix products: the linear layers of a step and its routed experts, from measured shapes."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping
from functools import cache
from typing import NamedTuple

import numpy as np

from simulator.kernels import roofline
from simulator.kernels.roofline import KernelGpu, Timing
from simulator.kernels.tables import tables
from simulator.model.formats import BF16, FP8, FP8_BLOCK, MXFP4, NVFP4, Format

ACTIVATION_BYTES = 2.0
TYPICAL = 0.7  # the efficiency where no measurement is believed: that of most trusted shapes


# The tables' types for weights of each format, the best first. A type that is not the format's own lends its efficiency
# to the bound of the format's bytes: weights alone in 4 bits are widened and multiplied in 16, by Marlin kernels.
GEMM_TYPES: Mapping[str, tuple[str, ...]] = {
    "fp8": ("fp8", "bf16"),
    "fp8_block": ("fp8_block", "fp8", "bf16"),
    "int8": ("fp8", "bf16"),
    "nvfp4": ("nvfp4", "bf16"),
}
MOE_TYPES: Mapping[str, tuple[str, ...]] = {
    "fp8": ("fp8_block", "fp8", "bf16"),
    "fp8_block": ("fp8_block", "fp8", "bf16"),
    "int8": ("fp8_block", "fp8", "bf16"),
    "nvfp4": ("nvfp4", "int4", "mxfp4", "bf16"),
    "mxfp4": ("mxfp4", "int4", "bf16"),
}
WEIGHTS_ALONE = ("int4", "mxfp4", "bf16")  # of experts
OTHER_TYPE = 2.0  # octaves of a shape that a less fitting type counts for
OWN_BYTES = {f.name: f.bytes for f in (BF16, FP8, FP8_BLOCK, NVFP4, MXFP4)} | {"int4": 4.5 / 8}  # groups of 32


def gemm(gpu: KernelGpu, at: np.ndarray, n: int, k: int, weights: Format) -> Timing:
    """The time of a linear layer from width k to width n, for `at` tokens: efficiency interpolated in log n, log k."""

    def bound(gpu: KernelGpu, tokens: np.ndarray, n: int, k: int, name: str, size: float) -> np.ndarray:
        moved = n * k * size + tokens * (n + k) * ACTIVATION_BYTES
        return roofline.bound_us(moved, 2.0 * tokens * n * k, gpu, name)

    here = bound(gpu, at, n, k, weights.name, weights.bytes)
    types = [t for t in GEMM_TYPES.get(weights.name, ("bf16",)) if gemm_rows(gpu.tables, t)[0]]

    def shares(dtype: str, shape: tuple[int, int]) -> np.ndarray | None:
        tokens, us = _gemm_curve(gpu.tables, dtype, *shape)
        return roofline.efficiency(at, tokens, us, bound(gpu.timed, tokens, *shape, dtype, OWN_BYTES[dtype]))

    for dtype in types:
        shapes, kernel = gemm_rows(gpu.tables, dtype)
        found = [(weight, shares(dtype, corner)) for weight, corner in _corners(gpu.tables, dtype, n, k)]
        corners = [(weight, share) for weight, share in found if share is not None]
        total = sum(weight for weight, _ in corners)
        if total > 0.0:
            widths = _gemm_widths(gpu.tables, dtype)
            off = max(_off(measured, width) for measured, width in zip(widths, (n, k), strict=True))
            mean = sum(weight * share for weight, share in corners) / total
            exact = dtype == weights.name and (n, k) in shapes
            within = all(measured[0] <= x <= measured[-1] for measured, x in zip(widths, (n, k), strict=True))
            between = dtype == weights.name and total > 0.999 and within
            kind = roofline.MEASURED if exact else roofline.INTERPOLATED if between else roofline.NEAREST
            return Timing(roofline.rising(here / mean), here, kind, _in(dtype, weights, kernel), off)
    for dtype in types:
        shapes, kernel = gemm_rows(gpu.tables, dtype)
        for shape in sorted(sorted(shapes), key=lambda s: roofline.octaves(s[0], n) + roofline.octaves(s[1], k))[:20]:
            if (share := shares(dtype, shape)) is not None:
                off = max(roofline.octaves(shape[0], n), roofline.octaves(shape[1], k))
                us = roofline.rising(here / share)
                return Timing(us, here, roofline.NEAREST, _in(dtype, weights, kernel), off)
    return Timing(here / TYPICAL, here, roofline.DATASHEET, "none", 0.0)


def _in(dtype: str, weights: Format, kernel: str) -> str:
    """The kernel, with the type of weights in which it was timed if that is another one."""
    return kernel if dtype == weights.name else f"{kernel} timed in {dtype}"


def _corners(name: str, dtype: str, n: int, k: int) -> Iterator[tuple[float, tuple[int, int]]]:
    """The measured shapes around (n, k), with their weights in a bilinear interpolation of the logarithms."""
    shapes, _ = gemm_rows(name, dtype)
    sides = [_bracket(grid, size) for grid, size in zip(_gemm_widths(name, dtype), (n, k), strict=True)]
    for a, weight_a in sides[0]:
        for b, weight_b in sides[1]:
            if weight_a * weight_b > 0.0 and (a, b) in shapes:
                yield weight_a * weight_b, (a, b)


def _bracket(grid: list[int], size: int) -> list[tuple[int, float]]:
    """The two sizes of a grid around `size`, with their weights in an interpolation of the logarithms."""
    size = min(max(size, grid[0]), grid[-1])
    i = min(int(np.searchsorted(grid, size, side="right")), len(grid) - 1)
    low, high = grid[max(i - 1, 0)], grid[i]
    share = 0.0 if high == low else float(np.log(size / low) / np.log(high / low))
    return [(low, 1.0 - share), (high, share)]


def _off(measured: list[int], width: int) -> float:
    """Octaves from a width to the nearest of the measured ones, which are in order."""
    i = bisect_left(measured, width)
    return min(roofline.octaves(near, width) for near in measured[max(i - 1, 0) : i + 1])


@cache
def gemm_rows(name: str, dtype: str) -> tuple[dict[tuple[int, int], tuple[np.ndarray, np.ndarray]], str]:
    """(n, k) -> (tokens, measured latencies in us), and the kernel."""
    rows = tables(name).rows["gemm"]
    mine = rows["dtype"] == dtype
    if not mine.any():
        return {}, ""
    order = np.lexsort([rows[c][mine] for c in ("tokens", "k", "n")])  # rows of several kernels are apart
    n, k, tokens, us = (rows[c][mine][order] for c in ("n", "k", "tokens", "latency_us"))
    starts = np.flatnonzero(np.r_[True, (n[1:] != n[:-1]) | (k[1:] != k[:-1])])
    curves = {}
    for begin, end in zip(starts, [*starts[1:], len(n)], strict=True):
        curves[int(n[begin]), int(k[begin])] = tokens[begin:end].astype(float), us[begin:end].astype(float)
    return curves, str(rows["kernel"][mine][0])


@cache
def _gemm_widths(name: str, dtype: str) -> tuple[list[int], list[int]]:
    """The distinct n of the measured shapes, and their distinct k, each in order."""
    shapes, _ = gemm_rows(name, dtype)
    return sorted({n for n, _ in shapes}), sorted({k for _, k in shapes})


@cache
def _gemm_curve(name: str, dtype: str, n: int, k: int) -> tuple[np.ndarray, np.ndarray]:
    """(tokens, latencies in us) of a measured shape, as a curve that never falls."""
    tokens, us = gemm_rows(name, dtype)[0][n, k]
    return tokens, roofline.rising(us)


class Experts(NamedTuple):
    """The routed experts of a layer: `ffn` is the width of one on a GPU; `ranks` GPUs share the experts."""

    hidden: int
    ffn: int
    experts: int
    active: int
    ranks: int = 1


UNIFORM, BALANCED = "uniform", "balanced"
ROUTINGS = (UNIFORM, BALANCED, "power_law_1.01", "power_law_1.2")


def moe(gpu: KernelGpu, at: np.ndarray, shape: Experts, weights: Format, routing: str = UNIFORM) -> Timing:
    """The time of the routed experts of a layer on one GPU for `at` tokens, by the nearest measured shape's efficiency.

    The time depends mostly on how many experts the tokens touch. In balanced measurements tokens are spread evenly, so
    that this number is known; for `uniform` routing their efficiency is applied to the weights of the experts that
    random tokens touch. GPUs without balanced measurements have skewed ones, which are treated as random. Any other
    routing is that of the tables. Tokens are those of all GPUs that share the experts.
    """

    def bound(
        gpu: KernelGpu, tokens: np.ndarray, shape: Experts, name: str, size: float, even: bool = False
    ) -> np.ndarray:
        hidden, ffn, experts, active, ranks = shape
        chosen = experts * (1.0 - (1.0 - active / experts) ** tokens)
        touched = (np.minimum(active * tokens, experts) if even else chosen) / ranks
        moved = touched * 3 * hidden * ffn * size + tokens * active * (hidden + ffn) * ACTIVATION_BYTES / ranks
        return roofline.bound_us(moved, 2.0 * 3 * hidden * ffn * active * tokens / ranks, gpu, name)

    here = bound(gpu, at, shape, weights.name, weights.bytes, routing == BALANCED)
    types = ("bf16",) if weights == BF16 else MOE_TYPES.get(weights.name, WEIGHTS_ALONE)
    if weights.name == "fp8" and tensor_scales(gpu.tables):
        types = ("fp8", "fp8_block", "bf16")
    near = []
    for rank, dtype in enumerate(types):
        measured, even = moe_rows(gpu.tables, dtype, routing)
        alike = [other for other in measured if other.ranks == shape.ranks]
        for other in alike or measured:
            far = sum(roofline.octaves(a, b) for a, b in zip(other, shape, strict=True))
            near.append((far + OTHER_TYPE * rank, rank, other))
    for _, rank, other in sorted(near)[:10]:
        dtype = types[rank]
        measured, even = moe_rows(gpu.tables, dtype, routing)
        tokens, us, kernel = measured[other]
        share = roofline.efficiency(at, tokens, us, bound(gpu.timed, tokens, other, dtype, OWN_BYTES[dtype], even))
        if share is not None:
            if routing in (UNIFORM, BALANCED):  # the benchmark's tokens may have touched fewer experts
                share = np.minimum(share, 1.0)
            off = max(roofline.octaves(a, b) for a, b in zip(other, shape, strict=True))
            kind = roofline.MEASURED if other == shape and dtype == weights.name else roofline.NEAREST
            return Timing(roofline.rising(here / share), here, kind, _in(dtype, weights, kernel), off)
    return Timing(here / TYPICAL, here, roofline.DATASHEET, "none", 0.0)


@cache
def tensor_scales(name: str) -> bool:
    """True for a GPU whose fast kernels of experts take one scale a tensor: Blackwell, which has NVFP4 experts too.

    On Hopper these kernels are slower than those of 16 bits, and vLLM runs others.
    """
    return bool(moe_rows(name, "nvfp4")[0])


@cache
def moe_rows(
    name: str, dtype: str, routing: str = UNIFORM
) -> tuple[dict[Experts, tuple[np.ndarray, np.ndarray, str]], bool]:
    """Shape -> (tokens, latencies in us, kernel) as curves that never fall, and whether they are of balanced routing.

    Without measurements of the routing they are the geometric means of the skewed ones.
    """
    rows = tables(name).rows["moe"]
    mine = rows["dtype"] == dtype
    wanted = mine & (rows["routing"] == (BALANCED if routing == UNIFORM else routing))
    even = bool(wanted.any()) and routing in (UNIFORM, BALANCED)
    mine = wanted if wanted.any() else mine
    logs: dict[Experts, dict[int, list[float]]] = {}
    kernels: dict[Experts, str] = {}
    columns = ("hidden", "ffn", "gpus", "ep", "experts", "active", "tokens", "kernel")
    rows_logs = np.log(rows["latency_us"][mine].astype(float)).tolist()
    lists = (rows[c][mine].tolist() for c in columns)
    for hidden, ffn, gpus, ranks, experts, active, tokens, kernel, log in zip(*lists, rows_logs, strict=True):
        shape = Experts(hidden, ffn // gpus, experts, active, ranks)
        logs.setdefault(shape, {}).setdefault(tokens, []).append(log)
        kernels[shape] = kernel
    curves = {}
    for shape, by_tokens in logs.items():
        at = sorted(by_tokens)
        means = [float(np.mean(by_tokens[t])) if len(by_tokens[t]) > 1 else by_tokens[t][0] for t in at]
        curves[shape] = np.array(at, float), roofline.rising(np.exp(means)), kernels[shape]
    return curves, even
