"""The load generator's rows matched with the server's requests, whose clocks have different origins.

Rows and requests are paired by order and time; the offset between the clocks is estimated on the way.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from evolve.ingest.columns import NONE, Columns
from evolve.ingest.derive.journeys import Journey
from evolve.ingest.read.clients import Clients
from evolve.ingest.read.traces import API, Traces

NEAR_S = 0.25  # a request reaches the server within this time of its start, clock offset removed
CLOSE_S = 0.02  # and mostly within this
MOST_UNLIKE = 0.1  # of the pairs may disagree on max_tokens; beyond it the two files are of different runs
_LEAST_SHARE = 0.5  # of the rows must find a partner; below it the two files are of different runs
_ENDS, _SAMPLE = 40, 400  # rows at either end that give candidate offsets, and rows that each candidate is tried on


@dataclass(frozen=True)
class Joined:
    """The requests of both sides as int64 arrays, one row each: `client` (row of the file), `core` and `api` (numbers
    of `Traces`), -1 for none.

    Rows with a client row come first, by start. `offset_s` is the median of client time minus server time, None if the
    two sides could not be matched; it is too small by the time that a request takes to arrive, a few ms. `arrived_ns`
    and `departed_ns` are per API request, NONE if missing. `unlike` counts pairs that disagree on max_tokens.
    """

    client: np.ndarray
    core: np.ndarray
    api: np.ndarray
    offset_s: float | None
    arrived_ns: np.ndarray
    departed_ns: np.ndarray
    unlike: int


def row_of(numbers: np.ndarray, count: int) -> np.ndarray:
    """The position of each of 0 to `count` - 1 in `numbers`, int64 with -1 for none; -1 for a number without one."""
    rows = np.full(count, -1, dtype=np.int64)
    there = np.flatnonzero(numbers >= 0)
    rows[numbers[there]] = there
    return rows


def join(traces: Traces | None, journeys: Sequence[Journey], clients: Clients | None) -> Joined:
    """All requests of both sides, matched if both are there; see `match`."""
    arrived, departed = (_api_times(traces, event) for event in ("ARRIVED", "DEPARTED"))
    core, api, server_ns, limit = _server_requests(traces, journeys, arrived)
    if clients is None:
        return Joined(np.full(len(core), -1), core, api, None, arrived, departed, 0)
    order = np.argsort(clients.rows["start_s"], kind="stable")
    timed = np.flatnonzero(server_ns != NONE)
    asked = clients.rows["max_tokens"][order]
    server, offset_s = match(clients.rows["start_s"][order], server_ns[timed] / 1e9, asked, limit[timed])
    paired = server >= 0
    pairs = np.full(len(order), -1, dtype=np.int64)
    pairs[paired] = timed[server[paired]]
    unlike = int(_differ(asked[paired], limit[pairs[paired]]).sum())
    if unlike > MOST_UNLIKE * paired.sum():
        offset_s, pairs = None, np.full(len(order), -1, dtype=np.int64)
    lone = np.setdiff1d(np.arange(len(core)), pairs)
    rows = np.concatenate([pairs, lone])
    core, api = np.append(core, -1), np.append(api, -1)  # so that row -1 is no request
    client = np.concatenate([order, np.full(len(lone), -1)])
    return Joined(client, core[rows], api[rows], offset_s, arrived, departed, unlike)


def _server_requests(
    traces: Traces | None, journeys: Sequence[Journey], arrived: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Core request, API request, arrival (QUEUED if ARRIVED is missing) and limit of output tokens of each server
    request, by arrival."""
    if traces is None:
        empty = np.zeros(0, dtype=np.int64)
        return empty, empty, empty, empty
    cores = len(traces.core_ids)
    queued = np.full(cores, NONE)
    queued[[j.request for j in journeys]] = [j.queued_ns or NONE for j in journeys]
    api_of = np.array(traces.api_of, dtype=np.int64)
    arrival = np.append(arrived, NONE)[api_of]
    lone = np.setdiff1d(np.arange(len(traces.api_ids)), api_of)
    ns = np.concatenate([np.where(arrival == NONE, queued, arrival), arrived[lone]])
    core, api = np.append(np.arange(cores), np.full(len(lone), -1)), np.append(api_of, lone)
    order = np.lexsort((api, core, ns))
    limits = np.full(cores + 1, NONE)  # one more at the end, so that -1 has none
    limits[traces.journey_events["request"]] = traces.journey_events["decode_max"]
    return core[order], api[order], ns[order], limits[core[order]]


def _api_times(traces: Traces | None, event: str) -> np.ndarray:
    """The first ARRIVED or last DEPARTED of every API request in ns, NONE if missing."""
    times = np.full(len(traces.api_ids) if traces else 0, NONE)
    if traces:
        rows = np.flatnonzero(traces.api_events["event"] == API.index(event))
        # numpy keeps the last of several values for one place.
        in_turn = rows[::-1] if event == "ARRIVED" else rows
        times[traces.api_events["request"][in_turn]] = traces.api_events["ts_ns"][in_turn]
    return times


