"""Worker processes that die, hang, keep dying, or are stopped; and what they are asked first."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pool_tasks
import pytest
import tiny_world
from commands import Capsys
from console import wait_until
from paths import ROOT
from pool_tasks import counts, dies, dies_once, full, hangs, pid, prepare, refuses, times
from tiny_world import BRIEF, ONE
from worker_pids import worker_pids

from archive.proposal import TIMEOUT, Proposal, Rejected
from evaluator.assess import NO_LIMITS
from evolve.cli import run_command
from evolve.output.progress import Line
from evolve.processes import WorkStopped
from evolve.run.config_file import load_config
from evolve.run.data import chosen
from evolve.search import run as run_module
from evolve.search.assessor import Admitted, Live
from evolve.search.pool import pool as pool_module
from evolve.search.pool.local import Here, LocalPool, local
from evolve.search.pool.pool import Closed, Pool
from evolve.search.pool.process import MOST_KEPT, TookTooLong, WorkerCall, parcel
from evolve.search.workers import workers_of
from simulator.common.errors import InputError

SEVEN = parcel(prepare, 7)


def seven(pool: Pool, number: int, **more: Any) -> Any:
    """The task of seven times the number."""
    return pool.submit(WorkerCall(times, (number,), parcel=SEVEN, **more))


@pytest.fixture(params=[1, 2])
def pool(request: pytest.FixtureRequest) -> Iterator[Pool]:
    """A pool of one worker process, and one of two."""
    pool = LocalPool(request.param, Line())
    yield pool
    pool.close()
    assert not worker_pids()


def test_a_process_prepares_once_for_all_calls_and_keeps_the_latest_values_only(pool: Pool) -> None:
    tasks = [seven(pool, i) for i in range(5)]
    tasks += [pool.submit(WorkerCall(times, (i,), parcel=parcel(prepare, 1000))) for i in range(5)]
    assert [task.result() for task in tasks] == [0, 7, 14, 21, 28, 0, 1000, 2000, 3000, 4000]
    numbers = [*range(2 * MOST_KEPT + 3), 0, 1, 2 * MOST_KEPT + 2]
    tasks = [pool.submit(WorkerCall(times, (1,), parcel=parcel(prepare, number))) for number in numbers]
    assert [task.result() for task in tasks] == numbers


def test_this_process_does_the_same() -> None:
    pool, heard = Here(Line()), list[int]()
    assert seven(pool, 3).result() == 21
    assert pool.submit(WorkerCall(counts, (3,), streams=True), 0, heard.append).result() == 3
    assert heard == [0, 1, 2] and pool.submit(WorkerCall(pid)).result() == os.getpid()
    with pytest.raises(ValueError, match="no"):
        pool.submit(WorkerCall(refuses)).result()
    assert local(1, Line()).here  # a single worker is this process
    with pytest.raises(InputError, match="100000 workers: give at most 1000"):  # threads would end before
        local(100_000, Line())
    several = local(2, Line())
    assert not several.here
    several.close()


def test_a_call_reports_before_its_result_and_a_failing_listener_is_no_failing_process(pool: Pool) -> None:
    heard = list[int]()
    assert pool.submit(WorkerCall(counts, (3,), streams=True), 0, heard.append).result() == 3
    assert heard == [0, 1, 2]
    with pytest.raises(OSError, match="No space left"):
        pool.submit(WorkerCall(counts, (3,), streams=True), 0, full).result()
    assert seven(pool, 1).result() == 7


def test_the_lowest_number_comes_first(tmp_path: Path) -> None:
    path = str(tmp_path / "order")
    with closing(LocalPool(1, Line())) as pool:
        tasks = [pool.submit(WorkerCall(time.sleep, (0.3,)))]
        for number, text in ((3, "c"), (1, "a"), (2, "b"), (3, "d")):
            tasks.append(pool.submit(WorkerCall(pool_tasks.writes, (path, text)), number))
        for task in tasks:
            task.result()
    assert Path(path).read_text() == "abcd"


def test_a_process_that_dies_is_replaced_and_its_task_is_done_again(pool: Pool, tmp_path: Path, capsys: Capsys) -> None:
    before = [seven(pool, i) for i in range(3)]
    killed = pool.submit(WorkerCall(dies_once, (str(tmp_path / "marker"),)))
    after = [seven(pool, i) for i in range(3, 6)]
    assert [task.result() for task in (*before, *after)] == [0, 7, 14, 21, 28, 35]  # prepared like the first
    assert killed.result() == killed.result() == "done"
    assert capsys.readouterr().err.count("a worker process died") == 1


@pytest.mark.parametrize("death", [dies, pool_tasks.runs_out_of_memory])
def test_a_task_that_kills_every_process_stops_the_work(
    pool: Pool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, death: Any
) -> None:
    monkeypatch.setattr(pool_module, "DEATHS", 1)
    for name in ("one", "two"):  # deaths with an answer between them stop nothing
        assert pool.submit(WorkerCall(dies_once, (str(tmp_path / name),))).result() == "done"
    with pytest.raises(WorkStopped, match=r"died 2 times in a row .*: use fewer --workers"):
        pool.submit(WorkerCall(death)).result()
    with pytest.raises(WorkStopped):
        pool.submit(WorkerCall(pid))


def test_what_hangs_is_killed_and_tried_once_more(pool: Pool, tmp_path: Path, capsys: Capsys) -> None:
    once = WorkerCall(pool_tasks.hangs_once, (str(tmp_path / "marker"),), limit_s=0.3)
    assert pool.submit(once).result() == "done"
    assert "no result within 0.3 s: another process does the work again" in capsys.readouterr().err
    with pytest.raises(TookTooLong):
        pool.submit(WorkerCall(hangs, limit_s=0.3)).result()
    assert seven(pool, 1, limit_s=30).result() == 7


def test_a_candidate_that_hangs_twice_is_rejected_as_data(tmp_path: Path) -> None:
    config = load_config(str(tiny_world.write(tmp_path, ONE, search="{finalists: 0, limit_s: 1.0e-9}", **BRIEF)))
    fitted, _ = chosen(config.data)
    text = "def step_time(b, s, *, floor: us = 4000.0): return floor"
    with closing(LocalPool(1, Line(quiet=True))) as pool:
        live = Live(config, workers_of(pool, fitted, config))
        pending = live.begin(Proposal(3, 0, text, "add", ()), Admitted(set(), 9, lambda program: NO_LIMITS))
        assert pending is not None
        outcome = pending().outcome
    assert outcome.verdict == Rejected(TIMEOUT, "no verdict within 1e-09 s (search.limit_s), 2 times")
    assert outcome.key  # it counts against the budget


def test_an_exception_of_a_task_is_raised_where_it_is_waited_for(pool: Pool) -> None:
    with pytest.raises(ValueError, match="no") as error:
        pool.submit(WorkerCall(refuses)).result()
    assert "in a worker process" in error.value.__notes__[0] and "pool_tasks.py" in error.value.__notes__[0]
    with pytest.raises(RuntimeError, match="Strange: no way"):
        pool.submit(WorkerCall(pool_tasks.refuses_strangely)).result()
    with pytest.raises(AttributeError, match="lambda"):
        pool.submit(WorkerCall(lambda: 1)).result()  # cannot be sent
    assert seven(pool, 1).result() == 7


def test_a_closed_pool_answers_nothing_any_more() -> None:
    pool = LocalPool(1, Line())
    running, waiting = pool.submit(WorkerCall(hangs)), pool.submit(WorkerCall(pid))
    time.sleep(0.2)
    pool.close()
    for task in (running, waiting):
        with pytest.raises(Closed):
            task.result()
    with pytest.raises(Closed):
        pool.submit(WorkerCall(pid))
    pool.close()


def test_a_second_interrupt_does_not_keep_a_pool_from_closing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every task must still be told that the pool is closed: threads wait for them."""
    pool = LocalPool(1, Line())
    tasks = [pool.submit(WorkerCall(hangs)) for _ in range(3)]
    join = threading.Thread.join

    def interrupted(thread: threading.Thread, timeout: float | None = None) -> None:
        if threading.current_thread() is not threading.main_thread():
            join(thread, timeout)
            return
        monkeypatch.setattr(threading.Thread, "join", join)
        raise KeyboardInterrupt

    monkeypatch.setattr(threading.Thread, "join", interrupted)
    with pytest.raises(KeyboardInterrupt):
        pool.close()
    for task in tasks:
        with pytest.raises(Closed):
            task.result()
    pool.close()
    assert not worker_pids()


