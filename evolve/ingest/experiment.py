"""One folder as an entry of an experiments file; its notes say what had to be assumed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from evolve.ingest.columns import NONE
from evolve.ingest.derive.requests import components, reports_of
from evolve.ingest.engine import make_engine
from evolve.ingest.entry import EntryComponents, ExperimentEntry, ObservedEntry, TraceEntry, WorkloadEntry
from evolve.ingest.folder import Derived, Inputs
from evolve.ingest.options import Given, Setting
from evolve.ingest.quality import Quality, quality_of
from evolve.ingest.read.manifest import FILE
from evolve.ingest.read.reports import Reports
from evolve.ingest.read.settings import LoadSettings, ServerSettings
from evolve.ingest.read.sources import PER_REQUEST, Folder
from evolve.ingest.read.values import FolderFindings
from simulator.common.errors import InputError
from simulator.serving.bundled import hardware_table, known_models
from simulator.serving.file import experiment_from_mapping
from simulator.serving.traces.read import read_trace
from simulator.serving.workload_entry import NO_FILES

REQUESTS = "requests.parquet"
WIDE = ("FP16", "BF16")  # precisions of weights that need no quantization_config
MOST_WITHOUT = 0.01  # of the client's requests may lack a journey before a note says how many the components rest on


def describe(
    inputs: Inputs, derived: Derived, tables: Path, given: Given, findings: FolderFindings
) -> tuple[ExperimentEntry | None, Quality]:
    """The run's entry, None if the folder does not hold enough for one, and its quality.

    `tables`: where its tables are. Raises InputError if neither an option nor the manifest names the GPU.
    """
    reports = inputs.reports
    if not reports.all and inputs.clients is not None:
        reports = reports_of(derived.requests, f"{inputs.folder.results}/{PER_REQUEST}")
        findings.note("reports", "there are none: observed figures are taken from the client's rows")
    quality = quality_of(inputs, derived, reports)
    findings += quality.findings
    entry = _entry(inputs, derived, tables, reports, quality, given, findings)
    parts = components(derived.requests)
    if entry is None or parts is None:
        return entry, quality
    journeys, rows, note = len(inputs.journeys), len(inputs.clients) if inputs.clients else 0, None
    if journeys < (1 - MOST_WITHOUT) * rows:
        note = f"the traces cover {journeys:,} of {rows:,} requests: the parts of the E2E rest on these"
    return replace(entry, components=EntryComponents(*parts, note)), quality


def _entry(
    inputs: Inputs,
    derived: Derived,
    tables: Path,
    reports: Reports,
    quality: Quality,
    given: Given,
    findings: FolderFindings,
) -> ExperimentEntry | None:
    """The entry without the parts of its E2E; None, with a finding that says why, if the folder does not hold enough.

    `reports`: its own, or made from client rows. Where no file describes the load, the run's requests are replayed one
    by one from their table. An entry that is returned has been read back like `evolve fit` reads it.
    """
    folder, settings = inputs.folder, inputs.settings
    requests = tables / REQUESTS if len(derived.requests) else None
    hardware = _hardware(folder, given, findings)
    engine = make_engine(settings, inputs.log, folder.listed, given.engine, _kv_blocks(derived), findings)
    model, load = settings.model or folder.listed.model, settings.load
    described = _undescribed(load)
    missing = _missing(model, engine) + ([] if requests else described)
    if missing:
        findings.warn(folder.name, f"no experiment is written: {', '.join(missing)} unknown", len(missing))
        return None
    assert model, "it is not missing"
    listed, terms = known_models().get(model), given.models.get(model)
    if listed:
        _check_precision(listed, folder.listed.precision, findings)
    if listed is None and terms is None:
        text = (
            f"{model} is not in the model table: no experiment is written; --model-config {model}=config.json adds it"
        )
        findings.warn("exp-config.yaml", text)
        return None
    workload: WorkloadEntry | TraceEntry
    observed = None
    if described:
        source = load.source if load else f"{folder.results}/config.yaml"
        findings.note(source, f"does not give {', '.join(described)}: the run's requests are replayed one by one")
        name, eos = folder.parts.workload or folder.name, load.ignore_eos if load else None
        quality = quality.as_sent  # its requests are replayed when they were sent
        workload = TraceEntry(name, f"{folder.name}/{REQUESTS}", eos, quality.timeout_s)
    else:
        assert load, "all of it is described"
        workload = _workload(folder, load, reports, quality, _prompt_len(derived))
        observed = _observed(reports, load, findings)
    entry = ExperimentEntry(
        id=_id(folder, listed),
        source_run=folder.name,
        model=listed["id"] if listed else model,
        model_config=terms,
        hardware=hardware,
        engine=engine,
        workload=workload,
        observed=observed,
        quality=quality.label,
        notes=(*quality.reasons, *_notes(settings)),
    )
    try:
        files = replace(NO_FILES, trace=partial(read_trace, requests)) if requests else NO_FILES
        experiment_from_mapping(entry.to_json(), folder.name, known_models(), hardware_table(), files)
    except InputError as e:
        findings.warn(folder.name, f"no experiment is written: {e}")
        return None
    return entry


def _hardware(folder: Folder, given: Given, findings: FolderFindings) -> str:
    """The GPU's canonical name, or its name as given if it is not in the hardware table."""
    listed = folder.listed.hardware
    name = given.hardware or listed
    if name is None:
        raise InputError(f"{folder.name}: no file names the GPU: name it with --hardware")
    table = hardware_table()
    if name not in table:
        findings.warn(FILE, f"GPU {name} is not in the hardware table: choose one from it with --hardware")
        return name
    canonical = str(table[name]["name"])
    if given.hardware and listed and table.get(listed, {}).get("name") != canonical:
        findings.warn(FILE, f"says GPU {listed}, --hardware {canonical}: the option is used")
    return canonical


