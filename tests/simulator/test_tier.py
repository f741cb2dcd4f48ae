"""KV offload: host memory behind the KV cache, by the rules of simulator/clock/tier.py, and its settings.

Requests of the cases by hand have prompts of 40 tokens, blocks of 10, and steps of 1,000 us and 100 a prompt token.
The GPU has 5 blocks unless stated otherwise, which a prompt and its answer need: each evicts the one before it.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from examples import daily
from hypothesis import event, given, settings
from hypothesis import strategies as st
from plain_clock import FACTS, host, step_function
from test_clock import PROGRAMS, asked, bound_of, compare, compare_clocks, loads

from evaluator.score import prediction_of
from evolve.plan.warnings import warnings
from simulator.clock.replay import Replay, replay_bound
from simulator.common.errors import InputError
from simulator.language.parse import parse
from simulator.serving.digests import data_hash
from simulator.serving.engine import Engine
from simulator.serving.experiment import deploy
from simulator.serving.load import EngineLimits, Load, TierLimits, limits_of, load_of
from simulator.serving.spec import Setting, Spec

STEP = "def step_time(b, s): return 1000 + 100 * b.prefill_tokens"
FIELDS = ("start_us", "first_us", "decode_us", "cached", "completed")


def sent(
    prompts: list[int],
    at_us: list[int],
    tier: TierLimits | None,
    lengths: int | list[int] = 40,
    blocks: int = 5,
    **limits: int,
) -> Load:
    """Requests for two tokens, by number of their prompt."""
    n = len(prompts)
    sizes = [lengths] * n if isinstance(lengths, int) else lengths
    columns = {"prompt": np.array(prompts, np.int32), "arrival_us": np.array(at_us, np.int64)}
    usual = {"max_seqs": 8, "budget": 100, "threshold": 0, "block": 10, "max_model_len": 100}
    of = EngineLimits(blocks=blocks, **{**usual, **limits}, tier=tier)  # type: ignore[arg-type]
    return Load(asked(sizes, [2] * n, **columns), of)


def played(load: Load) -> Replay:
    """The replay by the exact clock, which is the plain one's."""
    seen = replay_bound(load, bound_of(STEP), account=True)
    compare(seen, host(load.requests, [0] * len(load.requests), load.limits, step_function(parse(STEP), FACTS)))
    return seen


def times(seen: Replay) -> list[int]:
    return list((seen.run.first_us - seen.requests.arrival_us).tolist())


LATER = [0, 100_000, 200_000]  # each is done when the next one comes


def test_what_the_gpu_evicted_is_loaded_and_its_last_token_computed_again() -> None:
    """A, B, A. B's five blocks evict A's. Without a tier A is computed again: 1,000 + 40 x 100 us. With one its four
    blocks are loaded, 4 x 50 us, and one token is computed: 200 + 1,000 + 100."""
    assert times(played(sent([0, 1, 0], LATER, None))) == [5_000, 5_000, 5_000]
    seen = played(sent([0, 1, 0], LATER, TierLimits(100, 50.0, 0)))
    assert times(seen) == [5_000, 5_000, 1_300]
    assert seen.run.loaded == 4 and seen.run.cached.tolist() == [0, 0, 4]
    # Each computes 4 blocks and its answer's one, but the third computes the answer's alone.
    assert seen.run.account is not None and (seen.run.account.hits, seen.run.account.misses) == (4, 5 + 5 + 1)


def test_a_transfer_takes_its_latency_if_its_bytes_take_less() -> None:
    assert times(played(sent([0, 1, 0], LATER, TierLimits(100, 50.0, 199))))[2] == 1_300
    assert times(played(sent([0, 1, 0], LATER, TierLimits(100, 50.0, 700))))[2] == 1_800


def test_the_block_used_longest_ago_is_evicted() -> None:
    """A, B, A under four blocks of host memory: B's store evicts all of A. Under five it evicts the last three, as the
    first block counts as used last: one is loaded, 50 us, and 30 tokens are computed. Under seven three are loaded."""
    assert times(played(sent([0, 1, 0], LATER, TierLimits(4, 50.0, 0)))) == [5_000] * 3
    assert times(played(sent([0, 1, 0], LATER, TierLimits(5, 50.0, 0))))[2] == 50 + 4_000
    assert times(played(sent([0, 1, 0], LATER, TierLimits(7, 50.0, 0))))[2] == 150 + 2_000
    # Three blocks never have room for the four of a prompt that is computed in one step.
    assert played(sent([0, 1, 0], LATER, TierLimits(3, 50.0, 0))).run.loaded == 0


