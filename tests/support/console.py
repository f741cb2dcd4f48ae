"""The console script, as users start it. (Python ends `-m evolve` by the signal where an interrupt came in an unlucky
moment; a shell's status is the same.)"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

EVOLVE = (sys.executable, str(Path(sys.executable).with_name("evolve")))
TIMEOUT_S = 300


def wait_for(met: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    """Until something is met that the process, of a group of its own, does before it ends."""
    deadline = time.monotonic() + TIMEOUT_S
    while not met():
        if process.poll() is not None or time.monotonic() > deadline:
            raise AssertionError(f"it never came to that; the process said: {kill(process)}")
        time.sleep(0.01)


def wait_until(ready: Callable[[], object], limit_s: float, why: Callable[[], str] = lambda: "") -> None:
    """Return once `ready` is true. Raises TimeoutError, which says `why`, if it is not in time."""
    deadline = time.monotonic() + limit_s
    while not ready():
        if time.monotonic() > deadline:
            raise TimeoutError(why())
        time.sleep(0.05)


def kill(process: subprocess.Popen[str]) -> str:
    """End it and its workers; what it had written to stderr."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    return process.communicate()[1]
