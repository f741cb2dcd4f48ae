"""A pool of the workers of dask.distributed. Each of their threads hands its tasks to a worker process of ours.

So a task may take long, hold Python's lock, run out of memory or hang without its worker's losing the scheduler. Dask
sends tasks, keeps the queue, and repeats the work of a lost worker.
"""

from __future__ import annotations

import logging
import pickle
import re
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, replace
from hashlib import blake2b
from itertools import count
from pathlib import Path
from typing import Any
from uuid import uuid4

from evolve import processes
from evolve.output.progress import Line
from evolve.processes import WorkStopped
from evolve.search.pool.pool import Pool, Task
from evolve.search.pool.process import Died, Parcel, WorkerCall, WorkerProcess
from evolve.search.pool.remote import carry_out, end_idle, identity, introduce
from simulator.common.documents import read_json
from simulator.common.errors import InputError
from simulator.common.records import from_json
from simulator.common.text import counted

WATCH_S = 1.0  # between two looks at which workers there are
UNWATCHED = {  # settings of dask: by default its watching itself takes some percent of a core
    "distributed.worker.profile.enabled": False,
    "distributed.admin.tick.interval": "500ms",
    "distributed.admin.system-monitor.interval": "10s",
    "distributed.scheduler.active-memory-manager.start": False,  # results arrive as events, so workers hold none
    "distributed.scheduler.http.routes": [],
    "distributed.worker.http.routes": [],
}
# Every scheduler and worker of dask opens an HTTP port for anybody who reaches it: on loopback, without pages.
UNSEEN = {"protocol": "inproc", "dashboard": False, "dashboard_address": "127.0.0.1:0"}
CONNECT_S = 10.0  # to wait for an answer of a scheduler


