"""Searches on a cluster of dask.distributed: a real scheduler and real workers, as processes that talk over TCP."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

import dask.config as dask_config
import psutil
import pytest
import tiny_world
from commands import Capsys, evolve, refused
from console import EVOLVE, wait_until
from dask_cluster import DaskCluster
from paths import ROOT
from pool_tasks import counts, dies, dies_once, full, hangs, pid, prepare, refuses, times
from tiny_world import BRIEF, ONE, written
from worker_pids import worker_pids

from evolve import __version__
from evolve.cli import run_command
from evolve.output.progress import Line
from evolve.processes import WorkStopped
from evolve.search.pool import cluster
from evolve.search.pool import pool as pool_module
from evolve.search.pool.cluster import Cluster
from evolve.search.pool.process import TookTooLong, WorkerCall, parcel
from evolve.search.pool.remote import PACKAGES, identity, linear_algebra
from simulator.common.errors import InputError

SEVEN = parcel(prepare, 7)
WAIT_S = 240.0
CERTIFICATES = ("evolve.crt", "evolve.key", "evolve.yaml")


@pytest.fixture
def dask(tmp_path: Path) -> Iterator[DaskCluster]:
    """A scheduler without workers."""
    (tmp_path / "dask").mkdir()
    with closing(DaskCluster(tmp_path / "dask")) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaskCluster]:
    """A scheduler and two workers that tests leave as they are."""
    with closing(DaskCluster(tmp_path_factory.mktemp("dask"))) as cluster:
        cluster.join()
        cluster.join()
        yield cluster


@pytest.fixture
def pool(two: DaskCluster) -> Iterator[Cluster]:
    with closing(Cluster(str(two.file), Line())) as pool:
        yield pool


def wait_for(ready: Callable[[], object]) -> None:
    wait_until(ready, WAIT_S)


def seven(pool: Cluster, number: int) -> Any:
    """The task of seven times the number, which has that place."""
    return pool.submit(WorkerCall(times, (number,), parcel=SEVEN), number)


@pytest.mark.slow
def test_tasks_are_carried_out_by_worker_processes_of_both_workers(two: DaskCluster, pool: Cluster) -> None:
    assert [task.result() for task in [seven(pool, i) for i in range(9)]] == [7 * i for i in range(9)]
    wait_for(lambda: pool.state() == "2 workers, 0 queued")
    slow = [pool.submit(WorkerCall(time.sleep, (0.5,))) for _ in range(2)]
    used = {pool.submit(WorkerCall(pid), -1).result() for _ in range(3)} | {task.result() for task in slow}
    assert used - {None} <= {number for worker in two.workers for number in worker_pids(worker.pid)}


@pytest.mark.slow
def test_a_worker_killed_among_many_short_tasks_holds_nothing_up(dask: DaskCluster) -> None:
    """Some are done and not yet answered then, and the data that they need are gone too."""
    with closing(Cluster(str(dask.file), Line(quiet=True))) as pool:
        worker = dask.join()
        for turn in range(3):
            tasks = [seven(pool, i) for i in range(150)]
            assert tasks[30 * turn].result() == 210 * turn
            worker.kill()
            worker = dask.join()
            assert [task.result() for task in tasks] == [7 * i for i in range(150)]
        assert worker_pids(worker.pid)
    wait_for(lambda: not worker_pids(worker.pid))  # idle worker processes end with the pool
    # The scheduler may tell, as information, that it was still sending to a client that had closed.
    assert "Traceback" not in dask.log("worker-3") and " - ERROR - " not in dask.log("scheduler")


def test_reports_arrive_before_the_result_and_in_order(pool: Cluster) -> None:
    heard = list[int]()
    assert pool.submit(WorkerCall(counts, (20,), streams=True), 0, heard.append).result() == 20
    wait_for(lambda: heard == list(range(20)))
    with pytest.raises(OSError, match="No space left"):
        pool.submit(WorkerCall(counts, (5000,), streams=True), 0, full).result()


def test_what_a_call_raises_dies_of_or_hangs_in_is_as_on_one_machine(
    pool: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capsys
) -> None:
    with pytest.raises(ValueError, match="no"):
        pool.submit(WorkerCall(refuses)).result()
    assert pool.submit(WorkerCall(dies_once, (str(tmp_path / "marker"),))).result() == "done"
    assert "a worker process died" in capsys.readouterr().err
    with pytest.raises(TookTooLong):
        pool.submit(WorkerCall(hangs, limit_s=0.3)).result()
    assert "no result within 0.3 s: another process does the work again" in capsys.readouterr().err
    monkeypatch.setattr(pool_module, "DEATHS", 1)
    with pytest.raises(WorkStopped, match="died 2 times in a row"):
        pool.submit(WorkerCall(dies)).result()


@pytest.mark.slow
def test_a_search_on_a_cluster_is_that_of_one_machine(
    two: DaskCluster, tiny: Path, tiny_run: Path, tmp_path: Path, capsys: Capsys
) -> None:
    assert evolve("run", "--config", tiny, "--budget", 30, "--cluster", two.address, "--out", tmp_path / "run") == 0
    assert f"scheduler {two.address}, 2 workers, dashboard http://127.0.0.1:" in capsys.readouterr().err
    for name in ("journal.jsonl", "config.yaml"):
        assert (tmp_path / "run" / name).read_bytes() == (tiny_run / name).read_bytes()


@pytest.mark.slow
def test_workers_that_come_and_go_change_nothing(dask: DaskCluster, tiny: Path, tiny_run: Path, tmp_path: Path) -> None:
    """One is killed in the middle, another retires, a third and a fourth join."""
    first, run = dask.join(), tmp_path / "run"
    ended: list[int] = []
    args = ["run", "--config", str(tiny), "--budget", "30", "--cluster", str(dask.file), "--quiet", "--out", str(run)]
    searching = threading.Thread(target=lambda: ended.append(run_command(args)))
    searching.start()
    wait_for(lambda: written(run) >= 5)
    first.kill()
    second = dask.join()
    wait_for(lambda: written(run) >= 15)
    dask.join()
    second.send_signal(signal.SIGTERM)  # as a cluster ends a worker that it no longer wants
    searching.join(WAIT_S)
    assert ended == [0]
    assert (run / "journal.jsonl").read_bytes() == (tiny_run / "journal.jsonl").read_bytes()


@pytest.mark.slow
def test_a_search_whose_scheduler_is_lost_is_resumed(
    dask: DaskCluster, tiny: Path, tiny_run: Path, tmp_path: Path
) -> None:
    dask.join()
    run = tmp_path / "run"
    args = ["run", "--config", str(tiny), "--budget", "30", "--cluster", str(dask.file), "--out", str(run)]
    process = subprocess.Popen([*EVOLVE, *args, "--quiet"], stderr=subprocess.PIPE, text=True, cwd=ROOT)
    wait_for(lambda: written(run) >= 5)
    dask.scheduler.kill()
    _, err = process.communicate(timeout=WAIT_S)
    assert process.returncode == 1 and err.count("\n") == 1
    assert f"the scheduler {dask.file} is lost" in err and f"`evolve resume {run}`" in err
    assert run_command(["resume", str(run), "--workers", "1", "--quiet"]) == 0
    assert (run / "journal.jsonl").read_bytes() == (tiny_run / "journal.jsonl").read_bytes()


@pytest.mark.slow
def test_an_interrupt_ends_a_local_cluster_in_silence(tmp_path: Path) -> None:
    """Ctrl-C in a terminal reaches the workers too, which are of the same process group."""
    run, config = tmp_path / "run", tiny_world.write(tmp_path, ONE, **BRIEF)
    args = ["run", "--config", str(config), "--budget", "300", "--cluster", "local:2", "--quiet", "--out", str(run)]
    process = subprocess.Popen([*EVOLVE, *args], stderr=subprocess.PIPE, text=True, cwd=ROOT, process_group=0)
    wait_for(lambda: written(run) >= 5)
    os.killpg(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=WAIT_S)
    assert process.returncode == 130
    assert err == f"evolve: interrupted; nothing is lost: `evolve resume {run}` goes on\n"
    assert not worker_pids(process.pid) and written(run) >= 5


def listening() -> set[tuple[str, int]]:
    """The addresses and ports at which this process and those below it wait for connections."""
    me = psutil.Process()
    opened = [c for process in (me, *me.children(recursive=True)) for c in process.net_connections("inet")]
    return {(c.laddr.ip, c.laddr.port) for c in opened if c.status == psutil.CONN_LISTEN}


def test_a_local_cluster_listens_on_loopback_alone_and_shows_nothing(capsys: Capsys) -> None:
    before = listening()
    with closing(Cluster("local:2", Line())) as pool:
        assert seven(pool, 2).result() == 14
        opened = listening() - before
        assert opened and {host for host, _ in opened} == {"127.0.0.1"}
        for _, port in opened:
            for page in ("", "status", "health", "metrics", "info/main/workers.html", "json/counts.json"):
                with pytest.raises(HTTPError, match="404"):
                    urlopen(f"http://127.0.0.1:{port}/{page}")
    assert "dashboard" not in capsys.readouterr().err


@pytest.mark.skipif(not shutil.which("openssl"), reason="needs openssl")
def test_the_recipe_of_the_documentation_closes_a_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its certificates work from end to end; without them, nobody gets through."""
    blocks = (ROOT / "docs" / "search.md").read_text().split("```sh\n")
    [recipe] = [block.partition("```")[0] for block in blocks if "openssl" in block]
    subprocess.run(["sh", "-ec", recipe], env={**os.environ, "HOME": str(tmp_path)}, check=True, capture_output=True)
    folder = tmp_path / ".config" / "dask"
    assert {path.name: path.stat().st_mode & 0o077 for path in folder.iterdir()} == dict.fromkeys(CERTIFICATES, 0)
    monkeypatch.setenv("DASK_CONFIG", str(folder))
    with closing(DaskCluster(tmp_path)) as scheduler:
        scheduler.join()
        monkeypatch.setattr(cluster, "CONNECT_S", 3.0)
        for address in (scheduler.address, scheduler.address.replace("tls", "tcp")):
            with pytest.raises(InputError, match="no scheduler answers"):
                Cluster(address, Line())
        with dask_config.set(dask_config.merge(dask_config.config, dask_config.collect([str(folder)], env={}))):
            with pytest.raises(InputError, match=r"no scheduler answers \(RuntimeError\)"):
                Cluster(scheduler.address.replace("tls", "tcp"), Line())
            monkeypatch.undo()
            assert scheduler.address.startswith("tls://")
            with closing(Cluster(scheduler.address, Line(quiet=True))) as pool:
                assert seven(pool, 3).result() == 21
            with closing(Cluster("local:1", Line(quiet=True))) as pool:
                assert seven(pool, 3).result() == 21


