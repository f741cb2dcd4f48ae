"""Loads that are drawn: distributions, arrivals, conversations, and what the prefix cache finds of them."""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from plain_clock import host, step_function
from trace_tables import experiment, written

from simulator.clock.replay import replay
from simulator.common.streams import stream
from simulator.language.complete import complete
from simulator.language.parse import parse
from simulator.serving.bundled import bundled_experiments
from simulator.serving.digests import data_hash
from simulator.serving.distribution import GRID, Distribution
from simulator.serving.experiment import Experiment
from simulator.serving.load import load_of
from simulator.serving.trace import Requests
from simulator.serving.workload import Profile, at_rate, longest_request, output_lengths, prompt_lengths, rates

PROGRAM = complete(parse("def step_time(b, s, *, a=5000.0, c=20.0): return a + c * b.prefill_tokens"))
STAGES = [{"rate": 5.0, "duration_s": 200}, {"rate": 20.0, "duration_s": 100}]
N = 40_000  # draws: the mean of them is within 4.5 of its standard errors, but for one in 150,000 seeds
FAR = 4.5


def load(**workload: Any) -> Experiment:
    """An experiment whose load is two stages of single prompts, but for what is given; None leaves out a key."""
    whole = {"stages": STAGES, "prompt_len": 100, "output_len": 20} | workload
    return experiment(Path(), {k: v for k, v in whole.items() if v is not None}, engine={"max_num_seqs": 64})


def drawn(seed: int = 1, **workload: Any) -> Requests:
    return load_of(load(**workload), seed).requests


def distribution(folder: Path, given: Any) -> Distribution:
    e = experiment(folder, {"stages": STAGES, "prompt_len": 100, "output_len": given})
    assert isinstance(e.workload.source, Profile)
    return e.workload.source.output_len


# (as written, mean, standard deviation) of what is not cut off. Whole numbers add 1/12 to the variance, and a uniform
# distribution of the numbers a to b has ((b - a + 1)^2 - 1) / 12.
MOMENTS: list[tuple[Any, float, float]] = [
    (250, 250.0, 0.0),
    ({"constant": 250}, 250.0, 0.0),
    ({"uniform": {"min": 100, "max": 500}}, 300.0, ((401**2 - 1) / 12) ** 0.5),
    ({"normal": {"mean": 1000, "sd": 100}}, 1000.0, (100**2 + 1 / 12) ** 0.5),
    ({"lognormal": {"mean": 400, "sd": 200}}, 400.0, (200**2 + 1 / 12) ** 0.5),
    ({"empirical": "lengths.csv"}, (10 + 20 + 20 + 90) / 4, (((10 - 35) ** 2 + 2 * (20 - 35) ** 2 + 55**2) / 4) ** 0.5),
]


@pytest.mark.parametrize(("given", "mean", "sd"), MOMENTS, ids=[str(g)[:20] for g, _, _ in MOMENTS])
def test_draws_have_the_stated_moments_and_agree_with_the_quantiles(
    given: Any, mean: float, sd: float, tmp_path: Path
) -> None:
    written(tmp_path, "lengths.csv", "len\n10\n20\n20\n90\n")
    d = distribution(tmp_path, given)
    draws = d.draw_whole(stream(3, 1), N)
    assert draws.dtype == np.int64 and draws.min() >= 1
    assert draws.mean() == pytest.approx(mean, abs=FAR * sd / N**0.5 + 1e-9)
    # The standard error of a standard deviation is sd sqrt((kurtosis - 1) / N) / 2. The kurtosis of this lognormal
    # variable, with w = 1 + (sd/mean)^2 = 1.25, is w^4 + 2 w^3 + 3 w^2 - 3 = 8.0; the others' is smaller.
    assert draws.std() == pytest.approx(sd, abs=FAR * sd * (7.0 / N) ** 0.5 / 2 + 1e-9)
    quantiles = d.quantiles()
    assert quantiles.size == (GRID if d.fixed is None else 1) and (np.diff(quantiles) >= 0).all()
    # GRID midpoints leave out half of the last 1/GRID, which for the lognormal one is 0.4 % of the mean's excess.
    assert quantiles.mean() == pytest.approx(mean, rel=0.002)
    # A quantile p of N draws has the rank error sqrt(p (1 - p) / N) <= 0.0025.
    for p in (0.1, 0.5, 0.9):
        at = np.quantile(quantiles, p)
        low, high = (draws < at - 0.5).mean(), (draws <= at + 0.5).mean()
        assert low - FAR * 0.0025 <= p <= high + FAR * 0.0025


