"""Whole runs of a tiny world: the same archive for any number of workers, after a kill, and for the same seed;
configurations. One run is of real measurements."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml
from commands import Capsys, as_json, evolve, printed, refused
from console import EVOLVE, kill, wait_for
from paths import ROOT
from tiny_world import BRIEF, ONE, copy, lines, run, write, written

from archive.elite import SEED
from evaluator import assess
from evaluator.fit.fit import polish
from evolve.cli import run_command
from evolve.inspect.lists import archive_json
from evolve.run.config import Config
from evolve.run.config_file import bundled_configs, config_from, load_config, to_mapping
from evolve.run.folder import open_run
from evolve.run.lock import lock
from evolve.run.program import seed_texts
from evolve.summary.result import cpu_by_stage
from evolve.summary.searched import searched
from simulator.common.errors import InputError


def journal(path: Path) -> bytes:
    return (path / "journal.jsonl").read_bytes()


def process_of(config: Path, out: Path, workers: str) -> subprocess.Popen[str]:
    """The run of `tiny_run` in a process of its own, in a process group of its own."""
    args = ["run", "--config", str(config), "--budget", "30", "--quiet", "--workers", workers, "--out", str(out)]
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen([*EVOLVE, *args], cwd=ROOT, start_new_session=True, **pipes)


@pytest.fixture
def briefly_polished(monkeypatch: pytest.MonkeyPatch) -> None:
    """Finalists are polished by a tenth of the replays. What all of them reach is in tests/evaluator/test_fit.py."""
    monkeypatch.setattr(assess, "polish", partial(polish, evaluations=30))


def test_programs_that_a_small_budget_leaves_out_are_named(tiny: Path, tmp_path: Path, capsys: Capsys) -> None:
    """A user's own programs come first. A duplicate costs nothing, so it is not sure which of them are left out."""
    mine = tmp_path / "mine.py"
    mine.write_text("def step_time(b, s, *, base: us = 5000.0): return base + b.kernel_us\n")
    words = ["run", "--config", tiny, "--budget", 7, "--start", mine, "--workers", 1, "--out", tmp_path / "r"]
    assert evolve(*words) == 0
    first = [line["operator"] for line in lines(tmp_path / "r")]
    starts = ["mine", *(name for name, _ in seed_texts())]
    assert first == [f"{SEED}{name}" for name in starts[: len(first)]]
    assert f"{len(starts)}: these may not be tried: {', '.join(starts[7:])}\n" in capsys.readouterr().err


def test_two_workers_give_the_same_journal(tiny_run: Path, tmp_path: Path) -> None:
    """From the third seed on: the first two lines are those of one worker, and a torn one."""
    keys = [line["key"] for line in lines(tiny_run) if "key" in line]
    assert len(keys) == len(set(keys)) == 30  # the budget counts distinct candidates that reach fitting
    other = copy(tiny_run, tmp_path)
    whole = journal(tiny_run).splitlines(keepends=True)
    (other / "journal.jsonl").write_bytes(b"".join(whole[:2]) + whole[2][:40])
    (other / "report.json").unlink()
    assert run_command(["resume", str(other), "--workers", "2", "--quiet"]) == 0
    assert journal(other) == journal(tiny_run)
    assert archive_json(searched(other)) == archive_json(searched(tiny_run))


def test_a_run_finds_its_data_from_any_folder_and_again_where_it_was_moved(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capsys
) -> None:
    here, there, path = tmp_path / "here", tmp_path / "there", tmp_path / "r"
    here.mkdir()
    there.mkdir()
    (here / "data.yaml").write_bytes((tiny.parent / "data.yaml").read_bytes())
    mapping = yaml.safe_load(tiny.read_text())
    mapping["data"]["files"] = ["data.yaml"]  # from the current folder
    (here / "config.yaml").write_text(yaml.safe_dump(mapping))
    monkeypatch.chdir(here)
    whole = journal(run(Path("config.yaml"), path, "--budget", 5))
    monkeypatch.chdir(there)
    resume = ["resume", path, "--quiet", "--workers", 1]
    assert evolve(*resume) == 0
    (here / "data.yaml").rename(there / "moved.yaml")
    where, said = path / "config.yaml", refused(capsys, *resume)
    assert f"{here / 'data.yaml'}: is gone" in said and f"correct its path under `data` in {where}" in said
    where.write_text(where.read_text().replace(str(here / "data.yaml"), str(there / "moved.yaml")))
    assert evolve(*resume) == 0
    assert journal(path) == whole


