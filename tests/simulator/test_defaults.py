"""The defaults of vLLM's versions, against its source: arg_utils.py, config/vllm.py and config/compilation.py."""

from __future__ import annotations

import copy
from dataclasses import replace

import numpy as np
import pytest

from simulator.serving.defaults import DEFAULTS, KEYS, captured, default_of, settled, version_of
from simulator.serving.engine import Engine
from simulator.serving.experiment import Experiment, deploy
from simulator.serving.facts import curve_of
from simulator.serving.gpu import Gpu, gpu_named
from simulator.serving.known import facts_of
from simulator.serving.spec import Spec

# Release notes and pull requests: 12369 (H100 and H200), 17073 (from 70 GiB on), 17885 (not A100), 20628 (twice
# max_num_seqs), 25444 (full and piecewise), 27614 (async), 34299 (fusion), 49390 (Blackwell 1024) and 51726 (16384).
BY_HAND = """
    0.8.0 H100 | 1024 8192 512 piecewise False False
    0.8.4 B200 | 256 2048 512 piecewise False False
    0.8.5 B200 | 1024 8192 512 piecewise False False
    0.8.5.post1 A100 | 1024 8192 512 piecewise False False
    0.9.0 A100 | 256 2048 512 piecewise False False
    0.10.2 L40S | 256 2048 512 piecewise False False
    v0.11.0 H100 | 1024 8192 512 full_and_piecewise False False
    0.14.0 H200 | 1024 8192 512 full_and_piecewise True False
    0.15.1 RTX-PRO-6000 | 1024 8192 512 full_and_piecewise True False
    0.17 B200 | 1024 8192 512 full_and_piecewise True True
    0.19.0 L40S | 256 2048 512 full_and_piecewise True False
    0.27.1 B200 | 1024 8192 512 full_and_piecewise True True
    0.28.0 B200 | 1024 16384 1024 full_and_piecewise True True
    0.28.0 H100 | 1024 16384 512 full_and_piecewise True True
    0.28.0 L40S | 256 2048 512 full_and_piecewise True False
"""


@pytest.mark.parametrize("line", BY_HAND.strip().splitlines())
def test_the_defaults_of_a_version_on_a_gpu(line: str) -> None:
    asked, values = line.split(" | ")
    version, gpu = asked.split()
    own = settled(Engine(version=version, tensor_parallel=2), gpu_named(gpu))
    assert [str(getattr(own, key)) for key in KEYS] == values.split()


def test_a_setting_that_is_given_stays() -> None:
    given = {"max_num_seqs": 16, "max_num_batched_tokens": 2048, "async_scheduling": False, "cudagraph_mode": "full"}
    engine = Engine(version="0.19.0", **given, given=frozenset(given))  # type: ignore[arg-type]
    own = settled(engine, gpu_named("H100"))
    assert {key: getattr(own, key) for key in given} == given
    assert own.cudagraph_capture_max == 2 * 16
    assert settled(own, gpu_named("H100")) == own


@pytest.mark.parametrize("version", [None, "nightly-5b8c30d62b754b57", "0.7.3", "0.1.dev1+g123"])
def test_without_a_release_the_limits_are_as_before(version: str | None) -> None:
    """128 requests and 2048 tokens; the others are those of 0.15.1, the version of the shipped runs."""
    engine = Engine(version=version)
    own = settled(engine, gpu_named("H100"))
    assert version_of(engine) is None and version_of(Engine(name="sglang", version="0.15.1")) is None
    assert [getattr(own, key) for key in KEYS] == [128, 2048, 256, "full_and_piecewise", True, False]


def test_a_gpu_of_unknown_memory_counts_as_small() -> None:
    assert settled(Engine(version="0.15.1"), Gpu()).max_num_batched_tokens == 2048


def test_the_largest_graph_is_a_captured_size() -> None:
    """vLLM cuts max_cudagraph_capture_size to the last of its sizes: 257 to 256, 300 to 288 (pull request 37865)."""
    cases = {1: 1, 3: 2, 7: 4, 20: 16, 255: 248, 256: 256, 257: 256, 300: 288, 512: 512, 2048: 2048, 2050: 2048}
    assert {most: captured(most) for most in cases} == cases
    given = Engine(cudagraph_capture_max=300, max_num_seqs=8)
    assert settled(given, gpu_named("H100")).cudagraph_capture_max == 288


def test_the_table_is_in_order() -> None:
    for key in KEYS:
        versions = [d.since for d in DEFAULTS if d.setting == key]
        assert versions == sorted(set(versions)) and default_of(key, versions[-1]).since == versions[-1]


