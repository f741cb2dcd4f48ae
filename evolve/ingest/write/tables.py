"""Parquet tables, and what goes into those of requests, journeys, KV events and cycles."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from evolve.ingest.columns import NONE, Columns
from evolve.ingest.derive.blocks import BlockChains
from evolve.ingest.derive.journeys import Journey
from evolve.ingest.derive.matching import Joined
from evolve.ingest.derive.requests import RequestTable
from evolve.ingest.derive.steps import Cycles, temporal_split
from evolve.ingest.read.kv_events import KvEvent, read_kv_events
from evolve.ingest.read.sources import Folder
from evolve.ingest.read.traces import API, JOURNEY, KINDS, PHASES, STATUSES, Traces
from evolve.ingest.read.values import FolderFindings
from evolve.ingest.write.schema import schema
from simulator.common.errors import reason

Cells: TypeAlias = np.ndarray | pa.Array | Sequence[Any]
"""The cells of a column."""

ROW_GROUP = 8192  # rows encoded at a time: a request may have a thousand token times
MOST_EVENTS = 20_000  # KV events in memory at a time

_JOURNEY_NAMES = tuple(f"journey.{name}" for name in JOURNEY)
_API_NAMES = tuple(f"api.{name}" for name in API)


class Writer:
    """A parquet file that grows by batches of rows, compressed with zstd."""

    def __init__(self, folder: Path, table: str) -> None:
        self.table, self.rows = table, 0
        self._file = pq.ParquetWriter(folder / f"{table}.parquet", schema(table), compression="zstd")

    def __enter__(self) -> Writer:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._file.close()

    def write(self, columns: Mapping[str, Cells]) -> None:
        """Append rows. Columns left out become empty, and so do integers that are NONE and floats that are NaN."""
        rows = len(next(iter(columns.values())))
        arrays = [_array(columns.get(field.name), field.type, rows) for field in schema(self.table)]
        table = pa.Table.from_arrays(arrays, schema=schema(self.table))
        self._file.write_table(table, row_group_size=ROW_GROUP)
        self.rows += rows


def _array(cells: Cells | None, kind: pa.DataType, rows: int) -> pa.Array:
    if cells is None:
        return pa.nulls(rows, kind)
    if isinstance(cells, np.ndarray) and cells.dtype.kind == "i":
        return pa.array(cells, pa.int64(), mask=cells == NONE).cast(kind)
    if isinstance(cells, np.ndarray) and cells.dtype.kind == "f":
        return pa.array(cells, kind, mask=np.isnan(cells))
    return cells if isinstance(cells, pa.Array) else pa.array(cells, kind)


def named(codes: np.ndarray, names: tuple[str, ...]) -> pa.Array:
    """A column of names from codes into `names`; other codes are empty cells."""
    good = (codes >= 0) & (codes < len(names))
    indices = pa.array(np.where(good, codes, 0), pa.int16(), mask=~good)
    return pa.DictionaryArray.from_arrays(indices, pa.array(names, pa.string()))


def constant(name: str, rows: int) -> pa.Array:
    """A column that repeats one name."""
    return named(np.zeros(rows, dtype=np.int64), (name,))


def structs(table: str, column: str, counts: np.ndarray, entries: Columns) -> pa.Array:
    """A list column from flat entries; `counts` says how many belong to each row in turn."""
    kind = schema(table).field(column).type
    children = [pa.array(entries[field.name]).cast(field.type) for field in kind.value_type]
    offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
    return pa.ListArray.from_arrays(offsets, pa.StructArray.from_arrays(children, fields=list(kind.value_type)))


def write_requests(out: Path, run: str, requests: RequestTable) -> int:
    """Write the requests table; returns the number of rows."""
    coded = {name: named(requests.columns[name], names) for name, names in requests.names.items()}
    with Writer(out, "requests") as writer:
        writer.write({
            "experiment": constant(run, len(requests)), **requests.columns, **coded,
            "request_id": requests.core_ids, "api_id": requests.api_ids,
            "intervals": [_intervals(journey) for journey in requests.journeys],
            "token_times_us": _token_times(requests),
        })  # fmt: skip
    return writer.rows


def _intervals(journey: Journey | None) -> list[dict[str, int | bool]] | None:
    if journey is None:
        return None
    return [
        {"prefill": i.prefill, "start_step": i.start, "end_step": i.end, "prefill_tokens": i.tokens}
        for i in journey.intervals
    ]


def _token_times(requests: RequestTable) -> pa.Array:
    """A list column from the token times of the rows that have them."""
    lengths = np.full(len(requests), -1)
    lengths[: len(requests.token_times_us)] = [-1 if us is None else len(us) for us in requests.token_times_us]
    offsets = np.concatenate([[0], np.cumsum(np.maximum(lengths, 0))])
    flat = np.concatenate([np.zeros(0, np.int64), *(us for us in requests.token_times_us if us is not None)])
    rows = pa.array(offsets, pa.int32(), mask=np.append(lengths < 0, False))
    return pa.ListArray.from_arrays(rows, flat, schema("requests").field("token_times_us").type)


def write_journeys(out: Path, run: str, traces: Traces, joined: Joined, row_of: np.ndarray) -> int:
    """Write all journey and API events; returns the number of rows. `row_of[core request]` is a row of requests."""
    journey, api = traces.journey_events, traces.api_events
    with Writer(out, "journeys") as writer:
        if count := len(journey["request"]):
            same = ("ts_ns", "epoch_ns", "step", "prefill_done", "prefill_total", "decode_done", "decode_max",
                    "preemptions")  # fmt: skip
            coded = {"event": _JOURNEY_NAMES, "phase": PHASES, "kind": KINDS, "status": STATUSES}
            writer.write({
                "experiment": constant(run, count), "request": row_of[journey["request"]],
                **{name: journey[name] for name in same},
                **{name: named(journey[name], names) for name, names in coded.items()},
            })  # fmt: skip
        if count := len(api["request"]):
            row_of_api = np.full(len(traces.api_ids), -1, dtype=np.int64)
            seen = joined.api >= 0
            row_of_api[joined.api[seen]] = np.flatnonzero(seen)
            writer.write({
                "experiment": constant(run, count), "request": row_of_api[api["request"]],
                "event": named(api["event"], _API_NAMES), "ts_ns": api["ts_ns"], "epoch_ns": api["epoch_ns"],
            })  # fmt: skip
    return writer.rows


def write_cycles(out: Path, run: str, cycles: Cycles, sampled_ids: np.ndarray) -> int:
    """Write the cycles between the sampled steps; returns the number of rows."""
    split = dict(zip(sampled_ids.tolist(), temporal_split(sampled_ids).tolist(), strict=True))
    with Writer(out, "cycles") as writer:
        writer.write({
            "experiment": constant(run, len(cycles.step)), "step_id": cycles.step, "cycle_us": cycles.cycle_us,
            "duration_us": cycles.duration_us, "measures": cycles.measures, "usable": cycles.usable,
            "why": [why or None for why in cycles.why.tolist()], "split": [split[n] for n in cycles.step.tolist()],
        })  # fmt: skip
    return writer.rows


def write_kv_events(
    folder: Folder,
    out: Path,
    chains: BlockChains,
    tally: Counter[str],
    findings: FolderFindings,
    on_read: Callable[[int], None],
) -> int:
    """Stream the KV events into their table and into `chains`; returns the number of rows, 0 without a table."""
    assert folder.kv_events is not None
    pending: list[KvEvent] = []
    with Writer(out, "kv_events") as writer:
        for event in _until_unreadable(read_kv_events(folder.kv_events, tally, on_read), findings):
            chains.add(event)
            pending.append(event)
            if len(pending) == MOST_EVENTS:
                writer.write(_event_columns(folder.name, pending))
                pending = []
        if pending:
            writer.write(_event_columns(folder.name, pending))
    if not writer.rows:
        (out / "kv_events.parquet").unlink()
        findings.warn("kv_events.jsonl", "contains no readable event: nothing is taken from it")
    return writer.rows


def _until_unreadable(events: Iterator[KvEvent], findings: FolderFindings) -> Iterator[KvEvent]:
    """The events until the file cannot be read any further, which becomes a finding; errors of writing do not."""
    try:
        yield from events
    except OSError as e:
        findings.warn("kv_events.jsonl", f"cannot be read to the end ({reason(e)}): the events before are kept")


def _event_columns(run: str, events: Sequence[KvEvent]) -> dict[str, Cells]:
    columns: dict[str, Cells] = dict(zip(KvEvent._fields, zip(*events, strict=True), strict=True))
    return {
        "experiment": constant(run, len(events)),
        "event": columns.pop("type"),
        "request_id": columns.pop("request"),
        "hashes": [hashes or None for hashes in columns.pop("hashes")],
        **columns,
    }
