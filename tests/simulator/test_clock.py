"""The compiled clocks against the plain one: equal per request, for random loads, limits and programs."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from examples import daily
from forests import TREES_TEXT, random_forest
from hypothesis import assume, event, given, settings
from hypothesis import strategies as st
from plain_clock import FACTS, Host, host, step_function

from evaluator.host_summary import aggregate
from simulator.clock.bind import Bound, bind
from simulator.clock.replay import Replay, replay_bound
from simulator.clock.run import NeverEnds
from simulator.clock.steps import steps_of
from simulator.language.ir import Program
from simulator.language.opcodes import assemble
from simulator.language.parse import parse
from simulator.schema import RAW
from simulator.serving.load import NEVER, EngineLimits, Load, TierLimits
from simulator.serving.trace import Chains, Requests

PROGRAMS = [
    "def step_time(b, s, *, a=900.5, c=12.25, d=33.3): return a + c * b.prefill_tokens + d * b.decode_reqs",
    "def step_time(b, s, *, a=500.0): return a + b.kv_var + b.kv_max * b.kv_decode_max - b.kv_decode_mean",
    "def step_time(b, s, *, a=700.0): return max(a, b.weight_read_us + b.kv_read_us) + b.prefill_attention_us",
    "def step_time(b, s): return b.total_flops / s.flops_per_us + log1p(b.prefill_pairs) * b.graph_batch",
    "def step_time(b, s, *, c=0.013): return 700.3 + c * b.prompt_pairs + b.kv_decode_sum * 0.7",
    "def step_time(b, s): return b.max_prefill_chunk * 3 if b.prefill_reqs > 1 else sqrt(b.kv_sum) * b.kv_mean",
    "def step_time(b, s): return b.kv_decode_sum + b.decode_attention_us + b.total_bytes / s.bytes_per_us",
    # lines with a kink, a jump, a slope downwards, cancelling terms, and values that are whole numbers
    "def step_time(b, s, *, a=2000.25, c=1.75): return max(a, c * b.kv_sum + 3.125) + 0.7 * b.tokens",
    "def step_time(b, s, *, a=60.0): return 800.3 if b.kv_mean > a else min(b.kv_sum * 2.7, 1500.1)",
    "def step_time(b, s, *, c=0.37): return 3000.7 - c * b.kv_sum + (b.kv_sum - b.kv_decode_sum) * 5",
    "def step_time(b, s): return 1000 + b.kv_decode_sum * 0.5 + b.batch_size * 2",
    "def step_time(b, s, *, c=1e9): return 777.7 + (b.kv_sum + c - c) * 0.11",
    "def step_time(b, s, *, c=0.13): return max(900.7 + c * b.kv_max * b.decode_reqs, 7.7 * b.kv_decode_max)",
    "def step_time(b, s, *, c=71.3): return 1500.3 + (b.kv_sum * 0.31 if b.kv_max > c else b.kv_mean * 1.7)",
    # hostile: nothing, less than nothing, for ever, and one step now and then that is
    "def step_time(b, s): return b.prefill_tokens - b.decode_reqs",
    "def step_time(b, s, *, c=1e300): return c * b.tokens * c",
    "def step_time(b, s, *, c=40.0): return (b.kv_sum - 100) * c",
]
CLOCK_FEATURES = ("b.kv_sum", "b.kv_mean", "0 - b.kv_sum", "b.kv_max", "b.kv_var", "b.prefill_tokens", "b.decode_reqs")
QUEUEING = [
    "",
    "def queueing_time(r, s, *, base=900.7, each=3.3): return base + each * r.input_len",
    "def queueing_time(r, s, *, base=9000.0, each=70.5): return base - each * r.input_len",
]


def bound_of(text: str) -> Bound:
    program = parse(text)
    return bind(assemble(program), program.theta, FACTS)


@st.composite
def chains_of(draw: st.DrawFn, inputs: np.ndarray) -> Chains:
    """Prompts of these lengths that are made of pieces, in a tree with two branches at every piece."""
    piece_len = draw(st.sampled_from([4, 7, 16, 30]))
    numbers: dict[tuple[int, ...], int] = {}
    chains = []
    for size in inputs:
        pieces = -(-int(size) // piece_len)
        branches = draw(st.lists(st.integers(0, 1), min_size=pieces, max_size=pieces))
        chains.append([numbers.setdefault(tuple(branches[: i + 1]), len(numbers)) for i in range(len(branches))])
    first = np.cumsum([0, *map(len, chains)])
    return Chains(first, np.array([n for chain in chains for n in chain], np.int32), piece_len)


@st.composite
def loads(draw: st.DrawFn, chunked: bool = True) -> Load:
    n = draw(st.integers(1, 50))
    gaps = draw(st.lists(st.integers(0, draw(st.sampled_from([0, 300, 3_000, 20_000]))), min_size=n, max_size=n))
    prompts = draw(st.integers(1, 6))
    lengths = np.array(draw(st.lists(st.integers(1, 120), min_size=prompts, max_size=prompts)))
    shared = np.array([draw(st.integers(0, int(lengths[g::2].min()))) for g in range(min(prompts, 2))])
    which = np.array(draw(st.lists(st.integers(0, prompts - 1), min_size=n, max_size=n)))
    alone = np.array(draw(st.lists(st.integers(0, 3), min_size=n, max_size=n))) == 0
    group = which % 2
    inputs, prefix = lengths[which], shared[group % len(shared)]
    if draw(st.booleans()):  # groups whose members share more or less
        prefix = np.minimum(inputs, prefix + alone * 7)
        alone |= True
    prompt = np.where(alone, -1, which)
    chains = None
    kind = draw(st.sampled_from(["same", "same", "conversations", "turns", "pieces"]))
    match kind:
        case "conversations" | "turns":  # a prompt goes on where an earlier one ended, or its answer
            inputs = np.maximum(inputs + np.array(draw(st.lists(st.integers(-40, 40), min_size=n, max_size=n))), 1)
            if kind == "turns":  # all of which have the whole prefix
                inputs = np.maximum(inputs, prefix)
            prefix = np.minimum(prefix, inputs)
        case "pieces":
            chains, prefix, prompt = draw(chains_of(inputs)), 0 * inputs, 0 * inputs - 1
    arrival = np.cumsum(gaps)
    patience = draw(st.sampled_from([0, 0, 0, 4_000, 40_000]))
    requests = Requests(
        arrival_us=arrival.astype(np.int64),
        stage=np.zeros(n, np.int32),
        input_len=inputs.astype(np.int32),
        output_len=np.array(draw(st.lists(st.integers(0, 40), min_size=n, max_size=n)), np.int32),
        prompt=prompt.astype(np.int32),
        group=np.where(prefix > 0, group, -1).astype(np.int32),
        shared_len=prefix.astype(np.int32),
        deadline_us=np.where(which == 0, 0, arrival + patience).astype(np.int64) if patience else np.zeros(n, np.int64),
        chains=chains,
        turns=kind == "turns",
    )
    block = draw(st.sampled_from([1, 4, 16]))
    need = -(-160 // block)
    longest = draw(st.sampled_from([0, 0, 90] if chunked else [90, 160]))
    # Without chunked prefill, a step has room for the longest prompt and not much more.
    budget = st.one_of(st.integers(1, 150), st.just(2048)) if chunked else st.integers(longest, longest + 40)
    caching = draw(st.sampled_from([True, True, True, False]))
    tier = st.builds(
        TierLimits,
        blocks=st.one_of(st.integers(0, 3 * need), st.just(1_000)),
        block_us=st.sampled_from([0.0, 7.3, 7.3, 900.0]),
        least_us=st.sampled_from([0, 40, 5_000]),
        prompt_only=st.booleans(),
    )
    limits = EngineLimits(
        max_seqs=draw(st.integers(1, 20)),
        budget=draw(budget),
        threshold=draw(st.sampled_from([0, 0, 0, 1, 7, 33])),
        block=block,
        blocks=draw(st.one_of(st.integers(max(need // 3, 1), 4 * need), st.just(10_000))),
        caching=caching,
        max_model_len=longest,
        horizon_us=draw(st.sampled_from([NEVER, NEVER, NEVER, 30_000])),
        chunked=chunked,
        tier=draw(st.none() | tier) if caching else None,
        ahead=draw(st.booleans()),
    )
    return Load(requests, limits)


def compare(seen: Replay, told: Host) -> None:
    """Every figure of the compiled run is that of the plain one."""
    rows = told.requests
    run = seen.run
    assert run.account is not None
    np.testing.assert_array_equal(seen.completed, [r.state == "completed" for r in rows])
    np.testing.assert_array_equal(seen.spread(run.gave_up), [r.state == "gave up" for r in rows])
    first = [r.first or 0 for r in rows]
    np.testing.assert_array_equal(seen.spread(run.first_us), first)
    start = seen.spread(np.where(run.cached >= 0, run.start_us, -1))
    begun = seen.spread(np.where(run.cached >= 0, run.begun_us, -1))
    entered = np.isin(np.arange(len(rows)), np.arange(len(rows)) if run.order is None else run.order)
    np.testing.assert_array_equal(start[entered], [-1 if r.start is None else r.start for r in rows if entered[r.row]])
    np.testing.assert_array_equal(begun[entered], [-1 if r.begun is None else r.begun for r in rows if entered[r.row]])
    sent = [r.arrival if r.sent is None else r.sent for r in rows if told.users is None or r.sent is not None]
    arrivals = [us for us in sent if us <= seen.load.limits.horizon_us]
    assert aggregate(seen)["vllm_estimated_duration_s"] == max([told.last_us, *arrivals]) / 1e6
    done = seen.completed
    np.testing.assert_array_equal(seen.decode_us[done], [r.decode_us for r in rows if done[r.row]])
    cached = [r.cached for r in rows if done[r.row]]
    np.testing.assert_array_equal(seen.spread(run.cached)[done], cached)
    assert (run.steps, run.clamped) == (told.steps, told.clamped)
    assert (run.preemptions, run.failures) == (told.preemptions, told.failures)
    assert (run.account.hits, run.account.misses) == (told.cache.hits, told.cache.misses)
    assert (run.queued, run.running) == (len(told.queue), len(told.running))
    assert run.loaded == (told.tier.loaded if told.tier else 0)
    gaps = Counter(us for r in rows if r.state == "completed" for _, us in r.itl)
    assert dict(zip(*(x.tolist() for x in run.account.gaps), strict=True)) == gaps


@settings(max_examples=daily(80), derandomize=True)
@given(loads() | loads(chunked=False), st.sampled_from(PROGRAMS), st.sampled_from(QUEUEING))
def test_fast_exact_and_plain_are_equal(load: Load, step: str, queueing: str) -> None:
    """The fast clock, the exact one, and the exact one that remembers no step times, against the plain one."""
    compare_clocks(load, parse(step + "\n" + queueing))


@pytest.mark.parametrize("name", RAW)
@settings(max_examples=daily(5, 50), derandomize=True)
@given(load=loads())
def test_every_recorded_sum_is_the_plain_clocks(name: str, load: Load) -> None:
    compare_clocks(load, parse(f"def step_time(b, s, *, a=900.5): return a + 1.75 * b.{name}"))


def compare_clocks(load: Load, program: Program) -> None:
    bound = bind(assemble(program), program.theta, FACTS)
    queue_us = [max(0, min(int(bound.queueing_us(int(n))), 10**10)) for n in load.requests.input_len]
    told = host(load.requests, queue_us, load.limits, step_function(program, FACTS), most_steps=20_000)
    if told.stuck:  # for ever, unless a client gives up some time, or the horizon comes
        if load.requests.deadline_us.any() or load.limits.horizon_us != NEVER:
            return
        with pytest.raises(NeverEnds):
            replay_bound(load, bound, force_exact=True)
        event("never ends")
        return
    for kwargs in ({}, {"force_exact": True}, {"steps": steps_of(bound, load.limits, remember=False)}):
        seen = replay_bound(load, bound, account=True, **kwargs)  # type: ignore[arg-type]
        event(f"{'fast' if seen.run.fast else 'exact'}{' preempting' if seen.run.preemptions else ''}")
        event(f"{'loading' if seen.run.loaded else 'no load' if load.limits.tier else 'no tier'}")
        compare(seen, told)


@settings(max_examples=daily(40), derandomize=True)
@given(loads(), st.integers(0, 20), st.booleans())
def test_fast_exact_and_plain_are_equal_with_trees(load: Load, seed: int, contexts: bool) -> None:
    """With features of the contexts, which no line can be drawn through, and without, where steps are remembered."""
    kinds = [f for f in CLOCK_FEATURES if contexts or "kv" not in f]
    compare_clocks(load, parse(TREES_TEXT).with_forest(random_forest(seed, kinds)))


@settings(max_examples=daily(40), derandomize=True)
@given(loads(), st.sampled_from(PROGRAMS))
def test_what_the_fast_clock_takes_on_evicts_nothing_that_matters(load: Load, step: str) -> None:
    """Small caches, prompts that come back: the fast clock either leaves the load or is right."""
    load = Load(load.requests, replace(load.limits, blocks=max(load.limits.blocks // 2, 12), horizon_us=NEVER))
    bound = bound_of(step)
    try:
        seen = replay_bound(load, bound, account=True)
    except NeverEnds:
        assume(False)
    event("fast" if seen.run.fast else "exact")
    told = replay_bound(load, bound, force_exact=True, account=True)
    for name in ("start_us", "begun_us", "first_us", "decode_us", "cached", "completed"):
        np.testing.assert_array_equal(getattr(seen.run, name), getattr(told.run, name), err_msg=name)
    for name in ("steps", "clamped"):
        assert getattr(seen.run, name) == getattr(told.run, name), name
    assert aggregate(seen) == aggregate(told)


def asked(lengths: list[int], outputs: list[int], **columns: object) -> Requests:
    """Requests that all arrive at 0, each with a prompt that no other has, but for the columns given."""
    n = len(lengths)
    usual = {"arrival_us": np.zeros(n, np.int64), "deadline_us": np.zeros(n, np.int64)}
    usual |= {"input_len": np.array(lengths, np.int32), "output_len": np.array(outputs, np.int32)}
    usual |= dict.fromkeys(("stage", "shared_len"), np.zeros(n, np.int32))
    usual |= dict.fromkeys(("prompt", "group"), np.full(n, -1, np.int32))
    return Requests(**{**usual, **columns})  # type: ignore[arg-type]


def burst(lengths: list[int], outputs: list[int], **limits: int | bool) -> Load:
    """Such requests under limits of 100 tokens in a step."""
    usual = {"max_seqs": 8, "budget": 100, "threshold": 0, "block": 10, "blocks": 100, "max_model_len": 100}
    return Load(asked(lengths, outputs), EngineLimits(**{**usual, **limits}))  # type: ignore[arg-type]


@pytest.mark.parametrize("force_exact", [False, True])
def test_a_prompt_is_computed_whole_or_waits_without_chunked_prefill(force_exact: bool) -> None:
    """Of prompts of 60, 50 and 10 tokens, 100 tokens in a step: the second waits for the second step, and the third
    waits behind it, although it would fit. Its whole 50 + 10 tokens and the first request's decode fit there."""
    bound = bound_of("def step_time(b, s): return 1000 + b.prefill_tokens")

    def first_us(load: Load) -> list[int]:
        seen = replay_bound(load, bound, force_exact=force_exact)
        assert seen.run.fast != force_exact
        return seen.run.first_us.tolist()

    whole = burst([60, 50, 10], [3, 1, 1], chunked=False)
    assert first_us(whole) == [1060, 1060 + 1060, 1060 + 1060]
    # In parts: 60 + 40 tokens, then 10 + 10.
    assert first_us(burst([60, 50, 10], [3, 1, 1])) == [1100, 1100 + 1020, 1100 + 1020]


