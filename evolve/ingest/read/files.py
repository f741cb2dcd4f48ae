"""Files as plain values: JSON and YAML up to a size that cannot hang the program, and JSON Lines of any size.

Messages name a file as it is called inside its folder. A bad small file raises a one-line InputError; a bad line of
JSON Lines is counted and skipped.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import orjson

from simulator.common.documents import parse_json, parse_yaml, read_bytes
from simulator.common.errors import InputError, unreadable

MOST_YAML_BYTES = 256 * 1024  # the largest published one has 1.3 kB
MOST_JSON_BYTES = 16 * 1024 * 1024  # reports have 5 kB; a manifest grows with its experiments
MOST_LINE = 32 << 20  # bytes; exported lines have a few MB at most, and a parsed line takes ten times its bytes

TOO_LONG = f"lines longer than {MOST_LINE >> 20} MiB, skipped"
MALFORMED = "lines that are not JSON, skipped"
CUT_OFF = "last line cut off, skipped"
NOT_UTF8 = "lines that are not UTF-8, read with replacements"
HALVES = "lines with lone surrogates, read with replacements"

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"  # some writers begin a UTF-8 file with it
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")


def read_json(path: Path, source: str) -> Any:
    """Any JSON value; NaN and Infinity become floats, for the caller to judge. Raises InputError for a bad file."""
    data = _read_capped(path, source, MOST_JSON_BYTES)
    return parse_json(data, source, "copy it again")


def read_yaml(path: Path, source: str) -> Any:
    """Plain values of safe YAML. Raises InputError for a bad file."""
    data = _read_capped(path, source, MOST_YAML_BYTES)
    return parse_yaml(data, source, "copy it again")


def _read_capped(path: Path, source: str, most: int) -> bytes:
    """The file's bytes. Raises InputError if it is unreadable, not a file, empty or larger than `most` bytes."""
    if not path.is_file():
        raise InputError(f"{source}: is not a file: put the file itself there")
    try:
        data = read_bytes(path, most, source)
    except OSError as e:
        raise unreadable(source, e, "check its permissions") from None
    if not data.strip():
        raise InputError(f"{source}: is empty: copy it again")
    return data


def json_lines(path: Path, tally: Counter[str], on_read: Callable[[int], None]) -> Iterator[Any]:
    """The JSON value of every line that has one. `tally` counts skipped lines, `on_read` is called with bytes read.

    Raises OSError if the file cannot be read.
    """
    with path.open("rb") as file:
        while raw := file.readline(MOST_LINE):
            on_read(len(raw))
            if len(raw) == MOST_LINE and not raw.endswith(b"\n"):
                tally[TOO_LONG] += 1
                while (rest := file.readline(MOST_LINE)) and not rest.endswith(b"\n"):
                    on_read(len(rest))
                on_read(len(rest))
                continue
            text = raw.removeprefix(_BYTE_ORDER_MARK).strip()
            if not text:
                continue
            try:
                yield orjson.loads(text)
                continue
            except orjson.JSONDecodeError:
                pass
            try:
                # Some writers emit what orjson refuses: NaN, whole numbers of any size, stray bytes.
                decoded = text.decode("utf-8", "replace")
                value = json.loads(decoded)
                tally[NOT_UTF8] += decoded.encode("utf-8", "replace") != text
                if _SURROGATE.search(text) and (repaired := _without_surrogates(value)) is not None:
                    value = repaired
                    tally[HALVES] += 1
                yield value
            except (ValueError, RecursionError):
                tally[MALFORMED if raw.endswith(b"\n") else CUT_OFF] += 1


def _without_surrogates(value: Any) -> Any:
    """The value with lone surrogates, which no table can hold, replaced; None if it has none."""
    text = json.dumps(value, ensure_ascii=False)
    try:
        text.encode()
    except UnicodeEncodeError:
        return json.loads(text.encode("utf-8", "replace"))
    return None