@pytest.mark.slow
def test_processes_end_with_their_owner(tmp_path: Path) -> None:
    """Even within a call, and where the owner is killed."""
    code = """
from pool_tasks import hangs, pid
from evolve.output.progress import Line
from evolve.search.pool.local import LocalPool
from evolve.search.pool.process import WorkerCall
pool = LocalPool(2, Line())
first = pool.submit(WorkerCall(hangs))
print(pool.submit(WorkerCall(pid)).result(), flush=True)
pool.submit(WorkerCall(hangs)).result()
"""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tests" / "support")])}
    owner = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, env=env)
    assert owner.stdout and owner.stdout.readline()
    workers = worker_pids(owner.pid)
    assert len(workers) == 2
    owner.kill()
    owner.communicate()
    wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in workers), 20)


def test_a_stopped_process_is_named(capsys: Capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    with closing(LocalPool(1, Line())) as pool:
        seven(pool, 1).result()
        [worker] = worker_pids()
        os.kill(worker, signal.SIGSTOP)
        task = seven(pool, 2)
        pool.silent()
        assert capsys.readouterr().err == ""  # it has not been long
        monkeypatch.setattr(pool_module, "SILENT_S", 0.0)
        pool.line.every_s = 0.0
        said, deadline = "", time.monotonic() + 20
        while "stopped" not in said and time.monotonic() < deadline:  # a signal takes its time
            pool.silent()
            said += capsys.readouterr().err
        assert f"no answer for 0 s: stopped: process {worker} (kill -CONT makes it go on)" in said
        os.kill(worker, signal.SIGCONT)
        assert task.result() == 14


def test_waiting_is_not_silence(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Silence is counted from the last answer, or from the first task after it."""
    seven(pool, 1).result()
    monkeypatch.setattr(pool_module, "SILENT_S", 0.05)
    time.sleep(0.1)
    said: list[str] = []
    monkeypatch.setattr(pool.line, "update", lambda text: said.append(text()))
    seven(pool, 1)
    pool.silent()
    assert not said


@pytest.mark.slow
def test_a_search_whose_worker_is_killed_ends_like_any_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capsys
) -> None:
    config = tiny_world.write(tmp_path, ONE, **BRIEF)
    whole = tiny_world.run(config, tmp_path / "whole", "--budget", 12)
    append, killed = run_module.Journal.append, []

    def kill_one(journal: run_module.Journal, entries: Any) -> None:
        append(journal, entries)
        if not killed:
            killed.extend(worker_pids()[:1])
            os.kill(killed[0], signal.SIGKILL)

    monkeypatch.setattr(run_module.Journal, "append", kill_one)
    args = ["run", "--config", str(config), "--budget", "12", "--workers", "2", "--out", str(tmp_path / "killed")]
    assert run_command(args) == 0
    assert killed and "a worker process died (killed, or out of memory)" in capsys.readouterr().err
    assert (tmp_path / "killed" / "journal.jsonl").read_bytes() == (whole / "journal.jsonl").read_bytes()