def planned(**engine: object) -> Experiment:
    spec = Spec.of("llama-3.1-8b", "H100", rate=1, prompt_len=100, output_len=10, tp=2)
    return deploy(spec.vary(**copy.deepcopy(engine)))  # type: ignore[arg-type]


def assumed(e: Experiment) -> list[str]:
    return [note for note in e.notes if note.startswith("assumed")]


def test_a_plan_says_what_its_version_assumes() -> None:
    e = planned(version="0.19.0")
    assert (e.engine.max_num_seqs, e.engine.max_num_batched_tokens) == (1024, 8192)
    assert (e.facts["max_num_seqs"], e.facts["cudagraph_capture_max"], e.facts["allreduce_rms_fusion"]) == (
        1024,
        512,
        1,
    )
    assert assumed(e) == [
        "assumed, as `engine` does not say: max_num_seqs 1024, max_num_batched_tokens 8192, allreduce_rms_fusion true "
        "(defaults of vLLM 0.19.0 on this GPU, from vllm/engine/arg_utils.py, vllm/config/vllm.py)"
    ]
    assert assumed(planned(version="0.15.1", max_num_seqs=64, max_num_batched_tokens=2048)) == []


def test_whole_prompts_have_room_in_the_steps_of_a_version() -> None:
    """vLLM: the larger of max_model_len and the default (arg_utils.py)."""
    budget = {n: planned(version="0.19.0", chunked_prefill=False, max_model_len=n) for n in (4096, 20_000)}
    assert {n: e.engine.max_num_batched_tokens for n, e in budget.items()} == {4096: 8192, 20_000: 20_000}


def test_programs_read_the_switches() -> None:
    e = planned(async_scheduling=False, stream_interval=20, allreduce_rms_fusion=True)
    names = ("async_scheduling", "stream_interval", "allreduce_rms_fusion")
    assert [e.facts[name] for name in names] == [0, 20, 1]
    alone = facts_of("llama-3.1-8b", "H100", Engine(allreduce_rms_fusion=True))
    assert alone["allreduce_rms_fusion"] == 0  # a single GPU has no all-reduce


@pytest.mark.parametrize("dtype", ["fp8", "fp8_e4m3", "fp8_e5m2"])
def test_a_kv_cache_of_8_bits_by_hand(dtype: str) -> None:
    """On an A100, whose tables have 16 bits alone; of the H100 see test_kernels."""
    wide, narrow = (facts_of("llama-2-7b", "A100", Engine(kv_cache_dtype=name)) for name in ("auto", dtype))
    # (0.9*79.2 - 0.8) GiB less 2 * 6,738,149,376 bytes, in blocks of 16 tokens * 2 * 32 layers * 32 heads * 128 bytes
    room = (0.9 * 79.2 - 0.8) * 1024**3 - 2 * 6_738_149_376
    assert narrow["kv_blocks"] == room // (4 * 1024**2) - 1
    assert narrow["kv_bytes_per_token"] == 2 * 32 * 32 * 128 == wide["kv_bytes_per_token"] / 2
    # a token of context takes half as long; its launch, and prompts, as long
    half = curve_of(wide, "decode_per_token") / 2
    assert np.allclose(curve_of(narrow, "decode_per_token"), half, rtol=1e-6, atol=0)
    for name in ("decode_launch", "prefill_per_pair", "gemm"):
        assert (curve_of(narrow, name) == curve_of(wide, name)).all()
    # at 16,384 tokens of 32 layers writing the cache moves 3 bytes in place of 4 for each of 4096 scalars
    saved = curve_of(wide, "elementwise")[-1] - curve_of(narrow, "elementwise")[-1]
    assert saved == pytest.approx(16_384 * 32 * 4096 * 2 * 1 / 2.039e6, rel=1e-4)
    assert facts_of("llama-2-7b", "A100", Engine(kv_cache_dtype="bfloat16")) == wide


def test_a_plan_says_what_is_not_measured_of_such_a_cache() -> None:
    """A100s have no rows of it, H100s have."""

    def said(gpu: str, dtype: str) -> list[str]:
        spec = Spec.of("llama-3.1-8b", gpu, rate=1, prompt_len=100, output_len=10).vary(kv_cache_dtype=dtype)
        return [note for note in deploy(spec).notes if note.startswith("kv_cache_dtype")]

    (note,) = said("A100", "fp8")
    assert note.startswith("kv_cache_dtype fp8: decode attention is measured in 16")
    assert said("A100", "auto") == said("H100", "fp8") == []


def test_eager_steps_have_no_fused_all_reduce() -> None:
    eager = replace(Engine(tensor_parallel=2, allreduce_rms_fusion=True), enforce_eager=True)
    assert facts_of("llama-3.1-8b", "H100", eager)["allreduce_rms_fusion"] == 0
