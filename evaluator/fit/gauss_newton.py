"""Gauss-Newton on the mean field, compiled as a whole: prediction, slopes, bounded least squares and trial steps.

The objective is Huber's loss, as an iteratively reweighted square, plus the cost of the prior.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from evaluator.fit.meanfield import predict, slopes
from simulator.common.jit import njit

HUBER = 0.03  # relative error beyond which a residual counts linearly
NO_EFFECT = 1e-7  # relative error, of all stages together, below which a constant of its present size does nothing
TRIES = 8  # of a step, each damped more: at a kink the first ones miss
DAMPING, LEAST_DAMPING, MORE_DAMPING = 1e-4, 1e-6, 30.0  # relative to the squared norm of each column
GAIN = 1e-5  # share of the objective below which a step ends the search
LOST = 1e6  # relative error of a prediction that is not finite
LOW, FREE, HIGH = -1, 0, 1  # place of an unknown of `boxed`
MORE_TRIES = 3  # exchanges of all unknowns at once that may fail before `boxed` exchanges one by one
REWEIGHTINGS = 8  # of the residuals of a part, at most
STILL = 1e-4  # step in units of a residual below which they end
TOLERANCE = 1e-12  # of `boxed`, relative to the diagonal of the matrix and to the right side


class Goal(NamedTuple):
    """The objective: the sum of huber(units * prediction - weights) over the stages, plus the cost of the prior.

    active: bool[stages], the stages that count. weights: float64[stages, 3], of the relative errors; units: ratio of
    replay to mean field * weight / observed ms. Both are 0 where nothing was observed. prior: float64[phi], the weight
    of a unit away from `origin`; where `measured`, its cost grows linearly beyond `tail`.
    """

    active: np.ndarray
    units: np.ndarray
    weights: np.ndarray
    prior: np.ndarray
    origin: np.ndarray
    measured: np.ndarray
    tail: float


class Workspace(NamedTuple):
    """Room of a search: predictions, running decodes and slopes, float64[stages, ...]; arrays of free constants."""

    means_ms: np.ndarray
    running: np.ndarray
    slopes_ms: np.ndarray
    trial: np.ndarray
    scale: np.ndarray
    right: np.ndarray
    low: np.ndarray
    high: np.ndarray
    step: np.ndarray
    work: np.ndarray
    place: np.ndarray
    matrix: np.ndarray
    damped: np.ndarray
    lower: np.ndarray


def workspace(stages: int, phi: int, free: int) -> Workspace:
    """The workspace of a search of `free` of `phi` constants over so many stages."""
    of_stages = np.zeros((stages, 3)), np.zeros(stages), np.zeros((stages, 3, phi))
    scale, right, low, high, step, work = np.zeros((6, free))
    vectors = np.zeros(phi), scale, right, low, high, step, work, np.zeros(free, np.int64)
    matrix, damped, lower = np.zeros((3, free, free))
    return Workspace(*of_stages, *vectors, matrix, damped, lower)


@njit
def _huber(r):  # type: ignore[no-untyped-def]
    """The Huber loss of a residual: its square up to HUBER, linear beyond."""
    size = abs(r)
    return size * size if size <= HUBER else HUBER * (2.0 * size - HUBER)


@njit
def residual(means_ms, goal, i, c):  # type: ignore[no-untyped-def]
    """The weighted relative error of latency `c` of stage `i`."""
    r = means_ms[i, c] * goal.units[i, c] - goal.weights[i, c]
    if r - r == 0.0:
        return r
    return -LOST * goal.weights[i, c] if r < 0.0 else LOST * goal.weights[i, c]


@njit
def objective(m, phi, goal, fixed_load, running, means_ms):  # type: ignore[no-untyped-def]
    """The objective at `phi`. Leaves the predictions in `means_ms` and the running decodes in `running`."""
    predict(m, phi, goal.active, fixed_load, running, means_ms)
    total = 0.0
    for i in range(goal.active.size):
        if goal.active[i]:
            for c in range(3):
                if goal.weights[i, c] > 0.0:
                    total += _huber(residual(means_ms, goal, i, c))
    for j in range(phi.size):
        total += prior_cost(phi[j] - goal.origin[j], goal.prior[j], goal.measured[j], goal.tail)
    return total


@njit
def prior_cost(away, weight, measured, tail):  # type: ignore[no-untyped-def]
    """The cost of a constant's distance from its origin: quadratic, but linear beyond `tail` if `measured`."""
    size = abs(away)
    if measured and size > tail:
        return weight * weight * tail * (2.0 * size - tail)
    return weight * weight * away * away


