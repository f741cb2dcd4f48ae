"""Processes: how many workers, and linear algebra with the same digits in all processes.

OpenBLAS, which comes with numpy and scipy, picks its kernels by the processor it finds. Different kernels add up in a
different order, so fitted constants differ in the sixth digit and archives from there on. `settle` prevents that.
It also keeps litellm from downloading its list of prices, which may differ from day to day.
"""

from __future__ import annotations

import os
import resource
import sys
from contextlib import suppress
from pathlib import Path

from simulator.common.errors import InputError

THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
CORETYPE = "OPENBLAS_CORETYPE"
KERNELS = "Haswell"  # OpenBLAS's name for its AVX2 kernels, which any x86 server of the last ten years can run

POOL = "ARROW_DEFAULT_MEMORY_POOL"  # Arrow's own allocator reserves 1 GiB of address space, however much is left
LEAST_BYTES = 1 << 30  # of address space: with less, libraries fail in ways of their own or compute forever

# Of a search on the bundled runs, measured while it compiles: resident memory, without libraries that processes share.
MAIN_BYTES = 400 << 20
WORKER_BYTES = 450 << 20
LIMITS = {"": "memory.max", "memory": "memory.limit_in_bytes"}  # files of control groups, of versions 2 and 1

LOCAL_PRICES = {"LITELLM_LOCAL_MODEL_COST_MAP": "True"}  # litellm uses the price list that comes with it


class WorkStopped(RuntimeError):
    """Work that cannot go on for a reason outside the program and its input. One line, which ends with the remedy."""


_late = False  # True if `settle` came too late for this process


def settings() -> dict[str, str]:
    """Environment variables that fix OpenBLAS to one thread and one set of kernels, and litellm to its own price list.

    OpenBLAS reads them when numpy is imported, and Arrow its own; the user's own come first. litellm reads its own when
    it is imported.
    """
    fixed = dict.fromkeys(THREADS, "1") | ({CORETYPE: KERNELS} if has_avx2() else {}) | {POOL: "system"}
    return fixed | {name: os.environ[name] for name in (*THREADS, CORETYPE, POOL) if name in os.environ} | LOCAL_PRICES


def check_memory() -> None:
    """Raise InputError if `ulimit -v` leaves the libraries too little. Call before numpy is imported."""
    room, _ = resource.getrlimit(resource.RLIMIT_AS)
    if room != resource.RLIM_INFINITY and room < LEAST_BYTES:
        raise InputError(f"`ulimit -v` allows {room >> 20} MiB of memory: allow at least {LEAST_BYTES >> 20}")


def settle() -> None:
    """Give this process the `settings`.

    If numpy is imported already, only processes that are started from now on have them, see `settled`.
    """
    global _late
    fixed = settings()
    if CORETYPE in fixed and CORETYPE not in os.environ:
        _late = "numpy" in sys.modules
    os.environ.update(fixed)


def settled() -> bool:
    """True if linear algebra here has the same digits as in worker processes and on the command line."""
    return not _late


def has_avx2() -> bool:
    """True if the first processor is an x86 with AVX2. False without /proc/cpuinfo."""
    try:
        with open("/proc/cpuinfo", encoding="ascii", errors="replace") as f:
            return " avx2 " in f.read(8192)  # the first processor's flags, all on one line
    except OSError:
        return False


def default_workers(root: Path = Path("/")) -> int:
    """The number of workers if the user names none: one for each core, but no more than the memory has room for.

    root: the folder that has `proc` and `sys`.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    room_bytes = _allowed_bytes(root) - MAIN_BYTES
    return max(1, min(cores, room_bytes // WORKER_BYTES))


def _allowed_bytes(root: Path) -> int:
    """The memory of this machine, or of this container if its control groups allow less."""
    allowed = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    with suppress(OSError):
        for line in (root / "proc/self/cgroup").read_text().splitlines():
            _, controllers, group = line.split(":", 2)
            name = LIMITS.get(controllers, "")
            own = root / "sys/fs/cgroup" / controllers / group.lstrip("/")
            for folder in (own, *own.parents[: len(Path(group).parts) - 1]) if name else ():
                with suppress(OSError, ValueError):  # none there, or "max"
                    allowed.append(int((folder / name).read_text()))
    return min(allowed)
