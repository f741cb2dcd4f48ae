"""Warnings of a prediction: a line for each value outside the fitted runs, none for what a record does not have."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from evaluator.experiments import bundled_experiments, data_hash, hardware_table, model_table
from evaluator.fit.fit import FIT_SEED
from evaluator.fit.stages import paced
from evaluator.metrics import evicted, new_tokens, step_tokens
from evaluator.score import Prediction, predictions, score_set
from evolve.program.beware import warnings
from evolve.run.program import load
from evolve.run.ranges import Ranges, factors, outside, ranges_of, read_ranges, weights
from simulator.errors import InputError, Section
from simulator.experiment.experiment import Experiment
from simulator.experiment.file import experiments_from_mapping
from simulator.experiment.load import load_of

RUNS = {e.id: e for e in bundled_experiments()}
LLAMA = RUNS["llama-2-7b-tp1-codegen"]
ROLEPLAY = RUNS["llama-2-7b-tp1-roleplay"]
SCOUT = RUNS["20-llama-4-scout-17b-16e-tp2-codegen-2"]
PROGRAM = load("floor").complete
OLD = {"vocab": [32000.0, 202048.0], "tp": [1, 2, 4], "hardware": ["H100-SXM-80GB"], "requests_in_flight": [9.0, 112.0]}


def plan(model: str = "llama-2-7b", prompt: dict[str, Any] | None = None, **engine: Any) -> Experiment:
    """A light load on one H100; its prompts are its own unless `prompt` says otherwise."""
    entry = {
        "id": "plan", "model": model, "hardware": "H100", "engine": engine,
        "workload": {"name": "x", "stages": [{"rate": 1.0, "duration_s": 60.0}], "output_len": 20,
                     **(prompt or {"prompt_len": 600})},
    }  # fmt: skip
    raw = {"version": 1, "experiments": [entry]}
    return experiments_from_mapping(raw, "plan.yaml", model_table(), hardware_table())[0]


def read(raw: dict[str, Any]) -> Ranges:
    return read_ranges(Section("r.json", "ranges", raw))


def predicted(experiment: Experiment) -> Prediction:
    return predictions(PROGRAM, score_set([experiment], seeds=(1,)))[0]


def lines_of(fitted: list[Experiment], experiment: Experiment) -> list[str]:
    return outside([ranges_of(fitted)], experiment, predicted(experiment))


CASES = [  # fitted, planned, every line about it
    ([LLAMA], LLAMA, []),
    ([LLAMA], plan("mixtral-8x7b", tensor_parallel=2),
     ["tp 2 not among the fitted [1]", "a model of 46.7 billion parameters: the fitted runs have at most 6.7",
      "12.9 billion parameters active per token: the fitted runs have at most 6.7",
      "a mixture of experts: the fitted models are dense", "KV offload to CPU is off: the fitted runs have it on",
      "19 of 20 requests bring at most 600 uncached prompt tokens into a step: in the fitted runs 496"]),
    ([SCOUT], plan("llama-2-7b", {"prompt_len": 16}),
     ["vocabulary 32000 outside the fitted 202048 to 202048", "tp 1 not among the fitted [2]",
      "a model of 6.7 billion parameters: the fitted runs have at least 107.8",
      "6.7 billion parameters active per token: the fitted runs have at least 17.2",
      "a dense model: the fitted models are mixtures of experts", "16-bit weights not among the fitted fp8",
      "prompts of 16 tokens: the fitted runs have at least 566"]),
    ([ROLEPLAY], plan("llama-2-7b", {"prompt_len": 3000}, kv_cpu_offload=True, max_num_batched_tokens=1024),
     ["prompts of 3000 tokens: the fitted runs have at most 786",
      "19 of 20 requests bring at most 1024 uncached prompt tokens into a step: in the fitted runs 2",  # a step has room for no more
      "max_num_batched_tokens 1024: the fitted runs have at least 2048"]),
    ([SCOUT], replace(SCOUT, engine=replace(SCOUT.engine, kv_cpu_offload=True)),
     ["KV offload to CPU is on: the fitted runs have it off"]),
    ([SCOUT], replace(SCOUT, hardware="H200-SXM-141GB", engine=replace(SCOUT.engine, max_num_batched_tokens=8192)),
     ["GPU H200-SXM-141GB not among the fitted H100-SXM-80GB",
      "max_num_batched_tokens 8192: the fitted runs have at most 2048"]),
]  # fmt: skip


@pytest.mark.parametrize(("fitted", "planned", "lines"), CASES)
def test_each_value_outside_the_fitted_runs_is_a_line(
    fitted: list[Experiment], planned: Experiment, lines: list[str]
) -> None:
    assert lines_of(fitted, planned) == lines


@pytest.mark.parametrize(("tokens", "line"), [(95, "at least 100"), (96, ""), (210, ""), (211, "at most 200")])
def test_five_percent_beyond_the_fitted_is_not_outside(tokens: int, line: str) -> None:
    near = plan("llama-2-7b", {"prompt_len": tokens})
    said = f"prompts of {tokens} tokens: the fitted runs have {line}"
    assert outside([Ranges(prompt_tokens=(100.0, 200.0))], near, predicted(near)) == ([said] if line else [])


def test_switches_of_the_engine_that_no_fitted_run_has_so_are_a_line_each() -> None:
    known = Ranges(chunked_prefill=(True,), prefix_caching=(True, False))
    whole = replace(LLAMA, engine=replace(LLAMA.engine, chunked_prefill=False, prefix_caching=False))
    assert outside([known], whole, predicted(LLAMA)) == ["chunked prefill is off: the fitted runs have it on"]
    assert outside([replace(known, prefix_caching=(True,))], whole, predicted(LLAMA))[1:] == [
        "prefix caching is off: the fitted runs have it on"
    ]
    assert outside([known], LLAMA, predicted(LLAMA)) == []


def test_requests_in_flight_beyond_the_fitted_are_a_line_per_stage() -> None:
    known = Ranges(requests_in_flight=(1.0, 2.0))
    lines = outside([known], LLAMA, predicted(LLAMA))
    assert len(lines) == len(LLAMA.workload.stages)
    assert lines[0].startswith("stage 0: ") and lines[0].endswith(" requests in flight, at most 2 in the fitted runs")


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


def test_how_far_beyond_the_fitted_runs_an_experiment_lies_is_a_factor_by_range() -> None:
    """Prompts of 50 to 600 tokens next to 100 to 200, TP 2 next to 1, half of the default of 2,048 tokens a step."""
    fitted = [ranges_of([plan(prompt={"prompt_len": {"uniform": {"min": 100, "max": 200}}})])]
    wide = {"prompt_len": {"uniform": {"min": 50, "max": 600}}}
    long = plan(prompt=wide, tensor_parallel=2, max_num_batched_tokens=1024)
    found = factors(fitted, long, predicted(long))
    assert found["prompt_tokens"] == pytest.approx((50 + 0.95 * 550) / 200, rel=0.02)  # the 95th percentile
    assert found["tp"] == 2.0 and found["max_num_batched_tokens"] == 2.0 and found["vocab"] == 1.0
    both = [*fitted, ranges_of([long])]
    assert set(factors(both, long, predicted(long)).values()) == {1.0}
    assert factors([Ranges()], long, predicted(long)) == {}


def test_a_lighter_load_than_was_fitted_is_not_beyond() -> None:
    calm = plan()
    p = predicted(calm)
    in_flight = calm.workload.stages[0].rate * (p.predicted.stages[0].e2e_ms.mean or 0.0) / 1e3
    for span, factor in (((2 * in_flight, 3 * in_flight), 1.0), ((0.0, in_flight / 4), 4.0)):
        found = factors([Ranges(requests_in_flight=span)], calm, p)
        assert found == {"requests_in_flight": pytest.approx(factor)}
    assert factors([Ranges(prompt_tokens=(1200.0, 1800.0))], calm, p) == {"prompt_tokens": 1.0}


def test_nothing_is_said_of_what_an_older_record_does_not_have() -> None:
    known = read(OLD)
    assert known == Ranges(vocab=(32000.0, 202048.0), tp=(1, 2, 4), hardware=("H100-SXM-80GB",),
                           requests_in_flight=(9.0, 112.0))  # fmt: skip
    odd = plan("llama-3.1-8b", {"prompt_len": 8192}, kv_cpu_offload=True, max_num_batched_tokens=8192)
    assert outside([known], odd, predicted(odd)) == []
    for raw in ({}, {"of a later release": [1, 2]}):
        assert read(raw) == Ranges() and outside([Ranges()], odd, predicted(odd)) == []


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        ({"vocab": 3}, "ranges.vocab must be a list of two numbers, got 3"),
        ({"vocab": [1.0]}, "ranges.vocab must be a list of two numbers, got [1.0]"),
        ({"tp": ["1"]}, "ranges.tp must be a list of whole numbers, got ['1']"),
        ({"hardware": "H100"}, "ranges.hardware must be a list of names, got 'H100'"),
        ({"uncached_step_tokens": 1.5}, "ranges.uncached_step_tokens must be a whole number, got 1.5"),
    ],
)
def test_a_damaged_record_of_ranges_is_one_line(raw: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=re.escape(f"r.json: {words}: restore the record, or remove it")):
        read(raw)


def test_ranges_survive_their_json_and_the_shipped_champion_has_them() -> None:
    record = load("champion").record
    assert record is not None
    fitted = [RUNS[name] for name in record.fitted]
    made = ranges_of(fitted)
    assert made == record.ranges == read(json.loads(json.dumps(made.to_json())))
    assert (made.prompt_tokens, made.uncached_step_tokens) == ((566, 1034), 1034)
    assert (made.weights, made.mixture_of_experts) == (("16-bit", "fp8"), (False, True))


def test_the_type_of_weights_has_a_name_and_is_no_part_of_the_data() -> None:
    name = "meta-llama/Llama-2-7b-hf"
    config = dict(model_table()[name]["config"])
    raw = {"version": 1, "experiments": [{
        "id": "x", "model": "mine", "hardware": "H100", "model_config": {**config, "quantization": "w4a16"},
        "workload": {"name": "x", "stages": [{"rate": 1.0, "duration_s": 60.0}], "prompt_len": 600, "output_len": 20},
    }]}  # fmt: skip
    (x,) = experiments_from_mapping(raw, "x.yaml", model_table(), hardware_table())
    assert [weights(e) for e in (x, LLAMA, SCOUT)] == ["4-bit", "16-bit", "fp8"]
    assert "4-bit weights not among the fitted 16-bit" in lines_of([LLAMA], x)
    assert data_hash([replace(x, weight_bits=8)]) == data_hash([x])  # the facts have the bytes


def test_uncached_tokens_are_those_that_the_cache_lacks() -> None:
    # prompts of 785 or 786 tokens that all stay: 785 = 49 x 16 + 1, 786 = 49 x 16 + 2
    run = paced(ROLEPLAY, load_of(ROLEPLAY, FIT_SEED))
    first = new_tokens(run)[:100]
    assert (first > 600).all() and set(new_tokens(run)[200:]) == {1, 2}
    assert (step_tokens(run), evicted(run)) == (2, 0)
    # a cache too small for its 100 prompts: one in five is computed again but for the prefix of its group
    run = paced(LLAMA, load_of(LLAMA, FIT_SEED))
    assert step_tokens(run) == 592 - 96 and 0.15 < evicted(run) / len(run.requests) < 0.25
    # without prefix caching every prompt is computed, and none was evicted
    bare = replace(ROLEPLAY, engine=replace(ROLEPLAY.engine, prefix_caching=False))
    run = paced(bare, load_of(bare, FIT_SEED))
    assert np.array_equal(new_tokens(run), run.requests.input_len)
    assert (step_tokens(run), evicted(run)) == (786, 0)
    # a step takes no more of a prompt than the engine's limits
    short = replace(bare, engine=replace(bare.engine, long_prefill_token_threshold=256))
    assert step_tokens(paced(short, load_of(short, FIT_SEED))) == 256


def test_offload_that_would_matter_is_said_to_be_missing() -> None:
    line = "KV offload to CPU is not replayed: "
    assert not any(w.startswith(line) for w in warnings(None, ROLEPLAY, predicted(ROLEPLAY)))  # nothing is evicted
    made = predicted(LLAMA)
    assert made.evicted > 1000 and made.preemptions == 0
    lines = [w for w in warnings(None, LLAMA, made) if w.startswith(line)]
    assert lines == [f"{line}{made.evicted} evicted prompts and 0 preemptions are prefilled again"]
    assert line + "0 evicted prompts and 3 preemptions are prefilled again" in warnings(
        None, ROLEPLAY, replace(predicted(ROLEPLAY), preemptions=3)
    )
    without = replace(LLAMA, engine=replace(LLAMA.engine, kv_cpu_offload=False))
    assert not any(w.startswith(line) for w in warnings(None, without, made))