@njit
def gauss_newton(m, phi, free, low, high, size, goal, fixed_load, steps, r):  # type: ignore[no-untyped-def]
    """The objective after at most `steps` steps, which move the entries `free` of `phi` in place, within their bounds.

    size: float64[phi], of each constant. r: `Workspace`.
    """
    n = free.size
    reached = objective(m, phi, goal, fixed_load, r.running, r.means_ms)
    damping = DAMPING
    for _ in range(steps):
        if n == 0 or not _linearise(m, phi, free, size, goal, fixed_load, r):
            break
        lower = np.inf
        for _ in range(TRIES):
            for i in range(n):
                j = free[i]
                r.low[i], r.high[i] = (low[j] - phi[j]) * r.scale[i], (high[j] - phi[j]) * r.scale[i]
                for k in range(n):
                    r.damped[i, k] = r.matrix[i, k]
                r.damped[i, i] += damping
            if boxed(r.damped, r.right, r.low, r.high, r.step, r.place, r.lower, r.work):
                for j in range(phi.size):
                    r.trial[j] = phi[j]
                for i in range(n):
                    j = free[i]
                    r.trial[j] = min(max(phi[j] + r.step[i] / r.scale[i], low[j]), high[j])
                lower = objective(m, r.trial, goal, fixed_load, r.running, r.means_ms)
                if lower < reached:
                    break
            damping *= MORE_DAMPING
        if not lower < reached:
            break
        gain = reached - lower
        for j in range(phi.size):
            phi[j] = r.trial[j]
        reached = lower
        damping = max(damping / MORE_DAMPING, LEAST_DAMPING)
        if gain <= GAIN * reached:
            break
    return reached


@njit
def _linearise(m, phi, free, size, goal, fixed_load, r):  # type: ignore[no-untyped-def]
    """Fill the normal equations of a step at `phi`, in units of each column's norm (`scale`). Return True if finite."""
    n = free.size
    slopes(m, phi, goal.active, fixed_load, r.running, r.slopes_ms)
    for i in range(n):  # norms of the columns
        r.work[i] = 0.0
    for s in range(goal.active.size):
        if goal.active[s]:
            for c in range(3):
                for i in range(n):
                    r.slopes_ms[s, c, free[i]] *= goal.units[s, c]
                    r.work[i] += r.slopes_ms[s, c, free[i]] ** 2
    for i in range(n):
        # A column of rounding errors would send its constant far away for no gain: leave that constant.
        r.work[i] = 1.0 if np.sqrt(r.work[i]) * size[free[i]] > NO_EFFECT else 0.0
        r.right[i] = 0.0
        for k in range(n):
            r.matrix[i, k] = 0.0
    for s in range(goal.active.size):
        if not goal.active[s]:
            continue
        for c in range(3):
            if not goal.weights[s, c] > 0.0:
                continue
            x = residual(r.means_ms, goal, s, c)
            w = min(1.0, HUBER / max(abs(x), 1e-12))
            for i in range(n):
                slope = w * r.work[i] * r.slopes_ms[s, c, free[i]]
                r.right[i] -= slope * x
                for k in range(i + 1):
                    r.matrix[i, k] += slope * r.work[k] * r.slopes_ms[s, c, free[k]]
    for i in range(n):
        j = free[i]
        away = abs(phi[j] - goal.origin[j])
        # the factor that gives a square the slope of the prior's linear part
        share = goal.tail / away if goal.measured[j] and away > goal.tail else 1.0
        pull = goal.prior[j] * goal.prior[j] * share
        r.matrix[i, i] += pull
        r.right[i] += pull * (goal.origin[j] - phi[j])
        r.scale[i] = np.sqrt(r.matrix[i, i]) if r.matrix[i, i] > 0.0 else 1.0
    total = 0.0
    for i in range(n):
        r.right[i] /= r.scale[i]
        total += abs(r.right[i])
        for k in range(i + 1):
            r.matrix[i, k] /= r.scale[i] * r.scale[k]
            r.matrix[k, i] = r.matrix[i, k]
            total += abs(r.matrix[i, k])
    return total - total == 0.0


