"""Replicas behind a router that takes turns: each is an engine of its own with every N-th request."""

from __future__ import annotations

import heapq
from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from examples import daily
from hypothesis import assume, event, given, settings
from hypothesis import strategies as st
from plain_clock import FACTS, Host, host, step_function
from test_clients import closed
from test_clock import PROGRAMS, QUEUEING, asked, bound_of, burst, loads

from evaluator.host_summary import aggregate
from evaluator.score import predictions, score_set
from simulator.clock.replay import Replay, replay_bound
from simulator.clock.run import NeverEnds
from simulator.common.errors import InputError
from simulator.language.complete import complete
from simulator.language.parse import parse
from simulator.serving.digests import data_hash
from simulator.serving.experiment import TURNS, Experiment, deploy
from simulator.serving.load import NEVER, Clients, Load, load_of
from simulator.serving.spec import Spec, read_spec

STEADY = "def step_time(b, s): return 1000 + 10 * b.prefill_tokens"
ENTRY: dict[str, Any] = {
    "id": "a",
    "model": "llama-3.1-8b",
    "hardware": "H100-SXM-80GB",
    "replicas": 3,
    "workload": {"name": "w", "stages": [{"rate": 9.0, "duration_s": 20}], "prompt_len": 300, "output_len": 20},
}
CLOSED = {"name": "w", "concurrency": 7, "requests": 60, "prompt_len": 300, "output_len": 20}


def alone(load: Load, replica: int, count: int, arrival_us: np.ndarray | None = None) -> tuple[np.ndarray, Load]:
    """The rows of a replica, and its load by hand; arrival_us: when the requests are sent."""
    rows = np.arange(replica, len(load.requests), count)
    requests = load.requests.of(rows)
    if arrival_us is not None:
        patience = np.where(requests.deadline_us > 0, requests.deadline_us - requests.arrival_us, 0)
        sent = arrival_us[rows]
        requests = replace(requests, arrival_us=sent, deadline_us=np.where(patience > 0, sent + patience, 0))
    return rows, Load(requests, load.limits)


def same(seen: Replay, rows: np.ndarray, told: Host) -> None:
    """Every request of a replica has the plain clock's times."""
    of = told.requests
    done = seen.completed[rows]
    assert done.tolist() == [r.state == "completed" for r in of]
    assert seen.spread(seen.run.gave_up)[rows].tolist() == [r.state == "gave up" for r in of]
    first, start = seen.spread(seen.run.first_us)[rows], seen.spread(seen.run.start_us)[rows]
    decode, cached = seen.decode_us[rows], seen.spread(seen.run.cached)[rows]
    for i in np.flatnonzero(done):
        assert (start[i], first[i], decode[i], cached[i]) == (of[i].start, of[i].first, of[i].decode_us, of[i].cached)


@settings(max_examples=daily(30, 500), derandomize=True, deadline=None)
@given(loads() | loads(chunked=False), st.sampled_from(PROGRAMS), st.sampled_from(QUEUEING), st.integers(2, 5))
def test_replicas_are_plain_engines_with_every_nth_request(load: Load, step: str, queueing: str, count: int) -> None:
    bound, n = bound_of(step + "\n" + queueing), len(load.requests)
    told, rows_of = [], []
    for replica in range(min(count, n)):
        rows, one = alone(load, replica, count)
        waits = [max(0, min(int(bound.queueing_us(int(k))), 10**10)) for k in one.requests.input_len]
        told.append(host(one.requests, waits, load.limits, step_function(parse(step), FACTS), 8_000))
        rows_of.append(rows)
    together = replace(load, replicas=count)
    if any(each.stuck for each in told):
        assume(not load.requests.deadline_us.any() and load.limits.horizon_us == NEVER)
        event("never ends")
        with pytest.raises(NeverEnds):
            replay_bound(together, bound)
        return
    seen = replay_bound(together, bound, account=True)
    for rows, each in zip(rows_of, told, strict=True):
        same(seen, rows, each)
    run, account = seen.run, seen.run.account
    assert account
    sums = run.clamped, run.preemptions, run.failures, run.queued, run.running
    assert sums == tuple(
        sum(values)
        for values in zip(
            *((h.clamped, h.preemptions, h.failures, len(h.queue), len(h.running)) for h in told), strict=True
        )
    )
    gaps = Counter(us for h in told for r in h.requests if r.state == "completed" for _, us in r.itl)
    assert dict(zip(*(x.tolist() for x in account.gaps), strict=True)) == gaps
    found = [(h.cache.hits, h.cache.hits + h.cache.misses) for h in told]
    rates = [hits / blocks if blocks else 0.0 for hits, blocks in found]
    assert aggregate(seen)["cache_hit_rate"] == pytest.approx(sum(rates) / count)  # the host's: over all instances