def test_another_seed_gives_another_search(tiny: Path, tiny_run: Path, tmp_path: Path) -> None:
    assert journal(run(tiny, tmp_path / "r", "--budget", 30, "--seed", 1)) != journal(tiny_run)


@pytest.mark.slow
@pytest.mark.parametrize("workers", ["1", "2"])
def test_killed_and_resumed_equals_uninterrupted(tiny: Path, tiny_run: Path, tmp_path: Path, workers: str) -> None:
    path = tmp_path / "killed"
    process = process_of(tiny, path, workers)
    wait_for(lambda: written(path) > 0, process)
    kill(process)
    before = journal(path)
    assert 0 < before.count(b"\n") < len(lines(tiny_run))
    with (path / "journal.jsonl").open("ab") as file:
        file.write(b'{"id":99,"torn')  # as a crash in the middle of a write would leave it
    assert run_command(["resume", str(path), "--workers", "1", "--quiet"]) == 0
    assert journal(path) == journal(tiny_run)
    reports = [json.loads((p / "report.json").read_text()) for p in (path, tiny_run)]
    for report in reports:
        del report["run"], report["cascade"]["cpu_s"]  # where it lies and what it took
    assert reports[0] == reports[1]


@pytest.mark.slow
def test_interrupt_says_how_to_go_on(tmp_path: Path) -> None:
    path = tmp_path / "interrupted"
    process = process_of(write(tmp_path, ONE, **BRIEF), path, "2")
    wait_for(lambda: written(path) > 0, process)
    os.killpg(process.pid, signal.SIGINT)  # to its workers too, as a terminal does
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert err == f"evolve: interrupted; nothing is lost: `evolve resume {path}` goes on\n"


def test_resume_of_a_finished_run_changes_nothing(
    tiny_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capsys
) -> None:
    path = copy(tiny_run, tmp_path)
    before = json.loads((path / "report.json").read_text())
    assert evolve("resume", path, "--workers", 1, "--quiet", "--json") == 0
    assert journal(path) == journal(tiny_run)
    after = json.loads((path / "report.json").read_text())
    assert json.loads(capsys.readouterr().out) == after == before | {"run": str(path)}
    monkeypatch.setattr("evolve.output.progress.EVERY_S", 0.0)  # every update is due
    assert evolve("resume", path, "--workers", 1) == 0
    assert "candidates, " not in capsys.readouterr().err  # no progress line


@pytest.mark.parametrize(
    ("name", "value", "words"), [("engine", "0.0.0", "made by engine 0.0.0"), ("data", "0" * 16, "made on data 0000")]
)
def test_resume_refuses_a_locked_run_and_another_engine_or_data(
    tiny_run: Path, tmp_path: Path, name: str, value: str, words: str, capsys: Capsys
) -> None:
    path = copy(tiny_run, tmp_path)
    with lock(path):
        assert "another process is working on this run" in refused(capsys, "resume", path, "--quiet")
    about = json.loads((path / "run.json").read_text())
    (path / "run.json").write_text(json.dumps({**about, name: value}))
    assert words in refused(capsys, "resume", path, "--quiet")