def test_answers_take_room_unless_prompts_alone_are_stored() -> None:
    """Prompts of 39 tokens, of which three blocks are full; the decode fills the fourth. Seven blocks have room for both
    prompts, but not for both answers: that of B evicts that of A, which counts as used before A's prompt. Under six
    B's prompt evicts A's answer, and B's answer A's third block."""
    alone, both = (
        played(sent([0, 1, 0], LATER, TierLimits(7, 50.0, 0, prompt_only), lengths=39, blocks=5))
        for prompt_only in (True, False)
    )
    assert times(alone)[2] == 150 + 1_000 + 900 and alone.run.loaded == 3
    assert times(both)[2] == 150 + 1_000 + 900 and both.run.loaded == 3
    six = played(sent([0, 1, 0], LATER, TierLimits(6, 50.0, 0, False), lengths=39, blocks=5))
    assert times(six)[2] == 100 + 1_000 + 1_900 and six.run.loaded == 2


def test_a_request_that_loads_lets_others_pass_and_waits_for_a_step() -> None:
    """A, B, then A and C together. The load of A takes 200 us, and C's first step meanwhile 5,000: A begins after it."""
    load = sent([0, 1, 2, 0, 3], [*LATER, 300_000, 300_000], TierLimits(100, 50.0, 0), blocks=10)
    seen = played(load)
    assert seen.run.start_us.tolist()[3:] == [305_000, 300_000]
    assert times(seen)[3:] == [5_000 + 1_100, 5_000]


def test_one_that_waits_for_blocks_that_another_loads_finds_them_on_the_gpu() -> None:
    """Two requests for A: the first loads, 200 us, and computes one token, and the second is cached whole."""
    seen = played(sent([0, 1, 2, 0, 0], [*LATER, 300_000, 300_000], TierLimits(100, 50.0, 0), blocks=7))
    assert seen.run.start_us.tolist()[3:] == [300_200, 300_200]
    assert seen.run.loaded == 4 and times(seen)[3:] == [1_300, 1_300]


def test_transfers_of_one_direction_follow_each_other() -> None:
    """A and B are loaded together into a GPU with room for both, each 200 us: A has its step from 200 us on, 1,100 us,
    and B, loaded after 400, the next one. Two more prompts evicted them."""
    load = sent(
        [0, 1, 2, 3, 0, 1],
        [0, *[100_000 * i for i in (1, 2, 3)], 400_000, 400_000],
        TierLimits(100, 50.0, 0),
        blocks=10,
    )
    seen = played(load)
    assert seen.run.start_us.tolist()[4:] == [400_200, 401_300]


def test_a_block_is_found_when_its_store_has_ended() -> None:
    """Stores of 10,000 us a block: A's ends 40,000 us after its step. B evicts A from the GPU. When A comes again after
    20,000 us it waits until 45,000, and then for its load of 40,000."""
    load = sent([0, 1, 0], [0, 7_000, 20_000], TierLimits(100, 10_000.0, 0))
    seen = played(load)
    assert seen.run.start_us.tolist()[2] == 5_000 + 40_000 + 40_000


def test_requests_that_loaded_and_hold_what_the_first_one_needs_give_it_back() -> None:
    """Of prompts of six blocks, eight in host memory keep two of A's and all of B's. Prompts without a full block evict
    both from the GPU's eight. Loaded together, 100 and 300 us, they fill it, and A has no room for its next 20 tokens
    until B, loaded too, gives its blocks back."""
    prompts, at = [0, 1, *range(2, 10), 0, 1], [*(100_000 * i for i in range(10)), 1_000_000, 1_000_000]
    lengths = [60, 60, *[9] * 8, 60, 60]
    seen = played(sent(prompts, at, TierLimits(8, 50.0, 0), lengths=lengths, blocks=8, threshold=20))
    assert seen.run.cached[-2] == 2
    assert seen.run.start_us.tolist()[-2] == 1_000_000 + 100 + 300
    assert seen.run.loaded > 2 + 6 and seen.completed.all()  # B loads again what A's stores left of it


def test_without_room_nothing_differs() -> None:
    load = sent([0, 1, 0], LATER, None)
    none = replay_bound(load, bound_of(STEP))
    empty = replay_bound(replace(load, limits=replace(load.limits, tier=TierLimits(0, 50.0, 0))), bound_of(STEP))
    for name in FIELDS:
        np.testing.assert_array_equal(getattr(none.run, name), getattr(empty.run, name))


