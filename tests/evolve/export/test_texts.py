"""The single texts that `evolve export` writes: a script that runs by itself, a LaTeX snippet, a JSON document."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from random import Random

import pytest
import sympy
from drawn_programs import programs
from hypothesis import given, settings
from random_programs import OTHERS, random_program

from evolve.cli import run_command
from evolve.export import script as script_module
from evolve.export.formula import to_sympy, values
from evolve.export.script import script
from evolve.export.source import ExportSource, program_entry
from evolve.export.texts import program_snippet
from evolve.run.program import seed_names
from evolve.summary.searched import searched
from simulator.language.ir import Program
from simulator.language.measure import Caps
from simulator.language.parse import parse

SPELLED = """
for name, program in PROGRAMS.items():
    expressions, values = program()
    print([name, {m: sympy.srepr(e) for m, e in expressions.items()}, {s.name: v for s, v in values.items()}])
"""


def output(capsys: pytest.CaptureFixture[str], *args: object) -> str:
    capsys.readouterr()
    assert run_command(["export", *map(str, args)]) == 0
    return capsys.readouterr().out


def alone(text: str) -> str:
    """The output of a Python script that sees nothing of this project."""
    command = [sys.executable, "-I", "-c", text]
    return subprocess.run(command, capture_output=True, text=True, check=True, cwd="/").stdout


def reprs(program: Program) -> dict[str, str]:
    return {method: sympy.srepr(e) for method, e in to_sympy(program).items()}


def run_here(text: str) -> dict[str, tuple[dict[str, str], dict[str, float]]]:
    """For each program of a script, its expressions spelled out and the values of its constants."""
    space: dict[str, object] = {"__name__": "script"}
    exec(compile(text, "script", "exec"), space)
    made = {name: make() for name, make in space["PROGRAMS"].items()}  # type: ignore[attr-defined]
    return {
        name: ({m: sympy.srepr(e) for m, e in expressions.items()}, {s.name: x for s, x in constants.items()})
        for name, (expressions, constants) in made.items()
    }


def test_a_script_runs_by_itself_and_makes_the_same_expressions(capsys: pytest.CaptureFixture[str]) -> None:
    text = output(capsys, "champion", "--to", "sympy")
    assert "evolve" not in re.sub(r'""".*?"""', "", text, flags=re.DOTALL)
    assert set(re.findall(r"^(?:from|import) (\w+)", text, re.MULTILINE)) == {"sympy"}
    program = program_entry("champion", Caps()).program
    printed = alone(text)
    assert (
        printed.startswith("step_time = ")
        and f"{program.functions[0].constants[0].value:g}*b.kernel_gemm_us" in printed
    )
    expected = ["champion", reprs(program), {s.name: x for s, x in values(program).items()}]
    assert alone(text + SPELLED).splitlines()[-1] == str(expected)


def test_scripts_of_all_shipped_and_of_random_programs_make_the_same_expressions() -> None:
    rng = Random(5)
    entries = [program_entry(name, Caps()) for name in seed_names()]
    entries += [ExportSource(f"random {i}", random_program(rng, OTHERS)) for i in range(4)]
    made = run_here(script("all", entries))
    for entry in entries:
        assert made[entry.name] == (reprs(entry.program), {s.name: x for s, x in values(entry.program).items()})


@pytest.mark.slow
@settings(max_examples=25)
@given(programs())
def test_the_script_of_any_program_makes_the_same_expressions(program: Program) -> None:
    [made] = run_here(script("any", [ExportSource("a'b\\\n", program)])).values()
    assert made[0] == reprs(program)


def test_names_of_the_script_are_not_taken_by_a_program() -> None:
    text = (
        "def step_time(b, s, *, sympy=1.0, plain=2.0, b_tokens=3.0, b_tokens_=4.0): expressions = sympy + plain; "
        "return expressions * b.tokens + b_tokens + b_tokens_ + sqrt(expressions)"
    )
    program = parse(text)
    [made] = run_here(script("names", [ExportSource("p", program)])).values()
    assert made == (reprs(program), {"sympy": 1.0, "plain": 2.0, "b_tokens": 3.0, "b_tokens_": 4.0})


def test_text_from_a_folders_name_stays_a_text() -> None:
    made = script('"""\nimport os\n\\', [ExportSource('x"]\n', parse("def step_time(b, s): return b.tokens"))])
    assert list(run_here(made)) == ['x"]\n'] and "\nimport os" not in made


