"""A program that a model wrote: its standard spelling, or all its mistakes with their places in the answer."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from simulator.common.text import plain
from simulator.language.infer import infer
from simulator.language.ir import Program
from simulator.language.parse import read
from simulator.language.source import MAX_BYTES
from simulator.language.unparse import unparse

MOST_LISTED = 8  # mistakes of a program
LONGEST_COMPLAINT = 1200  # characters
LONGEST_WHY = 250  # characters of one mistake
ANSWER, PARSE = "answer", "parse"  # the stages at which a proposal without a program is refused, see Rejected


@dataclass(frozen=True, slots=True)
class Written:
    """A program's text, and the name of each of its lines in a complaint."""

    text: str
    places: tuple[str, ...]


def whole(text: str, of: str = "") -> Written:
    """A text whose lines are called `line 1`, `line 2`, ... and then `of`."""
    return Written(text, tuple(f"line {i}{of}" for i in range(1, text.count("\n") + 2)))


@dataclass(frozen=True, slots=True)
class Idea:
    """A proposal in an answer: its title, its program's text, and why it cannot be used ("" if it can).

    stage: at which it is refused. notes: what its reader left out. program: None if it cannot be read; its lines are
    those of the text as written, which complaints call by their `places`. motivation: the prose about it. given: False
    if the answer has no proposal at all.
    """

    title: str
    text: str
    complaint: str = ""
    stage: str = field(default=ANSWER, compare=False)
    notes: tuple[str, ...] = field(default=(), compare=False)
    program: Program | None = field(default=None, compare=False)
    places: tuple[str, ...] = field(default=(), compare=False)
    motivation: str = field(default="", compare=False)
    given: bool = field(default=True, compare=False)


def understood(title: str, written: Written) -> Idea:
    """The idea with a program in its standard spelling, without comments and docstrings; or with all its mistakes."""
    notes: list[str] = []
    reading = read(written.text, notes=notes)
    if not reading.mistakes:
        functions = tuple(replace(f, doc="") for f in reading.program.functions)
        program = replace(reading.program, doc="", functions=functions)
        return Idea(title, unparse(program), "", PARSE, tuple(notes), program, written.places)
    mistakes = [(mistake.line, mistake.why) for mistake in reading.mistakes]
    clashes = [clash for function in reading.program.functions for clash in infer(function).clashes]
    mistakes += [(clash.line, f"units: {clash.why}") for clash in clashes]
    complaint = complaint_of(written.places, sorted(mistakes, key=lambda m: m[0]))
    kept = written.text.encode("utf-8", "replace")[: MAX_BYTES + 1].decode("utf-8", "ignore")
    return Idea(title, kept, complaint, PARSE, tuple(notes), None, written.places)


def complaint_of(places: tuple[str, ...], mistakes: Iterable[tuple[int, str]]) -> str:
    """A complaint of one line: mistakes as (line, why), each with the place of its line; line 0 is no place."""
    placed = (f"{places[min(line, len(places)) - 1]}: {why}" if line and places else why for line, why in mistakes)
    lines = list(dict.fromkeys(plain(text, LONGEST_WHY) for text in placed))
    more = [f"and {len(lines) - MOST_LISTED} more"] if len(lines) > MOST_LISTED else []
    return plain("; ".join(lines[:MOST_LISTED] + more), LONGEST_COMPLAINT)
