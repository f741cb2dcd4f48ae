"""One folder as the spec of an experiment, with notes on assumptions.

Each engine setting is from the most trusted source: the user's --engine, the traces (KV blocks), exp-config.yaml,
vllm.log, the manifest, vLLM's defaults.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from evolve.ingest.columns import NONE
from evolve.ingest.derive.requests import components, reports_of
from evolve.ingest.folder import Derived, Inputs
from evolve.ingest.options import Given
from evolve.ingest.quality import Quality, quality_of
from evolve.ingest.read.log import EngineLog
from evolve.ingest.read.reports import Reports, observed_json
from evolve.ingest.read.settings import LoadSettings, ServerSettings, undescribed
from evolve.ingest.read.sources import MANIFEST, PER_REQUEST, Folder, Listed
from evolve.ingest.read.values import FolderFindings
from simulator.common.errors import InputError, shown
from simulator.common.json import JsonObject
from simulator.model.quantization import is_quantized
from simulator.serving.engine import SETTINGS, STANDARD, Setting, unsplit_tokens
from simulator.serving.experiment import deploy
from simulator.serving.gpu import hardware_table
from simulator.serving.model import known_models
from simulator.serving.observations import COMPONENT_REQUESTS, COMPONENTS
from simulator.serving.spec import Spec, read_spec
from simulator.serving.traces.read import read_trace
from simulator.serving.workload_entry import NO_FILES, stage_entry

DEFAULTS = (
    *("max_num_seqs", "max_num_batched_tokens", "block_size", "gpu_memory_utilization"),
    *("chunked_prefill", "prefix_caching"),
)
"""Keys that get the project's default, with a finding, if no source gives them."""

REQUESTS = "requests.parquet"
WIDE = ("FP16", "BF16")  # precisions of weights that need no quantization_config
MOST_WITHOUT = 0.01  # of the client's requests may lack a journey before a note on the requests behind the components


def describe(
    inputs: Inputs, derived: Derived, tables: Path, given: Given, findings: FolderFindings
) -> tuple[Spec | None, Quality]:
    """The run as a spec, None if the folder does not hold enough for one, and its quality.

    `tables`: the folder of its tables. Raises InputError if neither an option nor the manifest names the GPU.
    """
    reports = inputs.reports
    if not reports.all and inputs.clients is not None:
        reports = reports_of(derived.requests, f"{inputs.folder.results}/{PER_REQUEST}")
        findings.note("reports", "there are none: observed figures are taken from the client's rows")
    quality = quality_of(inputs, derived, reports)
    findings += quality.findings
    return _spec(inputs, derived, tables, reports, quality, given, findings), quality


