"""A program that a model wrote, read kindly: what can be understood without guessing is, and all mistakes are told."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import partial

from evolve.propose.llm.changes import Written
from evolve.propose.llm.rewriting import rewrite
from simulator.language.infer import infer
from simulator.language.ir import Program
from simulator.language.parse import read
from simulator.language.source import MAX_BYTES
from simulator.language.unparse import unparse
from simulator.text import plain

MOST_TOLD = 8  # mistakes of a program
LONGEST_COMPLAINT = 1200  # characters
LONGEST_WHY = 250  # characters of one mistake


@dataclass(frozen=True, slots=True)
class Understood:
    """A program in its standard spelling, without comments and docstrings; or the text and what is wrong with it.

    `notes` say what was left out. `program` has the lines of the text as it was written.
    """

    text: str
    program: Program | None
    complaint: str
    notes: tuple[str, ...]


def understood(written: Written) -> Understood:
    """The program that a model wrote."""
    notes: list[str] = []
    reading = read(written.text, rewrite=partial(rewrite, notes=notes))
    program = reading.program
    if reading.mistakes:
        mistakes = [(mistake.line, mistake.why) for mistake in reading.mistakes]
        clashes = [clash for function in program.functions for clash in infer(function).clashes]
        mistakes += [(clash.line, f"units: {clash.why}") for clash in clashes]
        kept = written.text.encode("utf-8", "replace")[: MAX_BYTES + 1].decode("utf-8", "ignore")
        return Understood(kept, None, told(written.places, sorted(mistakes, key=lambda m: m[0])), tuple(notes))
    bare = replace(program, doc="", functions=tuple(replace(f, doc="") for f in program.functions))
    return Understood(unparse(bare), bare, "", tuple(notes))


def told(places: tuple[str, ...], mistakes: Iterable[tuple[int, str]]) -> str:
    """A complaint of one line: mistakes as (line, why), each with the place of its line; line 0 is no place."""
    lines = list(dict.fromkeys(_told(places, *mistake) for mistake in mistakes))
    more = [f"and {len(lines) - MOST_TOLD} more"] if len(lines) > MOST_TOLD else []
    return plain("; ".join(lines[:MOST_TOLD] + more), LONGEST_COMPLAINT)


def _told(places: tuple[str, ...], line: int, why: str) -> str:
    where = f"{places[min(line, len(places)) - 1]}: " if line and places else ""
    return plain(where + why, LONGEST_WHY)
