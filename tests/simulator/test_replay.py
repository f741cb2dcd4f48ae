"""Workloads, whole replays and their statistics: by hand, and compiled against plain."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
import yaml
from loads import workload
from plain_clock import host, step_function

from evaluator.metrics import observe_all, run_means_ms, stage_means
from simulator.clock.bind import bind, ticks
from simulator.clock.replay import replay, replay_bound
from simulator.clock.run import HostileStep
from simulator.language.complete import complete
from simulator.language.opcodes import assemble
from simulator.language.parse import parse
from simulator.serving.bundled import bundled_experiments
from simulator.serving.engine import Engine
from simulator.serving.experiment import Experiment
from simulator.serving.load import Load, load_of
from simulator.serving.requests import requests
from simulator.serving.workload import Stage, at_rate, prompt_lengths

FACTS = {e.id: e for e in bundled_experiments()}["llama-2-7b-tp1-general"].facts


def experiment(**changes: object) -> Experiment:
    """Two stages of a small load; keyword arguments change the workload, or the engine if it has such a knob."""
    knobs = {k: v for k, v in changes.items() if k in Engine.__dataclass_fields__}
    rest = {k: v for k, v in changes.items() if k not in knobs}
    load = workload(groups=2, prompts_per_group=3, system_prompt_len=40, prompt_len_mean=60.5)
    engine = replace(Engine(max_num_seqs=4, max_num_batched_tokens=64), **knobs)  # type: ignore[arg-type]
    facts = {**FACTS, "max_model_len": float(engine.max_model_len or FACTS["max_model_len"])}
    facts["kv_blocks"] = float(engine.total_kv_blocks or FACTS["kv_blocks"])
    return Experiment("test", "m", "gpu", engine, workload(load, **rest), None, "clean", facts)


PROGRAM = complete(
    parse("""
def step_time(b, s, *, a=700.5, c=12.25, d=33.3):
    return a + c * b.prefill_tokens + d * b.decode_reqs + b.kv_read_us

def queueing_time(r, s, *, base=900.7, per=3.3):
    return base + per * r.input_len

def output_token_time(s, *, t=21.9):
    return t

def completion_time(s, *, t=77.7):
    return t
