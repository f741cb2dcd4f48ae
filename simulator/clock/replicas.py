"""The replay of several replicas of an engine, among which requests take turns in order of arrival.

Replicas do not know of each other, so each is replayed alone, with the requests whose turn it is. Where clients wait
for answers, what one replica does decides when another has a request: there all share a clock, see ranks.py.

As in the host (sim/routing.go, sim/cluster), the router turns to the next replica for every request that is sent, also
for one that the engine refuses, and cache_hit_rate is the mean over replicas.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from simulator.clock.queue import histogram_of
from simulator.clock.run import PER_REQUEST, Account, ClockRun, NeverEnds, Progress, run_clock
from simulator.clock.steps import KnownSteps
from simulator.serving.load import Load

# of ClockRun, over all instances
COUNTS = ("queued", "running", "steps", "clamped", "preemptions", "failures", "loaded")


def run_replicas(
    load: Load,
    queueing_us: np.ndarray,
    steps: KnownSteps,
    stop_when_hostile: bool,
    force_exact: bool,
    account: bool,
    progress: Progress | None,
) -> ClockRun:
    """`run_clock` of the replicas of a load without clients, one after the other."""
    parts: list[tuple[np.ndarray, ClockRun]] = []
    admitted = 0
    for rows in turns(load.accepted, load.replicas):
        one = Load(load.requests.of(rows), load.limits)

        def advance(done: int, before: int = admitted) -> None:
            assert progress
            progress(before + done)

        try:
            run = run_clock(
                one,
                queueing_us[rows],
                steps,
                stop_when_hostile=stop_when_hostile,
                force_exact=force_exact,
                account=account,
                progress=advance if progress else None,
            )
        except NeverEnds as e:
            raise NeverEnds(int(rows[e.row]), e.blocks) from None
        parts.append((rows, run))
        admitted += len(rows)
    return together(len(load.requests), parts, load.replicas)


def turns(ready: np.ndarray, instances: int) -> Iterator[np.ndarray]:
    """The rows that are `ready` of each instance that has any: requests take turns in order of arrival."""
    for i in range(instances):
        rows = np.arange(i, len(ready), instances)[ready[i::instances]]
        if len(rows):
            yield rows


def together(n: int, parts: Sequence[tuple[np.ndarray, ClockRun]], instances: int) -> ClockRun:
    """The runs of instances as one of `n` requests, in order of arrival. `parts`: the rows and runs of those that have
    any."""
    kinds = {"cached": np.int32, "completed": bool, "gave_up": bool}
    columns: dict[str, Any] = {name: np.zeros(n, kinds.get(name, np.int64)) for name in PER_REQUEST}
    columns["cached"] -= 1
    for rows, run in parts:
        for name, column in columns.items():
            column[rows if run.order is None else rows[run.order]] = getattr(run, name)
    counts = {name: sum(getattr(run, name) for _, run in parts) for name in COUNTS}
    accounts, account = [run.account for _, run in parts if run.account], None
    if len(accounts) == len(parts):
        account = Account(
            hits=sum(a.hits for a in accounts),
            misses=sum(a.misses for a in accounts),
            last_us=max((a.last_us for a in accounts), default=0),
            gaps=histogram_of([a.gaps for a in accounts]),
            hit_rate=sum(a.hit_rate for a in accounts) / instances,
        )
    return ClockRun(None, None, **columns, **counts, fast=all(run.fast for _, run in parts), account=account)
