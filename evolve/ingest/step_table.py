"""The steps table: every scheduler step that was sampled or that a request took part in, with its batch."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np

from evolve.ingest.columns import NONE, Columns, rows
from evolve.ingest.derive.batches import Batches
from evolve.ingest.derive.corrected import SURE
from evolve.ingest.derive.segments import Segments, windows
from evolve.ingest.derive.split import SPLITS, temporal_split
from evolve.ingest.derive.views import raw_columns
from evolve.ingest.tables import Writer, constant, names, structs
from simulator.schema import RAW

WINDOW = 2048  # steps whose batches are in memory at a time
CONTRADICTED = "contradicted"
EVIDENCE = (*SURE, CONTRADICTED)
SPLITS_SORTED = tuple(sorted(SPLITS))

REPEATED = "step summaries that were there before, dropped"
CONFLICTING = "step ids with two different summaries, the first kept"


def sampled_steps(steps: Columns, tally: Counter[str]) -> Columns:
    """Batch summaries by ascending step id, each once; what is dropped is counted."""
    order = np.lexsort((steps["ts_start_ns"], steps["step_id"]))
    ordered = rows(steps, order)
    same = np.diff(ordered["step_id"], prepend=-1) == 0
    twin = same.copy()
    for name, column in ordered.items():
        if name != "kv_usage_ratio":
            twin &= np.diff(column, prepend=NONE) == 0
    tally[REPEATED] += int(twin.sum())
    tally[CONFLICTING] += int((same & ~twin).sum())
    return rows(ordered, ~same)


@dataclass(frozen=True)
class Agreement:
    """How many of the sampled steps' summaries (requests and tokens of both groups) a reconstruction reproduces."""

    sampled: int
    corrected: int
    published: int


def write_steps(
    writer: Writer,
    experiment: str,
    sampled: Columns,
    batches: Batches | None,
    asynchronous: bool | None,
    row_of: np.ndarray,
) -> tuple[Agreement, Counter[str]]:
    """Write all steps in order; `row_of[core request]` is its row in the requests table. Also counts the steps by how
    sure their batch is."""
    split = temporal_split(sampled["step_id"])
    nothing = Segments.of([])
    decode = batches.decode if batches else nothing
    begun = batches.prefill["step"] if batches else np.zeros(0, dtype=np.int64)
    corrected = published = 0
    sure: Counter[str] = Counter()
    for low, high in windows(decode, np.concatenate([sampled["step_id"], begun]), WINDOW):
        part = (sampled["step_id"] >= low) & (sampled["step_id"] < high)
        summaries = rows(sampled, part)
        window = _batches(batches, low, high, summaries, row_of) if batches else None
        steps = window.steps if window else summaries["step_id"]
        at = np.searchsorted(steps, summaries["step_id"])
        columns = {"experiment": constant(experiment, len(steps)), "step_id": steps}
        for name, column in summaries.items():
            if name != "step_id":
                columns[name] = np.full(len(steps), np.nan if column.dtype.kind == "f" else NONE, column.dtype)
                columns[name][at] = column
        columns["sampled"] = np.isin(steps, summaries["step_id"])
        codes = np.full(len(steps), NONE)
        codes[at] = np.searchsorted(SPLITS_SORTED, split[part])
        columns["split"] = names(codes, SPLITS_SORTED)
        columns["async_scheduling"] = [asynchronous] * len(steps)
        if window:
            columns.update(window.columns)
            corrected += int(window.corrected.sum())
            published += int(window.published.sum())
            found, counts = np.unique(window.sure, return_counts=True)
            sure.update({EVIDENCE[i]: n for i, n in zip(found.tolist(), counts.tolist(), strict=True)})
        writer.write(columns)
    return Agreement(len(split), corrected, published), sure


@dataclass(frozen=True)
class _Window:
    """The batches of some steps: their columns, how sure each is, and for each sampled step whether it agrees."""

    steps: np.ndarray
    columns: dict[str, Any]
    sure: np.ndarray
    corrected: np.ndarray
    published: np.ndarray