def match(
    start_s: np.ndarray, arrived_s: np.ndarray, asked: np.ndarray, limit: np.ndarray
) -> tuple[np.ndarray, float | None]:
    """Pair client starts with arrivals at the server, both ascending, in s on their clocks.

    Returns the arrival of each start, -1 for none, and the offset between the clocks, None if the two do not fit.
    `asked` and `limit` are the max_tokens of either side, NONE if unknown. Equally many starts and arrivals whose times
    and max_tokens agree are paired by rank. Others are paired by the offset that brings starts closest to arrivals, the
    closest pairs first, those with different max_tokens last.
    """
    none = np.full(len(start_s), -1)
    if not len(start_s) or not len(arrived_s):
        return none, None
    if len(start_s) == len(arrived_s):
        offset = float(np.median(start_s - arrived_s))
        near = np.abs(start_s - arrived_s - offset) < NEAR_S
        if near.mean() > 0.9 and not _differ(asked, limit).any():
            return np.arange(len(start_s)), offset
    offset, server = _best_offset(start_s, arrived_s), none
    for _ in range(2):  # the second time with the offset of the pairs of the first
        server = _nearest(start_s - offset, arrived_s, asked, limit)
        paired = server >= 0
        if paired.sum() < _LEAST_SHARE * min(len(start_s), len(arrived_s)):
            return none, None
        offset = float(np.median(start_s[paired] - arrived_s[server[paired]]))
    return server, offset


def _differ(asked: np.ndarray, limit: np.ndarray) -> np.ndarray:
    differ: np.ndarray = (asked != limit) & (asked != NONE) & (limit != NONE)
    return differ


def _best_offset(start_s: np.ndarray, arrived_s: np.ndarray) -> float:
    """The best offset of those that align one of the first starts and arrivals, or one of the last."""
    differences = [
        (start_s[part, None] - arrived_s[None, part]).ravel() for part in (slice(0, _ENDS), slice(-_ENDS, None))
    ]
    sample = start_s[np.unique(np.linspace(0, len(start_s) - 1, _SAMPLE).astype(int))]
    candidates = np.unique(np.concatenate(differences))
    return float(min(candidates, key=lambda offset: (_distance(sample - offset, arrived_s), abs(offset))))


def _distance(times: np.ndarray, arrived_s: np.ndarray) -> float:
    """Total distance of the times from their nearest arrivals in s, each capped at CLOSE_S."""
    right = np.searchsorted(arrived_s, times).clip(0, len(arrived_s) - 1)
    left = (right - 1).clip(0)
    distance = np.minimum(np.abs(arrived_s[right] - times), np.abs(arrived_s[left] - times))
    return float(np.minimum(distance, CLOSE_S).sum())


def _nearest(times: np.ndarray, arrived_s: np.ndarray, asked: np.ndarray, limit: np.ndarray) -> np.ndarray:
    """A different arrival within NEAR_S for every time, both ascending; -1 for none."""
    arrivals = np.full(len(times), -1)
    free = np.ones(len(arrived_s), dtype=bool)
    first, last = np.searchsorted(arrived_s, times - CLOSE_S), np.searchsorted(arrived_s, times + CLOSE_S)
    row = np.repeat(np.arange(len(times)), last - first)
    arrival = np.arange(row.size) - np.repeat(np.cumsum(last - first) - last, last - first)
    alike = ~_differ(asked[row], limit[arrival])
    row, arrival = row[alike], arrival[alike]
    # The closest pairs first, so that a request whose arrival was not traced does not take another one's arrival.
    closest = np.argsort(np.abs(arrived_s[arrival] - times[row]), kind="stable")
    for i, j in zip(row[closest].tolist(), arrival[closest].tolist(), strict=True):
        if arrivals[i] < 0 and free[j]:
            arrivals[i], free[j] = j, False
    # Then those that arrive late or have different max_tokens.
    first, last = np.searchsorted(arrived_s, times - NEAR_S), np.searchsorted(arrived_s, times + NEAR_S, side="right")
    for i in np.flatnonzero(arrivals < 0).tolist():
        near = np.arange(first[i], last[i])
        near = near[free[near]]
        if near.size:
            # A late request is more plausible than one with different max_tokens.
            cost = np.abs(arrived_s[near] - times[i]) + NEAR_S * _differ(asked[i], limit[near])
            arrivals[i] = near[int(np.argmin(cost))]
            free[arrivals[i]] = False
    return arrivals


def epoch_offset(journey_events: Columns) -> tuple[float, float] | None:
    """Wall clock minus server clock in s: the median over journey events, which have both, and the spread of the middle
    98 %. None if no event has both."""
    both = (journey_events["epoch_ns"] > 0) & (journey_events["ts_ns"] > 0)
    if not both.any():
        return None
    difference = journey_events["epoch_ns"][both] - journey_events["ts_ns"][both]
    low, high = np.percentile(difference - difference[0], (1, 99))
    return float(np.sort(difference)[difference.size // 2]) / 1e9, float(high - low) / 1e9
