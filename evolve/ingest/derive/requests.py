"""Requests as client and server saw them, in one table, and the figures of the run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from evolve.ingest.columns import NONE, Columns
from evolve.ingest.derive.batches import Batches
from evolve.ingest.derive.cached import HOW
from evolve.ingest.derive.journeys import Journey
from evolve.ingest.derive.matching import Joined, row_of
from evolve.ingest.read.clients import EVENTS, LINES, OTHER, Clients, token_times
from evolve.ingest.read.reports import LoadReport, Reports
from evolve.ingest.read.settings import ServerSettings
from evolve.ingest.read.traces import STATUSES, Traces

_SAME = ("queued_ns", "scheduled_ns", "first_token_ns", "finished_ns", "preemptions", "first_step", "last_step")
_FIELDS = {"prompt": "prompt_tokens", "outputs": "output_tokens", "status": "finish_status"} | dict(
    zip(_SAME, _SAME, strict=True)
)
"""Fields of Journey and their columns."""


@dataclass(frozen=True)
class RequestTable:
    """The requests of a run, one row each: those with a client row first, by start.

    `columns` and `lists` have the names of the requests table; NONE, NaN and None are unknown. The columns in `names`
    are codes into these names. `lists` are ids, intervals, and times in us at which a row's tokens arrived.
    """

    columns: Columns
    names: Mapping[str, tuple[str, ...]]
    lists: Mapping[str, Sequence[Any]]

    def __len__(self) -> int:
        return len(self.columns["request"])

    def texts(self, column: str) -> list[str]:
        """The names in a column of codes, without empty cells."""
        codes = self.columns[column]
        return [self.names[column][code] for code in codes[codes != NONE].tolist()]


def requests_of(
    joined: Joined,
    traces: Traces | None,
    journeys: Sequence[Journey],
    clients: Clients | None,
    batches: Batches | None,
    settings: ServerSettings,
) -> RequestTable:
    """The requests of both sides, with token counts and times corrected."""
    count = len(joined.client)
    by_core = {journey.request: journey for journey in journeys}
    in_rows = [by_core.get(core) for core in joined.core.tolist()]
    columns = {
        "request": np.arange(count),
        "client_index": np.where(joined.client >= 0, np.arange(count), NONE),
        "stage": _longer(_stages(clients, settings), count),
        **_server(joined, in_rows),
    }
    names: dict[str, tuple[str, ...]] = {"finish_status": STATUSES, "cached_how": HOW}
    lists: dict[str, Sequence[Any]] = {
        "request_id": [traces.core_ids[i] if traces and i >= 0 else None for i in joined.core.tolist()],
        "api_id": [traces.api_ids[i] if traces and i >= 0 else None for i in joined.api.tolist()],
        "intervals": [j and [(i.prefill, i.start, i.end, i.tokens) for i in j.intervals] for j in in_rows],
    }
    if clients is None:
        columns["completed"] = columns["usable"]
    else:
        names |= {"stamps": (LINES, EVENTS, OTHER), "error": tuple(sorted({*clients.errors} - {""})) or ("",)}
        seen, times = _client(joined, clients, columns, names)
        columns |= seen
        lists["token_times_us"] = times + [None] * (count - len(times))
    if batches is not None:
        columns |= _cached(joined, batches, len(traces.core_ids) if traces else 0)
    return RequestTable(columns, {name: of for name, of in names.items() if name in columns}, lists)


def _stages(clients: Clients | None, settings: ServerSettings) -> np.ndarray:
    """The load stage of every client row, by start, as int64; NONE if the stages of the load are unknown.

    The load generator sends round(rate * duration) requests per stage: a row's stage follows from its rank if that is
    the number of rows, else from its time since the first start.
    """
    if clients is None:
        return np.zeros(0, dtype=np.int64)
    stages = settings.load.stages if settings.load else None
    if not stages:
        return np.full(len(clients), NONE)
    offered = [round(stage.offered) for stage in stages]
    if sum(offered) == len(clients):
        return np.repeat(np.arange(len(stages)), offered)
    if stages[0].users is not None and len(stages) > 1:  # nothing tells where one ended
        return np.full(len(clients), NONE)
    start = np.sort(clients.rows["start_s"])
    ends = np.cumsum([stage.duration_s for stage in stages])[:-1]
    numbers: np.ndarray = np.searchsorted(ends, start - start[0], side="right").astype(np.int64)
    return numbers


def _server(joined: Joined, journeys: Sequence[Journey | None]) -> Columns:
    count = len(journeys)
    columns = {name: np.full(count, NONE) for name in _FIELDS.values()}
    complete, usable = np.zeros(count, dtype=bool), np.zeros(count, dtype=bool)
    prefill_gap_ns, decode_gap_ns = np.zeros(count, np.int64), np.zeros(count, np.int64)
    for row, journey in enumerate(journeys):
        if journey is None:
            continue
        for field, name in _FIELDS.items():
            value = getattr(journey, field)
            columns[name][row] = NONE if value is None else value
        complete[row], usable[row] = journey.complete, journey.usable
        prefill_gap_ns[row], decode_gap_ns[row] = journey.prefill_gap_ns, journey.decode_gap_ns
    arrived, departed = (np.append(ns, NONE)[joined.api] for ns in (joined.arrived_ns, joined.departed_ns))
    queued, first, finished = columns["queued_ns"], columns["first_token_ns"], columns["finished_ns"]
    prefill_ns = first - columns["scheduled_ns"] - prefill_gap_ns
    decode_ns = finished - first - decode_gap_ns
    durations_ns = {
        "queueing_us": columns["scheduled_ns"] - queued,
        "server_ttft_us": first - queued,
        "prefill_processing_us": prefill_ns,
        "decode_processing_us": decode_ns,
        "processing_us": prefill_ns + decode_ns,
        "server_e2e_us": finished - queued,
    }
    return {
        **columns,
        **{name: np.where(complete, ns / 1e3, np.nan) for name, ns in durations_ns.items()},
        "usable": usable,
        "arrived_ns": arrived,
        "departed_ns": departed,
        "arrival_to_queue_us": _between(arrived, queued),
        "finish_to_departure_us": _between(finished, departed),
    }


def _between(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Microseconds from one time in ns to another; NaN if either is missing."""
    return np.where((first == NONE) | (second == NONE), np.nan, (second - first) / 1e3)


