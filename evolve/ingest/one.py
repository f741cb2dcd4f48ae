"""One experiment's folder: read every source that is there, derive, write the tables, judge, describe.

A source that is missing or cannot be read narrows what is produced, and is said.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from evolve.ingest import step_table
from evolve.ingest.columns import NONE, Columns
from evolve.ingest.derive.batches import Batches, reconstruct
from evolve.ingest.derive.blocks import Chains
from evolve.ingest.derive.clocks import epoch_offset
from evolve.ingest.derive.cycles import Cycles, cycles
from evolve.ingest.derive.engines import BACKWARDS, MIXED, mixed
from evolve.ingest.derive.joined import Joined, join
from evolve.ingest.derive.journeys import Life, lives
from evolve.ingest.derive.observe import stages_of
from evolve.ingest.derive.split import temporal_split
from evolve.ingest.event_tables import write_journeys, write_kv_events
from evolve.ingest.request_table import request_columns
from evolve.ingest.sources.clients import Clients, read_clients
from evolve.ingest.sources.findings import Finding, warning
from evolve.ingest.sources.folder import PER_REQUEST, Folder
from evolve.ingest.sources.log import Log, read_log
from evolve.ingest.sources.reports import Reports, read_reports
from evolve.ingest.sources.settings import Settings, read_settings
from evolve.ingest.sources.traces import Traces, read_traces
from evolve.ingest.tables import Writer, constant

BUDGET = 2048  # tokens of a step, vLLM's default, where no source gives max_num_batched_tokens
LEAST_JOURNEYS = 0.9  # of the client's requests; with fewer, batches cannot be put together

Done = Callable[[int], None]


@dataclass
class Sources:
    """What was read of a folder."""

    folder: Folder
    settings: Settings
    log: Log
    reports: Reports
    traces: Traces | None
    lives: Sequence[Life]
    clients: Clients | None
    chains: Chains | None
    kv_events: int
    joined: Joined
    epoch: tuple[float, float] | None
    tally: dict[str, Counter[str]]


@dataclass
class Derived:
    """What was made of it. `columns`: the requests table. `sampled`: batch summaries, a step once."""

    batches: Batches | None
    asynchronous: bool | None
    columns: dict[str, Any]
    sampled: Columns
    cycles: Cycles | None
    agreement: step_table.Agreement
    sure: Counter[str]
    rows: dict[str, int]


def read(folder: Folder, out: Path, done: Done) -> tuple[Sources, list[Finding]]:
    """Read everything; KV events go to their table in `out` as they stream by. `done` is told the bytes read."""
    findings = list(folder.findings)
    tally: dict[str, Counter[str]] = {}
    settings, log, reports = read_settings(folder), read_log(folder.log), read_reports(folder)
    findings += [*settings.findings, *log.findings, *reports.findings]
    traces = _try(folder.traces, "traces.json", findings, lambda path: read_traces(path, done))
    chains, events = Chains(), 0
    if folder.kv_events is not None:
        tally["kv_events.jsonl"] = Counter()
        events = write_kv_events(folder, out, chains, tally["kv_events.jsonl"], findings, done)
    source = f"{folder.results}/{PER_REQUEST}"
    clients = _try(folder.per_request, source, findings, lambda path: read_clients(path, done))
    found: list[Life] = []
    if traces is not None:
        tally["traces.json"] = traces.tally
        found = lives(traces.journeys, traces.tally)
        if not traces.spans:
            findings.append(warning("traces.json", "holds no span of this server: nothing is taken from it"))
            traces = None
    if clients is not None:
        tally[source] = clients.tally
        if not len(clients):
            findings.append(warning(source, "holds no row that can be read: nothing is taken from it"))
            clients = None
    return Sources(
        folder, settings, log, reports, traces, found, clients, chains if events else None, events,
        join(traces, found, clients), epoch_offset(traces.journeys) if traces else None, tally,
    ), findings  # fmt: skip


def _try(path: Path | None, source: str, findings: list[Finding], reader: Callable[[Path], Any]) -> Any:
    if path is None:
        return None
    try:
        return reader(path)
    except OSError as e:
        findings.append(warning(source, f"left out: cannot be read ({e.strerror or type(e).__name__})"))
        return None


def derive(s: Sources, out: Path, findings: list[Finding]) -> Derived:
    """Put batches and tables together and write them to `out`."""
    run = s.folder.name
    sampled = step_table.sampled_steps(s.traces.steps, s.traces.tally) if s.traces else {}
    several = s.traces is not None and _several_engines(s.traces, sampled, findings)
    batches = None if several else _batches(s, findings)
    asynchronous = batches.asynchronous if batches else s.log.async_scheduling
    columns = request_columns(run, s.joined, s.traces, s.lives, s.clients, batches, stages_of(s.clients, s.settings))
    rows = {}
    if len(s.joined.client):
        rows["requests"] = _write(out, "requests", columns)
    row_of = s.joined.row_of_core(len(s.traces.core_ids) if s.traces else 0)
    nothing = step_table.Agreement(0, 0, 0), Counter[str]()
    agreement, sure = nothing
    found = None
    if s.traces is not None:
        rows["journeys"] = write_journeys(out, run, s.traces, s.joined, row_of)
    if s.traces is not None and not several:
        if len(sampled["step_id"]) or batches:
            writer = Writer(out, "steps")
            agreement, sure = step_table.write_steps(writer, run, sampled, batches, asynchronous, row_of)
            writer.close()
            rows["steps"] = writer.rows
        found = _cycles(sampled, asynchronous)
        rows["cycles"] = _write(out, "cycles", _cycle_columns(run, found, sampled))
    if s.kv_events:
        rows["kv_events"] = s.kv_events
    return Derived(batches, asynchronous, columns, sampled, found, agreement, sure, rows)


def _several_engines(traces: Traces, sampled: Columns, findings: list[Finding]) -> bool:
    several, backwards = mixed(sampled, traces.tally[step_table.CONFLICTING], traces.journeys)
    traces.tally[BACKWARDS] += backwards
    if several:
        findings.append(warning("traces.json", MIXED))
    return several


def _batches(s: Sources, findings: list[Finding]) -> Batches | None:
    if s.traces is None or not any(life.scheduled_ns is not None for life in s.lives):
        return None
    if s.clients is not None and len(s.lives) < LEAST_JOURNEYS * len(s.clients):
        text = (
            f"journeys of {len(s.lives):,} of the client's {len(s.clients):,} requests: batches cannot be put together"
        )
        findings.append(warning("traces.json", text, len(s.clients) - len(s.lives)))
        return None
    budget = s.settings.engine.get("max_num_batched_tokens")
    if budget is None:
        findings.append(warning("exp-config.yaml", f"no max_num_batched_tokens: long prompts split as with {BUDGET}"))
    prompts = np.full(len(s.traces.core_ids), NONE)
    if s.clients is not None:
        paired = (s.joined.client >= 0) & (s.joined.core >= 0)
        prompts[s.joined.core[paired]] = s.clients.rows["prompt"][s.joined.client[paired]]
    if s.log.async_scheduling is None:
        findings.append(
            Finding("vllm.log", 1, "does not say whether scheduling is asynchronous: read off the summaries")
        )
    return reconstruct(
        s.traces, s.lives, s.chains, s.epoch[0] if s.epoch else 0.0, prompts.tolist() if s.clients else (),
        budget or BUDGET, (s.chains.block_size if s.chains else None) or 16,
        s.log.prefix_caching is not False, s.log.async_scheduling,
    )  # fmt: skip


def _cycles(sampled: Columns, asynchronous: bool | None) -> Cycles:
    known = {n: np.where(sampled[n] == NONE, np.nan, sampled[n]) for n in
             ("duration_us", "running_depth", "summary_scheduled_tokens")}  # fmt: skip
    timed = sampled["ts_start_ns"] != NONE
    return cycles(
        sampled["step_id"][timed], sampled["ts_start_ns"][timed], known["duration_us"][timed],
        known["running_depth"][timed], known["summary_scheduled_tokens"][timed], asynchronous is not False,
    )  # fmt: skip


def _cycle_columns(run: str, c: Cycles, sampled: Columns) -> dict[str, Any]:
    split = dict(zip(sampled["step_id"].tolist(), temporal_split(sampled["step_id"]).tolist(), strict=True))
    return {
        "experiment": constant(run, len(c.step)), "step_id": c.step, "cycle_us": c.cycle_us,
        "duration_us": c.duration_us, "measures": c.measures, "usable": c.usable,
        "why": [w or None for w in c.why.tolist()], "split": [split[n] for n in c.step.tolist()],
    }  # fmt: skip


def _write(out: Path, table: str, columns: dict[str, Any]) -> int:
    writer = Writer(out, table)
    writer.write(columns)
    writer.close()
    return writer.rows
