"""The parquet tables of a run: requests, journeys, KV events, cycles and steps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from evolve.ingest.columns import NONE, Columns, DecodeSegments, select, windows
from evolve.ingest.derive.batches import SURE, Batches, raw_columns
from evolve.ingest.derive.blocks import BlockChains
from evolve.ingest.derive.cached import TOTALS
from evolve.ingest.derive.matching import Joined, row_of
from evolve.ingest.derive.requests import RequestTable
from evolve.ingest.derive.steps import Cycles, temporal_split
from evolve.ingest.read.kv_events import KvEvent
from evolve.ingest.read.traces import API, JOURNEY, KINDS, PHASES, STATUSES, Traces
from evolve.ingest.write.schema import schema
from simulator.schema import RECORDED
from simulator.serving.splits import SPLITS

Cells: TypeAlias = np.ndarray | pa.Array | Sequence[Any]
"""The cells of a column."""

ROW_GROUP = 8192  # rows encoded at a time: a request may have a thousand token times
MOST_EVENTS = 20_000  # KV events in memory at a time
WINDOW = 2048  # steps whose batches are in memory at a time
CONTRADICTED = "contradicted"
EVIDENCE = (*SURE, CONTRADICTED)
EXACT = SURE.index("exact")

_SPLITS = tuple(sorted(SPLITS))
_JOURNEY_NAMES = {
    "event": tuple(f"journey.{name}" for name in JOURNEY),
    "phase": PHASES,
    "kind": KINDS,
    "status": STATUSES,
}
_API_NAMES = tuple(f"api.{name}" for name in API)


class Writer:
    """A parquet file that grows by batches of rows, compressed with zstd. Its column `experiment` is the run's name."""

    def __init__(self, folder: Path, table: str, run: str) -> None:
        self.run, self.rows, self.schema = run, 0, schema(table)
        self._file = pq.ParquetWriter(folder / f"{table}.parquet", self.schema, compression="zstd")

    def close(self) -> None:
        self._file.close()

    def write(self, columns: Mapping[str, Cells]) -> None:
        """Append rows; columns that the schema lacks are not written. Columns left out become empty, and so do integers
        that are NONE and floats that are NaN."""
        rows = len(next(iter(columns.values())))
        columns = {"experiment": named(np.zeros(rows, dtype=np.int64), (self.run,)), **columns}
        arrays = [_array(columns.get(field.name), field.type, rows) for field in self.schema]
        self._file.write_table(pa.Table.from_arrays(arrays, schema=self.schema), row_group_size=ROW_GROUP)
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


def write_requests(out: Path, run: str, requests: RequestTable) -> int:
    """Write the requests table; returns the number of rows."""
    coded = {name: named(requests.columns[name], names) for name, names in requests.names.items()}
    with closing(Writer(out, "requests", run)) as writer:
        writer.write({**requests.columns, **coded, **requests.lists})
    return writer.rows


def write_journeys(out: Path, run: str, traces: Traces, joined: Joined) -> int:
    """Write all journey and API events; returns the number of rows."""
    journey, api = traces.journey_events, traces.api_events
    core_rows, api_rows = row_of(joined.core, len(traces.core_ids)), row_of(joined.api, len(traces.api_ids))
    with closing(Writer(out, "journeys", run)) as writer:
        if len(journey["request"]):
            names = {name: named(journey[name], names) for name, names in _JOURNEY_NAMES.items()}
            writer.write({**journey, **names, "request": core_rows[journey["request"]]})
        if len(api["request"]):
            writer.write({**api, "event": named(api["event"], _API_NAMES), "request": api_rows[api["request"]]})
    return writer.rows


def write_cycles(out: Path, run: str, cycles: Cycles, sampled_ids: np.ndarray) -> int:
    """Write the cycles between the sampled steps; returns the number of rows."""
    split = dict(zip(sampled_ids.tolist(), temporal_split(sampled_ids).tolist(), strict=True))
    with closing(Writer(out, "cycles", run)) as writer:
        why, splits = [why or None for why in cycles.why.tolist()], [split[n] for n in cycles.step.tolist()]
        writer.write({**vars(cycles), "step_id": cycles.step, "why": why, "split": splits})
    return writer.rows


def write_kv_events(events: Iterator[KvEvent], out: Path, run: str, chains: BlockChains) -> int:
    """Write KV events as they are read, and add them to `chains`; returns the number of rows, 0 without a table."""
    with closing(Writer(out, "kv_events", run)) as writer:
        while some := list(islice(events, MOST_EVENTS)):
            for event in some:
                chains.add(event)
            writer.write(_event_columns(some))
    if not writer.rows:
        (out / "kv_events.parquet").unlink()
    return writer.rows


