"""The tables of single events: journeys and KV events, as they were recorded."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from evolve.ingest.derive.blocks import Chains
from evolve.ingest.derive.joined import Joined
from evolve.ingest.sources.findings import Finding, warning
from evolve.ingest.sources.folder import Folder
from evolve.ingest.sources.kv_events import KvEvent, read_kv_events
from evolve.ingest.sources.traces import API, JOURNEY, KINDS, PHASES, STATUSES, Traces
from evolve.ingest.tables import Writer, constant, names

ROWS = 20_000  # KV events in memory at a time

_JOURNEY_NAMES = tuple(f"journey.{name}" for name in JOURNEY)
_API_NAMES = tuple(f"api.{name}" for name in API)


def write_journeys(out: Path, run: str, traces: Traces, joined: Joined, row_of: np.ndarray) -> int:
    """All API and journey events; the number of rows."""
    writer = Writer(out, "journeys")
    j, a = traces.journeys, traces.api
    if len(j["request"]):
        same = {n: j[n] for n in ("ts_ns", "epoch_ns", "step", "prefill_done", "prefill_total", "decode_done",
                                  "decode_max", "preemptions")}  # fmt: skip
        coded = (("event", _JOURNEY_NAMES), ("phase", PHASES), ("kind", KINDS), ("status", STATUSES))
        writer.write({
            "experiment": constant(run, len(j["request"])), "request": row_of[j["request"]], **same,
            **{name: names(j[name], known) for name, known in coded},
        })  # fmt: skip
    if len(a["request"]):
        row_of_api = np.full(len(traces.api_ids), -1, dtype=np.int64)
        seen = joined.api >= 0
        row_of_api[joined.api[seen]] = np.flatnonzero(seen)
        writer.write({
            "experiment": constant(run, len(a["request"])), "request": row_of_api[a["request"]],
            "event": names(a["event"], _API_NAMES), "ts_ns": a["ts_ns"], "epoch_ns": a["epoch_ns"],
        })  # fmt: skip
    writer.close()
    return writer.rows


def write_kv_events(
    folder: Folder, out: Path, chains: Chains, tally: Counter[str], findings: list[Finding], done: Callable[[int], None]
) -> int:
    """Stream the KV events into their table and into `chains`; the number of rows, 0 where there are none."""
    assert folder.kv_events is not None
    writer, pending = Writer(out, "kv_events"), []
    try:
        for event in read_kv_events(folder.kv_events, tally, done):
            chains.add(event)
            pending.append(event)
            if len(pending) == ROWS:
                writer.write(_columns(folder.name, pending))
                pending = []
    except OSError as e:
        why = e.strerror or type(e).__name__
        findings.append(warning("kv_events.jsonl", f"cannot be read to its end ({why}): what came before is kept"))
    if pending:
        writer.write(_columns(folder.name, pending))
    writer.close()
    if not writer.rows:
        (out / "kv_events.parquet").unlink()
        findings.append(warning("kv_events.jsonl", "holds no event that can be read: nothing is taken from it"))
    return writer.rows


def _columns(run: str, events: list[KvEvent]) -> dict[str, Any]:
    of = dict(zip(KvEvent._fields, zip(*events, strict=True), strict=True))
    return {
        "experiment": constant(run, len(events)),
        "event": of.pop("type"),
        "request_id": of.pop("request"),
        "hashes": [hashes or None for hashes in of.pop("hashes")],
        **of,
    }
