"""What a reader of a folder noticed: values out of range, lines skipped, figures that disagree, what is assumed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Severity = Literal["note", "warning"]
"""note: good to know. warning: something was left out, assumed, or cannot be right."""


@dataclass(frozen=True, slots=True)
class Finding:
    """`source` is a file's name inside the folder (never a path of a machine), `count` how many lines, values or files
    it is about, `text` one line that says what and what was done about it."""

    source: str
    count: int
    text: str
    severity: Severity = "note"


def warning(source: str, text: str, count: int = 1) -> Finding:
    """A finding that narrows the output or casts doubt on it."""
    return Finding(source, count, text, "warning")
