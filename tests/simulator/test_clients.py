"""Loads whose requests wait for a free client: the compiled clocks against the plain one, and laws that hold for both."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from examples import daily
from hypothesis import event, given, settings
from hypothesis import strategies as st
from plain_clock import FACTS, closed_host, step_function
from test_clock import PROGRAMS, QUEUEING, bound_of, burst, compare, loads

from simulator.clock.bind import bind
from simulator.clock.replay import Replay, replay_bound
from simulator.clock.run import NeverEnds
from simulator.language.opcodes import assemble
from simulator.language.parse import parse
from simulator.serving.load import NEVER, Clients, Load

OVERHEADS = (
    "",
    "def output_token_time(s, *, t=35.5): return t\ndef completion_time(s, *, c=410.0): return c",
)


@st.composite
def closed(draw: st.DrawFn) -> Load:
    """A random load whose requests are sent by clients that wait: closed, in stages, or capped."""
    load = draw(loads() | loads(chunked=False))
    n = len(load.requests)
    patience = np.where(load.requests.deadline_us > 0, load.requests.deadline_us - load.requests.arrival_us, 0)
    capped = draw(st.booleans())
    due = load.requests.arrival_us if capped else np.zeros(n, np.int64)
    cuts = [] if capped else draw(st.lists(st.integers(1, n), max_size=2))
    first = np.array(sorted({0, n, *cuts}))
    stages = len(first) - 1
    users = np.array(draw(st.lists(st.integers(1, 12), min_size=stages, max_size=stages)))
    spread = np.array(draw(st.lists(st.sampled_from([0, 0, 5_000, 40_001]), min_size=stages, max_size=stages)))
    most_think = draw(st.sampled_from([0, 0, 700, 50_000]))
    think = np.array(draw(st.lists(st.integers(0, most_think), min_size=n, max_size=n)), np.int64)
    if capped:
        spread, think = 0 * spread, 0 * think
    clients = Clients(first, users, spread, think, draw(st.booleans()), capped, capped and draw(st.booleans()))
    deadline = np.where(patience > 0, due + patience, 0)
    return Load(replace(load.requests, arrival_us=due, deadline_us=deadline), load.limits, clients)


@settings(max_examples=daily(120, 500), derandomize=True, deadline=None)
@given(closed(), st.sampled_from(PROGRAMS), st.sampled_from(QUEUEING), st.sampled_from(OVERHEADS))
def test_fast_exact_and_plain_are_equal(load: Load, step: str, queueing: str, overheads: str) -> None:
    """Every arrival, latency and count of random loads with clients is the plain clock's."""
    program = parse("\n".join((step, queueing, overheads)))
    bound = bind(assemble(program), program.theta, FACTS)
    queue_us = [max(0, min(int(bound.queueing_us(int(n))), 10**10)) for n in load.requests.input_len]
    late = int(bound.output_token_us()), int(bound.completion_us())
    told = closed_host(load, queue_us, step_function(program, FACTS), late, 20_000)
    if told.stuck:
        if not load.requests.deadline_us.any() and load.limits.horizon_us == NEVER:
            with pytest.raises(NeverEnds):
                replay_bound(load, bound, force_exact=True)
        return
    sent = [NEVER if r.sent is None else r.sent for r in told.requests]
    for exact in (False, True):
        seen = replay_bound(load, bound, account=True, force_exact=exact)
        event(f"{'fast' if seen.run.fast else 'exact'}{' preempting' if seen.run.preemptions else ''}")
        assert seen.run.sent_us is not None
        np.testing.assert_array_equal(seen.run.sent_us, sent)
        compare(seen, told)


