"""The command line of vLLM that starts a deployment. Names of options: vllm/engine/arg_utils.py."""

from __future__ import annotations

import json
import shlex

from simulator.model.formats import BF16, FP8, IN_16
from simulator.serving.experiment import Experiment

# Settings whose option has another name than theirs with hyphens. Settings without one are not vLLM's.
OPTIONS = {
    "tensor_parallel": "--tensor-parallel-size",
    "data_parallel": "--data-parallel-size",
    "pipeline_parallel": "--pipeline-parallel-size",
    "total_kv_blocks": "--num-gpu-blocks-override",
    "cudagraph_capture_max": "--max-cudagraph-capture-size",
    **{
        name: f"--{name.replace('_', '-')}"
        for name in (
            *("max_num_seqs", "max_num_batched_tokens", "max_model_len", "block_size", "gpu_memory_utilization"),
            *("long_prefill_token_threshold", "kv_offloading_size", "kv_cache_dtype", "stream_interval"),
        )
    },
}
SWITCHES = {
    "chunked_prefill": "enable-chunked-prefill",
    "prefix_caching": "enable-prefix-caching",
    "async_scheduling": "async-scheduling",
    "enforce_eager": "enforce-eager",
}


def serve(e: Experiment) -> str | None:
    """`vllm serve ...` of one replica, with the settings that are given; None for separate pools.

    vLLM itself makes fp8 of a checkpoint of 16 bits. Other types need a checkpoint of that type. The limits of a batch
    are always there without a version: their defaults are not vLLM's then.
    """
    if e.spec is None or e.pools:
        return None
    engine, model = e.spec.engine, shlex.quote(e.model)
    given = engine.to_entry()
    if engine.version is None:
        given |= {"max_num_seqs": e.engine.max_num_seqs, "max_num_batched_tokens": e.engine.max_num_batched_tokens}
    made = engine.quantization if e.spec.model.architecture.formats == IN_16 else None
    other = made not in (None, BF16.name, FP8.name)
    words = ["vllm", "serve", "CHECKPOINT" if other else model]
    for name, option in OPTIONS.items():
        if name in given and not (name.endswith("_parallel") and given[name] == 1):
            words += [option, str(given[name])]
    if engine.expert_parallel > 1:
        words.append("--enable-expert-parallel")
    words += [f"--{'' if given[name] else 'no-'}{switch}" for name, switch in SWITCHES.items() if name in given]
    if made == FP8.name:
        words += ["--quantization", "fp8"]
    if method := given.get("speculative_method"):
        config = {"method": method, "num_speculative_tokens": given.get("num_speculative_tokens")}
        if "draft_model" in given:
            config["model"] = given["draft_model"]
        words += ["--speculative-config", shlex.quote(json.dumps(config))]
    return " ".join([*words, *([f"# CHECKPOINT: {model} as {made}"] if other else [])])
