"""The all-reduce between the GPUs of a deployment, from measured messages."""

from __future__ import annotations

from functools import cache

import numpy as np

from simulator.kernels.roofline import (
    DATASHEET,
    INTERPOLATED,
    LAUNCH_US,
    MEASURED,
    NEAREST,
    Gpu,
    Timing,
    octaves,
    rising,
)
from simulator.kernels.tables import tables

# vLLM's own kernel takes messages up to this size and leaves larger ones to NCCL (vllm, custom_all_reduce.py).
CUSTOM_BYTES = 8 * 2**20
CUSTOM = "vllm_graph"  # the steps of a running engine are CUDA graphs


def allreduce(gpu: Gpu, message_bytes: np.ndarray, gpus: int) -> Timing:
    """One all-reduce of `message_bytes` over `gpus`; 0 on a single GPU."""
    if gpus == 1:
        nothing = np.zeros(len(message_bytes))
        return Timing(nothing, nothing, MEASURED, "none")
    ring = 2.0 * (gpus - 1) / gpus * message_bytes / gpu.link_bytes
    bound = LAUNCH_US + ring
    custom, nccl = _curves(gpu.tables, CUSTOM), _curves(gpu.tables, "nccl")
    here = custom or nccl
    if not here:
        return Timing(2.0 * bound, bound, DATASHEET, "none")
    counted = min(here, key=lambda n: (octaves(n, gpus), n))
    us = _at(here[counted], message_bytes)
    if custom and nccl:
        large = nccl[min(nccl, key=lambda n: (octaves(n, gpus), n))]
        us = np.where(message_bytes <= CUSTOM_BYTES, us, _at(large, message_bytes))
    kind = (INTERPOLATED if custom else NEAREST) if counted == gpus else NEAREST
    return Timing(rising(us), bound, kind, CUSTOM if custom else "nccl", octaves(counted, gpus))


def _at(curve: tuple[np.ndarray, np.ndarray], message_bytes: np.ndarray) -> np.ndarray:
    """Straight lines between the measured sizes, in proportion beyond the largest."""
    sizes, us = curve
    found: np.ndarray = np.interp(message_bytes, sizes, us)
    return np.where(message_bytes > sizes[-1], us[-1] * message_bytes / sizes[-1], found)


@cache
def _curves(name: str, kernel: str) -> dict[int, tuple[np.ndarray, np.ndarray]]:
    """GPUs -> (bytes, us) of a kernel, never falling."""
    rows = tables(name).rows["allreduce"]
    mine = rows["kernel"] == kernel
    gpus, sizes, us = (rows[c][mine] for c in ("gpus", "bytes", "latency_us"))
    return {int(n): (sizes[gpus == n].astype(float), rising(us[gpus == n].astype(float))) for n in np.unique(gpus)}
