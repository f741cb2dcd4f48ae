"""One table, three printers: what each makes of alignment, styles, sections, text that is too long, and markup."""

from __future__ import annotations

import pytest
from commands import Capsys

from evolve.output.columns import figures, values, words, wrapped
from evolve.output.layout import broken, flowed, parts
from evolve.output.printing import fits, markdown, plain, say_once, show
from evolve.output.table import Row, Table, arrival_seeds, bias_label, mean_errors, passes, row, section
from simulator.common.text import counted

TABLE = Table.of(
    "Errors [percent]",
    [words("model"), figures("+.1f", "E2E"), wrapped("what")],
    [*section([row("ours", 1.0, "x|y", style="bold"), ("theirs", -12.5, "")]), ("[bold]mean", "3.0", "of all")],
    caption="Lower is better.",
)


def drawn(table: Table, width: int, monkeypatch: pytest.MonkeyPatch, capsys: Capsys) -> list[str]:
    """The lines of the table as they are printed at this width."""
    monkeypatch.setenv("COLUMNS", str(width))
    capsys.readouterr()
    show(table)
    return [line.rstrip() for line in capsys.readouterr().out.splitlines()]


@pytest.mark.parametrize(
    ("cell", "escaped"),
    [("a|b", r"a\|b"), (r"a\|b", r"a\\\|b"), (r"a\b", r"a\b"), ("a\nb\x1b", r"a\nb\x1b"), ("|", r"\|")],
)
def test_no_text_leaves_its_cell_in_markdown(cell: str, escaped: str) -> None:
    """A bar ends a cell unless an odd number of backslashes precedes it; a line break ends the row."""
    lines = markdown(Table.of("", words("a", "b"), [[cell, "1"]])).splitlines()
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
    wide = Table.of("", [words(""), figures("", "E2E")], [("a", 1)])
    assert plain(wide, least=(0, 7)) == "      E2E\na       1"


@pytest.mark.parametrize("cells", [row("1", "2", "3"), row("1"), row("1", "2", "3", short=True)])
def test_a_row_has_a_value_for_each_column_unless_it_says_that_it_is_short(cells: Row) -> None:
    assert Table.of("", words("a", "b"), [row("1", short=True)]).cells() == [["1", ""]]
    with pytest.raises(AssertionError, match=r"table 'Errors': \('1'.*\) are not .*\['a', 'b'\]"):
        Table.of("Errors", words("a", "b"), [["1", "2"], cells])


def test_a_value_without_a_declared_column_is_refused() -> None:
    assert values(words("a", "b"), [{"b": 2}]) == [(None, 2)]
    with pytest.raises(AssertionError, match=r"\['c'\]"):
        values(words("a", "b"), [{"a": 1, "c": 3}])


def test_a_terminal_shows_every_character_as_it_is(monkeypatch: pytest.MonkeyPatch, capsys: Capsys) -> None:
    lines = drawn(TABLE, 80, monkeypatch, capsys)
    assert lines[0] == "Errors [percent]" and lines[-2:] == ["Lower is better.", ""]
    assert [line.split() for line in lines[1:-2]] == [
        ["model", "E2E", "what"],
        [lines[2]],
        ["ours", "+1.0", "x|y"],
        ["theirs", "-12.5"],
        [],
        ["[bold]mean", "3.0", "of", "all"],
    ]
    assert lines[2].strip("─") == ""


NAME = "48-llama-4-scout-17b-16e-tp2-reasoning-lite-2-1"
HEADS = [f"mean of figure {i}" for i in range(9)]
WIDE = Table.of(
    "A wide table " * 9,
    [words("experiment"), figures("", *HEADS), wrapped("remark")],
    [[NAME, *(f"{i}.{i}{i}" for i in range(9)), "word " * 30 + "w" * 90], ["short", *[None] * 9, "none"]],
    caption="A caption " * 20,
)


