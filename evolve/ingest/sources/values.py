"""Reading a mapping of a file that may be wrong in part: what is wrong is noted and left out, the rest is kept."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from evolve.ingest.sources.findings import Finding, warning
from simulator.errors import LARGEST_NUMBER, LARGEST_WHOLE, shown

_MODEL_ID = re.compile(r"[\w-][\w.-]*(/[\w.-]*[\w-])?")


@dataclass(frozen=True, slots=True)
class Values:
    """The mapping of one file. Keys are dotted (`data.shared_prefix.num_groups`); every reader gives None for a key
    that is missing, null, or of the wrong type, and notes the last."""

    source: str
    raw: Mapping[Any, Any]
    findings: list[Finding] = field(default_factory=list)

    def get(self, key: str) -> Any:
        """The raw value; a step that is not a mapping is noted."""
        value: Any = self.raw
        walked: list[str] = []
        for step in key.split("."):
            if not isinstance(value, Mapping):
                self.wrong(".".join(walked), "a mapping", value)
                return None
            value = value.get(step)
            walked.append(step)
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
        """A whole number of at least `least`; 5.0 is one."""
        value = self.number(key, least=least)
        if value is None:
            return None
        if not value.is_integer() or value > LARGEST_WHOLE:
            self.wrong(key, "a whole number", self.get(key))
            return None
        return int(value)

    def text(self, key: str) -> str | None:
        """A string that is not blank, its white space and control characters folded."""
        value = self.get(key)
        if value is None:
            return None
        if not isinstance(value, str) or not value.strip():
            self.wrong(key, "text", value)
            return None
        return plain(value)

    def model(self, key: str) -> str | None:
        """A model's Hugging Face id; of a path of some machine only the last part, and that is noted."""
        name = self.text(key)
        if name is None or _MODEL_ID.fullmatch(name):
            return name
        last: str = re.split(r"[/\\]+", re.sub(r"[/\\]+$", "", name))[-1]
        if not _MODEL_ID.fullmatch(last):
            self.wrong(key, "a Hugging Face id", name)
            return None
        self.findings.append(warning(self.source, f"{key} is no Hugging Face id: its last part, {last}, is taken"))
        return last

    def flag(self, key: str) -> bool | None:
        value = self.get(key)
        if value is None or isinstance(value, bool):
            return value
        self.wrong(key, "true or false", value)
        return None

    def wrong(self, key: str, wanted: str, value: object) -> None:
        """Notes that a key is not what it should be."""
        said = warning(self.source, f"{key} must be {wanted}, got {brief(value)}: left out")
        if said not in self.findings:  # a mapping that is none would be noted for each of its keys
            self.findings.append(said)


def brief(value: object) -> str:
    """A value in a message: numbers as they stand; no text, which may be a path, and no container's inside."""
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
    """One line without control characters or halves of characters, fit for any output."""
    kept = "".join(c if c.isprintable() else " " for c in text)
    return " ".join(kept.encode("utf-8", "replace").decode().split())