@pytest.mark.parametrize("force_exact", [False, True])
def test_a_threshold_caps_a_prompt_before_its_room_is_looked_for(force_exact: bool) -> None:
    """As in vLLM: parts of 45 tokens. Two of them fit in a step; the third would have to be split, so it waits although 10 are
    left. Without the threshold it would wait for its 90 tokens."""
    bound = bound_of("def step_time(b, s): return 1000 + b.prefill_tokens")
    load = burst([90, 90, 90], [1, 1, 1], threshold=45, chunked=False)
    seen = replay_bound(load, bound, force_exact=force_exact)
    # 45 + 45, 45 + 45, then the third alone: 45, 45
    assert seen.run.first_us.tolist() == [2180, 2180, 2180 + 2090]
    assert seen.run.start_us.tolist() == [0, 0, 2180]


def test_clients_that_give_up_around_the_last_step_are_those_of_the_plain_clock() -> None:
    """A prompt and three decodes of 5 us each: every us at which a client may give up, until after the end."""
    text, ends = "def step_time(b, s): return 5", set[bool]()
    step, bound, load = step_function(parse(text), FACTS), bound_of(text), burst([10, 10], [4, 3])
    for deadline_us in range(1, 23):
        for who in ([deadline_us, 0], [0, deadline_us], [deadline_us, deadline_us]):
            waiting = replace(load, requests=replace(load.requests, deadline_us=np.array(who, np.int64)))
            told = host(waiting.requests, [0, 0], waiting.limits, step, most_steps=100)
            for force_exact in (False, True):
                seen = replay_bound(waiting, bound, account=True, force_exact=force_exact)
                compare(seen, told)
                ends |= set(seen.run.gave_up.tolist())
    assert ends == {True, False}


