"""The columns of a table, each declared once: for terminals, Markdown, CSV, Parquet, LaTeX, data frames and the docs.

Names carry their unit. `_pct` of a candidate is a mean absolute error; `_error_pct` is the signed error of one
experiment, (predicted - observed)/observed. A missing value is None in a row, NaN in a frame's column of numbers,
`pandas.NA` in its other columns, and empty in a file.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass, replace
from functools import cache, partial
from typing import Any, TypeVar

from simulator.common.records import stored

T = TypeVar("T")
TEXT, NUMBER, WHOLE, FLAG = "text", "number", "whole number", "true or false"
LIST, MAPPING = "list", "mapping"
_KINDS = {
    str: TEXT,
    float: NUMBER,
    int: WHOLE,
    bool: FLAG,
    tuple: LIST,
    Sequence: LIST,
    dict: MAPPING,
    Mapping: MAPPING,
}
UNITS = {"pct": "%", "ms": "ms", "us": "us", "ns": "ns", "s": "s", "rps": "requests/s"}  # of a name's last part
SPELLED = {
    "e2e": "E2E",
    "ttft": "TTFT",
    "itl": "ITL",
    "tpot": "TPOT",
    "tp": "TP",
    "mape": "MAPE",
    "usd": "USD",
    "worst3": "worst-3 E2E",
}
RowLike = (
    Mapping[str, object] | object
)  # by column name; or an instance of a class whose fields are declared by `column`


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table.

    - kind: one of the constants above. unit: "" takes that of the name's last part.
    - head: for readers; "" makes one of the name. format: of a number, as in Python's `format`, or a function.
    - paper: LaTeX has the column, too; there is no room for all. brief: its head in a terminal, if that has it, too.
    - wraps: long text may be broken into lines. names: it names the row, like the first column, so every part of a
      table that is too wide repeats it. missing: the cell of a missing value.
    - arrow: the name of its Arrow type, where it is narrower than the kind's.
    """

    name: str
    kind: str = TEXT
    meaning: str = ""
    unit: str = ""
    head: str = ""
    format: str | Callable[[Any], str] = ""
    paper: bool = False
    brief: str = ""
    wraps: bool = False
    names: bool = False
    missing: str = "-"
    arrow: str = ""

    @property
    def title(self) -> str:
        """Its name for readers."""
        return self.head or head_of(self.name)

    @property
    def measured_in(self) -> str:
        """Its unit, "" without one."""
        return self.unit or unit_of(self.name)

    @property
    def right(self) -> bool:
        """True if the column is aligned right: one of figures."""
        return self.kind in (NUMBER, WHOLE)

    def cell(self, value: object) -> str:
        """A value as text for readers. Text stays as it is in any column."""
        match value:
            case str():
                return value
            case None:
                return self.missing
            case bool():
                return "yes" if value else "no"
            case tuple() | list():
                return ", ".join(map(str, value))
        if callable(self.format):
            return self.format(value)
        return format(value, self.format or ("g" if self.kind == NUMBER else ""))


def head_of(name: str) -> str:
    """The name for readers of a column without a head.

    >>> head_of("ttft_p99_ms"), head_of("worst3_pct"), head_of("output_tokens_per_s")
    ('TTFT p99 (ms)', 'worst-3 E2E (%)', 'output tokens per s')
    """
    parts, unit = name.split("_"), unit_of(name)
    spelled = " ".join(SPELLED.get(part, part) for part in (parts[:-1] if unit else parts))
    return f"{spelled} ({unit})" if unit else spelled


def unit_of(name: str) -> str:
    """The unit that a name ends with, "" without one."""
    *parts, last = name.split("_")
    return UNITS.get(last, "") if parts and parts[-1] != "per" else ""


# Columns with a meaning


def _declared(kind: str, name: str, meaning: str, **options: Any) -> Column:
    return Column(name, kind, meaning, **options)


text, number, whole = (partial(_declared, kind) for kind in (TEXT, NUMBER, WHOLE))
flag, several = (partial(_declared, kind) for kind in (FLAG, LIST))


# Columns of tables that are only printed: their heads say what they are


def words(*heads: str, names: bool = False) -> tuple[Column, ...]:
    """Columns of short texts."""
    return tuple(Column(head, TEXT, head=head, names=names) for head in heads)


def wrapped(*heads: str, names: bool = False) -> tuple[Column, ...]:
    """Columns of texts that may be broken into lines."""
    return tuple(Column(head, TEXT, head=head, wraps=True, names=names) for head in heads)


def figures(spec: str | Callable[[Any], str], *heads: str) -> tuple[Column, ...]:
    """Columns of numbers; `spec` is their format."""
    return tuple(Column(head, NUMBER, head=head, format=spec) for head in heads)


def integers(*heads: str) -> tuple[Column, ...]:
    """Columns of whole numbers, with commas."""
    return tuple(Column(head, WHOLE, head=head, format=",d") for head in heads)


# Rows whose class declares their columns


def column(meaning: str, *, default: Any = MISSING, stored_as: Mapping[str, Any] | None = None, **options: Any) -> Any:
    """A field of a frozen row dataclass that is a column, with its kind from the field's type.

    options: those of Column. stored_as: those of `simulator.common.records.stored`.
    """
    return stored(default=default, metadata={"column": (meaning, options)}, **(stored_as or {}))


@typing.dataclass_transform(frozen_default=True, field_specifiers=(column, stored, dataclasses.field))
def row_class(cls: type[T]) -> type[T]:
    """A frozen dataclass with slots whose fields are columns."""
    return dataclass(frozen=True, slots=True)(cls)


@cache
def columns_of(row: type) -> tuple[Column, ...]:
    """The columns that a row class declares, in the order of its fields."""
    hints = typing.get_type_hints(row)
    return tuple(
        Column(f.name, _kind(hints[f.name]), f.metadata["column"][0], **f.metadata["column"][1])
        for f in dataclasses.fields(row)
        if "column" in f.metadata
    )


def _kind(hint: Any) -> str:
    if isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union:
        (hint, *others) = [each for each in typing.get_args(hint) if each is not type(None)]
        assert not others, f"{hint} | {others} is no column"
    return _KINDS[typing.get_origin(hint) or hint]


Columns = Sequence[Column] | type  # or a class that declares them


def columns(declared: Columns) -> tuple[Column, ...]:
    """The columns of a declaration."""
    return columns_of(declared) if isinstance(declared, type) else tuple(declared)


def chosen(declared: Columns, *names: str, **heads: str) -> tuple[Column, ...]:
    """The columns of these names, in this order. `heads`: for readers, by name, instead of those declared."""
    by_name = {c.name: c for c in columns(declared)}
    return tuple(replace(by_name[name], head=heads.get(name, by_name[name].head)) for name in names)


def values(declared: Columns, rows: Iterable[RowLike]) -> list[tuple[object, ...]]:
    """The values of every row in the order of the columns; what a mapping lacks is missing.

    Raises AssertionError for a mapping with a key that is no column.
    """
    names = [c.name for c in columns(declared)]
    found = []
    for row in rows:
        if isinstance(row, Mapping) and (undeclared := row.keys() - names):
            raise AssertionError(f"no column is declared for {sorted(undeclared)}")
        found.append(tuple(row.get(n) if isinstance(row, Mapping) else getattr(row, n) for n in names))
    return found
