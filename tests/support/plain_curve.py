"""A curve read off by looking for its interval, in plain Python: what the compiled one must equal to the last bit."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence


def plain_knots(octaves: int) -> list[float]:
    """Eight to an octave, evenly spaced: 1, 1.125, ..., 2, 2.25, ..., 2**octaves."""
    return [2**i * (1 + j / 8) for i in range(octaves) for j in range(8)] + [2.0**octaves]


def plain_curve(values: Sequence[float], x: float) -> float:
    """The first value below 1, straight lines between knots, the last line beyond; NaN stays NaN."""
    if x != x:
        return x
    if x < 1.0:
        return values[0]
    at = plain_knots(len(values) // 8)
    i = min(bisect_right(at, x), len(at) - 1) - 1
    share = (x - at[i]) / (at[i + 1] - at[i])
    return values[i] + share * (values[i + 1] - values[i])
