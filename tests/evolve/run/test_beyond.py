"""Values outside the ranges of fitted runs: a line for each, none for an unknown range, and factors."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from evaluator.score import Prediction, predictions, score_set
from evolve.run.beyond import factors, outside
from evolve.run.program import load
from evolve.run.ranges import Ranges, in_flight, ranges_of
from simulator.serving.bundled import bundled_experiments, experiments_from_mapping
from simulator.serving.experiment import Experiment
from simulator.serving.facts import Facts
from simulator.serving.observations import Observation, Statistic
from simulator.serving.workload import Stage

RUNS = {e.id: e for e in bundled_experiments()}
LLAMA = RUNS["llama-2-7b-tp1-codegen"]
ROLEPLAY = RUNS["llama-2-7b-tp1-roleplay"]
SCOUT = RUNS["20-llama-4-scout-17b-16e-tp2-codegen-2"]
PROGRAM = load("floor").complete


def plan(model: str = "llama-2-7b", prompt: dict[str, Any] | None = None, **engine: Any) -> Experiment:
    """A light load on one H100; its prompts are its own unless `prompt` says otherwise."""
    workload = {"name": "x", "stages": [{"rate": 1.0, "duration_s": 60.0}], "output_len": 20}
    workload |= prompt or {"prompt_len": 600}
    entry = {"id": "plan", "model": model, "hardware": "H100", "engine": engine, "workload": workload}
    raw = {"version": 1, "experiments": [entry]}
    return experiments_from_mapping(raw, "plan.yaml")[0]


def predicted(experiment: Experiment) -> Prediction:
    return predictions(PROGRAM, score_set([experiment], seeds=(1,)))[0]


def lines_of(fitted: list[Experiment], experiment: Experiment) -> list[str]:
    return outside([ranges_of(fitted)], experiment, predicted(experiment))


# Fitted runs, the planned one, and every line about it.
CASES = [
    ([LLAMA], LLAMA, ""),
    (
        [LLAMA],
        plan("mixtral-8x7b", tensor_parallel=2),
        """tp 2 not among the fitted [1]
        a model of 46.7 billion parameters: the fitted runs have at most 6.7
        12.9 billion parameters active per token: the fitted runs have at most 6.7
        a mixture of experts: the fitted models are dense
        KV offload to CPU is off: the fitted runs have it on
        19 of 20 requests bring at most 600 uncached prompt tokens into a step: in the fitted runs 496""",
    ),
    (
        [SCOUT],
        plan("llama-2-7b", {"prompt_len": 16}),
        """vocabulary 32000 outside the fitted 202048 to 202048
        tp 1 not among the fitted [2]
        a model of 6.7 billion parameters: the fitted runs have at least 107.8
        6.7 billion parameters active per token: the fitted runs have at least 17.2
        a dense model: the fitted models are mixtures of experts
        16-bit weights not among the fitted fp8
        prompts of 16 tokens: the fitted runs have at least 566""",
    ),
    (  # a step has room for no more than 1024 tokens
        [ROLEPLAY],
        plan("llama-2-7b", {"prompt_len": 3000}, kv_cpu_offload=True, max_num_batched_tokens=1024),
        """prompts of 3000 tokens: the fitted runs have at most 786
        19 of 20 requests bring at most 1024 uncached prompt tokens into a step: in the fitted runs 2
        max_num_batched_tokens 1024: the fitted runs have at least 2048""",
    ),
    (
        [SCOUT],
        replace(SCOUT, engine=replace(SCOUT.engine, kv_cpu_offload=True)),
        "KV offload to CPU is on: the fitted runs have it off",
    ),
    ([LLAMA], replace(LLAMA, weight_bits=4), "4-bit weights not among the fitted 16-bit"),
    (
        [SCOUT],
        replace(SCOUT, hardware="H200-SXM-141GB", engine=replace(SCOUT.engine, max_num_batched_tokens=8192)),
        """GPU H200-SXM-141GB not among the fitted H100-SXM-80GB
        max_num_batched_tokens 8192: the fitted runs have at most 2048""",
    ),
]


@pytest.mark.parametrize(("fitted", "planned", "lines"), CASES)
def test_each_value_outside_the_fitted_runs_is_a_line(
    fitted: list[Experiment], planned: Experiment, lines: str
) -> None:
    assert lines_of(fitted, planned) == [line.strip() for line in lines.splitlines()]


def test_fp8_weights_of_a_mixture_do_not_cover_a_dense_model() -> None:
    """Other kernels multiply its experts. Without a dense model the architecture has its line; a mixture has none."""
    of = replace(LLAMA, facts=Facts({**LLAMA.facts, "is_fp8": 1.0}, LLAMA.facts.deployed, where=LLAMA.facts.where))
    said = "fp8 weights of a dense model not among the fitted 16-bit"
    assert lines_of([LLAMA, SCOUT], of) == [said] and lines_of([LLAMA, of, SCOUT], of) == []
    assert lines_of([LLAMA], of) == ["fp8 weights not among the fitted 16-bit"]
    assert lines_of([LLAMA, SCOUT], SCOUT) == []
    assert not any("weights" in line for line in lines_of([SCOUT], of))
    old = replace(ranges_of([LLAMA, SCOUT]), dense_weights=None)  # as in older records
    assert outside([old], of, predicted(of)) == []


def test_five_percent_beyond_the_fitted_is_not_outside() -> None:
    known = Ranges(prompt_tokens=(100.0, 200.0))
    for tokens, limit in ((95, "at least 100"), (96, ""), (210, ""), (211, "at most 200")):
        near = plan("llama-2-7b", {"prompt_len": tokens})
        said = [f"prompts of {tokens} tokens: the fitted runs have {limit}"] if limit else []
        assert outside([known], near, predicted(near)) == said


def test_engine_switches_and_requests_in_flight_unlike_all_fitted_runs_are_a_line_each() -> None:
    of_llama = predicted(LLAMA)
    known = Ranges(chunked_prefill=(True,), prefix_caching=(True, False))
    whole = replace(LLAMA, engine=replace(LLAMA.engine, chunked_prefill=False, prefix_caching=False))
    chunks, caching = (f"{what} is off: the fitted runs have it on" for what in ("chunked prefill", "prefix caching"))
    assert outside([known], whole, of_llama) == [chunks] and outside([known], LLAMA, of_llama) == []
    assert outside([replace(known, prefix_caching=(True,))], whole, of_llama) == [chunks, caching]
    lines = outside([Ranges(requests_in_flight=(1.0, 2.0))], LLAMA, of_llama)
    assert len(lines) == len(LLAMA.workload.stages)
    assert lines[0].startswith("stage 1: ") and lines[0].endswith(
        " requests are in flight: the fitted runs have at most 2"
    )
    # a queue holds at most the requests of its stage: of 240 requests/s for 30 s, each an hour long, 7,200
    hour, short = (Observation(Statistic(mean=ms), Statistic(), Statistic()) for ms in (3.6e6, 2000.0))
    assert in_flight(Stage(240.0, 30.0), hour) == 7200 and in_flight(Stage(10.0, 30.0), short) == 20


def test_fits_cover_a_load_together_but_a_deployment_alone() -> None:
    """A run with Llama's model and Scout's TP degree is on neither's deployment; its prompts lie between theirs."""
    fits = [ranges_of([LLAMA]), ranges_of([SCOUT])]
    assert outside(fits, LLAMA, predicted(LLAMA)) == [] and outside(fits, SCOUT, predicted(SCOUT)) == []
    between = plan("llama-2-7b", {"prompt_len": 580}, tensor_parallel=2, kv_cpu_offload=True)
    assert outside(fits, between, predicted(between)) == [
        "tp 2 not among the fitted [1]",  # by Llama's ranges, which it lies closer to
        "19 of 20 requests bring at most 580 uncached prompt tokens into a step: in the fitted runs 496",
    ]
    loads = [Ranges(prompt_tokens=(100.0, 200.0)), Ranges(prompt_tokens=(700.0, 800.0), uncached_step_tokens=580)]
    assert outside(loads, between, predicted(between)) == []
    assert outside([], between, predicted(between)) == []


