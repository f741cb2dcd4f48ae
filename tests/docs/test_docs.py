"""The documentation agrees with the code: its tables, its links, its commands, its examples and its figures."""

from __future__ import annotations

import copy
import json
import re
import shlex
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import click
import doc_tables
import pytest
import yaml
from commands import commands
from paths import ROOT

from evaluator.judge.gates import GATES
from evolve.cli import entry
from evolve.host.cases import read_case
from evolve.run.config_file import config_from
from evolve.run.program import load
from simulator.common.errors import InputError
from simulator.language.infer import check_units
from simulator.language.ir import CALLS
from simulator.language.parse import parse
from simulator.serving.bundled import bundled_experiments, hardware_table, model_table
from simulator.serving.file import experiments_from_mapping
from simulator.serving.traces.read import files_beside
from simulator.serving.workload import output_lengths
from translate_go.vectors import LIBRARY

README = ROOT / "README.md"
PAGES = [README, ROOT / "CONTRIBUTING.md", ROOT / "BENCHMARKS.md", *doc_tables.pages()]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"(?<!!)\[[^\]]+\]\(([^)\s]+)\)")
SPAN = re.compile(r"`([^`]+)`")
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)

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
    headings = (re.sub(r"[^\w\- ]", "", heading.lower()) for heading in HEADING.findall(prose(path)))
    return {heading.replace(" ", "-") for heading in headings}


@page
def test_every_link_leads_to_a_file_or_heading(page: Path) -> None:
    for target in LINK.findall(prose(page)):
        if target.startswith(("http://", "https://")):
            continue
        name, _, anchor = target.partition("#")
        file = page.parent / name if name else page
        assert file.exists(), f"{page.name}: {target} does not exist"
        assert not anchor or anchor in anchors(file), f"{page.name}: {target}: no such heading"


@pytest.mark.parametrize("page", doc_tables.pages(), ids=lambda path: path.name)
def test_the_tables_are_those_of_the_code(page: Path) -> None:
    text = page.read_text("utf-8")
    assert text == doc_tables.refreshed(text), f"{page.name}: a table differs from the code: run `make docs`"


def test_every_table_has_its_place() -> None:
    placed = [m["name"] for path in doc_tables.pages() for m in doc_tables.MARKED.finditer(path.read_text("utf-8"))]
    assert sorted(placed) == sorted(doc_tables.TABLES)


def test_a_setting_without_a_meaning_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(doc_tables.CONFIGURATION, "search.batch")
    with pytest.raises(LookupError, match=r"CONFIGURATION: search\.batch has no meaning"):
        doc_tables.configuration_table()


def without(experiment: Any, keys: list[str]) -> Any:
    """A copy of nested mappings without the key that this path leads to; `name[]` enters the first entry of a list."""
    changed = copy.deepcopy(experiment)
    inner = changed
    for key in keys[:-1]:
        inner = inner[key.removesuffix("[]")]
        inner = inner[0] if key.endswith("[]") else inner
    del inner[keys[-1]]
    return changed


@pytest.mark.parametrize("key", doc_tables.required_keys())
def test_a_key_shown_as_required_is_required(key: str) -> None:
    least = copy.deepcopy(doc_tables.LEAST)
    if "shared_prefix" in key:
        del least["workload"]["prompt_len"]
        prefix = {"groups": 1, "prompts_per_group": 1, "system_prompt_len": 10, "question_len": 10}
        least["workload"]["shared_prefix"] = prefix
    if "session" in key:
        least["workload"]["session"] = {"turns": 3, "think_time_s": 10.0}
    doc_tables.least_experiment(least)
    with pytest.raises(InputError, match="is missing"):
        doc_tables.least_experiment(without(least, key.split(".")))


def test_the_exit_statuses_are_those_of_the_command_line() -> None:
    assert sorted(doc_tables.exit_statuses()) == [0, 1, 2, 130, 141]


def test_readme_shows_the_shipped_champion() -> None:
    shipped = (ROOT / "seeds" / "champion.py").read_text("utf-8")
    functions = shipped[shipped.index("def step_time") :]
    assert functions.strip() in [block.strip() for block in blocks(README, "python")]


def test_readme_is_short_and_begins_with_the_two_commands() -> None:
    lines = README.read_text("utf-8").splitlines()
    assert len(lines) <= 130
    assert any(line.startswith("make run ") for line in lines[:25])
    assert any(line.startswith("make test ") for line in lines[:25])


def test_readme_names_every_page() -> None:
    linked = set(LINK.findall(README.read_text("utf-8")))
    assert {str(path.relative_to(ROOT)) for path in doc_tables.pages()} <= linked


def command_lines(text: str) -> Iterator[list[str]]:
    """The arguments of every `evolve` command line in a shell script, up to a pipe or redirection."""
    for line in text.replace("\\\n", " ").splitlines():
        words = shlex.split(line, comments=True)
        if words and words[0].removeprefix(".venv/bin/") == "evolve":
            end = next((i for i, word in enumerate(words) if word in ("|", ">", "&&")), len(words))
            yield words[1:end]


