"""The pages agree with the code: their links, commands, programs, files and figures."""

from __future__ import annotations

import json
import re
import shlex
from functools import cache
from pathlib import Path

import click
import pytest
import yaml
from commands import commands
from paths import ROOT

from evolve.cli import entry
from evolve.host.cases import read_case
from evolve.run.config_file import config_from
from simulator.language.infer import check_units
from simulator.language.parse import parse
from simulator.serving.bundled import experiments_from_mapping
from simulator.serving.model import model_table
from simulator.serving.traces.read import files_beside

README = ROOT / "README.md"
PAGES = [README, ROOT / "CONTRIBUTING.md", ROOT / "BENCHMARKS.md", *sorted((ROOT / "docs").glob("*.md"))]
PACKAGES = ("archive", "configs", "evaluator", "evolve", "research", "simulator", "translate_go")
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"(?<!!)\[[^\]]+\]\(([^)\s]+)\)")
SPAN = re.compile(r"`([^`]+)`")
COMMANDS = dict(commands())

page = pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)


def blocks(path: Path, language: str) -> list[str]:
    """The code blocks of a page in one language."""
    return [text for name, text in FENCE.findall(path.read_text("utf-8")) if name == language]


def prose(path: Path) -> str:
    """A page without its code blocks."""
    return FENCE.sub("", path.read_text("utf-8"))


@cache
def anchors(path: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", prose(path), re.MULTILINE) if path.suffix == ".md" else []
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@page
def test_every_link_leads_to_a_file_or_heading(page: Path) -> None:
    for target in LINK.findall(prose(page)):
        name, _, anchor = target.partition("#")
        file = page.parent / name if name else page
        if not target.startswith("https://"):
            assert file.exists() and (not anchor or anchor in anchors(file)), f"{page.name}: {target}"


def test_every_page_that_the_product_names_exists() -> None:
    for file in (path for package in PACKAGES for path in (ROOT / package).rglob("*.py")):
        for name in re.findall(r"(?<!/)docs/([\w-]+\.md)", file.read_text("utf-8")):
            assert (ROOT / "docs" / name).is_file(), f"{file.relative_to(ROOT)}: docs/{name}"


def test_readme_is_short_and_begins_with_the_commands_and_shows_the_champion() -> None:
    lines = README.read_text("utf-8").splitlines()
    assert len(lines) <= 100 and {line[:10] for line in lines[:25]} >= {"make run  ", "make test "}
    shipped = (ROOT / "seeds" / "champion.py").read_text("utf-8")
    assert shipped[shipped.index("def step_time") :].strip() in [block.strip() for block in blocks(README, "python")]


def parse_command(words: list[str]) -> None:
    """Parse a command line without executing it. Raises click.UsageError."""
    name = next((name for name in (" ".join(words[:2]), words[0]) if name in COMMANDS), "")
    assert name, f"no such command: {shlex.join(words)}"
    COMMANDS[name].make_context(name, words[len(name.split()) :], parent=click.Context(entry.cli, info_name="evolve"))


@page
def test_every_command_line_in_a_code_block_parses(page: Path) -> None:
    for line in "".join(blocks(page, "sh")).replace("\\\n", " ").splitlines():
        program, *words = shlex.split(line, comments=True) or [""]
        if program == "evolve" and words != ["--help"]:
            parse_command(words[: next((i for i, word in enumerate(words) if word in ("|", ">", "&&")), None)])
    with pytest.raises(click.NoSuchOption):
        parse_command(["run", "--frobnicate"])


@page
def test_every_command_option_and_make_target_in_the_text_exists(page: Path) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))
    for span in SPAN.findall(prose(page)):
        first, *words = span.split()
        if first == "make" and len(words) == 1:
            assert words[0] in targets, f"{page.name}: `{span}`"
        if first == "evolve" and words and words[0].islower() and not words[0].startswith("-"):
            name = next((name for name in (" ".join(words[:2]), words[0]) if name in COMMANDS), "")
            assert name or words == ["model"], f"{page.name}: `{span}`: no such command"
            known = {o for p in COMMANDS[name].params for o in p.opts} if name else set()
            assert {word for word in words if word.startswith("--")} <= known, f"{page.name}: `{span}`"


@pytest.mark.parametrize("name", COMMANDS)
def test_every_example_of_a_help_text_parses(name: str) -> None:
    lines = [line.strip() for line in (COMMANDS[name].help or "").splitlines()]
    examples = [re.split(r" > |\s{2,}", line)[0] for line in lines if line.startswith("evolve ")]
    assert examples
    for example in examples:
        parse_command(shlex.split(example)[1:])


@page
def test_every_program_and_file_shown_is_read(page: Path, tmp_path: Path) -> None:
    for text in blocks(page, "python"):
        if "def step_time" in text:
            check_units(parse(text, page.name), page.name)
    for text in blocks(page, "csv")[:1]:
        (tmp_path / "monday.csv").write_text(text)
    models = {**model_table(), "my-model": model_table()["llama-3.1-8b"]}  # the reader's own
    for raw in map(yaml.safe_load, blocks(page, "yaml")):
        if "experiments" in raw:
            assert experiments_from_mapping(raw, page.name, files_beside(tmp_path / page.name), models)
        else:
            config_from(raw, page.name)
    for text in blocks(page, "json"):
        (tmp_path / "case.json").write_text(text)
        assert read_case(tmp_path / "case.json").linear


@pytest.mark.parametrize(
    ("page", "rows"),
    [
        ("README.md", ("in sample: the shipped champion", "without each model on each GPU")),
        ("docs/results.md", ("champion in sample, all", "without a model on a GPU")),
    ],
)
def test_the_champions_figures_are_those_of_its_record(page: str, rows: tuple[str, ...]) -> None:
    """In sample by its record, held out by its validations, none of which is left out."""
    errors = json.loads((ROOT / "seeds" / "champion.json").read_text())["errors_pct"].values()
    calls = (ROOT / "seeds" / "champion" / "validate.jsonl").read_text().splitlines()
    validated = [json.loads(call)["mean_abs_error_pct"]["cells"] for call in calls]
    known = {name: [abs(e[name]) for e in errors if e[name] is not None] for name in ("e2e", "ttft", "itl")}
    in_sample = {name: sum(of_runs) / len(of_runs) for name, of_runs in known.items()}
    lines = [line for line in (ROOT / page).read_text("utf-8").splitlines() if line.startswith("|")]
    for row, found in zip(rows, (in_sample, *validated), strict=True):
        line = next(line for line in lines if row in line)
        shown = [float(cell.strip(" *")) for cell in line.strip("| ").split("|")[-3:]]
        assert shown == pytest.approx([found[name] for name in ("e2e", "ttft", "itl")], abs=0.1), row
