"""Separate pools for prefill and decode: request by request as the plain clock has them, and as one pool by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from examples import daily
from hypothesis import assume, event, given, settings
from hypothesis import strategies as st
from plain_clock import FACTS, Host, Request, prompt_tokens, step_function
from test_clock import PROGRAMS, QUEUEING, asked, bound_of, burst, loads

from simulator.clock.bind import Bound
from simulator.clock.pools import transfer_us
from simulator.clock.replay import PoolReplay, replay_bound
from simulator.common.errors import InputError
from simulator.language.parse import parse
from simulator.serving.load import NEVER, EngineLimits, Load, PoolLimits

STEADY = "def step_time(b, s): return 1000 + 10 * b.prefill_tokens"
ENOUGH = 8_000  # steps after which the plain clock is stuck


class Stuck(Exception):
    """The plain clock steps for ever."""


def told_of(
    load: Load, step: str, queueing: list[int], arrivals: dict[int, tuple[int, int]] | None = None
) -> list[Request]:
    """What became of the requests on an instance by the plain clock. arrivals: when the transfer of a request begins and
    ends, by its row; None if prompts are computed here. Raises Stuck."""
    rows = range(len(load.requests)) if arrivals is None else arrivals
    requests = []
    for i in rows:
        arrival, output = int(load.requests.arrival_us[i]), int(load.requests.output_len[i])
        one = Request(i, arrival, arrival + queueing[i], prompt_tokens(load.requests, i), output, 0, queueing[i])
        one.deadline = int(load.requests.deadline_us[i])
        if arrivals is not None:
            one.transfer, one.queued = arrivals[i]
            one.arrival = one.queued
        requests.append(one)
    told = Host(requests, load.limits, step_function(parse(step), FACTS), ENOUGH).run()
    if told.stuck:
        assume(not load.requests.deadline_us.any())  # a client may give up some time
        raise Stuck
    return requests


def first_and_last(r: Request) -> tuple[int, int]:
    """The ends of the steps with the first and the last token of a transferred request."""
    assert r.start is not None
    first, later = (r.first or 0, r.itl) if r.first_flag else (r.start + r.itl[0][1], r.itl[1:])
    return first, first + sum(us for _, us in later)


@st.composite
def split_loads(draw: st.DrawFn) -> Load:
    """Loads of one engine, which decodes, and another one with the same blocks, which prefills."""
    load = draw(loads())
    # instances of pools never compose ahead, and have no host memory
    alone = {"horizon_us": int(NEVER), "ahead": False, "tier": None}
    limits = replace(load.limits, **alone)
    longest = draw(st.sampled_from([limits.max_model_len, 100]))
    own = {"block": limits.block, "max_model_len": longest, "busy": True, **alone}
    prefill = replace(draw(loads()).limits, **own)
    pools = PoolLimits(
        prefill,
        limits,
        (draw(st.integers(1, 3)), draw(st.integers(1, 3))),
        bytes_per_token=draw(st.sampled_from([0.0, 1e3, 1e5])),
        bytes_per_us=1e3,
        least_us=draw(st.sampled_from([0.0, 2_000.5])),
    )
    return Load(load.requests, limits, pools=pools)


@settings(max_examples=daily(30, 1000), derandomize=True, deadline=None)
@given(split_loads(), st.sampled_from(PROGRAMS), st.sampled_from(QUEUEING))
def test_pools_are_plain_instances_one_after_the_other(load: Load, step: str, queueing: str) -> None:
    bound = bound_of(step + "\n" + queueing)
    try:
        compare(
            load, step, [max(0, min(int(bound.queueing_us(int(n))), 10**10)) for n in load.requests.input_len], bound
        )
    except Stuck:
        event("never ends")
        with pytest.raises(InputError, match="KV blocks"):
            replay_bound(load, bound)


def compare(load: Load, step: str, waits: list[int], bound: Bound) -> None:
    """Every time and every end of the replay is that of plain instances. Raises Stuck."""
    requests, pools, n = load.requests, load.pools, len(load.requests)
    assert pools and pools.prefill and pools.decode
    asked_for, accepted = replace(requests, output_len=np.zeros_like(requests.output_len)), load.accepted
    prefilled, decoded = dict[int, Request](), dict[int, Request]()
    for p in range(pools.instances[0]):
        rows = [i for i in range(p, n, pools.instances[0]) if accepted[i]]
        part = Load(asked_for.of(np.array(rows, int)), pools.prefill)
        prefilled |= {rows[r.row]: r for r in told_of(part, step, [waits[i] for i in rows])}
    moved = transfer_us(pools, requests.input_len).tolist()
    ends = {i: r.first or 0 for i, r in prefilled.items() if r.state == "completed"}
    for d in range(pools.instances[1]):
        due = {i: (ends[i], ends[i] + moved[i]) for i in range(d, n, pools.instances[1]) if i in ends}
        due = dict(sorted(due.items(), key=lambda pair: pair[1][1]))
        decoded |= {r.row: r for r in told_of(Load(requests, pools.decode), step, waits, due)}
    seen = replay_bound(load, bound)
    assert isinstance(seen, PoolReplay)
    run = seen.run
    for i in range(n):
        r = decoded.get(i) or prefilled.get(i)
        state = r.state if r else "refused"
        assert (seen.completed[i], run.gave_up[i], seen.pools.dropped[i]) == tuple(
            state == name for name in ("completed", "gave up", "no room")
        )
        event(state)
        if i in ends:
            assert (seen.pools.start_us[i], seen.pools.end_us[i]) == (prefilled[i].start, ends[i])
            assert run.cached[i] == prefilled[i].cached
        if r and state == "completed":
            first, last = first_and_last(r)
            assert (run.start_us[i], run.first_us[i], run.first_us[i] + run.decode_us[i]) == (r.start, first, last)
            assert seen.pools.computed[i] == (not r.first_flag)
            event("computed again" if r.first_flag else "decoded at once")


@settings(max_examples=daily(20, 300), derandomize=True, deadline=None)
@given(split_loads(), st.sampled_from(PROGRAMS[:7]), st.sampled_from(QUEUEING))
def test_nothing_is_lost_and_the_parts_are_the_whole(load: Load, step: str, queueing: str) -> None:
    """Every request has one end; its parts are at least 0, and add up to the time from arrival to the last token."""
    overheads = "def output_token_time(s): return 3.7\ndef completion_time(s): return 50"
    try:
        seen = replay_bound(load, bound_of("\n".join((step, queueing, overheads))))
    except InputError:
        assume(False)
    assert isinstance(seen, PoolReplay)
    ends = np.stack([seen.completed, seen.run.gave_up, seen.pools.dropped, ~load.accepted])
    assert (ends.sum(axis=0) == 1).all()
    done, parts = seen.completed, seen.parts_us
    assert all((part[done] >= 0).all() for part in parts.values())
    output = seen.requests.output_len
    tokens = np.where(seen.pools.computed, np.maximum(output - 1, 1), np.maximum(output, 1))
    last_us = seen.run.first_us + seen.run.decode_us - seen.requests.arrival_us
    e2e_us = last_us + 3 * tokens + np.where(output > 0, 50, 0)
    np.testing.assert_array_equal(seen.e2e_us[done], e2e_us[done])
    assert (seen.e2e_us >= seen.ttft_us).all() and (seen.ttft_us[done] > parts["transfer"][done]).all()


def in_pools(load: Load, instances: tuple[int, int] = (1, 1), **link: float) -> Load:
    busy = replace(load.limits, busy=True)
    return replace(load, pools=PoolLimits(busy, load.limits, instances, **link))


def test_a_request_alone_has_the_times_of_one_pool() -> None:
    """With an infinite link, all parts but the transfer of 1 us; the first decode step is in the TTFT too."""
    lengths, outputs = [50, 30, 64, 250, 7], [3, 2, 10, 4, 2]
    apart = {"arrival_us": np.arange(5) * 1_000_000, "prompt": np.array([0, 1, 0, 2, 1], np.int32)}
    load = Load(asked(lengths, outputs, **apart), burst([1], [1], max_model_len=0).limits)
    text = STEADY + " + 7 * b.decode_reqs + 0.3 * b.kv_sum\n" + QUEUEING[1]
    one, seen = replay_bound(load, bound_of(text)), replay_bound(in_pools(load), bound_of(text))
    assert isinstance(seen, PoolReplay)
    for name in ("queueing", "waiting", "prefill_steps", "decode_steps", "per_token"):
        np.testing.assert_array_equal(seen.parts_us[name], one.parts_us[name], err_msg=name)
    assert seen.parts_us["transfer"].tolist() == [1] * 5 and not seen.parts_us["decode_waiting"].any()
    np.testing.assert_array_equal(seen.e2e_us, one.e2e_us + 1)
    np.testing.assert_array_equal(seen.run.cached, one.run.cached)
    np.testing.assert_array_equal(seen.itl_us, one.itl_us)
    assert (seen.ttft_us > one.ttft_us + 1_000).all()


def test_a_prefill_pool_fills_up_where_one_instance_in_the_host_would_not() -> None:
    """Prompts of 60 tokens, 1.6 ms each, come every 1 ms; with two instances every 2 ms to each."""
    load = Load(asked([60] * 6, [2] * 6, arrival_us=np.arange(6) * 1_000), burst([1], [1], budget=60).limits)
    one, two = (replay_bound(in_pools(load, (count, 1)), bound_of(STEADY)) for count in (1, 2))
    assert one.waiting_us.tolist() == [0, 600, 1_200, 1_800, 2_400, 3_000]
    assert not two.waiting_us.any()
    host = Load(replace(load.requests, output_len=np.zeros(6, np.int32)), load.limits)
    assert not replay_bound(host, bound_of(STEADY)).waiting_us.any()


def test_blocks_are_set_aside_when_a_transfer_begins() -> None:
    """Three prompts of 4 blocks end at once, and 10 blocks are there: the third is dropped, although the first two
    have ended long before its transfer would have."""
    load = burst([40, 40, 40], [2, 2, 2], budget=1_000, blocks=10)
    seen = replay_bound(in_pools(load, (3, 1), least_us=50_000.0), bound_of(STEADY))
    assert isinstance(seen, PoolReplay)
    assert seen.pools.dropped.tolist() == [False, False, True] and seen.completed.tolist() == [True, True, False]
    # with an instance more, it would be that one's turn
    assert replay_bound(in_pools(load, (3, 2)), bound_of(STEADY)).completed.all()


def test_requests_that_hold_every_block_are_an_error() -> None:
    """Two prompts of 5 full blocks hold all 10, and each needs another for its token: the host would step for ever."""
    load = burst([50, 50], [2, 2], budget=1_000, blocks=10)
    with pytest.raises(InputError, match="hold all 10 KV blocks"):
        replay_bound(in_pools(load), bound_of(STEADY))


def test_one_pool_alone() -> None:
    """Of a prefill pool the prompt is all; to a decode pool it comes computed."""
    load, bound = burst([50, 30], [3, 1]), bound_of(STEADY)
    pools = in_pools(load).pools
    assert pools
    none = Load(replace(load.requests, output_len=np.zeros(2, np.int32)), load.limits)
    prefill = replay_bound(replace(none, pools=replace(pools, decode=None, instances=(1, 0))), bound)
    assert prefill.e2e_us.tolist() == prefill.ttft_us.tolist() == [1_800, 1_800] and not prefill.itl_us.any()
    decode = replay_bound(replace(load, pools=replace(pools, prefill=None, instances=(0, 1))), bound)
    assert decode.ttft_us.tolist() == [1_000, 1_000] and decode.e2e_us.tolist() == [2_000, 1_000]


def test_a_transfer_moves_whole_blocks_and_takes_a_whole_time() -> None:
    """63 blocks of 16 tokens of 131,072 bytes at 450 GB/s: 132,120,576 bytes, 293.6 us."""
    limits = EngineLimits(8, 100, 0, 16, 1_000)
    pools = PoolLimits(limits, limits, (1, 1), bytes_per_token=131_072, bytes_per_us=450_000)
    lengths = np.array([1, 16, 17, 1_000], np.int32)
    assert transfer_us(pools, lengths).tolist() == [5, 5, 10, 294]
    assert transfer_us(replace(pools, least_us=9.5), lengths).tolist() == [10, 10, 10, 294]
    assert transfer_us(replace(pools, bytes_per_us=float("inf")), lengths).tolist() == [1] * 4
