"""Curves over a count (tokens, requests): values at knots, with straight lines between them.

There are eight knots to an octave: 1, 1.125, ... 2, 2.25, ... 16, 18, and so on. So the interval of a number follows
from its binary exponent without a search, in the same few float64 operations in numba, CPython and Go. Below the first
knot a curve has its first value (a step without requests still reads the weights). Beyond the last knot the last line
continues, up to BEYOND.
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
    positions: np.ndarray = 2.0 ** (index // PER_OCTAVE) * (1.0 + index % PER_OCTAVE / PER_OCTAVE)
    return positions


@njit
def curve(v: np.ndarray, at: int, x: float) -> float:
    """The value of a curve at `x`; v[at] is the number of its knots, and v[at + 1], ... are its values there."""
    if not x >= 1.0:
        return v[at + 1] if x == x else x
    x = min(x, BEYOND)  # an infinite x is in no interval, and would give NaN on a flat line
    part, exponent = math.frexp(x)  # x = part * 2**exponent, part in [0.5, 1)
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
    height: float = low + share * (v[at + 2 + i] - low)
    return height
