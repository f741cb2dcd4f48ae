"""`import evolve`: its names, how light it is, and that it computes what the command line computes."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest
import tiny_world
import yaml
from paths import ROOT

import evolve
from evolve.cli import run_command


def python(code: str, cwd: Path, timeout_s: float = 120) -> str:
    """The output of this code in a fresh interpreter."""
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=cwd, timeout=timeout_s, check=False
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_type_checkers_see_the_names_that_there_are() -> None:
    stub = ast.parse((ROOT / "evolve" / "__init__.pyi").read_text())
    seen = {
        alias.asname or alias.name for node in stub.body if isinstance(node, ast.ImportFrom) for alias in node.names
    }
    assert seen == set(evolve.__all__) <= set(dir(evolve))
    for node in stub.body:
        if isinstance(node, ast.ImportFrom):
            for alias in node.names:
                module = sys.modules.get(node.module or "") or __import__(node.module or "", fromlist=[alias.name])
                if alias.name != "search":  # which is a package too
                    assert getattr(evolve, alias.name) is getattr(module, alias.name)
    assert (ROOT / "evolve" / "py.typed").is_file()


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'evolve' has no attribute 'serach'"):
        getattr(evolve, "serach")  # noqa: B009


def test_import_loads_nothing_but_the_standard_library() -> None:
    code = "import sys\nbefore = set(sys.modules)\nimport evolve\nprint(sorted(set(sys.modules) - before))"
    assert ast.literal_eval(python(code, ROOT)) == ["evolve"]


@pytest.mark.parametrize(
    "imports",
    [
        "import evolve\nevolve.load_run\nimport evolve.search.search",
        "from evolve.search.search import Search\nimport evolve",
        "import evolve\nfirst = evolve.search\nimport evolve.search\nassert first is evolve.search",
    ],
)
def test_search_is_a_function_and_a_package_in_any_order_of_imports(imports: str) -> None:
    code = f"""
{imports}
try:
    evolve.search("no-such-config")
except evolve.InputError as e:
    print(e)
import evolve.search.run
print(evolve.search.run.work.__module__)
"""
    lines = python(code, ROOT).splitlines()
    assert lines[0].startswith("no-such-config: cannot be read") and lines[1] == "evolve.search.run"


def unprepared() -> dict[str, str]:
    """The environment of a user's shell: without what `processes.settle` has set in this one."""
    return {name: value for name, value in os.environ.items() if not name.endswith(("_NUM_THREADS", "_CORETYPE"))}