def test_a_worker_of_another_engine_is_refused_by_name(dask: DaskCluster, tmp_path: Path, capsys: Capsys) -> None:
    other = tmp_path / "other"
    shutil.copytree(ROOT / "simulator", other / "simulator", ignore=shutil.ignore_patterns("__pycache__"))
    for package in {*PACKAGES} - {"simulator"}:
        (other / package).symlink_to(ROOT / package)
    with (other / "simulator" / "schema.py").open("a") as file:
        file.write("# changed\n")
    dask.join(env={"PYTHONPATH": os.pathsep.join([str(other), str(ROOT / "tests" / "support")])})
    with closing(Cluster(str(dask.file), Line())) as pool, pytest.raises(InputError, match="every worker is refused"):
        pool.submit(WorkerCall(pid)).result()
    said = capsys.readouterr().err
    assert "worker worker-0 (tcp://127.0.0.1:" in said and f"is refused: engine {__version__}, sources " in said
    dask.join()
    with closing(Cluster(str(dask.file), Line(quiet=True))) as pool:
        assert len({pool.submit(WorkerCall(pid)).result() for _ in range(4)}) == 1


def test_linear_algebra_has_a_digest_of_its_kernels() -> None:
    code = "from evolve.search.pool.remote import linear_algebra; print(linear_algebra())"

    def digest(**env: str) -> str:
        environment = {**os.environ, **env}
        return subprocess.check_output([sys.executable, "-c", code], env=environment, text=True, cwd=ROOT).strip()

    assert digest() == linear_algebra() == identity()["linear algebra"]
    assert digest(OPENBLAS_CORETYPE="Prescott") != linear_algebra()  # kernels without AVX, which any x86 can run


