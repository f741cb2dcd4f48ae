"""A dimension of a report: a verdict by a stated rule, and exhibits, whose figures a command line repeats."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from evolve.output.table import Column, Row, Table
from simulator.common.json import JsonObject

GOOD, CARE, POOR, UNTESTED = "good", "with care", "poor", "untested"
LEVELS = {
    GOOD: "the rule is met",
    CARE: "met in part: the sentence says where not",
    POOR: "not met",
    UNTESTED: "nothing that was measured says whether it is met",
}
NOT_KNOWN = "-"
Value = str | float | bool | None


def percent(value: float | None, digits: int = 1, signed: bool = False) -> str:
    """A percentage in a sentence.

    >>> percent(1.234), percent(2.0, signed=True), percent(None)
    ('1.2 %', '+2.0 %', 'unknown')
    """
    return "unknown" if value is None else f"{value:{'+' if signed else ''}.{digits}f} %"


class Head(NamedTuple):
    """A column of an exhibit. spec: how its numbers are written, as in Python's `format`; "" for a column of text."""

    name: str
    spec: str
    wraps: bool

    @classmethod
    def of(cls, text: str) -> Head:
        """The column that `NAME`, `~NAME` (its text may be broken into lines) or `NAME:SPEC` describes."""
        name, _, spec = text.partition(":")
        return cls(name.removeprefix("~"), spec, name.startswith("~"))

    def cell(self, value: Value) -> str:
        """The value as text."""
        match value:
            case None:
                return NOT_KNOWN
            case bool():
                return "yes" if value else "no"
            case str():
                return value
        return format(value, self.spec or "g")


@dataclass(frozen=True, slots=True)
class Exhibit:
    """A table of values. repeat: the command lines that compute its figures again. `Exhibit.of` makes one from text."""

    title: str
    heads: tuple[Head, ...]
    rows: tuple[tuple[Value, ...], ...]
    repeat: tuple[str, ...]
    note: str = ""

    @classmethod
    def of(cls, title: str, heads: str, rows: Iterable[Sequence[Value]], *repeat: str, note: str = "") -> Exhibit:
        """An exhibit whose columns are described by texts separated by |, see `Head.of`."""
        return cls(title, tuple(map(Head.of, heads.split("|"))), tuple(map(tuple, rows)), repeat, note)

    @property
    def table(self) -> Table:
        """The exhibit as a table to print."""
        columns = tuple(Column(h.name, right=bool(h.spec), wraps=h.wraps) for h in self.heads)
        cells = (tuple(h.cell(v) for h, v in zip(self.heads, row, strict=True)) for row in self.rows)
        return Table(self.title, columns, tuple(map(Row, cells)), self.note)

    def to_json(self) -> JsonObject:
        return {
            "title": self.title,
            "columns": [head.name for head in self.heads],
            "rows": [list(row) for row in self.rows],
            "note": self.note or None,
            "repeat": list(self.repeat),
        }


@dataclass(frozen=True, slots=True)
class DimensionVerdict:
    """The verdict on a dimension: a level of LEVELS, a sentence with the figures that decide it, and the rule."""

    level: str
    sentence: str
    rule: str


@dataclass(frozen=True, slots=True)
class Dimension:
    """One of the ten dimensions. brief: a clause for the paragraph at the top, "" where it needs none. caveats: what
    the figures do not show."""

    name: str
    title: str
    verdict: DimensionVerdict
    exhibits: tuple[Exhibit, ...]
    brief: str = ""
    caveats: tuple[str, ...] = ()

    @property
    def commands(self) -> tuple[str, ...]:
        """The command lines that repeat its figures, each once."""
        return tuple(dict.fromkeys(line for exhibit in self.exhibits for line in exhibit.repeat))

    def to_json(self) -> JsonObject:
        return {
            "dimension": self.name,
            "title": self.title,
            "verdict": {"level": self.verdict.level, "sentence": self.verdict.sentence, "rule": self.verdict.rule},
            "tables": [exhibit.to_json() for exhibit in self.exhibits],
            "caveats": list(self.caveats),
            "commands": list(self.commands),
        }
