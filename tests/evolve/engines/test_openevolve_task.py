"""OpenEvolve's own controller, as released, evolves programs on our evaluator against a scripted server."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from console import wait_until
from engine_answers import COUNT, START, answers, scripted
from llm_runs import DATA, environment
from llm_server import Server
from openevolve.config import load_config as load_openevolve_config
from tiny_world import BRIEF, ONE, write

from archive.elite import Elite
from evolve import processes
from evolve.cli import run_command
from evolve.engines.openevolve import evaluate_with
from evolve.run.checkpoint import is_checkpoint
from evolve.run.config_file import load_config
from evolve.run.folder import open_run
from evolve.search.llm.setup import task_of


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A task on two runs, which starts from a poor program."""
    folder = tmp_path_factory.mktemp("engine")
    (folder / "data.yaml").write_text(DATA)
    (folder / "start.py").write_text(START)
    args = [
        "--to",
        "openevolve-task",
        "--config",
        "datasheet",
        "--experiments",
        folder / "data.yaml",
        "--out",
        folder / "task",
    ]
    assert run_command(["export", *map(str, (folder / "start.py", *args))]) == 0
    return folder / "task"


def searched(task: Path, program: Path, out: Path) -> Elite:
    """The program as a search with the same settings scores it, in a worker process."""
    args = ["--config", task / "search.yaml", "--start", program, "--only-start", "--budget", 1, "--workers", 1]
    assert run_command([str(arg) for arg in ("run", *args, "--out", out, "--quiet")]) == 0
    elite = open_run(out).outcomes()[0].elite
    assert elite
    return elite


def evaluated(task: Path, folder: Path, text: str) -> Any:
    """The result of `evaluate` for a text."""
    (folder / "program.py").write_text(text)
    return evaluate_with(task / "search.yaml")(str(folder / "program.py"))


def test_the_figures_are_those_of_a_search(task: Path, tmp_path: Path) -> None:
    result = evaluated(task, tmp_path, START)
    elite = searched(task, task / "initial_program.py", tmp_path / "run")
    assert elite.group_out and elite.consistent
    assert result.metrics["combined_score"] == 1 / (1 + elite.group_out)
    assert result.metrics["group_out"] == elite.group_out and result.metrics["mean_error"] == elite.mean_error
    assert result.metrics["operations"] == elite.operations
    assert result.artifacts["errors on runs left out"] == "\n".join(f"{n}: {x:.2f} %" for n, x in elite.cells)
    assert "D1 chat" in result.artifacts["diagnosis"]


def test_bad_programs_have_a_complaint_and_the_lowest_score(task: Path, tmp_path: Path) -> None:
    bad = [(text, says) for text, says in answers(tmp_path / "mark") if says]
    assert len(bad) == 6
    for text, says in bad:
        result = evaluated(task, tmp_path, text)
        assert set(result.artifacts) == {"complaint"} and result.artifacts["complaint"].startswith(says)
        assert result.metrics == {"combined_score": 0.0, "operations": 0.0, "features_in_grid": 0.0}
    assert not (tmp_path / "mark").exists()


def test_what_contradicts_a_datasheet_scores_less_than_anything_consistent(task: Path, tmp_path: Path) -> None:
    result = evaluated(task, tmp_path, "def step_time(b, s, *, floor: us = 4000.0):\n    return floor\n")
    assert result.metrics["consistent"] == 0.0
    assert 0.0 < result.metrics["combined_score"] < 1 / (1 + 1000)  # elites without a leave-group-out error have that


def test_of_a_single_run_the_mean_error_counts(tmp_path: Path) -> None:
    result = evaluated(write(tmp_path, ONE, **BRIEF).rename(tmp_path / "search.yaml").parent, tmp_path, START)
    assert "group_out" not in result.metrics
    assert result.metrics["combined_score"] == 1 / (1 + result.metrics["mean_error"])


def test_openevolve_reads_its_settings(task: Path) -> None:
    config, ours = load_openevolve_config(task / "config.yaml"), load_config(str(task / "search.yaml"))
    assert config.prompt.system_message == task_of(ours) + "\n"
    assert "# What is refused" in config.prompt.system_message and "### Proposal" not in config.prompt.system_message
    assert config.database.feature_bins == {"operations": 10, "features_in_grid": 5}  # of our grid, by default
    assert not config.diff_based_evolution and config.llm.api_key is None


def openevolve_run(task: Path, out: Path, server: Server) -> subprocess.CompletedProcess[str]:
    """`openevolve-run` as a user types it, in a session of its own and with no settings of ours, to its end."""
    files = [task / "initial_program.py", task / "evaluate.py", "--config", task / "config.yaml", "--output", out]
    command = [Path(sys.executable).with_name("openevolve-run"), *files, "--iterations", COUNT]
    command += ["--primary-model", "mine", "--api-base", server.url]
    words, ours = [str(word) for word in command], processes.settings()
    plain = {name: value for name, value in environment().items() if name not in ours}
    process = subprocess.Popen(
        words, env=plain, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )
    printed, _ = process.communicate(timeout=300)
    wait_until(lambda: not in_session(process.pid), 30, lambda: f"left: {in_session(process.pid)}")
    return subprocess.CompletedProcess(words, process.returncode, printed)


def in_session(leader: int) -> list[int]:
    """The processes of a session."""
    pids = [int(p.name) for p in Path("/proc").iterdir() if p.name.isdigit()]
    return [pid for pid in pids if session_of(pid) == leader]


def session_of(pid: int) -> int | None:
    try:
        return os.getsid(pid)
    except ProcessLookupError:
        return None


def test_twenty_iterations_of_openevolve(task: Path, tmp_path: Path) -> None:
    settings = yaml.safe_load((task / "config.yaml").read_text())
    settings["evaluator"]["parallel_evaluations"] = 1
    settings["evolution_trace"] = {"enabled": True, "include_code": True}
    (task / "config.yaml").write_text(yaml.safe_dump(settings))
    with Server(scripted(tmp_path / "mark")) as server:
        done = openevolve_run(task, tmp_path / "out", server)
    assert done.returncode == 0, done.stdout
    assert len(server.seen) == COUNT and not (tmp_path / "mark").exists()
    assert server.seen[0].messages[0]["content"] == settings["prompt"]["system_message"]
    assert "errors on runs left out" in server.seen[0].messages[1]["content"]

    # the score of every answer, whatever its parent was; that of the best one is what the search calls its error
    expected = {text.strip(): evaluated(task, tmp_path, text) for text, _ in answers(tmp_path / "mark")}
    best = tmp_path / "out" / "best"
    metrics = json.loads((best / "best_program_info.json").read_text())["metrics"]
    assert metrics == max((result.metrics for result in expected.values()), key=lambda m: m["combined_score"])
    assert metrics["combined_score"] > 2 * evaluated(task, tmp_path, START).metrics["combined_score"]
    elite = searched(task, best / "best_program.py", tmp_path / "run")
    assert elite.group_out and metrics["combined_score"] == 1 / (1 + elite.group_out)

    assert is_checkpoint(tmp_path / "out" / "checkpoints" / f"checkpoint_{COUNT}")
    # OpenEvolve traces what came of members that it still has
    traced = [json.loads(line) for line in (tmp_path / "out" / "evolution_trace.jsonl").read_text().splitlines()]
    assert len(traced) > COUNT / 2
    for child in traced:
        result = expected[child["child_code"].strip()]
        assert (child["child_metrics"], child["artifacts"]) == (result.metrics, result.artifacts)
    assert done.stdout.count("combined_score=0.0000") == 2 * sum(bool(says) for _, says in answers(tmp_path))
