"""Intervals: scales by hand, figures that were not measured, and disagreement."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from laws import law

from evaluator.intervals import (
    PACES,
    STATISTICS,
    Residual,
    Scale,
    bands,
    disagreements,
    figure_of,
    interval,
    scales,
    slowed,
    waiting_share,
)
from evaluator.metrics import WAITING
from evaluator.score import predictions, score_set
from evolve.plan.slo import NAMES, SloLimit
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


def test_a_level_is_a_quantile_of_students_t() -> None:
    """1.372 and 2.228 are those of ten degrees of freedom in every table of t, two-sided."""
    scale = Scale(0.03, 2.0, 10)
    assert scale.half_width(0.0, 0.8) == pytest.approx(1.372 * 2.0 * 0.03, rel=1e-3)
    assert scale.half_width(0.04, 0.95) == pytest.approx(2.228 * 2.0 * 0.05, rel=1e-3)  # 3, 4, 5
    assert scale.deviation(0.04) == pytest.approx(0.1)


def test_each_fold_has_the_same_weight_in_a_scale() -> None:
    """Mean squares 0.0017 of two runs and 0.0001 of one: 0.0009 = 0.03**2, however many runs each fold has."""
    runs = [residual(-0.03, 0.04, "a", "1"), residual(0.05, 0.04, "a", "2"), residual(0.01, 0.04, "b", "3")]
    found = scales(runs)["e2e"]
    assert (found.floor, found.quotient) == pytest.approx((0.03, 0.03 / 0.05)) and found.folds == 2
    again = scales([*runs, residual(0.01, 0.04, "b", "4")])["e2e"]
    assert (again.floor, again.quotient) == pytest.approx((found.floor, found.quotient))
    assert scales([]) == {}
    low, high = interval(200.0, 0.04, found, 0.8)
    half = 1.8856 * 0.03  # t of two degrees of freedom
    assert (math.log(200.0 / low), math.log(high / 200.0)) == pytest.approx((half, half), rel=1e-4)


def test_a_figure_is_calibrated_by_three_folds_of_its_load() -> None:
    def found(*folds: str, closed: bool | None = None, own: bool = False) -> Scale:
        runs = [replace(residual(0.1, 0.0, fold, fold), closed=own) for fold in folds]
        return scales(runs, closed)["e2e"]

    assert found("a", "b", "c").calibrated and not found("a", "b").calibrated
    assert found("a", "b", "c", closed=True, own=True).calibrated
    assert not found("a", "b", "c", closed=True).calibrated
    twice = found(*(f"{kind} without {x}" for kind in ("models", "cells") for x in "ab"))  # the same runs again
    assert twice.folds == 2 and not twice.calibrated


def test_a_figure_that_no_run_measured_has_twice_the_nearest_ones_width() -> None:
    """E2E and its p99 were measured: nearest to a p90 is the p99, to a p50 and to any ITL the mean."""
    runs = []
    for i in range(3):
        run = residual(0.1, 0.0, f"fold {i}", f"run {i}")
        more = {"e2e_p99": (0.3, 0.0), "e2e_p50": (None, 0.0), "e2e_p90": (None, 0.0), "itl": (None, 0.0)}
        ratios, spreads = ({name: pair[j] for name, pair in more.items()} for j in (0, 1))
        runs.append(replace(run, log_ratio={**run.log_ratio, **ratios}, spread={**run.spread, **spreads}))
    found = scales(runs)
    assert list(found) == list(STATISTICS) and {n for n, s in found.items() if s.calibrated} == {"e2e", "e2e_p99"}
    own = {"e2e_p50": "e2e", "e2e_p90": "e2e_p99", "itl": "e2e", "itl_p99": "e2e_p99", "ttft_p90": "e2e_p99"}
    for name, nearest in own.items():
        assert found[name].half_width(0.02, 0.8) == pytest.approx(2.0 * found[nearest].half_width(0.02, 0.8))
    assert bands(100.0, 0.0, found["e2e"]).calibrated and not bands(100.0, 0.0, found["itl"]).calibrated


def test_figures_are_all_that_a_limit_can_name() -> None:
    assert {SloLimit(*name.split("_"), 1.0).figure for name in NAMES} == set(STATISTICS)


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
