"""A dimension of a report: a verdict by a stated rule, and exhibits, whose figures a command line repeats."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from evolve.output.columns import Column, figures
from evolve.output.table import Table
from simulator.common.json import JsonObject
from simulator.common.records import derived, record_class, stored

GOOD, CARE, POOR, UNTESTED = "good", "with care", "poor", "untested"
LEVELS = {
    GOOD: "the rule is met",
    CARE: "met in part: the sentence says where not",
    POOR: "not met",
    UNTESTED: "nothing that was measured says whether it is met",
}
MEAN_ERRORS = (*figures(".2f", "E2E"), *figures(".1f", "TTFT"), *figures(".2f", "ITL"))  # columns of mean errors


def percent(value: float | None, digits: int = 1, signed: bool = False) -> str:
    """A percentage in a sentence.

    >>> percent(1.234), percent(2.0, signed=True), percent(None)
    ('1.2 %', '+2.0 %', 'unknown')
    """
    return "unknown" if value is None else f"{value:{'+' if signed else ''}.{digits}f} %"


@dataclass(frozen=True, slots=True)
class Exhibit:
    """A table of values. repeat: the command lines that compute its figures again. `Exhibit.of` makes one."""

    table: Table
    repeat: tuple[str, ...]

    @classmethod
    def of(
        cls,
        title: str,
        columns: Iterable[Column | tuple[Column, ...]],
        rows: Iterable[Sequence[object]],
        *repeat: str,
        note: str = "",
    ) -> Exhibit:
        """An exhibit of a table, see `Table.of`, and of a note below it."""
        return cls(Table.of(title, columns, rows, note), repeat)

    def to_json(self) -> JsonObject:
        return {**self.table.to_json(), "repeat": list(self.repeat)}


@dataclass(frozen=True, slots=True)
class DimensionVerdict:
    """The verdict on a dimension: a level of LEVELS, a sentence with the figures that decide it, and the rule."""

    level: str
    sentence: str
    rule: str


@record_class
class Dimension:
    """One of the ten dimensions. `Dimension.of` makes one.

    exhibits: none in a brief report. caveats: the limits of the figures.
    """

    name: str = stored(key="dimension")
    title: str
    verdict: DimensionVerdict
    exhibits: tuple[Exhibit, ...] = stored(key="tables")
    caveats: tuple[str, ...] = ()

    @classmethod
    def of(
        cls,
        name: str,
        title: str,
        verdict: tuple[str, str],
        rule: str,
        exhibits: Iterable[Exhibit] = (),
        caveats: Iterable[str] = (),
    ) -> Dimension:
        """The dimension with this verdict, a level and a sentence, by this rule."""
        return cls(name, title, DimensionVerdict(*verdict, rule), tuple(exhibits), tuple(caveats))

    @derived
    def commands(self) -> tuple[str, ...]:
        """The command lines that repeat its figures, each once."""
        return tuple(dict.fromkeys(line for exhibit in self.exhibits for line in exhibit.repeat))
