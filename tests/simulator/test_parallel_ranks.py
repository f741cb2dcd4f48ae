"""Data-parallel ranks: each keeps one rank's rules, those of a mixture of experts step together."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from examples import daily
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from test_clients import users
from test_clock import PROGRAMS, QUEUEING, asked, bound_of, burst, loads

from evaluator.host_summary import aggregate
from simulator.clock.bind import bind
from simulator.clock.fields import Active, BatchFields, raw_row
from simulator.clock.replay import Replay, replay_bound
from simulator.clock.run import HostileStep, NeverEnds
from simulator.language.opcodes import assemble
from simulator.language.parse import parse
from simulator.serving.engine import Engine
from simulator.serving.experiment import deploy
from simulator.serving.facts import Facts
from simulator.serving.known import facts_of
from simulator.serving.load import NEVER, Load, limits_of
from simulator.serving.spec import Spec

COLUMNS = ("start_us", "first_us", "decode_us", "cached", "completed", "gave_up")
ALONE = "def step_time(b, s, *, a=900.5, c=12.25): return a + c * b.prefill_tokens + 33.3 * b.decode_reqs"
STEADY = "def step_time(b, s): return 1000"


def on_ranks(load: Load, ranks: int, together: bool) -> Load:
    return replace(load, limits=replace(load.limits, ranks=ranks, together=together))


def part(load: Load, which: np.ndarray) -> Load:
    """Some of the load's requests, on one rank."""
    requests = {
        name: getattr(load.requests, name)[which]
        for name in ("arrival_us", "stage", "input_len", "output_len", "prompt", "group", "shared_len", "deadline_us")
    }
    chains = load.requests.chains.of(which) if load.requests.chains else None
    return Load(replace(load.requests, **requests, chains=chains), load.limits)


@settings(max_examples=daily(25, 300), derandomize=True, deadline=None)
@given(loads() | loads(chunked=False), st.sampled_from(PROGRAMS), st.sampled_from(QUEUEING), st.integers(2, 4))
def test_independent_ranks_are_replicas_that_take_turns(load: Load, step: str, queueing: str, ranks: int) -> None:
    """Every rank's requests, alone on one instance, have the same times to the microsecond."""
    bound = bound_of(step + "\n" + queueing)
    try:
        seen = replay_bound(on_ranks(load, ranks, False), bound, account=True)
    except NeverEnds:
        assume(False)
    waits = seen.queueing_us + load.requests.arrival_us
    order = np.argsort(waits, kind="stable")
    order = order[load.accepted[order]]
    steps, gaps = [], []
    for d in range(ranks):
        mine = np.sort(order[d::ranks])
        if not len(mine):
            continue
        alone = replay_bound(part(load, mine), bound, force_exact=True, account=True)
        for name in COLUMNS:
            values = seen.spread(getattr(seen.run, name))[mine]
            np.testing.assert_array_equal(values, alone.spread(getattr(alone.run, name)), err_msg=name)
        steps.append(alone.run.steps)
        assert alone.run.account
        gaps.append(alone.run.account.gaps[1].sum())
    assert seen.run.account
    assert seen.run.steps == max(steps, default=0) and seen.run.account.gaps[1].sum() == sum(gaps)


@settings(max_examples=daily(20, 200), derandomize=True, deadline=None)
@given(loads() | loads(chunked=False), st.integers(2, 4))
def test_ranks_that_step_together_with_steps_of_one_length_are_replicas_too(load: Load, ranks: int) -> None:
    """A burst is shared out evenly, and nothing else couples the ranks."""
    n = len(load.requests)
    still = replace(load.requests, arrival_us=np.zeros(n, np.int64), deadline_us=np.zeros(n, np.int64))
    # composed ahead, a full rank whose requests all end waits for the others' step, as does one whose load has ended
    load, bound = Load(still, replace(load.limits, ahead=False, tier=None)), bound_of(STEADY)
    try:
        seen = replay_bound(on_ranks(load, ranks, True), bound)
    except NeverEnds:
        assume(False)
    accepted = np.flatnonzero(load.accepted)
    for d in range(ranks):
        if len(mine := accepted[d::ranks]):
            alone = replay_bound(part(load, mine), bound, force_exact=True)
            for name in COLUMNS:
                values = seen.spread(getattr(seen.run, name))[mine]
                np.testing.assert_array_equal(values, alone.spread(getattr(alone.run, name)), err_msg=name)


