"""The formats of traces and of results of load generators: how each is known by its content, and who reads it.

Ours, as CSV or parquet: arrival_s, input_len, output_len, and optionally what COLUMNS lists. The table `requests` that
`evolve ingest` writes. Mooncake's JSON lines (Qin et al. 2024, arXiv:2407.00079, section 4), whose hash_ids number
prefixes in pieces of 512 tokens, and Bailian's (Wang et al. 2025, arXiv:2506.02634), known by chat_id and turn, which
are in seconds and pieces of 16 tokens. The CSV files of the Azure LLM inference traces (2023, 2024) and of BurstGPT
(Wang et al. 2024, arXiv:2401.17644). RESULTS has the result files of load generators, which are JSON.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.json as pj
import pyarrow.parquet as pq

from simulator.common.documents import MOST_BYTES, parse_json, read_bytes
from simulator.common.errors import InputError, shown, unreadable
from simulator.common.json import JsonObject
from simulator.common.text import listed
from simulator.serving.limits import MOST_TOKENS
from simulator.serving.traces.aiperf import read_records
from simulator.serving.traces.benchmark import DETAILED, read_sglang, read_vllm
from simulator.serving.traces.csv import EMPTY, header, in_seconds, line_of, mistyped, read_columns, seconds_of
from simulator.serving.traces.genai_perf import read_requests
from simulator.serving.traces.genai_perf import read_summary as read_genai_perf
from simulator.serving.traces.guidellm import read_guidellm
from simulator.serving.traces.llmperf import read_responses
from simulator.serving.traces.llmperf import read_summary as read_llmperf
from simulator.serving.traces.result import SAVED_AGAIN, Result
from simulator.serving.traces.rows import MOONCAKE_TOKENS, Rows

NEEDED = ("arrival_s", "input_len", "output_len")
SERVED = ("e2e_ms", "ttft_ms", "completed")  # how a request fared
TURNS = "conversation"  # which the requests are turns of, so that their prompts have earlier answers too
COLUMNS = (*NEEDED, "prompt", TURNS, "prefix_group", "prefix_len", "stage", "timeout_s", *SERVED, "scheduled_ms")
HASHES, HASH_TOKENS = "hash_ids", "hash_tokens"  # numbers of a prompt's pieces, and a piece's tokens; parquet alone
# The columns of the table `requests` of `evolve ingest`: of the client, and of the server for rows that it alone saw.
OURS = {"arrival_s": "start_s", "input_len": "prompt_tokens", "output_len": "output_tokens"}
OURS |= {name: name for name in ("prompt", "stage", *SERVED)}
INSTEAD = {"input_len": "client_prompt_tokens", "output_len": "max_tokens"}  # for rows without the server's count
SERVER = {"arrival_ns": "queued_ns", "e2e_us": "server_e2e_us", "ttft_us": "server_ttft_us"}
LARGEST_ID = 2**63 - 1  # of a piece
AZURE = {"input_len": "ContextTokens", "output_len": "GeneratedTokens"}
AZURE_TIME = "TIMESTAMP"
BURSTGPT = {"arrival_s": "Timestamp", "input_len": "Request tokens", "output_len": "Response tokens"}
# Columns that look like latencies or tokens, so that they may be believed to be measurements that count.
MEASURED = re.compile(r"_m?s$|latency|token|ttft|e2e", re.IGNORECASE)
MOST_NAMED = 8  # columns that a note lists
CONVERSATION = ("chat_id", "turn")  # the keys by which Bailian's JSON lines are known
BAILIAN_TOKENS = 16  # of a piece of a prompt
TRACES = (".json", ".csv", ".parquet", ".jsonl", ".ndjson")  # endings of the formats
HEAD_BYTES = 1 << 16
COMPRESSED = (".gz", ".bz2", ".xz", ".zst", ".zip")
RENAMING = "import pandas; pandas.read_{kind}('IN').rename(columns={{'YOURS': '{own}'}}).to_csv('OUT.csv', index=False)"
# The published traces, as help and complaints name them: the columns by which a CSV file is known to be of one.
PUBLISHED = {
    "Mooncake": (),
    "Bailian": (),
    "Azure": (AZURE_TIME, *AZURE.values()),
    "BurstGPT": tuple(BURSTGPT.values()),
}
MOST_TIMES = 20  # what JSON files of people may hold: a result has a number for each token
LINES = (".jsonl", ".ndjson")


def _inference_perf(path: Path, where: str, value: Any) -> list[Result]:
    raise InputError(f"{where}: is one file of an inference-perf run: name its folder, as in `evolve ingest FOLDER`")


@dataclass(frozen=True)
class ResultFormat:
    """A file of a load generator: known by one of several sets of keys, dotted below the top, of its first mapping.

    `read(path, where, value)` makes results of a JSON value; `lines`: of a list of (place, mapping), one for each line.
    """

    name: str
    keys: tuple[tuple[str, ...], ...]
    read: Callable[[Path, str, Any], list[Result]]
    lines: Callable[[Path, Sequence[tuple[str, JsonObject]]], list[Result]] | None = None

    def knows(self, value: object) -> bool:
        """Whether a value, or the first item of a list, has the keys."""
        first = value[0] if isinstance(value, list) and value else value
        return any(all(_has(first, key) for key in keys) for keys in self.keys)


def _has(value: object, key: str) -> bool:
    for name in key.split("."):
        if not isinstance(value, dict) or name not in value:
            return False
        value = value[name]
    return True


def _no_record(path: Path, where: str, value: Any) -> list[Result]:
    return read_records(path, [(where, item) for item in (value if isinstance(value, list) else [value])])


# The first that knows a file reads it.
RESULTS = (
    ResultFormat("GuideLLM", (("benchmarks",),), read_guidellm),
    ResultFormat("AIPerf", (("metadata.request_start_ns",),), _no_record, read_records),
    ResultFormat("GenAI-Perf", (("service_kind", "experiments"),), read_requests),
    ResultFormat("GenAI-Perf", (("request_latency.unit",), ("input_config", "request_throughput")), read_genai_perf),
    ResultFormat("LLMPerf", (("num_concurrent_requests", "mean_input_tokens"),), read_llmperf),
    ResultFormat("LLMPerf", (("end_to_end_latency_s", "number_output_tokens"),), read_responses),
    ResultFormat("inference-perf", (("load_summary", "successes"), ("start_time", "info")), _inference_perf),
    ResultFormat("SGLang's bench_serving", (("dataset_name", "completed"),), read_sglang),
    ResultFormat(
        "vLLM's benchmark",
        (("model_id",), ("num_prompts",), ("request_throughput",), ("start_times",), *((key,) for key in DETAILED)),
        read_vllm,
    ),
)
NAMES = tuple(dict.fromkeys((*PUBLISHED, *(f.name for f in RESULTS))))  # of all formats that are not ours


def read_results(path: Path, timed: bool = True) -> list[Result]:
    """The results in a file in any of the formats; a trace is one without a pacing.

    timed: whether a table of ours must have `arrival_s`. Raises InputError naming file, place and remedy.
    """
    try:
        if path.is_dir():
            raise InputError(f"{path}: is a folder: name a file in it")
        if path.is_file() and path.suffix.lower() in COMPRESSED:
            raise InputError(f"{path}: is compressed: unpack it, and name the file that comes out")
        if not path.is_file():
            raise InputError(f"{path}: there is no such file: name a trace, CSV, parquet, JSON lines or JSON")
        if path.suffix.lower() in (".json", *LINES) or _begin(path)[:1] in (b"{", b"["):
            return _of_json(path)
        return [_trace(_parquet(path, timed) if path.suffix.lower() == ".parquet" else _csv(path, timed))]
    except OSError as e:
        raise unreadable(path, e, "name another file") from None


def _trace(rows: Rows) -> Result:
    return Result(rows=rows, requests=len(rows))


def read_rows(path: Path, timed: bool = True) -> Rows:
    """The requests of a file with one result. Raises InputError for another, which `evolve ingest` may read."""
    results = read_results(path, timed)
    if len(results) == 1 and (rows := results[0].rows) is not None:
        return rows
    what = f"has {len(results):,} results" if len(results) > 1 else f"is a result of {results[0].tool} without requests"
    raise InputError(f"{path}: {what}, no trace: `evolve ingest --trace {path}` makes experiments of it")


def _begin(path: Path) -> bytes:
    """The first bytes of a file that are not blank."""
    with path.open("rb") as file:
        return file.read(HEAD_BYTES).removeprefix(b"\xef\xbb\xbf").lstrip()


def _of_json(path: Path) -> list[Result]:
    """The results in a JSON document, or in JSON lines: a result each, a record of one result, or a request."""
    with path.open("rb") as file:
        first = next((line.strip() for line in file if line.strip()), b"").removeprefix(b"\xef\xbb\xbf")
    if first.startswith(b"{") and first.endswith(b"}"):
        return _of_lines(path, first)
    if path.suffix.lower() in LINES and not first.startswith(b"{"):
        return _mooncake(path)  # which says what is wrong with its first line
    value = _value(read_bytes(path, MOST_TIMES * MOST_BYTES), str(path))
    return _format_of(path, value).read(path, str(path), value)


def _of_lines(path: Path, first: bytes) -> list[Result]:
    """The results in a file whose first line is a JSON object."""
    try:
        value = _value(first, str(path))
    except InputError:
        value = None
    unknown = not any(f.knows(value) for f in RESULTS)
    if unknown and (path.suffix.lower() in LINES or (isinstance(value, dict) and "input_length" in value)):
        return _mooncake(path)
    lines = read_bytes(path, MOST_TIMES * MOST_BYTES).splitlines()
    numbered = [(f"{path}:{n}", line) for n, line in enumerate(lines, 1) if line.strip()]
    if len(numbered) == 1:
        numbered = [(str(path), first)]
    values = [(place, _mapping(line, place)) for place, line in numbered]
    known = _format_of(path, values[0][1])
    if known.lines:
        return known.lines(path, values)
    return [result for place, each in values for result in known.read(path, place, each)]


def _format_of(path: Path, value: object) -> ResultFormat:
    """The format of a JSON value. Raises InputError for an unknown one."""
    for each in RESULTS:
        if each.knows(value):
            return each
    known = f"a trace has {', '.join(NEEDED)}, as CSV or parquet; or name one of {', '.join(NAMES)}"
    raise InputError(f"{path}: is JSON of no known format: {known}")


def _value(data: bytes, where: str) -> Any:
    return parse_json(data, where, SAVED_AGAIN, MOST_TIMES, foreign=True)


def _mapping(line: bytes, place: str) -> JsonObject:
    value = _value(line, place)
    if not isinstance(value, dict):
        raise InputError(f"{place}: must be a JSON object: {SAVED_AGAIN}")
    return value


def is_trace(path: Path) -> bool:
    """True for a file in one of the formats, by its ending or, for JSON, by its first keys.

    Raises OSError if it cannot be read.
    """
    ending = path.suffix.lower()
    if ending not in TRACES or not path.is_file():
        return False
    if ending != ".json":
        return True
    begin = _begin(path)
    names = [[key.split(".")[0] for key in keys] for f in RESULTS for keys in f.keys]
    if b'"experiments"' in begin and b'"service_kind"' not in begin:
        return False
    return any(all(f'"{name}"'.encode() in begin for name in each) for each in names)


def _csv(path: Path, timed: bool = True) -> Rows:
    names = header(path)
    if names == [""]:
        raise InputError(f"{path}: is empty: begin with the names of the columns")

    def line(i: int) -> str:
        return f"{path}:{line_of(path, i + 1)}"  # below the header

    if set(PUBLISHED["Azure"]) <= set(names):
        kinds = {AZURE_TIME: pa.string(), **dict.fromkeys(AZURE.values(), pa.float64())}
        found = read_columns(path, names, kinds, ())
        return Rows({"arrival_s": seconds_of(found[AZURE_TIME], AZURE_TIME, line), **_renamed(found, AZURE)}, line)
    if set(PUBLISHED["BurstGPT"]) <= set(names):
        found = read_columns(path, names, dict.fromkeys(BURSTGPT.values(), pa.float64()), ())
        return Rows(_renamed(found, BURSTGPT), line)
    aliases = OURS if "start_s" in names else {name: name for name in COLUMNS}
    _check_names(path, names, aliases, timed)
    wanted = {own: theirs for own, theirs in aliases.items() if theirs in names}
    kinds = dict.fromkeys(wanted.values(), pa.float64())
    needed = _needed(timed)
    optional = [name for own, name in wanted.items() if own not in needed or aliases is OURS]
    found = read_columns(path, names, kinds, optional)
    columns = {own: np.where(found[t] == EMPTY, np.nan, found[t]) for own, t in wanted.items()}
    if aliases is OURS:
        return Rows(columns, line)
    return Rows(columns, line, about=_not_read(names), own=True)


def _parquet(path: Path, timed: bool = True) -> Rows:
    def row(i: int) -> str:
        return f"{path}: row {i}"

    try:
        schema = pq.read_schema(path)
        names = schema.names
        aliases = OURS if "start_s" in names else {name: name for name in COLUMNS}
        _check_names(path, names, aliases, timed)
        arrival = aliases["arrival_s"]
        if arrival in names and pa.types.is_timestamp(schema.field(arrival).type):
            problem = f"{arrival} is of dates ({schema.field(arrival).type})"
            raise InputError(f"{path}: {problem}: {in_seconds('parquet', arrival)}")
        wanted = {own: theirs for own, theirs in aliases.items() if theirs in names}
        seen = [n for n in (*SERVER.values(), *INSTEAD.values()) if n in names] if aliases is OURS else []
        hashed = [name for name in (HASHES, HASH_TOKENS) if name in names]
        table = pq.read_table(path, columns=[*wanted.values(), *seen, *hashed])
        columns = {own: _floats(table.column(theirs)) for own, theirs in wanted.items()}
        server = {own: _floats(table.column(theirs)) for own, theirs in SERVER.items() if theirs in seen}
        for own, theirs in INSTEAD.items():
            if theirs in seen:
                columns[own] = np.where(np.isnan(columns[own]), _floats(table.column(theirs)), columns[own])
        sizes = _floats(table.column(HASH_TOKENS)) if HASH_TOKENS in hashed else np.zeros(0)
    except (pa.ArrowException, OSError, UnicodeDecodeError) as e:
        why = " ".join(str(e).split())[:200]
        raise InputError(f"{path}: is not a parquet file with these columns ({why}): write it again") from None
    if server:
        columns = _by_server(columns, server)
    given = aliases is not OURS
    about = _not_read(names, HASHES, HASH_TOKENS) if given else ()
    if not hashed:
        return Rows(columns, row, about=about, own=given)
    if len(hashed) == 1:
        raise InputError(f"{path}: {HASHES} and {HASH_TOKENS} go together: give both columns or neither")
    if len(sizes) and not (sizes == sizes[0]).all():
        raise InputError(f"{path}: {HASH_TOKENS} differs from row to row: give one size of pieces")
    if len(sizes) and not (1 <= sizes[0] <= MOST_TOKENS and sizes[0] == np.rint(sizes[0])):
        text = f"give whole tokens from 1 to {MOST_TOKENS:g}"
        raise InputError(f"{path}: {HASH_TOKENS} is {sizes[0]:.15g}: {text}")
    ids = table.column(HASHES)
    is_list = pa.types.is_list(ids.type) or pa.types.is_large_list(ids.type)
    if not is_list or not pa.types.is_integer(ids.type.value_type):
        raise InputError(f"{path}: {HASHES} must be lists of whole numbers, got {ids.type}: write it again")
    return Rows(columns, row, _lists(ids, row), int(sizes[0]) if len(sizes) else MOONCAKE_TOKENS, about, own=given)


def _by_server(columns: dict[str, np.ndarray], server: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The columns with the server's times where no client's are known of any request."""
    if "arrival_ns" not in server or not np.isnan(columns["arrival_s"]).all():
        return columns
    times = {"arrival_s": server["arrival_ns"] / 1e9}
    times |= {f"{name}_ms": server[f"{name}_us"] / 1e3 for name in ("e2e", "ttft") if f"{name}_us" in server}
    return {**columns, **times}