@pytest.fixture(scope="module")
def by_command(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of the command line with its own process, of programs that CMA-ES polishes too."""
    folder = tmp_path_factory.mktemp("by-command")
    brief = {"budget": 16, "search": {"finalists": 1}, "score": {"physics": False}}
    config = yaml.safe_load(tiny.read_text()) | brief
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    args = ["run", "--config", str(folder / "config.yaml"), "--workers", "1", "--quiet", "--out", str(folder / "run")]
    subprocess.run([sys.executable, "-m", "evolve", *args], capture_output=True, cwd=ROOT, check=True, env=unprepared())
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("first, workers", [("evolve", 2), ("numpy, pandas, evolve", 1)])
def test_a_search_gives_the_same_archive_as_the_command_line(
    first: str, workers: int, by_command: Path, tmp_path: Path
) -> None:
    """Whatever was imported first, for any number of workers, and in a script that does not guard its main part."""
    script = tmp_path / "script.py"
    script.write_text(f"""
import {first}
config = {str(by_command / "config.yaml")!r}
print(evolve.search(config, workers={workers}, out={str(tmp_path / "run")!r}).champion.text)
""")
    command = [sys.executable, script]
    result = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False, env=unprepared())
    assert (result.returncode, result.stderr) == (0, "")
    assert (tmp_path / "run" / "journal.jsonl").read_bytes() == (by_command / "run" / "journal.jsonl").read_bytes()
    champion = evolve.load_run(by_command / "run").champion
    assert champion and result.stdout == champion.text + "\n"


def test_a_mapping_and_overrides_are_as_in_the_file(tiny: Path, tiny_run: Path, tmp_path: Path) -> None:
    config = yaml.safe_load(tiny.read_text())
    run = evolve.search(config | {"budget": 7}, budget=30, seed=0, workers=1, out=tmp_path / "run")
    assert (run.path / "journal.jsonl").read_bytes() == (tiny_run / "journal.jsonl").read_bytes()


@pytest.mark.parametrize(
    "config, options, message",
    [
        ({"budgget": 3}, {}, "config: unknown key budgget: did you mean 'budget'?"),
        ({}, {"budget": 0}, "config: budget must be > 0, got 0: give a positive number"),
        ({"search": {"start": ("a.py",)}}, {}, "config: search.start must be a list of names"),
        ({}, {"start": "no-such.py"}, "no-such.py: cannot be read"),
        ({}, {"start": evolve.Program("def step_time(b, s): return s.weights_us")}, "text: no file has this text"),
    ],
)
def test_wrong_settings_are_one_line(
    config: dict[str, object], options: dict[str, object], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(evolve.InputError, match=message.replace("(", r"\(")) as caught:
        evolve.search(config, out=tmp_path / "run", **options)  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "run").exists()


def test_programs_to_start_from_are_found_from_another_folder(
    tiny: Path, tiny_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    text = "def step_time(b, s, *, each: us/request = 100.0): return s.weights_us + each * b.decode_reqs\n"
    (tmp_path / "mine.py").write_text(text)
    champion = evolve.load_run(tiny_run).champion
    assert champion
    run = evolve.search(tiny, ["mine.py", champion], budget=11, workers=1, out="run")
    started = yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())["search"]["start"]
    assert started == [str(tmp_path / "mine.py"), champion.name]
    assert {"seed:mine", f"seed:{champion.name.rpartition('/')[2].replace(':', '-')}"} <= set(run.programs["operator"])


def test_an_interrupted_search_is_resumed_as_if_nothing_had_happened(
    tiny: Path, tiny_run: Path, tmp_path: Path
) -> None:
    def stop(progress: evolve.Progress) -> None:
        assert progress.run == tmp_path / "run" and progress.budget == 30
        if progress.candidates == 12:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt) as caught:
        evolve.search(tiny, budget=30, workers=1, out=tmp_path / "run", on_progress=stop)
    assert caught.value.__notes__ == [f"nothing is lost: evolve.resume({str(tmp_path / 'run')!r}) goes on"]
    assert len(evolve.load_run(tmp_path / "run").programs) == 12  # what there is can be looked at
    seen: list[evolve.Progress] = []
    run = evolve.resume(tmp_path / "run", workers=1, on_progress=seen.append)
    assert [p.candidates for p in seen][-1] == 30 and min(p.candidates for p in seen) >= 12
    assert (run.path / "journal.jsonl").read_bytes() == (tiny_run / "journal.jsonl").read_bytes()
    champion = json.loads((run.path / "report.json").read_text())["champion"]
    assert (seen[-1].mean_error_pct, seen[-1].group_out_pct) == (champion["mean_error"], champion["group_out"])


@pytest.mark.slow
def test_workers_can_be_started_in_a_thread(tiny: Path, tiny_run: Path, tmp_path: Path) -> None:
    runs: list[evolve.Run] = []

    def search() -> None:
        runs.append(evolve.search(tiny, budget=30, workers=2, out=tmp_path / "run"))

    thread = threading.Thread(target=search)
    thread.start()
    thread.join(120)
    assert (runs[0].path / "journal.jsonl").read_bytes() == (tiny_run / "journal.jsonl").read_bytes()


def test_a_fit_has_the_figures_of_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = tmp_path / "data.yaml"
    data.write_text(tiny_world.DATA)
    out = tmp_path / "by-command.py"
    assert run_command(["fit", "floor", "--experiments", str(data), "--out", str(out), "--json"]) == 0
    expected = json.loads(capsys.readouterr().out)
    fit = evolve.fit("floor", data)
    assert fit.program.text.strip() == expected["program"].strip() and fit.left_out == tuple(expected["left_out"])
    for row, constant in zip(fit.constants.to_dict("records"), expected["constants"], strict=True):
        for name, value in constant.items():
            assert row[name] == value if value is not None else pd.isna(row[name]), name
    assert any(fit.constants["correlated"])
    for row, after, before in zip(fit.errors.to_dict("records"), expected["after"], expected["before"], strict=True):
        assert row["experiment"] == after["experiment"]
        assert [row[f"{x}_error_pct"] for x in ("e2e", "ttft", "itl")] == [after[x] for x in ("e2e", "ttft", "itl")]
        assert row["before_e2e_error_pct"] == before["e2e"]
    assert fit.program == evolve.Program("floor") and fit.program.name == "floor, fitted"
    assert evolve.predict(fit.program, data).equals(evolve.predict(out, data))


def test_a_fit_to_a_file_keeps_the_intervals(tmp_path: Path) -> None:
    data = tmp_path / "data.yaml"
    data.write_text(tiny_world.DATA)
    fit = evolve.fit("champion", data, only=["alpha"], out=tmp_path / "mine.py")
    assert fit.program.name == str(tmp_path / "mine.py")
    assert evolve.predict(fit.program, data)["e2e_mean_80_low_ms"].notna().all()


def test_experiments_are_files_values_or_bundled(tmp_path: Path) -> None:
    data = tmp_path / "data.yaml"
    data.write_text(tiny_world.DATA)
    mine = evolve.load_experiments(data)
    assert len(evolve.load_experiments()) == 24  # the runs that the project ships
    assert evolve.load_experiments([str(data), evolve.load_experiments()[0]])[:4] == mine
    assert list(evolve.predict("linear", mine[1:3])["experiment"]) == ["dense-code", "sparse-chat"]
    calls: dict[str, Callable[[], object]] = {
        "duplicate experiment id 'dense-chat'": lambda: evolve.load_experiments([data, mine[0]]),
        "seeds: 0: must be a whole number from 1 to 100": lambda: evolve.predict("linear", mine, seeds=0),
        r"seeds: \[1, 2\]: must be a whole": lambda: evolve.predict("linear", mine, seeds=[1, 2]),  # type: ignore[arg-type]
        "experiments: there are none: give files": lambda: evolve.predict("linear", []),
        "experiments: .*x.* is no experiment": lambda: evolve.predict("linear", [{"id": "x"}]),  # type: ignore[list-item]
        "only: alfa: no such constant": lambda: evolve.fit("linear", mine, only="alfa"),
        "method: 'best': is not a method": lambda: evolve.fit("linear", mine, method="best"),
    }
    for message, call in calls.items():
        with pytest.raises(evolve.InputError, match=message):
            call()


def test_a_validation_has_the_rows_of_its_json(tiny_run: Path, tmp_path: Path) -> None:
    run = tiny_world.copy(tiny_run, tmp_path)
    args = ["validate", str(run), "--folds", "workloads", "--budget", "9", "--workers", "1", "--quiet"]
    assert run_command(args) == 0
    expected = json.loads((run / "validate.json").read_text())
    frame = evolve.load_run(run).validation
    assert len(frame) == len(expected["rows"]) == len(tiny_world.FITTED)
    for got, row in zip(frame.to_dict("records"), expected["rows"], strict=True):
        for name in ("kind", "fold", "experiment", "model", "workload", "tp", "moe", "champion", "outside"):
            assert got[name] == row[name]
        known = {f"baseline_{answer.replace(' ', '_')}": errors for answer, errors in row["baselines"].items()}
        for prefix, errors in {"": {x: row[x] for x in ("e2e", "ttft", "itl", "e2e_p99_later")}, **known}.items():
            for name, value in errors.items():
                cell = got[f"{prefix}_{name}_error_pct".lstrip("_")]
                assert cell == value if value is not None else pd.isna(cell)
    (run / "validate.json").write_text(json.dumps(expected | {"rows": [{"kind": "workloads"}]}))
    with pytest.raises(evolve.InputError, match=r"cannot read .*validate\.json: .*Restore it from a copy"):
        _ = evolve.load_run(run).validation


def test_a_report_that_the_search_has_passed_is_not_believed(tiny_run: Path, tmp_path: Path) -> None:
    """As after `evolve resume` with a larger budget was interrupted: the errors are computed instead."""
    run = tiny_world.copy(tiny_run, tmp_path)
    report = json.loads((run / "report.json").read_text())
    changed = report | {"proposals": report["proposals"] - 1, "errors": [], "champion": None}
    (run / "report.json").write_text(json.dumps(changed))
    old, new = evolve.load_run(tiny_run), evolve.load_run(run)
    assert new.champion == old.champion and new.errors.equals(old.errors) and new.programs.equals(old.programs)


def test_experiments_that_have_changed_are_refused(tiny: Path, tiny_run: Path, tmp_path: Path) -> None:
    """The report is still there, but nothing can be predicted."""
    run = tiny_world.copy(tiny_run, tmp_path)
    config = (run / "config.yaml").read_text()
    (tmp_path / "data.yaml").write_text((tiny.parent / "data.yaml").read_text().replace("330.2", "333.3"))
    (run / "config.yaml").write_text(config.replace(str(tiny.parent), str(tmp_path)))
    loaded = evolve.load_run(run)
    assert len(loaded.errors) == 4
    with pytest.raises(evolve.InputError, match="made on data"):
        _ = loaded.stages
