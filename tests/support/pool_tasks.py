"""What worker processes do in tests of the pool. A worker imports this module alone, so that it starts at once."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path


def prepare(number: int) -> None:
    os.environ["PREPARED"] = str(number)


def prepared(factor: int) -> int:
    return factor * int(os.environ["PREPARED"])


def dies_once(marker: str) -> str:
    """Kill this process at the first call, as the system does when memory runs out."""
    if not Path(marker).exists():
        Path(marker).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    Path(f"{marker}.done").touch()
    return "done"


def prepared_after(marker: str, factor: int) -> int:
    """What `prepared` returns, once `dies_once` has been called a second time."""
    deadline = time.monotonic() + 30
    while not Path(f"{marker}.done").exists():
        if time.monotonic() > deadline:
            raise TimeoutError("it was not called again")
        time.sleep(0.01)
    return prepared(factor)


def dies() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def refuses() -> None:
    raise ValueError("no")