def test_a_run_exports_its_champion_first_and_then_its_front(
    tiny_run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = searched(tiny_run)
    made = run_here(output(capsys, tiny_run, "--to", "sympy"))
    champion, *others = made
    assert champion == str(found.champion.id)
    assert set(made) == {str(e.id) for e in (found.champion, *found.archive.front)} and len(others) > 2


def test_the_snippet_of_a_run_has_its_front_and_the_champions_formula(
    tiny_run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = output(capsys, tiny_run, "--to", "latex")
    found = searched(tiny_run)
    rows = re.findall(r"^(\d+) & .* \\\\$", text, re.MULTILINE)
    assert rows == [str(e.id) for e in found.archive.front_by_size()]
    assert rf"% {found.champion.id}: microseconds" in text and r"\begin{aligned}" in text
    assert_well_formed(text)


def assert_well_formed(text: str) -> None:
    bare = re.sub(r"\\[{}$&#%_\\]", "", "\n".join(line for line in text.splitlines() if not line.startswith("%")))
    assert bare.count("{") == bare.count("}") and "%" not in bare and "#" not in bare and "_" not in bare
    opened = re.findall(r"\\begin\{(\w+)\}", text)
    assert sorted(opened) == sorted(re.findall(r"\\end\{(\w+)\}", text))


@settings(max_examples=30)
@given(programs())
def test_the_snippet_of_any_program_is_well_formed(program: Program) -> None:
    assert_well_formed(program_snippet(ExportSource("100 % of {x}_y\\", program)))


def test_json_is_the_archive_with_constants_and_formulas(tiny_run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["archive", str(tiny_run), "--json"]) == 0
    archive = json.loads(capsys.readouterr().out)
    exported = json.loads(output(capsys, tiny_run, "--to", "json"))
    for elite in (*archive["front"], *archive["grid"], *exported["grid"]):
        elite.pop("text")  # exported with constants named after their terms
    texts = {elite["id"]: elite.pop("text") for elite in exported["front"]}
    assert {name: exported[name] for name in archive} == archive
    programs = exported["programs"]
    assert str(exported["champion"]) in programs
    assert {str(e["id"]) for e in (*archive["front"], *archive["grid"])} == set(programs)
    for id, text in texts.items():
        assert list(programs[str(id)]["values"].values()) == list(parse(text).theta)


def test_json_of_a_program_has_its_formula_as_one_expression(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mine = tmp_path / "mine.py"
    mine.write_text("def step_time(b, s, *, c: us = 3.0): x = c + b.weight_read_us; return x + x")
    made = json.loads(output(capsys, mine, "--to", "json"))
    assert made["values"] == {"c": 3.0}
    assert made["formulas"] == {"step_time": "c + b.weight_read_us + (c + b.weight_read_us)"}


@pytest.mark.parametrize("kind", ["sympy", "latex", "json"])
def test_a_file_has_what_would_be_printed(kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    printed = output(capsys, "floor", "--to", kind)
    said = output(capsys, "floor", "--to", kind, "--out", tmp_path / "file")
    assert re.fullmatch(rf"{tmp_path / 'file'}: \d+\.\d kB\n", said)
    assert (tmp_path / "file").read_text() == printed and printed.endswith("\n")


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["champion", "--to", "openevolve", "--out", "x"], "champion is not a run: name the folder of one"),
        (["RUN", "--to", "openevolve"], "--to openevolve: writes a folder: name it with --out"),
        (["champion", "--to", "latex", "--json"], "--json only applies together with --to openevolve"),
        (["champion", "--to", "openevolve-task"], "--to openevolve-task: writes a folder: name it with --out"),
        (["champion", "--to", "latex", "--config", "both"], "--config only applies together with --to openevolve-task"),
        (["champion", "--to", "openevolve-task", "--config", "paper18", "--out", "x"], "cannot start from champion: "),
        (["champion", "--to", "openevolve-task", "--experiments", "y", "--out", "x"], "y: cannot be read"),
        (["nowhere", "--to", "latex"], "nowhere: cannot be read"),
        (["champion", "--to", "latex", "--out", "."], ".: is a folder: --out names a file"),
        (["RUN:999999", "--to", "json"], "no such proposal"),
        (["champion"], "Missing option '--to'"),
    ],
)
def test_wrong_input_is_one_line(
    args: list[str],
    says: str,
    tiny_run: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run_command(["export", *(arg.replace("RUN", str(tiny_run)) for arg in args)]) == 2
    err = capsys.readouterr().err
    assert says in err and err.count("\n") <= (1 if "Missing" not in says else 9) and not list(tmp_path.iterdir())


def test_no_kind_of_export_needs_sympy_here() -> None:
    """A script is text, and so is LaTeX: the extra is needed where the script is run."""
    code = (
        "import sys; sys.modules['sympy'] = None\nfrom evolve.cli import run_command\n"
        "sys.exit(sum(run_command(['export', 'floor', '--to', kind]) for kind in ('sympy', 'latex', 'json')))"
    )
    root = Path(script_module.__file__).parents[2]
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=False, cwd=root).returncode == 0