@pytest.mark.slow
def test_a_run_on_real_measurements_polishes_its_finalists_and_shows_everything(tmp_path: Path, capsys: Capsys) -> None:
    path = tmp_path / "real"
    args = ["run", "--models", "llama-2-7b", "--budget", 12, "--workers", 1, "--quiet", "--out", path]
    out = printed(capsys, *args, "-v", "--explain")
    outcomes = lines(path)
    keys = [line["key"] for line in outcomes if "key" in line]
    assert len(keys) == len(set(keys)) == 12
    searched = [line for line in outcomes if line["operator"] != "polish"]
    assert [line["id"] for line in searched] == list(range(len(searched)))
    assert len(outcomes) - len(searched) == 2 and all("key" not in line for line in outcomes[len(searched) :])
    report = json.loads((path / "report.json").read_text())
    scored = report["cascade"]["verdicts"]["scored"]
    assert f"{scored} scored (2 polished finalists among them, not fitted again)" in " ".join(out.split())
    assert (
        len(report["fitted"]) == 4 and len(report["errors"]) == 448
    )  # Llama-2-7B's clean runs; all runs of the three files
    for row in report["errors"]:
        line = next(line for line in out.splitlines() if row["experiment"] in line)
        assert ("fitted" in line) == (row["experiment"] in report["fitted"])
    for words in ("Champion", "Best seed", "Pareto front", "blackbox per model", "published", f"Run: {path}"):
        assert words in out
    assert report["champion"]["text"].strip() in out


def test_archive_show_and_list_read_the_run(tiny_run: Path, capsys: Capsys) -> None:
    report = json.loads((tiny_run / "report.json").read_text())
    best = report["champion"]["id"]
    # the lowest mean error holds a cell; the champion, the simplest that is nearly as good, need not
    holder = min(as_json(capsys, "archive", tiny_run)["grid"], key=lambda e: e["mean_error"])
    assert f"({holder['id']})" in printed(capsys, "archive", tiny_run, "--grid", "--pareto")
    assert "def step_time(" in printed(capsys, "show", f"{tiny_run}:{best}")
    listed = as_json(capsys, "list", "--runs", tiny_run.parent)
    of_report = {name: report["champion"][name] for name in ("mean_error", "e2e", "ttft", "itl", "group_out")}
    of_report |= {name: report[name] for name in ("data", "seed", "candidates")}
    of_run = {"run": str(tiny_run), "done": True, "champion": best, "fitted": len(report["fitted"]), "usd": None}
    assert listed["runs"][0] == of_run | of_report
    assert "default" in listed["configs"]
    errors = f"  {report['champion']['e2e']:.2f}  {report['champion']['ttft']:.2f}  "
    assert errors in printed(capsys, "list", "--runs", tiny_run.parent)


WITH_KEYS = ("panel", "ideas")  # configurations of language models, which need four keys


@pytest.mark.slow
@pytest.mark.parametrize("name", WITH_KEYS)
def test_judges_are_of_several_vendors_and_their_keys_are_asked_for(
    name: str, tmp_path: Path, capsys: Capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    panel = load_config(name)
    vendors = {name.split("/")[0] for name in (*panel.llm.models, *panel.llm.judges)}
    assert len(panel.llm.judges) == 3 and len(vendors) == 4
    assert panel.search.generations == 10 and panel.llm.notes_every == 1
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    said = refused(capsys, "run", "--config", name, "--out", tmp_path / "run")
    assert "Set OPENAI_API_KEY for openai/gpt-5.4-mini" in said and not (tmp_path / "run").exists()


@pytest.mark.usefixtures("briefly_polished")
@pytest.mark.parametrize("name", [name for name in bundled_configs() if name not in WITH_KEYS])
def test_every_configuration_runs(name: str, tiny: Path, tmp_path: Path, capsys: Capsys) -> None:
    path = run(Path(name), tmp_path / name, "--experiments", tiny.parent / "data.yaml", "--budget", 9, "--json")
    assert json.loads(capsys.readouterr().out)["candidates"] == 9
    assert open_run(path).config.caps == load_config(name).caps and open_run(path).config.name == name


def test_the_original_settings_are_those_of_the_proposal() -> None:
    config = load_config("seed")
    assert (config.caps.operations, config.caps.conditionals, config.caps.constants) == (30, 3, 10)
    assert (config.search.operation_bins, config.search.feature_bins, config.search.batch) == (10, 5, 8)
    assert (config.search.generations, config.search.patience, config.search.patience_gain) == (1000, 200, 0.005)
    assert (config.search.selection, config.score.moe_weight, config.score.within) == ("lexicographic", 2.0, 0.05)


def test_a_configuration_without_a_name_has_that_of_its_file(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    for text, name in (("budget: 7\n", "mine"), ("name: other\nbudget: 7\n", "other")):
        path.write_text(text)
        config = replace(Config(), name=name, budget=7)
        assert load_config(str(path)) == config == config_from(to_mapping(config), "x")


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        ({"bugdet": 5}, "unknown key bugdet: did you mean 'budget'?"),
        ({"patience": 5}, "unknown key patience: write `search: {patience: ...}`"),
        ({"search.patience": 5}, "unknown key search.patience: write `search: {patience: ...}`"),
        ({"search": {"budget": 5}}, "unknown key search.budget: write `budget: ...` at the top"),
        ({"data": {"patience": 5}}, "unknown key data.patience: write `search: {patience: ...}`"),
        ({"data": {"search": {}}}, "unknown key data.search: write `search: ...` at the top"),
        ({"data": {"files": "mine.yaml"}}, "data.files must be a list of names, got 'mine.yaml'"),
        ({"search": {"selection": "best"}}, "search.selection must be one of nsga2, lexicographic"),
        ({"search": {"fit": "newton"}}, "search.fit must be one of auto, linear, lbfgsb, neldermead, cma"),
        ({"budget": "many"}, "budget must be a whole number, got 'many'"),
        ({"budget": 0}, "budget must be > 0, got 0"),
        ({"search": {"islands": 3_000_000}}, "search.islands must be at most 1000, got 3000000"),
        ({"search": {"prune_above": 0.9}}, "search.prune_above must be 0 or at least 1, got 0.9"),
        ({"score": {"moe_weight": True}}, "score.moe_weight must be a number, got true"),
        ([], "the file must be a mapping of settings, got list"),
    ],
)
def test_bad_configurations_are_one_line(raw: object, words: str) -> None:
    with pytest.raises(InputError) as e:
        config_from(raw, "c.yaml")
    assert str(e.value).startswith(f"c.yaml: {words}") and "\n" not in str(e.value)


