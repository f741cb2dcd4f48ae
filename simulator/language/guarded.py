"""The guarded arithmetic in plain Python: one definition for the interpreter and the tests' oracle.

Every function takes and returns float64; see `ir.py` for the rules. `max` and `min` pass NaN on as numpy and
Go do; of two equal values they return the second: at most the sign of a zero differs, which no guard shows.
"""

from __future__ import annotations

import math

EXP_LIMIT = 50.0
LOG_FLOOR = 1e-12
POW_LIMIT = 4.0


def div(x: float, y: float) -> float:
    return x / y if y != 0.0 else 0.0


def maximum(x: float, y: float) -> float:
    return x if x > y or x != x else y


def minimum(x: float, y: float) -> float:
    return x if x < y or x != x else y


def sqrt(x: float) -> float:
    return math.sqrt(x) if x > 0.0 else (x if x != x else 0.0)


def log(x: float) -> float:
    return math.log(x) if x > 0.0 else (x if x != x else math.log(LOG_FLOOR))


def log1p(x: float) -> float:
    return math.log1p(x) if x > 0.0 else (x if x != x else 0.0)


def exp(x: float) -> float:
    return math.exp(min(x, EXP_LIMIT)) if x == x else x


def power(x: float, c: float) -> float:
    c = max(-POW_LIMIT, min(POW_LIMIT, c)) if c == c else c
    x = x if x > 0.0 or x != x else 0.0
    if x == 0.0 and c < 0.0:
        return math.inf
    try:
        return math.pow(x, c)
    except OverflowError:
        return math.inf
