"""per_request_lifecycle_metrics.json: what the load generator saw of every request, read row by row.

Its times are seconds on a clock of its own. It stamps lines of the event stream, not tokens, and counts tokens by
tokenising the text again; `stamps.py` finds the token times, and the true output length comes from elsewhere.
"""

from __future__ import annotations

import codecs
import hashlib
import json
import math
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

from evolve.ingest.columns import NONE, Columns, Growing, view
from evolve.ingest.sources.nesting import Nesting

CUT_OFF = "file cut off or not JSON from here on, the rows before it kept"
NOT_ROWS = "rows that are not of the known form, dropped"
NOT_UTF8 = "pieces that are not UTF-8, read with replacements"
TOO_DEEP = "nested too deeply from here on"
TWICE = "rows that were there before, dropped"
NO_TIMES = "rows whose token times fall or lie outside of the request's life, their token times dropped"
DEEPEST = 1000  # levels; a row has four
LATEST_S = 1e12  # beyond it is no time
_REPLACED = "\ufffd".encode()
_ERROR = re.compile(
    r"(?:\w{1,40}\.){0,6}([A-Z][A-Za-z0-9]{0,60}(?:Error|Exception|Timeout|Disconnected|Exceeded|Refused))", re.A
)


@dataclass(frozen=True)
class Clients:
    """A request a row, in the order of the file.

    `rows`: start_s, end_s, max_tokens, ignore_eos (0, 1 or NONE), input_tokens, output_tokens (both the client's own
    count), prompt (the number of its text among the distinct ones, NONE where unknown). `errors`: the error's type, ""
    for none. `stamps`: all times at which lines were read, those of row i at `bounds[i]:bounds[i + 1]`.
    """

    rows: Columns
    errors: tuple[str, ...]
    stamps: np.ndarray
    bounds: np.ndarray
    tally: Counter[str]

    def __len__(self) -> int:
        return len(self.errors)


def read_clients(path: Path, done: Callable[[int], None]) -> Clients:
    """Stream the file, of any size. Raises OSError where it cannot be read."""
    tally: Counter[str] = Counter()
    rows = Growing(
        ("start_s", "end_s", "max_tokens", "ignore_eos", "input_tokens", "output_tokens", "prompt"),
        ("start_s", "end_s"),
    )
    prompts: dict[bytes, int] = {}
    seen: set[tuple[float, ...]] = set()
    errors: list[str] = []
    stamps, bounds = array("d"), array("q", [0])
    with path.open("rb") as file:
        try:
            for raw in ijson.items(_Utf8(file, tally, done), "item", use_float=True):
                row = _row(raw, prompts)
                if row is None:
                    tally[NOT_ROWS] += 1
                    continue
                numbers, error, times = row
                if (key := (*numbers, len(times))) in seen:
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
    return Clients(rows.columns(), tuple(errors), view(stamps), view(bounds), tally)


class _Utf8:
    """The bytes of a file with what is no UTF-8 replaced, so that one bad byte does not cost the rest."""

    def __init__(self, file: BinaryIO, tally: Counter[str], done: Callable[[int], None]) -> None:
        self._file, self._tally, self._done = file, tally, done
        self._nesting = Nesting()
        self._decoder = codecs.getincrementaldecoder("utf-8-sig")("replace")

    def read(self, size: int = -1) -> bytes:
        clean = b""
        while size and not clean:  # a piece may end within a character
            data = self._file.read(size)
            self._done(len(data))
            clean = self._decoder.decode(data, final=not data).encode()
            if clean.count(_REPLACED) > data.count(_REPLACED):
                self._tally[NOT_UTF8] += 1
            if self._nesting.deepest(clean) > DEEPEST:
                self._tally[TOO_DEEP] = 1
                return b""
            if not data:
                break
        return clean


def _row(raw: Any, prompts: dict[bytes, int]) -> tuple[tuple[float, ...], str, list[float]] | None:
    if not isinstance(raw, dict):
        return None
    start, end = _time(raw.get("start_time")), _time(raw.get("end_time"))
    info = raw.get("info")
    if start is None or end is None or end < start or not isinstance(info, dict):
        return None
    times = info.get("output_token_times") or []
    if not isinstance(times, list) or not set(map(type, times)) <= {int, float} or _far(times):
        return None
    body = _body(raw.get("request"))
    prompt = body.get("prompt", body.get("messages"))
    number = NONE
    if prompt is not None:
        text = _text(prompt)
        number = NONE if text is None else prompts.setdefault(hashlib.sha256(text).digest()[:16], len(prompts))
    eos = body.get("ignore_eos")
    limits = _count(body.get("max_tokens")), int(eos) if isinstance(eos, bool) else NONE
    counts = _count(info.get("input_tokens")), _count(info.get("output_tokens"))
    return (start, end, *limits, *counts, number), _error(raw.get("error")), times


def _body(request: Any) -> dict[str, Any]:
    """The request's body, which is JSON within a string."""
    try:
        body = json.loads(request) if isinstance(request, str) else request
    except (ValueError, RecursionError):
        return {}
    return body if isinstance(body, dict) else {}


def _text(prompt: Any) -> bytes | None:
    """Equal for equal prompts, a text or the messages of a chat; None where they are nested too deeply to tell."""
    try:
        text = prompt if isinstance(prompt, str) else json.dumps(prompt, sort_keys=True)
    except RecursionError:
        return None
    return text.encode("utf-8", "replace")


def _error(error: Any) -> str:
    """The type of an error. Its message may name addresses and is not carried along."""
    if error is None:
        return ""
    kind = error.get("error_type") if isinstance(error, dict) else str(error).partition(":")[0]
    match = _ERROR.fullmatch(kind) if isinstance(kind, str) else None
    return match[1] if match else "other"


def _time(value: Any) -> float | None:
    return float(value) if type(value) in (int, float) and abs(value) < LATEST_S else None


def _in_order(start: float, times: list[float], end: float) -> bool:
    """Ascending, and from `start` to `end`."""
    return not times or (start <= times[0] and times[-1] <= end and all(a <= b for a, b in pairwise(times)))


def _far(times: list[float]) -> bool:
    return bool(times) and not (min(times) > -LATEST_S and max(times) < LATEST_S and all(map(math.isfinite, times)))


def _count(value: Any) -> int:
    return value if type(value) is int and 0 <= value < 2**31 else NONE
