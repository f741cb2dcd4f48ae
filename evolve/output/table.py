"""Tables as values, and how their cells show figures. `evolve.output.printing` prints them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import mean
from typing import Any

PASS_PCT = {"e2e": 10.0, "ttft": 15.0, "itl": 15.0}  # an experiment passes if each error is within these
MOST_BIAS_PCT = 5.0  # INV-M-6 of docs/language.md


@dataclass(frozen=True, slots=True)
class Column:
    """A column. `right`: aligned right. `wraps`: its text may be broken into lines where a table must fit a width.
    `names`: it names the row, as the first column does, and is repeated with it where a table is printed in parts.
    `width`: the least number of characters in plain text."""

    name: str
    right: bool = False
    wraps: bool = False
    names: bool = False
    width: int = 0


@dataclass(frozen=True, slots=True)
class Row:
    """Cells as text; cells missing at the end are empty. `style`: "bold", "dim" or "". `ends_section`: followed by a
    blank line in a terminal."""

    cells: tuple[str, ...]
    style: str = ""
    ends_section: bool = False


@dataclass(frozen=True, slots=True)
class Table:
    """A table: title, columns, rows, and a caption below. `Table.of` makes one from text.

    Raises AssertionError for a row with more cells than there are columns: heads and cells do not go together.
    """

    title: str
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    caption: str = ""

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row.cells) > len(self.columns):
                heads = [column.name for column in self.columns]
                raise AssertionError(f"table {self.title!r}: {row.cells} has more cells than the columns {heads}")

    @classmethod
    def of(cls, title: str, heads: str, rows: Iterable[Row | Sequence[str]], caption: str = "") -> Table:
        """A table whose column names are separated by |.

        A leading > aligns right, ~ lets the column wrap, and = says that it names the row.
        """
        columns = [_column(head) for head in heads.split("|")]
        return cls(title, tuple(columns), tuple(r if isinstance(r, Row) else Row(tuple(r)) for r in rows), caption)

    def filled(self) -> list[list[str]]:
        """The cells of every row, as many as there are columns."""
        return [[*row.cells, *[""] * (len(self.columns) - len(row.cells))] for row in self.rows]


def _column(head: str) -> Column:
    name = head.lstrip(">~=")
    marks = head[: len(head) - len(name)]
    return Column(name, right=">" in marks, wraps="~" in marks, names="=" in marks)


def row(*cells: str, style: str = "") -> Row:
    """A row of these cells."""
    return Row(cells, style)


def section(rows: Iterable[Row]) -> list[Row]:
    """The rows as a section: the last one ends it."""
    rows = list(rows)
    return [*rows[:-1], *(replace(last, ends_section=True) for last in rows[-1:])]


def number(value: float | None, digits: int = 1, signed: bool = True) -> str:
    """A figure as a cell, `-` for None."""
    if value is None:
        return "-"
    return f"{value:{'+' if signed else ''}.{digits}f}"


def counted(n: int, noun: str) -> str:
    """`1 constant`, `2 constants`."""
    return f"{n:,} {noun}" if n == 1 else f"{n:,} {noun}s"


def arrival_seeds(seeds: Sequence[int]) -> str:
    """`arrival seed 1`, `arrival seeds 1, 2`."""
    return f"arrival seed{'' if len(seeds) == 1 else 's'} {', '.join(map(str, seeds))}"


def passes(errors: Mapping[str, float | None]) -> str:
    """`pass`, or `>` and the latencies whose error is outside PASS_PCT; `-` where nothing was observed."""
    observed = {name: value for name in PASS_PCT if (value := errors[name]) is not None}
    if not observed:
        return "-"
    failed = [name.upper() for name, value in observed.items() if abs(value) > PASS_PCT[name]]
    return ">" + ",".join(failed) if failed else "pass"


def mean_cells(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Mean absolute errors of E2E, TTFT and ITL over these experiments, and how many experiments there are."""
    return [*absolute_cells(rows, mean), str(len(rows))]


def absolute_cells(rows: Sequence[Mapping[str, Any]], average: Callable[[Sequence[float]], float]) -> list[str]:
    """The average over these experiments of the absolute errors of E2E, TTFT and ITL."""
    cells = []
    for name in ("e2e", "ttft", "itl"):
        values = [abs(r[name]) for r in rows if r[name] is not None]
        cells.append(number(average(values), 2, signed=False) if values else "-")
    return cells


def bias_label(rows: Iterable[Mapping[str, Any]]) -> str:
    """Whether the mean signed E2E error of these experiments is within MOST_BIAS_PCT. "" where none was observed."""
    errors = [r["e2e"] for r in rows if r["e2e"] is not None]
    if not errors:
        return ""
    bias = sum(errors) / len(errors)
    state = "holds" if abs(bias) < MOST_BIAS_PCT else "BROKEN"
    return f"Bias of the mean E2E within {MOST_BIAS_PCT:g} % {state}: {bias:+.2f} %"