def test_content_that_two_requests_compute_at_once_is_left_to_the_exact_clock() -> None:
    """Nine requests send one prompt, two at a time, in parts of 5 tokens: before the first has stored it, the second
    computes it too. Of two copies the eviction of one hides the other, so the last request finds 3 of its 14 blocks. One
    of 12,476 random loads with little room for which that decides a time."""
    limits = EngineLimits(max_seqs=2, budget=121, threshold=5, block=4, blocks=58)
    arrival_us = np.array([9, 15, 15, 15, 16, 22, 30, 31, 40, 46], np.int64)
    prompt = np.array([0, 0, 0, -1, 0, 0, 0, 0, 0, 0], np.int32)
    outputs = [9, 5, 6, 0, 4, 18, 10, 19, 15, 10]
    load = Load(asked([57] * 10, outputs, arrival_us=arrival_us, prompt=prompt), limits)
    text = "def step_time(b, s): return 1000 + 10 * b.prefill_tokens"
    told = host(load.requests, [0] * 10, load.limits, step_function(parse(text), FACTS), most_steps=1000)
    for force_exact in (False, True):
        seen = replay_bound(load, bound_of(text), account=True, force_exact=force_exact)
        compare(seen, told)
        assert not seen.run.fast and seen.run.cached[-1] == 3