def _mooncake(path: Path) -> list[Result]:
    def line(i: int) -> str:
        return f"{path}:{line_of(path, i)}"

    names = {"arrival_s": "timestamp", "input_len": "input_length", "output_len": "output_length"}
    kinds = pa.schema({**dict.fromkeys((*names.values(), *CONVERSATION), pa.float64()), HASHES: pa.list_(pa.int64())})
    try:
        options = pj.ParseOptions(explicit_schema=kinds, unexpected_field_behavior="ignore")
        table = pj.read_json(path, pj.ReadOptions(block_size=1 << 24), options)
    except (pa.ArrowException, OSError) as e:
        raise InputError(_damaged_line(path, " ".join(str(e).split()))) from None
    columns = {own: _floats(table.column(theirs)) for own, theirs in names.items()}
    for own, theirs in names.items():
        if (lost := np.isnan(columns[own])).any():
            raise InputError(f"{line(int(lost.argmax()))}: {theirs} is missing: give a number")
    bailian = all(table.column(name).null_count == 0 for name in CONVERSATION)
    tokens = BAILIAN_TOKENS if bailian else MOONCAKE_TOKENS
    if not bailian:
        columns["arrival_s"] = columns["arrival_s"] / 1e3
    ids = table.column(HASHES)
    if ids.null_count == len(ids):
        return [_trace(Rows(columns, line))]
    hashes = _lists(ids, line)
    pieces = np.diff(hashes[1])
    if (more := pieces > np.ceil(np.abs(columns["input_len"]) / tokens)).any():
        i = int(more.argmax())
        problem = (
            f"{HASHES} has {pieces[i]} pieces for {columns['input_len'][i]:g} tokens, more than of {tokens} tokens each"
        )
        remedy = f"write a parquet file with arrival_s in seconds, {HASHES} and {HASH_TOKENS}"
        raise InputError(f"{line(i)}: {problem}: {remedy}")
    return [_trace(Rows(columns, line, hashes, tokens))]


