"""What worker processes do in tests of the pool. A worker imports this module alone, so that it starts at once."""

from __future__ import annotations

import os
import signal
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
    return "done"


def dies() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def refuses() -> None:
    raise ValueError("no")