@pytest.mark.parametrize("kind", ["normal", "lognormal"])
def test_what_lies_beyond_a_bound_counts_as_the_bound(kind: str, tmp_path: Path) -> None:
    d = distribution(tmp_path, {kind: {"mean": 100, "sd": 80, "min": 50, "max": 200}})
    for values in (d.draw_whole(stream(3, 3), N), d.quantiles()):
        assert (values.min(), values.max()) == (50, 200)
        assert (values == 50).mean() > 0.1 and (values == 200).mean() > 0.05
    assert d.most == 200


def test_every_whole_number_of_a_uniform_distribution_is_equally_likely(tmp_path: Path) -> None:
    draws = distribution(tmp_path, {"uniform": {"min": 2.5, "max": 5.5}}).draw_whole(stream(3, 4), N)
    values, counts = np.unique(draws, return_counts=True)
    assert values.tolist() == [3, 4, 5]
    np.testing.assert_allclose(counts / N, 1 / 3, atol=FAR * 0.0025)


PROCESSES: list[Any] = ["constant", "poisson", "even", *({"gamma": {"cv": cv}} for cv in (2, 20))]
PROCESSES += [{"burst": {"size": size}} for size in (7, 10_000)]


@pytest.mark.parametrize("arrival", PROCESSES, ids=str)
def test_a_stage_has_as_many_requests_as_are_offered_within_it(arrival: Any) -> None:
    r = drawn(arrival=arrival)
    assert np.bincount(r.stage).tolist() == [1000, 2000] and (np.diff(r.arrival_us) >= 0).all()
    assert r.arrival_us[0] >= 0 and r.arrival_us[r.stage == 0].max() <= 200_000_000 <= r.arrival_us[r.stage == 1].min()
    assert r.arrival_us.max() <= 300_000_000


@pytest.mark.parametrize("cv", [0.05, 0.5, 1.0, 2.0])
def test_gamma_gaps_have_the_stated_variation(cv: float) -> None:
    stages = [{"rate": 100.0, "duration_s": 400}]  # 40,000 gaps
    gaps = np.diff(drawn(stages=stages, arrival={"gamma": {"cv": cv}}).arrival_us)
    # A gamma variable has the excess kurtosis 6 cv^2, so the sample's cv has the relative error sqrt((2 + 6 cv^2) / N) / 2
    # of its numerator, and cv / sqrt(N) of its denominator.
    error = ((2 + 6 * cv**2) / N) ** 0.5 / 2 + cv / N**0.5
    assert gaps.std() / gaps.mean() == pytest.approx(cv, rel=FAR * error)


def test_bursts_come_together() -> None:
    r = drawn(stages=[{"rate": 10.0, "duration_s": 105}], arrival={"burst": {"size": 20}})
    times, sizes = np.unique(r.arrival_us, return_counts=True)
    assert sizes.tolist() == [20] * 52 + [10]  # the last one has what is left
    assert times.std() == pytest.approx(105e6 / 12**0.5, rel=0.3)  # spread over the stage


