"""Tables as values: columns, rows of values, styles. `printing` and `writing` show them; and the cells of errors."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import mean
from typing import Any

from evolve.output.columns import Column, Columns, columns, values
from simulator.common.json import JsonObject

PASS_PCT = {"e2e": 10.0, "ttft": 15.0, "itl": 15.0}  # an experiment passes if each error is within these
MOST_BIAS_PCT = 5.0  # INV-M-6 of docs/language.md


@dataclass(frozen=True, slots=True)
class Row:
    """Values in the order of the columns. `style`: "bold", "dim" or "". `ends_section`: followed by a blank line in a
    terminal. `short`: the cells that it lacks at its end are empty."""

    values: tuple[object, ...]
    style: str = ""
    ends_section: bool = False
    short: bool = False


def row(*values: object, style: str = "", short: bool = False) -> Row:
    """A row of these values."""
    return Row(values, style, short=short)


def section(rows: Iterable[Row | Sequence[object]]) -> list[Row]:
    """The rows as a section: the last one ends it."""
    as_rows = [r if isinstance(r, Row) else Row(tuple(r)) for r in rows]
    return [*as_rows[:-1], *(replace(last, ends_section=True) for last in as_rows[-1:])]


@dataclass(frozen=True, slots=True)
class Table:
    """A table: title, columns, rows, and a caption below. `Table.of` and `Table.of_rows` make one.

    Raises AssertionError for a row with more or fewer values than there are columns, or only more if it is `short`.
    """

    title: str
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    caption: str = ""

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row.values) > len(self.columns) or (len(row.values) < len(self.columns) and not row.short):
                heads = [column.title for column in self.columns]
                raise AssertionError(f"table {self.title!r}: {row.values} are not the values of the columns {heads}")

    @classmethod
    def of(
        cls,
        title: str,
        columns: Iterable[Column | tuple[Column, ...]],
        rows: Iterable[Row | Sequence[object]],
        caption: str = "",
    ) -> Table:
        """A table of rows of values."""
        flat = [c for each in columns for c in ((each,) if isinstance(each, Column) else each)]
        as_rows = (r if isinstance(r, Row) else Row(tuple(r)) for r in rows)
        return cls(title, tuple(flat), tuple(as_rows), caption)

    @classmethod
    def of_rows(
        cls,
        title: str,
        declared: Columns,
        rows: Iterable[Any],
        caption: str = "",
        style: Callable[[Any], str] = lambda row: "",
    ) -> Table:
        """A table of mappings, or of instances of a row class. `style`: of a row."""
        rows = list(rows)
        shown = zip(values(declared, rows), map(style, rows), strict=True)
        return cls(title, columns(declared), tuple(Row(cells, of_row) for cells, of_row in shown), caption)

    def cells(self) -> list[list[str]]:
        """The cells of every row as text, as many as there are columns."""
        texts = ([c.cell(v) for c, v in zip(self.columns, r.values, strict=False)] for r in self.rows)
        return [[*cells, *[""] * (len(self.columns) - len(cells))] for cells in texts]

    def to_json(self) -> JsonObject:
        """Title, heads, rows of values, and the caption as `note`."""
        heads, rows = [c.title for c in self.columns], [list(r.values) for r in self.rows]
        return {"title": self.title, "columns": heads, "rows": rows, "note": self.caption or None}


def number(value: float | None, digits: int = 1, signed: bool = True) -> str:
    """A figure as a cell, `-` for None."""
    if value is None:
        return "-"
    return f"{value:{'+' if signed else ''}.{digits}f}"


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


def mean_errors(rows: Sequence[Mapping[str, Any]]) -> list[float | int | None]:
    """Mean absolute errors of E2E, TTFT and ITL over these experiments, and how many experiments there are."""
    return [*absolute_errors(rows, mean), len(rows)]


def absolute_errors(
    rows: Sequence[Mapping[str, Any]], average: Callable[[Sequence[float]], float]
) -> list[float | None]:
    """The average over these experiments of the absolute errors of E2E, TTFT and ITL; None where none was observed."""
    sizes = [[abs(r[name]) for r in rows if r[name] is not None] for name in PASS_PCT]
    return [average(of_latency) if of_latency else None for of_latency in sizes]


def bias_label(rows: Iterable[Mapping[str, Any]]) -> str:
    """The mean signed E2E error of these experiments against MOST_BIAS_PCT; "" where none was observed."""
    errors = [r["e2e"] for r in rows if r["e2e"] is not None]
    if not errors:
        return ""
    bias = sum(errors) / len(errors)
    verdict = "pass" if abs(bias) < MOST_BIAS_PCT else "FAIL"
    return f"Mean E2E bias {bias:+.2f} % (limit {MOST_BIAS_PCT:g} %): {verdict}"
