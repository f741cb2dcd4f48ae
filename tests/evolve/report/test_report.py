"""`evolve report`: its printers, and the whole report of a program, a run and a file without a record."""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import click
import pytest
import tiny_world
from browser import Tab, started
from commands import Capsys, as_json, evolve, printed, refused

from evolve.cli import cli
from evolve.cli.entry import COMMANDS
from evolve.output.columns import figures, wrapped
from evolve.report.accuracy import SampleErrors
from evolve.report.adoption import NOT, WITH_CARE, Adoption
from evolve.report.dimension import GOOD, LEVELS, UNTESTED, Dimension, Exhibit
from evolve.report.html import html
from evolve.report.report import BRIEF, DIMENSIONS, Report
from evolve.report.view import page, print_report

HOSTILE = '<script>alert(1)</script> "x" & \x1b[31m\u202e | [bold]y'
WIDE = figures(",.1f", *(f"column {i}" for i in range(14)))


def made(text: str = "plain") -> Report:
    """A report whose every text is, or ends in, `text`."""
    columns, again = [wrapped(text), figures(".1f", "value")], f"evolve show {shlex.quote(text)}"
    exhibits = (
        Exhibit.of(f"T {text}", columns, [(text, 1.25)], again, note=text),
        Exhibit.of("Wide", WIDE, [[1234.5 * i for i in range(14)]], "evolve list"),
    )
    dimensions = tuple(
        Dimension.of(name, f"{name} {text}", ([*LEVELS][i % 4], text), text, exhibits, (text,))
        for i, name in enumerate(DIMENSIONS)
    )
    adoption = Adoption(WITH_CARE, text, text, (SampleErrors(text, 1.0, 2, None, 3.0, 4),))
    return Report(text, text, "k", "d", (1, 2, 3), text, adoption, (text,), dimensions, ("ease",), text)


