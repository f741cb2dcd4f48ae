"""A file's mapping read value by value: what is wrong becomes a finding and is left out, the rest is kept."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from simulator.common.errors import LARGEST_NUMBER, LARGEST_WHOLE, shown

Severity = Literal["note", "warning"]
"""note: good to know. warning: something was left out or assumed, or cannot be right."""

_MODEL_ID = re.compile(r"[\w-][\w.-]*(/[\w.-]*[\w-])?")


@dataclass(frozen=True, slots=True)
class Finding:
    """Something noticed while reading a folder: a skipped line, a value out of range, figures that disagree.

    `source` is a file name inside the folder, never a path of the machine; `count` is how many lines, values or files
    are affected; `text` is one line that says what was found and what was done about it.
    """

    source: str
    count: int
    text: str
    severity: Severity = "note"


class FolderFindings(list[Finding]):
    """Findings in the order in which they are made."""

    def note(self, source: str, text: str, count: int = 1) -> None:
        self.append(Finding(source, count, text))

    def warn(self, source: str, text: str, count: int = 1) -> None:
        self.append(Finding(source, count, text, "warning"))


@dataclass(frozen=True, slots=True)
class Values:
    """The mapping of one file, with dotted keys (`data.shared_prefix.num_groups`).

    Every reader returns None for a key that is missing, null or of the wrong type, and records a finding for the last.
    """

    source: str
    raw: Mapping[Any, Any]
    findings: FolderFindings = field(default_factory=FolderFindings)

    def get(self, key: str) -> Any:
        """The raw value; a parent that is not a mapping becomes a finding."""
        value: Any = self.raw
        parents: list[str] = []
        for part in key.split("."):
            if not isinstance(value, Mapping):
                self.wrong(".".join(parents), "a mapping", value)
                return None
            value = value.get(part)
            parents.append(part)
            if value is None:
                return None
        return value

    def number(
        self, key: str, *, least: float = -math.inf, above: float = -math.inf, most: float = math.inf
    ) -> float | None:
        """A finite number >= `least`, > `above` and <= `most`."""
        value = self.get(key)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= LARGEST_NUMBER:
            self.wrong(key, "a finite number", value)
            return None
        bounds = ((value >= least, ">=", least), (value > above, ">", above), (value <= most, "<=", most))
        for holds, sign, bound in bounds:
            if not holds:
                self.wrong(key, f"a number {sign} {bound:g}", value)
                return None
        return float(value)

    def whole(self, key: str, *, least: int = 0) -> int | None:
        """A whole number >= `least`; 5.0 counts as one."""
        value = self.number(key, least=least)
        if value is None:
            return None
        if not value.is_integer() or value > LARGEST_WHOLE:
            self.wrong(key, "a whole number", self.get(key))
            return None
        return int(value)

    def text(self, key: str) -> str | None:
        """A non-blank string, with white space and control characters folded."""
        value = self.get(key)
        if value is None:
            return None
        if not isinstance(value, str) or not value.strip():
            self.wrong(key, "text", value)
            return None
        return plain(value)

    def model(self, key: str) -> str | None:
        """A model's Hugging Face id. Of a path only the last part is kept, because paths of a machine are private."""
        name = self.text(key)
        if name is None or _MODEL_ID.fullmatch(name):
            return name
        last: str = re.split(r"[/\\]+", re.sub(r"[/\\]+$", "", name))[-1]
        if not _MODEL_ID.fullmatch(last):
            self.wrong(key, "a Hugging Face id", name)
            return None
        self.findings.warn(self.source, f"{key} is not a Hugging Face id: its last part, {last}, is used")
        return last

    def flag(self, key: str) -> bool | None:
        value = self.get(key)
        if value is None or isinstance(value, bool):
            return value
        self.wrong(key, "true or false", value)
        return None

    def wrong(self, key: str, wanted: str, value: object) -> None:
        """Record that a key's value is not what it should be."""
        finding = Finding(self.source, 1, f"{key} must be {wanted}, got {brief(value)}: left out", "warning")
        if finding not in self.findings:  # a parent that is not a mapping would be recorded once for every key below it
            self.findings.append(finding)


def brief(value: object) -> str:
    """A value as a message shows it: numbers in full, but no text, which may be a path, and no items of a container."""
    if isinstance(value, Mapping):
        return "a mapping"
    if isinstance(value, list | tuple | set):
        return "a list"
    if isinstance(value, str):
        return "blank text" if not value.strip() else "text"
    if isinstance(value, int) and abs(value) > LARGEST_WHOLE:
        return "a number beyond 2^53"
    return shown(value)


def plain(text: str) -> str:
    """The text as one line without control characters or lone surrogates, fit for any output."""
    printable = "".join(c if c.isprintable() else " " for c in text)
    return " ".join(printable.encode("utf-8", "replace").decode().split())
