"""Clocks that share no origin: client rows and server requests are matched by order and time, offsets estimated."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from evolve.ingest.columns import Columns

NEAR_S = 0.25  # a request reaches the server within this time of its start, offset removed
CLOSE_S = 0.02  # and mostly within this
_ENDS, _SAMPLE = 40, 400
_LEAST_SHARE = 0.5  # of the rows must find a partner, or the two files are not of one run


@dataclass(frozen=True)
class Match:
    """`server[i]`: the server request of client row i, -1 for none, both sorted by time. `offset_s`: median of client
    time less server time over the pairs; it is too small by the time that a request takes to arrive, some ms."""

    server: np.ndarray
    offset_s: float


def match(start_s: np.ndarray, arrived_s: np.ndarray) -> Match | None:
    """Pair client starts with arrivals at the server, both ascending, in s on clocks of their own. None: no pairs.

    As many of either: by rank, if the times agree. Otherwise the offset under which most starts have an arrival nearby.
    """
    if not len(start_s) or not len(arrived_s):
        return None
    if len(start_s) == len(arrived_s):
        offset = float(np.median(start_s - arrived_s))
        if np.mean(np.abs(start_s - arrived_s - offset) < NEAR_S) > 0.9:
            return Match(np.arange(len(start_s)), offset)
    offset = _best_offset(start_s, arrived_s)
    server = np.full(len(start_s), -1)
    for _ in range(2):
        server = _nearest(start_s - offset, arrived_s)
        paired = server >= 0
        if paired.sum() < _LEAST_SHARE * min(len(start_s), len(arrived_s)):
            return None
        offset = float(np.median(start_s[paired] - arrived_s[server[paired]]))
    return Match(server, offset)


def _best_offset(start_s: np.ndarray, arrived_s: np.ndarray) -> float:
    """Of the offsets that bring an early start on an early arrival, or a late on a late: the one that suits most."""
    differences = [
        (start_s[part, None] - arrived_s[None, part]).ravel() for part in (slice(0, _ENDS), slice(-_ENDS, None))
    ]
    some = start_s[np.unique(np.linspace(0, len(start_s) - 1, _SAMPLE).astype(int))]
    candidates = np.unique(np.concatenate(differences))
    return float(max(candidates, key=lambda offset: (_close(some - offset, arrived_s), -abs(offset))))


def _close(times: np.ndarray, arrived_s: np.ndarray) -> int:
    right = np.searchsorted(arrived_s, times).clip(0, len(arrived_s) - 1)
    left = (right - 1).clip(0)
    distance = np.minimum(np.abs(arrived_s[right] - times), np.abs(arrived_s[left] - times))
    return int((distance < CLOSE_S).sum())


def _nearest(times: np.ndarray, arrived_s: np.ndarray) -> np.ndarray:
    """For every time the next free arrival within NEAR_S, both ascending; -1 for none."""
    out = np.full(len(times), -1)
    j = 0
    for i, at in enumerate(times.tolist()):
        while j < len(arrived_s) and arrived_s[j] < at - NEAR_S:
            j += 1
        best = j
        while best + 1 < len(arrived_s) and abs(arrived_s[best + 1] - at) < abs(arrived_s[best] - at):
            # an arrival that is passed over is lost to later starts; do so only for a clearly better one
            if abs(arrived_s[best] - at) < CLOSE_S:
                break
            best += 1
        if best < len(arrived_s) and abs(arrived_s[best] - at) <= NEAR_S:
            out[i], j = best, best + 1
    return out


def epoch_offset(journeys: Columns) -> tuple[float, float] | None:
    """Wall clock less server clock in s: median over journey events, which carry both, and how far the middle 98 % of
    them spread. None where no event has both."""
    both = (journeys["epoch_ns"] > 0) & (journeys["ts_ns"] > 0)
    if not both.any():
        return None
    difference = journeys["epoch_ns"][both] - journeys["ts_ns"][both]
    low, high = np.percentile(difference - difference[0], (1, 99))
    return float(np.sort(difference)[difference.size // 2]) / 1e9, float(high - low) / 1e9