def _event_columns(events: Sequence[KvEvent]) -> dict[str, Cells]:
    columns: dict[str, Cells] = dict(zip(KvEvent._fields, zip(*events, strict=True), strict=True))
    columns["event"], columns["request_id"] = columns.pop("type"), columns.pop("request")
    columns["hashes"] = [hashes or None for hashes in columns["hashes"]]
    return columns


@dataclass(slots=True)
class WrittenSteps:
    """Rows of the steps table by the certainty of their batch (EVIDENCE), and the number of summaries of sampled steps
    (requests and tokens of both groups) that the two reconstructions reproduce."""

    rows: int = 0
    evidence: Counter[str] = field(default_factory=Counter)
    sampled: int = 0
    corrected: int = 0
    published: int = 0


def write_steps(
    out: Path, run: str, sampled: Columns, batches: Batches | None, asynchronous: bool | None, row_of_core: np.ndarray
) -> WrittenSteps:
    """Write every scheduler step that was sampled or that a request took part in, in order, with its batch.

    `sampled` are batch summaries, one per step; `row_of_core[core request]` is a row of the requests table.
    """
    split = np.searchsorted(_SPLITS, temporal_split(sampled["step_id"]))
    decode = batches.decode if batches else DecodeSegments.of([])
    prefill_steps = batches.prefill["step"] if batches else np.zeros(0, dtype=np.int64)
    written = WrittenSteps(sampled=len(split))
    with closing(Writer(out, "steps", run)) as writer:
        for low, high in windows(decode, np.concatenate([sampled["step_id"], prefill_steps]), WINDOW):
            inside = (sampled["step_id"] >= low) & (sampled["step_id"] < high)
            summaries = select(sampled, inside)
            steps, columns = summaries["step_id"], dict[str, Cells]()
            if batches:
                steps, columns = _batch_columns(batches, low, high, summaries, row_of_core, written)
            at = np.searchsorted(steps, summaries["step_id"])
            for name, column in {**summaries, "split": split[inside]}.items():  # empty where a step was not sampled
                cells = np.full(len(steps), np.nan if column.dtype.kind == "f" else NONE, column.dtype)
                cells[at] = column
                columns[name] = named(cells, _SPLITS) if name == "split" else cells
            columns |= {"step_id": steps, "sampled": np.isin(steps, summaries["step_id"])}
            writer.write({**columns, "async_scheduling": [asynchronous] * len(steps)})
    written.rows = writer.rows
    return written


def _batch_columns(
    batches: Batches, low: int, high: int, summaries: Columns, row_of_core: np.ndarray, written: WrittenSteps
) -> tuple[np.ndarray, dict[str, Cells]]:
    """The steps in [low, high) and the columns of their batches, which are counted in `written`."""
    decodes, chunks = batches.decode.expand(low, high), _inside(batches.prefill, low, high)
    steps = np.unique(np.concatenate([decodes[0], chunks["step"], summaries["step_id"]]))
    row, request, prefill, new = _entries(decodes, chunks, steps)
    before = np.concatenate([decodes[2], chunks["kv_before"]])
    # The host sees no progress before the first chunk, even if tokens are cached (see `raw_columns`).
    progress = np.concatenate([decodes[2], np.where(chunks["first"] == 1, 0, chunks["kv_before"])])
    raw = raw_columns(len(steps), row, prefill, new, progress)
    batch = {"request": row_of_core[request], "prefill": prefill, "new_tokens": new, "kv_before": before}
    published, published_counts = _published(batches, low, high, steps, row_of_core)
    sure = _agreement(batches, steps, chunks, raw, published_counts, summaries, written)
    contradicted = sure == EVIDENCE.index(CONTRADICTED)
    columns: dict[str, Cells] = {
        **{name: np.where(contradicted, np.nan, raw[name]) for name in RECORDED},
        "kv_read_tokens": np.bincount(row, before, len(steps)),
        "batch": _structs("batch", len(steps), row, batch),
        "published": published,
        "evidence": named(sure, EVIDENCE),
    }
    return steps, columns