def test_limits_without_room_for_a_prompt_are_refused_without_chunked_prefill() -> None:
    for longest in (0, 101):
        with pytest.raises(ValueError, match="too few"):
            burst([10], [1], chunked=False, max_model_len=longest)


def test_room_is_measured_between_two_uses_of_a_prefix_and_of_a_prompt() -> None:
    """Two requests share two blocks, with six others of two blocks each between them; two requests run at a time. By the
    rule, (2 * 2 + 7) * 2 = 22 blocks keep what is shared, 21 do not. Of two equal neighbours (2 * 2 + 1) * 2 = 10 do."""
    n, zeros = 8, np.zeros(8, np.int32)
    ends = np.isin(np.arange(n), (0, n - 1))
    for far, group, prompt, least in ((7, True, False, 22), (7, False, True, 22), (1, True, True, 10)):
        again = ends if far == 7 else np.arange(n) < 2
        key = np.where(again, 0, -1).astype(np.int32)
        columns = {"prompt": key if prompt else zeros - 1, "group": key if group else zeros - 1}
        requests = asked([7] * n, [1] * n, arrival_us=np.arange(n), shared_len=zeros + 4, **columns)
        for blocks in (least - 1, least):
            limits = EngineLimits(max_seqs=2, budget=64, threshold=0, block=4, blocks=blocks)
            assert Load(requests, limits).roomy == (blocks == least)
        whole = replace(requests, input_len=zeros + 8)  # two blocks exactly: found whole, they are not renewed
        assert not Load(whole, replace(limits, blocks=10_000)).roomy


def test_blocks_of_prompts_that_were_found_whole_are_counted_to_the_last() -> None:
    """Each of 60 requests leaves the two blocks of its answer of 5 tokens, so no more than 4 of 6 blocks are ever used.
    Were one forgotten at each end, the fast clock would soon find the cache full and leave the load to the exact one."""
    n, zeros = 60, np.zeros(60, np.int32)
    requests = asked([8] * n, [5] * n, arrival_us=np.arange(n) * 100_000, prompt=zeros)
    load = Load(requests, EngineLimits(max_seqs=4, budget=64, threshold=0, block=4, blocks=6))
    assert not load.roomy
    seen = replay_bound(load, bound_of("def step_time(b, s): return 1000 + b.prefill_tokens"), account=True)
    assert seen.run.fast and seen.run.cached[:5].tolist() == [0, 2, 2, 2, 0]  # until answers evict the two blocks