def _damaged_line(path: Path, why: str) -> str:
    """The complaint about the first line that is no JSON object of the right kinds."""
    with path.open(encoding="utf-8", errors="replace") as file:
        for number, text in enumerate(file, 1):
            try:
                value = json.loads(text) if text.strip() else {}
            except (ValueError, RecursionError):
                return f"{path}:{number}: is not JSON: correct or remove the line"
            if not isinstance(value, dict):
                return f"{path}:{number}: must be an object with timestamp, input_length, output_length: correct it"
            for name in ("timestamp", "input_length", "output_length"):
                if isinstance(value.get(name, 0), bool) or not isinstance(value.get(name, 0), int | float):
                    return f"{path}:{number}: {name} is {shown(value[name])}: give a number"
            ids = value.get(HASHES) or []
            if not (isinstance(ids, list) and all(type(i) is int for i in ids)):
                return f"{path}:{number}: {HASHES} must be a list of whole numbers: correct it"
            if large := next((i for i in ids if not -LARGEST_ID - 1 <= i <= LARGEST_ID), None):
                remedy = "number the pieces in the order in which they first occur, say"
                return f"{path}:{number}: {HASHES} has {shown(large)}, more than 64 bits hold (2^63 - 1): {remedy}"
    return f"{path}: {why}: write a JSON object on each line"