""")
)


def test_arrivals_are_as_many_as_offered_sorted_and_inside_their_stage() -> None:
    load = requests(experiment(), seed=3)
    assert len(load) == 20 + 60  # rate x duration of each stage
    assert np.all(np.diff(load.arrival_us) >= 0)
    first = load.arrival_us[load.stage == 0]
    assert first.min() >= 0 and first.max() < 4_000_000
    assert load.arrival_us[load.stage == 1].min() >= 4_000_000 and load.arrival_us.max() < 7_000_000


def test_at_another_rate_a_load_lasts_as_long_as_all_its_stages() -> None:
    e = experiment()
    slower = at_rate(e.workload, 2.0)
    assert slower == replace(e.workload, stages=(Stage(2.0, 4.0 + 3.0),))
    assert len(requests(replace(e, workload=slower), seed=3)) == 2 * 7


def test_even_arrivals_are_evenly_spaced() -> None:
    load = requests(experiment(arrival="even", stages=(Stage(10.0, 2.0),)), seed=3)
    assert set(np.diff(load.arrival_us)) <= {99_999, 100_000, 100_001}


def test_constant_and_poisson_mean_the_same() -> None:
    a, b = (requests(experiment(arrival=name), seed=3) for name in ("constant", "poisson"))
    np.testing.assert_array_equal(a.arrival_us, b.arrival_us)
    assert not np.array_equal(a.arrival_us, requests(experiment(), seed=4).arrival_us)


def test_prompts_are_used_in_turn_with_exactly_the_mean_length() -> None:
    e = experiment()
    load = requests(e, seed=0)
    assert list(load.prompt[:8]) == [0, 1, 2, 3, 4, 5, 0, 1]
    assert list(load.group[:6]) == [0, 0, 0, 1, 1, 1]
    assert sorted(set(load.input_len)) == [60, 61]
    assert prompt_lengths(e.workload).mean() == 60.5
    whole = {x.id: x for x in bundled_experiments()}["llama-2-7b-tp1-codegen"]
    assert prompt_lengths(whole.workload).mean() == pytest.approx(591.63, abs=1e-12)
    assert set(prompt_lengths(whole.workload)) == {591, 592}


def test_without_a_mean_length_the_prompt_is_system_plus_question() -> None:
    assert set(prompt_lengths(experiment(prompt_len_mean=None).workload)) == {60}


def test_three_requests_by_hand() -> None:
    """One prompt of 20 tokens, block 16, budget 64: steps of 1000 us + 10 us a prefill token + 1 us a decode.

    Queued at 0, 500 and 5000 us. Step 1 at 0 prefills all 20 tokens of request 0 (1200 us). Step 2 at 1200
    admits request 1 with 4 uncached tokens beside 1 decode (1041 us) and finishes request 0 (2 output tokens).
    Step 3 at 2241: one decode (1001 us), request 1 is done and the instance idle at once. Request 2: step at 5000,
    4 uncached tokens (1040 us); its second token takes 1001 us.

    Composed ahead, step 2 is composed at 0 and has one decode (1001 us). Step 3 is composed at 1200, admits request 1
    and begins at 2201 (1040 us), so that it has its first token at 3241.
    """
    e = experiment(
        groups=1, prompts_per_group=1, system_prompt_len=20, question_len=0, prompt_len_mean=None, output_len=2
    )
    program = parse("def step_time(b, s, *, a=1000.0, c=10.0): return a + c * b.prefill_tokens + b.decode_reqs")
    whole = load_of(e, 0, host_rules=True)
    three = {name: values[:3] for name, values in vars(whole.requests).items() if isinstance(values, np.ndarray)}
    load = Load(replace(whole.requests, **{**three, "arrival_us": np.array([0, 500, 5000])}), whole.limits)
    seen = replay_bound(load, bind(assemble(program), program.theta, e.facts))
    assert list(seen.ttft_us) == [1200, 1200 - 500 + 1041, 1040]
    assert list(seen.e2e_us) == [1200 + 1041, 1741 + 1001, 1040 + 1001]
    assert seen.steps == 5
    load = replace(load, limits=load_of(e, 0).limits)
    seen = replay_bound(load, bind(assemble(program), program.theta, e.facts))
    assert list(seen.ttft_us) == [1200, 3241 - 500, 1040]
    assert list(seen.e2e_us) == [1200 + 1001, 2741 + 1001, 1040 + 1001]
    assert list(seen.waiting_us) == [0, 1200 - 500, 0] and seen.steps == 6


def plain(e: Experiment, seed: int) -> tuple[list[int], list[int]]:
    """TTFT and decode time of every request by the plain clock; 0 for those not completed."""
    load = load_of(e, seed)
    bound = bind(assemble(PROGRAM), PROGRAM.theta, e.facts)
    queueing = [ticks(bound.queueing_us(int(n))) for n in load.requests.input_len]
    told = host(load.requests, queueing, load.limits, step_function(PROGRAM, e.facts))
    done = [r.state == "completed" for r in told.requests]
    ttft = [(r.first or 0) + 21 - r.arrival if d else 0 for r, d in zip(told.requests, done, strict=True)]
    return ttft, [r.decode_us for r in told.requests]


# as given; fewer tokens than requests; whole blocks, fully cached; prompts evicted; requests preempted
CHANGES = """{} | {prefix_caching: false} | {long_prefill_token_threshold: 16} | {groups: 0, question_len: 200}
{output_len: 1} | {max_num_batched_tokens: 3, max_num_seqs: 8} | {prompt_len_mean: null, question_len: 24}
{total_kv_blocks: 18} | {total_kv_blocks: 6, max_num_seqs: 8, groups: 0, question_len: 30}
{timeout_s: 0.009, max_num_seqs: 1} | {max_model_len: 69}"""


@pytest.mark.parametrize("changes", [*map(yaml.safe_load, re.split(r" \| |\n", CHANGES))], ids=str)
def test_compiled_replay_equals_plain_replay(changes: dict[str, object]) -> None:
    e = experiment(**changes)
    for seed in (1, 2):
        ttft, decode = plain(e, seed)
        for force_exact in (False, True):
            bound = bind(assemble(PROGRAM), PROGRAM.theta, e.facts)
            seen = replay_bound(load_of(e, seed), bound, force_exact=force_exact)
            np.testing.assert_array_equal(seen.ttft_us, ttft)
            np.testing.assert_array_equal(seen.decode_us, decode)
            parts = seen.queueing_us + seen.waiting_us + seen.prefill_us + seen.token_us
            np.testing.assert_array_equal(np.where(seen.completed, parts, 0), seen.ttft_us)


def test_statistics_by_hand() -> None:
    seen = replay(experiment(), PROGRAM, 1)
    observed = observe_all(seen)
    assert observed.summary is not None and observed.summary.completed == 80
    e2e = np.sort(seen.e2e_us) / 1e3
    assert observed.summary.e2e_ms.mean == pytest.approx(e2e.mean())
    rank = 0.9 * (len(e2e) - 1)  # linear interpolation between neighbours
    low = int(rank)
    assert observed.summary.e2e_ms.p90 == pytest.approx(e2e[low] + (rank - low) * (e2e[low + 1] - e2e[low]))
    itl = ((seen.e2e_us - seen.ttft_us) / 8.0).mean() / 1e3  # nine output tokens
    assert observed.summary.itl_ms.mean == pytest.approx(itl)
    means = stage_means(seen, 2)
    assert means[1, 0] == pytest.approx(observed.stages[1].e2e_ms.mean)
    assert means[0, 1] == pytest.approx(observed.stages[0].ttft_ms.mean)


def test_an_answer_of_one_token_has_no_time_between_tokens() -> None:
    load = load_of(experiment(), 1)
    lengths = np.where(np.arange(len(load.requests)) % 3 == 0, 1, 9).astype(np.int32)
    mixed = Load(replace(load.requests, output_len=lengths), load.limits)
    seen = replay_bound(mixed, bind(assemble(PROGRAM), PROGRAM.theta, FACTS))
    several = lengths > 1
    itl_ms = ((seen.e2e_us - seen.ttft_us)[several] / 8.0).mean() / 1e3
    assert seen.completed.all() and run_means_ms(seen)[2] == pytest.approx(itl_ms)
    summary = observe_all(seen).summary
    assert summary is not None and summary.itl_ms.mean == pytest.approx(itl_ms)
    stages = observe_all(seen).stages
    for means, stage in zip(stage_means(seen, len(stages)), stages, strict=True):
        assert means == pytest.approx([stage.e2e_ms.mean, stage.ttft_ms.mean, stage.itl_ms.mean])
    alone = Load(replace(load.requests, output_len=np.ones_like(lengths)), load.limits)
    none = stage_means(replay_bound(alone, bind(assemble(PROGRAM), PROGRAM.theta, FACTS)), len(stages))
    assert np.isnan(none[:, 2]).all() and not np.isnan(none[:, :2]).any()


def test_requests_longer_than_max_model_len_are_refused() -> None:
    seen = replay(experiment(max_model_len=69), PROGRAM, 1)  # 60 + 9 fits, 61 + 9 does not
    assert not seen.completed[seen.requests.input_len == 61].any()
    assert seen.completed[seen.requests.input_len == 60].all()
    summary = observe_all(seen).summary
    assert summary is not None and summary.failed == int((~seen.completed).sum()) == 40


@pytest.mark.parametrize(
    "text", ["b.decode_reqs / 4 - 1", "exp(b.kv_sum) * exp(50 * b.tokens) * 1e300 * b.decode_reqs", "0"]
)
def test_hostile_steps_are_refused_or_clamped_and_counted(text: str) -> None:
    program = complete(parse(f"def step_time(b, s): return {text}"))
    e = experiment()
    load, bound = load_of(e, 1), bind(assemble(program), program.theta, e.facts)
    with pytest.raises(HostileStep, match="must be finite and within 1 and 1e10"):
        replay_bound(load, bound, stop_when_hostile=True)
    for force_exact in (False, True):
        assert replay_bound(load, bound, force_exact=force_exact).clamped > 0


def test_a_client_that_gives_up_is_a_failure_and_in_no_statistic() -> None:
    e = experiment(timeout_s=0.009, max_num_seqs=1)
    seen = replay(e, PROGRAM, 1)
    gave_up = seen.spread(seen.run.gave_up)
    assert 0 < gave_up.sum() < 80 and not (gave_up & seen.completed).any()
    summary = observe_all(seen).summary
    assert summary is not None and summary.failed == gave_up.sum()
    assert summary.e2e_ms.mean == pytest.approx(seen.e2e_us[seen.completed].mean() / 1e3)
