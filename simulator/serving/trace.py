"""Recorded requests: when each arrived, how long prompt and answer were, what it shared, and how it fared.

Times are microseconds from the first arrival, lengths tokens.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from itertools import pairwise

import numpy as np

WINDOW_S = 60.0  # the least length of a time window
WINDOW_REQUESTS = 200  # the fewest requests of one
SHORT = 0.9  # of its least length, which the last window may have: nobody knows when the load ended
NOT_COUNTED = -1  # in `Requests.stage`: replayed, but part of no figure


@dataclass(frozen=True)
class Chains:
    """Prompts as chains of numbered pieces of `piece_len` tokens, the last of which may be cut.

    A number stands for a piece *and* all pieces before it, so that prompts with a number in common begin alike up to
    there. The numbers of request i are `number[first[i]:first[i + 1]]`, as many as its prompt has pieces.
    """

    first: np.ndarray  # int64[requests + 1]
    number: np.ndarray  # int32
    piece_len: int  # tokens

    def of(self, rows: np.ndarray) -> Chains:
        """The chains of these rows, in their order."""
        counts = np.diff(self.first)[rows]
        first = np.concatenate([[0], np.cumsum(counts)])
        places = np.repeat(self.first[rows] - first[:-1], counts) + np.arange(first[-1])
        return Chains(first, self.number[places], self.piece_len)


@dataclass(frozen=True)
class Requests:
    """One row per request, in order of arrival. Times in microseconds, lengths in tokens."""

    arrival_us: np.ndarray  # int64
    stage: np.ndarray  # int32, NOT_COUNTED for requests whose latencies are part of no figure
    input_len: np.ndarray  # int32
    output_len: np.ndarray  # int32
    prompt: np.ndarray  # int32: requests with the same number send beginnings of one text; -1 if no other sends it
    group: np.ndarray  # int32: requests of a group begin with the same `shared_len` tokens, -1 for none
    shared_len: np.ndarray  # int32
    deadline_us: np.ndarray  # int64: when the client gives up, 0 for never
    chains: Chains | None = None  # instead of prompt and group
    turns: bool = False  # requests with the same `prompt` are turns: their answers are parts of the text too

    def __len__(self) -> int:
        return len(self.arrival_us)

    def of(self, rows: np.ndarray) -> Requests:
        """The requests of these rows, in their order."""
        columns = {f.name: getattr(self, f.name)[rows] for f in fields(self) if f.name not in ("chains", "turns")}
        return replace(self, **columns, chains=self.chains.of(rows) if self.chains else None)


@dataclass(frozen=True)
class Recorded:
    """The latencies of the requests of a trace, one row each: float64, NaN where unknown.

    scheduled_ms: from a request's arrival until the engine scheduled it first, by the engine's stamps.
    """

    e2e_ms: np.ndarray
    ttft_ms: np.ndarray
    scheduled_ms: np.ndarray | None = None

    def of(self, rows: np.ndarray) -> Recorded:
        """Those of these rows, in their order."""
        scheduled = None if self.scheduled_ms is None else self.scheduled_ms[rows]
        return Recorded(self.e2e_ms[rows], self.ttft_ms[rows], scheduled)


def latencies_ms(requests: Requests, e2e_ms: np.ndarray, ttft_ms: np.ndarray) -> np.ndarray:
    """float64[3, requests]: E2E, TTFT and ITL of each request, NaN where one is not known or a request has no ITL."""
    gaps = np.where(requests.output_len > 1, requests.output_len - 1.0, np.nan)
    return np.stack([e2e_ms, ttft_ms, (e2e_ms - ttft_ms) / gaps])


@dataclass(frozen=True)
class Trace:
    """Recorded requests. Two are equal if they come from the same content with the same windows.

    `file` is the file's name as the experiments file gives it, `digest` identifies its content and what was made of it,
    `notes` are for the reader of results. `failed` counts failed requests that are left out, because nobody knows how
    many tokens they had. `model` is what served them, "" where the file does not say. `window_s` and `window_requests`
    are those of the experiments file. `whole`: False for a part of the file, or its requests at another rate.
    """

    file: str
    digest: str
    requests: Requests = field(compare=False, repr=False)
    recorded: Recorded | None = field(compare=False, repr=False)
    notes: tuple[str, ...] = ()
    failed: int = field(default=0, compare=False)
    model: str = field(default="", compare=False)
    window_s: float | None = field(default=None, compare=False)
    window_requests: int | None = field(default=None, compare=False)
    whole: bool = field(default=True, compare=False)


def again(owner: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(rows, row before): the rows of an owner >= 0 after its first, by owner and in order, and the one before each.

    >>> [rows.tolist() for rows in again(np.array([1, 0, 1, -1, 0, 1]))]
    [[4, 2, 5], [1, 0, 2]]
    """
    rows = np.flatnonzero(owner >= 0)
    rows = rows[np.argsort(owner[rows], kind="stable")]
    same = owner[rows[1:]] == owner[rows[:-1]]
    return rows[1:][same], rows[:-1][same]


