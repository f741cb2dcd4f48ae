"""Intervals: quantiles and scales by hand, coverage of residuals of a known distribution, and disagreement."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from laws import law

from evaluator.intervals import (
    PACES,
    STATISTICS,
    Residual,
    Scale,
    coverage,
    disagreements,
    figure_of,
    interval,
    scales,
    slowed,
    waiting_share,
)
from evaluator.metrics import WAITING
from evaluator.score import predictions, score_set
from simulator.serving.bundled import bundled_experiments
from simulator.serving.engine import Engine
from simulator.serving.known import facts_of

RUNS = {e.id: e for e in bundled_experiments()}
CALM = RUNS["llama-2-70b-tp4-codegen"]
OURS = law("def step_time(b, s, *, base: us = 15000.0, layer: us = 30.0): return base + layer * s.layers")


def residual(log_ratio: float, spread: float, fold: str = "f", experiment: str = "e") -> Residual:
    """One that has an E2E mean and nothing else."""
    nothing: dict[str, float | None] = dict.fromkeys(STATISTICS)
    return Residual(fold, experiment, nothing | {"e2e": log_ratio}, nothing | {"e2e": spread})


def test_a_level_is_a_quantile_with_room_for_the_new_run() -> None:
    scale = Scale(tuple(float(q) for q in range(1, 20)), 0.03)  # 19 quotients: 1 to 19
    assert scale.half_width(0.0, 0.8) == pytest.approx(16 * 0.03)  # the ceil(20 x 0.8)-th
    assert scale.half_width(0.0, 0.95) == pytest.approx(19 * 0.03)  # the ceil(20 x 0.95)-th
    assert scale.half_width(0.04, 0.8) == pytest.approx(16 * 0.05)  # 3, 4, 5
    few = Scale((1.0, 2.0, 3.0), 0.03)
    assert few.half_width(0.0, 0.95) == few.half_width(0.0, 0.8) == pytest.approx(3 * 0.03)


def test_the_scale_is_the_median_residual_and_the_spread() -> None:
    found = scales([residual(-0.04, 0.03), residual(0.04, 0.0), residual(0.1, 0.03), residual(math.nan, 0.0)][:3])
    assert list(found) == ["e2e"] and found["e2e"].floor == pytest.approx(0.04)
    assert found["e2e"].quotients == pytest.approx((0.04 / 0.05, 1.0, 0.1 / 0.05))
    assert scales([]) == {}
    low, high = interval(200.0, 0.03, found["e2e"], 0.8)
    assert (math.log(200.0 / low), math.log(high / 200.0)) == pytest.approx((0.1, 0.1))  # 2 x hypot(0.04, 0.03)


def test_intervals_cover_as_often_as_they_say() -> None:
    rng = np.random.default_rng(19)
    spreads = rng.uniform(0.01, 0.1, 400)
    drawn = rng.normal(0.0, np.hypot(0.02, spreads))
    pairs = enumerate(zip(drawn, spreads, strict=True))
    runs = [residual(float(x), float(s), f"fold {i % 20}", f"run {i}") for i, (x, s) in pairs]
    found = coverage(runs, runs)
    assert found["e2e"].runs == 400
    # Four standard deviations of a binomial share of 400 are 0.08 and 0.044.
    assert found["e2e"].covered_80 == pytest.approx(0.8, abs=0.08)
    assert found["e2e"].covered_95 == pytest.approx(0.95, abs=0.044)
    assert found["e2e"].width_80_pct < found["e2e"].width_95_pct


def test_no_residual_is_judged_by_its_own_fold_or_run() -> None:
    huge = [residual(0.5, 0.0, "a", "x"), residual(0.5, 0.0, "a", "y"), residual(0.5, 0.0, "b", "x")]
    small = [residual(0.01, 0.0, "b", "z"), residual(0.01, 0.0, "c", "w")]
    # x in fold a is judged by z and w alone: by y it would be covered
    first, second = [*huge[:2], *small], [huge[0], huge[2], small[1]]
    assert coverage(first, first)["e2e"].covered_95 == pytest.approx(2 / 4)
    assert coverage(second, second)["e2e"].covered_95 == pytest.approx(1 / 3)  # only w, by both x
    assert coverage(huge[:1], huge[:1]) == {}


def test_a_slowed_program_is_slower_in_every_branch() -> None:
    text = "def step_time(b, s, *, base: us = 15000.0):\n if b.prefill_reqs > 0: return {} * base\n return {} * base"
    programs = slowed(law(text.format(4, 3)), 2.0), law(text.format(8, 6))
    ours, theirs = (predictions(p, score_set([CALM], [1])) for p in programs)
    assert ours == theirs


@pytest.mark.parametrize("last_stage", [False, True])
def test_disagreements_are_those_of_predictions(last_stage: bool) -> None:
    text = "def step_time(b, s, *, base: us = {}): return base + b.weight_read_us"
    program, member = law(text.format(2e3)), law(text.format(3e3))
    experiments = [CALM, RUNS["llama-2-7b-tp1-roleplay"]]
    assert {len(e.workload.stages) for e in experiments} == {1, 2}
    every = (program, member, *(slowed(program, factor) for factor in PACES))
    columns = zip(*(predictions(p, score_set(experiments, [1])) for p in every), strict=True)
    doubts = disagreements(program, [member], experiments, 1, last_stage=last_stage)
    for doubt, found in zip(doubts, columns, strict=True):
        runs = [p.predicted.stages[-1] if last_stage else p.predicted.summary for p in found]
        for name in STATISTICS:
            ours, *theirs = (figure_of(run, name) or math.nan for run in runs)
            logs = [math.log(x / ours) for x in theirs]
            assert doubt.spread[name] == math.sqrt(sum(x * x for x in logs) / len(logs))
        assert doubt.saturated == sum(waiting_share(p) > WAITING for p in found) / len(found)


def test_an_ensemble_of_ourselves_disagrees_by_paces_alone() -> None:
    [alone] = disagreements(OURS, [], [CALM], 1)
    [with_us] = disagreements(OURS, [OURS, OURS], [CALM], 1)
    # Half of four members do not differ, so the mean square is half as large.
    assert with_us.spread["e2e"] == pytest.approx((alone.spread["e2e"] or 0.0) / math.sqrt(2.0))
    assert alone.spread["itl"] == pytest.approx(abs(math.log(PACES[1])), rel=0.1)
    assert alone.saturated == 0.0
    slower = law("def step_time(b, s, *, base: us = 18750.0, layer: us = 37.5): return base + layer * s.layers")
    [apart] = disagreements(OURS, [slower], [CALM], 1)  # all steps 1.25 times as long
    assert (apart.spread["itl"] or 0.0) > 0.55 * math.log(1.25)


def test_members_that_read_kernels_stay_away_where_there_are_none() -> None:
    bare = replace(CALM, facts=facts_of("llama-3.1-8b", "H100-NVL", Engine()))  # a GPU without measured kernels
    reads = law("def step_time(b, s, *, base: us = 15000.0): return base + b.kernel_gemm_us")
    assert disagreements(OURS, [reads], [bare], 1) == disagreements(OURS, [], [bare], 1)
    assert disagreements(OURS, [reads], [CALM], 1) != disagreements(OURS, [], [CALM], 1)
    assert disagreements(OURS, [reads], [], 1) == []


def test_the_saturated_share_counts_the_programs_under_which_requests_wait() -> None:
    crowded = replace(CALM, engine=replace(CALM.engine, max_num_seqs=8), facts={**CALM.facts, "max_num_seqs": 8.0})
    waits = predictions(OURS, score_set([crowded], [1]))[0]
    assert waiting_share(waits) > WAITING > waiting_share(predictions(OURS, score_set([CALM], [1]))[0])
    fast = law("def step_time(b, s, *, base: us = 100.0): return base")
    [doubt] = disagreements(OURS, [fast], [crowded], 1)
    assert doubt.saturated == pytest.approx(3 / 4)  # ours and its two paces, not the fast one
