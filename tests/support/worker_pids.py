"""The worker processes of a process, by their command line."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path


def worker_pids(parent: int | None = None) -> list[int]:
    """The ids of the worker processes that this process, or another one, has started."""
    found = []
    for task in Path(f"/proc/{parent or os.getpid()}/task").glob("*/children"):
        with suppress(OSError):  # a thread that has just ended
            for pid in task.read_text().split():
                with suppress(OSError):  # a process that has just ended
                    if b"evolve.search.pool.process" in Path(f"/proc/{pid}/cmdline").read_bytes():
                        found.append(int(pid))
    return found
