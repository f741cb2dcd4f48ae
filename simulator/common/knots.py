"""Curves over a count (tokens, requests): values at knots, with straight lines between them.

There are eight knots to an octave: 1, 1.125, ... 2, 2.25, ... 16, 18, and so on. So the interval of a number follows
from its bits without a search, in numba as in CPython; the Go finds the same one. Below the first knot a curve has its
first value (a step without requests still reads the weights). Beyond the last knot the last line continues, up to
BEYOND.
"""

from __future__ import annotations

import numpy as np

from simulator.common.jit import njit

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
    # A float64 of 1 or more is its exponent plus 1023, in 11 bits, and 52 bits of how far it is to the next power of 2.
    # So the exponent and the first three of those bits number the knot, and the others are the way to the next one.
    bits = int(np.float64(x).view(np.int64))
    i = (bits >> 49) - 1023 * PER_OCTAVE
    share = (bits & (2**49 - 1)) * 2.0**-49
    last = int(v[at]) - 2  # the last line's first knot
    if i > last:
        width = 2.0 ** (last // PER_OCTAVE) / PER_OCTAVE
        start = 2.0 ** (last // PER_OCTAVE) + width * (last % PER_OCTAVE)
        share = (x - start) / width
        i = last
    low = v[at + 1 + i]
    height: float = low + share * (v[at + 2 + i] - low)
    return height
