"""A table laid out for a width: it breaks heads and long texts into lines, and moves columns into further parts.

Nothing is shortened or left out. Every part repeats the columns that name the rows. All values are text here.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable
from dataclasses import replace
from itertools import takewhile

from rich.cells import cell_len, chop_cells

from evolve.output.columns import Column
from evolve.output.table import Table

GAP = 2  # characters between columns
LEAST_NAME = 16  # characters of a line of the first column, which names the rows
LEAST_TEXT = 24, 12  # characters of a line of wrapping text: if there is room, and where there is little


def parts(table: Table, width: int) -> list[Table]:
    """The table in as few parts as fit the width one below the other; the first has the title, the last the caption."""
    if width_of(table) <= width:
        return [table]
    table = replace(table, columns=tuple(map(_broken_head, table.columns, _cell_widths(table))))
    name, text = width // 3, LEAST_TEXT[-1]
    for text in LEAST_TEXT:
        room = width - GAP - _total(_least(table, text)[1:])
        if room >= LEAST_NAME:
            name = room
            break
    table = _lines(table, 0, max(name, LEAST_NAME, _longest_word(table.columns[0].head)))
    laid_out = [_part(table, group, width) for group in _groups(table, width, text)]
    laid_out = [replace(part, title=table.title if i == 0 else "", caption="") for i, part in enumerate(laid_out)]
    return [*laid_out[:-1], replace(laid_out[-1], caption=table.caption)]


def width_of(table: Table) -> int:
    """The characters in the widest line of the table."""
    return _total(_widths(table))


def _groups(table: Table, width: int, text: int) -> list[list[int]]:
    """The columns of each part, always those that name the rows and then as many as have room."""
    least = _least(table, text)
    naming = 1 + sum(1 for _ in takewhile(lambda column: column.names, table.columns[1:]))
    groups, used = [list(range(naming))], _total(least[:naming])
    for i in range(naming, len(least)):
        if used + GAP + least[i] > width and len(groups[-1]) > naming:
            groups.append(list(range(naming)))
            used = _total(least[:naming])
        groups[-1].append(i)
        used += GAP + least[i]
    return groups


def _part(table: Table, columns: list[int], width: int) -> Table:
    """These columns of the table, with wrapping texts broken into lines that fill the width together."""
    rows = [
        replace(r, values=tuple(cells[i] for i in columns)) for r, cells in zip(table.rows, table.cells(), strict=True)
    ]
    part = replace(table, columns=tuple(table.columns[i] for i in columns), rows=tuple(rows))
    wrapping = [i for i, c in enumerate(part.columns) if c.wraps and i > 0]
    room = width - _total(w for i, w in enumerate(_widths(part)) if i not in wrapping)
    for left, i in zip(range(len(wrapping), 0, -1), wrapping, strict=True):
        share = max(room // left - GAP, LEAST_TEXT[-1])
        part = _lines(part, i, share)
        room -= _widths(part)[i] + GAP
    return part


def _lines(table: Table, column: int, width: int) -> Table:
    """The table with the cells of a column broken into lines of at most `width` characters."""
    rows = [
        replace(r, values=(*cells[:column], broken(cells[column], width), *cells[column + 1 :]))
        for r, cells in zip(table.rows, table.cells(), strict=True)
    ]
    return replace(table, rows=tuple(rows))


class _Wrapper(textwrap.TextWrapper):
    """Breaks lines at blanks, and after the signs that ids, paths, names and sums are made of."""

    wordsep_re = re.compile(r"(\s+|[+/_=-]*[^\s+/_=-]+[+/_=-](?=[^\s\d]))")


def broken(text: str, width: int) -> str:
    """The text in lines of at most `width` characters, broken at blanks and after signs where possible."""
    return _in_lines(text, _Wrapper(width))


def flowed(text: str, width: int) -> str:
    """The text in lines of at most `width` characters, broken at blanks only: names and paths can be copied whole.

    A word that is longer than a line is broken at its end.
    """
    return _in_lines(text, textwrap.TextWrapper(width, break_on_hyphens=False))


def _in_lines(text: str, wrapper: textwrap.TextWrapper) -> str:
    width = wrapper.width
    lines = [line for given in text.split("\n") for line in wrapper.wrap(given) or [""]]
    return "\n".join(piece for line in lines for piece in (chop_cells(line, width) if line else [""]))


def _broken_head(column: Column, width: int) -> Column:
    """The column with its head in lines no wider than its cells, if its words allow that."""
    return replace(column, head=broken(column.head, max(width, _longest_word(column.head))))


def _longest_word(text: str) -> int:
    return max((cell_len(word) for word in text.split()), default=1)


def _wide(text: str) -> int:
    return max(map(cell_len, text.split("\n")))


def _cell_widths(table: Table) -> list[int]:
    rows = table.cells()
    return [max((_wide(cells[i]) for cells in rows), default=1) for i in range(len(table.columns))]


def _widths(table: Table) -> list[int]:
    return [max(w, _wide(c.head)) for w, c in zip(_cell_widths(table), table.columns, strict=True)]


def _least(table: Table, text: int) -> list[int]:
    """The characters that each column needs, a wrapping one at most `text`."""
    widths = zip(table.columns, _widths(table), strict=True)
    return [max(min(w, text), _longest_word(c.head)) if c.wraps else w for c, w in widths]


def _total(widths: Iterable[int]) -> int:
    listed = list(widths)
    return sum(listed) + GAP * (len(listed) - 1)