def _spec(
    inputs: Inputs,
    derived: Derived,
    tables: Path,
    reports: Reports,
    quality: Quality,
    given: Given,
    findings: FolderFindings,
) -> Spec | None:
    """The run as a spec that can be deployed; None, with a finding that says why, if the folder does not hold enough.

    `reports`: its own, or made from client rows. Where no file describes the load, the run's requests are replayed one
    by one from their table.
    """
    folder, settings = inputs.folder, inputs.settings
    requests = tables / REQUESTS if len(derived.requests) else None
    hardware = _hardware(folder, given, findings)
    engine = _engine(settings, inputs.log, folder.listed, given.engine, _kv_blocks(derived), findings)
    model, load = settings.model or folder.listed.model, settings.load
    if load and not requests:
        load = _by_reports(load, reports, findings)
    described = undescribed(load)
    replayed = bool(requests) and (bool(described) or (load is not None and load.shared_prefix is None))
    missing = [] if model else ["model"]
    if "tensor_parallel" not in engine:
        missing.append("tensor_parallel (--engine tensor_parallel=N sets it)")
    if not requests:
        missing += described
    if missing:
        findings.warn(folder.name, f"no experiment is written: {', '.join(missing)} unknown", len(missing))
        return None
    assert model, "it is not missing"
    listed, terms = known_models().get(model), given.models.get(model)
    if listed:
        _check_precision(listed, folder.listed.precision, findings)
    if listed is None and terms is None:
        text = f"{model} is not in the model table: no experiment is written"
        findings.warn("exp-config.yaml", f"{text}; --model-config {model}=config.json adds it")
        return None
    entry: JsonObject = {"id": _id(folder, listed), "source_run": folder.name}
    entry["model"] = listed["id"] if listed else model
    if terms:
        entry["model_config"] = dict(terms)
    entry |= {"hardware": hardware, "engine": dict(engine)}
    if replayed:
        source = load.source if load else f"{folder.results}/config.yaml"
        why = f"does not give {', '.join(described)}" if described else "gives distributions of lengths"
        findings.note(source, f"{why}: the run's requests are replayed one by one")
        quality = quality.as_sent  # its requests are replayed when they were sent
        entry["workload"] = {
            "name": folder.parts.workload or folder.name,
            "trace": f"{folder.name}/{REQUESTS}",
            "ignore_eos": not load or load.ignore_eos is not False,
            "timeout_s": quality.timeout_s,
        }
    else:
        assert load, "all of it is described"
        entry["workload"] = _workload(folder, load, reports, quality, _prompt_len(derived))
        if observed := _observed(reports, load, findings):
            entry["observed"] = observed
    notes = [*quality.reasons, *_notes(settings)]
    entry |= {"quality": quality.label, **_components(inputs, derived, notes), "x_note": notes}
    try:
        files = replace(NO_FILES, trace=partial(read_trace, requests)) if requests else NO_FILES
        spec = read_spec(entry, folder.name, files)
        deploy(spec)
    except InputError as e:
        findings.warn(folder.name, f"no experiment is written: {e}")
        return None
    return spec


def _components(inputs: Inputs, derived: Derived, notes: list[str]) -> JsonObject:
    """The keys of the parts of the mean E2E, with a note if few requests have them; none without them."""
    parts = components(derived.requests)
    if parts is None:
        return {}
    journeys, rows = len(inputs.journeys), len(inputs.clients) if inputs.clients else 0
    if journeys < (1 - MOST_WITHOUT) * rows:
        notes.append(f"the traces cover {journeys:,} of {rows:,} requests: the parts of the E2E are means over these")
    by_name, requests = parts
    return {COMPONENTS: by_name, COMPONENT_REQUESTS: requests}


def _hardware(folder: Folder, given: Given, findings: FolderFindings) -> str:
    """The GPU's canonical name, or its name as given if it is not in the hardware table."""
    listed = folder.listed.hardware
    name = given.hardware or listed
    if name is None:
        raise InputError(f"{folder.name}: no file names the GPU: name it with --hardware")
    table = hardware_table()
    if name not in table:
        findings.warn(MANIFEST, f"GPU {name} is not in the hardware table: choose one from it with --hardware")
        return name
    canonical = str(table[name]["name"])
    if given.hardware and listed and table.get(listed, {}).get("name") != canonical:
        findings.warn(MANIFEST, f"says GPU {listed}, --hardware {canonical}: the option is used")
    return canonical


def _by_reports(load: LoadSettings, reports: Reports, findings: FolderFindings) -> LoadSettings:
    """The load with the mean lengths of the reports, where its data are of a kind that says no lengths."""
    if load.shared_prefix or load.shared_prefix_data:
        return load
    means = {
        "prompt_len": _mean(reports, "prompt_len"),
        # Under ignore_eos answers are as long as was asked for, and reports have a client's tokenisation of them.
        "output_len": _mean(reports, "reported_output_len"),
    }
    kept = {"prompt_len": load.prompt_len, "output_len": load.output_len if load.ignore_eos is not False else None}
    found = {key: max(1, round(mean)) for key, mean in means.items() if kept[key] is None and mean is not None}
    if found:
        text = ", ".join(f"{key} {value:,}" for key, value in found.items())
        findings.note(load.source, f"gives no {' and no '.join(found)}: the mean of the reports is taken, {text}")
    return replace(
        load,
        prompt_len=found.get("prompt_len", load.prompt_len),
        output_len=found.get("output_len", load.output_len),
    )