@settings(max_examples=daily(20), derandomize=True)
@given(loads(), st.sampled_from(PROGRAMS[:14]), st.sampled_from([20, 100]), st.sampled_from([0.4, 90.0]))
def test_overflowing_caches_are_those_of_the_plain_clock(load: Load, step: str, blocks: int, block_us: float) -> None:
    """GPU caches of little more than a request; host memory of more blocks, over a fast and a slow link."""
    need = -(-160 // load.limits.block)
    tier = TierLimits(blocks, block_us, 30)
    limits = replace(load.limits, caching=True, blocks=need + need // 2, tier=tier)
    compare_clocks(Load(load.requests, limits), parse(step))


@settings(max_examples=daily(30, 300), derandomize=True, deadline=None)
@given(loads(), st.sampled_from(PROGRAMS[:14]), st.integers(0, 4), st.floats(0.0, 1.0), st.booleans(), st.booleans())
def test_with_drafts_and_steps_composed_ahead_they_are_too(
    load: Load, step: str, drafts: int, share: float, ahead: bool, prompt_only: bool
) -> None:
    need = -(-160 // load.limits.block)
    tier = TierLimits(3 * need, 40.0, 30, prompt_only)
    limits = replace(load.limits, caching=True, blocks=need + need // 2, tier=tier, ahead=ahead)
    compare_clocks(Load(load.requests, replace(limits, drafts=drafts, acceptance=share)), parse(step))


def test_composed_ahead_a_load_begins_while_the_step_before_runs() -> None:
    """A, B, C, and A again 1,000 us after C, whose prompt is computed from 300,000 to 305,000. Its decode, to 306,000,
    is composed before A comes, and the step after that at 305,000: A's load of 200 us begins then, and has ended when
    the next one is composed, at 306,000."""
    load = sent([0, 1, 2, 0], [0, 100_000, 300_000, 301_000], TierLimits(100, 50.0, 0), blocks=10, ahead=True)
    seen = played(load)
    assert seen.run.begun_us.tolist()[3] == seen.run.start_us.tolist()[3] == 306_000
    assert seen.run.loaded == 4 and times(seen)[3] == 5_000 + 1_100


@settings(max_examples=daily(40), derandomize=True)
@given(loads(), st.sampled_from(PROGRAMS[:14]))
def test_where_the_fast_clock_runs_nothing_is_loaded(load: Load, step: str) -> None:
    """It is taken only where the GPU loses nothing between two uses; the exact clock then loads nothing, either."""
    limits = replace(load.limits, caching=True, tier=TierLimits(50, 5.0, 9))
    load, bound = Load(load.requests, limits), bound_of(step)
    if load.limits.blocks < 10_000:
        load = replace(load, limits=replace(limits, blocks=max(limits.blocks, 400)))
    seen = replay_bound(load, bound)
    event("fast" if seen.run.fast else "exact")
    if seen.run.fast:
        told = replay_bound(load, bound, force_exact=True)
        assert told.run.loaded == 0
        for name in FIELDS:
            np.testing.assert_array_equal(getattr(seen.run, name), getattr(told.run, name))


@settings(max_examples=daily(20), derandomize=True)
@given(st.lists(st.integers(0, 5), min_size=2, max_size=20), st.integers(5, 12), st.integers(1, 4))
def test_a_free_link_saves_the_prefill_of_what_is_found(prompts: list[int], blocks: int, size: int) -> None:
    """One at a time: a request is shorter by 100 us for each token found, and by all but the last of a whole prompt."""
    lengths = 10 * size + 3 * (size % 2)
    at = [100_000 * i for i in range(len(prompts))]
    seen = played(sent(prompts, at, TierLimits(1_000, 0.0, 0), lengths=lengths, blocks=max(blocks, 6)))
    new = lengths - 10 * seen.run.cached
    expected = np.where(new > 0, 1_000 + 100 * new, 1_000 + 100)
    on_gpu = (new == 0) & (np.array(times(seen)) == 1_000)  # the host computes nothing of a prompt cached whole
    np.testing.assert_array_equal(np.array(times(seen))[~on_gpu], expected[~on_gpu])
    again = np.array([p in prompts[:i] for i, p in enumerate(prompts)])
    np.testing.assert_array_equal(seen.run.cached, np.where(again, lengths // 10, 0))


@pytest.mark.parametrize("step", PROGRAMS[:3])
def test_preempted_requests_find_their_prompts(step: str) -> None:
    """Four requests in a cache for two: those that are preempted load their prompts again."""
    load = sent([-1] * 4, [0] * 4, TierLimits(1_000, 3.0, 0), blocks=13)
    load = replace(load, requests=replace(load.requests, output_len=np.full(4, 40, np.int32)))
    seen = replay_bound(load, bound_of(step), account=True)
    compare(seen, host(load.requests, [0] * 4, load.limits, step_function(parse(step), FACTS)))
    assert seen.run.preemptions > 0 and seen.run.loaded > 0


@pytest.mark.parametrize(("ranks", "together", "stages"), [(1, False, 1), (2, False, 1), (2, True, 1), (1, False, 2)])
def test_every_rank_has_a_tier_of_its_own(ranks: int, together: bool, stages: int) -> None:
    """Ranks in turn get the same two prompts each, and load them as a single one does."""
    prompts = [p for p in (0, 1, 0, 1) for _ in range(ranks)]
    at = [100_000 * i for i in range(4) for _ in range(ranks)]
    load = sent(prompts, at, TierLimits(100 * stages, 50.0, 0), blocks=5 * stages)
    load = replace(load, limits=replace(load.limits, ranks=ranks, together=together, stages=stages))
    seen = replay_bound(load, bound_of(STEP), account=True)
    assert seen.completed.all()
    if stages == 1:
        assert seen.run.loaded == 8 * ranks and times(seen) == [5_000] * 2 * ranks + [1_300] * 2 * ranks


def chat(**engine: Setting | None) -> Spec:
    return Spec.of("llama-3.1-8b", "H100", rate=1.0, prompt_len=1000, output_len=10).vary(**engine)


def test_the_size_is_shared_by_the_gpus_of_a_rank() -> None:
    """Llama 3.1 8B: 2 x 32 layers x 8 heads x 128 x 2 bytes = 131,072 bytes a token, 2 MiB a block of 16: 512 blocks in
    a GiB, however many GPUs share them. A GPU of two moves 1 MiB a block: at 50 GB/s 20.97 us."""
    one = limits_of(deploy(chat(kv_offloading_size=1.0))).tier
    assert one == TierLimits(512, pytest.approx(2**21 / 50e3), 0, True)
    two = limits_of(deploy(chat(kv_offloading_size=1.0, tp=2, kv_offload_gb_per_s=25.0, kv_offload_latency_us=9))).tier
    assert two == TierLimits(512, pytest.approx(2**20 / 25e3), 9, True)
    stages = limits_of(deploy(chat(kv_offloading_size=1.0, pipeline_parallel=2))).tier
    assert stages == TierLimits(512, pytest.approx(2**20 / 50e3), 0, True)
    a100 = deploy(replace(chat(kv_offloading_size=1.0), gpu=Spec.of("llama-3.1-8b", "A100", 1.0, 9, 9).gpu))
    assert a100.engine.kv_offload_gb_per_s == 25.0


def test_without_a_size_nothing_changes() -> None:
    plain, flag, zero = (deploy(chat(**e)) for e in ({}, {"kv_cpu_offload": True}, {"kv_offloading_size": 0.0}))
    assert {limits_of(e).tier for e in (plain, flag, zero)} == {None}
    assert [e.facts["kv_cpu_offload"] for e in (plain, flag, zero)] == [0, 1, 0]
    assert deploy(chat(kv_offloading_size=9.0)).facts["kv_cpu_offload"] == 1
    assert "kv_offloading_size" not in plain.engine.to_entry() and Engine().to_entry() == {}
    assert data_hash([plain]) != data_hash([zero]) != data_hash([deploy(chat(kv_offloading_size=1.0))])


@pytest.mark.parametrize(
    ("engine", "key"),
    [
        ({"kv_offloading_size": 1.0, "prefix_caching": False}, "engine.kv_offloading_size"),
        ({"kv_offloading_size": 1.0, "kv_cpu_offload": False}, "engine.kv_offloading_size"),
        ({"kv_offloading_size": 0.001}, "engine.kv_offloading_size"),
        ({"kv_offloading_size": -1.0}, "engine.kv_offloading_size"),
        ({"kv_offload_gb_per_s": 0.0}, "engine.kv_offload_gb_per_s"),
        ({"cpu_offload_gb": 4}, "cpu_offload_gb"),
        ({"swap_space": 4}, "swap_space"),
    ],
)
def test_what_cannot_be_offloaded_is_refused(engine: dict[str, Setting], key: str) -> None:
    with pytest.raises(InputError, match=key):
        deploy(chat(**engine))


def test_a_prediction_says_what_was_loaded() -> None:
    """A warning is there if and only if something is offloaded, or should have been."""
    spec = chat(kv_offloading_size=20.0, total_kv_blocks=200)
    experiment = deploy(spec)
    load = load_of(experiment, 1)
    pairs = np.arange(len(load.requests), dtype=np.int32) // 2 % 7
    load = replace(load, requests=replace(load.requests, prompt=pairs))
    made = prediction_of(experiment, [replay_bound(load, bound_of(STEP))])
    assert made.loaded > 0
    [line] = [line for line in warnings(None, experiment, made) if line.startswith("KV offload")]
    assert f" {made.loaded * 16} prompt tokens " in line