def _missing(model: str | None, engine: Mapping[str, Setting]) -> list[str]:
    missing = [] if model else ["model"]
    return missing + ([] if "tensor_parallel" in engine else ["tensor_parallel (--engine tensor_parallel=N sets it)"])


def _undescribed(load: LoadSettings | None) -> list[str]:
    """What no file says of the load that a load generator drew."""
    return [key for key in ("stages", "shared_prefix", "output_len") if load is None or getattr(load, key) is None]


def _id(folder: Folder, listed: Mapping[str, Any] | None) -> str:
    """`<model>-tp<N>-<workload>` for folders named by time; names of the other scheme are ids already."""
    parts = folder.parts
    if parts.stamp is None or parts.group is None:
        return folder.name
    model = listed["aliases"][0] if listed and listed["aliases"] else parts.group
    return f"{model}-tp{parts.tensor_parallel}-{parts.workload}"


def _workload(
    folder: Folder, load: LoadSettings, reports: Reports, quality: Quality, prompt_len: float | None
) -> WorkloadEntry:
    assert load.stages and load.shared_prefix and load.output_len, "none of them is missing"
    prompts = load.shared_prefix.groups * load.shared_prefix.prompts_per_group
    mean = prompt_len or _prompt_len_mean(reports)
    # Enough decimals to recover the total length of the prompts in tokens, and at least those of the files that ship.
    decimals = max(2, len(str(prompts)) - 1)
    return WorkloadEntry(
        name=folder.parts.workload or folder.name,
        arrival=load.arrival or "constant",
        stages=load.stages,
        shared_prefix=load.shared_prefix,
        prompt_len_mean=None if mean is None else round(mean, decimals),
        output_len=load.output_len,
        ignore_eos=load.ignore_eos,
        timeout_s=quality.timeout_s,
    )


def _prompt_len_mean(reports: Reports) -> float | None:
    """The mean prompt length of completed requests in tokens; None below 1, which cannot be replayed."""
    pairs = [(r.completed, r.prompt_len["mean"]) for r in reports.of_run if r.completed and "mean" in r.prompt_len]
    total = sum(n for n, _ in pairs)
    mean = sum(n * length for n, length in pairs) / total if total else 0.0
    if len(pairs) == 1:
        mean = pairs[0][1]  # exactly, without the rounding of the weighted mean
    return mean if mean >= 1 else None


def _observed(reports: Reports, load: LoadSettings, findings: FolderFindings) -> ObservedEntry:
    assert load.stages and load.output_len, "neither is missing"
    count = len(load.stages)
    stages = dict(reports.stages)
    if reports.summary and count == 1 and not stages:
        stages = {0: reports.summary}
        findings.note(reports.summary.source, "is used for the only stage as well")
    beyond = [k for k in stages if k >= count]
    if beyond:
        text = f"stage {', '.join(map(str, beyond[:8]))}: {load.source} has {count} stages: left out"
        findings.warn("reports", text, len(beyond))
    absent = [k for k in range(count) if k not in stages]
    if len(absent) < count:
        if absent:
            text = f"stage {', '.join(map(str, absent[:8]))} of {count} has no report: nothing was observed of it"
            findings.warn("reports", text, len(absent))
    elif reports.summary:
        findings.warn("reports", "no stage has a report: the run can be predicted, but not fitted", count)
    else:
        findings.warn("reports", "nothing was observed: the run can only be predicted")
    return ObservedEntry(reports.summary, tuple(map(stages.get, range(count))), load.output_len)


def _check_precision(listed: Mapping[str, Any], precision: str | None, findings: FolderFindings) -> None:
    """A finding if the weights were quantized, but the model of the table is not."""
    bare = {"quantization", "quantization_config"}.isdisjoint(listed["config"])
    if precision and precision.upper() not in WIDE and bare:
        text = f"the weights are not {' or '.join(WIDE)}, but {listed['id']} is not quantized: name the served one"
        findings.warn(FILE, text)


def _notes(settings: ServerSettings) -> list[str]:
    """What a reader of the experiment must know."""
    notes = []
    if settings.requested:
        notes.append("the load is what profile.yaml requested, not necessarily what ran: no config.yaml gives it")
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
