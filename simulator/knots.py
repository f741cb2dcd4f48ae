"""Curves over a whole number (tokens, requests): values at knots, straight lines between them.

Knots lie eight to an octave: 1, 1.125, ... 2, 2.25, ... 16, 18, and so on, so that the interval of any number follows
from its binary exponent, without a search, in the same few float64 operations in numba, in CPython and in Go. Below the
first knot a curve has its first value (a step without requests still reads the weights); beyond the last one the last
line goes on, up to BEYOND.
"""

from __future__ import annotations

import math

import numpy as np

from simulator.jit import njit

PER_OCTAVE = 8
BEYOND = 2.0**62  # larger than any count


def knots(octaves: int) -> np.ndarray:
    """float64[8 * octaves + 1]: the knots from 1 to 2**octaves."""
    index = np.arange(PER_OCTAVE * octaves + 1)
    out: np.ndarray = 2.0 ** (index // PER_OCTAVE) * (1.0 + index % PER_OCTAVE / PER_OCTAVE)
    return out


@njit
def curve(v: np.ndarray, at: int, x: float) -> float:
    """The curve at `x`; v[at] is the number of its knots, v[at + 1], ... their values."""
    if not x >= 1.0:
        return v[at + 1] if x == x else x
    x = min(x, BEYOND)  # an infinite x has no interval, and would give NaN on a flat line
    part, exponent = math.frexp(x)  # x = part * 2**exponent, part within [0.5, 1)
    place = (2.0 * part - 1.0) * PER_OCTAVE
    inside = int(place)
    i = (exponent - 1) * PER_OCTAVE + inside
    share = place - inside
    last = int(v[at]) - 2  # the last line's first knot
    if i > last:
        width = 2.0 ** (last // PER_OCTAVE) / PER_OCTAVE
        start = 2.0 ** (last // PER_OCTAVE) + width * (last % PER_OCTAVE)
        share = (x - start) / width
        i = last
    low = v[at + 1 + i]
    out: float = low + share * (v[at + 2 + i] - low)
    return out