def repeated(prompt: np.ndarray) -> np.ndarray:
    """int32: the numbers of prompts that more than one request sends, -1 for the others.

    >>> repeated(np.array([2, -1, 5, 2, 3, 3])).tolist()
    [0, -1, -1, 0, 1, 1]
    """
    counts = np.bincount(prompt[prompt >= 0], minlength=1)
    several = np.where(counts > 1, np.cumsum(counts > 1) - 1, -1)
    return np.where(prompt >= 0, several[prompt], -1).astype(np.int32)


def repeated_share(requests: Requests) -> float:
    """The share of prompt tokens that an earlier prompt began with, which a large enough prefix cache holds."""
    if requests.chains:
        _, where = np.unique(requests.chains.number, return_index=True)
        return 1.0 - float(len(where)) / len(requests.chains.number)
    shared = np.zeros(len(requests), np.int64)
    text = requests.input_len + (requests.output_len if requests.turns else 0)
    owned = ((requests.group, requests.shared_len, requests.shared_len), (requests.prompt, requests.input_len, text))
    for owner, length, known in owned:
        later, earlier = again(owner)
        shared[later] = np.maximum(shared[later], np.minimum(length[later], known[earlier]))
    return float(shared.sum()) / int(requests.input_len.sum(dtype=np.int64))


def windows(arrival_us: np.ndarray, least_s: float = WINDOW_S, least_requests: int = WINDOW_REQUESTS) -> np.ndarray:
    """int32 per request: its time window, of at least `least_s` seconds and `least_requests` requests.

    Windows follow each other without gaps. The rest at the end belongs to the last one.

    >>> windows(np.array([0, 1, 2, 60_000_000, 60_000_001, 115_000_000]), least_requests=2).tolist()
    [0, 0, 0, 1, 1, 1]
    >>> windows(np.array([0, 1, 2, 60_000_000, 60_000_001, 95_000_000]), least_requests=2).tolist()
    [0, 0, 0, 0, 0, 0]
    """
    count, least_us = len(arrival_us), max(round(least_s * 1e6), 1)  # no two windows begin at the same time
    starts = [0]
    while True:
        at = int(np.searchsorted(arrival_us, arrival_us[starts[-1]] + least_us, side="left"))
        at = max(at, starts[-1] + least_requests)
        # A window begins there if it would be long enough itself.
        if at + least_requests > count or arrival_us[-1] - arrival_us[at] < SHORT * least_us:
            break
        starts.append(at)
    window = np.zeros(count, np.int32)
    window[starts[1:]] = 1
    return np.cumsum(window, dtype=np.int32)


def rows_by_stage(stage: np.ndarray, stages: int) -> list[np.ndarray]:
    """The rows of the requests of each stage, in order, from the stage of each request.

    >>> [rows.tolist() for rows in rows_by_stage(np.array([0, -1, 1, 0]), 3)]
    [[0, 3], [2], []]
    """
    order = np.argsort(stage, kind="stable")
    starts = np.searchsorted(stage[order], np.arange(stages + 1), side="left")
    return [order[start:end] for start, end in pairwise(starts)]


def bounds_us(requests: Requests, stages: int) -> list[tuple[int, int]]:
    """The first arrival of every window and of the one after it, in us; the last window ends a mean gap after its last
    arrival, so that its rate is what was offered."""
    arrivals = [requests.arrival_us[rows] for rows in rows_by_stage(requests.stage, stages)]
    first, last = [int(of_stage[0]) for of_stage in arrivals], arrivals[-1]
    gap = (last[-1] - last[0]) / (len(last) - 1) if len(last) > 1 else 1e6
    return list(zip(first, [*first[1:], int(last[-1] + max(gap, 1.0))], strict=True))


def cut(trace: Trace, rows: np.ndarray, part: str, counted: np.ndarray | None = None) -> Trace:
    """The trace of these `rows` alone, bool per request, with figures of those that are also `counted` (default: all).

    Its windows are renumbered from 0. `part` names the choice, and becomes part of the digest.
    """
    chosen = np.flatnonzero(rows)
    requests = trace.requests.of(chosen)
    keep = requests.stage >= 0
    if counted is not None:
        keep &= counted[chosen]
    stage = np.full(len(requests), NOT_COUNTED, np.int32)
    stage[keep] = np.unique(requests.stage[keep], return_inverse=True)[1]
    recorded = trace.recorded.of(chosen) if trace.recorded else None
    digest = f"{trace.digest}:{part}"
    return Trace(trace.file, digest, replace(requests, stage=stage), recorded, trace.notes, whole=False)


def slowed(trace: Trace, factor: float) -> Trace:
    """The trace with `factor` times as long between arrivals; clients are as patient as before. Nothing is recorded of
    how it fared."""
    r = trace.requests
    arrival = np.rint(r.arrival_us * factor).astype(np.int64)
    deadline = np.where(r.deadline_us > 0, r.deadline_us - r.arrival_us + arrival, 0)
    requests = replace(r, arrival_us=arrival, deadline_us=deadline)
    return Trace(trace.file, f"{trace.digest}:{factor} times", requests, None, trace.notes, whole=False)