def test_stops_early_when_nothing_improves(tmp_path: Path, capsys: Capsys) -> None:
    search = "{patience: 3, patience_gain: 0.9, islands: 1, finalists: 0}"
    run(write(tmp_path, ONE, search=search), tmp_path / "r", "--budget", 500, "--json")
    report = json.loads(capsys.readouterr().out)
    assert report["candidates"] < 60
    assert " not 90 % lower than 3 generations before (search.patience)" in report["ended"]
    assert f"| ended | {report['ended']} |" in (tmp_path / "r" / "summary.md").read_text()


MINE = """
version: 1
experiments:
- id: mine
  model: llama-2-7b
  hardware: H100
  workload: {name: chat, stages: [{rate: 4.0, duration_s: 60}], prompt_len: 300, output_len: 50}
  observed: {summary: {e2e_ms: {mean: 450.0}}}
"""


def test_a_run_on_my_own_measurements_needs_no_more_than_a_mean(tmp_path: Path, capsys: Capsys) -> None:
    mine, path = tmp_path / "mine.yaml", tmp_path / "r"
    mine.write_text(MINE.replace("{e2e_ms: {mean: 450.0}}", "{}"))
    assert "nothing to fit" in refused(capsys, "run", "--experiments", mine, "--out", path) and not path.exists()
    mine.write_text(MINE)
    args = ["run", "--experiments", mine, "--budget", 12, "--workers", 1, "--quiet", "--out", path]
    report = as_json(capsys, *args)
    assert report["fitted"] == ["mine"]
    assert report["champion"]["ttft"] is None and abs(report["champion"]["e2e"]) < 5.0
    assert "mine" in printed(capsys, "resume", path, "--workers", 1, "--quiet")


def test_the_cpu_time_of_a_killed_session_counts(tiny_run: Path, tmp_path: Path) -> None:
    """The first session took 60 s for two proposals and wrote no report; the second took 20 s for the third."""
    run = open_run(copy(tiny_run, tmp_path))
    (run.path / "cpu.csv").write_text("proposal,cpu_s\n0,40\n1,20\n2,20\n")
    for stages, earlier in (
        ({"fit": 15.0, "score": 5.0}, {"before it was resumed": 60.0}),
        ({"fit": 60.0, "s": 20.0}, {}),
    ):
        assert cpu_by_stage(run.path, stages) == stages | earlier
