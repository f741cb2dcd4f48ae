"""Worker processes that die, keep dying, or are stopped."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import tiny_world
from pool_tasks import dies, dies_once, prepare, prepared, prepared_after, refuses
from tiny_world import BRIEF, ONE

from evolve.cli import run_command
from evolve.processes import WorkStopped
from evolve.report.progress import Line
from evolve.search import pool as pool_module
from evolve.search import run as run_module
from evolve.search.pool import Pool


@pytest.fixture
def pool() -> Iterator[Pool]:
    pool = Pool(2, prepare, (7,), Line())
    yield pool
    pool.close()
    for _ in range(1000):  # the executor's thread may be the one that takes note of the end
        if not multiprocessing.active_children():
            return
        time.sleep(0.01)
    pytest.fail("a process is left")


def test_a_process_that_dies_is_replaced_and_its_tasks_are_done_again(
    pool: Pool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = [pool.submit(prepared, i) for i in range(3)]
    killed = pool.submit(dies_once, str(tmp_path / "marker"))
    after = [pool.submit(prepared_after, str(tmp_path / "marker"), i) for i in range(3, 6)]
    assert [task.result() for task in (*before, *after)] == [0, 7, 14, 21, 28, 35]  # prepared like the first
    assert killed.result() == killed.result() == "done"
    assert capsys.readouterr().err.count("a worker process died") == 1


def test_a_task_that_kills_every_process_stops_the_work(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool_module, "DEATHS", 1)
    task = pool.submit(dies)
    with pytest.raises(WorkStopped, match=r"died 2 times in a row .*: use fewer --workers"):
        task.result()


def test_deaths_with_an_answer_between_them_stop_nothing(
    pool: Pool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool_module, "DEATHS", 1)
    for name in ("one", "two"):
        assert pool.submit(dies_once, str(tmp_path / name)).result() == "done"


def test_an_exception_of_a_task_is_raised_where_it_is_waited_for(pool: Pool) -> None:
    with pytest.raises(ValueError, match="no"):
        pool.submit(refuses).result()
    assert pool.submit(prepared, 1).result() == 7


def test_a_stopped_process_is_named(
    pool: Pool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pool.submit(prepared, 1).result()
    workers = multiprocessing.active_children()
    for process in workers:
        assert process.pid
        os.kill(process.pid, signal.SIGSTOP)
    task = pool.submit(prepared, 2)
    assert not task.ready(0.01)
    assert capsys.readouterr().err == ""  # it has not been long
    monkeypatch.setattr(pool_module, "SILENT_S", 0.0)
    monkeypatch.setattr("evolve.report.progress.EVERY_S", 0.0)
    pool._line.every_s = 0.0
    while f"{workers[0].pid}" not in (said := capsys.readouterr().err):
        assert not task.ready(0.1)
    assert "no answer for 0 s: stopped: process" in said and "kill -CONT" in said
    for process in workers:
        assert process.pid
        os.kill(process.pid, signal.SIGCONT)
    assert task.result() == 14


def test_a_search_whose_worker_is_killed_ends_like_any_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tiny_world.write(tmp_path, ONE, **BRIEF)
    whole = tiny_world.run(config, tmp_path / "whole", "--budget", 12)
    append, killed = run_module.Journal.append, []

    def kill_one(journal: run_module.Journal, entries: object) -> None:
        append(journal, entries)  # type: ignore[arg-type]
        if not killed:
            killed.append(multiprocessing.active_children()[0])
            killed[0].kill()

    monkeypatch.setattr(run_module.Journal, "append", kill_one)
    args = ["run", "--config", str(config), "--budget", "12", "--workers", "2", "--out", str(tmp_path / "killed")]
    assert run_command(args) == 0
    assert killed and "a worker process died (killed, or out of memory)" in capsys.readouterr().err
    assert (tmp_path / "killed" / "journal.jsonl").read_bytes() == (whole / "journal.jsonl").read_bytes()


def test_a_comparison_whose_worker_is_killed_ends_like_any_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tiny_world.write(tmp_path, ONE, **BRIEF)
    args = ["baselines", "--config", str(config), "--budget", "9", "--seeds", "1", "--only", "random,climb", "--quiet"]
    assert run_command([*args, "--workers", "1", "--out", str(tmp_path / "whole")]) == 0
    heard, killed = Pool.heard, []

    def kill_one(pool: Pool) -> None:
        heard(pool)
        if not killed and list((tmp_path / "killed").glob("*/curve.jsonl")):
            killed.append(multiprocessing.active_children()[0])
            killed[0].kill()

    monkeypatch.setattr(Pool, "heard", kill_one)
    assert run_command([*args, "--workers", "2", "--out", str(tmp_path / "killed")]) == 0
    assert killed
    for journal in (tmp_path / "whole").glob("*/journal.jsonl"):
        assert (tmp_path / "killed" / journal.parent.name / "journal.jsonl").read_bytes() == journal.read_bytes()


def test_waiting_is_not_silence(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Silence is counted from the last answer, or from the first task after it."""
    monkeypatch.setattr(pool_module, "SILENT_S", 0.05)
    pool.submit(prepared, 1).result()
    time.sleep(0.1)
    said: list[str] = []
    monkeypatch.setattr(pool._line, "update", lambda text: said.append(text()))
    pool.submit(prepared, 1)
    pool.silent()
    assert not said
