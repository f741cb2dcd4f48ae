"""The datasheet's bound of a kernel, and the efficiency that measurements show against it.

The bound is the larger of bytes over memory bandwidth and FLOPs over the peak, plus the launch of a kernel (Williams,
Waterman, Patterson, Roofline, CACM 2009). A measured latency is believed if it is between 0.8 and 4 times the bound.
Between measured shapes the efficiency (bound over latency) is interpolated, because it varies far less than latency.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
import scipy

LAUNCH_US = 3.0  # the shortest kernels in the tables take 2.5 to 5 us
BELIEVED = (0.8, 4.0)  # measured latency over the bound

MEASURED, INTERPOLATED, NEAREST, DATASHEET = "measured", "interpolated", "nearest shape", "datasheet"
KINDS = (MEASURED, INTERPOLATED, NEAREST, DATASHEET)  # the most certain first


@dataclass(frozen=True, slots=True)
class KernelGpu:
    """A GPU's peaks per microsecond. `tables` names its measured kernels.

    `fp8_flops` and `fp4_flops` are None without such cores. `timed_on` is the GPU on which these were measured; None:
    this one, or one with the same peaks.
    """

    tables: str
    bf16_flops: float
    fp8_flops: float | None
    bytes: float
    link_bytes: float
    timed_on: KernelGpu | None = None
    fp4_flops: float | None = None

    @property
    def timed(self) -> KernelGpu:
        """The GPU whose peaks make efficiencies of the measured latencies."""
        return self.timed_on or self

    def flops(self, name: str) -> float:
        """The dense peak for weights of a `Format`, by its name. What the cores lack is widened to 16 bits."""
        wanted = {"fp8": self.fp8_flops, "fp8_block": self.fp8_flops, "int8": self.fp8_flops, "nvfp4": self.fp4_flops}
        if name == "mxfp4" and self.fp4_flops:  # Blackwell multiplies it by activations in 8 bits
            return self.fp8_flops or self.bf16_flops
        return wanted.get(name) or self.bf16_flops


@dataclass(frozen=True, slots=True)
class Timing:
    """The time of one call at every knot, and where it comes from."""

    us: np.ndarray
    bound_us: np.ndarray  # the datasheet's bound
    kind: str  # one of KINDS
    kernel: str  # the kernel that was timed
    off_grid: float = 0.0  # octaves from the measured shapes, in the worst dimension


def bound_us(moved_bytes: np.ndarray, flops: np.ndarray, gpu: KernelGpu, name: str) -> np.ndarray:
    """The datasheet's bound in us, including the launch, for weights of the `Format` of this name."""
    slower: np.ndarray = np.maximum(moved_bytes / gpu.bytes, flops / gpu.flops(name))
    return LAUNCH_US + slower


def rising(us: np.ndarray) -> np.ndarray:
    """The closest curve that never falls (isotonic regression of the logarithms), because tables are noisy."""
    smoothed: np.ndarray = np.exp(scipy.optimize.isotonic_regression(np.log(us)).x)
    return smoothed


def efficiency(at: np.ndarray, tokens: np.ndarray, us: np.ndarray, bound: np.ndarray) -> np.ndarray | None:
    """The efficiency at sizes `at` of a kernel that took `us` at `tokens`, where its bound is `bound`.

    Measurements that are not believed are replaced by interpolation; None if fewer than half are believed.
    """
    ratio = us / bound
    sure = (ratio >= BELIEVED[0]) & (ratio <= BELIEVED[1])
    if 2 * sure.sum() < len(sure):
        return None
    share: np.ndarray = np.interp(np.log(at), np.log(tokens[sure]), 1.0 / ratio[sure])
    return share


@cache
def octaves(a: float, b: float) -> float:
    """The distance of two sizes, in powers of 2, to nine digits, so that ties are the same with every maths library."""
    return round(float(abs(np.log2(a / b))), 9)