class Cluster(Pool):
    """The workers of a scheduler, which may come and go. A worker that would compute other digits is refused.

    where: the scheduler's address (tcp://HOST:PORT), its scheduler file, or local:N for a cluster of N workers on this
    machine. Raises InputError if dask.distributed is not installed or nothing answers there.
    """

    def __init__(self, where: str, line: Line) -> None:
        super().__init__(line)
        self._where = where
        processes.settle()  # if numpy is loaded already, this process computes other digits, see _own_identity
        self._settings = processes.settings()
        with ThreadPoolExecutor(1) as meanwhile:  # both take a second
            own = meanwhile.submit(_own_identity, self._settings)
            self._cluster, self._client = connected(where)
        self._identity = own.result()
        digest = blake2b(repr(sorted({**self._identity, **self._settings}.items())).encode(), digest_size=6).hexdigest()
        self._resource = f"evolve-{digest}"  # that accepted workers have, one of it for each of their threads
        self._name = f"{self._resource}-{uuid4().hex[:12]}"  # of this pool, among all on the cluster
        self._numbers = count().__next__
        self._running: dict[str, tuple[Task[Any], Any]] = {}  # tasks and their futures (None: not yet sent), by key
        self._held: list[Task[Any]] = []  # tasks that wait for the first worker
        self._parcels: dict[str, Any] = {}  # futures, by the parcel's key
        self._threads: dict[str, int] = {}  # of the workers that are accepted, by address
        self._asked: dict[str, str] = {}  # workers that were asked for their identity: why they are refused, or ""
        self._listener = ThreadPoolExecutor(1)  # hears of tasks, in the order in which the scheduler did
        # heard in dask's own thread, which must not wait for files
        self._client.subscribe_topic(self._name, lambda event: self._later(self._take_in, *event[1]))
        self._wanted: Any = None  # the future of a task that shows the scheduler that work waits
        self._closing = threading.Event()
        self._watcher = threading.Thread(target=self._watch, daemon=True)
        self._watcher.start()
        workers, address = len(self._client.scheduler_info(n_workers=-1)["workers"]), self._client.scheduler.address
        waits = "" if workers else f"; waiting for workers: `dask worker {address}` starts one"
        dashboard = "" if self._cluster else f", dashboard {self._client.dashboard_link}"
        line.note(f"scheduler {address}, {counted(workers, 'worker')}{dashboard}{waits}")

    def state(self) -> str:
        with self._lock:
            workers, threads, tasks = len(self._threads), sum(self._threads.values()), len(self._open)
        of_threads = f" with {threads} threads" if threads != workers else ""
        return f"{counted(workers, 'worker')}{of_threads}, {max(tasks - threads, 0)} queued"

    def _begin(self, task: Task[Any]) -> None:
        with self._lock:
            if not self._threads:
                self._held.append(task)
                return
            kind = task.call.function.__name__.strip("_")  # dask learns by it how long such tasks take
            key = f"{kind}-{self._name}-{self._numbers()}"
            self._running[key] = task, None  # before it is sent: the answer may be here before `submit` returns
        try:
            call, parcel, settings = replace(task.call, parcel=None), self._sent(task.call.parcel), self._settings
            options = {"key": key, "pure": False, "priority": -task.number, "resources": {self._resource: 1}}
            future = self._client.submit(carry_out, call, parcel, settings, self._name, **options)
        except Exception:  # whatever dask raises where the scheduler is gone
            self._lost()
            return
        with self._lock:
            if key in self._running:  # or it has been told already, and dask may forget it
                self._running[key] = task, future

    def _sent(self, parcel: Parcel | None) -> Any:
        """The future of a parcel. It is a task, because scattered data are lost with the workers that hold them."""
        if parcel is None:
            return None
        with self._lock:
            if parcel.key not in self._parcels:
                options = {"priority": 1_000_000_000, "resources": {self._resource: 1}}
                name = f"{self._name}-{self._numbers()}-{parcel.key}"
                self._parcels[parcel.key] = self._client.submit(Parcel, parcel.content, parcel.key, key=name, **options)
            return self._parcels[parcel.key]

    def _later(self, note: Callable[..., None], *args: Any) -> None:
        with suppress(RuntimeError):  # the pool is closed
            self._listener.submit(note, *args)

    def _take_in(self, key: str, content: bytes) -> None:
        """Take a report, the result or the exception of a task."""
        kind, value = pickle.loads(content)
        with self._lock:
            task, _ = (self._running.get if kind == "line" else self._running.pop)(key, (None, None))
        if task is None or self._ended:
            return
        try:
            {"line": self._reported, "result": self._answered, "raised": self._raised}[kind](task, value)
        except Exception as e:  # such as a full disk
            self._raised(task, e)

    def _finished(self, future: Any) -> None:
        """Note that dask is done with a task. If it went well, its result was told before."""
        with self._lock:
            task, _ = self._running.pop(future.key, (None, None))
        if task is None or self._ended:
            return
        if future.status == "finished":
            self._raised(task, Died())
            return
        try:
            future.result()
        except Exception as e:
            if future.status != "error":
                self._lost()
            else:
                self._raised(task, Died() if type(e).__name__ == "KilledWorker" else e)

    def _lost(self) -> None:
        self._end(WorkStopped(f"the scheduler {self._where} is lost, it has ended or does not answer: start it again"))

    def _watch(self) -> None:
        """Watch the list of workers, and ask new ones for their identity, until the pool is closed."""
        seen = time.monotonic()
        while not self._closing.wait(WATCH_S if self._threads else WATCH_S / 10):
            try:
                listed = self._client.scheduler_info(n_workers=-1)["workers"]
                with self._lock:
                    done = [future for _, future in self._running.values() if future and future.done()]
                for future in done:  # mostly because something went wrong, and seldom because it was told just now
                    self._later(self._finished, future)
                if self._open and not listed:
                    self._wanted = self._client.submit(int, key=f"{self._name}-wanted")  # so that a cluster scales up
                seen = time.monotonic()
            except Exception:  # tasks that were sent tell at once that the scheduler is gone, waiting ones do not
                if time.monotonic() - seen > CONNECT_S:
                    self._lost()
                continue
            stale: list[Any] = []
            accepted = {a: w["nthreads"] for a, w in listed.items() if self._resource in w["resources"]}
            with self._lock:
                if not (accepted and self._threads):
                    # Tasks sent while no worker is accepted do not wake up when one is: they must be sent again.
                    stale = [future for _, future in self._running.values() if future] + list(self._parcels.values())
                    self._held += [task for task, _ in self._running.values()]
                    self._running, self._parcels = {}, {}
                gone = [address for address in self._threads if address not in accepted]
                self._threads = accepted
                held, self._held = (self._held, []) if accepted else ([], self._held)
                new = [a for a in listed if a not in accepted and a not in self._asked]
                self._asked = {a: why for a, why in self._asked.items() if a in listed} | dict.fromkeys(new, "")
            if stale:
                with _quiet():
                    self._client.cancel(stale)
            for address in gone:
                self.line.note(f"worker {address} has gone: what it was doing is done again")
            for task in held:
                self._begin(task)
            for address in new:
                threading.Thread(target=self._ask, args=(address, listed[address]["name"]), daemon=True).start()

    def _ask(self, address: str, name: object) -> None:
        """Ask a worker for its identity. With that of this process it gets tasks from now on."""
        try:
            about = (self._identity, self._settings, self._resource)
            answer = self._client.run(introduce, *about, workers=[address], on_error="return")[address]
        except Exception as e:
            answer = e
        if isinstance(answer, OSError):  # it went while it was asked, or the network did
            with self._lock:
                self._asked.pop(address, None)
            return
        why = answer if isinstance(answer, str) else f"{type(answer).__name__}: {answer}"
        if not why or self._closing.is_set():
            return
        self.line.note(f"worker {name} ({address}) is refused: {why}")
        with self._lock:
            self._asked[address] = why
            refused = not self._threads and all(self._asked.values())
        if refused:
            self._end(
                InputError(
                    f"--cluster {self._where}: every worker is refused. Install the same engine and libraries there."
                )
            )

    def _why_silent(self) -> str:
        return "" if self._threads else f": no worker at {self._where} yet"

    def _release(self) -> None:
        if self._closing.is_set():
            return
        self._closing.set()
        self._watcher.join(CONNECT_S)
        with _quiet():
            with self._lock:
                futures = [future for _, future in self._running.values() if future]
                addresses = list(self._threads)
            if self._client.status == "running":
                self._client.cancel(futures)
                self._client.run(end_idle, workers=addresses, on_error="ignore", wait=False)
        with _quiet():
            self._client.close(timeout=CONNECT_S)
        with _quiet():
            if self._cluster is not None:
                self._cluster.close(timeout=CONNECT_S)
        self._listener.shutdown()


