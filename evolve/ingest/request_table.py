"""The requests table: what client and server saw of every request, with token counts and times corrected."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

import numpy as np
import pyarrow as pa

from evolve.ingest.columns import NONE
from evolve.ingest.derive import stamps as read
from evolve.ingest.derive.batches import Batches
from evolve.ingest.derive.joined import Joined
from evolve.ingest.derive.journeys import Labels, Life, labels
from evolve.ingest.sources.clients import Clients
from evolve.ingest.sources.traces import STATUSES, Traces
from evolve.ingest.tables import constant, names, schema

HOW = ("snapshot", "summary", "kv_events", "prompt", "short", "none")
_LABELS = {
    "queueing_us": "queueing_us", "ttft_us": "server_ttft_us", "prefill_processing_us": "prefill_processing_us",
    "decode_processing_us": "decode_processing_us", "processing_us": "processing_us", "e2e_us": "server_e2e_us",
}  # fmt: skip


def request_columns(
    experiment: str,
    joined: Joined,
    traces: Traces | None,
    lives: Sequence[Life],
    clients: Clients | None,
    batches: Batches | None,
    stage_of: np.ndarray,
) -> dict[str, Any]:
    """The table's columns. `stage_of`: the load stage of every row with a client row, in order, or empty."""
    count = len(joined.client)
    columns: dict[str, Any] = {
        "experiment": constant(experiment, count),
        "request": np.arange(count),
        "client_index": np.where(joined.client >= 0, np.arange(count), NONE),
        "stage": np.append(stage_of, np.full(count - len(stage_of), NONE)),
    }
    columns.update(_server(joined, traces, lives, count))
    if clients is not None:
        columns.update(_client(joined, clients, columns, count))
    else:
        columns["completed"] = columns["usable"]
    if batches is not None:
        columns.update(_cached(joined, batches, traces, count))
    return columns


def _server(joined: Joined, traces: Traces | None, lives: Sequence[Life], count: int) -> dict[str, Any]:
    by_core = {life.request: life for life in lives}
    whole = ("prompt_tokens", "output_tokens", "queued_ns", "scheduled_ns", "first_token_ns", "finished_ns",
             "preemptions", "first_step", "last_step", "status")  # fmt: skip
    out: dict[str, Any] = {name: np.full(count, NONE) for name in whole}
    out |= {name: np.full(count, np.nan) for name in _LABELS.values()}
    out["usable"] = np.zeros(count, dtype=bool)
    intervals: list[Any] = [None] * count
    for row, core in enumerate(joined.core.tolist()):
        life = by_core.get(core)
        if life is None:
            continue
        values = (life.prompt, life.outputs, life.queued_ns, life.scheduled_ns, life.first_token_ns, life.finished_ns,
                  life.preemptions, life.first_step, life.last_step, life.status)  # fmt: skip
        for name, value in zip(whole, values, strict=True):
            out[name][row] = NONE if value is None else value
        out["usable"][row] = life.usable
        times = labels(life)
        for field in fields(Labels) if times else ():
            out[_LABELS[field.name]][row] = getattr(times, field.name)
        intervals[row] = [
            {"prefill": i.prefill, "start_step": i.start, "end_step": i.end, "prefill_tokens": i.tokens}
            for i in life.intervals
        ]
    arrived, departed = (np.append(x, NONE)[joined.api] for x in (joined.arrived_ns, joined.departed_ns))
    out["finish_status"] = names(out.pop("status"), STATUSES)
    out["intervals"] = intervals
    out["arrived_ns"], out["departed_ns"] = arrived, departed
    out["arrival_to_queue_us"] = _between(arrived, out["queued_ns"])
    out["finish_to_departure_us"] = _between(out["finished_ns"], departed)
    if traces is not None:
        out["request_id"] = [traces.core_ids[i] if i >= 0 else None for i in joined.core.tolist()]
        out["api_id"] = [traces.api_ids[i] if i >= 0 else None for i in joined.api.tolist()]
    return out


