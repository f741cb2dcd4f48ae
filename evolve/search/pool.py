"""A pool of worker processes. One that dies is replaced, and what it was doing is done again."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from pathlib import Path
from typing import Any, Generic, ParamSpec, TypeVar

from evolve.processes import WorkStopped, deaf_to_interrupts, without_main
from evolve.report.progress import Line

SILENT_S = 60.0  # without an answer, after which the progress line says so
DEATHS = 3  # in a row, without an answer in between, after which the work is stopped

P = ParamSpec("P")
T = TypeVar("T")


class Pool:
    """`count` processes, each prepared by `prepare(*data)`. `line` is where deaths and silence are reported.

    Tasks must be safe to repeat: when a process dies, all that it and the others were doing is done again.
    """

    def __init__(self, count: int, prepare: Callable[..., None], data: tuple[Any, ...], line: Line) -> None:
        self._count, self._prepare, self._data, self._line = count, prepare, data, line
        self._open: list[Task[Any]] = []  # submitted and not answered
        self._deaths = 0  # since the last answer
        self._heard = time.monotonic()  # when the last answer came, or the first task after it was submitted
        self._executor = self._start()

    def submit(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> Task[T]:
        """The task of calling a function in one of the processes."""
        if not self._open:
            self.heard()
        task = Task(self, partial(call, *args, **kwargs))
        self._open.append(task)
        self.begin(task)
        return task

    def close(self) -> None:
        """End the processes. Tasks that are not answered never will be."""
        self._executor.shutdown(wait=False, cancel_futures=True)
        for process in self._processes:
            process.kill()  # a stopped process does not hear a request to terminate
            process.join()

    def begin(self, task: Task[Any]) -> None:
        """Start the task, or start it again."""
        try:
            task.running = self._executor.submit(task.call)
        except BrokenProcessPool:
            self._replace()
            task.running = self._executor.submit(task.call)

    def answered(self, task: Task[Any]) -> None:
        """Note that a task has its answer."""
        self._open.remove(task)
        self._deaths = 0
        self.heard()

    def heard(self) -> None:
        """Note a sign of life: silence is measured from now on."""
        self._heard = time.monotonic()

    def died(self, task: Task[Any]) -> None:
        """Replace the processes after one has died, unless another task has noticed before, and start its tasks again.

        Raises WorkStopped if that does not help.
        """
        broken = task.running
        self._replace()
        for other in self._open:
            if other.running is broken or isinstance(other.running.exception(), BrokenProcessPool):
                self.begin(other)

    def silent(self) -> None:
        """Report that no answer has come for a while, and which processes are stopped."""
        seconds = time.monotonic() - self._heard
        if seconds >= SILENT_S:
            stopped = [p.pid for p in self._processes if p.pid and _is_stopped(p.pid)]
            why = f": stopped: process {', '.join(map(str, stopped))} (kill -CONT makes it go on)" if stopped else ""
            self._line.update(lambda: f"no answer for {seconds:.0f} s{why}")

    def _replace(self) -> None:
        self._deaths += 1
        if self._deaths > DEATHS:
            raise WorkStopped(
                f"worker processes died {self._deaths} times in a row (killed, or out of memory): use fewer --workers, "
                "or free memory"
            )
        self._line.note("a worker process died (killed, or out of memory): another one does its work again")
        self.close()
        self._executor = self._start()

    def _start(self) -> ProcessPoolExecutor:
        context = multiprocessing.get_context("spawn")
        executor = ProcessPoolExecutor(self._count, context, self._prepare, self._data)
        others = multiprocessing.active_children()  # of a library user, say
        with deaf_to_interrupts(), without_main():  # this process handles Ctrl-C, and ends the workers
            for _ in range(self._count):
                executor.submit(int)
        self._processes = [p for p in multiprocessing.active_children() if p not in others]
        return executor


class Task(Generic[T]):
    """A call that a process of a pool carries out."""

    def __init__(self, pool: Pool, call: Callable[[], T]) -> None:
        self._pool, self.call = pool, call
        self.answered = False
        self.running: Future[T] = Future()  # the current attempt

    def ready(self, timeout_s: float) -> bool:
        """Whether the answer has come, or comes within this time. Raises WorkStopped if processes keep dying."""
        try:
            self.running.exception(timeout_s)
        except TimeoutError:
            self._pool.silent()
            return False
        if isinstance(self.running.exception(), BrokenProcessPool):
            self._pool.died(self)
            return False
        return True

    def result(self) -> T:
        """The answer, waited for; what the call raised is raised here."""
        while not self.ready(1.0):
            pass
        if not self.answered:
            self.answered = True
            self._pool.answered(self)
        return self.running.result()


def _is_stopped(pid: int) -> bool:
    """Whether a process is stopped by a signal. False where there is no /proc."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"
    except OSError:
        return False