def _client(
    joined: Joined, clients: Clients, server: Columns, names: Mapping[str, tuple[str, ...]]
) -> tuple[Columns, list[np.ndarray | None]]:
    """The client's columns, in codes of `names` where it has theirs, and the token times of its rows in us."""
    rows = joined.client[joined.client >= 0]
    count, total = len(rows), len(joined.client)
    errors = [clients.errors[i] for i in rows.tolist()]
    completed = np.array([not error for error in errors], dtype=bool)
    limit, eos = clients.rows["max_tokens"][rows], clients.rows["ignore_eos"][rows]
    # The server's count if the journey is usable; otherwise, under ignore_eos a complete answer has max_tokens.
    tokens = np.where(server["usable"][:count], server["output_tokens"][:count], NONE)
    tokens = np.where((tokens == NONE) & completed & (eos == 1), limit, tokens)
    by_file = np.full(len(clients), NONE)
    by_file[rows] = tokens
    times = token_times(clients, by_file)
    start, end = clients.rows["start_s"][rows], clients.rows["end_s"][rows]
    answered = np.where(completed, times.tokens[rows], server["output_tokens"][:count])
    e2e, ttft = (end - start) * 1e3, (times.first_s[rows] - start) * 1e3
    with np.errstate(divide="ignore", invalid="ignore"):
        itl = np.where(completed & (answered > 1), (e2e - ttft) / (answered - 1), np.nan)
    own = {
        "completed": completed,
        "max_tokens": limit,
        "client_prompt_tokens": clients.rows["input_tokens"][rows],
        "client_output_tokens": clients.rows["output_tokens"][rows],
        "prompt": clients.rows["prompt"][rows],
        "start_s": start - start.min(),
        "e2e_ms": e2e,
        "ttft_ms": ttft,
        "itl_ms": itl,
        "stamps": _codes([times.reading[i] for i in rows.tolist()], names["stamps"]),
        "error": _codes(errors, names["error"]),
    }
    columns = {name: _longer(column, total) for name, column in own.items()}
    columns["output_tokens"] = np.concatenate([answered, server["output_tokens"][count:]])
    columns["completed"][count:] = server["usable"][count:]
    of_rows = zip((times.times[i] for i in rows.tolist()), start.tolist(), strict=True)
    return columns, [None if at is None else np.round((at - begin) * 1e6).astype(np.int64) for at, begin in of_rows]


