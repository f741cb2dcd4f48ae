"""The guarded arithmetic in plain Python: one definition for the interpreter and the tests' oracle.

Every function takes and returns float64; `ir.py` has the rules. `maximum` and `minimum` propagate NaN as numpy and Go
do. Of two equal values they return the second: at most the sign of a zero differs, which no guard shows.
"""

from __future__ import annotations

import math

EXP_LIMIT = 50.0
LOG_FLOOR = 1e-12
POW_LIMIT = 4.0


def div(x: float, y: float) -> float:
    """x/y, and 0 where y is 0."""
    return x / y if y != 0.0 else 0.0


def maximum(x: float, y: float) -> float:
    """The larger value; NaN if x is."""
    return x if x > y or x != x else y


def minimum(x: float, y: float) -> float:
    """The smaller value; NaN if x is."""
    return x if x < y or x != x else y


def sqrt(x: float) -> float:
    """The square root; 0 for a negative x."""
    return math.sqrt(x) if x > 0.0 else (x if x != x else 0.0)


def log(x: float) -> float:
    """The natural logarithm; that of 1e-12 for x <= 0."""
    return math.log(x) if x > 0.0 else (x if x != x else math.log(LOG_FLOOR))


def log1p(x: float) -> float:
    """log(1 + x); 0 for a negative x."""
    return math.log1p(x) if x > 0.0 else (x if x != x else 0.0)


def exp(x: float) -> float:
    """e**x, with x clipped to 50."""
    return math.exp(min(x, EXP_LIMIT)) if x == x else x


def softplus(x: float) -> float:
    """log(1 + e**x), which is 0 far below 0 and x far above."""
    # Written so that no exponential overflows. The VM and the Go have the same order of operations.
    return (x if x > 0.0 else 0.0) + math.log1p(math.exp(-abs(x))) if x == x else x


def power(x: float, c: float) -> float:
    """max(x, 0)**c, with c clipped to [-4, 4]; infinite for 0 to a negative power."""
    c = max(-POW_LIMIT, min(POW_LIMIT, c)) if c == c else c
    x = x if x > 0.0 or x != x else 0.0
    if x == 0.0 and c < 0.0:
        return math.inf
    try:
        return math.pow(x, c)
    except OverflowError:
        return math.inf