def _needed(timed: bool) -> tuple[str, ...]:
    """The columns that every trace needs; with a fixed concurrency, arrivals need not be `timed`."""
    return NEEDED if timed else NEEDED[1:]


def _check_names(path: Path, names: Sequence[str], aliases: dict[str, str], timed: bool) -> None:
    """Raises InputError if a column that every trace needs is missing, or one of two that go together."""
    for own in _needed(timed):
        if aliases[own] not in names:
            text = ", ".join(names)[:100]
            for whose, needed in PUBLISHED.items():
                if set(needed) & set(names):
                    lost = next(name for name in needed if name not in names)
                    known = f"a trace of {whose} has {', '.join(needed)}"
                    raise InputError(f"{path}: the column {lost} is missing among {text}: {known}")
            known = f"{', '.join(NEEDED)}; or {', '.join(NAMES)}"
            rename = RENAMING.format(kind="parquet" if path.suffix.lower() == ".parquet" else "csv", own=aliases[own])
            lost = f"the column {aliases[own]} is missing among {text}: a trace has {known}"
            raise InputError(f"{path}: {lost}; to rename, in Python: `{rename}`")
    if twice := [name for name in aliases.values() if list(names).count(name) > 1]:
        raise InputError(f"{path}: has the column {twice[0]} twice: leave one out")
    if aliases is not OURS and ("prefix_group" in names) != ("prefix_len" in names):
        raise InputError(f"{path}: prefix_group and prefix_len go together: give both columns or neither")


