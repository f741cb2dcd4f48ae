"""Least squares within bounds where slopes are not known: by differences, and SciPy's algorithm."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import scipy

from evaluator.fit.problem import SMALL


def slopes_by_differences(residuals: Callable[[np.ndarray], np.ndarray], at: np.ndarray) -> np.ndarray:
    """float64[residuals, constants]: forward differences of the residuals at these constants."""
    base = residuals(at)
    slopes = np.empty((base.size, at.size))
    for j, value in enumerate(at):
        step = 1e-6 * max(abs(value), SMALL)
        moved = at.copy()
        moved[j] += step
        slopes[:, j] = (residuals(moved) - base) / step
    return slopes


def solved_within(
    residuals: Callable[[np.ndarray], np.ndarray], start: np.ndarray, low: np.ndarray, high: np.ndarray, **options: Any
) -> np.ndarray:
    """float64[constants]: where the losses of the residuals are least within the bounds; `options` as SciPy's."""
    result = scipy.optimize.least_squares(residuals, start, bounds=(low, high), x_scale="jac", **options)
    # Iterates stay strictly inside the bounds that they tend to: put them on the bounds.
    ends: np.ndarray = np.where(result.active_mask < 0, low, np.where(result.active_mask > 0, high, result.x))
    return ends