def parse_command(arguments: list[str]) -> None:
    """Parse a command line as `evolve` does, without executing it. Raises click.UsageError."""
    top = click.Context(entry.cli, info_name="evolve")
    name, *rest = arguments
    command = entry.cli.get_command(top, name)
    assert command, f"no such command: {name}"
    if isinstance(command, click.Group) and rest:
        sub, *rest = rest
        assert sub in command.commands, f"no such command: {name} {sub}"
        command = command.commands[sub]
    command.make_context(name, list(rest), parent=top)


@page
def test_every_command_line_in_a_code_block_parses(page: Path) -> None:
    for block in blocks(page, "sh"):
        for arguments in command_lines(block):
            try:
                parse_command(arguments)
            except click.UsageError as e:
                pytest.fail(f"{page.name}: evolve {shlex.join(arguments)}: {e.format_message()}")


def test_a_command_line_with_an_unknown_option_does_not_parse() -> None:
    with pytest.raises(click.NoSuchOption):
        parse_command(["run", "--frobnicate"])


@page
def test_every_command_and_option_named_in_the_text_exists(page: Path) -> None:
    options = {
        ctx.info_name: {o for p in command.get_params(ctx) for o in p.opts} for ctx, command in doc_tables.commands()
    }
    for span in SPAN.findall(prose(page)):
        words = span.split()
        if words[0] != "evolve" or len(words) == 1:
            continue
        name = next((name for name in (" ".join(words[1:3]), words[1]) if name in options), "")
        assert name or words[1:] == ["model"], f"{page.name}: `{span}`: no such command"
        unknown = {word for word in words[2:] if word.startswith("--")} - options.get(name, set())
        assert not unknown, f"{page.name}: `{span}`: no option {unknown}"


@pytest.mark.parametrize(("ctx", "command"), doc_tables.commands(), ids=lambda x: getattr(x, "info_name", ""))
def test_every_example_of_a_help_text_parses(ctx: click.Context, command: click.Command) -> None:
    lines = [line.strip() for line in (command.help or "").splitlines()]
    examples = [
        re.split(r" > |\s{2,}", line)[0] for line in lines if line.startswith("evolve ")
    ]  # the rest explains it
    assert examples
    for example in examples:
        parse_command(shlex.split(example)[1:])


@page
def test_every_make_target_named_exists(page: Path) -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))
    text = page.read_text("utf-8")
    named = {name for span in SPAN.findall(prose(page)) for name in re.findall(r"^make ([a-z]+)$", span)}
    named |= {name for block in FENCE.findall(text) for name in re.findall(r"^make ([a-z]+)", block[1], re.MULTILINE)}
    assert named <= targets


@page
def test_every_program_shown_is_sound(page: Path) -> None:
    for text in blocks(page, "python"):
        if "def step_time" in text:
            check_units(parse(text, page.name), page.name)


@page
def test_every_yaml_shown_is_read(page: Path, tmp_path: Path) -> None:
    if page.name == "experiments.md":
        (tmp_path / "monday.csv").write_text(next(text for text in blocks(page, "csv") if text.startswith("arrival_s")))
    for text in blocks(page, "yaml"):
        raw = yaml.safe_load(text)
        if "experiments" in raw:
            models = {**model_table(), "my-model": model_table()["llama-3.1-8b"]}  # the reader's own
            assert experiments_from_mapping(
                raw, page.name, models, hardware_table(), files_beside(tmp_path / page.name)
            )
        else:
            config_from(raw, page.name)


def test_the_case_shown_is_read(tmp_path: Path) -> None:
    (case,) = blocks(ROOT / "docs" / "host.md", "json")
    file = tmp_path / "case.json"
    file.write_text(case)
    assert read_case(file).linear


def figures(path: Path, row: str) -> list[float]:
    """The last three columns of the table row that contains this text: E2E, TTFT, ITL in percent."""
    (line,) = [line for line in path.read_text("utf-8").splitlines() if line.startswith("|") and row in line]
    cells = line.strip("| ").split("|")[-3:]
    return [float(cell.strip(" *")) for cell in cells]


def recorded() -> dict[str, list[float]]:
    """The same figures of the shipped champion's record and of its validation: `in sample`, and by kind of fold."""
    seeds = ROOT / "seeds"
    rows = json.loads((seeds / "champion.json").read_text())["errors_pct"].values()
    means = {"in sample": [sum(abs(row[name]) for row in rows) / len(rows) for name in ("e2e", "ttft", "itl")]}
    validated = json.loads((seeds / "champion" / "validate.jsonl").read_text().splitlines()[0])["mean_abs_error_pct"]
    return means | {kind: [found[name] for name in ("e2e", "ttft", "itl")] for kind, found in validated.items()}


@pytest.mark.parametrize(
    ("page", "rows"),
    [
        (
            "README.md",
            ("in sample: the shipped champion", "without each model", "without each workload", "without each TP"),
        ),
        (
            "docs/results.md",
            ("champion in sample", "repeated without a model", "**without a workload", "**without a TP"),
        ),
    ],
)
def test_the_champions_figures_are_those_of_its_record(page: str, rows: tuple[str, ...]) -> None:
    expected = recorded()
    for row, name in zip(rows, ("in sample", "models", "workloads", "tp"), strict=True):
        assert figures(ROOT / page, row) == pytest.approx(expected[name], abs=0.1), f"{page}: {row}"


