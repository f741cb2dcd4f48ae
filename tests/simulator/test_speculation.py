"""Speculative decoding: the exact clocks against the plain one, hand calculations, and vLLM's own settings."""

from __future__ import annotations

import json
from dataclasses import replace
from fractions import Fraction
from math import ceil
from typing import Any

import numpy as np
import pytest
from examples import daily
from hypothesis import event, given, settings
from hypothesis import strategies as st
from paths import ROOT
from plain_clock import FACTS, closed_host, host, step_function
from test_clients import closed
from test_clock import PROGRAMS, QUEUEING, burst, compare, loads
from test_parallel_ranks import on_ranks

from simulator.clock.bind import Bound, bind
from simulator.clock.replay import Replay, replay, replay_bound
from simulator.clock.run import NeverEnds
from simulator.clock.steps import steps_of
from simulator.common.errors import InputError, Section
from simulator.kernels.curves import kernels
from simulator.language.complete import complete
from simulator.language.opcodes import assemble
from simulator.language.parse import parse
from simulator.serving.experiment import Experiment, deploy
from simulator.serving.load import NEVER, Load
from simulator.serving.model import model_table
from simulator.serving.spec import Spec, engine_of, read_spec

PROGRAM = "def step_time(b, s): return 1000 + 10 * b.tokens"
SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)


def bound_of(text: str, drafts: int) -> Bound:
    program = parse(text)
    return bind(assemble(program), program.theta, {**FACTS, "draft_tokens": float(drafts)})


def drafting(load: Load, drafts: int, acceptance: float) -> Load:
    return replace(load, limits=replace(load.limits, drafts=drafts, acceptance=acceptance))


@st.composite
def drafted(draw: st.DrawFn) -> Load:
    """A random load, half of them with clients that wait, under an engine that drafts."""
    acceptance = draw(st.sampled_from(SHARES) | st.floats(0.0, 1.0))
    return drafting(draw(loads() | loads(chunked=False) | closed()), draw(st.integers(1, 5)), acceptance)


@settings(max_examples=daily(120, 1_000), derandomize=True, deadline=None)
@given(drafted(), st.sampled_from(PROGRAMS), st.sampled_from(QUEUEING))
def test_exact_and_plain_are_equal(load: Load, step: str, queueing: str) -> None:
    """Every figure of every request, with and without remembered steps."""
    program = parse(step + "\n" + queueing)
    facts = {**FACTS, "draft_tokens": float(load.limits.drafts)}
    bound = bind(assemble(program), program.theta, facts)
    queue_us = [max(0, min(int(bound.queueing_us(int(n))), 10**10)) for n in load.requests.input_len]
    plain = step_function(program, facts)
    if load.clients:
        told = closed_host(load, queue_us, plain, (0, 0), 20_000)
    else:
        told = host(load.requests, queue_us, load.limits, plain, most_steps=20_000)
    if told.stuck:
        if not load.requests.deadline_us.any() and load.limits.horizon_us == NEVER:
            with pytest.raises(NeverEnds):
                replay_bound(load, bound)
        return
    for steps in (None, steps_of(bound, load.limits, remember=False)):
        seen = replay_bound(load, bound, account=True, steps=steps)
        assert not seen.run.fast
        event("preempting" if seen.run.preemptions else "calm")
        compare(seen, told)


@settings(max_examples=daily(25, 200), derandomize=True, deadline=None)
@given(loads(), st.integers(1, 5), st.floats(0.0, 1.0), st.sampled_from(PROGRAMS))
def test_ranks_of_one_request_at_a_time_are_engines_of_their_own(
    load: Load, drafts: int, acceptance: float, step: str
) -> None:
    """Two independent ranks that take turns: the first one's requests have the times that they have alone."""
    load, bound = drafting(load, drafts, acceptance), bound_of(step, drafts)
    try:
        seen = replay_bound(on_ranks(load, 2, False), bound)
    except NeverEnds:
        return
    order = np.flatnonzero(load.accepted)
    for d in range(2):
        if len(mine := order[d::2]):
            names = (f for f in ("arrival_us", "stage", "input_len", "output_len", "prompt", "group", "shared_len"))
            columns = {name: getattr(load.requests, name)[mine] for name in (*names, "deadline_us")}
            chains = load.requests.chains.of(mine) if load.requests.chains else None
            alone = replay_bound(Load(replace(load.requests, **columns, chains=chains), load.limits), bound)
            for name in ("first_us", "decode_us", "cached", "completed"):
                values = seen.spread(getattr(seen.run, name))[mine]
                np.testing.assert_array_equal(values, alone.spread(getattr(alone.run, name)), err_msg=name)