@contextmanager
def _quiet() -> Iterator[None]:
    """A context for goodbyes: a partner that is gone already need not hear them."""
    with suppress(Exception), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _own_identity(settings: Mapping[str, str]) -> dict[str, str]:
    """The identity of a worker process of this machine."""
    if processes.settled():
        return identity()
    with closing(WorkerProcess(settings)) as process:
        own: dict[str, str] = process.call(WorkerCall(identity))
        return own


def connected(where: str) -> tuple[Any, Any]:
    """The local cluster that was started, None for another one, and the client of the scheduler."""
    try:
        # An optional library, which takes half a second to load.
        import dask
        from distributed import Client, Scheduler, SpecCluster, Worker
    except ImportError:
        raise InputError("--cluster needs the extra: make cluster, or pip install 'evolve-latency[cluster]'") from None
    for name in [*logging.root.manager.loggerDict, "asyncio", "tornado.application"]:
        if name.split(".")[0] in ("distributed", "asyncio", "tornado"):
            logging.getLogger(name).setLevel(logging.CRITICAL + 1)  # what matters is in a line of ours
    warnings.filterwarnings("ignore", "Sending large graph")  # a parcel, once
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of ports that are taken, and versions that differ
        if where.startswith("local:"):
            number = where.removeprefix("local:")
            if not number.isdecimal() or not int(number):
                raise InputError(f"--cluster {where}: {number or 'nothing'} is not a number of workers. Give local:4.")
            # Workers in this process: they only hand on tasks, and what carries these out are processes anyway. So the
            # memory of this process is not theirs, and they need no limit at which they would pause.
            scheduler = {"cls": Scheduler, "options": UNSEEN}
            worker = {"cls": Worker, "options": {**UNSEEN, "nthreads": 1, "memory_limit": None}}
            with dask.config.set(UNWATCHED):
                cluster = SpecCluster(
                    dict.fromkeys(range(int(number)), worker), scheduler, silence_logs=logging.CRITICAL
                )
            return cluster, Client(cluster)
        address = _address(where)
        try:
            return None, Client(address, timeout=CONNECT_S)
        except (OSError, ValueError, TypeError, RuntimeError) as e:  # the latter two: of certificates
            raise InputError(
                f"cannot reach --cluster {where}: no scheduler answers ({type(e).__name__}). "
                "Start one with `dask scheduler`, or correct the address or dask's certificates."
            ) from None


@dataclass(frozen=True)
class _SchedulerFile:
    address: str


def _address(where: str) -> str:
    """The address of a scheduler, which may be in its scheduler file. Raises InputError."""
    if re.search(r"^(?!http)\w+://.*:\d+/?$", where):
        return where
    if "://" in where or re.fullmatch(r"[\w.-]+:\d+", where):
        raise InputError(f"--cluster {where}: is not an address of a scheduler. Write it like tcp://HOST:8786.")
    if not Path(where).is_file():
        raise InputError(f"--cluster {where!r}: no such scheduler file. Give one, tcp://HOST:PORT, or local:N.")
    raw = read_json(Path(where), "name the file that `dask scheduler --scheduler-file` wrote", foreign=True)
    return from_json(_SchedulerFile, raw, where, "give a file of `dask scheduler`").address
