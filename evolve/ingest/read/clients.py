"""per_request_lifecycle_metrics.json: every request as the load generator saw it, read row by row.

Its times are seconds on a clock with an arbitrary origin. It stamps lines of the event stream, not tokens, and counts
tokens by tokenising the text again. `token_times` recovers the token times; the true output length comes from the
server or from max_tokens.

Older releases stamp every line they read: n tokens, each followed by a blank line, then `[DONE]` and its blank line, so
2n + 2 stamps, of which every other one is a token. Their reported TPOT and ITL are therefore about half the true ones.
Releases since 2025-11-14 stamp events: n + 1. If the server put several tokens into one event, neither count fits, and
only the first token's time is known.
"""

from __future__ import annotations

import codecs
import hashlib
import json
import re
from array import array
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, BinaryIO

import ijson
import numpy as np

from evolve.ingest.columns import NONE, Columns, Growing, as_array
from evolve.ingest.read.values import unread
from simulator.common.json import JsonObject

CUT_OFF = "file cut off or not JSON from some point on, the rows before it kept"
NOT_ROWS = "malformed rows, dropped"
NOT_UTF8 = "pieces that are not UTF-8, read with replacements"
TOO_DEEP = "nested too deeply from some point on"
TWICE = "duplicate rows, dropped"
NO_TIMES = "rows whose token times decrease or lie outside the request, their token times dropped"

DEEPEST = 1000  # levels; a row has four
LATEST_S = 1e12  # times beyond this are invalid
LINES, EVENTS, OTHER = "2n+2", "n+1", "other"  # readings of a request's stamps

_REPLACED = "\ufffd".encode()
_ERROR = re.compile(
    r"(?:\w{1,40}\.){0,6}([A-Z][A-Za-z0-9]{0,60}(?:Error|Exception|Timeout|Disconnected|Exceeded|Refused))", re.A
)
# A string to its end, or to the end of the piece, where the last backslash may belong to what follows.
_STRING = re.compile(rb'"(?:[^"\\]++|\\.)*+("|\\?\Z)', re.DOTALL)
_NOT_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
_TIMES = ("start_s", "end_s")
_ROW = (*_TIMES, "max_tokens", "ignore_eos", "input_tokens", "output_tokens", "prompt")


@dataclass(frozen=True)
class Clients:
    """One request per row, in file order.

    `rows` has start_s, end_s, max_tokens, ignore_eos (0, 1 or NONE), input_tokens, output_tokens (both by the client's
    own tokeniser) and prompt (the number of its text among the distinct ones, NONE if unknown). `errors` are the types
    of the errors, "" for none. `stamps` are all times at which lines were read, those of row i at
    `bounds[i]:bounds[i + 1]`.
    """

    rows: Columns
    errors: tuple[str, ...]
    stamps: np.ndarray
    bounds: np.ndarray
    tally: Counter[str]

    def __len__(self) -> int:
        return len(self.errors)


def read_clients(path: Path, on_read: Callable[[int], None]) -> Clients:
    """Read a file of any size, until it can be read no further."""
    tally: Counter[str] = Counter()
    rows = Growing(_ROW, _TIMES)
    prompts: dict[bytes, int] = {}
    seen: set[tuple[float, ...]] = set()
    errors: list[str] = []
    stamps, bounds = array("d"), array("q", [0])
    try:
        with path.open("rb") as file:
            for raw in ijson.items(_Sanitized(file, tally, on_read), "item", use_float=True):
                row = _row(raw, prompts)
                if row is None:
                    tally[NOT_ROWS] += 1
                    continue
                numbers, error, times = row
                key = (*numbers, len(times))
                if key in seen:
                    tally[TWICE] += 1
                    continue
                seen.add(key)
                if not _in_order(numbers[0], times, numbers[1]):
                    tally[NO_TIMES] += 1
                    times = []
                rows.append(numbers)
                errors.append(error)
                stamps.extend(times)
                bounds.append(len(stamps))
    except ijson.JSONError:
        tally[CUT_OFF] += 1
    except OSError as e:
        tally[unread(e)] += 1
    return Clients(rows.columns(), tuple(errors), as_array(stamps), as_array(bounds), tally)


class _Sanitized:
    """The bytes of a file with invalid UTF-8 replaced, so that one bad byte does not cost the rest.

    They end where the JSON nests deeper than DEEPEST levels: the parser keeps the path to every value, so its memory
    grows with the square of the depth, to gigabytes for a file of 100 kB.
    """

    def __init__(self, file: BinaryIO, tally: Counter[str], on_read: Callable[[int], None]) -> None:
        self._file, self._tally, self._on_read = file, tally, on_read
        self._decoder = codecs.getincrementaldecoder("utf-8-sig")("replace")
        self._depth = 0  # brackets open after the last piece, outside strings
        self._open_string = b""  # prefixed to the next piece: the quote of an unfinished string

    def read(self, size: int = -1) -> bytes:
        clean = b""
        while size and not clean:  # a piece may end inside a character
            data = self._file.read(size)
            self._on_read(len(data))
            clean = self._decoder.decode(data, final=not data).encode()
            if clean.count(_REPLACED) > data.count(_REPLACED):
                self._tally[NOT_UTF8] += 1
            if self._deepest(clean) > DEEPEST:
                self._tally[TOO_DEEP] = 1
                return b""
            if not data:
                break
        return clean

    def _deepest(self, piece: bytes) -> int:
        """An upper bound on the depth within this piece; exact from DEEPEST on."""
        text, self._open_string = self._open_string + piece, b""
        brackets = _STRING.sub(self._end_of_string, text).translate(None, _NOT_BRACKETS)
        opened = brackets.count(b"[") + brackets.count(b"{")
        most = self._depth + opened
        if most >= DEEPEST:
            rising = np.isin(np.frombuffer(brackets, np.uint8), tuple(b"[{"))
            most = self._depth + int(np.cumsum(2 * rising.astype(np.int64) - 1).max(initial=0))
        self._depth += 2 * opened - len(brackets)
        return most

    def _end_of_string(self, string: re.Match[bytes]) -> bytes:
        if string[1] != b'"':
            self._open_string = b'"' + string[1]
        return b""


