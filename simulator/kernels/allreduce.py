"""All-reduces between the GPUs of a deployment, gathers and scatters between its ranks, from measured messages."""

from __future__ import annotations

from functools import cache

import numpy as np

from simulator.kernels import roofline
from simulator.kernels.roofline import KernelGpu, Timing
from simulator.kernels.tables import tables

# vLLM's own kernel takes messages up to this size; larger ones go to NCCL (vllm, custom_all_reduce.py).
CUSTOM_BYTES = 8 * 2**20
CUSTOM = "vllm_graph"  # the variant inside CUDA graphs, as in the steps of a running engine
NO_NVLINK = 100e3  # bytes a us: a link as slow is no NVLink, and vLLM's kernel runs on two such GPUs at most
CUSTOMS = (CUSTOM, "TRTLLM")  # on Blackwell the engine calls TensorRT-LLM's, which also norms

# On 6 to 8 GPUs the kernels above are the fastest only up to 256 kB on Hopper, 1 MB on Blackwell; from there to 64 MB
# the engine reduces in the NVLink switch (vllm, all_reduce_utils.py, flashinfer_all_reduce.py). The tables do not have
# that kernel. These are us by kB for 8 GPUs with Hopper's switch, from vllm-project/vllm, pull request 42324,
# symm_mem_multimem; Blackwell's, of twice the bandwidth, is not slower.
SWITCHED_ABOVE = {  # kB
    **dict.fromkeys(("h100_sxm", "h200_sxm"), 256),
    **dict.fromkeys(("b200_sxm", "b300_sxm", "gb200", "gb300"), 1024),
}
SWITCHED_GPUS = range(6, 9)
SWITCHED = "symm_mem_multimem"
_KB = (512, 1024, 1536, 2048, 3072, 4096, 8192, 16384, 32768, 65536)
_US = (11.0, 14.0, 16.0, 18.0, 23.0, 27.0, 46.0, 87.0, 165.0, 320.0)
SWITCHED_US = dict(zip(_KB, _US, strict=True))

# The longest time believed is this wait, as eight GPUs have over PCIe, plus four times what the link needs. In the
# tables of GPUs without NVLink some messages took forty times as long: those are cut to this limit.
LATEST_US = 30.0


def allreduce(gpu: KernelGpu, message_bytes: np.ndarray, gpus: int) -> Timing:
    """The time of one all-reduce of `message_bytes` over `gpus`; 0 on a single GPU."""
    if gpus == 1:
        nothing = np.zeros(len(message_bytes))
        return Timing(nothing, nothing, roofline.MEASURED, "none")
    sent = 2.0 * (gpus - 1) / gpus * message_bytes
    ring = sent / gpu.link_bytes
    bound = roofline.LAUNCH_US + ring
    own = next((name for name in CUSTOMS if _curves(gpu.tables, name)), CUSTOM)
    custom, nccl = _curves(gpu.tables, own), _curves(gpu.tables, "nccl")
    if gpu.link_bytes < NO_NVLINK and gpus > 2 and nccl:
        custom = {}
    here = custom or nccl
    if not here:
        return Timing(2.0 * bound, bound, roofline.DATASHEET, "none")
    counted = min(here, key=lambda n: (roofline.octaves(n, gpus), n))
    us, kernel = _at(here[counted], message_bytes), own if custom else "nccl"
    if custom and nccl:
        large = nccl[min(nccl, key=lambda n: (roofline.octaves(n, gpus), n))]
        us = np.where(message_bytes <= CUSTOM_BYTES, us, _at(large, message_bytes))
    if gpus in SWITCHED_GPUS and (above := SWITCHED_ABOVE.get(gpu.tables)):
        size = message_bytes / 2**10
        switched = np.interp(size, list(SWITCHED_US), list(SWITCHED_US.values()))
        us = np.where((size > above) & (size <= max(SWITCHED_US)), np.minimum(us, switched), us)
        kernel += f", {SWITCHED}"
    us = us * (bound / (roofline.LAUNCH_US + sent / gpu.timed.link_bytes))
    most = LATEST_US + roofline.BELIEVED[1] * ring
    sure = bool((us <= most).all() and counted == gpus and custom)
    kind = roofline.INTERPOLATED if sure else roofline.NEAREST
    return Timing(roofline.rising(np.minimum(us, most)), bound, kind, kernel, roofline.octaves(counted, gpus))


def collective(gpu: KernelGpu, operation: str, message_bytes: np.ndarray, gpus: int) -> Timing:
    """The time of an `allgather` or a `reducescatter` of `message_bytes` in all over `gpus`, by NCCL."""
    bound = roofline.LAUNCH_US + (gpus - 1) / gpus * message_bytes / gpu.link_bytes
    measured = _curves(gpu.tables, "nccl", operation)
    if not measured:
        return Timing(2.0 * bound, bound, roofline.DATASHEET, "none")
    counted = min(measured, key=lambda n: (roofline.octaves(n, gpus), n))
    us = _at(measured[counted], message_bytes)
    kind = roofline.INTERPOLATED if counted == gpus else roofline.NEAREST
    return Timing(roofline.rising(us), bound, kind, "nccl", roofline.octaves(counted, gpus))


def _at(curve: tuple[np.ndarray, np.ndarray], message_bytes: np.ndarray) -> np.ndarray:
    """The curve at these sizes: straight lines between the measured ones, in proportion beyond the largest."""
    sizes, us = curve
    inside: np.ndarray = np.interp(message_bytes, sizes, us)
    return np.where(message_bytes > sizes[-1], us[-1] * message_bytes / sizes[-1], inside)


@cache
def _curves(name: str, kernel: str, operation: str = "allreduce") -> dict[int, tuple[np.ndarray, np.ndarray]]:
    """GPUs -> (bytes, us) of a kernel, as curves that never fall."""
    rows = tables(name).rows[operation]
    mine = rows["kernel"] == kernel
    gpus, sizes, us = (rows[c][mine] for c in ("gpus", "bytes", "latency_us"))
    return {
        int(n): (sizes[gpus == n].astype(float), roofline.rising(us[gpus == n].astype(float))) for n in np.unique(gpus)
    }
