"""The replay of separate pools for prefill and decode (simulator.serving.pools): their instances, one after the other.

Nothing that a decode instance does comes back to the prefill pool, and instances do not know of each other. So each is
replayed alone: the prefill instances with the requests whose turn it is, then the decode instances with what reaches
them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from simulator.clock.replicas import COUNTS, together, turns
from simulator.clock.run import ClockRun, NeverEnds, run_clock
from simulator.clock.steps import KnownSteps
from simulator.clock.transferred import transfers
from simulator.common.errors import InputError
from simulator.serving.load import Load, PoolLimits
from simulator.serving.trace import Requests


@dataclass(frozen=True)
class PoolRun:
    """What became of requests beside the decode pool's run. Arrays are per request, in order of arrival, int64 us."""

    start_us: np.ndarray  # last admission to the prefill pool
    end_us: np.ndarray  # end of the prompt there; of a decode pool alone the arrival
    transfer_us: np.ndarray
    computed: np.ndarray  # bool: the first token is that of a decode step; False: it ends a prompt
    dropped: np.ndarray  # bool: the decode pool had no room for the prompt's blocks


def transfer_us(pools: PoolLimits, input_len: np.ndarray) -> np.ndarray:
    """int64 per request: how long the transfer of a prompt's KV blocks takes."""
    assert pools.decode is not None
    block = pools.decode.block
    tokens = -(-input_len.astype(np.int64) // block) * block
    us = np.maximum(tokens * pools.bytes_per_token / pools.bytes_per_us, pools.least_us)
    whole: np.ndarray = np.maximum(np.ceil(us), 1.0).astype(np.int64)
    return whole


def run_pools(
    load: Load, queueing_us: np.ndarray, steps: tuple[KnownSteps, KnownSteps], stop_when_hostile: bool = False
) -> tuple[ClockRun, PoolRun]:
    """Run the requests of `load` that both pools accept. `steps`: the step times of prefill and of decode.

    The ClockRun is that of the last pool, with the counts of both and the blocks that the first one found in its cache.
    Its `first_us` is the end of the step with the first token; `decode_us` counts from there. Raises HostileStep as
    run_clock, and InputError if requests that wait hold all blocks of the decode pool.
    """
    pools, requests, n = load.pools, load.requests, len(load.requests)
    assert pools is not None
    prefilled: list[tuple[np.ndarray, ClockRun]] = []
    decoded: list[tuple[np.ndarray, ClockRun]] = []
    start = end = requests.arrival_us
    moved, ready, computed = np.zeros(n, np.int64), load.accepted, np.zeros(n, bool)
    if pools.prefill:
        asked = replace(requests, output_len=np.zeros_like(requests.output_len))
        for rows in turns(ready, pools.instances[0]):
            one = Load(asked.of(rows), pools.prefill)
            prefilled.append((rows, run_clock(one, queueing_us[rows], steps[0], stop_when_hostile=stop_when_hostile)))
        first = together(n, prefilled, pools.instances[0])
        start, end, ready = first.start_us, first.first_us, first.completed
    if pools.prefill and pools.decode:
        moved = np.where(ready, transfer_us(pools, requests.input_len), 0)
    reached, dropped = end + moved, np.zeros(n, bool)
    for in_turn in turns(ready, pools.instances[1]):
        rows = in_turn[np.argsort(reached[in_turn], kind="stable")]
        one, sent = _arriving(requests.of(rows), reached[rows], pools), transfers(end[rows])
        try:
            run = run_clock(one, 0 * rows, steps[1], stop_when_hostile=stop_when_hostile, transferred=sent)
        except NeverEnds:
            where = f"{pools.where}: " if pools.where else ""
            problem = f"cannot replay the decode pool: requests that wait hold all {one.limits.blocks} KV blocks"
            raise InputError(f"{where}{problem}. Give it more blocks or instances, or a lower rate") from None
        decoded.append((rows, run))
        computed[rows], dropped[rows] = sent.computed, ~(run.completed | run.gave_up)
    last = together(n, decoded, pools.instances[1]) if pools.decode else first
    if pools.prefill and pools.decode:
        counts = {name: getattr(first, name) + getattr(last, name) for name in COUNTS}
        last = replace(last, cached=first.cached, gave_up=first.gave_up | last.gave_up, **counts)
    return last, PoolRun(start, end, moved, computed, dropped)


def _arriving(requests: Requests, reached_us: np.ndarray, pools: PoolLimits) -> Load:
    """The load of a decode instance: no prompt is looked up, and any answer takes a step."""
    assert pools.decode is not None
    answers = np.maximum(requests.output_len, 1)
    return Load(replace(requests, arrival_us=reached_us, output_len=answers), replace(pools.decode, caching=False))
