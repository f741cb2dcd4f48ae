"""The `engine` mapping of an experiment, from whichever source knows a setting, and what had to be assumed.

In order: the user's --engine, the traces (KV blocks), exp-config.yaml, vllm.log, the manifest, vLLM's defaults.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from evolve.ingest.sources.findings import Finding, warning
from evolve.ingest.sources.log import Log
from evolve.ingest.sources.manifest import FILE, Listed
from evolve.ingest.sources.settings import Settings
from evolve.ingest.sources.values import plain
from simulator.errors import InputError, Section, nearest, shown
from simulator.experiment.experiment import Engine
from simulator.experiment.file import engine_of

ORDER = (
    *("name", "version", "tensor_parallel", "max_num_seqs", "max_num_batched_tokens", "max_model_len", "block_size"),
    *("gpu_memory_utilization", "chunked_prefill", "prefix_caching", "long_prefill_token_threshold"),
    *("kv_cpu_offload", "total_kv_blocks"),
)
"""The keys as they stand in the files that ship."""

DEFAULTS = (
    *("max_num_seqs", "max_num_batched_tokens", "block_size", "gpu_memory_utilization"),
    *("chunked_prefill", "prefix_caching"),
)
"""Keys written with the project's default where no source gives them, and said so."""


def parse_overrides(pairs: Sequence[str]) -> dict[str, Any]:
    """`KEY=VALUE` texts of --engine as checked settings. Raises InputError for anything but a setting of its type."""
    given: dict[str, Any] = {}
    for pair in pairs:
        key, equals, value = (part.strip() for part in pair.partition("="))
        if not equals or not key:
            raise InputError(f"--engine {plain(pair)}: is not KEY=VALUE: write it like --engine max_num_seqs=64")
        if key not in ORDER:
            raise InputError(f"--engine {plain(key)}: is no setting of the engine: {nearest(key, ORDER)}")
        if key in given:
            raise InputError(f"--engine {plain(key)}: is given twice: give it once")
        given[key] = value if key in ("name", "version") else _scalar(value)
    engine_of(Section("--engine", "", given))
    return given


def make_engine(
    settings: Settings,
    log: Log,
    listed: Listed,
    overrides: Mapping[str, Any],
    traced_kv_blocks: int | None = None,
) -> tuple[dict[str, Any], list[Finding]]:
    """The engine's mapping, its keys in ORDER, and the findings. A key that nobody knows is left out.

    `traced_kv_blocks` is `kv.blocks_total_gpu` of the traces: the blocks that requests can use.
    """
    findings: list[Finding] = []
    known = _known(settings, log, listed, traced_kv_blocks, findings)
    for key, value in overrides.items():
        if key in known and known[key] != value:
            text = f"{key} is {shown(value)} as given, the folder says {shown(known[key])}"
            findings.append(Finding("--engine", 1, text))
    known.update(overrides)
    standard = Engine()
    assumed = {key: getattr(standard, key) for key in DEFAULTS if key not in known}
    if assumed:
        text = ", ".join(f"{key} {shown(value)}" for key, value in assumed.items())
        text = f"taken as {text}: no source gives them; give --engine KEY=VALUE where it was otherwise"
        findings.append(Finding("engine", len(assumed), text))
    unknown = [key for key in ("version", "kv_cpu_offload", "total_kv_blocks") if key not in known]
    if unknown:
        more = "; KV blocks are computed from memory" if "total_kv_blocks" in unknown else ""
        text = f"{', '.join(unknown)}: no source gives them, left out{more}; --engine KEY=VALUE gives them"
        findings.append(Finding("engine", len(unknown), text))
    known.update(assumed)
    return {key: known[key] for key in ORDER if key in known}, findings


def _known(
    settings: Settings, log: Log, listed: Listed, traced_kv_blocks: int | None, findings: list[Finding]
) -> dict[str, Any]:
    """What the folder itself and the manifest say."""
    offload = log.kv_offload
    if offload is None:
        offload = listed.cpu_offload
    elif listed.cpu_offload not in (None, offload):
        text = f"KV offload to CPU is {shown(offload)}, {FILE} says {shown(listed.cpu_offload)}: the log counts"
        findings.append(warning("vllm.log", text))
    from_log = {
        "version": log.version,
        "tensor_parallel": log.tensor_parallel,
        "max_model_len": log.max_model_len,
        "chunked_prefill": log.chunked_prefill,
        "prefix_caching": log.prefix_caching,
    }
    for key, value in settings.engine.items():
        if from_log.get(key) not in (None, value):
            text = f"{key} is {from_log[key]}, exp-config.yaml or the folder's name says {value}: that counts"
            findings.append(warning("vllm.log", text))
    blocks = log.usable_blocks
    if traced_kv_blocks is not None:
        if blocks not in (None, traced_kv_blocks):
            text = f"{blocks:,} KV blocks, the traces say {traced_kv_blocks:,}: the traces count"
            findings.append(warning("vllm.log", text))
        blocks = traced_kv_blocks
    if (log.pipeline_parallel or 1) > 1:
        text = f"{log.pipeline_parallel} pipeline stages: replayed as one"
        findings.append(warning("vllm.log", text))
    everything = {
        "name": "vllm",
        **from_log,
        **settings.engine,
        "gpu_memory_utilization": listed.gpu_mem,
        "kv_cpu_offload": offload,
        "total_kv_blocks": blocks,
    }
    return {key: value for key, value in everything.items() if value is not None}


def _scalar(text: str) -> Any:
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
