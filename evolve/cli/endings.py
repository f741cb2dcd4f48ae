"""Endings of commands: JSON on stdout, or one line on stderr with an exit status."""

from __future__ import annotations

import errno
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Protocol, TypeVar

from evolve.output.terminal import say
from evolve.processes import WorkStopped
from simulator.common.json import JsonObject


def fail(message: str, status: int) -> int:
    """Print the message as one line on stderr, and return `status`."""
    with suppress(OSError):  # stderr may be full too; the status remains
        say("evolve: " + " ".join(line.strip() for line in message.splitlines()), err=True)
    return status


def print_json(value: Any) -> None:
    """Print a JSON value on stdout. Raises ValueError if a number in it is not finite."""
    say(json.dumps(value, indent=1, allow_nan=False))


class Result(Protocol):
    """A result that prints as JSON."""

    def to_json(self) -> JsonObject: ...


R = TypeVar("R", bound=Result)


def finish(result: R, as_json: bool, show: Callable[[R], None]) -> None:
    """Print the result as JSON, or with `show` for people."""
    if as_json:
        print_json(result.to_json())
    else:
        show(result)


class Ended(Exception):
    """A command that ends early: the line for stderr and the exit status."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.message, self.status = message, status


@contextmanager
def resumable(continues: str, paid: Callable[[], str] = lambda: "") -> Iterator[None]:
    """Run long work that the command line `continues` resumes.

    Raise Ended after an interruption, or if a file or a process fails. `paid`: costs that an early end may waste.
    """
    try:
        yield
    except KeyboardInterrupt:
        raise Ended(f"interrupted; nothing is lost: `{continues}` goes on{paid()}", 130) from None
    except WorkStopped as e:
        raise Ended(f"{e}; nothing is lost: `{continues}` goes on{paid()}", 1) from None
    except OSError as e:
        if e.filename is None:
            raise  # no file can be named
        gone = e.errno in (errno.ENOENT, errno.ENOTDIR, errno.ESTALE)
        remedy = "put it back where it was" if gone else "make room, or make it writable"
        text = f"{e.filename}: {e.strerror}: {remedy}; then `{continues}` goes on from what is written"
        raise Ended(text, 1) from None
