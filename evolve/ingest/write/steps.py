"""The steps table: every scheduler step that was sampled or that a request took part in, with its batch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa

from evolve.ingest.columns import NONE, Columns, DecodeSegments, select, windows
from evolve.ingest.derive.batches import SURE, Batches, raw_columns
from evolve.ingest.derive.steps import temporal_split
from evolve.ingest.write.tables import Cells, Writer, constant, named, structs
from simulator.schema import RECORDED
from simulator.serving.splits import SPLITS

WINDOW = 2048  # steps whose batches are in memory at a time
CONTRADICTED = "contradicted"
EVIDENCE = (*SURE, CONTRADICTED)
SPLITS_SORTED = tuple(sorted(SPLITS))


@dataclass(frozen=True)
class WrittenSteps:
    """What was written: rows by how sure their batch is (EVIDENCE), and how many of the sampled steps' summaries
    (requests and tokens of both groups) the two reconstructions reproduce."""

    rows: int = 0
    evidence: Counter[str] = field(default_factory=Counter)
    sampled: int = 0
    corrected: int = 0
    published: int = 0


def write_steps(
    out: Path,
    run: str,
    sampled: Columns,
    batches: Batches | None,
    asynchronous: bool | None,
    row_of: np.ndarray,
) -> WrittenSteps:
    """Write all steps in order. `sampled` are batch summaries, one per step; `row_of[core request]` is a row of the
    requests table."""
    split = temporal_split(sampled["step_id"])
    decode = batches.decode if batches else DecodeSegments.of([])
    prefill_steps = batches.prefill["step"] if batches else np.zeros(0, dtype=np.int64)
    corrected = published = 0
    evidence: Counter[str] = Counter()
    with Writer(out, "steps") as writer:
        for low, high in windows(decode, np.concatenate([sampled["step_id"], prefill_steps]), WINDOW):
            inside = (sampled["step_id"] >= low) & (sampled["step_id"] < high)
            summaries = select(sampled, inside)
            window = _window(batches, low, high, summaries, row_of) if batches else None
            steps = window.steps if window else summaries["step_id"]
            columns = _summary_columns(run, steps, summaries, split[inside], asynchronous)
            if window:
                columns.update(window.columns)
                corrected += int(window.corrected.sum())
                published += int(window.published.sum())
                evidence.update([EVIDENCE[i] for i in window.sure.tolist()])
            writer.write(columns)
    return WrittenSteps(writer.rows, evidence, len(split), corrected, published)


def _summary_columns(
    run: str, steps: np.ndarray, summaries: Columns, split: np.ndarray, asynchronous: bool | None
) -> dict[str, Cells]:
    """What the engine recorded of the steps, empty where they were not sampled."""
    at = np.searchsorted(steps, summaries["step_id"])
    columns: dict[str, Cells] = {"experiment": constant(run, len(steps)), "step_id": steps}
    for name, column in summaries.items():
        if name != "step_id":
            cells = np.full(len(steps), np.nan if column.dtype.kind == "f" else NONE, column.dtype)
            cells[at] = column
            columns[name] = cells
    columns["sampled"] = np.isin(steps, summaries["step_id"])
    codes = np.full(len(steps), NONE)
    codes[at] = np.searchsorted(SPLITS_SORTED, split)
    columns["split"] = named(codes, SPLITS_SORTED)
    columns["async_scheduling"] = [asynchronous] * len(steps)
    return columns


@dataclass(frozen=True)
class _Window:
    """The batches of some steps: their columns, how sure each is (index into EVIDENCE), and for each sampled step
    whether its summary agrees with the corrected and with the published batch."""

    steps: np.ndarray
    columns: dict[str, Cells]
    sure: np.ndarray
    corrected: np.ndarray
    published: np.ndarray


def _window(batches: Batches, low: int, high: int, summaries: Columns, row_of: np.ndarray) -> _Window:
    """The batches of the steps in [low, high)."""
    step, request, kv = batches.decode.expand(low, high)
    chunks = _inside(batches.prefill, low, high)
    steps = np.unique(np.concatenate([step, chunks["step"], summaries["step_id"]]))
    row = np.searchsorted(steps, np.concatenate([step, chunks["step"]]))
    prefill = np.concatenate([np.zeros(len(step), dtype=bool), np.ones(len(chunks["step"]), dtype=bool)])
    new = np.concatenate([np.ones(len(step), dtype=np.int64), chunks["tokens"]])
    before = np.concatenate([kv, chunks["kv_before"]])
    # The host sees no progress before the first chunk, even if tokens are cached (see `raw_columns`).
    progress = np.concatenate([kv, np.where(chunks["first"] == 1, 0, chunks["kv_before"])])
    raw = raw_columns(len(steps), row, prefill, new, progress)
    published, published_counts = _published(batches, low, high, steps, row_of)
    sure, agreed, published_agreed = _agreement(batches, steps, chunks, raw, published_counts, summaries)
    contradicted = sure == EVIDENCE.index(CONTRADICTED)
    columns: dict[str, Cells] = {name: np.where(contradicted, np.nan, raw[name]) for name in RECORDED}
    columns["kv_read_tokens"] = np.bincount(row, before, len(steps))
    requests = row_of[np.concatenate([request, chunks["request"]])]
    columns["batch"] = _entries("batch", len(steps), row, {
        "request": requests, "prefill": prefill, "new_tokens": new, "kv_before": before,
    })  # fmt: skip
    columns["published"] = published
    columns["evidence"] = named(sure, EVIDENCE)
    return _Window(steps, columns, sure, agreed, published_agreed)


def _agreement(
    batches: Batches,
    steps: np.ndarray,
    chunks: Columns,
    raw: Columns,
    published: Sequence[np.ndarray],
    summaries: Columns,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """How sure the batch of each step is, and for each sampled step whether the corrected and the published batch agree
    with its summary.

    `published` has the published prefill requests, prefill tokens and decodes of each step.
    """
    at = np.searchsorted(steps, summaries["step_id"])
    row = np.searchsorted(steps, chunks["step"])
    # Summaries count a first decode as prefill under async scheduling, and a recomputation always as decode.
    early = np.searchsorted(steps, batches.early[np.isin(batches.early, steps)]) if batches.asynchronous else at[:0]
    first = np.bincount(early, minlength=len(steps))
    again = chunks["again"] == 1
    recomputed = np.bincount(row[again], chunks["tokens"][again], len(steps))
    again_reqs = np.bincount(row[again], minlength=len(steps))
    corrected = (
        raw["prefill_reqs"] - again_reqs + first, raw["prefill_tokens"] - recomputed + first,
        raw["decode_reqs"] - first + again_reqs, raw["decode_reqs"] - first + recomputed,
    )  # fmt: skip
    reqs, tokens, decodes = published
    agreed = _equal(corrected, at, summaries)
    sure = np.full(len(steps), SURE.index("exact"))
    np.minimum.at(sure, row, chunks["sure"])
    # Totals that agree confirm a cached prefix if all that was left of the prompt ran in the step.
    confirmed = np.full(len(steps), SURE.index("exact"))
    np.minimum.at(confirmed, row, np.where(chunks["whole"] == 1, SURE.index("exact"), chunks["sure"]))
    sure[at] = np.where(agreed, confirmed[at], EVIDENCE.index(CONTRADICTED))
    return sure, agreed, _equal((reqs + first, tokens + first, decodes - first, decodes - first), at, summaries)


def _equal(figures: Sequence[np.ndarray], at: np.ndarray, summaries: Columns) -> np.ndarray:
    """For each sampled step whether requests and tokens of prefill and decode are those of its summary."""
    names = ("summary_prefill_reqs", "summary_prefill_tokens", "summary_decode_reqs", "summary_decode_tokens")
    equal = np.ones(len(at), dtype=bool)
    for figure, name in zip(figures, names, strict=True):
        equal &= figure[at] == summaries[name]
    return equal


def _published(
    batches: Batches, low: int, high: int, steps: np.ndarray, row_of: np.ndarray
) -> tuple[pa.Array, list[np.ndarray]]:
    """The published entries of `steps`, and per step their prefill requests, prefill tokens and decodes."""
    step, request, context = batches.published_decode.expand(low, high)
    chunks = _inside(batches.published_prefill, low, high)
    kept = np.isin(step, steps)
    step, request, context = step[kept], request[kept], context[kept]
    chunks = select(chunks, np.isin(chunks["step"], steps))
    row = np.searchsorted(steps, np.concatenate([step, chunks["step"]]))
    prefill = np.concatenate([np.zeros(len(step), dtype=bool), np.ones(len(chunks["step"]), dtype=bool)])
    tokens = np.concatenate([np.ones(len(step), dtype=np.int64), chunks["tokens"]])
    entries = _entries("published", len(steps), row, {
        "request": row_of[np.concatenate([request, chunks["request"]])], "prefill": prefill, "tokens": tokens,
        "context": np.concatenate([context, np.zeros(len(chunks["step"]), dtype=np.int64)]),
    })  # fmt: skip
    counts = [np.bincount(row[prefill], weights, len(steps)) for weights in (None, tokens[prefill])]
    return entries, [*counts, np.bincount(row[~prefill], minlength=len(steps))]


def _inside(prefill: Columns, low: int, high: int) -> Columns:
    return select(prefill, (prefill["step"] >= low) & (prefill["step"] < high))


def _entries(column: str, count: int, row: np.ndarray, entries: Columns) -> pa.Array:
    """A list column: prefills first, each group by request."""
    order = np.lexsort((entries["request"], ~entries["prefill"], row))
    return structs("steps", column, np.bincount(row, minlength=count), select(entries, order))
