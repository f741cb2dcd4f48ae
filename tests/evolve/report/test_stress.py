"""Runs under a changed engine, on traces whose truth is known."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from evaluator.fit.fit import fit_set
from evaluator.score import error_rows, score_set
from evolve.calibrate.drift import refitted
from evolve.report.stress import steps_longer, under
from simulator.clock.replay import replay
from simulator.language.complete import complete
from simulator.language.ir import Program
from simulator.language.parse import parse
from simulator.serving.bundled import bundled_experiments
from simulator.serving.experiment import Experiment
from simulator.serving.observations import measured
from simulator.serving.trace import Recorded, Trace, windows
from simulator.serving.workload import Stage, Workload, stages_of

TEXT = """
def step_time(b, s, *, base=4000.0, each=25.0, chunk=30.0, kv=0.35):
    return base + each * b.decode_reqs + chunk * b.prefill_tokens + kv * b.kv_sum
def queueing_time(r, s, *, alpha=3000.0, per=2.0): return alpha + per * r.input_len
"""
TRUTH = complete(parse(TEXT))
LONGER_US = 3000.0
SLOWER = steps_longer(TRUTH, LONGER_US)
BASE = {e.id: e for e in bundled_experiments()}["llama-2-7b-tp1-general"]
ALL = range(len(TRUTH.theta))


def traced(program: Program) -> Experiment:
    """The requests of a shipped load at 4 requests/s as a trace that recorded what `program` gives."""
    e = replace(BASE, workload=replace(BASE.workload, stages=(Stage(4.0, 240.0),)), observed=None)
    run = replay(e, program, 7)
    requests = replace(run.requests, stage=windows(run.requests.arrival_us))
    trace = Trace("t", "d", requests, Recorded(run.e2e_us / 1e3, run.ttft_us / 1e3))
    stages = stages_of(trace)
    return replace(e, workload=Workload("t", stages, trace, True, None), observed=measured(trace, len(stages)))


@pytest.fixture(scope="module")
def before() -> Experiment:
    return traced(TRUTH)


@pytest.fixture(scope="module")
def moved(before: Experiment) -> Experiment:
    return under([before], TRUTH, SLOWER)[0]


def test_recorded_requests_move_as_under_longer_steps(moved: Experiment) -> None:
    truth = traced(SLOWER)
    ours, theirs = moved.workload.source, truth.workload.source
    assert isinstance(ours, Trace) and isinstance(theirs, Trace) and ours.recorded and theirs.recorded
    np.testing.assert_allclose(ours.recorded.e2e_ms, theirs.recorded.e2e_ms, rtol=1e-9)
    np.testing.assert_allclose(ours.recorded.ttft_ms, theirs.recorded.ttft_ms, rtol=1e-9)
    assert moved.observed == measured(ours, len(moved.workload.stages))


def test_a_fit_to_a_trace_of_a_changed_engine_takes_the_change_up(moved: Experiment) -> None:
    (off,) = error_rows(TRUTH, score_set([moved]))
    assert off.e2e is not None and off.e2e < -20.0
    program = refitted(TRUTH, fit_set([moved]), ALL)
    (again,) = error_rows(program, score_set([moved]))
    assert again.e2e is not None and abs(again.e2e) < 0.5
    assert program.theta[0] > TRUTH.theta[0] + 0.75 * LONGER_US


def test_requests_without_a_first_token_move_by_their_e2e_alone(before: Experiment) -> None:
    source = before.workload.source
    assert isinstance(source, Trace) and source.recorded
    blind = replace(source, recorded=Recorded(source.recorded.e2e_ms, np.full_like(source.recorded.ttft_ms, np.nan)))
    stages = len(before.workload.stages)
    e = replace(before, workload=replace(before.workload, source=blind), observed=measured(blind, stages))
    (changed,) = under([e], TRUTH, SLOWER)
    later = changed.workload.source
    assert isinstance(later, Trace) and later.recorded
    truth = replay(e, SLOWER, 1).e2e_us / 1e3
    np.testing.assert_allclose(later.recorded.e2e_ms, truth, rtol=1e-9)


def test_figures_that_a_file_has_beside_its_trace_move_with_the_prediction(before: Experiment) -> None:
    assert before.observed and before.observed.summary and before.observed.summary.e2e_ms.mean
    summary = replace(before.observed.summary, e2e_ms=replace(before.observed.summary.e2e_ms, mean=1234.0))
    e = replace(before, observed=replace(before.observed, summary=summary))
    (changed,) = under([e], TRUTH, SLOWER)
    ratio = traced(SLOWER).observed.summary.e2e_ms.mean / before.observed.summary.e2e_ms.mean  # type: ignore
    assert changed.observed and changed.observed.summary
    assert changed.observed.summary.e2e_ms.mean == pytest.approx(1234.0 * ratio)
