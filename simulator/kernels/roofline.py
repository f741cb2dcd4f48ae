"""The datasheet's bound of a kernel, and what measurements say against it.

A measured latency is believed between 0.8 and 4 times the bound, which is the larger of bytes over the memory's
bandwidth and FLOPs over the peak, plus the launch of a kernel (Williams, Waterman, Patterson, Roofline, CACM 2009).
Between measured shapes the efficiency (bound over latency) is interpolated, not the latency: it varies far less.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.optimize import isotonic_regression

LAUNCH_US = 3.0  # the shortest kernels of the tables take 2.5 to 5 us, whatever they do
BELIEVED = (0.8, 4.0)  # a measured latency over the bound

MEASURED, INTERPOLATED, NEAREST, DATASHEET = "measured", "interpolated", "nearest shape", "datasheet"
KINDS = (MEASURED, INTERPOLATED, NEAREST, DATASHEET)  # the surest first


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU's peaks, per microsecond; `tables` names its measured kernels, `fp8_flops` is None without fp8 cores."""

    tables: str
    bf16_flops: float
    fp8_flops: float | None
    bytes: float
    link_bytes: float

    def flops(self, weight_bytes: float) -> float:
        """The dense peak for weights of so many bytes; without fp8 cores they are widened first."""
        return self.fp8_flops if weight_bytes == 1.0 and self.fp8_flops else self.bf16_flops


@dataclass(frozen=True, slots=True)
class Timing:
    """The time of one call in us at every knot, and where it comes from: one of KINDS, the kernel that was timed, and
    how far off the measured shapes it lies (octaves, in the worst dimension)."""

    us: np.ndarray
    bound_us: np.ndarray
    kind: str
    kernel: str
    off_grid: float = 0.0


def bound_us(moved_bytes: np.ndarray, flops: np.ndarray, gpu: Gpu, weight_bytes: float) -> np.ndarray:
    """The datasheet's bound in us, launch included."""
    slower: np.ndarray = np.maximum(moved_bytes / gpu.bytes, flops / gpu.flops(weight_bytes))
    return LAUNCH_US + slower


def rising(us: np.ndarray) -> np.ndarray:
    """The closest curve that never falls (isotonic regression of the logarithms): tables are noisy."""
    out: np.ndarray = np.exp(isotonic_regression(np.log(us)).x)
    return out


def efficiency(at: np.ndarray, tokens: np.ndarray, us: np.ndarray, bound: np.ndarray) -> np.ndarray | None:
    """The efficiency at the sizes `at` of a kernel measured at `tokens`, whose bound there is `bound`; None where fewer
    than half of the measurements are believed. Those that are not take that of their neighbours."""
    ratio = us / bound
    sure = (ratio >= BELIEVED[0]) & (ratio <= BELIEVED[1])
    if 2 * sure.sum() < len(sure):
        return None
    found: np.ndarray = np.interp(np.log(at), np.log(tokens[sure]), 1.0 / ratio[sure])
    return found


def octaves(a: float, b: float) -> float:
    """How far apart two sizes are."""
    return float(abs(np.log2(a / b)))
