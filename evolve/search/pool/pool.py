"""A pool carries out calls in worker processes. If a process dies or hangs, another one does its work again."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, InvalidStateError, wait
from contextlib import suppress
from typing import Any, Protocol, TypeVar

from evolve.output.progress import Line
from evolve.processes import WorkStopped
from evolve.search.pool.process import Died, TookTooLong, WorkerCall

SILENT_S = 60.0  # without an answer, after which the progress line says so
DEATHS = 3  # in a row, without an answer in between, after which the work is stopped
TRIES = 2  # of a call that takes too long

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class Promise(Protocol[T_co]):
    """A value that is being computed, possibly in another process."""

    def result(self) -> T_co:
        """The value, waited for. What the computation raised is raised here."""


def at_once(compute: Callable[[], T_co]) -> Promise[T_co]:
    """The promise of a value that is computed now, in this process."""
    future: Future[T_co] = Future()
    try:
        future.set_result(compute())
    except Exception as e:
        future.set_exception(e)
    return future


class Closed(Exception):
    """The pool was closed before the task had its answer."""


class Task(Future[T]):
    """A call that a pool carries out. Of several tasks, that with the lowest `number` comes first."""

    def __init__(self, pool: Pool, call: WorkerCall, number: int, heard: Callable[[Any], None]) -> None:
        super().__init__()
        self.call, self.number, self.heard, self._pool = call, number, heard, pool
        self.late = 0  # how often it took too long

    def result(self, timeout: float | None = None) -> T:
        """The answer, waited for; exceptions of the call are raised here.

        Raises TookTooLong if the call has taken too long TRIES times, WorkStopped if the pool cannot go on, and Closed.
        """
        while not wait([self], 1.0).done:
            self._pool.silent()
        return super().result(timeout)

    def fail(self, error: BaseException) -> None:
        """Set the exception that `result` raises, unless the task has an answer."""
        with suppress(InvalidStateError):
            self.set_exception(error)


class Pool:
    """The place that carries out calls, for any number of threads. Deaths and silence are reported on the `line`."""

    here = False  # True if calls are carried out in this process, as soon as they are submitted

    def __init__(self, line: Line) -> None:
        self.line = line
        self._lock = threading.Lock()
        self._open: set[Task[Any]] = set()  # submitted and not answered
        self._ended: Exception | None = None  # why no more tasks are carried out
        self._deaths = 0  # since the last answer
        self._heard = time.monotonic()  # when the last answer came, or the first task after it was submitted

    def submit(
        self, call: WorkerCall, number: int = 0, heard: Callable[[Any], None] = lambda value: None
    ) -> Promise[Any]:
        """The task of carrying out a call; `heard` receives its reports before the result, in a thread.

        Raises WorkStopped if the pool cannot go on, and Closed.
        """
        task: Task[Any] = Task(self, call, number, heard)
        with self._lock:
            self.check()
            if not self._open:
                self._heard = time.monotonic()
            self._open.add(task)
        self._begin(task)
        return task

    def close(self) -> None:
        """End the work. Waiting for a task that is not answered raises Closed from now on."""

        def close() -> None:
            self._end(Closed())
            self._release()

        closing = threading.Thread(target=close)  # a second Ctrl-C interrupts the waiting, and not the closing
        closing.start()
        closing.join()

    def check(self) -> None:
        """Raises what `submit` would raise: WorkStopped if the pool cannot go on, and Closed."""
        if self._ended:
            raise self._ended

    def all_of(self, calls: Sequence[WorkerCall], noun: str) -> list[Any]:
        """The values of these calls in order, with a progress line that counts them as `noun`."""

        def progress(done: int) -> None:
            workers = self.state()
            self.line.update(lambda: f"{done}/{len(calls)} {noun}{f', {workers}' if workers else ''}")

        try:
            waiting = list[Promise[Any]]()
            for i, call in enumerate(calls):
                waiting.append(self.submit(call, i))
                if self.here:  # a call is done when it is submitted
                    progress(i + 1)
            values = []
            for promise in waiting:
                values.append(promise.result())
                progress(len(values))
            return values
        finally:
            self.line.close()

    def state(self) -> str:
        """The number of workers and of waiting tasks in words; "" where these say nothing new."""
        return ""

    def silent(self) -> None:
        """Report that no answer has come for a while, and why if that is known."""
        seconds = time.monotonic() - self._heard
        if seconds >= SILENT_S:
            self.line.update(
                lambda: f"workers: no answer for {seconds:.0f} s{self._why_silent() or ', still computing'}"
            )

    def _begin(self, task: Task[Any]) -> None:
        """Start to carry out a task, or start again."""
        raise NotImplementedError

    def _release(self) -> None:
        """Let go of processes and connections."""

    def _why_silent(self) -> str:
        return ""

    def _reported(self, task: Task[Any], value: Any) -> None:
        self._heard = time.monotonic()
        task.heard(value)

    def _answered(self, task: Task[Any], value: Any) -> None:
        self._done(task)
        with suppress(InvalidStateError):  # it has an answer
            task.set_result(value)

    def _raised(self, task: Task[Any], error: Exception) -> None:
        """Do a task again if its process died or hung, or pass its exception on."""
        if self._ended:
            task.fail(self._ended)
        elif isinstance(error, Died):
            self._deaths += 1
            if self._deaths > DEATHS:
                cause = f"worker processes died {self._deaths} times in a row (killed, or out of memory)"
                self._end(WorkStopped(f"{cause}: use fewer --workers, or free memory"))
            else:
                self.line.note("a worker process died (killed, or out of memory): another one does its work again")
                self._begin(task)
        elif isinstance(error, TookTooLong) and task.late + 1 < TRIES:
            task.late += 1
            self.line.note(f"no result within {task.call.limit_s:g} s: another process does the work again")
            self._begin(task)
        else:
            self._done(task)
            task.fail(error)

    def _end(self, why: Exception) -> None:
        """Carry out no more tasks."""
        with self._lock:
            self._ended = self._ended or why
            left = list(self._open)
        for task in left:
            task.fail(self._ended)

    def _done(self, task: Task[Any]) -> None:
        with self._lock:
            self._open.discard(task)
            self._deaths, self._heard = 0, time.monotonic()
