"""The ranges of fitted runs: what they are of, and how a record keeps them."""

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
from evolve.run.program import load
from evolve.run.ranges import Ranges, ranges_of, read_ranges, weights
from simulator.common.errors import InputError, Section
from simulator.serving.bundled import bundled_experiments, hardware_table, model_table
from simulator.serving.digests import data_hash
from simulator.serving.experiment import Experiment
from simulator.serving.file import experiments_from_mapping
from simulator.serving.load import load_of

RUNS = {e.id: e for e in bundled_experiments()}
LLAMA = RUNS["llama-2-7b-tp1-codegen"]
ROLEPLAY = RUNS["llama-2-7b-tp1-roleplay"]
SCOUT = RUNS["20-llama-4-scout-17b-16e-tp2-codegen-2"]
OLD = {"vocab": [32000.0, 202048.0], "tp": [1, 2, 4], "hardware": ["H100-SXM-80GB"], "requests_in_flight": [9.0, 112.0]}


def read(raw: dict[str, Any]) -> Ranges:
    return read_ranges(Section("r.json", "ranges", raw))


def test_what_an_older_record_does_not_have_is_unknown() -> None:
    assert read(OLD) == Ranges(vocab=(32000.0, 202048.0), tp=(1, 2, 4), hardware=("H100-SXM-80GB",),
                               requests_in_flight=(9.0, 112.0))  # fmt: skip
    assert read({}) == read({"of a later release": [1, 2]}) == Ranges()


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
    assert data_hash([replace(x, weight_bits=8)]) == data_hash([x])  # the facts have the bytes


def test_the_kernels_of_a_gpu_of_ones_own_are_part_of_the_data_and_of_what_gates_judge() -> None:
    """No field differs between GPUs of the same peaks that take their kernels from different tables."""
    gpu = {"name": "mine", "bf16_tflops": 500.0, "memory_tb_per_s": 2.0, "link_gb_per_s": 300.0, "memory_gb": 80.0}
    load = {"name": "x", "stages": [{"rate": 1.0, "duration_s": 60.0}], "prompt_len": 600, "output_len": 20}

    def experiment(**kernels: str) -> Experiment:
        raw = {"id": "x", "model": "llama-2-7b", "hardware": gpu | kernels, "workload": load}
        whole = {"version": 1, "experiments": [raw]}
        (x,) = experiments_from_mapping(whole, "x.yaml", model_table(), hardware_table())
        return x

    every = [experiment(kernels="a100_sxm"), experiment(kernels="h100_sxm"), experiment()]
    assert len({data_hash([e]) for e in every}) == 3
    assert dict(every[0].facts) == dict(every[1].facts)
    assert len(deployments_of(every[:2]).names) == len(every[:2])
    assert len(deployments_of([every[0], experiment(kernels="a100_sxm")]).names) == 1


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