def _agreement(
    batches: Batches,
    steps: np.ndarray,
    chunks: Columns,
    raw: Columns,
    published: Sequence[np.ndarray],
    summaries: Columns,
    written: WrittenSteps,
) -> np.ndarray:
    """The certainty of each step's batch, as an index into EVIDENCE. `written` counts the summaries that agree.

    `published` has the published prefill requests, prefill tokens and decodes of each step.
    """
    at = np.searchsorted(steps, summaries["step_id"])
    row = np.searchsorted(steps, chunks["step"])
    # Summaries count a first decode as prefill under async scheduling, and a recomputation always as decode.
    first_decodes = batches.first_decodes[np.isin(batches.first_decodes, steps)] if batches.asynchronous else steps[:0]
    first = np.bincount(np.searchsorted(steps, first_decodes), minlength=len(steps))
    again = chunks["again"] == 1
    recomputed = np.bincount(row[again], chunks["tokens"][again], len(steps))
    again_reqs = np.bincount(row[again], minlength=len(steps))
    prefills = (raw["prefill_reqs"] - again_reqs + first, raw["prefill_tokens"] - recomputed + first)
    decodes = (raw["decode_reqs"] - first + again_reqs, raw["decode_reqs"] - first + recomputed)
    agreed = _equal((*prefills, *decodes), at, summaries)
    sure, confirmed = np.full(len(steps), EXACT), np.full(len(steps), EXACT)
    np.minimum.at(sure, row, chunks["sure"])
    # Totals that agree confirm a cached prefix if all that was left of the prompt ran in the step.
    np.minimum.at(confirmed, row, np.where(chunks["whole"] == 1, EXACT, chunks["sure"]))
    sure[at] = np.where(agreed, confirmed[at], EVIDENCE.index(CONTRADICTED))
    reqs, tokens, decoding = published
    as_published = _equal((reqs + first, tokens + first, decoding - first, decoding - first), at, summaries)
    written.corrected += int(agreed.sum())
    written.published += int(as_published.sum())
    written.evidence.update([EVIDENCE[i] for i in sure.tolist()])
    return sure


def _equal(figures: Sequence[np.ndarray], at: np.ndarray, summaries: Columns) -> np.ndarray:
    equal = np.ones(len(at), dtype=bool)
    for figure, name in zip(figures, TOTALS, strict=True):
        equal &= figure[at] == summaries[name]
    return equal


def _published(
    batches: Batches, low: int, high: int, steps: np.ndarray, row_of_core: np.ndarray
) -> tuple[pa.Array, list[np.ndarray]]:
    """The published entries of `steps`, and per step their prefill requests, prefill tokens and decodes."""
    decodes, chunks = batches.published_decode.expand(low, high), _inside(batches.published_prefill, low, high)
    kept = np.isin(decodes[0], steps)
    step, request, context = (column[kept] for column in decodes)
    chunks = select(chunks, np.isin(chunks["step"], steps))
    row, request, prefill, tokens = _entries((step, request, context), chunks, steps)
    context = np.concatenate([context, np.zeros(len(chunks["step"]), dtype=np.int64)])
    entries = {"request": row_of_core[request], "prefill": prefill, "tokens": tokens, "context": context}
    counts = [np.bincount(row[prefill], weights, len(steps)) for weights in (None, tokens[prefill])]
    counts.append(np.bincount(row[~prefill], minlength=len(steps)))
    return _structs("published", len(steps), row, entries), counts


def _inside(prefill: Columns, low: int, high: int) -> Columns:
    return select(prefill, (prefill["step"] >= low) & (prefill["step"] < high))


def _entries(decodes: Sequence[np.ndarray], chunks: Columns, steps: np.ndarray) -> tuple[np.ndarray, ...]:
    """Per entry of a batch, decodes first: the row of its step in `steps`, its request, True for a prefill, and its
    new tokens."""
    step, request = (np.concatenate([decodes[i], chunks[name]]) for i, name in enumerate(("step", "request")))
    new = np.concatenate([np.ones(len(decodes[0]), dtype=np.int64), chunks["tokens"]])
    return np.searchsorted(steps, step), request, np.arange(len(step)) >= len(decodes[0]), new


def _structs(column: str, rows: int, row: np.ndarray, entries: Columns) -> pa.Array:
    """A list column of the steps table from flat entries: of each row the prefills first, each group by request."""
    entries = select(entries, np.lexsort((entries["request"], ~entries["prefill"], row)))
    kind = schema("steps").field(column).type
    children = [pa.array(entries[field.name]).cast(field.type) for field in kind.value_type]
    offsets = np.concatenate([[0], np.cumsum(np.bincount(row, minlength=rows))]).astype(np.int32)
    return pa.ListArray.from_arrays(offsets, pa.StructArray.from_arrays(children, fields=list(kind.value_type)))