@pytest.mark.parametrize(
    ("row", "constants", "name"),
    [
        ("sum of measured kernels", "none", "kernel sum"),
        ("blackbox", "one set for all models", "blackbox"),
        ("blackbox", "one set per model", "blackbox per model"),
        ("trained physics,", "one set for all models", "trained physics"),
        ("trained physics published", "none", "trained physics published"),
        ("roofline", "none", "roofline"),
        ("host roofline", "none", "host roofline"),
    ],
)
def test_the_known_answers_of_the_results_are_those_of_the_report(row: str, constants: str, name: str) -> None:
    """The table of the default run shows the errors that `evolve report champion` wrote into its page, rounded."""
    results = (ROOT / "docs" / "results.md").read_text("utf-8")
    (shown,) = re.findall(rf"^\| {row}[^|]*\|(.*)\| {constants}[^|]*\|$", results, re.MULTILINE)
    report = (ROOT / "docs" / "champion.md").read_text("utf-8")
    (line,) = re.findall(rf"^\| {name} \|[^|]*\| 20 \|(.*)\|$", report, re.MULTILINE)
    expected = [float(cell) for cell in line.split("|")[:3]]
    assert [float(cell) for cell in shown.split("|")] == pytest.approx(expected, rel=2e-3, abs=0.06)


def test_the_page_on_clusters_names_every_command_that_has_the_option() -> None:
    sentence = (ROOT / "docs" / "cluster.md").read_text().split(", and changes nothing")[0].partition("option of")[2]
    assert set(SPAN.findall(sentence)) == {
        name for name, command in commands() if any("--cluster" in p.opts for p in command.params)
    }


def test_lists_of_functions_are_those_of_the_language() -> None:
    """The functions, those of pure numbers, and those whose last bit depends on the maths library."""
    prompt = ROOT / "evolve" / "search" / "llm" / "prompts" / "task.md"
    language, host, task = (" ".join(path.read_text("utf-8").split())
                            for path in (ROOT / "docs" / "language.md", ROOT / "docs" / "host.md", prompt))  # fmt: skip
    unary = [name for name, (_, most) in CALLS.items() if most == 1]
    pure = [name for name in unary if f"{name} takes a pure number" in refused(f"{name}(b.tokens)")]
    assert f"`{' '.join(CALLS)}`" in language
    assert names_in(language, r"Each method returns `us`; (.*?) and exponents take") == set(pure)
    assert names_in(task, r"Expressions: \+ - \* /, (.*?), `x if") == set(CALLS)
    assert names_in(task, r"are pure numbers; (.*?) take pure") == set(pure)
    assert names_in(host, r"equal to the microsecond, unless a program calls (.*?) or reads") == set(LIBRARY)


def test_every_recipe_ends_with_tests_that_exist() -> None:
    recipes = (ROOT / "CONTRIBUTING.md").read_text("utf-8").split("\n## Recipes\n")[1].split("\n### ")[1:]
    for recipe in recipes:
        _, *args = shlex.split(recipe.rstrip().rsplit("\n", 1)[-1].strip("`"))
        assert args[:3] == ["-m", "pytest", "-q"] and args[-2] == "-k", recipe
        tests = "\n".join((ROOT / path).read_text("utf-8") for path in args[3:-2])
        names = re.findall(r"^def (test_\w+)", tests, re.MULTILINE)
        for words in args[-1].split(" or "):
            assert any(words in name for name in names), (recipe.split("\n")[0], words)


def test_the_glossary_names_every_gate() -> None:
    assert f"before it is scored: {', '.join(GATES)}." in (ROOT / "docs" / "glossary.md").read_text("utf-8")


def refused(expression: str) -> str:
    """The complaint about the units of an expression of the batch; "" if there is none."""
    try:
        check_units(parse(f"def step_time(b, s, *, c=1.0): return c * {expression}"), "")
    except InputError as e:
        return str(e)
    return ""


def names_in(page: str, pattern: str) -> set[str]:
    """The names of the list that the pattern marks, without a remark in brackets."""
    found = re.search(pattern, page)
    assert found, pattern
    return set(re.findall(r"\w+", re.sub(r" \(.*\)", "", found[1]))) - {"and", "or"}


def test_e2e_weighs_about_twice_where_the_itl_follows_from_it() -> None:
    """As the glossary says of the shipped runs: no other ITL was measured, and its errors are those of E2E."""
    assert "E2E weighs about twice in the joint error" in prose(ROOT / "docs" / "glossary.md")
    for e in bundled_experiments():
        observed = e.observed.summary if e.observed else None
        assert observed and observed.itl_ms.mean == pytest.approx(
            (observed.e2e_ms.mean - observed.ttft_ms.mean) / (output_lengths(e.workload).mean() - 1), rel=1e-3
        ), e.id
    record = load("champion").record
    assert record and all(abs(row.e2e - row.itl) < 0.25 for row in record.errors)  # points
