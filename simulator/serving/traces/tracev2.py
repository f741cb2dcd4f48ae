"""TraceV2, the host's format of recorded requests: a header (tracev2_header), and a CSV file with a row per request.

Times are whole microseconds. A request is injected when it was sent, or else when it arrived. Send and chunk times may
be on another clock than arrivals and deadlines, and are moved onto theirs. The prompt of a request in a prefix group is
the group's prefix and `input_tokens` more; that of any other has as many tokens as the server counted, if it did.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TextIO

import numpy as np

from simulator.common.errors import InputError, shown, unreadable
from simulator.serving.limits import MOST_TOKENS
from simulator.serving.trace import Requests, repeated_share
from simulator.serving.traces.tracev2_header import Header, read_header

COLUMNS = (
    "request_id", "client_id", "tenant_id", "slo_class", "session_id", "round_index", "prefix_group", "prefix_length",
    "streaming", "input_tokens", "output_tokens", "text_tokens", "image_tokens", "audio_tokens", "video_tokens",
    "reason_ratio", "model", "deadline_us", "server_input_tokens", "arrival_time_us", "send_time_us",
    "first_chunk_time_us", "last_chunk_time_us", "num_chunks", "status", "error_message", "finish_reason",
)  # fmt: skip
WITHIN = ("vllm_priority", "slo_target_us")  # optional columns that may be between those of COLUMNS; others follow them
NUMBERS = {
    "request_id": (0, 2**53), "prefix_length": (0, MOST_TOKENS), "input_tokens": (0, MOST_TOKENS),
    "output_tokens": (0, MOST_TOKENS), "deadline_us": (0, 10**17), "server_input_tokens": (0, MOST_TOKENS),
    "arrival_time_us": (0, 10**17), "send_time_us": (-(10**17), 10**17), "first_chunk_time_us": (0, 10**17),
    "last_chunk_time_us": (0, 10**17),
}  # fmt: skip
TEXTS = ("prefix_group", "streaming", "status")
TRUE, FALSE = ("true", "True", "TRUE", "t", "T", "1"), ("false", "False", "FALSE", "f", "F", "0")
# The words that the host writes: its client the first three, its simulation all but "error". It reads any other too.
OK, TIMEOUT, ERROR, INCOMPLETE = STATUSES = ("ok", "timeout", "error", "incomplete")
NEVER = -1  # instead of the time of a chunk that did not come, which the file has as 0
_WHOLE = re.compile(r"-?[0-9]{1,18}")


@dataclass(frozen=True)
class Recording:
    """A trace: its header, and per request, in order of injection, its number, what it asked for, and how it fared.

    first_us, last_us: when the first and the last chunk came, int64 on the clock of arrivals, or NEVER. status:
    texts, OK for a completed request. streamed: bool, whether the first chunk came with the first token. line: where
    each is in the data file, empty for a trace that was not read.
    """

    header: Header
    number: np.ndarray
    requests: Requests
    status: np.ndarray
    first_us: np.ndarray
    last_us: np.ndarray
    streamed: np.ndarray
    line: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64), compare=False)

    @property
    def warm_up(self) -> np.ndarray:
        """bool: requests that are part of no figure, by their numbers, as the host counts them."""
        first: np.ndarray = self.number < self.header.warm_up_requests
        return first


def read_recording(header_path: Path, data_path: Path) -> Recording:
    """The trace in a header and its data. Raises InputError naming file, line, column and remedy."""
    header = read_header(header_path)
    columns, line = _columns(data_path)
    number, arrival = columns["request_id"], columns["arrival_time_us"]

    def refuse(wrong: np.ndarray, name: str, why: str) -> None:
        if wrong.any():
            i = int(wrong.argmax())
            value = columns[name][i]
            text = shown(str(value)) if name in TEXTS else str(value)
            raise InputError(f"{data_path}:{line[i]}: {name} is {text}: {why}")

    _, first_of, again = np.unique(number, return_index=True, return_inverse=True)
    refuse(first_of[again] != np.arange(len(number)), "request_id", "an earlier line has it: number the requests")
    early = (columns["deadline_us"] > 0) & (arrival > 0) & (columns["deadline_us"] < arrival)
    refuse(early, "deadline_us", "give a time after arrival_time_us, or 0 for no timeout")
    sent = np.where(columns["send_time_us"] > 0, columns["send_time_us"], arrival)
    shift = sent.min() - arrival.min()
    inputs, group, shared = _prompts(columns)
    refuse(~np.isin(columns["streaming"], (*TRUE, *FALSE)), "streaming", "give true or false")
    refuse(inputs < 1, "input_tokens", "give at least 1 token, or a prefix")
    refuse(inputs > MOST_TOKENS, "input_tokens", f"give at most {MOST_TOKENS:g} tokens, with the prefix")
    order = np.argsort(sent, kind="stable")
    none = np.full(len(number), -1, np.int32)
    requests = Requests(
        arrival_us=sent - shift, stage=np.zeros(len(number), np.int32), input_len=inputs.astype(np.int32),
        output_len=columns["output_tokens"].astype(np.int32), prompt=none, group=group, shared_len=shared,
        deadline_us=columns["deadline_us"],
    )  # fmt: skip
    requests = requests.of(order)
    requests = replace(requests, group=_in_order(requests.group))
    first, last = (
        np.where(columns[name] > 0, np.maximum(columns[name] - shift, 0), NEVER)[order]
        for name in ("first_chunk_time_us", "last_chunk_time_us")
    )
    status, streamed = columns["status"][order], np.isin(columns["streaming"], TRUE)[order]
    return Recording(header, number[order], requests, status, first, last, streamed, line[order])


def _prompts(columns: dict[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(prompt tokens, group or -1, shared tokens) of each row: a group's prefix is as long as its first row that has
    one says, and every prompt of the group begins with it."""
    names, group = np.unique(columns["prefix_group"], return_inverse=True)
    length = np.zeros(len(names), np.int64)
    has = np.flatnonzero(columns["prefix_length"] > 0)[::-1]
    length[group[has]] = columns["prefix_length"][has]  # the last assignment, of the first row, is kept
    length[names == ""] = 0
    shared, server = length[group], columns["server_input_tokens"]
    own = np.where((server > 0) & (columns["prefix_group"] == ""), server, columns["input_tokens"])
    return shared + own, np.where(shared > 0, group, -1), shared.astype(np.int32)


