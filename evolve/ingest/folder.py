"""One experiment's folder: read every source that is there, compute the rest, write the tables.

A source that is missing or cannot be read narrows the output, and a finding says so.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from evolve.ingest.columns import NONE, Columns
from evolve.ingest.derive.batches import Batches, reconstruct
from evolve.ingest.derive.blocks import BlockChains
from evolve.ingest.derive.cached import Evidence
from evolve.ingest.derive.journeys import Journey, journeys_of
from evolve.ingest.derive.matching import Joined, epoch_offset, join, row_of
from evolve.ingest.derive.requests import RequestTable, requests_of
from evolve.ingest.derive.steps import BACKWARDS, CONFLICTING, MIXED, Cycles, cycles_of, mixed, sampled_steps
from evolve.ingest.read.clients import Clients, read_clients
from evolve.ingest.read.kv_events import read_kv_events
from evolve.ingest.read.log import EngineLog, read_log
from evolve.ingest.read.reports import Reports, read_reports
from evolve.ingest.read.settings import ServerSettings, read_settings
from evolve.ingest.read.sources import PER_REQUEST, Folder
from evolve.ingest.read.traces import Traces, read_traces
from evolve.ingest.read.values import FolderFindings
from evolve.ingest.write import tables
from simulator.serving.engine import STANDARD, unsplit_tokens

LEAST_JOURNEYS = 0.9  # of the client's requests; with fewer, batches cannot be reconstructed

OnRead = Callable[[int], None]


@dataclass(frozen=True)
class Inputs:
    """The contents of a folder. `epoch` is wall clock minus server clock and its spread in s, `kv_events` the rows
    of their table, `tally` counts skipped items by source."""

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
    tally: Mapping[str, Counter[str]]


@dataclass(frozen=True)
class Derived:
    """Figures computed from it. `sampled` are batch summaries, one per step; `rows` counts the rows of each table."""

    batches: Batches | None
    asynchronous: bool | None
    requests: RequestTable
    sampled: Columns
    cycles: Cycles | None
    steps: tables.WrittenSteps
    rows: dict[str, int]


def read(folder: Folder, out: Path, on_read: OnRead) -> tuple[Inputs, FolderFindings]:
    """Read everything. KV events are written to their table in `out` on the way; `on_read` gets the bytes read."""
    findings = FolderFindings(folder.findings)
    tally: defaultdict[str, Counter[str]] = defaultdict(Counter)
    settings = read_settings(folder, findings)
    log = read_log(folder.files.get("vllm.log"), findings)
    reports = read_reports(folder, findings)
    files = folder.files
    traces = read_traces(files["traces.json"], on_read) if "traces.json" in files else None
    chains, kv_events = BlockChains(), 0
    if "kv_events.jsonl" in files:
        events = read_kv_events(files["kv_events.jsonl"], tally["kv_events.jsonl"], on_read)
        kv_events = tables.write_kv_events(events, out, folder.name, chains)
        if not kv_events:
            findings.warn("kv_events.jsonl", "contains no readable event: nothing is taken from it")
    rows = f"{folder.results}/{PER_REQUEST}"
    clients = read_clients(files[PER_REQUEST], on_read) if PER_REQUEST in files else None
    journeys: list[Journey] = []
    if traces is not None:
        tally["traces.json"] = traces.tally
        journeys = journeys_of(traces.journey_events, traces.tally)
        if not traces.spans:
            findings.warn("traces.json", "contains no span of this server: nothing is taken from it")
            traces = None
    if clients is not None:
        tally[rows] = clients.tally
        if not len(clients):
            findings.warn(rows, "contains no readable row: nothing is taken from it")
            clients = None
    about = (folder, settings, log, reports, traces, journeys, clients)
    epoch = epoch_offset(traces.journey_events) if traces else None
    joined = join(traces, journeys, clients)
    return Inputs(*about, chains if kv_events else None, kv_events, joined, epoch, tally), findings


def derive(inputs: Inputs, out: Path, findings: FolderFindings) -> Derived:
    """Work out batches, requests and cycles, and write their tables to `out`."""
    run, traces, joined = inputs.folder.name, inputs.traces, inputs.joined
    sampled: Columns = {}
    several = False
    if traces is not None:
        sampled = sampled_steps(traces.steps, traces.tally)
        several, backwards = mixed(sampled, traces.tally[CONFLICTING], traces.journey_events)
        traces.tally[BACKWARDS] += backwards
        if several:
            findings.warn("traces.json", MIXED)
    batches = None if several else _batches(inputs, findings)
    asynchronous = batches.asynchronous if batches else inputs.log.async_scheduling
    requests = requests_of(joined, traces, inputs.journeys, inputs.clients, batches, inputs.settings)
    rows: dict[str, int] = {}
    if len(requests):
        rows["requests"] = tables.write_requests(out, run, requests)
    steps, cycles = tables.WrittenSteps(), None
    if traces is not None:
        rows["journeys"] = tables.write_journeys(out, run, traces, joined)
        if not several:
            if len(sampled["step_id"]) or batches:
                core_rows = row_of(joined.core, len(traces.core_ids))
                steps = tables.write_steps(out, run, sampled, batches, asynchronous, core_rows)
                rows["steps"] = steps.rows
            cycles = cycles_of(sampled, asynchronous is not False)
            rows["cycles"] = tables.write_cycles(out, run, cycles, sampled["step_id"])
    if inputs.kv_events:
        rows["kv_events"] = inputs.kv_events
    return Derived(batches, asynchronous, requests, sampled, cycles, steps, rows)


def _batches(inputs: Inputs, findings: FolderFindings) -> Batches | None:
    """The batches of all steps, None if there are too few journeys for that."""
    traces, journeys, clients, log = inputs.traces, inputs.journeys, inputs.clients, inputs.log
    if traces is None or not any(journey.scheduled_ns is not None for journey in journeys):
        return None
    prompts: list[int] = []
    if clients is not None:
        lacking = len(clients) - len(journeys)
        if len(journeys) < LEAST_JOURNEYS * len(clients):
            text = f"{len(journeys):,} journeys of {len(clients):,} client's requests: too few to reconstruct batches"
            findings.warn("traces.json", text, lacking)
            return None
        of_core = np.full(len(traces.core_ids), NONE)
        paired = (inputs.joined.client >= 0) & (inputs.joined.core >= 0)
        of_core[inputs.joined.core[paired]] = clients.rows["prompt"][inputs.joined.client[paired]]
        prompts = of_core.tolist()
    budget = inputs.settings.engine.get("max_num_batched_tokens")
    if budget is None and log.chunked_prefill is False and log.max_model_len:
        budget = unsplit_tokens(log.max_model_len)
    if not budget:
        budget = STANDARD.max_num_batched_tokens
        findings.warn("exp-config.yaml", f"gives no max_num_batched_tokens: assuming {budget} to split long prompts")
    if log.async_scheduling is None:
        findings.note("vllm.log", "does not say if scheduling is asynchronous: inferred from the summaries")
    evidence = Evidence(
        traces,
        inputs.chains,
        epoch_offset_s=inputs.epoch[0] if inputs.epoch else 0.0,
        same_prompt=prompts,
        block=(inputs.chains.block_size if inputs.chains else None) or STANDARD.block_size,
        caching=log.prefix_caching is not False,
        asynchronous=log.async_scheduling,
    )
    return reconstruct(journeys, evidence, budget)