def _row(raw: Any, prompts: dict[bytes, int]) -> tuple[tuple[float, ...], str, list[float]] | None:
    """(values of the columns of `Clients.rows`, type of the error, stamps), or None if the row is malformed."""
    if not isinstance(raw, dict):
        return None
    start, end, info = _time(raw.get("start_time")), _time(raw.get("end_time")), raw.get("info")
    if start is None or end is None or end < start or not isinstance(info, dict):
        return None
    times = info.get("output_token_times") or []
    if not isinstance(times, list) or not set(map(type, times)) <= {int, float}:
        return None
    if not -LATEST_S < min(times, default=0.0) <= max(times, default=0.0) < LATEST_S:
        return None
    body = _body(raw.get("request"))
    eos = body.get("ignore_eos")
    numbers = (
        _count(body.get("max_tokens")),
        int(eos) if isinstance(eos, bool) else NONE,
        _count(info.get("input_tokens")),
        _count(info.get("output_tokens")),
        _prompt(body.get("prompt", body.get("messages")), prompts),
    )
    return (start, end, *numbers), _error(raw.get("error")), times


def _body(request: Any) -> JsonObject:
    try:
        body = json.loads(request) if isinstance(request, str) else request
    except (ValueError, RecursionError):
        return {}
    return body if isinstance(body, dict) else {}


def _prompt(prompt: Any, prompts: dict[bytes, int]) -> int:
    """The number of a text or of a chat's messages among distinct ones; NONE without one or nested too deeply."""
    if prompt is None:
        return NONE
    try:
        text = prompt if isinstance(prompt, str) else json.dumps(prompt, sort_keys=True)
    except RecursionError:
        return NONE
    return prompts.setdefault(hashlib.sha256(text.encode("utf-8", "replace")).digest()[:16], len(prompts))


def _error(error: Any) -> str:
    """The type of an error. Its message is not kept, because it may contain addresses."""
    if error is None:
        return ""
    kind = error.get("error_type") if isinstance(error, dict) else str(error).partition(":")[0]
    match = _ERROR.fullmatch(kind) if isinstance(kind, str) else None
    return match[1] if match else "other"


def _time(value: Any) -> float | None:
    return float(value) if type(value) in (int, float) and abs(value) < LATEST_S else None


def _in_order(start: float, times: list[float], end: float) -> bool:
    """True if the times ascend and lie between `start` and `end`."""
    return not times or (start <= times[0] and times[-1] <= end and all(a <= b for a, b in pairwise(times)))


def _count(value: Any) -> int:
    return value if type(value) is int and 0 <= value < 2**31 else NONE


@dataclass(frozen=True)
class TokenTimes:
    """Per client row: output tokens (NONE if unknown), time of the first one in s (NaN without), and the reading of its
    stamps that fits ("" without stamps). `times[i]` are the times of all tokens in s on the client's clock, or None."""

    tokens: np.ndarray
    first_s: np.ndarray
    reading: tuple[str, ...]
    times: tuple[np.ndarray | None, ...]


def token_times(clients: Clients, tokens: np.ndarray) -> TokenTimes:
    """The token times of all rows. `tokens` is the true output length of every row, NONE where unknown.

    An unknown length is taken from the stamps, read like most rows of known length; if there are none, as 2n + 2 if all
    counts are even.
    """
    counts = np.diff(clients.bounds)
    known = (tokens != NONE) & (counts > 0)
    lines = int((counts[known] == 2 * tokens[known] + 2).sum())
    events = int((counts[known] == tokens[known] + 1).sum())
    by_lines = lines > events or (lines == events and not (counts % 2).any())
    lengths = tokens.copy()
    guessed = (tokens == NONE) & (counts > 2)
    lengths[guessed] = (counts[guessed] - 2) // 2 if by_lines else counts[guessed] - 1
    first = np.full(len(lengths), np.nan)
    readings, times = [], []
    for i, stamps in enumerate(np.split(clients.stamps, clients.bounds[1:-1])):
        reading, of_tokens = _reading(stamps, int(lengths[i]))
        readings.append(reading)
        times.append(of_tokens)
        if len(stamps):
            first[i] = stamps[0]
    return TokenTimes(lengths, first, tuple(readings), tuple(times))


def _reading(stamps: np.ndarray, tokens: int) -> tuple[str, np.ndarray | None]:
    """The reading of the stamps that fits, and the token times if there is one."""
    if not len(stamps):
        return "", None
    if tokens >= 1 and len(stamps) == 2 * tokens + 2:
        return LINES, stamps[0::2][:tokens]
    if tokens >= 1 and len(stamps) == tokens + 1:
        return EVENTS, stamps[:tokens]
    return OTHER, None