def _in_order(group: np.ndarray) -> np.ndarray:
    """int32: groups numbered from 0 in order of their first request, -1 for none."""
    numbers = np.full(len(group), -1, np.int32)
    known = group >= 0
    _, first, inverse = np.unique(group[known], return_index=True, return_inverse=True)
    numbers[known] = np.argsort(np.argsort(first))[inverse]
    return numbers


def _columns(path: Path) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """The columns of NUMBERS, int64, and TEXTS of a data file, and each row's line. Raises InputError."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            rows = csv.reader(file)
            names = next(rows, [])
            _check_names(path, names)
            places = {name: names.index(name) for name in (*NUMBERS, *TEXTS)}
            found: dict[str, list[str]] = {name: [] for name in places}
            line = []
            for row in rows:
                if not row:
                    continue
                if len(row) < len(names):
                    text = f"has {len(row)} fields but the header has {len(names)}: correct the line"
                    raise InputError(f"{path}:{rows.line_num}: {text}")
                for name, place in places.items():
                    found[name].append(row[place])
                line.append(rows.line_num)
    except OSError as e:
        raise unreadable(path, e, "name the data, a CSV file") from None
    except (UnicodeDecodeError, csv.Error) as e:
        raise InputError(f"{path}: is not a CSV file ({' '.join(str(e).split())[:80]}): name the data") from None
    if not line:
        raise InputError(f"{path}: holds no request: give a row for each below the header")
    numbers = {name: _whole(path, name, found[name], line) for name in NUMBERS}
    return {**numbers, **{name: np.array(found[name]) for name in TEXTS}}, np.array(line)


def _check_names(path: Path, names: Sequence[str]) -> None:
    """Raises InputError unless the columns are those of COLUMNS in their order, which the host relies on."""
    needed = [name for name in names if name not in WITHIN]
    for i, name in enumerate(COLUMNS):
        if i >= len(needed) or needed[i] != name:
            got = shown(needed[i]) if i < len(needed) else "nothing"
            remedy = f"give the {len(COLUMNS)} columns of TraceV2 in their order"
            raise InputError(f"{path}:1: column {i + 1} must be {name}, got {got}: {remedy}")
    if twice := [name for name in names if names.count(name) > 1]:
        raise InputError(f"{path}:1: has the column {shown(twice[0])} twice: leave one out")


def _whole(path: Path, name: str, texts: Sequence[str], line: Sequence[int]) -> np.ndarray:
    least, most = NUMBERS[name]
    values = np.zeros(len(texts), np.int64)
    for i, text in enumerate(texts):
        if not _WHOLE.fullmatch(text) or not least <= int(text) <= most:
            unit = "microseconds" if name.endswith("_us") else "tokens" if "_tokens" in name else "number"
            remedy = f"give a whole {unit.removesuffix('s') if unit == 'number' else f'number of {unit}'}"
            raise InputError(f"{path}:{line[i]}: {name} is {shown(text)}: {remedy} from {least} to {most}")
        values[i] = int(text)
    return values


def with_one_prefix(requests: Requests) -> tuple[Requests, float]:
    """The requests as TraceV2 can hold them, and the share of their repeated prompt tokens that this loses.

    Its requests have one prefix each, and a group's prefixes have one length. So either whole prompts that repeat are
    kept or what different prompts of a group share, whichever is more.
    """
    before = repeated_share(requests)
    none = np.full(len(requests), -1, np.int32)
    best = replace(requests, prompt=none, group=none, shared_len=0 * none, chains=None)
    kept = 0.0
    if requests.chains is None:
        for owner, length in ((requests.prompt, requests.input_len), (requests.group, requests.shared_len)):
            group = _in_order(owner)
            shared = np.zeros(len(requests), np.int32)
            if (known := group >= 0).any():
                least = np.full(int(group.max()) + 1, MOST_TOKENS, np.int64)
                np.minimum.at(least, group[known], np.minimum(length, requests.input_len)[known])
                shared[known] = least[group[known]]
            one = replace(best, group=group, shared_len=shared)
            if (share := repeated_share(one)) > kept:
                best, kept = one, share
    return best, 1.0 - kept / before if before else 0.0


def write_data(recording: Recording, file: TextIO) -> None:
    """Write the data as CSV, a row per request in order of injection."""
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(COLUMNS)
    writer.writerows(_rows(recording))


def _rows(recording: Recording) -> Iterator[tuple[object, ...]]:
    r = recording.requests
    columns = (recording.number, r.arrival_us, r.input_len, r.output_len, r.group, r.shared_len, r.deadline_us,
               recording.status, np.maximum(recording.first_us, 0), np.maximum(recording.last_us, 0),
               recording.streamed)  # fmt: skip
    for number, arrival, prompt, answer, group, shared, deadline, status, first, last, streamed in zip(
        *(column.tolist() for column in columns), strict=True
    ):
        prefix = ("", 0) if group < 0 else (f"prefix-{group}", shared)
        yield (
            number, "", "", "", "", 0, *prefix, "true" if streamed else "false", prompt - prefix[1], answer,
            0, 0, 0, 0, 0, "", deadline, 0, arrival, arrival, first, last, 0, status, "", "",
        )  # fmt: skip