@settings(max_examples=daily(15, 200), derandomize=True, deadline=None)
@given(st.integers(1, 5), st.integers(2, 4), st.sampled_from(PROGRAMS[:14]), st.integers(1, 30))
def test_equal_loads_of_ranks_are_those_of_one(each: int, ranks: int, step: str, output: int) -> None:
    """Ranks that step together with the same requests each: every request has the times of one rank's replay."""
    lengths, outputs = [20 + 7 * i for i in range(each)], [output] * each
    one = replay_bound(burst(lengths, outputs), bound_of(step), force_exact=True)
    every = burst(np.repeat(lengths, ranks).tolist(), np.repeat(outputs, ranks).tolist())
    seen = replay_bound(on_ranks(every, ranks, True), bound_of(step))
    for name in ("ttft_us", "e2e_us"):
        np.testing.assert_array_equal(getattr(seen, name), np.repeat(getattr(one, name), ranks))
    assert seen.run.steps == one.run.steps


def test_a_step_takes_as_long_as_the_slowest_rank() -> None:
    """Prompts of 50 and 10 tokens: rank 0 takes 6,000 us, rank 1 alone 2,000. Then both decode, 1,100 us a step; rank 1
    ends first, and its empty steps change nothing."""
    load = on_ranks(burst([50, 10], [4, 2]), 2, True)
    seen = replay_bound(load, bound_of("def step_time(b, s): return 1000 + 100 * b.tokens"))
    assert seen.ttft_us.tolist() == [6_000, 6_000]
    assert seen.e2e_us.tolist() == [6_000 + 3 * 1_100, 6_000 + 1_100]
    assert seen.run.steps == 4 and seen.completed.all()


def test_the_tokens_of_all_ranks_meet_at_the_experts() -> None:
    """The prompts of 50 and 10 tokens make 60, then two decodes 2, then one 1, which no rank multiplies by its own."""
    load = on_ranks(burst([50, 10], [4, 2]), 2, True)
    facts = Facts({"dp": 2.0, "draft_tokens": 0.0})
    program = parse("def step_time(b, s): return 1000 + 100 * b.all_tokens")
    bound = bind(assemble(program), program.theta, facts)
    seen = replay_bound(load, bound)
    assert seen.ttft_us.tolist() == [7_000, 7_000]
    assert seen.e2e_us.tolist() == [7_000 + 1_200 + 2 * 1_100, 7_000 + 1_200]
    alone = replay_bound(on_ranks(load, 2, False), bound)
    assert alone.ttft_us.tolist() == [11_000, 3_000]  # independent ranks do not meet


def test_a_batch_that_is_seen_alone_has_as_many_tokens_on_every_rank() -> None:
    batch = [Active(10, 0, 7), Active(5, 9, 1)]
    facts = {"dp": 4.0, "draft_tokens": 0.0}
    bound = bind(assemble(parse("def step_time(b, s): return b.all_tokens")), (), facts)
    assert bound.step_us(raw_row(batch)) == BatchFields(batch, facts)["b", "all_tokens"] == 32.0


def test_the_front_end_learns_the_ranks_counts_every_100_ms() -> None:
    """Steps of 10 ms. Long answers to ranks 0 and 1 at 0; four short ones at 20 ms, which it alternates as it knows of
    nothing that has ended. At 150 ms it learns that all are gone but the answer on rank 0."""
    arrival = np.array([0, 0, 20_000, 20_000, 20_000, 150_000, 150_000])
    requests = asked([10] * 7, [50, 3, 1, 1, 1, 1, 1], arrival_us=arrival)
    load = on_ranks(Load(requests, burst([1], [1]).limits), 2, True)
    bound = bound_of("def step_time(b, s): return 10000 + 1 * b.batch_size")
    seen = replay_bound(load, bound, account=True)
    # at 20 ms rank 0, rank 1, rank 0 begin together; at 150 ms rank 1 has nothing, then 4 waiting against 1 running
    assert seen.completed.all()
    ends = seen.requests.arrival_us + seen.e2e_us
    assert len(set(ends[2:5])) == 1 and len(set(ends[5:7])) == 1
    assert seen.run.account and seen.run.account.gaps[1].sum() == 49 + 2