class Elements(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data


def test_a_page_escapes_hostile_text_and_has_no_script() -> None:
    found = Elements(html(made(HOSTILE)))
    plain = Elements(html(made()))
    assert [tag for tag, _ in found.elements] == [tag for tag, _ in plain.elements]  # the text made no element
    assert "script" not in {tag for tag, _ in found.elements}
    assert found.text.count("<script>alert(1)</script>") > 20  # where it is seen
    assert not {"\x1b", "\u202e"} & {*html(made(HOSTILE))} and "\\x1b[31m\\u202e" in found.text


def test_a_page_loads_nothing_from_elsewhere() -> None:
    text = html(made())
    attributes = [pair for _, attrs in Elements(text).elements for pair in attrs.items()]
    named = [v for k, v in attributes if k in ("src", "href", "action", "data")]
    assert named and all((v or "").startswith("#") for v in named)
    assert not re.search(r"url\(|@import|https?://", text) and "default-src 'none'" in text
    ids = {v for k, v in attributes if k == "id"}
    assert {(v or "").removeprefix("#") for v in named} <= ids == set(DIMENSIONS)


LATER = pytest.mark.slow
SCREENS = [(390, "light"), (1280, "dark"), *(pytest.param(*s, marks=LATER) for s in ((390, "dark"), (1280, "light")))]


@pytest.mark.parametrize(("width", "scheme"), SCREENS)
def test_a_page_is_readable_on_narrow_and_wide_screens(tmp_path: Path, width: int, scheme: str) -> None:
    (tmp_path / "report.html").write_text(html(made()))
    with started() as browser:
        tab = Tab(browser, width, scheme)
        tab.page.goto((tmp_path / "report.html").as_uri())
        assert tab.overflow() <= 0 and not tab.grave() and not tab.problems


def test_markdown_has_a_section_and_the_commands_of_every_dimension() -> None:
    text = page(made(HOSTILE))
    assert re.findall(r"^## (\d+)\. ", text, re.MULTILINE) == [str(i + 1) for i in range(10)]
    assert "\x1b" not in text and text.count("evolve show") == 10
    rows = [line for line in text.splitlines() if line.startswith("| ")]
    # a bar in a cell does not end it
    assert all(len(re.findall(r"(?<!\\)\|", row)) in (3, 4, 7, 15) for row in rows)


def test_a_dimension_keeps_its_number_in_a_report_of_few(capsys: Capsys) -> None:
    whole = made()
    few = replace(whole, dimensions=(whole.dimensions[1], whole.dimensions[4]))
    assert re.findall(r"^## (\d+)\. (\w+)", page(few), re.MULTILINE) == [("2", "workloads"), ("5", "hardware")]
    print_report(few)
    heads = re.findall(r"^(\d+)\. (\w+)", capsys.readouterr().out, re.MULTILINE)
    assert heads == [("2", "workloads"), ("5", "hardware")]
    assert re.findall(r"<h2>(\d+)\.", html(few)) == re.findall(r'<li value="(\d+)">', html(few)) == ["2", "5"]


def test_the_terminal_shows_every_table_and_how_to_repeat_it(capsys: Capsys) -> None:
    print_report(made())
    out = capsys.readouterr().out
    assert out.startswith("Report on plain\nAdopt with care: for plain.\n") and out.count(
        "Again:\n  evolve show plain\n"
    ) == 10 == out.count("Wide")


def parses(line: str) -> bool:
    words = shlex.split(line)[1:]
    command = cli.get_command(click.Context(cli), words[0])
    assert words[0] in COMMANDS and command is not None, line
    command.make_context(words[0], words[1:])
    return True


def report(capsys: Capsys, *args: object) -> dict[str, Any]:
    result: dict[str, Any] = as_json(capsys, "report", *args, "--workers", 1, "--quiet")
    return result


def check_whole(result: dict[str, Any]) -> None:
    """What holds for every report: ten dimensions, a rule and a verdict each, and commands for every table."""
    assert [d["dimension"] for d in result["dimensions"]] == list(DIMENSIONS)
    for d in result["dimensions"]:
        assert d["verdict"]["level"] in LEVELS and f"{d['verdict']['level']}: " in d["verdict"]["rule"]
        for table in d["tables"]:
            assert table["repeat"] and all(map(parses, table["repeat"]))
            assert table["rows"] and all(len(row) == len(table["columns"]) for row in table["rows"])


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("report") / "data.yaml"
    path.write_text(tiny_world.DATA)
    return path


def table(result: dict[str, Any], title: str) -> list[dict[str, Any]]:
    found = next(t for d in result["dimensions"] for t in d["tables"] if t["title"].startswith(title))
    return [dict(zip(found["columns"], row, strict=True)) for row in found["rows"]]


@pytest.mark.slow
def test_a_run_without_a_validation_is_reported_on(capsys: Capsys, tiny_run: Path) -> None:
    result = report(capsys, tiny_run, "--only", "all")
    check_whole(result)
    kept = json.loads((tiny_run / "report.json").read_text())
    assert result["key"] == kept["champion"]["key"]
    levels = {d["dimension"]: d["verdict"]["level"] for d in result["dimensions"]}
    assert {levels[name] for name in ("accuracy", "workloads", "models", "hardware", "versions")} == {UNTESTED}
    assert levels["reproducibility"] == GOOD
    assert any("never validated" in line and f"evolve validate {tiny_run}" in line for line in result["missing"])
    mean = {row["latency"]: row["mean"] for row in table(result, "Errors of the program")}
    assert mean["E2E"] == pytest.approx(kept["fitted_mean"]["e2e"])
    assert mean["TTFT"] == pytest.approx(kept["fitted_mean"]["ttft"])
    assert {row["runs that were"]: row["runs"] for row in table(result, "Measurements")}["fitted"] == 3
    (overloaded,) = table(result, "Overloaded runs")
    assert (overloaded["run"], overloaded["fitted"], overloaded["failed, observed"]) == ("dense-overloaded", False, 230)


@pytest.mark.slow
def test_the_report_on_a_file_without_a_record_says_so(capsys: Capsys, data: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("def step_time(b, s, *, base: us = 5000.0): return base + b.weight_read_us\n")
    result = report(capsys, tmp_path / "mine.py", "--experiments", data, "--only", "all")
    check_whole(result)
    for text in ("no record of", "never validated", "from no run"):
        assert any(text in line for line in result["missing"])
    kinds = {row["kind"]: row["constants or terms"] for row in table(result, "Constants by their worth")}
    assert kinds["in a step"] == 1 and kinds["measured kernel"] == 0
    sample = "on runs of which no record says whether it was fitted on them"
    assert {row["sample"] for row in table(result, "Errors of the program")} == {sample, ""}


@pytest.mark.parametrize("columns", ["80", "120"])
def test_a_report_in_short_is_a_screen_with_one_verdict(
    capsys: Capsys, tiny_run: Path, monkeypatch: pytest.MonkeyPatch, columns: str
) -> None:
    """A run that was never validated is not adopted; what was not computed is named with the command that does."""
    monkeypatch.setenv("COLUMNS", columns)
    lines = printed(capsys, "report", tiny_run, "--quiet").splitlines()
    assert len(lines) <= 60 and max(map(len, lines)) <= int(columns)
    assert lines[1] == "Do not adopt." and "because it was never validated" in " ".join(lines)
    result = report(capsys, tiny_run)
    assert result["adoption"]["verdict"] == NOT and result["adoption"]["for"] == ""
    assert [d["dimension"] for d in result["dimensions"]] == list(BRIEF)
    assert result["not_looked_at"] == ["ease", "retraining", "overheads"]
    assert not any(d["tables"] for d in result["dimensions"])
    kept = json.loads((tiny_run / "report.json").read_text())
    (in_sample,) = [sample for sample in result["adoption"]["errors"] if sample["sample"] == "in sample"]
    assert in_sample["ttft_pct"] == pytest.approx(kept["fitted_mean"]["ttft"]) and in_sample["runs"] == 3


def test_single_dimensions_are_computed_alone_and_as_one_page(capsys: Capsys, tiny_run: Path, tmp_path: Path) -> None:
    file = tmp_path / "page.html"
    args = "report", tiny_run, "--only", "reproducibility", "--quiet"
    assert evolve(*args, "--html", file, "--workers", 1) == 0
    assert capsys.readouterr() == ("", f"{file}: 1 dimension\n")
    assert '<section id="reproducibility">' in file.read_text() == printed(capsys, *args, "--html", "-")
    assert printed(capsys, *args, "--md").count("\n## ") == 1


@pytest.mark.parametrize(
    ("args", "complaint"),
    [
        ("--only accuracies", "--only accuracies: is no dimension: did you mean 'accuracy'?"),
        ("--md --json", "--md and --json both go to standard output"),
        ("--json --html -", "--json and --html - both go to standard output"),
        ("--html .", ".: is a folder: --html names a file"),
        ("--id nothing", "--id nothing: no such experiment"),
    ],
)
def test_wrong_input_is_a_line_and_status_2(capsys: Capsys, args: str, complaint: str) -> None:
    assert complaint in refused(capsys, "report", "champion", *args.split())