def crowded(rng: np.random.Generator) -> Load:
    """A random load on a batch of one to four requests, which is full most of the time."""
    n, capped = int(rng.integers(2, 60)), bool(rng.integers(2))
    latest = int(rng.choice([1, 3_000, 40_000, 300_000]))
    due = np.sort(rng.integers(0, latest, n)) if capped else np.zeros(n, np.int64)
    think = np.zeros(n, np.int64) if capped else rng.integers(0, int(rng.choice([1, 2_000, 60_000])), n)
    spread = np.array([0 if capped else int(rng.choice([0, 30_000]))])
    rules = bool(rng.integers(2)), capped, capped and bool(rng.integers(2))
    clients = Clients(np.array([0, n]), rng.integers(1, 12, 1), spread, think, *rules)
    lengths, answers = rng.integers(10, int(rng.integers(12, 150)), n), rng.integers(0, int(rng.integers(2, 40)), n)
    limits = {"max_seqs": int(rng.integers(1, 5)), "budget": int(rng.choice([20, 160, 2048])), "max_model_len": 0}
    ahead = bool(rng.integers(2))
    load = burst(lengths.tolist(), answers.tolist(), **limits, block=16, blocks=10_000, ahead=ahead)
    return replace(load, requests=replace(load.requests, arrival_us=due), clients=clients)


def test_both_clocks_are_equal_on_batches_that_are_full() -> None:
    """Two thousand of them, as what goes wrong there goes wrong in a few of a hundred."""
    rng = np.random.default_rng(1)
    bounds = [bound_of("\n".join(text)) for text in product(PROGRAMS[:14], QUEUEING, OVERHEADS)]
    proven = 0
    for _ in range(2_000):
        load, bound = crowded(rng), bounds[int(rng.integers(len(bounds)))]
        seen = replay_bound(load, bound)
        if not seen.run.fast:
            continue
        proven, told = proven + 1, replay_bound(load, bound, force_exact=True)
        np.testing.assert_array_equal(seen.sent_us, told.sent_us)
        for name in ("start_us", "begun_us", "first_us", "decode_us"):
            np.testing.assert_array_equal(seen.spread(getattr(seen.run, name)), told.spread(getattr(told.run, name)))
        assert seen.run.steps == told.run.steps
    assert proven > 1_500


def users(load: Load, count: int, think_us: int = 0, **changes: bool) -> Load:
    """The load, sent by so many clients that all begin at 0."""
    n = len(load.requests)
    clients = Clients(np.array([0, n]), np.array([count]), np.array([0]), np.full(n, think_us), **changes)
    return replace(load, clients=clients)


@settings(max_examples=daily(30), derandomize=True, deadline=None)
@given(closed(), st.sampled_from(PROGRAMS[:10]), st.sampled_from(QUEUEING))
def test_the_arrivals_found_give_the_same_run_as_an_open_load(load: Load, step: str, queueing: str) -> None:
    """A fixed point: the open load with the arrivals that a run found has the same times."""
    load = replace(load, limits=replace(load.limits, horizon_us=NEVER))
    bound = bound_of(step + "\n" + queueing)
    try:
        seen = replay_bound(load, bound, account=True)
    except NeverEnds:
        return
    assert seen.run.sent_us is not None
    # A request that is sent as another gives up comes after the step of that moment, in an open load before it.
    if (seen.run.sent_us == NEVER).any() or seen.run.gave_up.any():
        return
    sent = replace(seen.requests, arrival_us=seen.run.sent_us)
    if load.clients and load.clients.from_due:
        sent = replace(sent, deadline_us=load.requests.deadline_us)
    again = replay_bound(Load(sent, load.limits), bound, account=True)
    for name in ("first_us", "start_us", "decode_us", "cached", "completed"):
        np.testing.assert_array_equal(seen.spread(getattr(seen.run, name)), again.spread(getattr(again.run, name)))
    assert seen.run.steps == again.run.steps


def many(count: int, seed: int) -> Load:
    rng = np.random.default_rng(seed)
    inputs, outputs = rng.integers(20, 60, count).tolist(), rng.integers(5, 60, count).tolist()
    return burst(inputs, outputs, max_seqs=64, budget=512, blocks=2000, max_model_len=200)