def _id(folder: Folder, listed: Mapping[str, Any] | None) -> str:
    """`<model>-tp<N>-<workload>` for folders named by time; names of the other scheme are ids already."""
    parts = folder.parts
    if parts.stamp is None or parts.group is None:
        return folder.name
    model = listed["aliases"][0] if listed and listed["aliases"] else parts.group
    return f"{model}-tp{parts.tensor_parallel}-{parts.workload}"


def _workload(
    folder: Folder, load: LoadSettings, reports: Reports, quality: Quality, prompt_len: float | None
) -> JsonObject:
    assert load.stages and load.output_len, "neither is missing"
    prompts: JsonObject = {"prompt_len": load.prompt_len}
    if load.shared_prefix:
        distinct = load.shared_prefix.groups * load.shared_prefix.prompts_per_group
        mean = prompt_len or _mean(reports, "prompt_len")
        # Enough decimals to recover the total tokens of the prompts, and at least those of the files that ship.
        decimals = max(2, len(str(distinct)) - 1)
        mean = None if mean is None else round(mean, decimals)
        prompts = {"shared_prefix": asdict(load.shared_prefix), "prompt_len_mean": mean}
    return {
        "name": folder.parts.workload or folder.name,
        **({} if load.stages[0].users else {"arrival": load.arrival or "constant"}),
        "stages": [stage_entry(s) for s in load.stages],
        **prompts,
        "output_len": load.output_len,
        "ignore_eos": load.ignore_eos is not False,
        "timeout_s": quality.timeout_s,
    }


def _mean(reports: Reports, which: str) -> float | None:
    """The mean length of completed requests in tokens; None below 1, which cannot be replayed."""
    lengths = [(r.completed, getattr(r, which)) for r in reports.of_run]
    pairs = [(n, length["mean"]) for n, length in lengths if n and "mean" in length]
    total = sum(n for n, _ in pairs)
    mean = sum(n * length for n, length in pairs) / total if total else 0.0
    if len(pairs) == 1:
        mean = pairs[0][1]  # exactly, without the rounding of the weighted mean
    return mean if mean >= 1 else None


def _observed(reports: Reports, load: LoadSettings, findings: FolderFindings) -> JsonObject:
    """The reports of the run and of its stages as `observed`; empty where there are none."""
    assert load.stages and load.output_len, "neither is missing"
    count, output_len = len(load.stages), load.output_len if isinstance(load.output_len, int) else None
    stages = dict(reports.stages)
    if reports.summary and count == 1 and not stages:
        stages = {0: reports.summary}
        findings.note(reports.summary.source, "is used for the only stage as well")
    beyond = [k for k in stages if k >= count]
    text = f"stage {', '.join(map(str, beyond[:8]))}: {load.source} has {count} stages: left out"
    findings.warn("reports", text, len(beyond))
    absent = [k for k in range(count) if k not in stages]
    if len(absent) < count:
        text = f"stage {', '.join(map(str, absent[:8]))} of {count} has no report: nothing was observed of it"
        findings.warn("reports", text, len(absent))
    elif reports.summary:
        findings.warn("reports", "no stage has a report: the run can be predicted, but not fitted", count)
    else:
        findings.warn("reports", "nothing was observed: the run can only be predicted")
    observed: JsonObject = {}
    if reports.summary:
        observed["summary"] = observed_json(reports.summary, output_len)
    if len(absent) < count:
        each = map(stages.get, range(count))
        observed["stages"] = [observed_json(report, output_len) if report else {} for report in each]
    return observed


