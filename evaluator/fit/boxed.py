"""Least squares within bounds, from its normal equations, compiled."""

from __future__ import annotations

import math

from simulator.common.jit import njit

LOW, FREE, HIGH = -1, 0, 1  # where an unknown is
MORE_TRIES = 3  # exchanges of all unknowns at once that may fail before they are exchanged one by one
TOLERANCE = 1e-12  # relative to the diagonal of the matrix and to the right side


@njit
def boxed(g, c, low, high, y, place, lower, work):  # type: ignore[no-untyped-def]
    """Fill y[n] with the minimum of y'gy/2 - c'y within `low` and `high`, g[n, n] positive definite.

    False if the matrix is not, or the exchanges do not end.

    Block principal pivoting: the unknowns that violate an optimality condition change places, between the bounds or at
    one of them, all together, and one by one where that does not help, which ends (Portugal, Judice and Vicente,
    Mathematics of Computation 63, 1994). place: int64[n]; lower: float64[n, n]; work: float64[n].
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
    """Whether unknown i is beyond a bound, or at one that it would leave."""
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
    """Put the unknowns at a bound there, and solve for the others by Cholesky. False if a pivot is not positive."""
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
