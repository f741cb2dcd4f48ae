"""TraceV2, the host's format of recorded requests: a header in YAML, and a CSV file with a row per request.

Times are whole microseconds. A request is injected when it was sent, or else when it arrived. Send and chunk times may
be on another clock than arrivals and deadlines, and are moved onto theirs. The prompt of a request in a prefix group is
the group's prefix and `input_tokens` more; that of any other has as many tokens as the server counted, if it did.

Where the header says that sessions accumulate their context, `input_tokens` of later rounds are what is new: a prompt
is that of the round before, its answer, and these. `input_tokens_reset` is the whole prompt of a round that begins with
another text, and nothing of what was said before (the host's --session-mode fixed-accumulate).
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import repeat
from pathlib import Path
from typing import TextIO

import numpy as np

from simulator.common.documents import parse_yaml, read_bytes, yaml_text
from simulator.common.errors import InputError, Section, shown, unreadable
from simulator.serving.engine import LARGEST
from simulator.serving.limits import MOST_TOKENS
from simulator.serving.trace import Requests, repeated, repeated_share
from simulator.serving.traces.losses import READ, Loss, losses_of_data, losses_of_header

COLUMNS = (
    *("request_id", "client_id", "tenant_id", "slo_class", "session_id", "round_index", "prefix_group"),
    *("prefix_length", "streaming", "input_tokens", "output_tokens", "text_tokens", "image_tokens", "audio_tokens"),
    *("video_tokens", "reason_ratio", "model", "deadline_us", "server_input_tokens", "arrival_time_us", "send_time_us"),
    *("first_chunk_time_us", "last_chunk_time_us", "num_chunks", "status", "error_message", "finish_reason"),
)
WITHIN = ("vllm_priority", "slo_target_us")  # optional columns that may be between those of COLUMNS; others follow them
LATEST_US = 10**17
NUMBERS = {
    "request_id": (0, 2**53),
    **dict.fromkeys(("prefix_length", "input_tokens", "output_tokens", "server_input_tokens"), (0, MOST_TOKENS)),
    **dict.fromkeys(("deadline_us", "arrival_time_us", "first_chunk_time_us", "last_chunk_time_us"), (0, LATEST_US)),
    "send_time_us": (-LATEST_US, LATEST_US),
    "round_index": (-(2**31), 2**31),
}
TEXTS = ("slo_class", "session_id", "prefix_group", "streaming", "model", "status")
RESET, NO_RESET = "input_tokens_reset", -1
OPTIONAL = {"vllm_priority": (0, 2**31), RESET: (0, MOST_TOKENS)}  # numbers, in some files: these values or nothing
ADAPTER = "adapter"  # a text, in some files
# Written, and not read: the other columns are empty.
ZEROS = (
    *("round_index", "text_tokens", "image_tokens", "audio_tokens", "video_tokens", "reason_ratio"),
    *("server_input_tokens", "num_chunks"),
)
TRUE, FALSE = ("true", "True", "TRUE", "t", "T", "1"), ("false", "False", "FALSE", "f", "F", "0")
# The words that the host writes: its client the first three, its simulation all but "error". It reads any other too.
OK, TIMEOUT, ERROR, INCOMPLETE = STATUSES = ("ok", "timeout", "error", "incomplete")
WRITTEN, VERSIONS, UNITS, MODES = 2, (2, 3), ("microseconds", "us"), ("real", "generated", "replayed")
HEADER = ("trace_version", "time_unit", "mode", "warm_up_requests", "server")
ABOUT = ("created_at", "workload_seed", "workload_spec", "goodput_slo_targets")
DATA, BOM = b"request_id,", b"\xef\xbb\xbf"  # how the other file begins, perhaps after a mark of its encoding
GROWTH, ACCUMULATE = "session_context_growth", "accumulate"
CASE = "case.json"  # next to an exported header: the engine settings that a header has no place for
NEVER = -1  # instead of the time of a chunk that did not come, which the file has as 0
_WHOLE = re.compile(r"-?[0-9]{1,18}")


@dataclass(frozen=True)
class TraceServer:
    """The server of the requests; None where the header does not say. Lengths in tokens."""

    type: str | None = None
    model: str | None = None
    tensor_parallel: int | None = None
    max_num_seqs: int | None = None
    block_size: int | None = None
    gpu_memory_utilization: float | None = None
    max_model_len: int | None = None


@dataclass(frozen=True)
class Header:
    """A trace's header. The first `warm_up_requests` ids are in no figure. accumulates: prompts of a session hold all
    that was said. notes: on keys that are not known. losses: what else of it no replay has."""

    mode: str
    warm_up_requests: int = 0
    server: TraceServer = TraceServer()
    accumulates: bool = False
    notes: tuple[str, ...] = ()
    losses: tuple[Loss, ...] = ()


@dataclass(frozen=True)
class Recording:
    """A trace: its header, and for each request, in order of injection, its number, its lengths, and its times.

    first_us, last_us: times of the first and the last chunk, int64 on the clock of arrivals, or NEVER. status: texts,
    OK for a completed request. streamed: True if the first chunk came with the first token. line: of the data file,
    empty for a trace that was not read. losses: what of the trace no replay has.
    """

    header: Header
    number: np.ndarray
    requests: Requests
    status: np.ndarray
    first_us: np.ndarray
    last_us: np.ndarray
    streamed: np.ndarray
    line: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64), compare=False)
    losses: tuple[Loss, ...] = field(default=(), compare=False)

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
    text = np.full(len(number), -1)
    if header.accumulates:
        inputs, group, shared, text, wrong = _accumulated(columns, inputs, group, shared)
        refuse(wrong, "round_index", "the rounds of a session are numbered 0, 1, 2, ...: give those that are missing")
    refuse(~np.isin(columns["streaming"], (*TRUE, *FALSE)), "streaming", "give true or false")
    refuse(inputs < 1, "input_tokens", "give at least 1 token, or a prefix")
    refuse(inputs > MOST_TOKENS, "input_tokens", f"give at most {MOST_TOKENS:g} tokens, with the prefix")
    order = np.argsort(sent, kind="stable")
    stage, outputs = np.zeros((2, len(number)), np.int32)
    outputs[:] = columns["output_tokens"]
    lengths = inputs.astype(np.int32), outputs, repeated(text)
    requests = Requests(sent - shift, stage, *lengths, group, shared, columns["deadline_us"], turns=header.accumulates)
    requests = replace(requests.of(order), group=_in_order(group[order]))
    first, last = (
        np.where(columns[name] > 0, np.maximum(columns[name] - shift, 0), NEVER)[order]
        for name in ("first_chunk_time_us", "last_chunk_time_us")
    )
    status, streamed = columns["status"][order], np.isin(columns["streaming"], TRUE)[order]
    ordered = {name: values[order] for name, values in columns.items()}
    lost = losses_of_data(ordered, requests, header.accumulates, header.server.model, data_path.name)
    losses = *header.losses, *lost
    return Recording(header, number[order], requests, status, first, last, streamed, line[order], losses)


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


def _accumulated(
    columns: dict[str, np.ndarray], inputs: np.ndarray, group: np.ndarray, shared: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """(prompt tokens, group or -1, shared tokens, text or -1) of each row where sessions accumulate their context, and
    True for a row whose round before is missing. Rounds that are beginnings of one text have its number."""
    session, turn = columns["session_id"], columns["round_index"].tolist()
    new, answer, reset = (columns[name].tolist() for name in ("input_tokens", "output_tokens", RESET))
    of = np.unique(session, return_inverse=True)[1].tolist()
    inputs, group, shared = inputs.copy(), group.copy(), shared.copy()
    text, wrong, texts, before = np.full(len(of), -1), np.full(len(of), False), -1, -1
    for i in np.lexsort((turn, of)).tolist():
        if not session[i]:
            continue
        first = before < 0 or of[i] != of[before]
        wrong[i] = turn[i] != (0 if first else turn[before] + 1)
        if first or reset[i] != NO_RESET:
            texts += 1
        if not first and reset[i] != NO_RESET:
            inputs[i], group[i], shared[i] = reset[i], -1, 0
        elif not first:
            inputs[i] = inputs[before] + answer[before] + new[i]
            group[i], shared[i] = group[before], shared[before]
        text[i], before = texts, i
    return inputs, group, shared, text, wrong


def _in_order(group: np.ndarray) -> np.ndarray:
    """int32: groups numbered from 0 in order of their first request, -1 for none."""
    numbers = np.full(len(group), -1, np.int32)
    known = group >= 0
    _, first, inverse = np.unique(group[known], return_index=True, return_inverse=True)
    numbers[known] = np.argsort(np.argsort(first))[inverse]
    return numbers


def _columns(path: Path) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """The columns of NUMBERS and OPTIONAL, int64, and TEXTS and ADAPTER of a data file, and each row's line. Raises
    InputError."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            rows = csv.reader(file)
            names = next(rows, [])
            _check_names(path, names)
            some = [name for name in (*OPTIONAL, ADAPTER) if name in names]
            places = {name: names.index(name) for name in (*NUMBERS, *TEXTS, *some)}
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
    columns = {name: _whole(path, name, found[name], line, span) for name, span in NUMBERS.items()}
    columns |= {name: np.array(found[name]) for name in TEXTS}
    columns[ADAPTER] = np.array(found.get(ADAPTER, [""] * len(line)))
    for name, span in OPTIONAL.items():
        texts = found.get(name, [""] * len(line))
        given = [i for i, text in enumerate(texts) if text]
        columns[name] = np.full(len(line), NO_RESET if name == RESET else 0)
        columns[name][given] = _whole(path, name, [texts[i] for i in given], [line[i] for i in given], span)
    return columns, np.array(line)


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


