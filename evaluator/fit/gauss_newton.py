"""Gauss-Newton steps on the mean field, each a non-negative least-squares problem within the bounds."""

from __future__ import annotations

from contextlib import suppress

import numpy as np
from scipy.optimize import lsq_linear, nnls

from evaluator.fit.loss import huber_weights
from evaluator.fit.problem import Problem, Scales

STEPS = 24
NOTHING = 1e-7  # relative error, of all stages together, that a constant of its present size makes
_TRIES = 8  # of a step, each damped more: at a kink the first ones miss


def solve(
    problem: Problem,
    phi: np.ndarray,
    ratio: np.ndarray,
    scales: Scales,
    *,
    fixed_load: bool = False,
    steps: int = STEPS,
    only: np.ndarray | None = None,
) -> tuple[np.ndarray, float]:
    """(phi, objective) after Gauss-Newton steps from `phi` within the bounds, with a faint pull towards the origin.

    `scales`: of `Problem.scales`. `only`: positions among the free entries of phi that may move (default all).
    """
    size, weights = scales[0], problem.prior(scales)
    goal = problem.objective(phi, ratio, weights, fixed_load)
    free = problem.free if only is None else problem.free[only]
    if not free.size:
        return phi, goal
    data, damping = problem.data, 1e-4
    known = ~np.isnan(data.stages.observed_ms).ravel()
    units = (ratio / data.stages.observed_ms * data.weights)[None]
    low, high = problem.low[free], problem.high[free]
    for _ in range(steps):
        value = problem.predict(phi, fixed_load)
        slopes = problem.jacobian(phi, fixed_load, size, value) * units
        slope = (slopes if only is None else slopes[only]).reshape(free.size, -1).T[known]
        # what does nothing here but for rounding: left where it is, not sent far away for a gain that is none
        slope = np.where(np.linalg.norm(slope, axis=0) * size[free] > NOTHING, slope, 0.0)
        r = data.residuals(value * ratio).ravel()
        # iteratively reweighted: the Huber loss as a weighted square
        weight = np.sqrt(huber_weights(r))[known]
        pull = (weights * problem.tension(phi))[free]
        a = np.vstack([slope * weight[:, None], np.diag(pull)])
        b = np.concatenate([-r[known] * weight, pull * (problem.origin - phi)[free]])
        if not (np.isfinite(a).all() and np.isfinite(b).all()):
            break
        moved, lower = phi, np.inf
        for _ in range(_TRIES):
            moved = phi.copy()
            moved[free] = bounded_step(a, b, phi[free], low, high, damping)
            lower = problem.objective(moved, ratio, weights, fixed_load)
            if lower < goal:
                break
            damping *= 30.0
        if not lower < goal:
            break
        gain, phi, goal = goal - lower, moved, lower
        damping = max(damping / 30.0, 1e-6)
        if gain <= 1e-4 * goal:
            break
    return phi, goal


def bounded_step(
    a: np.ndarray, b: np.ndarray, theta: np.ndarray, low: np.ndarray, high: np.ndarray, damping: float
) -> np.ndarray:
    """The constants x within bounds that solve a (x - theta) = b best, damped in proportion to each column."""
    scale = np.linalg.norm(a, axis=0)
    scale = np.where(scale > 0, scale, 1.0)
    rows = np.vstack([a / scale, np.sqrt(damping) * np.eye(theta.size)])
    # unknowns y = (x - low) * scale >= 0
    target = np.concatenate([b, np.zeros(theta.size)]) + rows @ ((theta - low) * scale)
    most = (high - low) * scale
    y = None
    with suppress(RuntimeError):  # its active set may cycle on columns that are nearly alike
        y = nnls(rows, target, maxiter=20 * theta.size)[0]
    if y is None or (y > most).any():  # where no upper bound binds, the non-negative solution is the bounded one
        y = lsq_linear(rows, target, (0.0, most), method="bvls").x
    x: np.ndarray = np.clip(low + y / scale, low, high)
    return x