def test_a_stages_own_settings_change_this_stage_alone() -> None:
    own = {"arrival": {"burst": {"size": 5}}, "prompt_len": {"uniform": {"min": 1, "max": 9}}, "output_len": 7}
    plain, r = drawn(), drawn(stages=[STAGES[0], STAGES[1] | own])
    first = r.stage == 0
    np.testing.assert_array_equal(r.arrival_us[first], plain.arrival_us[first])
    assert set(r.input_len[first]) == {100} and set(r.output_len[first]) == {20}
    assert len(np.unique(r.arrival_us[~first])) == 400 and set(r.output_len[~first]) == {7}
    assert set(r.input_len[~first]) == set(range(1, 10))
    w = load(stages=[STAGES[0], STAGES[1] | own]).workload
    assert set(prompt_lengths(w)) == {100, *range(1, 10)} and set(output_lengths(w)) == {20, 7}
    twice = at_rate(w, 2 * 3000 / 300)
    assert [s.rate for s in twice.stages] == [10.0, 40.0] and twice.stages[1].arrival == w.stages[1].arrival


def test_a_group_shares_its_prefix_and_no_prompt_repeats() -> None:
    shared = {"groups": 3, "system_prompt_len": 64, "question_len": {"uniform": {"min": 10, "max": 90}}}
    r = drawn(prompt_len=None, shared_prefix=shared)
    assert r.group[:5].tolist() == [0, 1, 2, 0, 1] and (r.prompt == -1).all() and set(r.shared_len) == {64}
    assert (r.input_len.min(), r.input_len.max()) == (74, 154)
    seen = replay(load(prompt_len=None, shared_prefix=shared, stages=[{"rate": 1.0, "duration_s": 60}]), PROGRAM, 1)
    assert seen.spread(seen.run.cached).tolist() == [0, 0, 0] + [4] * 57


def test_bundled_runs_draw_what_they_always_drew() -> None:
    """By the documented rule: round(rate x duration) sorted uniform times in each stage, prompts in turn."""
    runs = bundled_experiments()
    assert data_hash(runs) == "742ec4eeb3ab9fbb"  # since attention of Llama-4-Scout is counted in 16 bits
    e = next(x for x in runs if x.id == "llama-2-7b-tp1-codegen")
    assert isinstance(e.workload.source, Profile)
    r, rng, start, times = load_of(e, 11).requests, stream(11, zlib.crc32(e.id.encode())), 0.0, []
    for stage in e.workload.stages:
        times.append(start + np.sort(rng.random(round(stage.rate * stage.duration_s))) * stage.duration_s)
        start += stage.duration_s
    np.testing.assert_array_equal(r.arrival_us, (np.concatenate(times) * 1e6).astype(np.int64))
    distinct = e.workload.source.groups * e.workload.source.prompts_per_group
    np.testing.assert_array_equal(r.prompt, np.arange(len(r)) % distinct)
    assert set(r.output_len) == {e.workload.source.output_len.fixed}


SESSION = {"turns": {"uniform": {"min": 1, "max": 5}}, "think_time_s": {"uniform": {"min": 4, "max": 9}}}
QUESTION = {"uniform": {"min": 10, "max": 90}}
CHAT: dict[str, Any] = {"prompt_len": None, "session": SESSION, "output_len": {"uniform": {"min": 5, "max": 40}}}
CHAT |= {"shared_prefix": {"groups": 2, "system_prompt_len": 40, "question_len": QUESTION}}


def turns_of(r: Requests) -> list[np.ndarray]:
    """The rows of every conversation."""
    return [np.flatnonzero(r.prompt == i) for i in range(int(r.prompt.max()) + 1)]


def test_a_turn_begins_with_all_that_was_said() -> None:
    r = drawn(**CHAT)
    conversations = turns_of(r)
    assert len(r) == 3000 == sum(map(len, conversations)) and (np.diff(r.arrival_us) >= 0).all()
    # Turns are 1 to 5, on average 3, with variance 2; at the end of a stage a conversation may be cut short.
    assert len(conversations) == pytest.approx(1000, abs=FAR * (2 / 3000) ** 0.5 / 3 * 3000 + 2)
    for i, rows in enumerate(conversations):
        assert 1 <= len(rows) <= 5 and set(r.group[rows]) == {i % 2} and set(r.shared_len[rows]) == {40}
        questions = np.diff(r.input_len[rows], prepend=40) - np.concatenate([[0], r.output_len[rows][:-1]])
        assert questions.min() >= 10 and questions.max() <= 90
        gaps = np.diff(r.arrival_us[rows]) / 1e6
        assert ((gaps >= 4 - 1e-5) & (gaps <= 9 + 1e-5)).all()
    w = load(**CHAT).workload
    assert longest_request(w) == 40 + 5 * 90 + 5 * 40 >= int((r.input_len + r.output_len).max())
    # Their standard deviation is 110 tokens; those of a conversation, 3 on average, are about alike.
    assert prompt_lengths(w).mean() == pytest.approx(r.input_len.mean(), abs=FAR * 110 / 1000**0.5)


