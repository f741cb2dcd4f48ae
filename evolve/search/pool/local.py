"""The pools of this machine: this process alone, or worker processes that a queue keeps busy."""

from __future__ import annotations

import heapq
import threading
from collections.abc import Callable
from functools import partial
from itertools import count
from typing import Any

from evolve import processes
from evolve.output.progress import Line
from evolve.search.pool.pool import Pool, Promise, Task, at_once
from evolve.search.pool.process import Kept, WorkerCall, WorkerProcess
from simulator.common.errors import InputError

MOST = 1000  # workers: each is a process, and a thread here


class Here(Pool):
    """This process: it carries out a call as soon as it is submitted. No limit stops one."""

    here = True

    def __init__(self, line: Line) -> None:
        super().__init__(line)
        self._kept = Kept()

    def submit(
        self, call: WorkerCall, number: int = 0, heard: Callable[[Any], None] = lambda value: None
    ) -> Promise[Any]:
        def compute() -> Any:
            first = [self._kept.of(call.parcel.key, call.parcel.content)[0]] if call.parcel else []
            return call.carried_out(first, heard)

        return at_once(compute)


class LocalPool(Pool):
    """Worker processes, each started when it first has work. A thread for each hands it task after task."""

    def __init__(self, workers: int, line: Line) -> None:
        super().__init__(line)
        self._waiting: list[tuple[int, int, Task[Any]]] = []  # a heap by number, then by when the task came
        self._came = count().__next__
        self._ready = threading.Condition(self._lock)
        self._processes: set[WorkerProcess] = set()
        self._threads = [threading.Thread(target=self._work, daemon=True) for _ in range(workers)]
        for thread in self._threads:
            thread.start()

    def _begin(self, task: Task[Any]) -> None:
        with self._ready:
            heapq.heappush(self._waiting, (task.number, self._came(), task))
            self._ready.notify()

    def _release(self) -> None:
        with self._ready:
            self._ready.notify_all()
            left = list(self._processes)
        for process in left:
            process.kill()
        for thread in self._threads:
            thread.join()

    def _work(self) -> None:
        process: WorkerProcess | None = None
        while (task := self._next()) is not None:
            try:
                process = process or self._started()
                self._answered(task, process.call(task.call, partial(self._reported, task)))
            except Exception as e:
                if process and not process.idle:
                    self._gone(process)
                    process = None
                self._raised(task, e)
        if process:
            self._gone(process)

    def _next(self) -> Task[Any] | None:
        """The first task, waited for; None once the pool is closed."""
        with self._ready:
            self._ready.wait_for(lambda: self._ended or self._waiting)
            return None if self._ended else heapq.heappop(self._waiting)[-1]

    def _started(self) -> WorkerProcess:
        process = WorkerProcess(processes.settings())
        with self._lock:
            if self._ended:
                process.close()
                raise self._ended
            self._processes.add(process)
        return process

    def _gone(self, process: WorkerProcess) -> None:
        with self._lock:
            self._processes.discard(process)
        process.close()

    def _why_silent(self) -> str:
        with self._lock:
            stopped = [str(p.pid) for p in self._processes if p.stopped]
        return f": stopped: process {', '.join(stopped)} (kill -CONT makes it go on)" if stopped else ""


def local(workers: int, line: Line) -> Pool:
    """The pool of so many worker processes; this process instead of a single one, if it computes as that would.

    Raises InputError for more than MOST.
    """
    if workers > MOST:
        raise InputError(f"{workers} workers: give at most {MOST}")
    return Here(line) if workers == 1 and processes.settled() else LocalPool(workers, line)
