"""A worker process: it is sent one call at a time, and killed if the call takes too long.

What a process needs for many calls, such as prepared data, comes in a parcel: it is sent once and kept there.
"""

from __future__ import annotations

import gc
import os
import pickle
import subprocess
import sys
import threading
import time
import traceback
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from hashlib import blake2b
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from simulator.common.secrets import without_secrets

MOST_KEPT = 16  # values of parcels that a process keeps, the latest used; prepared data takes about 80 MB


class Died(Exception):
    """A worker process died during a call: killed, or out of memory."""


class TookTooLong(Exception):
    """A call took longer than its limit."""


@dataclass(frozen=True, slots=True)
class Parcel:
    """A function and its arguments, pickled. A process calls it once, and passes the value to all calls of it."""

    content: bytes
    key: str  # hash of the content


def parcel(prepare: Callable[..., Any], *args: Any) -> Parcel:
    content = pickle.dumps((prepare, args))
    return Parcel(content, _hash_of(content))


def parcel_of(*values: Any) -> Parcel:
    """The parcel of these values, for calls that need them as they are."""
    return parcel(tuple, values)


def _hash_of(content: bytes) -> str:
    return blake2b(content, digest_size=16).hexdigest()


@dataclass(frozen=True)
class WorkerCall:
    """A call for a worker process; it must be safe to repeat.

    function: importable by its name. It receives the value of `parcel` first, if there is one, and with `streams`
    another function as the keyword `report`, which sends its argument at once, before the result. limit_s: seconds
    after which the process is killed; None: never.
    """

    function: Callable[..., Any]
    args: tuple[Any, ...] = ()
    parcel: Parcel | None = None
    limit_s: float | None = None
    streams: bool = False

    def carried_out(self, first: Sequence[Any], report: Callable[[Any], None]) -> Any:
        """The function's result in this process. `first`: the value of the parcel, if there is one."""
        more = {"report": report} if self.streams else {}
        return self.function(*first, *self.args, **more)


class WorkerProcess:
    """A process that carries out calls, one at a time. It ends with its owner, or when nothing holds it any more.

    settings: environment variables in addition to the owner's, of which it gets no secrets. idle_s: seconds without a
    call after which it ends too.
    """

    def __init__(self, settings: Mapping[str, str], idle_s: float | None = None) -> None:
        self.settings = dict(settings)
        self._connection, theirs = Pipe()
        # Not a process of multiprocessing: a daemon of theirs, such as a worker of dask, may not have children.
        serving = f"from {__name__} import serve; serve({theirs.fileno()}, {idle_s})"
        self._process = subprocess.Popen(
            [sys.executable, "-c", f"import sys; sys.path[:] = {sys.path!r}; {serving}"],
            env={**without_secrets(), **settings},
            pass_fds=[theirs.fileno()],
            stdin=subprocess.PIPE,  # closed when the owner dies: the process waits for that
            process_group=0,  # Ctrl-C in a terminal is for the owner alone
        )
        theirs.close()
        self.idle = True  # it waits for a call; if it does not after one, it is of no more use
        self._holds: set[str] = set()  # keys of the parcels whose values the process keeps

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    @property
    def stopped(self) -> bool:
        """True if a signal has stopped the process. False where there is no /proc."""
        try:
            return Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"
        except OSError:
            return False

    def call(self, call: WorkerCall, heard: Callable[[Any], None] = lambda value: None) -> Any:
        """The result of a call, whose reports `heard` receives. Raises its exceptions, Died and TookTooLong."""
        key, content = (call.parcel.key, call.parcel.content) if call.parcel else (None, None)
        message = pickle.dumps((replace(call, parcel=None), key, None if key in self._holds else content))
        self.idle = False
        try:
            self._connection.send_bytes(message)
        except OSError:
            raise Died from None
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

    def _receive(self, deadline: float | None) -> tuple[str, Any]:
        try:
            if deadline is not None and not self._connection.poll(max(deadline - time.monotonic(), 0.0)):
                raise TookTooLong
            answer = self._connection.recv_bytes()
        except (EOFError, OSError):
            raise Died from None
        received: tuple[str, Any] = pickle.loads(answer)
        return received

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


# in the worker process


class Kept:
    """The values of parcels, each computed once."""

    def __init__(self) -> None:
        self._values: OrderedDict[str, Any] = OrderedDict()

    def of(self, key: str, content: bytes | None) -> tuple[Any, str | None]:
        """The value of a parcel, and the key of the one that made room for it. Raises ValueError for damaged data."""
        dropped = None
        if key not in self._values:
            if content is None or _hash_of(content) != key:
                raise ValueError("the data of a task arrived damaged")
            prepare, args = pickle.loads(content)
            self._values[key] = prepare(*args)
            if len(self._values) > MOST_KEPT:
                dropped, _ = self._values.popitem(last=False)
        self._values.move_to_end(key)
        return self._values[key], dropped


def serve(handle: int, idle_s: float | None) -> None:
    """Carry out calls that arrive at a file descriptor, until the owner closes it or nothing comes for `idle_s`."""
    threading.Thread(target=_end_with_owner, daemon=True).start()
    connection, kept = Connection(handle), Kept()
    try:
        while connection.poll(idle_s):
            _answer(connection, kept, connection.recv_bytes())
    except (EOFError, OSError):
        pass  # the owner is gone
    os._exit(0)  # nothing is to be cleaned up, and threads of libraries are not waited for


def _answer(connection: Connection, kept: Kept, message: bytes) -> None:
    def send(kind: str, value: Any) -> None:
        connection.send_bytes(pickle.dumps((kind, value)))

    try:
        call, key, content = pickle.loads(message)
        first, dropped = [], None
        if key is not None:
            value, dropped = kept.of(key, content)
            first = [value]
            if content is not None:  # it is new, and garbage collection need not look through it again and again
                gc.unfreeze()
                gc.collect()
                gc.freeze()
        send("begun", dropped)
        answer = pickle.dumps(("result", call.carried_out(first, partial(send, "line"))))
    except MemoryError:
        os._exit(1)  # as if the system had killed it: the call is carried out elsewhere
    except Exception as e:
        e.add_note(f"in a worker process:\n{''.join(traceback.format_tb(e.__traceback__))}")
        answer = _raised(e)
    connection.send_bytes(answer)


def _raised(error: Exception) -> bytes:
    try:
        answer = pickle.dumps(("raised", error))
        pickle.loads(answer)
    except Exception:  # an exception that cannot be pickled, or read again
        answer = pickle.dumps(("raised", RuntimeError(f"{type(error).__name__}: {error}")))
    return answer


def _end_with_owner() -> None:
    """Wait until the owner has ended or closed its end of standard input, and end at once, even within a call."""
    while os.read(0, 1):
        pass
    os._exit(1)
