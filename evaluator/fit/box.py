"""A box around constants, for searches that have no slopes."""

from __future__ import annotations

import numpy as np

from evaluator.fit.problem import Problem, Scales

REACH = 27.0  # sizes of a constant that the box holds


class Box:
    """Some entries of phi as points of [0, 1]^n. Between finite bounds evenly; else as a cube, so that a third of the
    way is a constant's present size, its low end is resolved finely, and REACH sizes are within reach."""

    def __init__(self, problem: Problem, phi: np.ndarray, scales: Scales, which: np.ndarray) -> None:
        self.base, self.which = phi, which
        self.low, high = problem.low[which], problem.high[which]
        self.even = np.isfinite(high)
        self.span = np.where(self.even, high - self.low, REACH * np.maximum(phi[which] - self.low, scales[0][which]))
        share = np.clip((phi[which] - self.low) / self.span, 0.0, 1.0)
        self.start: np.ndarray = np.where(self.even, share, np.cbrt(share))

    def phi(self, x: np.ndarray) -> np.ndarray:
        x = np.clip(x, 0.0, 1.0)
        out: np.ndarray = self.base.copy()
        out[self.which] = self.low + self.span * np.where(self.even, x, x**3)
        return out