@pytest.mark.parametrize("think_us", [0, 30_000])
@pytest.mark.parametrize("at_engine", [False, True])
@pytest.mark.parametrize("count", [1, 7, 32])
def test_littles_law(count: int, at_engine: bool, think_us: int) -> None:
    """c = throughput x (residence + think time), residence as the rule of release has it, over all of a long run."""
    text = "def step_time(b, s): return 900.5 + 12.25 * b.prefill_tokens + 33.3 * b.decode_reqs\n" + OVERHEADS[1]
    load = users(many(40_000, count), count, think_us, at_engine=at_engine)
    seen = replay_bound(load, bound_of(text))
    assert seen.completed.all() and seen.run.fast
    sent = seen.requests.arrival_us
    ends = sent + seen.e2e_us
    if at_engine:  # the engine's own completion
        ends -= seen.token_us * load.requests.output_len + seen.completion_us
    free = np.sort(ends + think_us)  # the next request is sent when a client is free
    np.testing.assert_array_equal(np.sort(sent)[count:], free[: len(free) - count])
    order = np.argsort(ends)[10 * count : -10 * count]  # neither the first wave nor the last
    throughput = (len(order) - 1) / float(ends[order[-1]] - ends[order[0]])
    assert throughput * (float((ends - sent)[order].mean()) + think_us) == pytest.approx(count, rel=1e-3)


def test_stages_follow_each_other() -> None:
    """The second stage begins when the last request of the first has ended, with other clients."""
    load = burst([10] * 6, [3] * 6)
    clients = Clients(np.array([0, 2, 6]), np.array([1, 4]), np.array([0, 0]), np.zeros(6, np.int64))
    seen = replay_bound(replace(load, clients=clients), bound_of("def step_time(b, s): return 1000"))
    # three steps a request: one after the other, then four at once
    assert seen.requests.arrival_us.tolist() == [0, 3000, 6000, 6000, 6000, 6000]


def test_a_cap_holds_back_what_is_due() -> None:
    """Requests due at 0, 100, 200 and 9000, two at a time: the third waits for the first to end, and the last for none."""
    load = burst([10] * 4, [3] * 4)
    due = np.array([0, 100, 200, 9000])
    capped = replace(load, requests=replace(load.requests, arrival_us=due))
    bound = bound_of("def step_time(b, s): return 1000")
    by_send = replay_bound(users(capped, 2, capped=True), bound)
    assert by_send.requests.arrival_us.tolist() == [0, 100, 3000, 9000]
    by_due = replay_bound(users(capped, 2, capped=True, from_due=True), bound)
    assert by_due.requests.arrival_us.tolist() == due.tolist()
    np.testing.assert_array_equal(by_due.e2e_us - by_send.e2e_us, [0, 0, 2800, 0])


@pytest.mark.parametrize("force_exact", [False, True])
def test_what_is_sent_while_the_batch_is_full_is_waiting_when_it_ends(force_exact: bool) -> None:
    """One request at a time, four steps of 1 ms from 0 on: the second is due at 1500 us, and starts when the first has
    ended."""
    load = burst([10, 10], [4, 1], max_seqs=1)
    capped = replace(load, requests=replace(load.requests, arrival_us=np.array([0, 1500])))
    seen = replay_bound(
        users(capped, 2, capped=True), bound_of("def step_time(b, s): return 1000"), force_exact=force_exact
    )
    assert seen.run.fast != force_exact
    assert seen.run.start_us.tolist() == [0, 4000]


def test_a_client_that_gives_up_goes_on_or_is_gone() -> None:
    """One client, whose patience ends in the middle of the second request's three steps."""
    load = burst([10] * 3, [3, 30, 3])
    patient = replace(load.requests, deadline_us=np.array([0, 1500, 0]))
    bound = bound_of("def step_time(b, s): return 1000")

    def sent(at_engine: bool) -> list[int]:
        seen: Replay = replay_bound(users(replace(load, requests=patient), 1, at_engine=at_engine), bound)
        assert seen.run.sent_us is not None
        return seen.run.sent_us.tolist()

    assert sent(False) == [0, 3000, 4500]
    assert sent(True) == [0, 3000, NEVER]
