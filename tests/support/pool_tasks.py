"""What worker processes do in tests of the pool. A worker imports this module alone, so that it starts at once."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path


def prepare(number: int) -> int:
    return number


def times(prepared: int, factor: int) -> int:
    return factor * prepared


def pid() -> int:
    return os.getpid()


def dies_once(marker: str) -> str:
    """Kill this process at the first call, as the system does when memory runs out."""
    if not Path(marker).exists():
        Path(marker).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return "done"


def hangs_once(marker: str) -> str:
    """Never return at the first call."""
    if not Path(marker).exists():
        Path(marker).touch()
        time.sleep(600)
    return "done"


def hangs() -> None:
    time.sleep(600)


def dies() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def runs_out_of_memory() -> None:
    raise MemoryError


def refuses() -> None:
    raise ValueError("no")


def refuses_strangely() -> None:
    """Raise an exception that cannot be read again in another process."""

    class Strange(Exception):
        pass

    raise Strange("no way")


def writes(path: str, text: str) -> None:
    with open(path, "a") as file:
        file.write(text)


def counts(most: int, report: Callable[[int], None]) -> int:
    for number in range(most):
        report(number)
    return most


def slowly(prepared: int, seconds: float) -> int:
    time.sleep(seconds)
    return prepared


def full(report: object) -> None:
    """Hear a report as a full disk does."""
    raise OSError(28, "No space left on device", "journal.jsonl")