@pytest.mark.parametrize("width", [40, 60, 80, 120, 200])
def test_a_table_fits_and_loses_nothing(width: int, monkeypatch: pytest.MonkeyPatch, capsys: Capsys) -> None:
    lines = drawn(WIDE, width, monkeypatch, capsys)
    text = "".join(lines).replace(" ", "")
    assert max(map(len, lines)) <= width and "…" not in text
    assert all(figure in text for figure in (f"{i}.{i}{i}" for i in range(9)))
    assert text.count("w" * 9) > 0 and sum(line.count("word") for line in lines) == 30
    pieces = "".join(line[: max(16, width // 3)].strip() for line in lines)
    assert "48-llama-" in pieces and text.count("short") >= 1
    drawn(TABLE, width, monkeypatch, capsys)
    assert fits(TABLE) and not fits(WIDE)


def test_every_part_of_a_wide_table_names_its_rows(monkeypatch: pytest.MonkeyPatch, capsys: Capsys) -> None:
    laid_out = parts(WIDE, 60)
    assert [part.columns[0].name for part in laid_out] == ["experiment"] * len(laid_out) and len(laid_out) > 1
    for part in laid_out:
        assert [str(row.values[0]).replace("\n", "") for row in part.rows] == [NAME, "short"]
    assert [bool(part.title) for part in laid_out] == [True] + [False] * (len(laid_out) - 1)
    heads = [column.title.replace("\n", " ") for part in laid_out for column in part.columns[1:]]
    assert heads == [*HEADS, "remark"]


def test_lines_break_between_the_parts_of_a_name() -> None:
    assert broken("a-long-id-of-a-run", 10).split("\n") == ["a-long-id-", "of-a-run"]
    assert broken("explain+interact", 9).split("\n") == ["explain+", "interact"]
    assert broken("-12.5 to +3", 5).split("\n") == ["-12.5", "to +3"]
    assert broken("in /tmp/folder", 7).split("\n") == ["in", "/tmp/", "folder"]
    assert broken("漢字漢字", 4).split("\n") == ["漢字", "漢字"]
    assert broken("", 4) == "" and broken("a\nb", 9) == "a\nb"


def test_sentences_break_between_words_only() -> None:
    assert flowed("see /tmp/a_b, not c", 9).split("\n") == ["see", "/tmp/a_b,", "not c"]
    assert flowed("/tmp/folder", 5).split("\n") == ["/tmp/", "folde", "r"]


def test_cells_of_errors() -> None:
    rows = [{"e2e": 2.0, "ttft": -16.0, "itl": None}, {"e2e": -4.0, "ttft": None, "itl": None}]
    assert [passes(r) for r in rows] == [">TTFT", "pass"]
    assert passes(dict.fromkeys(("e2e", "ttft", "itl"))) == "-"
    assert mean_errors(rows) == [3.0, 16.0, None, 2]
    assert counted(1, "constant") == "1 constant" and counted(1200, "constant") == "1,200 constants"
    assert arrival_seeds([1]) == "arrival seed 1" and arrival_seeds([1, 2]) == "arrival seeds 1, 2"
    assert bias_label(rows) == "Mean E2E bias -1.00 % (limit 5 %): pass"
    assert bias_label([{"e2e": 6.0}]).endswith("FAIL") and bias_label([{"e2e": None}]) == ""


def test_every_part_repeats_all_columns_that_name_the_rows() -> None:
    columns = [words("by"), words("kind", names=True), figures(".1f", "first figure", "second figure")]
    table = Table.of("", columns, [["load", "1-8", 1.0, 2.0], ["load", "9-32", 3.0, 4.0]])
    first, second = parts(table, 22)
    assert [c.title for c in first.columns] == ["by", "kind", "first\nfigure"]
    assert [r.values for r in second.rows] == [("load", "1-8", "2.0"), ("load", "9-32", "4.0")]


def test_a_command_opens_with_few_lines_and_says_what_it_leaves_out(
    monkeypatch: pytest.MonkeyPatch, capsys: Capsys
) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    many = Table.of("", [words("id"), figures("d", "n")], [(f"run-{i}", i) for i in range(30)])
    assert show(many, 30) == [] and len(capsys.readouterr().out.splitlines()) == 33
    assert show(many, 27) == ["3 rows"] and "run-27" not in capsys.readouterr().out
    assert show(WIDE, 9) == [f"{11 - len(parts(WIDE, 60)[0].columns)} columns"]
    said = {"a": ["one", "both"], "b": ["both", "last " * 30], "c": [], "d": ["both"]}
    capsys.readouterr()
    assert say_once(said, lines=2) == ["1 warning"]
    assert capsys.readouterr().out == "- both (a, b, d)\n- one (a)\n"
    assert say_once(said) == [] and capsys.readouterr().out.startswith("- one (a)\n- both (a, b, d)\n- last ")