def test_tokens_of_ranks_that_step_together_count_their_drafts() -> None:
    """Two ranks, a decode of 1 + 3 tokens each: 8 tokens meet."""
    program = parse("def step_time(b, s): return 1000 + 100 * b.all_tokens")
    bound = bind(assemble(program), program.theta, {"dp": 2.0, "draft_tokens": 3.0})
    load = on_ranks(drafting(burst([50, 10], [9, 9]), 3, 1.0), 2, True)
    seen = replay_bound(load, bound)
    assert seen.ttft_us.tolist() == [7_000, 7_000] and seen.decode_us.tolist() == [2 * 1_800] * 2


@pytest.mark.parametrize("drafts", range(1, 6))
@pytest.mark.parametrize("share", SHARES)
def test_one_request_alone_takes_as_many_steps_as_its_tokens_need(drafts: int, share: float) -> None:
    """A prompt of 90 tokens: 1,900 us. Then 29 tokens at a mean of 1 + share x drafts a step of 1 + drafts tokens."""
    seen = replay_bound(drafting(burst([90], [30], max_model_len=0), drafts, share), bound_of(PROGRAM, drafts))
    steps = ceil(29 / (1 + Fraction(share) * drafts))
    assert seen.ttft_us.tolist() == [1_900] and seen.run.steps == 1 + steps
    assert seen.e2e_us.tolist() == [1_900 + steps * (1_000 + 10 * (1 + drafts))]


def test_the_carry_alternates() -> None:
    """0.5 x 3 drafts: 2, 3, 2, 3 tokens a step, of which the last is cut to the one that is left."""
    seen = replay_bound(
        drafting(burst([10], [12]), 3, 0.5), bound_of("def step_time(b, s): return 100 + b.kv_decode_sum", 3)
    )
    assert seen.decode_us.tolist() == [sum(100 + at for at in (10, 12, 15, 17, 20))]


