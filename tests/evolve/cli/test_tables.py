"""--csv, --parquet and --latex write the table of a command; without them pandas is not imported."""

from __future__ import annotations

import csv
import io
import json
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
import tiny_world
from commands import Capsys, evolve
from paths import ROOT

from evolve.run.program import load


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("data") / "data.yaml"
    path.write_text(tiny_world.DATA)
    return path


def rows(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


@pytest.mark.parametrize("kind", ["front", "grid"])
def test_archive_writes_what_its_json_has(kind: str, tiny_run: Path, tmp_path: Path, capsys: Capsys) -> None:
    options = [] if kind == "front" else ["--grid"]
    files = ["--csv", tmp_path / "a.csv", "--parquet", tmp_path / "a.parquet", "--latex", tmp_path / "a.tex"]
    assert evolve("archive", tiny_run, *options, *files, "--json") == 0
    expected = json.loads(capsys.readouterr().out)[kind]
    written = rows((tmp_path / "a.csv").read_text())
    assert [(int(row["id"]), float(row["mean_error_pct"])) for row in written] == [
        (e["id"], e["mean_error"]) for e in expected
    ]
    assert [row["text"] for row in written] == [e["text"] for e in expected]
    parquet = pd.read_parquet(tmp_path / "a.parquet")
    assert [list(ids) for ids in parquet["parents"]] == [e["parents"] for e in expected]
    assert list(parquet["complexity"]) == [e["operations"] + e["constants"] for e in expected]
    latex = (tmp_path / "a.tex").read_text()
    assert latex.startswith("\\begin{tabular}") and latex.count(r" \\") == len(expected) + 1
    assert r"mean error (\%)" in latex and "def step_time" not in latex
    assert (
        latex.count("& yes") + latex.count("& no ") == len(expected) and "True" not in latex
    )  # sound, and nothing else


def test_a_table_on_standard_output_is_all_that_is_printed(tiny_run: Path, data: Path, capsys: Capsys) -> None:
    assert evolve("archive", tiny_run, "--csv", "-") == 0
    assert len(rows(capsys.readouterr().out)) > 1
    assert evolve("show", "champion", "--csv", "-") == 0
    names = [c.name for c in load("champion").program.functions[0].constants]
    assert [row["name"] for row in rows(capsys.readouterr().out)][: len(names)] == names
    assert evolve("predict", "linear", "--experiments", data, "--latex", "-") == 0
    out = capsys.readouterr().out
    assert out.startswith("\\begin{tabular}") and out.endswith("\\end{tabular}\n")


def test_show_writes_the_constants_of_its_json(tmp_path: Path, capsys: Capsys) -> None:
    assert evolve("show", "champion", "--parquet", tmp_path / "c.parquet", "--json") == 0
    shown = json.loads(capsys.readouterr().out)
    frame = pd.read_parquet(tmp_path / "c.parquet")
    for row, constant in zip(frame.to_dict("records"), shown["constants"], strict=True):
        for name, value in constant.items():
            assert row[name] == value or (value is None and pd.isna(row[name])), name
        sure = shown["certainty"][f"{row['method']}.{row['name']}"]
        assert row["identified"] == sure["identified"]
        assert row["standard_error"] == sure["standard_error"] or sure["standard_error"] is None


def test_validate_writes_the_rows_of_its_json(tiny_run: Path, tmp_path: Path, capsys: Capsys) -> None:
    run = tiny_world.copy(tiny_run, tmp_path)
    args = ["validate", run, "--hindsight", "--folds", "workloads,stages", "--workers", 1, "--quiet", "--json"]
    assert evolve(*args, "--csv", tmp_path / "v.csv", "--against", "linear") == 0
    expected = json.loads(capsys.readouterr().out)
    written = rows((tmp_path / "v.csv").read_text())
    assert len(written) == len(expected["rows"]) > 2

    def cell(value: object) -> str:
        return "" if value is None else str(value)

    for row, held in zip(written, expected["rows"], strict=True):
        assert row["form_chosen_with_hindsight"] == "True" and row["call"] == "1"
        about = ("kind", "fold", "experiment", "model", "workload", "tp", "moe", "champion", "observed", "outside")
        assert all(row[name] == cell(held[name]) for name in about)
        figures = [name for column in row if (name := column.removesuffix("_error_pct")) != column and name in held]
        assert {"e2e", "e2e_p99_later"} <= set(figures)
        assert all(row[f"{name}_error_pct"] == cell(held[name]) for name in figures)
        assert all(row[f"{name}_spread"] == cell(value) for name, value in held["spread"].items())
        for answer, errors in held["baselines"].items():
            prefix = f"baseline_{answer.replace(' ', '_')}"
            assert all(row[f"{prefix}_{name}_error_pct"] == cell(value) for name, value in errors.items())
        assert row["against"] == held["against"]["label"] == "linear, form refitted"
        assert row["against_e2e_error_pct"] == cell(held["against"]["e2e"])


FORMULAS = """\
version: 1
experiments:
- {id: '=HYPERLINK("x")', model: llama-2-7b, hardware: H100, workload: WORKLOAD}
- {id: '-5 & 3_%', model: llama-2-7b, hardware: H100, workload: WORKLOAD}
""".replace("WORKLOAD", "{name: chat, stages: [{rate: 1.0, duration_s: 10}], prompt_len: 30, output_len: 5}")


def test_no_text_of_a_csv_file_is_a_formula_and_none_of_latex_is_markup(tmp_path: Path, capsys: Capsys) -> None:
    (tmp_path / "f.yaml").write_text(FORMULAS)
    args = ["predict", "linear", "--experiments", tmp_path / "f.yaml", "--csv", "-", "--latex", tmp_path / "f.tex"]
    assert evolve(*args, "--parquet", tmp_path / "f.parquet") == 0
    written = rows(capsys.readouterr().out)
    assert [row["experiment"] for row in written] == ['\'=HYPERLINK("x")', "'-5 & 3_%"]
    assert all(not cell.startswith(("=", "+", "-", "@")) for row in written for cell in row.values())
    assert r"-5 \& 3\_\%" in (tmp_path / "f.tex").read_text()
    assert list(pd.read_parquet(tmp_path / "f.parquet")["experiment"]) == ['=HYPERLINK("x")', "-5 & 3_%"]


@pytest.mark.parametrize(
    "args, message",
    [
        (["--csv", "-", "--json"], "--csv and --json both go to standard output: name a file for one of them"),
        (["--csv", "-", "--latex", "-"], "--csv and --latex both go to standard output: name a file for one of them"),
        (["--parquet", "-"], "--parquet cannot write to standard output; give a file"),
        (["--csv", "no/a.csv"], "no/a.csv: cannot be written (No such file or directory): choose another --csv"),
        (["--latex", "."], ".: is a folder: --latex names a file"),
        (["--csv", "plan.xlsx"], "--csv plan.xlsx: is no spreadsheet: write --csv FILE.csv, which"),
        (["--csv", "a.csv", "--by", "proposer"], "--csv writes the front or the grid"),
        (["--csv", "a.csv", "--grid", "--pareto"], "--csv writes the front or the grid"),
    ],
)
def test_tables_that_cannot_be_written_are_refused_before_the_work(
    args: list[str], message: str, tiny_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capsys
) -> None:
    monkeypatch.chdir(tmp_path)
    assert evolve("archive", tiny_run, *args) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err.startswith(f"evolve: {message}") and captured.err.count("\n") == 1
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
@pytest.mark.parametrize("given", [["--csv"], ["--parquet"]], ids=["csv", "parquet"])
def test_pandas_is_imported_only_for_parquet(given: list[str], tiny_run: Path, tmp_path: Path) -> None:
    """Of all four commands in turn; validate is only parsed, as it has no champion to validate in this folder."""
    code = f"""
import sys
from evolve.cli import run_command
given = {given!r}
def call(*args):
    assert run_command([*args, *(x for option in given for x in (option, {str(tmp_path / "x")!r} + option.replace("--", ".")))]) in (0, 2)
call("archive", {str(tiny_run)!r})
call("show", "linear")
call("predict", "linear", "--id", "llama-2-7b-tp1-general")
call("validate", "no-such-run")
print("pandas" in sys.modules, file=sys.stderr)
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=False)
    assert result.stderr.splitlines()[-1] == str(given == ["--parquet"])
