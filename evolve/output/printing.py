"""Tables printed in a terminal, as Markdown, and as plain text; and the notes that explain them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, zip_longest

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from evolve.output.layout import GAP, broken, flowed, parts, width_of
from evolve.output.table import Table
from evolve.output.terminal import LAYOUT, say, width
from simulator.common.text import counted, inert, visible

ROWS, LINES = 25, 5  # lines of rows of a table, and of warnings, with which a command opens
HEAD = 4  # lines of a table besides its rows, about
BAR = re.compile(r"(\\*)\|")
NAMED = 3  # experiments, at most, that such a warning names one by one


def show(table: Table, most: int | None = None) -> list[str]:
    """Print a table, in lines and parts if it is wider than the terminal.

    most: if it has more lines of rows, print only so many, and only the first part. Return what that leaves out.
    """
    table, room = _visible(table), width()
    shown, left = parts(table, room), []
    first = shown[0]
    lines = [max(cell.count("\n") + 1 for cell in cells) for cells in first.cells()]
    if most is not None and len(shown) * (sum(lines) + HEAD) > most + HEAD:
        shown = [replace(first, rows=first.rows[: sum(end <= most for end in accumulate(lines))])]
        columns, rows = len(table.columns) - len(first.columns), len(first.rows) - len(shown[0].rows)
        left = [counted(n, word) for n, word in ((rows, "row"), (columns, "column")) if n]
    for part in shown:
        if part.title:
            say(broken(part.title, room), "bold")
        out = Console(width=width_of(part), markup=False, emoji=False, highlight=False)
        out.print(_drawn(part))
        if part.caption:
            say(broken(part.caption, room))
        say()
    return left


def fits(table: Table) -> bool:
    """True if every line of the table fits."""
    return width_of(_visible(table)) <= width()


def prose(text: str, style: str = "") -> None:
    """Print sentences in lines that fit the terminal. Ends of lines in the text stay."""
    say(flowed(visible(text, LAYOUT), width()), style)


def note(text: str) -> None:
    """Print an explanation as a paragraph that fits the terminal."""
    prose(" ".join(text.split()), "dim")


@dataclass(frozen=True, slots=True)
class Code:
    """A block of code of a page."""

    text: str
    language: str


Block = str | Sequence[str] | Table | Code  # of a page of Markdown: one paragraph or heading, points, a table, code


def page(blocks: Iterable[Block]) -> str:
    """A page of Markdown, in which nothing from files is HTML or a link. Empty blocks are left out."""
    return "\n\n".join(_block(block) for block in blocks if block) + "\n"


def _block(block: Block) -> str:
    match block:
        case Table():
            return markdown(block)
        case Code():
            fence = "`" * max([3, *(len(run) + 1 for run in re.findall("`+", block.text))])
            return f"{fence}{block.language}\n{visible(block.text, LAYOUT)}\n{fence}"
        case str():
            return inert(block)
    return "\n".join(f"- {inert(point)}" for point in block)


def markdown(table: Table, linked: bool = False) -> str:
    """The table as Markdown, without its title. The first cell of a bold row is bold. `linked`: cells have links."""
    lines = [[c.title for c in table.columns], ["---:" if c.right else "---" for c in table.columns], *table.cells()]
    for line, styled in zip(lines[2:], table.rows, strict=True):
        if styled.style == "bold":
            line[0] = f"**{line[0]}**"
    # a bar, and backslashes in front of it, would be read as the end of the cell
    cells = ([BAR.sub(r"\1\1\\|", (visible if linked else inert)(cell)) for cell in line] for line in lines)
    text = "\n".join("| " + " | ".join(line) + " |" for line in cells)
    return text + (f"\n\n{inert(table.caption)}" if table.caption else "")


def plain(table: Table, least: Sequence[int] = ()) -> str:
    """The table as plain text, columns separated by a space; title and caption are lines of their own.

    least: characters of the columns, at least.
    """
    lines = [[visible(cell) for cell in line] for line in ([c.title for c in table.columns], *table.cells())]
    widths = [max(map(len, cells)) for cells in zip(*lines, strict=True)]
    widths = [max(pair) for pair in zip_longest(widths, least, fillvalue=0)]
    texts = [visible(table.title)] if table.title else []
    for line in lines:
        cells = zip(line, table.columns, widths, strict=True)
        texts.append(" ".join(cell.rjust(n) if c.right else cell.ljust(n) for cell, c, n in cells).rstrip())
    return "\n".join([*texts, visible(table.caption)] if table.caption else texts)


def _visible(table: Table) -> Table:
    """The table with heads and cells as text, hidden characters made visible."""
    cells = zip(table.rows, table.cells(), strict=True)
    rows = tuple(replace(r, values=tuple(map(visible, of_row))) for r, of_row in cells)
    columns = tuple(replace(c, head=visible(c.title)) for c in table.columns)
    return Table(visible(table.title), columns, rows, visible(table.caption))


def _drawn(table: Table) -> RichTable:
    """The table for rich to print. Text is never read as markup."""
    drawn = RichTable(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, GAP - 1, 0, 0))
    for c in table.columns:
        drawn.add_column(Text(c.head), justify="right" if c.right else "left", no_wrap=True)
    for r in table.rows:
        drawn.add_row(*map(Text, map(str, r.values)), style=r.style or None, end_section=r.ends_section)
    return drawn


def say_once(texts_by_id: Mapping[str, Sequence[str]], most: int | None = None, lines: int | None = None) -> list[str]:
    """Print each text once, with the ids of the experiments that it is about; of more than `most`, one and how many.

    lines: print no more than so many, those about the most experiments first. Return the number of texts left out.
    """
    ids_by_text: dict[str, list[str]] = {}
    for ident, texts in texts_by_id.items():
        for text in texts:
            ids_by_text.setdefault(text, []).append(ident)
    pairs = list(ids_by_text.items())
    if lines is not None:
        most, pairs = most or NAMED, sorted(pairs, key=lambda pair: -len(pair[1]))
    said = []
    for text, ids in pairs:
        names = "all" if len(ids) == len(texts_by_id) > 1 else ", ".join(ids)
        if most is not None and most < len(ids) < len(texts_by_id):
            names = f"{ids[0]} and {len(ids) - 1} more of {len(texts_by_id)}"
        said.append(f"{text} ({names})")
    return points(said, "warning", lines)


def points(texts: Sequence[str], noun: str, lines: int | None = None) -> list[str]:
    """Print each text as a point.

    lines: print no more than so many, but always the first text. Return the number of texts left out, as `2 NOUNs`.
    """
    used = 0
    for i, text in enumerate(texts):
        said = flowed(visible(f"- {text}", LAYOUT), width())
        used += said.count("\n") + 1
        if lines is not None and i and used > lines:
            return [counted(len(texts) - i, noun)]
        say(said, "dim")
    return []


def more(left: Sequence[str], explained: bool = False, definitions: str = "definitions") -> None:
    """Print one line that says how to see the rest, and what it is: rows with -v, definitions with --explain."""
    ways = [f"-v ({', '.join(left)})"] if left else []
    ways += [] if explained else [f"--explain ({definitions})"]
    if ways:
        prose(f"More: {'; '.join(ways)}", "dim")