@njit
def linear_parts(slopes, residuals, active, start, prior, origin, measured, tail, free, low, high, size, moved, at, r):  # type: ignore[no-untyped-def]
    """Fit the constants moved[parts, phi] in place to the rows `active`[parts, rows] alone.

    The weighted residuals are residuals[rows] at `start`, and linear in the constants with slopes[rows, free]. The
    objective is that of `Goal`; prior[parts, phi] and size[parts, phi] are of each part. at: float64[rows], room, as r,
    a `Workspace`.
    """
    n, rows = free.size, residuals.size
    matrix, lower, right, least, most, step, work = r.matrix, r.lower, r.right, r.low, r.high, r.step, r.work
    scale, place = r.scale, r.place
    for p in range(active.shape[0]):
        for _ in range(REWEIGHTINGS):
            for k in range(rows):
                at[k] = residuals[k]
                for i in range(n):
                    at[k] += slopes[k, i] * (moved[p, free[i]] - start[free[i]])
            for i in range(n):
                j = free[i]
                norm = 0.0
                for k in range(rows):
                    if active[p, k]:
                        norm += slopes[k, i] ** 2
                work[i] = 1.0 if np.sqrt(norm) * size[p, j] > NO_EFFECT else 0.0
                right[i] = 0.0
                for c in range(n):
                    matrix[i, c] = 0.0
            for k in range(rows):
                if not active[p, k]:
                    continue
                w = min(1.0, HUBER / max(abs(at[k]), 1e-12))
                for i in range(n):
                    slope = w * work[i] * slopes[k, i]
                    if slope != 0.0:
                        right[i] -= slope * at[k]
                        for c in range(np.uintp(i + 1)):  # unsigned, so that they become vector instructions
                            matrix[i, c] += slope * work[c] * slopes[k, c]
            for i in range(n):
                j = free[i]
                away = abs(moved[p, j] - origin[j])
                share = tail / away if measured[j] and away > tail else 1.0
                pull = prior[p, j] * prior[p, j] * share
                matrix[i, i] += pull
                right[i] += pull * (origin[j] - moved[p, j])
                scale[i] = np.sqrt(matrix[i, i]) if matrix[i, i] > 0.0 else 1.0
            for i in range(n):
                j = free[i]
                right[i] /= scale[i]
                least[i], most[i] = (low[j] - moved[p, j]) * scale[i], (high[j] - moved[p, j]) * scale[i]
                for c in range(i + 1):
                    matrix[i, c] /= scale[i] * scale[c]
                    matrix[c, i] = matrix[i, c]
                matrix[i, i] += LEAST_DAMPING
            if not boxed(matrix, right, least, most, step, place, lower, work):
                break
            largest = 0.0
            for i in range(n):
                j = free[i]
                moved[p, j] = min(max(moved[p, j] + step[i] / scale[i], low[j]), high[j])
                largest = max(largest, abs(step[i]))
            if largest < STILL:
                break


@njit
def boxed(g, c, low, high, y, place, lower, work):  # type: ignore[no-untyped-def]
    """Fill y[n] with the minimum of y'gy/2 - c'y within `low` and `high`, for a positive definite g[n, n].

    Return False if g is not positive definite, or the exchanges do not end. Block principal pivoting: unknowns that
    violate an optimality condition move to a bound or off it, all together, or one by one where that does not help
    (Portugal, Judice and Vicente, Mathematics of Computation 63, 1994). place: int64[n]; lower: float64[n, n]; work:
    float64[n].
    """
    n = c.size
    for i in range(n):
        place[i] = FREE
    fewest, left = n + 1, MORE_TRIES
    for _ in range(50 * (n + 1)):
        if not _settle(g, c, low, high, y, place, lower, work):
            return False
        wrong, last = 0, -1
        for i in range(n):
            work[i] = 1.0 if _misplaced(g, c, low, high, y, place, i) else 0.0
            if work[i] > 0.0:
                wrong, last = wrong + 1, i
        if wrong == 0:
            return True
        if wrong < fewest:
            fewest, left = wrong, MORE_TRIES
        else:
            left -= 1
        for i in range(last if left < 0 else 0, n):
            if work[i] > 0.0:
                if place[i] != FREE:
                    place[i] = FREE
                else:
                    place[i] = LOW if y[i] < low[i] else HIGH
    return False


@njit
def _misplaced(g, c, low, high, y, place, i):  # type: ignore[no-untyped-def]
    """Return True if unknown `i` is beyond a bound, or at one that it would leave."""
    slack = TOLERANCE * (abs(c[i]) + g[i, i] * abs(y[i]))
    if place[i] == FREE:
        room = TOLERANCE * (1.0 + abs(y[i]))
        return y[i] < low[i] - room or y[i] > high[i] + room
    pull = -c[i]
    for j in range(c.size):
        pull += g[i, j] * y[j]
        slack += TOLERANCE * abs(g[i, j] * y[j])
    return pull < -slack if place[i] == LOW else pull > slack


@njit
def _settle(g, c, low, high, y, place, lower, work):  # type: ignore[no-untyped-def]
    """Put the unknowns at a bound there, and solve for the others by Cholesky. Return False if a pivot is not
    positive."""
    n = c.size
    for i in range(n):
        if place[i] != FREE:
            y[i] = low[i] if place[i] == LOW else high[i]
    for i in range(n):
        if place[i] != FREE:
            continue
        work[i] = c[i]
        for j in range(n):
            if place[j] != FREE:
                work[i] -= g[i, j] * y[j]
        for j in range(i + 1):
            if place[j] != FREE:
                continue
            total = g[i, j]
            for k in range(j):
                if place[k] == FREE:
                    total -= lower[i, k] * lower[j, k]
            if j < i:
                lower[i, j] = total / lower[j, j]
            elif total > 0.0:
                lower[i, i] = math.sqrt(total)
            else:
                return False
        for k in range(i):
            if place[k] == FREE:
                work[i] -= lower[i, k] * work[k]
        work[i] /= lower[i, i]
    for i in range(n - 1, -1, -1):
        if place[i] != FREE:
            continue
        total = work[i]
        for k in range(i + 1, n):
            if place[k] == FREE:
                total -= lower[k, i] * y[k]
        y[i] = total / lower[i, i]
    return True