def _between(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Microseconds from one time in ns to another; NaN where either is missing."""
    return np.where((first == NONE) | (second == NONE), np.nan, (second - first) / 1e3)


def _client(joined: Joined, clients: Clients, server: Mapping[str, Any], count: int) -> dict[str, Any]:
    rows = joined.client[joined.client >= 0]
    mine = len(rows)
    ran = np.array([not clients.errors[i] for i in rows.tolist()], dtype=bool)
    limit, eos = clients.rows["max_tokens"][rows], clients.rows["ignore_eos"][rows]
    # the server's count where its journey is whole; under ignore_eos a whole answer has max_tokens
    tokens = np.where(server["usable"][:mine], server["output_tokens"][:mine], NONE)
    tokens = np.where((tokens == NONE) & ran & (eos == 1), limit, tokens)
    by_file = np.full(len(clients), NONE)
    by_file[rows] = tokens
    times = read.token_times(clients, by_file)
    start, end = clients.rows["start_s"][rows], clients.rows["end_s"][rows]
    answered = np.where(ran, times.tokens[rows], server["output_tokens"][:mine])
    e2e, ttft = (end - start) * 1e3, (times.first_s[rows] - start) * 1e3
    stamps = (read.LINES, read.EVENTS, read.OTHER)
    codes = np.array([stamps.index(times.reading[i]) if times.reading[i] else NONE for i in rows.tolist()], np.int64)
    found = [times.times[i] for i in rows.tolist()]
    kinds = tuple(sorted({clients.errors[i] for i in rows.tolist()} - {""})) or ("",)
    errors = np.array([kinds.index(clients.errors[i]) if clients.errors[i] else NONE for i in rows.tolist()], np.int64)
    with np.errstate(divide="ignore", invalid="ignore"):
        itl = np.where(ran & (answered > 1), (e2e - ttft) / (answered - 1), np.nan)
    own = {
        "completed": ran,
        "max_tokens": limit,
        "client_prompt_tokens": clients.rows["input_tokens"][rows],
        "client_output_tokens": clients.rows["output_tokens"][rows],
        "prompt": clients.rows["prompt"][rows],
        "start_s": start - (start.min() if mine else 0.0),
        "e2e_ms": e2e,
        "ttft_ms": ttft,
        "itl_ms": itl,
    }
    out = {name: _longer(column, count) for name, column in own.items()}
    out["output_tokens"] = np.concatenate([answered, server["output_tokens"][mine:]])
    out["stamps"] = names(_longer(codes, count), stamps)
    out["error"] = names(_longer(errors, count), kinds)
    out["token_times_us"] = _token_times(found, start, count)
    out["completed"][mine:] = server["usable"][mine:]
    return out


def _token_times(found: Sequence[np.ndarray | None], start: np.ndarray, count: int) -> Any:
    """A list column of `count` rows: each token's time in us since its request's start; empty where not known."""
    lengths = np.array([-1 if t is None else len(t) for t in found] + [-1] * (count - len(found)))
    ends = np.cumsum(np.maximum(lengths, 0))
    flat = np.empty(int(ends[-1]) if count else 0, dtype=np.int64)
    for t, begin, end in zip(found, start.tolist(), ends.tolist(), strict=False):
        if t is not None:
            flat[end - len(t) : end] = np.round((t - begin) * 1e6)
    offsets = pa.array(np.concatenate([[0], ends]), pa.int32(), mask=np.append(lengths < 0, False))
    return pa.ListArray.from_arrays(offsets, flat, schema("requests").field("token_times_us").type)


def _longer(column: np.ndarray, count: int) -> np.ndarray:
    """The column followed by empty cells."""
    empty = {"f": np.nan, "b": False}.get(column.dtype.kind, NONE)
    return np.append(column, np.full(count - len(column), empty, column.dtype))


def _cached(joined: Joined, batches: Batches, traces: Traces | None, count: int) -> dict[str, Any]:
    row_of = joined.row_of_core(len(traces.core_ids) if traces else 0)
    cached, computed, how = (np.full(count, NONE) for _ in range(3))
    for a, tokens, kind in zip(batches.admissions, batches.known.cached, batches.known.how, strict=True):
        row = row_of[a.request]
        if row >= 0 and cached[row] == NONE and not a.again:
            cached[row], computed[row], how[row] = tokens, a.target - tokens, HOW.index(kind)
    return {"cached_tokens": cached, "computed_tokens": computed, "cached_how": names(how, HOW)}
