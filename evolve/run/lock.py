"""The lock on the folder of a run, study or bench: one process works on it at a time, and others see that."""

from __future__ import annotations

import fcntl
from pathlib import Path
from typing import IO

from simulator.common.errors import InputError, unwritable
from simulator.common.files import plain_file


def lock(path: Path) -> IO[str]:
    """A lock on the folder of a run or study, held until the file is closed or the process dies.

    Raises InputError if another process holds it.
    """
    try:
        handle = open(path / ".lock", "a", opener=plain_file)  # noqa: SIM115
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BaseException:
            handle.close()
            raise
    except BlockingIOError:
        raise InputError(f"{path}: another process is working on this run: wait for it, or stop it") from None
    except OSError as e:
        raise unwritable(path, e, "check the folder's permissions") from None
    return handle


def locked(path: Path) -> bool:
    """Return True if another process holds the lock on the folder. Writes nothing, and keeps no lock."""
    try:
        with open(path / ".lock", opener=plain_file) as handle:
            fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)  # let go when the file is closed
    except BlockingIOError:
        return True
    except (OSError, InputError):
        return False  # a run that no process ever worked on, a folder that is gone, or no lock of ours
    return False
