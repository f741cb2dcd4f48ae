"""The files that an experiments file names: traces, and lists of lengths."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from errno import ENOENT
from functools import cache, partial
from hashlib import file_digest, sha256
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa

from simulator.common.errors import InputError, unreadable
from simulator.serving import limits
from simulator.serving.trace import (
    NOT_COUNTED,
    WINDOW_REQUESTS,
    WINDOW_S,
    Chains,
    Recorded,
    Requests,
    Trace,
    repeated,
    windows,
)
from simulator.serving.traces.csv import header, in_milliseconds, read_columns
from simulator.serving.traces.formats import NEEDED, TURNS, read_rows
from simulator.serving.traces.rows import Rows
from simulator.serving.workload_entry import Files

LATEST_S = 1e9  # seconds from the first arrival to the last
QUICKEST_MS = 0.1  # of E2E for each token, below which latencies are hardly in ms
ALONE = 0.05  # requests in flight on average, below which a load shows nothing of batches
MOST_ABOUT = 1e15  # ns or s since any epoch that clocks begin at


def files_beside(path: Path) -> Files:
    """The reader of the files that an experiments file at `path` names, relative to its folder. It reads each once."""
    return Files(cache(partial(_trace, path.parent)), cache(partial(_lengths, path.parent)))


def _trace(folder: Path, name: str, window_s: float | None, window_requests: int | None, timed: bool = True) -> Trace:
    if not os.path.exists(folder / name):  # also where a name is too long to be looked for
        raise FileNotFoundError(ENOENT, "there is no such file", str(folder.resolve()))
    return read_trace(folder / name, name, window_s, window_requests, timed)


def read_trace(
    path: Path, name: str, window_s: float | None = None, window_requests: int | None = None, timed: bool = True
) -> Trace:
    """The trace in a file of any of the formats; `name` is what the trace calls it.

    timed: False if arrivals are not needed, because a fixed number of clients decides them; unknown ones are then 0.
    For the rest see `trace_from`.
    """
    return trace_from(read_rows(path, timed), path, name, window_s, window_requests, timed)


def trace_from(
    rows: Rows,
    path: Path,
    name: str,
    window_s: float | None = None,
    window_requests: int | None = None,
    timed: bool = True,
) -> Trace:
    """The trace of these requests of a file.

    Its windows are its stages if it has some and neither argument is given, else time windows of at least `window_s`
    seconds (default WINDOW_S) and `window_requests` requests (default WINDOW_REQUESTS). Requests without tokens, which
    failed, are left out. Raises InputError naming file, place and remedy.
    """
    if not len(rows):
        raise InputError(f"{path}: holds no request: give a row for each below the header")
    rows = _timed(rows, path, timed)
    kept = _with_tokens(rows, path)
    number = partial(_column, rows, kept)
    arrival_s = number("arrival_s", -MOST_ABOUT, MOST_ABOUT, "seconds")
    doubts = in_milliseconds(arrival_s, name) if rows.own else ()
    arrival_s = arrival_s - arrival_s.min()
    if (late := arrival_s > LATEST_S).any():
        place = rows.place(int(kept[int(late.argmax())]))
        text = f"arrives {arrival_s.max():.3g} s after the first, at most {LATEST_S:g} are replayed"
        raise InputError(f"{place}: {text}: give seconds, or cut the trace")
    inputs = number("input_len", 1, limits.MOST_TOKENS, "whole tokens")
    outputs = number("output_len", 1, limits.MOST_TOKENS, "whole tokens")
    _check_size(path, inputs, outputs)
    order = np.argsort(arrival_s, kind="stable")
    arrival = np.rint(arrival_s[order] * 1e6).astype(np.int64)
    inputs, outputs = inputs[order].astype(np.int32), outputs[order].astype(np.int32)
    kept = kept[order]
    optional = partial(_optional, rows, kept)
    group, shared = _numbers_of(optional("prefix_group", -1, 2**53, "whole numbers")), np.zeros(len(kept), np.int32)
    if "prefix_group" in rows.columns:
        shared = np.nan_to_num(optional("prefix_len", 0, limits.MOST_TOKENS, "whole tokens")).astype(np.int32)
        if (beyond := (group >= 0) & (shared > inputs)).any():
            place = rows.place(int(kept[int(beyond.argmax())]))
            raise InputError(f"{place}: prefix_len is above input_len: give at most input_len, which includes it")
    timeout_s = optional("timeout_s", 1e-6, LATEST_S, "seconds")
    deadline = np.where(np.isnan(timeout_s), 0, arrival + np.rint(np.nan_to_num(timeout_s) * 1e6).astype(np.int64))
    stage = _stages(rows, kept, arrival, window_s, window_requests)
    chains = _chains(rows, kept, inputs, path)
    turns = TURNS in rows.columns
    if turns and "prompt" in rows.columns:
        raise InputError(f"{path}: prompt and {TURNS} exclude each other: leave one of the columns out")
    prompt = repeated(_numbers_of(optional(TURNS if turns else "prompt", -1, 2**53, "whole numbers")))
    group, shared = np.where(shared > 0, group, -1).astype(np.int32), np.where(group >= 0, shared, 0)
    if turns and (differs := _differs(prompt, group) | _differs(prompt, shared)).any():
        place = rows.place(int(kept[int(differs.argmax())]))
        raise InputError(f"{place}: has another prefix than its conversation: give all turns the same prefix_len")
    requests = Requests(arrival, stage, inputs, outputs, prompt, group, shared, deadline, chains, turns)
    with path.open("rb") as file:
        content = file_digest(file, "sha256").hexdigest()
    digest = sha256(f"{content} {window_s} {window_requests}".encode()).hexdigest()[:16]
    recorded = _recorded(optional, lambda i: rows.place(int(kept[i])))
    notes = (*_notes(rows, kept, name), *(doubts or _alone(requests, recorded, name)))
    return Trace(name, digest, requests, recorded, notes, len(rows) - len(kept), rows.model)


def _differs(owner: np.ndarray, values: np.ndarray) -> np.ndarray:
    """bool: whose value is another than that of the first row of the same owner; False without an owner."""
    _, first, again = np.unique(owner, return_index=True, return_inverse=True)
    differs: np.ndarray = (owner >= 0) & (values != values[first[again]])
    return differs


def _timed(rows: Rows, path: Path, timed: bool) -> Rows:
    """The rows with arrivals. Raises InputError if they are `timed` but the file has none."""
    arrivals = rows.columns.get(NEEDED[0])
    if arrivals is not None and (timed or not np.isnan(arrivals).all()):
        return rows
    if timed:
        remedy = f"`evolve ingest --trace {path}` makes an experiment with its fixed concurrency"
        raise InputError(f"{path}: does not say when requests were sent: {remedy}")
    return replace(rows, columns={**rows.columns, NEEDED[0]: np.zeros(len(rows))})


def _with_tokens(rows: Rows, path: Path) -> np.ndarray:
    """The rows that have tokens, and a time where that may be missing. Raises InputError if there are none."""
    columns = rows.columns
    answered = (columns["input_len"] != 0) & (columns["output_len"] != 0)
    known = ~(np.isnan(columns["output_len"]) | np.isnan(columns["input_len"]) | np.isnan(columns["arrival_s"]))
    kept = np.flatnonzero(answered & known)
    if not len(kept):
        raise InputError(f"{path}: no request has an arrival, a prompt and an answer: name another file")
    return kept


def _column(rows: Rows, kept: np.ndarray, name: str, least: float, most: float, unit: str) -> np.ndarray:
    """A column of the rows that are kept. Raises InputError at a value out of range, or a fraction of a whole unit."""
    values = rows.columns[name][kept]
    with np.errstate(invalid="ignore"):
        wrong = (values < least) | (values > most) | np.isinf(values)
        if unit.startswith("whole"):
            wrong |= values != np.rint(values)
    wrong &= ~np.isnan(values)
    if wrong.any():
        i = int(wrong.argmax())
        text = f"{name} is {values[i]:.15g}: give {unit} from {least:g} to {most:g}"
        raise InputError(f"{rows.place(int(kept[i]))}: {text}")
    return np.asarray(values)


def _optional(rows: Rows, kept: np.ndarray, name: str, least: float, most: float, unit: str) -> np.ndarray:
    """`_column`, all NaN if the file has none."""
    return _column(rows, kept, name, least, most, unit) if name in rows.columns else np.full(len(kept), np.nan)


def _check_size(path: Path, inputs: np.ndarray, outputs: np.ndarray) -> None:
    if (count := len(inputs)) > limits.MOST_REQUESTS:
        raise InputError(f"{path}: has {count:,} requests, at most {limits.MOST_REQUESTS:.0e} are replayed: cut it")
    if (tokens := inputs.sum() + outputs.sum()) > limits.MOST_LOAD_TOKENS:
        most = f"at most {limits.MOST_LOAD_TOKENS:.0e} are replayed"
        raise InputError(f"{path}: its prompts and answers make {tokens:.3g} tokens, {most}: cut it")


def _numbers_of(values: np.ndarray) -> np.ndarray:
    """int64: names given as numbers, replaced by numbers from 0 in order of size; -1 where there is none, or -1."""
    known = values >= 0
    numbers = np.full(len(values), -1, np.int64)
    numbers[known] = np.unique(values[known], return_inverse=True)[1]
    return numbers


def _stages(
    rows: Rows, kept: np.ndarray, arrival_us: np.ndarray, window_s: float | None, window_requests: int | None
) -> np.ndarray:
    """int32 per request: its stage in the file, or its time window; NOT_COUNTED if its stage in the file is that."""
    given = rows.columns.get("stage")
    stage = np.full(len(kept), NOT_COUNTED, np.int32)
    counted = np.full(len(kept), True) if given is None else given[kept] != NOT_COUNTED
    arrival_us, kept = arrival_us[counted], kept[counted]
    if not len(kept):
        raise InputError(f"{rows.place(0)}: no request has another stage than {NOT_COUNTED}, which counts in no figure")
    if given is None or np.isnan(given[kept]).any() or window_s is not None or window_requests is not None:
        stage[counted] = windows(arrival_us, window_s or WINDOW_S, window_requests or WINDOW_REQUESTS)
        return stage
    stage[counted] = of_counted = np.unique(given[kept], return_inverse=True)[1].astype(np.int32)
    if (back := np.diff(of_counted) < 0).any():
        place = rows.place(int(kept[int(back.argmax()) + 1]))
        raise InputError(f"{place}: its stage is below that of an earlier arrival: correct it, or give window_s")
    first = np.flatnonzero(np.diff(of_counted, prepend=-1))
    if (alike := np.diff(arrival_us[first]) == 0).any():
        place = rows.place(int(kept[first[int(alike.argmax()) + 1]]))
        raise InputError(f"{place}: its stage begins at the same time as that before: correct it, or give window_s")
    return stage


def _chains(rows: Rows, kept: np.ndarray, inputs: np.ndarray, path: Path) -> Chains | None:
    """The pieces of the prompts; those that have no number in the file get one of their own."""
    if rows.hashes is None:
        return None
    items, first = rows.hashes
    size = rows.hash_tokens
    codes = pa.array(items).dictionary_encode() if len(items) else None
    numbers = codes.indices.to_numpy() if codes is not None else np.zeros(0, np.int32)
    distinct = len(codes.dictionary) if codes is not None else 0
    need = -(-inputs.astype(np.int64) // size)
    if need.sum() > limits.MOST_PIECES:
        text = f"at most {limits.MOST_PIECES:.0e} are replayed: give larger pieces, or cut it"
        raise InputError(f"{path}: its prompts have {need.sum():,} pieces, {text}")
    starts = np.concatenate([[0], np.cumsum(need)])
    have = np.minimum(np.diff(first)[kept], need)
    total = int(starts[-1])
    place = np.arange(total) - np.repeat(starts[:-1], need)
    numbered = place < np.repeat(have, need)
    piece = distinct + np.arange(total)
    piece[numbered] = numbers[(np.repeat(first[:-1][kept], need) + place)[numbered]]
    own = np.cumsum(~numbered) - 1
    piece[~numbered] = distinct + own[~numbered]
    return Chains(starts, piece.astype(np.int32), size)


def _recorded(optional: Callable[[str, float, float, str], np.ndarray], place: Callable[[int], str]) -> Recorded | None:
    """The latencies of the requests; None if the file has none. `place(i)` names request i."""
    names = ("scheduled_ms", "ttft_ms", "e2e_ms")
    failed = optional("completed", 0, 1, "whole numbers") == 0
    every = [np.where(failed, np.nan, optional(name, 0, limits.MOST_MS, "milliseconds")) for name in names]
    for (name, sooner), (other, later) in pairwise(zip(names, every, strict=True)):
        if (wrong := sooner > later).any():
            i = int(wrong.argmax())
            text = f"{name} is {sooner[i]:.15g}, above {other}, {later[i]:.15g}: check both and their unit"
            raise InputError(f"{place(i)}: {text}")
    scheduled, ttft, e2e = every
    if np.isnan(e2e).all() and np.isnan(ttft).all():
        return None
    return Recorded(e2e, ttft, None if np.isnan(scheduled).all() else scheduled)


def _notes(rows: Rows, kept: np.ndarray, name: str) -> tuple[str, ...]:
    left_out = len(rows) - len(kept)
    if not left_out:
        return rows.about
    return (*rows.about, f"{left_out:,} of {len(rows):,} requests of {name} have no tokens or no arrival: left out")


def _alone(requests: Requests, recorded: Recorded | None, name: str) -> tuple[str, ...]:
    """A note if hardly ever two requests are in flight, perhaps because a unit was mistaken."""
    if recorded is None or np.isnan(recorded.e2e_ms).all():
        return ()
    seconds = float(requests.arrival_us[-1]) / 1e6
    in_flight = float(np.nansum(recorded.e2e_ms)) / 1e3 / max(seconds, 1e-9)
    if in_flight >= ALONE:
        return ()
    apart_s = seconds / max(len(requests) - 1, 1)
    text = f"the requests of {name} come {apart_s:,.3g} s apart, so that hardly ever two are in flight"
    answered = ~np.isnan(recorded.e2e_ms)
    token_ms = recorded.e2e_ms[answered].sum() / requests.output_len[answered].sum()
    remedy = "latencies are in s, give ms" if token_ms < QUICKEST_MS else "arrivals are in ms, give seconds"
    return (f"{text}: if its {remedy}",)


def _lengths(folder: Path, name: str) -> tuple[tuple[float, ...], tuple[int, ...]]:
    """The values listed in a CSV file, one a line below a header, and how often each occurs."""
    path = folder / name
    try:
        names = header(path)
    except OSError as e:  # of a name that is too long, or a folder that may not be looked into
        raise unreadable(path, e, "name a CSV file") from None
    if names[0].replace(".", "", 1).isdigit():
        raise InputError(f"{path}:1: is {names[0]}: begin with a header, for example len")
    (values,) = read_columns(path, names, {names[0]: pa.float64()}, ()).values()
    if not len(values) or not np.isfinite(values).all():
        raise InputError(f"{path}: must list numbers, one a line below a header: correct it")
    distinct, counts = np.unique(values, return_counts=True)
    return tuple(map(float, distinct)), tuple(map(int, counts))