def _batches(b: Batches, low: int, high: int, summaries: Columns, row_of: np.ndarray) -> _Window:
    step, request, kv = b.decode.expand(low, high)
    chunks = rows(b.prefill, (b.prefill["step"] >= low) & (b.prefill["step"] < high))
    steps = np.unique(np.concatenate([step, chunks["step"], summaries["step_id"]]))
    row = np.searchsorted(steps, np.concatenate([step, chunks["step"]]))
    one = np.ones(len(step), dtype=np.int64)
    prefill = np.concatenate([one == 0, np.ones(len(chunks["step"]), dtype=bool)])
    new = np.concatenate([one, chunks["tokens"]])
    before = np.concatenate([kv, chunks["kv_before"]])
    progress = np.concatenate([kv, np.where(chunks["first"] == 1, 0, chunks["kv_before"])])
    columns: dict[str, Any] = raw_columns(len(steps), row, prefill, new, progress)
    columns["kv_read_tokens"] = np.bincount(row, before, len(steps))
    requests = row_of[np.concatenate([request, chunks["request"]])]
    columns["batch"] = _entries("batch", len(steps), row, {
        "request": requests, "prefill": prefill, "new_tokens": new, "kv_before": before,
    })  # fmt: skip
    columns["published"], totals = _published(b, low, high, steps, row_of)
    sure = np.full(len(steps), SURE.index("exact"))
    np.minimum.at(sure, np.searchsorted(steps, chunks["step"]), chunks["sure"])
    at = np.searchsorted(steps, summaries["step_id"])
    early = np.searchsorted(steps, b.early[np.isin(b.early, steps)]) if b.asynchronous else at[:0]
    first = np.bincount(early, minlength=len(steps))
    again = np.searchsorted(steps, chunks["step"][chunks["again"] == 1])
    recomputed = np.bincount(again, chunks["tokens"][chunks["again"] == 1], len(steps))
    again_reqs = np.bincount(again, minlength=len(steps))
    ours = (
        columns["prefill_reqs"] - again_reqs + first, columns["prefill_tokens"] - recomputed + first,
        columns["decode_reqs"] - first + again_reqs, columns["decode_reqs"] - first + recomputed,
    )  # fmt: skip
    theirs = (totals[0] + first, totals[1] + first, totals[2] - first, totals[2] - first)
    agreed = _agree(ours, at, summaries)
    # the totals confirm a cached prefix where all of what was left of a prompt ran in the step
    settled = np.full(len(steps), SURE.index("exact"))
    sure_of = np.where(chunks["whole"] == 1, SURE.index("exact"), chunks["sure"])
    np.minimum.at(settled, np.searchsorted(steps, chunks["step"]), sure_of)
    sure[at] = np.where(agreed, settled[at], EVIDENCE.index(CONTRADICTED))
    columns["evidence"] = names(sure, EVIDENCE)
    wrong = sure == EVIDENCE.index(CONTRADICTED)
    for name in RAW:
        columns[name] = np.where(wrong, np.nan, columns[name])
    return _Window(steps, columns, sure, agreed, _agree(theirs, at, summaries))


def _agree(figures: tuple[np.ndarray, ...], at: np.ndarray, summaries: Columns) -> np.ndarray:
    """bool[sampled]: requests and tokens of prefill and decode are those of the engine's summary."""
    of = ("summary_prefill_reqs", "summary_prefill_tokens", "summary_decode_reqs", "summary_decode_tokens")
    out = np.ones(len(at), dtype=bool)
    for figure, name in zip(figures, of, strict=True):
        out &= figure[at] == summaries[name]
    return out


def _published(b: Batches, low: int, high: int, steps: np.ndarray, row_of: np.ndarray) -> tuple[Any, list[np.ndarray]]:
    """The published entries, and per step their prefill requests, prefill tokens and decodes."""
    step, request, context = b.published_decode.expand(low, high)
    chunks = rows(b.published_prefill, (b.published_prefill["step"] >= low) & (b.published_prefill["step"] < high))
    kept = np.isin(step, steps), np.isin(chunks["step"], steps)
    step, request, context, chunks = step[kept[0]], request[kept[0]], context[kept[0]], rows(chunks, kept[1])
    row = np.searchsorted(steps, np.concatenate([step, chunks["step"]]))
    prefill = np.concatenate([np.zeros(len(step), dtype=bool), np.ones(len(chunks["step"]), dtype=bool)])
    tokens = np.concatenate([np.ones(len(step), dtype=np.int64), chunks["tokens"]])
    entries = _entries("published", len(steps), row, {
        "request": row_of[np.concatenate([request, chunks["request"]])], "prefill": prefill, "tokens": tokens,
        "context": np.concatenate([context, np.zeros(len(chunks["step"]), dtype=np.int64)]),
    })  # fmt: skip
    counts = [np.bincount(row[prefill], weights, len(steps)) for weights in (None, tokens[prefill])]
    return entries, [*counts, np.bincount(row[~prefill], minlength=len(steps))]


def _entries(column: str, count: int, row: np.ndarray, entries: Columns) -> Any:
    """A list column: prefills first, each group by request."""
    order = np.lexsort((entries["request"], ~entries["prefill"], row))
    return structs("steps", column, np.bincount(row, minlength=count), rows(entries, order))
