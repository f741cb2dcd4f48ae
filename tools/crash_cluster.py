"""Disturbances of a cluster: its workers, their worker processes, the scheduler, the client, and the network between."""

from __future__ import annotations

import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress

from crash_count import Tally, Watch
from crash_network import Link, Namespace, free_port
from crash_parts import killed, signalled, turns
from crash_world import ALONE, World, compare, ended, finish, moment, written
from dask_cluster import DaskCluster
from worker_pids import worker_pids

SHORT_S = 5.0  # of a cut that connections survive
WORKS = ("run", "validate", "repeats")


@contextmanager
def cluster(world: World, workers: int = 2, host: str = "127.0.0.1") -> Iterator[DaskCluster]:
    """A scheduler, and so many workers."""
    folder = world.home / f"dask-{time.monotonic_ns()}"
    folder.mkdir()
    made = DaskCluster(folder, host=host)
    try:
        for _ in range(workers):
            made.join()
        yield made
    finally:
        made.close()


def clients_killed(world: World, tally: Tally, count: int) -> None:
    """Kill the client, and resume on the same cluster."""
    with cluster(world) as dask:
        killed(world, tally, count, WORKS, "--cluster", str(dask.file))


def disturbed(world: World, tally: Tally, dask: DaskCluster, count: int, disturb: Callable[[], bool]) -> None:
    """Disturb a cluster while commands work on it. They end as if nothing had been.

    `disturb` returns whether there was something to disturb.
    """
    for turn in turns(tally, count):
        job = world.job(WORKS[turn % len(WORKS)])
        watch = Watch(job.folder, tally)
        process = job.start("--cluster", str(dask.file))
        written(watch, process, watch.count() + 1)
        while tally.done < count and moment(job, watch, process):
            watch.look()
            if disturb():
                tally.done += 1
                break
        watch.look()
        ended(tally, f"{job.folder.name} on a cluster", process, 0)
        compare(tally, job, watch)


def workers_killed(world: World, tally: Tally, count: int) -> None:
    """Kill a worker of dask; another one joins."""
    with cluster(world) as dask:

        def disturb() -> bool:
            worker = world.rng.choice([worker for worker in dask.workers if worker.poll() is None])
            worker.kill()
            worker.wait()
            dask.join()
            return True

        disturbed(world, tally, dask, count, disturb)


def hands_killed(world: World, tally: Tally, count: int) -> None:
    """Kill a worker process below a worker of dask."""
    with cluster(world) as dask:

        def disturb() -> bool:
            pids = [pid for worker in dask.workers for pid in worker_pids(worker.pid)]
            return signalled(world, pids, signal.SIGKILL) is not None

        disturbed(world, tally, dask, count, disturb)


def scheduler_killed(world: World, tally: Tally, count: int) -> None:
    """Kill the scheduler: the client ends by one line, and the work goes on without a cluster."""
    for turn in turns(tally, count):
        with cluster(world) as dask:
            job = world.job(WORKS[turn % len(WORKS)])
            watch = Watch(job.folder, tally)
            process = job.start("--cluster", str(dask.file))
            written(watch, process, watch.count() + 1)  # it is connected then: `validate` begins with records
            moment(job, watch, process)
            watch.look()
            dask.scheduler.kill()
            said = ended(tally, f"{job.folder.name}, the scheduler killed", process, 0, 1)
            watch.look()
            if process.returncode:  # 0: the command did not need the scheduler any more
                tally.done += 1
                if said.count("\n") != 1 or "is lost" not in said:
                    tally.findings.append(f"{job.folder.name}, the scheduler killed: {said[-300:]!r}")
            finish(tally, job, watch, *ALONE)


def worker_stopped(world: World, tally: Tally, count: int) -> None:
    """Stop a worker of dask for a while."""
    with cluster(world) as dask:

        def disturb() -> bool:
            worker = world.rng.choice(dask.workers)
            worker.send_signal(signal.SIGSTOP)
            time.sleep(world.stop_s)
            worker.send_signal(signal.SIGCONT)
            return True

        disturbed(world, tally, dask, count, disturb)


def unplugged(world: World, tally: Tally, count: int) -> None:
    """Cut the network of a worker in a namespace of its own, for a moment and for so long that connections end."""
    try:
        namespace = Namespace()
    except OSError as e:
        tally.skipped = f"no network namespace: {e}"
        return
    try:
        with cluster(world, 1, namespace.host) as dask:
            options = ("--host", namespace.inside)
            worker = dask.join(*options, below=namespace.below)
            port = _port(dask, worker)
            for seconds in _cuts(world, count):

                def disturb(seconds: float = seconds, port: int = port) -> bool:
                    namespace.cut()
                    time.sleep(seconds / 2)
                    if _answers(namespace.inside, port):
                        tally.findings.append("the network was not cut")
                    time.sleep(seconds / 2)
                    namespace.restore()
                    return True

                disturbed(world, tally, dask, tally.done + 1, disturb)
                if worker.poll() is not None:  # it has given up, and a real cluster would start another
                    worker = dask.join(*options, below=namespace.below)
                    port = _port(dask, worker)
    finally:
        namespace.close()


def proxied(world: World, tally: Tally, count: int) -> None:
    """Cut the connections of a worker in both directions: they fall silent, or are reset."""
    for number, seconds in enumerate(_cuts(world, count)):
        with cluster(world, 1) as dask:
            own = free_port()
            to_scheduler, to_worker = Link(int(dask.address.rpartition(":")[2])), Link(own)
            links = (to_scheduler, to_worker)
            dask.join(
                "--listen-address",
                f"tcp://127.0.0.1:{own}",
                "--contact-address",
                f"tcp://127.0.0.1:{to_worker.port}",
                scheduler=f"tcp://127.0.0.1:{to_scheduler.port}",
            )

            def disturb(number: int = number, seconds: float = seconds, links: Sequence[Link] = links) -> bool:
                for link in links:
                    link.reset() if number % 2 else link.silence()
                time.sleep(seconds)
                for link in links:
                    link.restore()
                return True

            try:
                disturbed(world, tally, dask, tally.done + 1, disturb)
            finally:
                for link in links:
                    link.close()


def _cuts(world: World, count: int) -> list[float]:
    """How long each cut lasts, seconds: two short ones, then a long one."""
    return [(SHORT_S, SHORT_S, world.stop_s)[number % 3] for number in range(count)]


def _port(dask: DaskCluster, worker: subprocess.Popen[bytes]) -> int:
    """The port at which a worker listens, by its log."""
    log = dask.log(f"worker-{dask.workers.index(worker)}")
    return int(next(line for line in log.splitlines() if "Start worker at:" in line).rpartition(":")[2])


def _answers(host: str, port: int) -> bool:
    """Whether something accepts connections there."""
    with suppress(OSError), socket.create_connection((host, port), 1.0):
        return True
    return False
