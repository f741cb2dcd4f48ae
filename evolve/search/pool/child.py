"""What a worker process does: it carries out the calls that its owner sends, see evolve.search.pool.process."""

from __future__ import annotations

import gc
import os
import pickle
import threading
import traceback
from collections import OrderedDict
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

from evolve.search.pool.process import hash_of

MOST_KEPT = 16  # values of parcels that a process keeps, the latest used; prepared data takes about 20 MB


class Kept:
    """The values of parcels, each computed once."""

    def __init__(self) -> None:
        self._values: OrderedDict[str, Any] = OrderedDict()

    def __contains__(self, key: str) -> bool:
        return key in self._values

    def of(self, key: str, content: bytes | None) -> tuple[Any, str | None]:
        """The value of a parcel, and the key of the one that made room for it, if any.

        Raises ValueError if the content is not what the key says.
        """
        dropped = None
        if key not in self._values:
            if content is None or hash_of(content) != key:
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
    """Carry out one call."""

    def send(kind: str, value: Any) -> None:
        connection.send_bytes(pickle.dumps((kind, value)))

    try:
        call, key, content = pickle.loads(message)
        first, dropped = [], None
        if key is not None:
            new = key not in kept
            value, dropped = kept.of(key, content)
            first = [value]
            if new:  # garbage collection need not look through it again and again
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
    """The answer that a call raised this."""
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