@pytest.mark.parametrize(
    ("where", "fault"),
    [
        ("local:none", "is not a number of workers"),
        ("nothing.json", "no such scheduler file"),
        ("tcp://127.0.0.1:1", "no scheduler answers (OSError)"),
        ("soup://here:1", "no scheduler answers (ValueError)"),
        ("tls://127.0.0.1:1", "no scheduler answers (TypeError)"),  # without certificates
        ("tcp://here", "is not an address"),
        ("here:8786", "is not an address"),
        ("", "--cluster ''"),
        (str(ROOT / "README.md"), "line 1: not valid JSON"),
        (str(ROOT / "seeds" / "champion" / "run.json"), "address: is missing"),
        ("local:2 --workers 2", "--workers is for this machine"),
    ],
)
def test_a_cluster_that_is_not_there_is_one_line(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capsys, where: str, fault: str
) -> None:
    monkeypatch.setattr(cluster, "CONNECT_S", 0.5)
    run = tmp_path / "run"
    assert fault in refused(capsys, "run", "--config", tiny, "--out", run, "--cluster", *where.split(" "))
    assert not run.exists()
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(InputError, match="--cluster needs the extra"):
        Cluster("local:1", Line())


def test_workers_are_waited_for(dask: DaskCluster) -> None:
    """The scheduler sees that work waits, so that a cluster that scales with demand starts a worker."""
    with closing(Cluster(str(dask.file), Line(quiet=True))) as pool:
        task = seven(pool, 1)
        assert pool.state() == "0 workers, 1 queued" and "no worker at" in pool._why_silent()
        wait_for(lambda: pool._client.run_on_scheduler(lambda dask_scheduler: len(dask_scheduler.tasks)))
        dask.join()
        assert task.result() == 7
