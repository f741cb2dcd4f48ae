"""One experiment's folder: read every source that is there, derive what follows, write the tables.

A source that is missing or cannot be read narrows the output, and a finding says so.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np

from evolve.ingest.columns import NONE, Columns
from evolve.ingest.derive.batches import Batches, reconstruct
from evolve.ingest.derive.blocks import BlockChains
from evolve.ingest.derive.journeys import Journey, journeys_of
from evolve.ingest.derive.matching import Joined, epoch_offset, join
from evolve.ingest.derive.requests import RequestTable, requests_of
from evolve.ingest.derive.steps import BACKWARDS, CONFLICTING, MIXED, Cycles, cycles_of, mixed, sampled_steps
from evolve.ingest.read.clients import Clients, read_clients
from evolve.ingest.read.log import EngineLog, read_log
from evolve.ingest.read.reports import Reports, read_reports
from evolve.ingest.read.settings import ServerSettings, read_settings
from evolve.ingest.read.sources import PER_REQUEST, Folder
from evolve.ingest.read.traces import Traces, read_traces
from evolve.ingest.read.values import FolderFindings
from evolve.ingest.write.steps import WrittenSteps, write_steps
from evolve.ingest.write.tables import write_cycles, write_journeys, write_kv_events, write_requests
from simulator.common.errors import reason
from simulator.serving.experiment import STANDARD, unsplit_tokens

LEAST_JOURNEYS = 0.9  # of the client's requests; with fewer, batches cannot be reconstructed

T = TypeVar("T")


@dataclass(frozen=True)
class Inputs:
    """What was read from a folder. `epoch` is wall clock minus server clock and its spread in s, `kv_events` the rows
    of their table, `tally` counts what readers skipped, by source."""

    folder: Folder
    settings: ServerSettings
    log: EngineLog
    reports: Reports
    traces: Traces | None
    journeys: Sequence[Journey]
    clients: Clients | None
    chains: BlockChains | None
    kv_events: int
    joined: Joined
    epoch: tuple[float, float] | None
    tally: dict[str, Counter[str]]


@dataclass(frozen=True)
class Derived:
    """What follows from it. `sampled` are batch summaries, one per step; `rows` counts the rows of each table."""

    batches: Batches | None
    asynchronous: bool | None
    requests: RequestTable
    sampled: Columns
    cycles: Cycles | None
    steps: WrittenSteps
    rows: dict[str, int]


def read(folder: Folder, out: Path, on_read: Callable[[int], None]) -> tuple[Inputs, FolderFindings]:
    """Read everything. KV events stream straight into their table in `out`; `on_read` gets the bytes read."""
    findings = FolderFindings(folder.findings)
    tally: dict[str, Counter[str]] = {}
    settings, log, reports = read_settings(folder), read_log(folder.log), read_reports(folder)
    findings += [*settings.findings, *log.findings, *reports.findings]
    traces = _try(folder.traces, "traces.json", findings, lambda path: read_traces(path, on_read))
    chains, kv_events = BlockChains(), 0
    if folder.kv_events is not None:
        tally["kv_events.jsonl"] = Counter()
        kv_events = write_kv_events(folder, out, chains, tally["kv_events.jsonl"], findings, on_read)
    source = f"{folder.results}/{PER_REQUEST}"
    clients = _try(folder.per_request, source, findings, lambda path: read_clients(path, on_read))
    journeys: list[Journey] = []
    if traces is not None:
        tally["traces.json"] = traces.tally
        journeys = journeys_of(traces.journey_events, traces.tally)
        if not traces.spans:
            findings.warn("traces.json", "contains no span of this server: nothing is taken from it")
            traces = None
    if clients is not None:
        tally[source] = clients.tally
        if not len(clients):
            findings.warn(source, "contains no readable row: nothing is taken from it")
            clients = None
    inputs = Inputs(
        folder=folder,
        settings=settings,
        log=log,
        reports=reports,
        traces=traces,
        journeys=journeys,
        clients=clients,
        chains=chains if kv_events else None,
        kv_events=kv_events,
        joined=join(traces, journeys, clients),
        epoch=epoch_offset(traces.journey_events) if traces else None,
        tally=tally,
    )
    return inputs, findings


def _try(path: Path | None, source: str, findings: FolderFindings, reader: Callable[[Path], T]) -> T | None:
    """What the reader returns; None without a file, and with a finding if it cannot be read."""
    if path is None:
        return None
    try:
        return reader(path)
    except OSError as e:
        findings.warn(source, f"left out: cannot be read ({reason(e)})")
        return None


def derive(inputs: Inputs, out: Path, findings: FolderFindings) -> Derived:
    """Work out batches, requests and cycles, and write their tables to `out`."""
    run, traces, joined = inputs.folder.name, inputs.traces, inputs.joined
    sampled = sampled_steps(traces.steps, traces.tally) if traces else {}
    several = traces is not None and _several_engines(traces, sampled, findings)
    batches = None if several else _batches(inputs, findings)
    asynchronous = batches.asynchronous if batches else inputs.log.async_scheduling
    requests = requests_of(joined, traces, inputs.journeys, inputs.clients, batches, inputs.settings)
    rows: dict[str, int] = {}
    if len(requests):
        rows["requests"] = write_requests(out, run, requests)
    steps, cycles = WrittenSteps(), None
    if traces is not None:
        row_of = joined.row_of_core(len(traces.core_ids))
        rows["journeys"] = write_journeys(out, run, traces, joined, row_of)
        if not several:
            if len(sampled["step_id"]) or batches:
                steps = write_steps(out, run, sampled, batches, asynchronous, row_of)
                rows["steps"] = steps.rows
            cycles = cycles_of(sampled, asynchronous is not False)
            rows["cycles"] = write_cycles(out, run, cycles, sampled["step_id"])
    if inputs.kv_events:
        rows["kv_events"] = inputs.kv_events
    return Derived(batches, asynchronous, requests, sampled, cycles, steps, rows)


def _several_engines(traces: Traces, sampled: Columns, findings: FolderFindings) -> bool:
    several, backwards = mixed(sampled, traces.tally[CONFLICTING], traces.journey_events)
    traces.tally[BACKWARDS] += backwards
    if several:
        findings.warn("traces.json", MIXED)
    return several


def _batches(inputs: Inputs, findings: FolderFindings) -> Batches | None:
    """The batches of all steps, None if there are too few journeys for that."""
    traces, journeys, clients, joined = inputs.traces, inputs.journeys, inputs.clients, inputs.joined
    if traces is None or not any(journey.scheduled_ns is not None for journey in journeys):
        return None
    if clients is not None and len(journeys) < LEAST_JOURNEYS * len(clients):
        text = (
            f"journeys of {len(journeys):,} of the client's {len(clients):,} requests: too few to reconstruct batches"
        )
        findings.warn("traces.json", text, len(clients) - len(journeys))
        return None
    budget = inputs.settings.engine.get("max_num_batched_tokens")
    if budget is None and inputs.log.chunked_prefill is False and inputs.log.max_model_len:
        budget = unsplit_tokens(inputs.log.max_model_len)
    if not budget:
        budget = STANDARD.max_num_batched_tokens
        findings.warn("exp-config.yaml", f"gives no max_num_batched_tokens: long prompts are split as with {budget}")
    if inputs.log.async_scheduling is None:
        findings.note("vllm.log", "does not say whether scheduling is asynchronous: inferred from the summaries")
    prompts = np.full(len(traces.core_ids) if clients else 0, NONE)
    if clients is not None:
        paired = (joined.client >= 0) & (joined.core >= 0)
        prompts[joined.core[paired]] = clients.rows["prompt"][joined.client[paired]]
    return reconstruct(
        traces,
        journeys,
        inputs.chains,
        epoch_offset_s=inputs.epoch[0] if inputs.epoch else 0.0,
        same_prompt=prompts.tolist(),
        budget=budget,
        block=(inputs.chains.block_size if inputs.chains else None) or STANDARD.block_size,
        caching=inputs.log.prefix_caching is not False,
        asynchronous=inputs.log.async_scheduling,
    )
