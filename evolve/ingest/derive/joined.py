"""The load generator's rows and the server's requests, side by side: one row a request, whoever saw it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from evolve.ingest.columns import NONE
from evolve.ingest.derive.clocks import Match, match
from evolve.ingest.derive.journeys import Life
from evolve.ingest.sources.clients import Clients
from evolve.ingest.sources.traces import API, Traces

MOST_UNLIKE = 0.1  # of the pairs may disagree on max_tokens; beyond it the two files are not of one run


@dataclass(frozen=True)
class Joined:
    """int64 arrays, a row a request: `client` (row of the file), `core` and `api` (numbers of `Traces`), -1 for none.

    Rows with a client row come first, by start. `arrived_ns`, `departed_ns`: per
    API request, NONE where missing. `unlike`: pairs that disagree on max_tokens.
    """

    client: np.ndarray
    core: np.ndarray
    api: np.ndarray
    match: Match | None
    arrived_ns: np.ndarray
    departed_ns: np.ndarray
    unlike: int

    def row_of_core(self, cores: int) -> np.ndarray:
        """int64[core requests]: the row of each."""
        out = np.full(cores, -1, dtype=np.int64)
        seen = self.core >= 0
        out[self.core[seen]] = np.flatnonzero(seen)
        return out


def join(traces: Traces | None, lives: Sequence[Life], clients: Clients | None) -> Joined:
    """Match by order and time, where both sides are there; see `clocks.match`."""
    arrived, departed = _api_times(traces)
    core, api, at = _server_requests(traces, lives, arrived)
    if clients is None:
        none = np.full(len(core), -1, dtype=np.int64)
        return Joined(none, core, api, None, arrived, departed, 0)
    order = np.argsort(clients.rows["start_s"], kind="stable")
    known = at != NONE
    asked, limit = clients.rows["max_tokens"][order], _limits(traces)[core]
    found = match(clients.rows["start_s"][order], at[known] / 1e9, asked, limit[known])
    pairs = np.full(len(order), -1, dtype=np.int64)
    unlike = 0
    if found is not None:
        paired = found.server >= 0
        pairs[paired] = np.flatnonzero(known)[found.server[paired]]
        ours, theirs = asked[paired], limit[pairs[paired]]
        unlike = int(((ours != theirs) & (ours != NONE) & (theirs != NONE)).sum())
        if unlike > MOST_UNLIKE * paired.sum():
            found, pairs = None, np.full(len(order), -1, dtype=np.int64)
    lone = np.setdiff1d(np.arange(len(core)), pairs)
    client = np.concatenate([order, np.full(len(lone), -1)])
    with_none = [np.append(column, -1) for column in (core, api)]  # position -1 is nobody
    rows = np.concatenate([pairs, lone])
    return Joined(client, with_none[0][rows], with_none[1][rows], found, arrived, departed, unlike)


def _server_requests(
    traces: Traces | None, lives: Sequence[Life], arrived: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Core request, API request and arrival (QUEUED where ARRIVED is missing) of each, by arrival."""
    if traces is None:
        empty = np.zeros(0, dtype=np.int64)
        return empty, empty, empty
    queued = {life.request: life.queued_ns for life in lives}
    found = []
    for core, api in enumerate(traces.api_of):
        first = int(arrived[api]) if api >= 0 else NONE
        found.append((first if first != NONE else queued.get(core) or NONE, core, api))
    taken = set(traces.api_of)
    found += [(int(arrived[api]), -1, api) for api in range(len(traces.api_ids)) if api not in taken]
    table = np.array(sorted(found), dtype=np.int64).reshape(-1, 3)
    return table[:, 1], table[:, 2], table[:, 0]


def _api_times(traces: Traces | None) -> tuple[np.ndarray, np.ndarray]:
    count = len(traces.api_ids) if traces else 0
    arrived, departed = np.full(count, NONE), np.full(count, NONE)
    if traces:
        e = traces.api
        for request, event, at in zip(e["request"].tolist(), e["event"].tolist(), e["ts_ns"].tolist(), strict=True):
            if event == API.index("ARRIVED") and arrived[request] == NONE:
                arrived[request] = at
            elif event == API.index("DEPARTED"):
                departed[request] = at
    return arrived, departed


def _limits(traces: Traces | None) -> np.ndarray:
    """int64[core requests + 1]: the limit of output tokens of each; NONE where unknown, and at the end for nobody."""
    out = np.full((len(traces.core_ids) if traces else 0) + 1, NONE)
    if traces:
        out[traces.journeys["request"]] = traces.journeys["decode_max"]
    return out