def _not_read(names: Sequence[str], *also: str) -> tuple[str, ...]:
    """A line for each column that is not read although it is nearly called like one that is, and one for all others
    that look like latencies or tokens; `also` are read, too."""
    known = (*COLUMNS, *also)
    lists = [name for name in names if name in (HASHES, HASH_TOKENS) and name not in known]
    near = mistyped(names, known)
    return (
        *(f"the column {name} is not read: a CSV file has no lists, write parquet" for name in lists),
        *(f"the column {shown(name)} is not read: did you mean {near[name]!r}?" for name in near),
        *_not_measured([name for name in names if name not in known and name not in near and name not in lists], names),
    )


def _not_measured(others: Sequence[str], names: Sequence[str]) -> tuple[str, ...]:
    """A line that names those of the other columns that look like latencies or tokens."""
    like = list(dict.fromkeys(name for name in others if MEASURED.search(name)))
    if not like:
        return ()
    absent = [name for name in ("e2e_ms", "ttft_ms") if name not in names]
    columns, are = ("columns", "are") if len(like) > 1 else ("column", "is")
    text = f"the {columns} {listed([*map(shown, like)], MOST_NAMED)} {are} not read"
    return (f"{text}: rename what is {' or '.join(absent)} of a request (docs/ingest.md)" if absent else text,)


def _renamed(found: dict[str, np.ndarray], names: dict[str, str]) -> dict[str, np.ndarray]:
    return {own: found[theirs] for own, theirs in names.items()}


def _floats(column: pa.ChunkedArray) -> np.ndarray:
    """A column as float64, NaN where it is empty."""
    # not safe: times in ns since 1970 are not exact in float64, but their microseconds are
    return np.asarray(column.cast(pa.float64(), safe=False).fill_null(np.nan).to_numpy())


def _lists(column: pa.ChunkedArray, place: Callable[[int], str]) -> tuple[np.ndarray, np.ndarray]:
    """(the items of all lists, where each row's begin and the last one's end). Raises InputError at an empty item."""
    lists = column.combine_chunks()
    items = lists.flatten()
    if items.null_count:
        row = lists.value_parent_indices()[items.is_null().index(True).as_py()].as_py()
        raise InputError(f"{place(row)}: {HASHES} has an empty item: give whole numbers")
    counts = lists.value_lengths().fill_null(0).to_numpy(zero_copy_only=False)
    return items.to_numpy(zero_copy_only=False), np.concatenate([[0], np.cumsum(counts)])