def _codes(texts: Sequence[str], names: tuple[str, ...]) -> np.ndarray:
    """The position of each text in `names`, NONE for an empty one."""
    return np.array([names.index(text) if text else NONE for text in texts], np.int64)


def _longer(column: np.ndarray, count: int) -> np.ndarray:
    """The column followed by empty cells, `count` in all."""
    empty = {"f": np.nan, "b": False}.get(column.dtype.kind, NONE)
    return np.append(column, np.full(count - len(column), empty, column.dtype))


def _cached(joined: Joined, batches: Batches, cores: int) -> Columns:
    """Cached and computed prompt tokens at the first admission, and the evidence."""
    rows = row_of(joined.core, cores)
    cached, computed, how = (np.full(len(joined.client), NONE) for _ in range(3))
    for a, tokens, kind in zip(batches.admissions, batches.cached.tokens, batches.cached.how, strict=True):
        row = rows[a.request]
        if row >= 0 and cached[row] == NONE and not a.again:
            cached[row], computed[row], how[row] = tokens, a.target - tokens, HOW.index(kind)
    return {"cached_tokens": cached, "computed_tokens": computed, "cached_how": how}


def reports_of(requests: RequestTable, source: str) -> Reports:
    """The figures of the load generator's reports, taken from client rows instead."""
    has_row = requests.columns["client_index"] != NONE
    stage = requests.columns["stage"]
    numbers = sorted(set(stage[has_row].tolist()) - {NONE})
    summary = _report(requests.columns, has_row, source)
    return Reports(summary, {k: _report(requests.columns, has_row & (stage == k), source) for k in numbers})


def _report(columns: Columns, rows: np.ndarray, source: str) -> LoadReport:
    completed, failed = rows & columns["completed"], rows & ~columns["completed"]
    prompts, answers = (columns[f"client_{name}_tokens"][completed] for name in ("prompt", "output"))
    return LoadReport(
        source=source,
        requests=int(rows.sum()),
        completed=int(completed.sum()),
        failed=int(failed.sum()),
        e2e_s=_statistics(columns["e2e_ms"][completed] / 1e3),
        ttft_s=_statistics(columns["ttft_ms"][completed] / 1e3),
        failed_after_s=_statistics(columns["e2e_ms"][failed] / 1e3),
        prompt_len=_statistics(prompts[prompts != NONE].astype(float)),
        reported_output_len=_statistics(answers[answers != NONE].astype(float)),
    )


def _statistics(values: np.ndarray) -> dict[str, float]:
    """Statistics as in a report, percentiles by linear interpolation; none without values."""
    values = values[~np.isnan(values)]
    if not len(values):
        return {}
    low, p50, p90, p99, high = np.percentile(values, (0, 50, 90, 99, 100)).tolist()
    return {"mean": float(values.mean()), "min": low, "median": p50, "p90": p90, "p99": p99, "max": high}


def components(requests: RequestTable) -> tuple[dict[str, float], int] | None:
    """The parts of the mean E2E in ms, and the number of requests behind them; None without any.

    The requests are those with a usable journey that the client saw complete; without client rows, all with a usable
    journey. The parts are arrival_to_queue, waiting (SCHEDULED - QUEUED, and the gaps of preemptions; async scheduling
    stamps SCHEDULED one cycle early), prefill_steps, decode_steps, after_finish, and client: the client's E2E
    beyond the server's.
    """
    columns = requests.columns
    us = {
        "arrival_to_queue": columns["arrival_to_queue_us"],
        "waiting": columns["server_e2e_us"] - columns["processing_us"],
        "prefill_steps": columns["prefill_processing_us"],
        "decode_steps": columns["decode_processing_us"],
        "after_finish": columns["finish_to_departure_us"],
    }
    parts = {name: part for name, part in us.items() if not np.isnan(part).all()}
    if "e2e_ms" in columns:
        client = columns["e2e_ms"] * 1e3 - sum(parts.values())
        parts |= {} if np.isnan(client).all() else {"client": client}
    rows = columns["usable"] & columns["completed"] & ~np.isnan(sum(parts.values(), np.zeros(len(requests))))
    if not rows.any():
        return None
    return {name: round(float(part[rows].mean()) / 1e3, 4) for name, part in parts.items()}, int(rows.sum())
