"""The engine settings of a run, each from the most trusted source that knows it, and what had to be assumed.

From the most to the least trusted: the user's --engine, the traces (KV blocks), exp-config.yaml, vllm.log, the
manifest, vLLM's defaults.
"""

from __future__ import annotations

from collections.abc import Mapping

from evolve.ingest.options import ENGINE_KEYS, Setting
from evolve.ingest.read.log import EngineLog
from evolve.ingest.read.manifest import FILE, Listed
from evolve.ingest.read.settings import ServerSettings
from evolve.ingest.read.values import FolderFindings
from simulator.common.errors import shown
from simulator.serving.experiment import STANDARD, unsplit_tokens

DEFAULTS = (
    *("max_num_seqs", "max_num_batched_tokens", "block_size", "gpu_memory_utilization"),
    *("chunked_prefill", "prefix_caching"),
)
"""Keys that get the project's default, with a finding, if no source gives them."""


def make_engine(
    settings: ServerSettings,
    log: EngineLog,
    listed: Listed,
    overrides: Mapping[str, Setting],
    traced_kv_blocks: int | None,
    findings: FolderFindings,
) -> dict[str, Setting]:
    """The settings by ENGINE_KEYS, in their order; keys that no source knows are left out.

    `traced_kv_blocks` is `kv.blocks_total_gpu` of the traces: the blocks that requests can use.
    """
    engine = _recorded(settings, log, listed, traced_kv_blocks, findings)
    for key, value in overrides.items():
        if key in engine and engine[key] != value:
            text = f"{key} is {shown(value)} as given, the folder says {shown(engine[key])}"
            findings.note("--engine", text)
    engine.update(overrides)
    assumed: dict[str, Setting] = {key: getattr(STANDARD, key) for key in DEFAULTS if key not in engine}
    if "max_num_batched_tokens" in assumed and engine.get("chunked_prefill") is False:
        # The experiment looks up the longest request, where no source gives max_model_len.
        if longest := engine.get("max_model_len"):
            assumed["max_num_batched_tokens"] = unsplit_tokens(int(longest))
        else:
            del assumed["max_num_batched_tokens"]
    if assumed:
        text = ", ".join(f"{key} {shown(value)}" for key, value in assumed.items())
        text = f"assuming {text}: no source gives them; use --engine KEY=VALUE if it was different"
        findings.note("engine", text, len(assumed))
    unknown = [key for key in ("version", "kv_cpu_offload", "total_kv_blocks") if key not in engine]
    if unknown:
        more = "; KV blocks are computed from memory" if "total_kv_blocks" in unknown else ""
        text = f"{', '.join(unknown)}: no source gives them, left out{more}; --engine KEY=VALUE sets them"
        findings.note("engine", text, len(unknown))
    engine.update(assumed)
    return {key: engine[key] for key in ENGINE_KEYS if key in engine}


def _recorded(
    settings: ServerSettings, log: EngineLog, listed: Listed, traced_kv_blocks: int | None, findings: FolderFindings
) -> dict[str, Setting]:
    """The settings that the folder and the manifest give."""
    offload = log.kv_offload
    if offload is None:
        offload = listed.cpu_offload
    elif listed.cpu_offload not in (None, offload):
        text = f"KV offload to CPU is {shown(offload)}, {FILE} says {shown(listed.cpu_offload)}: the log is used"
        findings.warn("vllm.log", text)
    from_log = {
        "version": log.version,
        "tensor_parallel": log.tensor_parallel,
        "max_model_len": log.max_model_len,
        "chunked_prefill": log.chunked_prefill,
        "prefix_caching": log.prefix_caching,
    }
    for key, value in settings.engine.items():
        if from_log.get(key) not in (None, value):
            text = f"{key} is {from_log[key]}, exp-config.yaml or the folder's name says {value}: that is used"
            findings.warn("vllm.log", text)
    blocks = log.usable_blocks
    if traced_kv_blocks is not None:
        if blocks not in (None, traced_kv_blocks):
            text = f"{blocks:,} KV blocks, the traces say {traced_kv_blocks:,}: the traces are used"
            findings.warn("vllm.log", text)
        blocks = traced_kv_blocks
    if (log.pipeline_parallel or 1) > 1:
        text = f"{log.pipeline_parallel} pipeline stages: replayed as one"
        findings.warn("vllm.log", text)
    everything: dict[str, Setting | None] = {
        "name": "vllm",
        **from_log,
        **settings.engine,
        "gpu_memory_utilization": listed.gpu_mem,
        "kv_cpu_offload": offload,
        "total_kv_blocks": blocks,
    }
    return {key: value for key, value in everything.items() if value is not None}