def test_a_step_has_budget_for_the_positions_that_decodes_verify() -> None:
    """8 positions hold two decodes with 3 drafts each. The third one waits until they are done, which the host does not
    count as its decode time."""
    load = drafting(burst([2, 2, 2], [9, 9, 9], budget=8), 3, 1.0)
    seen = replay_bound(load, bound_of("def step_time(b, s): return 1000 + b.decode_reqs", 3))
    assert (seen.ttft_us // 1_000).tolist() == [1, 1, 1] and seen.run.steps == 5
    assert seen.e2e_us.tolist() == [3_004, 3_004, 3_002]


def test_a_budget_that_cuts_drafts_cuts_what_is_accepted() -> None:
    """6 positions: one decode with all its drafts, and one with a single draft."""
    load = drafting(burst([2, 2], [9, 9], budget=6), 3, 1.0)
    told = host(load.requests, [0, 0], load.limits, step_function(parse(PROGRAM), {**FACTS, "draft_tokens": 3.0}))
    seen = replay_bound(load, bound_of(PROGRAM, 3), account=True)
    compare(seen, told)
    assert seen.run.steps == 1 + 2 + 1  # 4 and 2 tokens, 4 and 2, then 4


@pytest.mark.parametrize("share", SHARES)
def test_blocks_are_those_of_accepted_tokens(share: float) -> None:
    """Blocks of 10: as many as without drafts, for the prompts and the tokens emitted."""
    plain = replay_bound(burst([35, 8], [30, 41], block=10), bound_of(PROGRAM, 0), force_exact=True, account=True)
    load = drafting(burst([35, 8], [30, 41], block=10), 4, share)
    seen = replay_bound(load, bound_of(PROGRAM, 4), account=True)
    assert seen.run.account and plain.run.account and seen.run.account.misses == plain.run.account.misses == 7 + 5


@settings(max_examples=daily(25, 200), derandomize=True, deadline=None)
@given(loads(), st.sampled_from(PROGRAMS[:14]), st.floats(0.0, 1.0))
def test_no_drafts_are_no_speculation(load: Load, step: str, share: float) -> None:
    def run(load: Load) -> Replay | None:
        try:
            return replay_bound(load, bound_of(step, 0), force_exact=True)
        except NeverEnds:
            return None

    one, two = run(load), run(drafting(load, 0, share))
    assert (one is None) == (two is None)
    if one and two:
        for name in ("start_us", "first_us", "decode_us", "cached", "completed"):
            np.testing.assert_array_equal(getattr(one.run, name), getattr(two.run, name))


BASE = Spec.of("llama-3.1-8b", "H100", rate=1, prompt_len=1000, output_len=300)
WITH: dict[str, Any] = {"speculative_method": "eagle3", "num_speculative_tokens": 3, "speculative_acceptance": 0.5}


def served(**engine: Any) -> Experiment:
    return deploy(BASE.vary(**{**WITH, **engine}))


@pytest.mark.parametrize("program", ["kernels", "roofline"])
def test_latency_falls_with_acceptance_and_not_below_that_of_the_steps(program: str) -> None:
    """Steps take the same time whatever is accepted: with nothing accepted, longer than without drafts."""
    text = complete(parse((ROOT / "seeds" / f"{program}.py").read_text()))
    plain = float(replay(deploy(BASE), text, 1).e2e_us.mean())
    for drafts in range(1, 6):
        e2e = [
            float(replay(served(num_speculative_tokens=drafts, speculative_acceptance=share), text, 1).e2e_us.mean())
            for share in SHARES
        ]
        assert e2e == sorted(e2e, reverse=True) and e2e[0] > plain > e2e[-1]


# A layer of Llama-3.1-8B: 4096 wide, 32 heads and 8 KV heads of 128, feed-forward 14336, in 16 bits.
LAYER = 4096 * (4096 + 2 * 1024) + 4096 * 4096 + 3 * 4096 * 14336
EAGLE_BYTES = 2 * (LAYER + 2 * 4096 * 4096)
EAGLE3_BYTES = 2 * (LAYER + 3 * 4096 * 4096 + 128256 * 4096)
TOKEN_BYTES = 2 * 8 * 128 * 2  # of a layer's KV cache


@pytest.mark.parametrize(
    ("method", "held", "layers"), [("ngram", 0, 32), ("eagle", EAGLE_BYTES, 33), ("eagle3", EAGLE3_BYTES, 33)]
)
def test_the_draft_takes_memory_from_the_cache(method: str, held: int, layers: int) -> None:
    room = (deploy(BASE).facts["kv_blocks"] + 1) * 16 * 32 * TOKEN_BYTES  # to within a block
    expected = (room - held) / (16 * layers * TOKEN_BYTES) - 1
    assert served(speculative_method=method).facts["kv_blocks"] == pytest.approx(expected, abs=1.5)


def test_a_draft_model_is_held_whole() -> None:
    """Llama-2-7B: 6,738,415,616 parameters without norms 6,738,149,376, 32 layers of 32 KV heads of 128."""
    room = (deploy(BASE).facts["kv_blocks"] + 1) * 16 * 32 * TOKEN_BYTES
    own = served(speculative_method="draft_model", draft_model="llama-2-7b")
    tokens = 32 * TOKEN_BYTES + 32 * 2 * 32 * 128 * 2
    assert own.facts["kv_blocks"] == pytest.approx((room - 2 * 6738149376) / (16 * tokens) - 1, abs=1.5)


def test_passes_of_the_draft_are_kernels_of_the_step() -> None:
    """Three tokens: three passes of a layer, of three joined states, and of the output matrix; of the first pass, the
    layer is among the products of all tokens."""
    plain, own = (kernels(e.facts.deployed) for e in (deploy(BASE), served()) if e.facts.deployed)
    of = {o.shape: o.timing.us for o in plain.operations if o.curve in ("gemm", "lm_head")}
    layer = sum(of[f"{k} to {n}"] for k, n in ((4096, 6144), (4096, 4096), (4096, 28672), (14336, 4096)))
    joined = next(o for o in own.operations if o.shape == "12288 to 4096").timing.us
    np.testing.assert_allclose(own.curves["gemm"], plain.curves["gemm"] + layer + joined, rtol=1e-5)
    head, launch = of["4096 to 128256"], plain.curves["decode_launch"] / 32
    small = [o for o in own.operations if "residual" in o.name or "rotary" in o.name or "write" in o.name]
    small += [o for o in own.operations if "activation" in o.name]
    twice = sum(o.calls * o.timing.us for o in small if o.name.startswith("draft, pass"))
    argmax = 3 * next(o for o in own.operations if "argmax" in o.name).timing.us
    launches = 33 * launch + 2 * (layer + joined + launch) + twice + 3 * head + argmax
    np.testing.assert_allclose(own.curves["decode_launch"], launches, rtol=1e-5)
    np.testing.assert_allclose(own.curves["decode_per_token"], plain.curves["decode_per_token"] * 35 / 32, rtol=1e-5)


def test_latent_attention_of_many_queries_is_bound_by_compute() -> None:
    """The heads of DeepSeek-V3 share a latent vector: two tokens read it, eight multiply it as long as the cores need."""
    deep = Spec.of("deepseek-v3", "H200", rate=1, prompt_len=100, output_len=9, tp=8, max_model_len=8192)
    engine = {**WITH, "speculative_method": "ngram"}
    one, two, eight = (
        deploy(deep.vary(**{**engine, "num_speculative_tokens": k} if k else {})).facts.curves for k in (0, 1, 7)
    )
    assert one and two and eight
    np.testing.assert_array_equal(one["decode_per_token"], two["decode_per_token"])
    assert (eight["decode_per_token"] > 1.1 * one["decode_per_token"]).all()


def engine(**given: Any) -> dict[str, Any]:
    return engine_of(Section("my.yaml: experiment 'x'", "engine", given)).to_entry()


@pytest.mark.parametrize(
    ("config", "method", "acceptance"),
    [
        ({"method": "eagle3", "model": "any/head", "num_speculative_tokens": 3}, "eagle3", None),
        ({"method": "deepseek_mtp", "num_speculative_tokens": 3, "draft_tensor_parallel_size": None}, "mtp", None),
        ({"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 4}, "ngram", None),
        ({"method": "mtp", "num_speculative_tokens": 3, "synthetic_acceptance_length": 2.5}, "mtp", 0.5),
        ({"method": "mtp", "num_speculative_tokens": 3, "synthetic_acceptance_rates": [0.8, 0.5, 0.2]}, "mtp", 0.5),
    ],
)
def test_vllms_own_config_is_understood(config: dict[str, Any], method: str, acceptance: float | None) -> None:
    expected = {"speculative_method": method, "num_speculative_tokens": 3}
    expected |= {} if acceptance is None else {"speculative_acceptance": acceptance}
    assert engine(speculative_config=config) == engine(speculative_config=json.dumps(config)) == expected


@pytest.mark.parametrize(
    ("given", "place"),
    [
        ({"speculative_config": "{"}, "engine.speculative_config"),
        ({"speculative_config": {"method": "medusa", "num_speculative_tokens": 3}}, "engine.speculative_method"),
        ({"speculative_config": {"method": "ngram"}}, "engine.speculative_config.num_speculative_tokens"),
        ({"speculative_config": {"num_speculative_tokens": 3}}, "engine.speculative_config.method"),
        (
            {"speculative_config": {"method": "eagle", "num_speculative_tokens": 3, "parallel_drafting": True}},
            "engine.speculative_config.parallel_drafting",
        ),
        (
            {"speculative_config": {"method": "eagle", "num_speculative_tokens": 3}, "num_speculative_tokens": 2},
            "engine.num_speculative_tokens",
        ),
        ({"speculative_acceptance": 1.5}, "engine.speculative_acceptance"),
    ],
)
def test_what_is_no_config_is_refused(given: dict[str, Any], place: str) -> None:
    with pytest.raises(InputError) as refused:
        engine(**given)
    assert f" {place} " in str(refused.value) and "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"speculative_acceptance": None}, "cannot predict speculative decoding"),
        ({"speculative_method": None}, "engine.speculative_method is missing"),
        ({"num_speculative_tokens": 0}, "engine.speculative_method is given without num_speculative_tokens"),
        ({"speculative_method": "draft_model"}, "engine.draft_model is missing"),
        ({"draft_model": "llama-2-7b"}, "engine.draft_model is given"),
        ({"speculative_method": "mtp"}, "engine.speculative_method is mtp"),
        ({"pipeline_parallel": 2}, "engine.pipeline_parallel is 2"),
    ],
)
def test_what_no_engine_runs_is_refused(changed: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError) as refused:
        served(**changed)
    assert said in str(refused.value) and "\n" not in str(refused.value)


def test_layers_of_the_checkpoint_are_loaded_with_mtp_alone() -> None:
    """Mixtral with a layer more: its attention and all its experts, which draft as a layer of their own."""
    entry = Spec.of("mixtral-8x7b", "H100", rate=1, prompt_len=100, output_len=30, tp=4).to_entry()
    entry["model_config"] = {**model_table()["mixtral-8x7b"]["config"], "num_nextn_predict_layers": 1}
    plain = deploy(read_spec(entry, "x"))
    own = deploy(read_spec(entry, "x").vary(**{**WITH, "speculative_method": "mtp"}))
    room = (plain.facts["kv_blocks"] + 1) * 16 * plain.facts["kv_bytes_per_token"]
    layer = 4096 * 4096 * 2 + 2 * 4096 * 1024 + 8 * 3 * 4096 * 14336 + 2 * 4096 * 4096
    expected = (room - 2 * layer / 4) / (16 * 33 * 2 * 2 * 128 * 2) - 1
    assert own.facts["kv_blocks"] == pytest.approx(expected, abs=1.5)
    assert any("num_nextn_predict_layers" in note for note in plain.notes)
    assert not any("num_nextn_predict_layers" in note for note in own.notes)
