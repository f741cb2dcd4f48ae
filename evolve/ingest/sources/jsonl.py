"""JSON Lines of any length, read one line at a time; what cannot be read is counted, never fatal."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import orjson

MOST_LINE = 32 << 20  # bytes; exports are at most some MB a line, and a parsed line takes ten times its bytes

TOO_LONG = f"lines longer than {MOST_LINE >> 20} MiB, skipped"
MALFORMED = "lines that are no JSON, skipped"
CUT_OFF = "last line cut off, skipped"
NOT_UTF8 = "lines that are not UTF-8, read with replacements"
HALVES = "lines with halves of characters, read with replacements"

_MARK = b"\xef\xbb\xbf"  # of UTF-8, which some write at the beginning of a file
_HALF = re.compile(rb"\\u[dD][89a-fA-F]")


def values(path: Path, tally: Counter[str], done: Callable[[int], None]) -> Iterator[Any]:
    """The JSON value of every line that has one. `tally` counts what was skipped, `done` is told the bytes read.

    Raises OSError where the file cannot be read.
    """
    with path.open("rb") as file:
        while raw := file.readline(MOST_LINE):
            done(len(raw))
            if len(raw) == MOST_LINE and not raw.endswith(b"\n"):
                tally[TOO_LONG] += 1
                while (rest := file.readline(MOST_LINE)) and not rest.endswith(b"\n"):
                    done(len(rest))
                done(len(rest))
                continue
            text = raw.removeprefix(_MARK).strip()
            if not text:
                continue
            try:
                yield orjson.loads(text)
                continue
            except orjson.JSONDecodeError:
                pass
            try:
                # what orjson refuses and others write: NaN, whole numbers of any size, stray bytes
                value = json.loads(text.decode("utf-8", "replace"))
                tally[NOT_UTF8] += not _utf8(text)
                if _HALF.search(text) and (whole := _whole(value)) is not None:
                    value = whole
                    tally[HALVES] += 1
                yield value
            except (ValueError, RecursionError):
                tally[MALFORMED if raw.endswith(b"\n") else CUT_OFF] += 1


def _whole(value: Any) -> Any:
    """The value with halves of characters (lone surrogates), which no table can hold, replaced; None without any."""
    text = json.dumps(value, ensure_ascii=False)
    try:
        text.encode()
    except UnicodeEncodeError:
        return json.loads(text.encode("utf-8", "replace"))
    return None


def _utf8(text: bytes) -> bool:
    try:
        text.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True
