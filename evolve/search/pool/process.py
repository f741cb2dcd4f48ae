"""A worker process: it is sent one call at a time, and killed if the call takes too long.

What a process needs for many calls, such as prepared data, comes in a parcel: it is sent once and kept there.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from multiprocessing import Pipe
from pathlib import Path
from typing import Any

CHILD = "evolve.search.pool.child"


class Died(Exception):
    """A worker process died during a call: killed, or out of memory."""


class TookTooLong(Exception):
    """A call took longer than its limit."""


@dataclass(frozen=True, slots=True)
class Parcel:
    """A function and its arguments, pickled. A process calls it once, and passes the value to all calls of it."""

    content: bytes
    key: str  # hash of the content


@dataclass(frozen=True)
class WorkerCall:
    """A call for a worker process; it must be safe to repeat.

    function: importable by its name. It receives the value of `parcel` first, if there is one, and with `streams`
    another function as the keyword `report`: what it passes to that is sent at once, before the result.
    limit_s: after which the process is killed; None: never.
    """

    function: Callable[..., Any]
    args: tuple[Any, ...] = ()
    parcel: Parcel | None = None
    limit_s: float | None = None
    streams: bool = False

    def message(self, with_parcel: bool) -> bytes:
        """The call as a process is sent it, with or without the content of its parcel."""
        key, content = (self.parcel.key, self.parcel.content) if self.parcel else (None, None)
        return pickle.dumps((replace(self, parcel=None), key, content if with_parcel else None))

    def carried_out(self, first: Sequence[Any], report: Callable[[Any], None]) -> Any:
        """What the function returns in this process. `first`: the value of the parcel, if there is one."""
        more = {"report": report} if self.streams else {}
        return self.function(*first, *self.args, **more)


def parcel(prepare: Callable[..., Any], *args: Any) -> Parcel:
    """The parcel of calling `prepare(*args)`."""
    content = pickle.dumps((prepare, args))
    return Parcel(content, hash_of(content))


def parcel_of(*values: Any) -> Parcel:
    """The parcel of these values, for calls that need them as they are."""
    return parcel(_values, *values)


def _values(*values: Any) -> tuple[Any, ...]:
    return values


def hash_of(content: bytes) -> str:
    """The hash by which a process knows a parcel."""
    return blake2b(content, digest_size=16).hexdigest()


class WorkerProcess:
    """A process that carries out calls, one at a time. It ends when its owner does, or when nothing holds it any more.

    settings: environment variables in addition to the owner's. idle_s: it also ends after so many seconds without a
    call.
    """

    def __init__(self, settings: Mapping[str, str], idle_s: float | None = None) -> None:
        self.settings = dict(settings)
        self._connection, theirs = Pipe()
        # Not a process of multiprocessing: a daemon of theirs, such as a worker of dask, may not have children.
        code = f"import sys; sys.path[:] = {sys.path!r}; from {CHILD} import serve; serve({theirs.fileno()}, {idle_s})"
        self._process = subprocess.Popen(
            [sys.executable, "-c", code],
            env={**os.environ, **settings},
            pass_fds=[theirs.fileno()],
            stdin=subprocess.PIPE,  # closed when the owner dies: the process waits for that
            process_group=0,  # Ctrl-C in a terminal is for the owner alone
        )
        theirs.close()
        self.idle = True  # whether it waits for a call; if it does not after one, it is of no more use
        self._holds: set[str] = set()  # keys of the parcels whose values the process keeps

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether the process has not ended yet."""
        return self._process.poll() is None

    @property
    def stopped(self) -> bool:
        """Whether the process is stopped by a signal. False where there is no /proc."""
        try:
            return Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"
        except OSError:
            return False

    def call(self, call: WorkerCall, heard: Callable[[Any], None] = lambda value: None) -> Any:
        """The result of a call; `heard` receives what the function reports before. What it raised is raised here.

        Raises Died, and TookTooLong once the limit is over.
        """
        key = call.parcel.key if call.parcel else None
        message = call.message(with_parcel=key not in self._holds)
        self.idle = False
        self._send(message)
        deadline = None  # what the process prepares before it begins does not count
        while True:
            kind, value = self._receive(deadline)
            if kind == "begun":
                self._holds = self._holds - {value} | ({key} if key else set())
                deadline = None if call.limit_s is None else time.monotonic() + call.limit_s
            elif kind == "line":
                heard(value)
            else:
                self.idle = True
                if kind == "raised":
                    raise value
                return value

    def _send(self, message: bytes) -> None:
        try:
            self._connection.send_bytes(message)
        except OSError:
            raise Died from None

    def _receive(self, deadline: float | None) -> tuple[str, Any]:
        try:
            if deadline is not None and not self._connection.poll(max(deadline - time.monotonic(), 0.0)):
                raise TookTooLong
            answer = self._connection.recv_bytes()
        except (EOFError, OSError):
            raise Died from None
        kind, value = pickle.loads(answer)
        return kind, value

    def kill(self) -> None:
        """End the process. A call that waits for it raises Died."""
        self._process.kill()  # a stopped process does not hear a request to terminate
        self._process.wait()

    def close(self) -> None:
        """End the process, and let go of what its owner holds of it. Nothing may be waiting for it."""
        self.kill()
        self._connection.close()
        assert self._process.stdin
        self._process.stdin.close()
