"""One table, three printers: what each makes of alignment, styles, sections, text that is too long, and markup."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from evolve.report.table import (
    Column,
    Row,
    Table,
    bias_label,
    fits,
    markdown,
    mean_cells,
    passes,
    plain,
    row,
    section,
    show,
)

TABLE = Table.of(
    "Errors [percent]",
    "model|>E2E|~what",
    [*section([row("ours", "+1.0", "x|y", style="bold"), row("theirs", "-12.5")]), ("[bold]mean", "3.0", "of all")],
    caption="Lower is better.",
)


def drawn(monkeypatch: pytest.MonkeyPatch, table: Table, width: int, wrap: bool = False) -> list[str]:
    """The lines of the table as they are printed in a terminal of this width."""
    out = Console(file=io.StringIO(), width=width, force_terminal=True, color_system=None)
    monkeypatch.setattr("evolve.report.table._console", lambda: out)
    show(table, wrap)
    return [line.rstrip() for line in out.file.getvalue().splitlines()]  # type: ignore[attr-defined]


def test_markdown_escapes_bars_and_fills_rows() -> None:
    assert markdown(Table.of("", "a|>b", [["x|y", "1"]])) == "| a | b |\n| --- | ---: |\n| x\\|y | 1 |"
    assert markdown(TABLE).splitlines() == [
        "| model | E2E | what |",
        "| --- | ---: | --- |",
        "| **ours** | +1.0 | x\\|y |",
        "| theirs | -12.5 |  |",
        "| [bold]mean | 3.0 | of all |",
        "",
        "Lower is better.",
    ]


@pytest.mark.parametrize(
    ("cell", "escaped"),
    [("a|b", r"a\|b"), (r"a\|b", r"a\\\|b"), (r"a\b", r"a\b"), ("a\nb\x1b", r"a\nb\x1b"), ("|", r"\|")],
)
def test_no_text_leaves_its_cell_in_markdown(cell: str, escaped: str) -> None:
    """A bar ends a cell unless an odd number of backslashes precedes it; a line break ends the row."""
    lines = markdown(Table.of("", "a|b", [[cell, "1"]])).splitlines()
    assert lines[2:] == [f"| {escaped} | 1 |"]


def test_plain_text_is_aligned_and_keeps_least_widths() -> None:
    assert plain(TABLE).splitlines() == [
        "Errors [percent]",
        "model        E2E what",
        "ours        +1.0 x|y",
        "theirs     -12.5",
        "[bold]mean   3.0 of all",
        "Lower is better.",
    ]
    wide = Table("", (Column(""), Column("E2E", right=True, width=7)), (Row(("a", "1")),))
    assert plain(wide) == "      E2E\na       1"


def test_a_terminal_shows_every_character_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = drawn(monkeypatch, TABLE, 80)
    assert lines[0].strip() == "Errors [percent]" and lines[-1].strip() == "Lower is better."
    assert [line.split() for line in lines[2:-2]] == [
        ["model", "E2E", "what"], ["─" * len(lines[3].strip())], ["ours", "+1.0", "x|y"], ["theirs", "-12.5"], [],
        ["[bold]mean", "3.0", "of", "all"],
    ]  # fmt: skip


def test_a_narrow_terminal_loses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    long = Table.of("Long", "name|~text", [("n" * 30, "word " * 12 + "w" * 30)])
    assert any("n" * 30 in line and "w" * 30 in line for line in drawn(monkeypatch, long, 40))
    narrow = drawn(monkeypatch, long, 60, wrap=True)
    assert max(map(len, narrow)) <= 60 and "…" not in "".join(narrow)
    drawn(monkeypatch, TABLE, 40)
    assert not fits(long) and fits(TABLE)


def test_cells_of_errors() -> None:
    rows = [{"e2e": 2.0, "ttft": -16.0, "itl": None}, {"e2e": -4.0, "ttft": None, "itl": None}]
    assert [passes(r) for r in rows] == [">TTFT", "pass"]
    assert passes(dict.fromkeys(("e2e", "ttft", "itl"))) == "-"
    assert mean_cells(rows) == ["3.00", "16.00", "-", "2"]
    assert bias_label(rows) == "INV-M-6 holds: mean signed E2E error -1.00 % (limit 5)"
    assert bias_label([{"e2e": 6.0}]).startswith("INV-M-6 BROKEN") and bias_label([{"e2e": None}]) == ""
