"""One table, three printers: what each makes of alignment, styles, sections, text that is too long, and markup."""

from __future__ import annotations

import io

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


def drawn(table: Table, width: int, wrap: bool = False) -> list[str]:
    """The lines of the table as they are printed at this width."""
    out = Console(file=io.StringIO(), width=width, force_terminal=False)
    show(out, table, wrap)
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


def test_a_terminal_shows_every_character_as_it_is() -> None:
    lines = drawn(TABLE, 80)
    assert lines[0].strip() == "Errors [percent]" and lines[-1].strip() == "Lower is better."
    assert [line.split() for line in lines[2:-2]] == [
        ["model", "E2E", "what"], ["─" * len(lines[3].strip())], ["ours", "+1.0", "x|y"], ["theirs", "-12.5"], [],
        ["[bold]mean", "3.0", "of", "all"],
    ]  # fmt: skip


def test_a_narrow_terminal_loses_nothing() -> None:
    long = Table.of("Long", "name|~text", [("n" * 30, "word " * 12 + "w" * 30)])
    assert any("n" * 30 in line and "w" * 30 in line for line in drawn(long, 40))
    narrow = drawn(long, 60, wrap=True)
    assert max(map(len, narrow)) <= 60 and "…" not in "".join(narrow)
    out = Console(file=io.StringIO(), width=40, force_terminal=True)
    assert not fits(out, long) and fits(out, TABLE)


def test_cells_of_errors() -> None:
    rows = [{"e2e": 2.0, "ttft": -16.0, "itl": None}, {"e2e": -4.0, "ttft": None, "itl": None}]
    assert [passes(r) for r in rows] == [">TTFT", "pass"]
    assert passes(dict.fromkeys(("e2e", "ttft", "itl"))) == "-"
    assert mean_cells(rows) == ["3.00", "16.00", "-", "2"]
    assert bias_label(rows) == "INV-M-6 holds: mean signed E2E error -1.00 % (limit 5)"
    assert bias_label([{"e2e": 6.0}]).startswith("INV-M-6 BROKEN") and bias_label([{"e2e": None}]) == ""
