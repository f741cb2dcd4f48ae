"""Clocks that share no origin: client rows and server requests are matched by order and time, offsets estimated."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from evolve.ingest.columns import NONE, Columns

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


def match(start_s: np.ndarray, arrived_s: np.ndarray, asked: np.ndarray, limit: np.ndarray) -> Match | None:
    """Pair client starts with arrivals at the server, both ascending, in s on clocks of their own. None: no pairs.

    `asked` and `limit`: max_tokens of either side, NONE where unknown. As many of either: by rank, if times and
    max_tokens agree. Otherwise under the offset with which starts are closest to arrivals, the closest pairs first,
    those of another max_tokens last.
    """
    if not len(start_s) or not len(arrived_s):
        return None
    if len(start_s) == len(arrived_s):
        offset = float(np.median(start_s - arrived_s))
        near = np.abs(start_s - arrived_s - offset) < NEAR_S
        if near.mean() > 0.9 and not (_differ(asked, limit)).any():
            return Match(np.arange(len(start_s)), offset)
    offset = _best_offset(start_s, arrived_s)
    server = np.full(len(start_s), -1)
    for _ in range(2):
        server = _nearest(start_s - offset, arrived_s, asked, limit)
        paired = server >= 0
        if paired.sum() < _LEAST_SHARE * min(len(start_s), len(arrived_s)):
            return None
        offset = float(np.median(start_s[paired] - arrived_s[server[paired]]))
    return Match(server, offset)


def _differ(asked: np.ndarray, limit: np.ndarray) -> np.ndarray:
    out: np.ndarray = (asked != limit) & (asked != NONE) & (limit != NONE)
    return out


def _best_offset(start_s: np.ndarray, arrived_s: np.ndarray) -> float:
    """Of the offsets that bring an early start on an early arrival, or a late on a late: the one that suits most."""
    differences = [
        (start_s[part, None] - arrived_s[None, part]).ravel() for part in (slice(0, _ENDS), slice(-_ENDS, None))
    ]
    some = start_s[np.unique(np.linspace(0, len(start_s) - 1, _SAMPLE).astype(int))]
    candidates = np.unique(np.concatenate(differences))
    return float(min(candidates, key=lambda offset: (_apart(some - offset, arrived_s), abs(offset))))


def _apart(times: np.ndarray, arrived_s: np.ndarray) -> float:
    """How far the times are from their nearest arrivals in all, in s; one that has none nearby counts CLOSE_S."""
    right = np.searchsorted(arrived_s, times).clip(0, len(arrived_s) - 1)
    left = (right - 1).clip(0)
    distance = np.minimum(np.abs(arrived_s[right] - times), np.abs(arrived_s[left] - times))
    return float(np.minimum(distance, CLOSE_S).sum())


def _nearest(times: np.ndarray, arrived_s: np.ndarray, asked: np.ndarray, limit: np.ndarray) -> np.ndarray:
    """For every time a free arrival within NEAR_S, both ascending; -1 for none. The closest pairs first, so that a
    request whose arrival was not traced takes nobody else's; then those that are late or of another max_tokens."""
    out = np.full(len(times), -1)
    free = np.ones(len(arrived_s), dtype=bool)
    first, last = np.searchsorted(arrived_s, times - CLOSE_S), np.searchsorted(arrived_s, times + CLOSE_S)
    row = np.repeat(np.arange(len(times)), last - first)
    arrival = np.arange(row.size) - np.repeat(np.cumsum(last - first) - last, last - first)
    alike = ~_differ(asked[row], limit[arrival])
    row, arrival = row[alike], arrival[alike]
    closest = np.argsort(np.abs(arrived_s[arrival] - times[row]), kind="stable")
    for i, j in zip(row[closest].tolist(), arrival[closest].tolist(), strict=True):
        if out[i] < 0 and free[j]:
            out[i], free[j] = j, False
    first, last = np.searchsorted(arrived_s, times - NEAR_S), np.searchsorted(arrived_s, times + NEAR_S, side="right")
    for i in np.flatnonzero(out < 0).tolist():
        near = np.arange(first[i], last[i])
        near = near[free[near]]
        if near.size:
            # somebody else's request is dearer than a late one
            cost = np.abs(arrived_s[near] - times[i]) + NEAR_S * _differ(asked[i], limit[near])
            out[i] = near[int(np.argmin(cost))]
            free[out[i]] = False
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
