"""Emitted Go on deployments of every precision and kind of parallelism, against the interpreter."""

import pytest

from evolve.run.program import load
from simulator.common.json import JsonObject
from simulator.serving.engine import Engine
from simulator.serving.facts import Facts
from simulator.serving.known import facts_of
from translate_go.agreement import compare_all

DEPLOYMENTS: dict[str, tuple[str, str, JsonObject]] = {
    "dense fp8": ("llama-3.1-70b", "H200", {"tensor_parallel": 2, "quantization": "fp8"}),
    "dense NVFP4": ("llama-3.1-70b", "B200", {"tensor_parallel": 1, "quantization": "nvfp4"}),
    "MXFP4 and windows on Hopper": ("gpt-oss-120b", "H100", {"tensor_parallel": 2}),
    "MXFP4 and windows on Blackwell": ("gpt-oss-120b", "B200", {}),
    "latent attention": ("deepseek-v3", "H200", {"tensor_parallel": 8}),
    "latent attention, EP 8": ("deepseek-v3", "B200", {"tensor_parallel": 8, "expert_parallel": 8}),
    "DP 4, EP 4": ("minimax-m2.5", "B200", {"data_parallel": 4, "expert_parallel": 4}),
    "int4": ("qwen3-32b", "A100", {"tensor_parallel": 2, "quantization": "int4"}),
}


def facts_named(name: str) -> Facts:
    model, gpu, settings = DEPLOYMENTS[name]
    return facts_of(model, gpu, Engine(**settings))


@pytest.mark.parametrize("name", DEPLOYMENTS)
def test_go_equals_python_in_every_precision(name: str) -> None:
    """The seed reads every kernel and both priors of the host."""
    found = compare_all({"kernels": load("kernels").complete}, facts_named(name), 500, seed=1)["kernels"]
    assert found.within(0) and found.distinct > 100, found.worst