def _whole(path: Path, name: str, texts: Sequence[str], line: Sequence[int], span: tuple[int, int]) -> np.ndarray:
    least, most = span
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
    r = recording.requests
    prefix = np.where(r.group < 0, 0, r.shared_len)
    columns: dict[str, Iterable[object]] = {
        "request_id": recording.number.tolist(),
        "prefix_group": ["" if group < 0 else f"prefix-{group}" for group in r.group.tolist()],
        "prefix_length": prefix.tolist(),
        "streaming": np.where(recording.streamed, "true", "false").tolist(),
        "input_tokens": (r.input_len - prefix).tolist(),
        "output_tokens": r.output_len.tolist(),
        "deadline_us": r.deadline_us.tolist(),
        "arrival_time_us": r.arrival_us.tolist(),
        "send_time_us": r.arrival_us.tolist(),
        "first_chunk_time_us": np.maximum(recording.first_us, 0).tolist(),
        "last_chunk_time_us": np.maximum(recording.last_us, 0).tolist(),
        "status": recording.status.tolist(),
        **{name: repeat(0) for name in ZEROS},
    }
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(COLUMNS)
    writer.writerows(zip(*(columns.get(name, repeat("")) for name in COLUMNS), strict=False))


def read_header(path: Path) -> Header:
    """The header in a YAML file. Raises InputError naming file, key and remedy."""
    begin = f"begin with trace_version: {WRITTEN}"
    try:
        content = read_bytes(path)
    except OSError as e:
        raise unreadable(path, e, "name the header, a YAML file") from None
    if content.removeprefix(BOM).startswith(DATA):
        raise InputError(f"{path}: is the data of a trace, a CSV file, not its header: swap the two, the header first")
    raw = parse_yaml(content, str(path), begin)
    if not isinstance(raw, dict):
        raise InputError(f"{path}: must be a mapping, got {shown(raw)}: {begin}")
    top = Section(str(path), "", raw)
    kinds: tuple[tuple[str, tuple[object, ...]], ...]
    kinds = (("trace_version", VERSIONS), ("time_unit", UNITS), ("mode", MODES))
    for key, values in kinds:
        value = top.required(key, f"write {key}: {values[0]}")
        if value not in values or isinstance(value, bool):
            expected = " or ".join(map(str, values))
            raise top.error(key, f"must be {expected}, got {shown(value)}", "write the trace again")
    if (growth := raw.get(GROWTH)) not in (None, "", ACCUMULATE):
        problem = f"is {shown(growth)}: the lengths of later prompts follow only as the sessions are played"
        raise top.error(GROWTH, problem, f"play them with the host and export what it sent, or write {ACCUMULATE}")
    known = (*HEADER, *ABOUT, GROWTH, *READ)
    notes = tuple(f"{path.name}: {shown(key)} of the header is not replayed" for key in raw if key not in known)
    server = _server(top.section("server", "give its settings")) if top.has("server") else TraceServer()
    warm_up = top.whole("warm_up_requests", "give a number of requests") if top.has("warm_up_requests") else 0
    return Header(raw["mode"], warm_up, server, growth == ACCUMULATE, notes, losses_of_header(raw, path.name))


def _server(s: Section) -> TraceServer:
    s.only(tuple(TraceServer.__dataclass_fields__))

    def read(key: str) -> str | float:
        if key in ("type", "model"):
            return s.name(key)
        if key == "gpu_memory_utilization":
            return s.number(key, "give a fraction of the GPU's memory, as 0.9", least=0, most=1)
        return s.whole(key, "give a whole number", most=LARGEST[key])

    # the host takes 0 for "not known"
    return TraceServer(**{key: read(key) or None for key in TraceServer.__dataclass_fields__ if s.has(key)})  # type: ignore[arg-type]


def header_text(header: Header) -> str:
    """The header as YAML."""
    server = {key: value for key, value in asdict(header.server).items() if value is not None}
    values = (WRITTEN, UNITS[0], header.mode, header.warm_up_requests, server)
    raw = {key: value for key, value in zip(HEADER, values, strict=True) if key != "server" or value}
    return yaml_text(raw, 80)
