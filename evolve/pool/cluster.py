"""A pool of the workers of dask.distributed. Each of their threads hands its tasks to a worker process of ours.

So a task may take long, hold Python's lock, run out of memory or hang without its worker's losing touch with the
scheduler, and linear algebra has the digits that it has here, however the worker was started. Dask does the rest: it
sends tasks, keeps the queue, and repeats what a lost worker was doing.
"""

from __future__ import annotations

import pickle
import threading
import time
import warnings
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import replace
from hashlib import blake2b
from itertools import count
from queue import SimpleQueue
from typing import Any
from uuid import uuid4

from evolve import processes
from evolve.pool.connection import CONNECT_S, connected
from evolve.pool.identity import identity
from evolve.pool.pool import Pool, Task
from evolve.pool.process import Call, Died, Parcel, WorkerProcess
from evolve.pool.remote import carry_out, end_idle, introduce
from evolve.processes import WorkStopped
from evolve.report.progress import Line
from evolve.report.table import counted
from simulator.errors import InputError

WATCH_S = 1.0  # between two looks at which workers there are


class Cluster(Pool):
    """The workers of a scheduler. Those that would compute other digits are refused, each by a line that says why.

    where: the scheduler's address (tcp://HOST:PORT), its scheduler file, or local:N for a cluster of N workers on this
    machine. Workers may come and go. Raises InputError if dask.distributed is not installed or nothing answers there.
    """

    def __init__(self, where: str, line: Line) -> None:
        super().__init__(line)
        self._where = where
        self._cluster, self._client = connected(where)
        processes.settle()  # if numpy is loaded already, this process computes other digits, see _own_identity
        self._settings = processes.settings()
        self._identity = _own_identity(self._settings)
        digest = blake2b(repr(sorted({**self._identity, **self._settings}.items())).encode(), digest_size=6).hexdigest()
        self._resource = f"evolve-{digest}"  # that accepted workers have, one of it for each of their threads
        self._name = f"{self._resource}-{uuid4().hex[:12]}"  # of this pool, among all on the cluster
        self._numbers = count().__next__
        self._running: dict[str, tuple[Task[Any], Any]] = {}  # tasks and their futures, by the future's key
        self._held: list[Task[Any]] = []  # tasks that wait for the first worker
        self._parcels: dict[str, Any] = {}  # futures, by the parcel's key
        self._threads: dict[str, int] = {}  # of the workers that are accepted, by address
        self._asked: dict[str, str] = {}  # workers that were asked what they are, and why they are refused, or ""
        self._arrived: SimpleQueue[Any] = SimpleQueue()  # futures that are done; None ends
        self._collector = threading.Thread(target=self._collect, daemon=True)
        self._collector.start()
        self._listener = ThreadPoolExecutor(1)  # hears reports in their order
        self._client.subscribe_topic(self._name, self._hear)
        self._wanted: Any = None  # the future of a task that shows the scheduler that work waits
        self._closing = threading.Event()
        self._watcher = threading.Thread(target=self._watch, daemon=True)
        self._watcher.start()
        workers, address = len(self._client.scheduler_info(n_workers=-1)["workers"]), self._client.scheduler.address
        waits = "" if workers else f"; waiting for workers: `dask worker {address}` starts one"
        line.note(f"scheduler {address}, {counted(workers, 'worker')}, dashboard {self._client.dashboard_link}{waits}")

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
            number = self._numbers()
        kind = task.call.function.__name__.strip("_")  # dask learns by it how long such tasks take
        key = f"{kind}-{self._name}-{number}"
        try:
            future = self._client.submit(
                carry_out,
                replace(task.call, parcel=None),
                self._sent(task.call.parcel),
                self._settings,
                self._name,
                key=key,
                pure=False,
                priority=-task.number,
                resources={self._resource: 1},
            )
        except Exception as e:  # whatever dask raises where the scheduler is gone
            self._lost(e)
            return
        with self._lock:
            self._running[key] = task, future
        future.add_done_callback(self._arrived.put)

    def _sent(self, parcel: Parcel | None) -> Any:
        """The future of a parcel, which a worker fetches once.

        It is a task, not scattered data: what is scattered is lost with the workers that hold it.
        """
        if parcel is None:
            return None
        with self._lock:
            if parcel.key not in self._parcels:
                self._parcels[parcel.key] = self._client.submit(
                    Parcel, parcel.content, parcel.key, key=f"{self._name}-{self._numbers()}-{parcel.key}",
                    priority=1_000_000_000, resources={self._resource: 1},
                )  # fmt: skip
            return self._parcels[parcel.key]

    def _collect(self) -> None:
        """Fetch what has arrived, all at once, until the pool is closed: one by one takes the scheduler longer."""
        while (first := self._arrived.get()) is not None:
            futures = [first]
            while not self._arrived.empty() and (future := self._arrived.get()) is not None:
                futures.append(future)
            values: dict[str, Any] = {}
            with _quiet():  # what went wrong is found for each below
                whole = [future for future in futures if future.status == "finished"]
                values = dict(zip([future.key for future in whole], self._client.gather(whole), strict=True))
            for future in futures:
                with self._lock:
                    task, _ = self._running.pop(future.key, (None, None))
                if task is not None and not self._ended:
                    self._came(task, future, values)

    def _came(self, task: Task[Any], future: Any, values: Mapping[str, Any]) -> None:
        """Note what became of a task."""
        try:
            kind, value = values[future.key] if future.key in values else future.result()
        except Exception as e:
            if future.status == "error" and type(e).__name__ == "KilledWorker":
                self._raised(task, Died())
            elif future.status == "error":
                self._raised(task, e)
            else:
                self._lost(e)
            return
        if kind == "result":
            self._answered(task, value)
        else:
            self._raised(task, value)

    def _hear(self, event: tuple[float, Any]) -> None:
        """Pass on a report, in its turn. Called in dask's own thread, which must not wait for files."""
        key, content = event[1]
        with self._lock:
            task, _ = self._running.get(key, (None, None))
        if task is not None:
            self._listener.submit(self._told, task, content)

    def _told(self, task: Task[Any], content: bytes) -> None:
        try:
            self._reported(task, pickle.loads(content))
        except Exception as e:  # such as a full disk
            self._raised(task, e)

    def _lost(self, error: Exception) -> None:
        self._end(WorkStopped(f"the scheduler {self._where} is lost ({type(error).__name__}): start it again"))

    def _watch(self) -> None:
        """Look which workers there are, and ask new ones what they are, until the pool is closed."""
        seen = time.monotonic()
        while not self._closing.wait(WATCH_S if self._threads else WATCH_S / 10):
            try:
                listed = self._client.scheduler_info(n_workers=-1)["workers"]
                if self._open and not listed:
                    self._wanted = self._client.submit(int, key=f"{self._name}-wanted")  # so that a cluster scales up
                seen = time.monotonic()
            except Exception as e:  # tasks that were sent tell at once that the scheduler is gone, waiting ones do not
                if time.monotonic() - seen > CONNECT_S:
                    self._lost(e)
                continue
            accepted = {a: w["nthreads"] for a, w in listed.items() if self._resource in w["resources"]}
            with self._lock:
                if not (accepted and self._threads):
                    # What is sent while no worker is accepted does not wake up when one is: it must be sent again.
                    self._held += [task for task, _ in self._running.values()]
                    self._running, self._parcels = {}, {}
                gone = [address for address in self._threads if address not in accepted]
                self._threads = accepted
                held, self._held = (self._held, []) if accepted else ([], self._held)
                new = [a for a in listed if a not in accepted and a not in self._asked]
                self._asked = {a: why for a, why in self._asked.items() if a in listed} | dict.fromkeys(new, "")
            for address in gone:
                self.line.note(f"worker {address} has gone: what it was doing is done again")
            for task in held:
                self._begin(task)
            for address in new:
                threading.Thread(target=self._ask, args=(address, listed[address]["name"]), daemon=True).start()

    def _ask(self, address: str, name: object) -> None:
        """Ask a worker what it computes with. If that is what this process does, it gets tasks from now on."""
        try:
            answer = self._client.run(introduce, self._identity, self._settings, self._resource, workers=[address],
                                      on_error="return")[address]  # fmt: skip
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
            self._end(InputError(f"--cluster {self._where}: every worker is refused: install there what is here"))

    def _why_silent(self) -> str:
        return "" if self._threads else f": no worker at {self._where} yet"

    def _release(self) -> None:
        if self._closing.is_set():
            return
        self._closing.set()
        self._watcher.join(CONNECT_S)
        with _quiet():
            with self._lock:
                futures = [future for _, future in self._running.values()]
                addresses = list(self._threads)
            if self._client.status == "running":
                self._client.cancel(futures)
                self._client.run(end_idle, workers=addresses, on_error="ignore", wait=False)
        with _quiet():
            self._client.close(timeout=CONNECT_S)
        with _quiet():
            if self._cluster is not None:
                self._cluster.close(timeout=CONNECT_S)
        self._arrived.put(None)
        self._collector.join(CONNECT_S)
        self._listener.shutdown()


@contextmanager
def _quiet() -> Iterator[None]:
    """A context for goodbyes: who is gone already need not hear them."""
    with suppress(Exception), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _own_identity(settings: Mapping[str, str]) -> dict[str, str]:
    """What a worker process of this machine computes with."""
    if processes.settled():
        return identity()
    process = WorkerProcess(settings)
    try:
        own: dict[str, str] = process.call(Call(identity))
    finally:
        process.close()
    return own