def test_first_turns_arrive_as_the_profile_says_and_later_ones_count_where_they_arrive() -> None:
    r, w = drawn(**CHAT | {"session": {"turns": 4, "think_time_s": 30}}), load(**CHAT).workload
    first = np.array([rows[0] for rows in turns_of(r)])
    assert np.bincount(r.stage[first]).tolist() == [250, 500]  # a quarter of what is offered
    late = r.arrival_us >= 200_000_000
    np.testing.assert_array_equal(r.stage, late)
    counts = np.bincount(r.stage)
    assert rates(w, r) == pytest.approx([counts[0] / 200, counts[1] / 100]) and counts.sum() == 3000


def test_conversations_of_one_turn_are_single_requests() -> None:
    one, plain = drawn(session={"turns": 1, "think_time_s": 5}), drawn()
    for name in ("arrival_us", "stage", "input_len", "output_len"):
        np.testing.assert_array_equal(getattr(one, name), getattr(plain, name))


def test_a_turn_finds_the_whole_blocks_of_the_turn_before_it() -> None:
    """At a low load, in an ample cache, every answer is complete long before the next turn."""
    e = load(**CHAT | {"stages": [{"rate": 2.0, "duration_s": 60}]})
    seen, r = replay(e, PROGRAM, 1), load_of(e, 1).requests
    cached = seen.spread(seen.run.cached)
    for rows in turns_of(r):
        said = r.input_len[rows[:-1]] + r.output_len[rows[:-1]]
        assert cached[rows[1:]].tolist() == (said // 16).tolist()
        assert cached[rows[0]] == (0 if rows[0] in [t[0] for t in turns_of(r)[:2]] else 40 // 16)
    assert seen.run.preemptions == 0 and seen.completed.all()


@pytest.mark.parametrize(("blocks", "preempting"), [(60, True), (200, False), (100_000, False)])
def test_conversations_are_replayed_as_by_the_plain_clock(blocks: int, preempting: bool) -> None:
    """At a high load: turns come before the answer to the one before, and prompts are evicted, or even preempted."""
    session = SESSION | {"think_time_s": {"uniform": {"min": 0, "max": 0.5}}}
    whole = CHAT | {"stages": [{"rate": 30.0, "duration_s": 6}], "session": session}
    engine = {"max_num_seqs": 16, "max_num_batched_tokens": 300, "total_kv_blocks": blocks}
    e = experiment(Path(), {k: v for k, v in whole.items() if v is not None}, engine=engine)
    load, seen = load_of(e, 1), replay(e, PROGRAM, 1)
    plain = host(load.requests, seen.queueing_us.tolist(), load.limits, step_function(PROGRAM, e.facts))
    assert [r.cached for r in plain.requests] == seen.spread(seen.run.cached).tolist()
    np.testing.assert_array_equal([r.first for r in plain.requests], seen.spread(seen.run.first_us))
    assert (seen.run.preemptions > 0) == preempting and seen.run.preemptions == plain.preemptions


def test_many_turns_of_many_requests_need_no_more_memory_than_requests() -> None:
    """Ten thousand turns of each of 50,000 requests would be 4 GB."""
    r = drawn(
        stages=[{"rate": 1000.0, "duration_s": 50}],
        prompt_len=1,
        output_len=1,
        session={"turns": 10_000, "think_time_s": 1},
    )
    assert len(r) == 50_000 and r.prompt.max() == 4 and r.input_len.max() == 2 * 10_000 - 1
