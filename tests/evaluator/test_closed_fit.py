"""Fits on closed loads: their mean field, its slopes, and constants recovered from runs of a simulated engine."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from evaluator.fit.fit import FIT_SEED, fit, fit_set
from evaluator.fit.problem import problem_of, with_slopes
from evaluator.fit.uncertainty import uncertainty
from evaluator.score import predictions, score_set
from simulator.language.complete import complete
from simulator.language.ir import Program
from simulator.language.parse import parse
from simulator.serving.distribution import Distribution
from simulator.serving.experiment import Experiment, deploy
from simulator.serving.observations import Observed
from simulator.serving.spec import Spec
from simulator.serving.workload import Profile

LAW = """
def step_time(b, s, *, weights: one = {}, kv: one = {}, tokens: us/token = {}, layer: us = {}):
    return weights * b.weight_read_us + kv * b.kv_read_us + tokens * b.prefill_tokens + layer * s.layers


def queueing_time(r, s, *, base: us = {}): return base


def output_token_time(s): return 0


def completion_time(s): return 0
"""
TRUE = (1.15, 1.4, 21.0, 40.0, 6000.0)


def law(*values: float) -> Program:
    return complete(parse(LAW.format(*values)))


def closed(tp: int, users: int, prompt: int, output: int, model: str = "llama-3.1-8b", **engine: Any) -> Experiment:
    """So many clients, with lengths from 0.8 of these to all of them, as public benchmarks draw them."""
    spec = Spec.of(model, "H100", prompt_len=prompt, output_len=output, tp=tp, concurrency=users)
    profile = spec.workload.source
    assert isinstance(profile, Profile)
    lengths = [Distribution("uniform", low=int(0.8 * most), high=most) for most in (prompt, output)]
    load = replace(spec.workload, source=replace(profile, question_len=lengths[0], output_len=lengths[1]))
    ident = f"{model}-{tp}-{users}-{prompt}-{output}-{'-'.join(map(str, engine.values()))}"
    return replace(deploy(spec.vary(workload=load, max_num_batched_tokens=8192, **engine)), id=ident)


RUNS = [closed(*c) for c in ((1, 1, 1000, 200), (1, 4, 4000, 200), (1, 16, 1000, 500), (1, 64, 1000, 200))]
RUNS += [closed(*c) for c in ((2, 2, 4000, 200), (2, 8, 1000, 200), (2, 32, 2000, 300), (4, 16, 4000, 100))]


def test_the_mean_field_is_near_replays_of_every_closed_run() -> None:
    """E2E and ITL are within 2 %, TTFT within 20 %: where a request comes within a step is taken to be anywhere."""
    program = law(*TRUE)
    means = problem_of(program, fit_set(measured(RUNS, program, 1, 0.0))).predict(np.array(TRUE))
    told = [p.predicted.summary for p in predictions(program, score_set(RUNS, [FIT_SEED]))]
    for row, run in zip(means, told, strict=True):
        assert run is not None
        ratios = row / [run.e2e_ms.mean, run.ttft_ms.mean, run.itl_ms.mean]
        np.testing.assert_allclose(ratios, 1.0, atol=0.2)
        np.testing.assert_allclose(ratios[[0, 2]], 1.0, atol=0.02)


def test_the_mean_field_of_ranks_is_near_their_replays() -> None:
    """Of replicas, and of ranks that step together, where one with a prompt is the slowest."""
    experts = ({"data_parallel": ranks, "expert_parallel": tp * ranks} for tp, ranks in ((1, 4), (2, 2), (1, 8)))
    shapes = ((1, 64, 1000, 200), (2, 16, 4000, 200), (1, 256, 1000, 200))
    runs = [closed(*shape, "mixtral-8x7b", **engine) for shape, engine in zip(shapes, experts, strict=True)]
    runs.append(closed(1, 64, 1000, 200, data_parallel=4))
    program = law(*TRUE)
    means = problem_of(program, fit_set(measured(runs, program, 1, 0.0))).predict(np.array(TRUE))
    for row, p in zip(means, predictions(program, score_set(runs, [FIT_SEED])), strict=True):
        run = p.predicted.summary
        assert run is not None
        np.testing.assert_allclose(row / [run.e2e_ms.mean, run.ttft_ms.mean, run.itl_ms.mean], 1.0, atol=0.1)


DRAFTS: dict[str, Any] = {"speculative_method": "eagle", "num_speculative_tokens": 3}


def drafting(acceptance: float) -> list[Experiment]:
    """Closed loads, and one of 8 requests/s, under an engine that drafts."""
    engine = {**DRAFTS, "speculative_acceptance": acceptance}
    runs = [closed(*shape, **engine) for shape in ((1, 1, 1000, 200), (1, 16, 1000, 500), (1, 64, 1000, 200))]
    return [*runs, deploy(Spec.of("llama-3.1-8b", "H100", rate=8, prompt_len=500, output_len=200, **engine))]


@pytest.mark.parametrize("acceptance", [0.0, 0.35, 1.0])
def test_the_mean_field_of_drafts_is_near_their_replays(acceptance: float) -> None:
    """E2E and ITL, with a time for each token, of which a step emits several."""
    runs = drafting(acceptance)
    program = parse(LAW.format(*TRUE).replace("output_token_time(s): return 0", "output_token_time(s): return 50"))
    data = fit_set(measured(runs, complete(program), 1, 0.0))
    for row, p in zip(
        problem_of(complete(program), data).predict(np.array(complete(program).theta)),
        predictions(complete(program), score_set(runs, [FIT_SEED])),
        strict=True,
    ):
        run = p.predicted.summary
        assert run is not None
        np.testing.assert_allclose(row[[0, 2]] / [run.e2e_ms.mean, run.itl_ms.mean], 1.0, atol=0.04)


def test_its_slopes_with_drafts_are_differences() -> None:
    program = law(*TRUE)
    problem, phi = problem_of(program, fit_set(measured(drafting(0.35), program, 1, 0.0))), np.array(TRUE)
    slopes = with_slopes(problem.machine, phi, False)[1]
    for j in range(phi.size):
        h = 1e-6 * phi[j] * np.eye(phi.size)[j]
        differences = (problem.predict(phi + h) - problem.predict(phi - h)) / (2e-6 * phi[j])
        np.testing.assert_allclose(slopes[j], differences, rtol=1e-4, atol=1e-9)


def test_its_slopes_are_differences() -> None:
    program = law(*TRUE)
    problem = problem_of(program, fit_set(measured(RUNS, program, 1, 0.0)))
    phi = np.array(TRUE)
    slopes = with_slopes(problem.machine, phi, False)[1]
    for j in range(phi.size):
        h = 1e-6 * phi[j]
        up, down = phi.copy(), phi.copy()
        up[j], down[j] = phi[j] + h, phi[j] - h
        differences = (problem.predict(up) - problem.predict(down)) / (2 * h)
        np.testing.assert_allclose(slopes[j], differences, rtol=1e-5, atol=1e-9)


def measured(runs: list[Experiment], program: Program, seed: int, noise: float) -> list[Experiment]:
    """The runs as the program times them under another draw of the lengths, each latency off by some noise."""
    rng, found = np.random.default_rng(seed), []
    for e, p in zip(runs, predictions(program, score_set(runs, [100 + seed])), strict=True):
        run = p.predicted.summary
        assert run is not None
        off = np.exp(noise * rng.standard_normal(2))
        ttft, itl = run.ttft_ms.mean * off[0], run.itl_ms.mean * off[1]  # type: ignore[operator]
        changed = {"ttft_ms": replace(run.ttft_ms, mean=ttft), "itl_ms": replace(run.itl_ms, mean=itl)}
        e2e = (run.e2e_ms.mean or 0.0) + ttft - run.ttft_ms.mean + (run.e2e_ms.mean - run.ttft_ms.mean) * (off[1] - 1.0)  # type: ignore[operator]
        summary = replace(run, **changed, e2e_ms=replace(run.e2e_ms, mean=e2e))
        found.append(replace(e, observed=Observed(summary, ()), quality="clean"))
    return found


def test_constants_of_closed_runs_are_recovered() -> None:
    """Six simulated sets of measurements with 1 % of noise: nine of ten constants are within two standard errors."""
    within = []
    for seed in range(6):
        data = fit_set(measured(RUNS, law(*TRUE), seed, 0.01))
        found = fit(law(1.0, 1.0, 10.0, 10.0, 2000.0), data).program
        errors = [c.standard_error for c in uncertainty(found, data)]
        within += [abs(x - true) <= 2 * error for x, true, error in zip(found.theta, TRUE, errors, strict=True)]
    assert np.mean(within) >= 0.9


def test_the_stages_of_clients_that_give_up_are_those_of_patient_ones() -> None:
    """At 10 ms a token none of these answers would come within a second."""
    e = RUNS[2]
    hasty = replace(e, workload=replace(e.workload, timeout_s=1.0))
    [row], [other] = fit_set([hasty]).stages.table, fit_set([e]).stages.table
    np.testing.assert_array_equal(row, other)