@pytest.mark.parametrize(
    ("interval", "chunked", "ttft_us"),
    [
        (1, True, [1_000, 1_500, 1_500, 2_400]),
        (4, True, [1_000, 1_500, 2_500, 6_400]),
        (4, False, [1_000, 1_500, 2_500, 3_400]),
    ],
)
def test_prompts_wait_for_the_step_of_all_ranks(interval: int, chunked: bool, ttft_us: list[int]) -> None:
    """Steps of 1 ms. The second request finds its rank without decodes and starts at once. The third one waits on rank 0
    from step 3 to step 4. A part of the fourth fits there, its rest waits for step 8; if it has to fit whole, it is left
    over, and so starts in step 5."""
    arrival = np.array([0, 1_500, 2_500, 2_600, 2_600])
    lengths, outputs = [50, 50, 50, 9, 50], [10] * 5
    limits = burst([1], [1], budget=60, max_model_len=60, chunked=chunked, interval=interval).limits
    load = on_ranks(Load(asked(lengths, outputs, arrival_us=arrival), limits), 2, True)
    seen = replay_bound(load, bound_of(STEADY))
    assert seen.ttft_us[[0, 1, 2, 4]].tolist() == ttft_us


def closed_load(ranks: int, together: bool, count: int = 16) -> Load:
    rng = np.random.default_rng(3)
    lengths, outputs = rng.integers(20, 60, 20 * count), rng.integers(30, 60, 20 * count)
    load = burst(lengths.tolist(), outputs.tolist(), max_seqs=32, budget=200, blocks=400, max_model_len=0)
    return on_ranks(users(load, count), ranks, together)


@pytest.mark.parametrize("together", [False, True])
@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_a_closed_load_on_ranks_keeps_littles_law(ranks: int, together: bool) -> None:
    """Every request is completed; the clients are busy but at the end: requests in flight are rate times E2E."""
    seen = replay_bound(closed_load(ranks, together), bound_of(ALONE), account=True)
    assert seen.completed.all() and seen.run.queued == seen.run.running == 0
    ends = seen.requests.arrival_us + seen.e2e_us
    in_flight = seen.e2e_us.sum() / ends.max()
    assert 0.93 * 16 < in_flight <= 16
    figures = aggregate(seen)
    assert figures == aggregate(replay_bound(closed_load(ranks, together), bound_of(ALONE), account=True))


def test_ranks_share_a_closed_load_evenly() -> None:
    """Four ranks decode a quarter of the requests each, so a step has a quarter of the decodes."""
    one, four = (replay_bound(closed_load(ranks, ranks > 1, 64), bound_of(ALONE)) for ranks in (1, 4))
    ratio = (one.itl_us.mean() - 900.5) / (four.itl_us.mean() - 900.5)
    assert ratio > 1.5  # the one is also full
    assert four.ttft_us.mean() < one.ttft_us.mean()


@settings(max_examples=daily(20, 200), derandomize=True, deadline=None)
@given(loads() | loads(chunked=False), st.sampled_from(PROGRAMS), st.integers(2, 3), st.integers(1, 9))
def test_no_request_is_lost(load: Load, step: str, ranks: int, clients: int) -> None:
    """Of closed loads under random limits, with clients that give up: every request has exactly one end."""
    load = users(replace(load, limits=replace(load.limits, horizon_us=NEVER)), clients)
    try:
        seen = replay_bound(on_ranks(load, ranks, True), bound_of(step), account=True)
    except NeverEnds:
        return
    ended = seen.run.completed.astype(int) + seen.run.gave_up
    assert (ended == 1).all() and seen.run.queued == seen.run.running == 0
    sent = seen.sent_us < NEVER
    assert len(ended) == (load.accepted & sent).sum()


def staged(load: Load, stages: int, ranks: int = 1, together: bool = False) -> Load:
    return replace(load, limits=replace(load.limits, stages=stages, ranks=ranks, together=together))


def test_a_batch_waits_for_the_stages_of_the_one_ahead() -> None:
    """Two stages of 500 us: the second request begins when the first one has passed the first stage. Then each has a
    token every 1,000 us: the stages are never both idle."""
    seen = replay_bound(staged(burst([10, 10], [3, 3]), 2), bound_of(STEADY))
    assert seen.ttft_us.tolist() == [1_000, 1_500] and seen.e2e_us.tolist() == [3_000, 3_500]


