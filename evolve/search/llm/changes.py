"""SEARCH/REPLACE blocks: the text of program A after them, and where each of its lines was written.

A SEARCH need not be whole lines: any part of the text that is there once is found, whatever its white space.
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass

from simulator.common.text import plain
from simulator.language.source import MAX_BYTES

MOST_LINES = 1000  # of the program: looking for a line that is near takes time
LONGEST_LINE = 200  # characters of a line that are compared with those of program A
SHOWN = 80  # characters of a line in a complaint
ALIKE = 0.4  # a line of program A that is less like a SEARCH is not shown


@dataclass(frozen=True, slots=True)
class WrittenChange:
    """A program's text, and what a complaint calls each of its lines."""

    text: str
    places: tuple[str, ...]


def whole(text: str) -> WrittenChange:
    """A text that a model wrote as a whole."""
    return WrittenChange(text, tuple(f"line {i}" for i in range(1, text.count("\n") + 2)))


def changed(base: str, blocks: Sequence[tuple[str, str]]) -> WrittenChange | str:
    """The program `base` after (SEARCH, REPLACE) blocks, one after the other; a complaint if one cannot be made."""
    now = WrittenChange(base, tuple(f"line {i} of program A" for i in range(1, base.count("\n") + 2)))
    complaints = []
    for n, (search, put) in enumerate(blocks, 1):
        name = f"SEARCH {n}" if len(blocks) > 1 else "its SEARCH"
        spans = occurrences(now.text, search) if search.strip() else []
        if len(spans) != 1:
            complaints.append(f"{name}{_missing(now.text, search, len(spans))}")
            continue
        after = _replaced(now, spans[0], search, put, f"REPLACE {n}" if len(blocks) > 1 else "its REPLACE")
        if after.text == now.text:
            complaints.append(f"{name} of {_first(search)!r} changes nothing: its REPLACE is the same")
        if len(after.text) > MAX_BYTES or len(after.places) > MOST_LINES + 1:
            return f"longer than {MAX_BYTES} bytes or {MOST_LINES} lines: shorten the program"
        now = after
    return "; ".join(complaints) or now


def occurrences(text: str, search: str) -> list[tuple[int, int]]:
    """Where `search` is in the text, as (start, end). It never begins or ends within a name or a number.

    What is there exactly comes before what is there but for white space, and whole lines come before parts of lines.
    """
    letters, wanted = _letters(text), _letters(search)
    squeezed, sought = ("".join(of[i] for i in at) for of, at in ((text, letters), (search, wanted)))
    part = search.strip("\n")
    exactly = [(at, at + len(part)) for at in _all(text, part)]
    loosely = [(letters[at], letters[at + len(sought) - 1] + 1) for at in _all(squeezed, sought)]
    for spans in (exactly, loosely):
        spans = [span for span in spans if not _cuts(text, *span)]
        margins = [_margins(text, *span) for span in spans]
        lines_whole = [span for span, margin in zip(spans, margins, strict=True) if not margin]
        without_indent = [span for span, margin in zip(spans, margins, strict=True) if not margin.strip()]
        if spans:
            return lines_whole or without_indent or spans
    return []


def _margins(text: str, start: int, end: int) -> str:
    """What is left and right of a span in its lines."""
    line = text.rfind("\n", 0, start) + 1
    stop = text.find("\n", end)
    return text[line:start] + text[end : stop if stop >= 0 else len(text)]


def _letters(text: str) -> list[int]:
    """Where characters are that count: no white space, and no comma before a closing bracket."""
    letters: list[int] = []
    for i, c in enumerate(text):
        if c == ")" and letters and text[letters[-1]] == ",":
            letters.pop()
        if not c.isspace():
            letters.append(i)
    return letters


def _all(text: str, part: str) -> list[int]:
    """Where `part` begins in the text."""
    starts, at = [], text.find(part)
    while at >= 0:
        starts.append(at)
        at = text.find(part, at + 1)
    return starts


def _cuts(text: str, start: int, end: int) -> bool:
    """Whether a name or a number goes on at either side."""

    def joined(left: str, right: str) -> bool:
        return all(c.isalnum() or c in "_." for c in (left, right))

    return (start > 0 and joined(text[start - 1], text[start])) or (
        end < len(text) and joined(text[end - 1], text[end])
    )


def _replaced(now: WrittenChange, span: tuple[int, int], search: str, put: str, name: str) -> WrittenChange:
    """The text with `put` instead of a span. If the span begins a line, `put` is indented as the line was."""
    start, end = span
    before = now.text[:start]
    indent = before.rpartition("\n")[2]
    if not indent.strip():
        wanted = next(line for line in search.split("\n") if line.strip())
        shift = len(indent) + _indent(now.text[start:]) - _indent(wanted)
        put = "\n".join(_shifted(line, shift) for line in put.split("\n"))
        start -= len(indent)
    first, last = now.text.count("\n", 0, start), now.text.count("\n", 0, end)
    lines = [f"line {i} of {name}" for i in range(1, put.count("\n") + 2)]
    places = (*now.places[:first], *lines, *now.places[last + 1 :])
    return WrittenChange(now.text[:start] + put + now.text[end:], places)


def _indent(text: str) -> int:
    """The white space before the first line."""
    return len(text) - len(text.lstrip(" \t"))


def _shifted(line: str, shift: int) -> str:
    if not line.strip():
        return line
    return " " * shift + line if shift > 0 else line[min(-shift, _indent(line)) :]


def _missing(text: str, search: str, times: int) -> str:
    """Why a SEARCH that is not there exactly once cannot be used."""
    if not search.strip():
        return " is empty: it must have a part of program A"
    if times:
        return f" of {_first(search)!r} is in program A {times} times: give more of the text around it"
    squeezed = "".join(text.split())
    lines = [line.strip() for line in search.split("\n") if line.strip()]
    unknown = [line for line in lines if "".join(line.split()) not in squeezed]
    if not unknown:
        if len(lines) > 1:
            return f" has lines of program A that do not follow each other there, from {_first(search)!r} on"
        return f" of {_first(search)!r} begins or ends within a name of program A: give whole names"
    theirs = {line.strip()[:LONGEST_LINE]: plain(line, SHOWN) for line in text.split("\n") if line.strip()}
    near = difflib.get_close_matches(unknown[0][:LONGEST_LINE], theirs, n=1, cutoff=ALIKE)
    nearest = f"; the nearest line there is {theirs[near[0]]!r}" if near else ""
    return f" has {plain(unknown[0], SHOWN)!r}, which is not in program A{nearest}"


def _first(search: str) -> str:
    return plain(search.strip().split("\n")[0], SHOWN)