def _check_precision(listed: Mapping[str, Any], precision: str | None, findings: FolderFindings) -> None:
    if precision and precision.upper() not in WIDE and not is_quantized(listed["config"]):
        text = f"the weights are not {' or '.join(WIDE)}, but {listed['id']} is not quantized: name the served one"
        findings.warn(MANIFEST, text)


def _notes(settings: ServerSettings) -> list[str]:
    notes = []
    if settings.requested:
        notes.append("the load is the requested one of profile.yaml: no config.yaml describes the load that ran")
    if settings.load and settings.load.multi_turn:
        notes.append("a chat with several turns ran, replayed as single turns")
    return notes


def _kv_blocks(derived: Derived) -> int | None:
    """Usable KV blocks according to most sampled steps."""
    blocks = derived.sampled.get("kv_blocks_total", np.zeros(0, np.int64))
    sizes, often = np.unique(blocks[blocks != NONE], return_counts=True)
    return int(sizes[often.argmax()]) if len(sizes) else None


def _prompt_len(derived: Derived) -> float | None:
    """The mean prompt length in tokens as the server counts them; the reports have the client's count."""
    columns = derived.requests.columns
    lengths = columns["prompt_tokens"][columns["usable"] & columns["completed"]]
    return float(lengths.mean()) if len(lengths) else None


def _engine(
    settings: ServerSettings,
    log: EngineLog,
    listed: Listed,
    overrides: Mapping[str, Setting],
    traced_kv_blocks: int | None,
    findings: FolderFindings,
) -> dict[str, Setting]:
    """The settings by SETTINGS, in their order; keys that no source knows are left out.

    `traced_kv_blocks` is `kv.blocks_total_gpu` of the traces: the blocks that requests can use.
    """
    engine = _recorded(settings, log, listed, traced_kv_blocks, overrides, findings)
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
    text = ", ".join(f"{key} {shown(value)}" for key, value in assumed.items())
    text = f"assuming {text}: no source gives them; use --engine KEY=VALUE if it was different"
    findings.note("engine", text, len(assumed))
    unknown = [key for key in ("version", "kv_cpu_offload", "total_kv_blocks") if key not in engine]
    more = "; KV blocks are computed from memory" if "total_kv_blocks" in unknown else ""
    text = f"{', '.join(unknown)}: no source gives them, left out{more}; --engine KEY=VALUE sets them"
    findings.note("engine", text, len(unknown))
    engine.update(assumed)
    return {key: engine[key] for key in SETTINGS if key in engine}


def _recorded(
    settings: ServerSettings,
    log: EngineLog,
    listed: Listed,
    traced_kv_blocks: int | None,
    given: Mapping[str, Setting],
    findings: FolderFindings,
) -> dict[str, Setting]:
    """The settings that the folder and the manifest give. `given`: the user's own."""
    offload = log.kv_offload
    if offload is None:
        offload = listed.cpu_offload
    elif listed.cpu_offload not in (None, offload):
        text = f"KV offload to CPU is {shown(offload)}, {MANIFEST} says {shown(listed.cpu_offload)}: the log is used"
        findings.warn("vllm.log", text)
    from_log = {
        "version": log.version,
        "tensor_parallel": log.tensor_parallel,
        "max_model_len": log.max_model_len,
        "chunked_prefill": log.chunked_prefill,
        "prefix_caching": log.prefix_caching,
        "async_scheduling": log.async_scheduling,
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
    if log.drafts and "num_speculative_tokens" not in given:
        text = f"speculative decoding ({log.drafts}): replayed without; give --engine speculative_config=JSON and"
        findings.warn("vllm.log", f"{text} --engine speculative_acceptance=SHARE, vLLM's draft acceptance rate")
    everything: dict[str, Setting | None] = {
        "name": "vllm",
        **from_log,
        **settings.engine,
        "gpu_memory_utilization": listed.gpu_mem,
        "kv_cpu_offload": offload,
        "total_kv_blocks": blocks,
    }
    return {key: value for key, value in everything.items() if value is not None}
