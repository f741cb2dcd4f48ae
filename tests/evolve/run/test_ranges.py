"""The ranges of fitted runs, and their form in a record."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from evaluator.fit.fit import FIT_SEED
from evaluator.fit.stages import paced
from evaluator.judge.gates import deployments_of
from evaluator.metrics import evicted, new_tokens, step_tokens
from evolve.run.data import experiments_of
from evolve.run.program import load
from evolve.run.ranges import Ranges, ranges_of, weights
from simulator.common.records import DamagedRecord, from_json, to_json
from simulator.serving.bundled import FILES, experiments_from_mapping
from simulator.serving.digests import data_hash
from simulator.serving.experiment import Experiment
from simulator.serving.load import load_of
from simulator.serving.model import model_table

RUNS = {e.id: e for e in experiments_of(FILES)}
LLAMA = RUNS["llama-2-7b-tp1-codegen"]
ROLEPLAY = RUNS["llama-2-7b-tp1-roleplay"]
SCOUT = RUNS["20-llama-4-scout-17b-16e-tp2-codegen-2"]
OLD = {"vocab": [32000.0, 202048.0], "tp": [1, 2, 4], "hardware": ["H100-SXM-80GB"], "requests_in_flight": [9.0, 112.0]}


def own(**entry: Any) -> Experiment:
    """An experiment of the user's own."""
    load = {"name": "x", "stages": [{"rate": 1.0, "duration_s": 60.0}], "prompt_len": 600, "output_len": 20}
    raw = {"version": 1, "experiments": [{"id": "x", "workload": load, **entry}]}
    return experiments_from_mapping(raw, "x.yaml")[0]


def test_ranges_missing_in_an_older_record_are_unknown_and_damage_has_its_place() -> None:
    known = Ranges(vocab=(32000.0, 202048.0), tp=(1, 2, 4), hardware=("H100-SXM-80GB",))
    assert from_json(Ranges, OLD, "r.json") == replace(known, requests_in_flight=(9.0, 112.0))
    assert from_json(Ranges, {"of a later release": [1, 2]}, "r.json") == Ranges()
    wrong = {"vocab": [3, [1.0]], "tp[0]": [["1"]], "hardware": ["H100"], "uncached_step_tokens": [1.5]}
    for place, value in ((place, value) for place, values in wrong.items() for value in values):
        with pytest.raises(DamagedRecord, match=re.escape(f"r.json, {place}: must be ")):
            from_json(Ranges, {place.partition("[")[0]: value}, "r.json")


def test_ranges_of_the_shipped_champion_are_read_back() -> None:
    record = load("champion").record
    assert record is not None
    fitted = [RUNS[name] for name in record.fitted]
    made = ranges_of(fitted)
    assert made == record.ranges == from_json(Ranges, json.loads(json.dumps(to_json(made))), "r.json")
    assert (made.prompt_tokens, made.requests_in_flight) == ((566, 8191), (4, 1024))  # lengths and loads of the files
    assert (made.weights, made.mixture_of_experts) == (("16-bit", "4-bit", "fp8"), (False, True))


def test_the_type_of_weights_has_a_name_outside_the_data() -> None:
    name = "meta-llama/Llama-2-7b-hf"
    config = dict(model_table()[name]["config"])
    x = own(model="mine", hardware="H100", model_config={**config, "quantization": "w4a16"})
    assert [weights(e) for e in (x, LLAMA, SCOUT)] == ["4-bit", "16-bit", "fp8"]
    assert data_hash([replace(x, weight_bits=8)]) == data_hash([x])  # the facts have the bytes


def test_kernels_of_an_own_gpu_are_part_of_the_data() -> None:
    """No field differs between GPUs of the same peaks that take their kernels from different tables."""
    gpu = {"name": "mine", "bf16_tflops": 500.0, "memory_tb_per_s": 2.0, "link_gb_per_s": 300.0, "memory_gb": 80.0}

    def experiment(**kernels: str) -> Experiment:
        return own(model="llama-2-7b", hardware=gpu | kernels)

    every = [experiment(kernels="a100_sxm"), experiment(kernels="h100_sxm"), experiment()]
    assert len({data_hash([e]) for e in every}) == 3
    assert dict(every[0].facts) == dict(every[1].facts)
    assert len(deployments_of(every[:2]).names) == len(every[:2])
    assert len(deployments_of([every[0], experiment(kernels="a100_sxm")]).names) == 1


def test_uncached_tokens_are_those_missing_in_the_cache() -> None:
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
