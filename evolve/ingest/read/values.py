"""Files as plain values, and mappings read value by value: a wrong value becomes a finding, the others are kept.

Messages name a file as it is called inside its folder. A bad small file raises InputError; a bad line of JSON Lines is
counted and skipped.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import orjson

from simulator.common.documents import parse_json, parse_yaml, read_bytes
from simulator.common.errors import LARGEST_WHOLE, InputError, is_number, reason, shown, unreadable

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
_MODEL_ID = re.compile(r"[\w-][\w.-]*(/[\w.-]*[\w-])?")

Severity = Literal["note", "warning"]
"""note: good to know. warning: something was ignored or assumed, or cannot be right."""


@dataclass(frozen=True, slots=True)
class Finding:
    """Something noticed in a folder: a skipped line, a value out of range, figures that disagree.

    `source` is a file name inside the folder, never a path of the machine; `count` is the number of lines, values or
    files; `text` is one line with the fault and the remedy that was applied.
    """

    source: str
    count: int
    text: str
    severity: Severity = "note"


class FolderFindings(list[Finding]):
    """Findings in the order in which they are made. A count of 0 makes none."""

    def warn(self, source: str, text: str, count: int = 1, severity: Severity = "warning") -> None:
        if count:
            self.append(Finding(source, count, text, severity))

    def note(self, source: str, text: str, count: int = 1) -> None:
        self.warn(source, text, count, "note")


def read_json(path: Path, source: str) -> Any:
    """Any JSON value; NaN and Infinity become floats, for the caller to judge. Raises InputError for a bad file."""
    return parse_json(_read_capped(path, source, MOST_JSON_BYTES), source, "copy it again", foreign=True)


def read_yaml(path: Path, source: str) -> Any:
    """Plain values of safe YAML. Raises InputError for a bad file."""
    return parse_yaml(_read_capped(path, source, MOST_YAML_BYTES), source, "copy it again")


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
    """The JSON value of every line that has one, until the file can be read no further. `tally` counts skipped lines,
    `on_read` is called with bytes read."""
    for raw in _lines(path, tally, on_read):
        text = raw.removeprefix(_BYTE_ORDER_MARK).strip()
        if not text:
            continue
        try:
            value = orjson.loads(text)
        except orjson.JSONDecodeError:
            try:
                # orjson refuses NaN, whole numbers beyond 64 bits and stray bytes, which some writers emit.
                decoded = text.decode("utf-8", "replace")
                value = json.loads(decoded)
                tally[NOT_UTF8] += decoded.encode("utf-8", "replace") != text
                if _SURROGATE.search(text):
                    value = _without_surrogates(value, tally)
            except (ValueError, RecursionError):
                tally[MALFORMED if raw.endswith(b"\n") else CUT_OFF] += 1
                continue
        yield value


def _lines(path: Path, tally: Counter[str], on_read: Callable[[int], None]) -> Iterator[bytes]:
    try:
        with path.open("rb") as file:
            while raw := file.readline(MOST_LINE):
                on_read(len(raw))
                if len(raw) < MOST_LINE or raw.endswith(b"\n"):
                    yield raw
                    continue
                tally[TOO_LONG] += 1
                while raw and not raw.endswith(b"\n"):
                    raw = file.readline(MOST_LINE)
                    on_read(len(raw))
    except OSError as e:
        tally[unread(e)] += 1


def unread(error: OSError) -> str:
    """The finding about a file that cannot be read, or no further."""
    return f"cannot be read to the end ({reason(error)}): only the part before is used"


def _without_surrogates(value: Any, tally: Counter[str]) -> Any:
    """The value with lone surrogates, which no table can hold, replaced."""
    text = json.dumps(value, ensure_ascii=False)
    try:
        text.encode()
    except UnicodeEncodeError:
        value = json.loads(text.encode("utf-8", "replace"))
        tally[HALVES] += 1
    return value


@dataclass(frozen=True, slots=True)
class Values:
    """The mapping of one file, with dotted keys (`data.shared_prefix.num_groups`).

    Every method returns None for a key that is missing, null or of the wrong type, and adds a finding for the last.
    """

    source: str
    raw: Mapping[Any, Any]
    findings: FolderFindings

    @classmethod
    def of(cls, path: Path | None, source: str, findings: FolderFindings) -> Values | None:
        """The mapping in a JSON or YAML file. None without a file, and, with a finding, if it holds no mapping."""
        if path is None:
            return None
        try:
            raw = read_json(path, source) if path.suffix == ".json" else read_yaml(path, source)
        except InputError as e:
            findings.warn(source, f"ignored: {e}")
            return None
        if not isinstance(raw, Mapping) or not raw:
            findings.warn(source, "is not a mapping, or an empty one: ignored")
            return None
        return cls(source, raw, findings)

    def get(self, key: str) -> Any:
        """The raw value; a parent that is not a mapping becomes a finding."""
        value: Any = self.raw
        parts = key.split(".")
        for depth, part in enumerate(parts):
            if value is not None and not isinstance(value, Mapping):
                self.wrong(".".join(parts[:depth]), "a mapping", value)
                return None
            value = None if value is None else value.get(part)
        return value

    def checked(self, key: str, wanted: str, fits: Callable[[Any], bool]) -> Any:
        """The raw value if it fits; `wanted` describes a fitting one."""
        value = self.get(key)
        if value is None or fits(value):
            return value
        self.wrong(key, wanted, value)
        return None

    def number(
        self, key: str, *, least: float = -math.inf, above: float = -math.inf, most: float = math.inf
    ) -> float | None:
        """A finite number >= `least`, > `above` and <= `most`."""
        value = self.checked(key, "a finite number", is_number)
        if value is None:
            return None
        bounds = {f">= {least:g}": value >= least, f"> {above:g}": value > above, f"<= {most:g}": value <= most}
        for bound, holds in bounds.items():
            if not holds:
                self.wrong(key, f"a number {bound}", value)
                return None
        return float(value)

    def whole(self, key: str, *, least: int = 0) -> int | None:
        """A whole number >= `least`; 5.0 counts as one."""
        value = self.number(key, least=least)
        if value is None:
            return None
        if value.is_integer() and value <= LARGEST_WHOLE:
            return int(value)
        self.wrong(key, "a whole number", self.get(key))
        return None

    def text(self, key: str) -> str | None:
        """A non-blank string, with white space and control characters folded."""
        value = self.checked(key, "text", lambda value: isinstance(value, str) and bool(value.strip()))
        return None if value is None else plain(value)

    def model(self, key: str) -> str | None:
        """A model's Hugging Face id. Only the last part of a path is kept, because paths of a machine are private."""
        name = self.text(key)
        if name is None or _MODEL_ID.fullmatch(name):
            return name
        last: str = re.split(r"[/\\]+", re.sub(r"[/\\]+$", "", name))[-1]
        if not _MODEL_ID.fullmatch(last):
            self.wrong(key, "a Hugging Face id", name)
            return None
        self.findings.warn(self.source, f"{key} is not a Hugging Face id: using its last part, {last}")
        return last

    def flag(self, key: str) -> bool | None:
        value: bool | None = self.checked(key, "true or false", lambda value: isinstance(value, bool))
        return value

    def wrong(self, key: str, wanted: str, value: object) -> None:
        """Add a finding about a key's value, once: several keys may have the same wrong parent."""
        finding = Finding(self.source, 1, f"{key} must be {wanted}, got {brief(value)}: ignored", "warning")
        if finding not in self.findings:
            self.findings.append(finding)


def brief(value: object) -> str:
    """A value in a message: numbers in full, but no text, which may be a path, and no items of a container."""
    if isinstance(value, Mapping):
        return "a mapping"
    if isinstance(value, list | tuple | set):
        return "a list"
    if isinstance(value, str):
        return "text" if value.strip() else "blank text"
    if isinstance(value, int) and abs(value) > LARGEST_WHOLE:
        return "a number beyond 2^53"
    return shown(value)


def plain(text: str) -> str:
    """The text as one line without control characters or lone surrogates, fit for any output."""
    printable = "".join(c if c.isprintable() else " " for c in text)
    return " ".join(printable.encode("utf-8", "replace").decode().split())
