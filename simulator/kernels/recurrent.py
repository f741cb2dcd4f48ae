"""Recurrent layers: decode reads and writes the state of every request, prefill runs through the tokens of a prompt.

Gated delta nets were measured. All others have the efficiency of these on the bytes and FLOPs of their own states.
"""

from __future__ import annotations

from functools import cache

import numpy as np

from simulator.kernels.roofline import DATASHEET, LAUNCH_US, NEAREST, KernelGpu, Timing, octaves, rising
from simulator.kernels.tables import tables
from simulator.model.layers import Recurrent

STATE_BYTES = 4  # of a scalar of the state
FLOPS = 6.0  # of a token for each scalar of the state: outer product, decay, read-out
KERNELS = 2  # convolution, recurrence
TYPICAL = 0.5  # efficiency on GPUs without measurements
HEAD = 128  # widths of a key and of a value of the measured layers

Shape = tuple[int, int]  # value heads and key heads of one GPU


def recurrent(gpu: KernelGpu, at: np.ndarray, lengths: np.ndarray, kind: Recurrent, gpus: int) -> tuple[Timing, Timing]:
    """The time of a layer's decode by requests, and of a token pair of its prefill by prompt length.

    A pair's time falls as the prompt grows, so that the whole prompt takes as long as its tokens do.
    """
    state = kind.state / gpus
    decode = KERNELS * LAUNCH_US / 2 + 2.0 * at * kind.state_bytes / gpus / gpu.bytes
    tokens_us = FLOPS * state / gpu.bf16_flops
    pairs = lengths * (lengths + 1.0) / 2.0
    prefill = tokens_us * lengths
    wanted = max(kind.value_heads // gpus, 1), max(kind.key_heads // gpus, 1)
    if "recurrent_decode" not in tables(gpu.tables).rows:
        one = Timing(decode / TYPICAL, decode, DATASHEET, "none")
        return one, Timing(prefill / TYPICAL / pairs, prefill / pairs, DATASHEET, "none")
    shape = min(sorted(rows(gpu.tables, "recurrent_decode")), key=lambda s: _far(s, wanted))
    (sizes, us), kernel = rows(gpu.tables, "recurrent_decode")[shape]
    timed = shape[0] * HEAD * HEAD
    least = KERNELS * LAUNCH_US / 2 + 2.0 * sizes * timed * STATE_BYTES / gpu.timed.bytes
    share = np.interp(np.log(at), np.log(sizes), rising(us) / least)
    (spans, prefill_us), prefill_kernel = rows(gpu.tables, "recurrent_prefill")[shape]
    long = spans >= HEAD
    of_flops = rising(prefill_us)[long] / (FLOPS * timed / gpu.timed.bf16_flops * spans[long])
    factor = np.interp(np.log(lengths), np.log(spans[long]), of_flops)
    off = _far(shape, wanted)
    return (
        Timing(rising(decode * share), decode, NEAREST, kernel, off),
        Timing(prefill * factor / pairs, prefill / pairs, NEAREST, prefill_kernel, off),
    )


def _far(shape: Shape, wanted: Shape) -> float:
    return max(octaves(a, b) for a, b in zip(shape, wanted, strict=True))


@cache
def rows(name: str, operation: str) -> dict[Shape, tuple[tuple[np.ndarray, np.ndarray], str]]:
    """Shape -> ((requests or lengths, us), kernel), in order."""
    every = tables(name).rows[operation]
    size = "batch" if operation == "recurrent_decode" else "context"
    found = {}
    for shape in sorted({(int(v), int(k)) for v, k in zip(every["heads"], every["kv_heads"], strict=True)}):
        mine = np.flatnonzero((every["heads"] == shape[0]) & (every["kv_heads"] == shape[1]))
        mine = mine[np.argsort(every[size][mine])]  # rows of several kernels are apart
        columns = every[size][mine].astype(float), every["latency_us"][mine].astype(float)
        found[shape] = columns, str(every["kernel"][mine][0])
    return found