def test_a_longer_batch_holds_up_the_one_behind_it() -> None:
    """Prompts of 40 and 10 tokens take 4,000 and 1,000 us, 2,000 and 500 in a stage: the second begins at 2,000, waits
    for the second stage until 4,000 and ends at 4,500. The first one's decode of 50 us in a stage begins at 4,000 and
    waits until 4,500 too."""
    seen = replay_bound(staged(burst([40, 10], [2, 1]), 2), bound_of("def step_time(b, s): return 100 * b.tokens"))
    assert seen.ttft_us.tolist() == [4_000, 4_500] and seen.e2e_us.tolist() == [4_550, 4_500]


def test_a_single_request_takes_as_long_in_stages_as_without() -> None:
    one, two = (replay_bound(staged(burst([50], [9]), stages), bound_of(ALONE)) for stages in (1, 4))
    assert (one.ttft_us.tolist(), one.e2e_us.tolist()) == (two.ttft_us.tolist(), two.e2e_us.tolist())


@pytest.mark.parametrize(("ranks", "together"), [(1, False), (2, False), (2, True)])
def test_stages_serve_more_of_what_grows_with_the_batch(ranks: int, together: bool) -> None:
    """Steps in proportion to the batch: two stages serve nearly twice as much, and every request ends."""
    bound = bound_of("def step_time(b, s): return 10 + 100 * b.batch_size")
    lasting = []
    for stages in (1, 2):
        seen = replay_bound(staged(closed_load(1, False), stages, ranks, together), bound, account=True)
        assert seen.completed.all()
        ends = seen.requests.arrival_us + seen.e2e_us
        assert 0.9 * 16 < seen.e2e_us.sum() / ends.max() <= 16
        lasting.append(ends.max())
    assert 1.5 < lasting[0] / lasting[1] < 2.1


def test_a_hostile_step_of_any_rank_stops_the_replay() -> None:
    load = on_ranks(burst([10, 50], [3, 3]), 2, True)
    with pytest.raises(HostileStep, match="would last -10 us"):
        replay_bound(load, bound_of("def step_time(b, s): return 40 - b.tokens"), stop_when_hostile=True)


def test_a_request_that_never_ends_is_named() -> None:
    load = on_ranks(burst([20, 20, 20], [5, 500, 5], blocks=10, max_model_len=0), 2, True)
    with pytest.raises(NeverEnds) as error:
        replay_bound(load, bound_of(STEADY))
    assert error.value.row == 1


def moe(**engine: int) -> Spec:
    spec = Spec.of("mixtral-8x7b", "H100", concurrency=64, prompt_len=500, output_len=100)
    return spec.vary(**engine)


def test_a_deployment_says_how_its_ranks_step() -> None:
    limits = limits_of(deploy(moe(data_parallel=4, expert_parallel=4)))
    assert (limits.ranks, limits.together) == (4, True)
    dense = Spec.of("llama-3.1-8b", "H100", rate=1.0, prompt_len=10, output_len=10).vary(data_parallel=4)
    limits = limits_of(deploy(dense))
    assert (limits.ranks, limits.together) == (4, False)
    assert limits_of(deploy(moe(tp=4))).ranks == 1


def test_experts_read_more_with_more_ranks() -> None:
    """The tokens of four ranks touch more experts than those of one."""
    text = "def step_time(b, s): return b.experts_fraction"
    batch = [Active(5, 9, 1)]
    touched = []
    for ranks in (1, 4):
        facts = facts_of("mixtral-8x7b", "H100", Engine(tensor_parallel=4 // ranks, data_parallel=ranks))
        touched.append(bind(assemble(parse(text)), (), facts).step_us(raw_row(batch)))
    assert touched == pytest.approx([1 - 0.75, 1 - 0.75**4])


def replays(seen: Replay) -> tuple[float, float]:
    return float(seen.ttft_us.mean()), float(seen.itl_us.mean())


def test_remembered_step_times_are_those_of_the_opcodes() -> None:
    """A program that ignores the other ranks remembers; the same one with nothing of theirs added does not."""
    plain = bound_of(ALONE)
    other = bound_of(ALONE + " + 0 * b.all_tokens")
    assert replays(replay_bound(closed_load(4, True), plain)) == replays(replay_bound(closed_load(4, True), other))
