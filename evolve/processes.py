"""Processes: how many cores there are, workers that end with their parent, and linear algebra with the same digits.

OpenBLAS, which comes with numpy and scipy, picks its kernels by the processor it finds. Different kernels add up in a
different order, so fitted constants differ in the sixth digit and archives from there on. `settle` prevents that.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType

THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
KERNELS = "Haswell"  # OpenBLAS's name for its AVX2 kernels, which any x86 server of the last ten years can run


class WorkStopped(RuntimeError):
    """Work that cannot go on for a reason outside the program and its input. One line, which ends with the remedy."""


_late = False  # whether `settle` came too late for this process


def settle() -> None:
    """Fix OpenBLAS to one thread and one set of kernels, unless the user's environment says otherwise.

    OpenBLAS reads these settings when numpy is imported. If that has happened already, only processes that are started
    from now on have them, see `settled`.
    """
    global _late
    for name in THREADS:
        os.environ.setdefault(name, "1")
    if "OPENBLAS_CORETYPE" not in os.environ and has_avx2():
        os.environ["OPENBLAS_CORETYPE"] = KERNELS
        _late = "numpy" in sys.modules


def settled() -> bool:
    """Whether linear algebra in this process has the digits that it has in worker processes and on the command line."""
    return not _late


def has_avx2() -> bool:
    """Whether the first processor is an x86 with AVX2. Always False where there is no /proc/cpuinfo."""
    try:
        with open("/proc/cpuinfo", encoding="ascii", errors="replace") as f:
            return " avx2 " in f.read(8192)  # the first processor's flags, all on one line
    except OSError:
        return False


def available_cores() -> int:
    """The number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextmanager
def deaf_to_interrupts() -> Iterator[None]:
    """A context in which new processes are started with Ctrl-C ignored, so that only the parent reacts to it.

    In a thread other than the main one, which may not set signals, it changes nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def without_main() -> Iterator[None]:
    """A context in which new processes do not import the main module of this one.

    Workers need nothing of it. A user's script that searches, and does not guard that, would search again in each.
    """
    main = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


def end_with_parent() -> None:
    """Make this worker exit as soon as its parent has: a parent that was killed cannot end its workers."""
    threading.Thread(target=_wait_for_parent, daemon=True).start()


def _wait_for_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