def test_factors_beyond_the_fitted_runs_are_by_range() -> None:
    """Prompts of 50 to 600 tokens next to 100 to 200, TP 2 next to 1, half of the default of 2,048 tokens a step."""
    fitted = [ranges_of([plan(prompt={"prompt_len": {"uniform": {"min": 100, "max": 200}}})])]
    wide = {"prompt_len": {"uniform": {"min": 50, "max": 600}}}
    long = plan(prompt=wide, tensor_parallel=2, max_num_batched_tokens=1024)
    found = factors(fitted, long, predicted(long))
    assert found["prompt_tokens"] == pytest.approx((50 + 0.95 * 550) / 200, rel=0.02)  # the 95th percentile
    assert found["tp"] == 2.0 and found["max_num_batched_tokens"] == 2.0 and found["vocab"] == 1.0
    both = [*fitted, ranges_of([long])]
    assert set(factors(both, long, predicted(long)).values()) == {1.0}
    assert factors([Ranges()], long, predicted(long)) == {} and outside([Ranges()], long, predicted(long)) == []
    # a lighter load than was fitted is not beyond
    calm, p = plan(), predicted(plan())
    flight = calm.workload.stages[0].rate * (p.predicted.stages[0].e2e_ms.mean or 0.0) / 1e3
    for span, factor in (((2 * flight, 3 * flight), 1.0), ((0.0, flight / 4), 4.0)):
        found = factors([Ranges(requests_in_flight=span)], calm, p)
        assert found == {"requests_in_flight": pytest.approx(factor)}
    assert factors([Ranges(prompt_tokens=(1200.0, 1800.0))], calm, p) == {"prompt_tokens": 1.0}
