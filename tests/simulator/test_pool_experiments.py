"""Separate pools in an experiments file: what is read, written again, identified, and refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from evolve.run.data import fittable
from simulator.common.errors import InputError
from simulator.serving.digests import data_hash
from simulator.serving.experiment import Experiment, deploy
from simulator.serving.load import limits_of, pool_limits
from simulator.serving.spec import Spec, read_spec

LOAD = {"name": "chat", "stages": [{"rate": 2, "duration_s": 30}], "prompt_len": 1000, "output_len": 100}
ENTRY = {
    "id": "split",
    "model": "llama-3.1-8b",
    "hardware": "H100-SXM-80GB",
    "engine": {"max_num_seqs": 64},
    "prefill": {"instances": 3, "engine": {"max_num_batched_tokens": 8192}},
    "decode": {"instances": 2, "engine": {"tensor_parallel": 2, "max_num_seqs": 200}},
    "workload": LOAD,
}


def entry(**changed: Any) -> dict[str, Any]:
    """The entry with other keys; without those that are None."""
    return {key: value for key, value in {**ENTRY, **changed}.items() if value is not None}


def deployed(**changed: Any) -> Experiment:
    return deploy(read_spec(entry(**changed), "my.yaml: experiment 'split'"))


def test_a_pool_has_the_settings_of_the_engine_and_its_own() -> None:
    e = deployed()
    limits, own = pool_limits(e), limits_of(e)
    assert limits and limits.prefill and limits.decode == own
    assert (limits.prefill.max_seqs, limits.prefill.budget, limits.prefill.busy) == (64, 8192, True)
    assert (own.max_seqs, own.budget, own.busy) == (200, 2048, False)
    assert limits.instances == (3, 2) and e.pools and e.pools.gpus == 3 + 2 * 2
    assert e.facts["tp"] == 2.0 and e.facts.prefill and e.facts.prefill["tp"] == 1.0


def test_a_token_of_llama_3_1_8b_has_131072_bytes_and_goes_over_the_link_of_the_gpu_with_the_most() -> None:
    """32 layers x (K and V) x 8 heads x 128 x 2 bytes, all of which one GPU of the prefill pool sends."""
    limits = pool_limits(deployed())
    assert limits and (limits.bytes_per_token, limits.bytes_per_us, limits.least_us) == (131_072.0, 450e3, 0.0)
    halves = pool_limits(deployed(prefill={"instances": 1, "engine": {"tensor_parallel": 2}}))
    assert halves and halves.bytes_per_token == 65_536.0
    given = pool_limits(deployed(transfer={"link_gb_per_s": 50, "latency_us": 20}))
    assert given and (given.bytes_per_us, given.least_us) == (50e3, 20.0)


def test_the_entry_is_written_as_it_is_read() -> None:
    for changed in ({}, {"prefill": None}, {"decode": None}, {"transfer": {"latency_us": 5}}):
        spec = read_spec(entry(**changed), "x")
        assert read_spec(spec.to_entry(), "x") == spec


def test_pools_are_part_of_what_identifies_an_experiment() -> None:
    one = deployed(prefill=None, decode=None)
    several = [one, deployed(), deployed(prefill=None), deployed(transfer={"latency_us": 5})]
    several += [deployed(prefill={"instances": 2, "engine": {"max_num_batched_tokens": 8192}})]
    assert len({data_hash([e]) for e in several}) == 5
    assert one.pools is None and one.facts.prefill is None


@pytest.mark.parametrize(
    ("changed", "place"),
    [
        ({"prefill": {"engine": {}}}, "prefill.instances"),
        ({"decode": {"instances": 0}}, "decode.instances"),
        ({"decode": {"instances": 1, "tp": 2}}, "decode.tp"),
        ({"decode": {"instances": 1, "engine": {"tp": 2}}}, "decode.engine.tp"),
        ({"decode": {"instances": 1, "engine": {"data_parallel": 2}}}, "decode.engine.data_parallel"),
        ({"decode": {"instances": 1, "engine": {"block_size": 32}}}, "engine.block_size"),
        ({"decode": {"instances": 1, "engine": {"kv_cache_dtype": "fp8"}}}, "engine.kv_cache_dtype"),
        ({"decode": {"instances": 9}}, "transfer.link_gb_per_s"),
        ({"transfer": {"link_gb_per_s": 0}}, "transfer.link_gb_per_s"),
        ({"prefill": None, "decode": None, "transfer": {"latency_us": 5}}, "transfer"),
        ({"workload": {**LOAD, "max_in_flight": 4}}, "workload.max_in_flight"),
        (
            {"workload": {"name": "x", "concurrency": 4, "requests": 40, "prompt_len": 10, "output_len": 10}},
            "workload.concurrency",
        ),
    ],
)
def test_what_cannot_be_replayed_is_an_error_of_one_line(changed: dict[str, Any], place: str) -> None:
    with pytest.raises(InputError) as error:
        deployed(**changed)
    assert place in str(error.value) and "\n" not in str(error.value)


def test_fits_and_settings_of_one_engine_are_refused() -> None:
    observed = {"summary": {"e2e_ms": {"mean": 900}, "ttft_ms": {"mean": 50}}}
    measured = deployed(observed=observed, quality="clean")
    assert measured.observed
    with pytest.raises(InputError, match="cannot be fitted"):
        fittable([measured])
    spec = measured.spec
    assert isinstance(spec, Spec) and spec.vary(rate=3).pools == spec.pools
    with pytest.raises(InputError, match="pools of their own"):
        spec.vary(tp=2)
    assert fittable([replace(measured, quality="overloaded")]) == []
