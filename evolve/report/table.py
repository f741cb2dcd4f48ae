"""Tables as values, with a printer each for the terminal, Markdown and plain text, and how their cells show figures."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from simulator.text import visible

PASS_PCT = {"e2e": 10.0, "ttft": 15.0, "itl": 15.0}  # an experiment passes if each error is within these
MOST_BIAS_PCT = 5.0  # INV-M-6


@dataclass(frozen=True, slots=True)
class Column:
    """A column. `right`: aligned right. `wraps`: its text may be broken into lines where a table must fit a terminal.
    `width`: the least number of characters in plain text."""

    name: str
    right: bool = False
    wraps: bool = False
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
    """A table: title, columns, rows, and a caption below. `Table.of` makes one from text."""

    title: str
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    caption: str = ""

    @classmethod
    def of(cls, title: str, heads: str, rows: Iterable[Row | Sequence[str]], caption: str = "") -> Table:
        """A table whose column names are separated by |; a leading > aligns right, a leading ~ lets the column wrap."""
        columns = [Column(h.lstrip(">~"), right=h.startswith(">"), wraps=h.startswith("~")) for h in heads.split("|")]
        return cls(title, tuple(columns), tuple(r if isinstance(r, Row) else Row(tuple(r)) for r in rows), caption)

    def filled(self) -> list[list[str]]:
        """The cells of every row, as many as there are columns."""
        return [[*row.cells, *[""] * (len(self.columns) - len(row.cells))] for row in self.rows]


def row(*cells: str, style: str = "") -> Row:
    """A row of these cells."""
    return Row(cells, style)


def section(rows: Iterable[Row]) -> list[Row]:
    """The rows as a section: the last one ends it."""
    rows = list(rows)
    return [*rows[:-1], *(replace(last, ends_section=True) for last in rows[-1:])]


def show(table: Table, wrap: bool = False) -> None:
    """Print a table in full: where the terminal is too narrow its lines wrap, so that no figure is lost.

    `wrap`: fit the table to a terminal's width by wrapping the text of its wrapping columns instead.
    """
    out, drawn = _console(), _drawn(table)
    if not (wrap and out.is_terminal):
        out.width = max(out.width, _natural_width(out, drawn))
    out.print(drawn)


def fits(table: Table) -> bool:
    """Whether every line of the table has room; always where output is not a terminal."""
    out = _console()
    return not out.is_terminal or _natural_width(out, _drawn(table)) <= out.width


def _console() -> Console:
    """Standard output, wide where it is not a terminal."""
    return Console(width=None if sys.stdout.isatty() else 190, markup=False, emoji=False, highlight=False)


def markdown(table: Table) -> str:
    """The table as Markdown, without its title. In a bold row the first cell is bold."""
    lines = [[c.name for c in table.columns], ["---:" if c.right else "---" for c in table.columns], *table.filled()]
    for line, styled in zip(lines[2:], table.rows, strict=True):
        if styled.style == "bold":
            line[0] = f"**{line[0]}**"
    text = "\n".join("| " + " | ".join(map(_markdown_cell, line)) + " |" for line in lines)
    return text + (f"\n\n{visible(table.caption)}" if table.caption else "")


def _markdown_cell(text: str) -> str:
    """The text as one cell: a bar, and backslashes in front of it, would be read as the end of the cell."""
    return re.sub(r"(\\*)\|", r"\1\1\\|", visible(text))


def plain(table: Table) -> str:
    """The table as plain text, columns separated by a space; the title and the caption are lines of their own."""
    lines = [[visible(cell) for cell in line] for line in ([c.name for c in table.columns], *table.filled())]
    widths = [max(c.width, *(len(line[i]) for line in lines)) for i, c in enumerate(table.columns)]
    texts = [visible(table.title)] if table.title else []
    for line in lines:
        cells = zip(line, table.columns, widths, strict=True)
        texts.append(" ".join(cell.rjust(n) if c.right else cell.ljust(n) for cell, c, n in cells).rstrip())
    return "\n".join([*texts, visible(table.caption)] if table.caption else texts)


def _drawn(table: Table) -> RichTable:
    """The table for rich to print. Text is never read as markup, hidden characters are visible, and columns are never
    cut."""
    title, caption = (Text(visible(text)) if text else None for text in (table.title, table.caption))
    drawn = RichTable(title=title, caption=caption, title_justify="left", box=SIMPLE_HEAD, pad_edge=False)
    for c in table.columns:
        justify, overflow = "right" if c.right else "left", "fold" if c.wraps else "ellipsis"
        drawn.add_column(Text(visible(c.name)), justify=justify, no_wrap=not c.wraps, overflow=overflow)  # type: ignore[arg-type]
    for r in table.rows:
        drawn.add_row(*(Text(visible(cell)) for cell in r.cells), style=r.style or None, end_section=r.ends_section)
    return drawn


def _natural_width(out: Console, drawn: RichTable) -> int:
    """The columns of text that the table needs to show everything."""
    return out.measure(drawn, options=out.options.update(max_width=1000)).maximum


def number(value: float | None, digits: int = 1, signed: bool = True) -> str:
    """A figure as a cell, `-` for None."""
    if value is None:
        return "-"
    return f"{value:{'+' if signed else ''}.{digits}f}"


def passes(errors: Mapping[str, float | None]) -> str:
    """`pass`, or `>` and the latencies whose error is outside PASS_PCT; `-` where nothing was observed."""
    observed = {name: value for name in PASS_PCT if (value := errors[name]) is not None}
    if not observed:
        return "-"
    failed = [name.upper() for name, value in observed.items() if abs(value) > PASS_PCT[name]]
    return ">" + ",".join(failed) if failed else "pass"


def mean_cells(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Mean absolute errors of E2E, TTFT and ITL over these experiments, and how many experiments there are."""
    cells = []
    for name in ("e2e", "ttft", "itl"):
        values = [abs(r[name]) for r in rows if r[name] is not None]
        cells.append(number(sum(values) / len(values), 2, signed=False) if values else "-")
    return [*cells, str(len(rows))]


def bias_label(rows: Iterable[Mapping[str, Any]]) -> str:
    """Whether INV-M-6 holds for these experiments: mean signed E2E error within 5 %. "" where none was observed."""
    errors = [r["e2e"] for r in rows if r["e2e"] is not None]
    if not errors:
        return ""
    bias = sum(errors) / len(errors)
    state = "holds" if abs(bias) < MOST_BIAS_PCT else "BROKEN"
    return f"INV-M-6 {state}: mean signed E2E error {bias:+.2f} % (limit {MOST_BIAS_PCT:g})"