@settings(max_examples=daily(20, 200), derandomize=True, deadline=None)
@given(loads(), st.sampled_from(PROGRAMS[:14]), st.integers(2, 4))
def test_replicas_of_a_deployment_of_ranks_are_such_deployments(load: Load, step: str, count: int) -> None:
    """Two ranks that step together in each: the merged replays of loads that were split by hand."""
    load = replace(load, limits=replace(load.limits, ranks=2, together=True))
    bound, merged = bound_of(step), {}
    try:
        for replica in range(min(count, len(load.requests))):
            rows, one = alone(load, replica, count)
            part = replay_bound(one, bound)
            merged |= dict(zip(rows.tolist(), zip(part.ttft_us, part.e2e_us, part.completed, strict=True), strict=True))
    except NeverEnds:
        assume(False)
    seen = replay_bound(replace(load, replicas=count), bound)
    every = zip(seen.ttft_us, seen.e2e_us, seen.completed, strict=True)
    assert dict(enumerate(every)) == merged


@settings(max_examples=daily(40, 500), derandomize=True, deadline=None)
@given(closed(), st.sampled_from(PROGRAMS[:14]), st.sampled_from(QUEUEING), st.integers(2, 4))
def test_clients_share_replicas_in_turn(load: Load, step: str, queueing: str, count: int) -> None:
    """Every replica is a plain engine whose requests come when they were sent; a request is sent when a client is
    free."""
    assert load.clients
    load = replace(load, limits=replace(load.limits, horizon_us=int(NEVER)))
    bound = bound_of(step + "\n" + queueing)
    try:
        seen = replay_bound(replace(load, replicas=count), bound, account=True)
    except NeverEnds:
        assume(False)
    sent_us = seen.sent_us
    assume((sent_us < NEVER).all())
    for replica in range(min(count, len(sent_us))):
        due = load.requests.arrival_us if load.clients.from_due else sent_us
        rows, one = alone(load, replica, count, due)
        requests = replace(one.requests, arrival_us=sent_us[rows])
        waits = seen.queueing_us[rows].tolist()
        told = host(requests, waits, load.limits, step_function(parse(step), FACTS), 8_000)
        assume(not told.stuck)
        same(seen, rows, told)
    if len(load.clients.users) == 1 and seen.completed.all() and len(set(load.clients.think_us.tolist())) == 1:
        event("sent when free")
        ends = seen.spread(seen.run.first_us) + seen.spread(seen.run.decode_us) + int(load.clients.think_us[0])
        users = int(load.clients.users[0])
        free = [u * int(load.clients.spread_us[0]) // users for u in range(users)]
        heapq.heapify(free)
        for i, due_us in enumerate(load.requests.arrival_us.tolist()):
            assert sent_us[i] == max(heapq.heappop(free), due_us)
            heapq.heappush(free, int(ends[i]))


def test_one_replica_is_none() -> None:
    e = deploy(read_spec({**ENTRY, "replicas": 1}, "test"))
    plain = deploy(read_spec({key: value for key, value in ENTRY.items() if key != "replicas"}, "test"))
    assert e == plain and data_hash([e]) == data_hash([plain]) and e.spec and "replicas" not in e.spec.to_entry()
    bound = bound_of(STEADY)
    for load in (load_of(e, 1), replace(load_of(deploy(read_spec({**ENTRY, "workload": CLOSED}, "t")), 1), replicas=1)):
        one = replay_bound(load, bound, account=True)
        assert aggregate(one) == aggregate(
            replay_bound(Load(load.requests, load.limits, load.clients), bound, account=True)
        )


def test_a_refused_request_takes_its_turn() -> None:
    """Of four prompts at once the second is too long: the first and third share replica 0, the fourth has replica 1."""
    load = Load(asked([50, 500, 50, 50], [1] * 4), burst([1], [1], max_model_len=100).limits)
    seen = replay_bound(replace(load, replicas=2), bound_of(STEADY))
    assert seen.completed.tolist() == [True, False, True, True]
    assert seen.ttft_us.tolist() == [2_000, 0, 2_000, 1_500]


def test_two_clients_share_two_replicas() -> None:
    """Prompts of 50 tokens take 1,500 us, decodes 1,000. Client 2 has its first answer at 1,500 and its third request
    meets the first one on replica 0: both step until 3,000. The fourth then has replica 1 for itself."""
    load = burst([50] * 4, [3, 1, 1, 3])
    none = np.zeros(4, np.int64)
    clients = Clients(np.array([0, 4]), np.array([2]), none[:1], none)
    seen = replay_bound(replace(load, clients=clients, replicas=2), bound_of(STEADY))
    assert seen.sent_us.tolist() == [0, 0, 1_500, 3_000]
    assert seen.e2e_us.tolist() == [1_500 + 1_500 + 1_000, 1_500, 1_500, 1_500 + 2 * 1_000]


def test_an_experiment_says_how_many_replicas() -> None:
    spec = read_spec(ENTRY, "test")
    assert (spec.replicas, spec.to_entry()["replicas"], read_spec(spec.to_entry(), "again")) == (3, 3, spec)
    e = deploy(spec)
    assert (e.replicas, e.gpus, load_of(e, 1).replicas) == (3, 3, 3) and TURNS.format(3) in e.notes
    assert data_hash([e]) != data_hash([deploy(read_spec({**ENTRY, "replicas": 1}, "test"))])
    assert spec.vary(tp=2).replicas == 3


@pytest.mark.parametrize("load", [ENTRY["workload"], CLOSED])
def test_a_prediction_pools_the_requests_of_all_replicas(load: dict[str, Any]) -> None:
    """Three replicas have the latencies of their requests; one with the whole load waits longer."""
    three, one = (deploy(read_spec({**ENTRY, "workload": load, "replicas": n}, "test")) for n in (3, 1))
    program = complete(parse("def step_time(b, s): return 9000 + 40 * b.prefill_tokens + 500 * b.decode_reqs"))
    many, few = (predicted(program, e) for e in (three, one))
    assert many.completed == few.completed and many.ttft_ms.mean < few.ttft_ms.mean


def predicted(program: Any, e: Experiment) -> Any:
    [prediction] = predictions(program, score_set([e], [1]))
    return prediction.predicted.summary


REFUSED = """
{"replicas": 0} => test: replicas must be >= 1
{"replicas": 2.5} => test: replicas must be a whole number
{"prefill": {"instances": 1}, "decode": {"instances": 1}} => test: replicas and separate pools exclude each other
{"engine": {"replicas": 2}} => write `replicas: ...` in an entry of `experiments`
{"engine": {"pipeline_parallel": 2}, "workload": CLOSED} => test: replicas is 3, and pipeline_parallel 2 with concurrency
"""


@pytest.mark.parametrize("row", REFUSED.strip().splitlines())
def test_what_cannot_be_is_one_line(row: str) -> None:
    changes, expected = row.split(" => ")
    with pytest.raises(InputError) as error:
        deploy(read_spec(ENTRY | eval(changes), "test"))
    assert expected in str(error.value) and "\n" not in str(error.value)


def test_a_spec_of_python_has_replicas() -> None:
    spec = replace(Spec.of("llama-3.1-8b", "H100", 9.0, 300, 20), replicas=2)
    assert load_of(deploy(spec), 1).replicas == 2
