"""numba's `njit` as this project uses it: IEEE division, compiled once and cached on disk.

numba notices changes in a function's own file only, not in the functions it calls. So the cache folder is named after a
hash of all sources that are compiled: a new version never runs the machine code of an old one.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import numba
from numba.core import event
from numba.core.cpu import CPUTargetOptions


def _cache_folder() -> Path:
    simulator = Path(__file__).parents[1]
    digest = hashlib.sha256()
    for path in sorted([*simulator.rglob("*.py"), *simulator.parent.glob("evaluator/**/*.py")]):
        text = path.read_bytes()
        if simulator in path.parents or b"simulator.common.jit import" in text:
            digest.update(text)
    name = digest.hexdigest()[:16]
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "evolve-latency" / name
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:  # no home folder, or a read-only one: cache in the temporary folder
        folder = Path(tempfile.gettempdir()) / f"evolve-latency-{os.getuid()}-{name}"
    return folder


if "NUMBA_CACHE_DIR" not in os.environ:  # the user's own choice wins
    numba.config.CACHE_DIR = str(_cache_folder())  # type: ignore[attr-defined]

F = TypeVar("F", bound=Callable[..., Any])
# The message meanwhile; it takes 23 s before a prediction and 18 more before a search.
COMPILING = "compiling (once, about half a minute)"

OPTIONS: dict[str, Any] = {"error_model": "numpy"}
# Without numba's reference counts, which are atomic and taken at every use of an array, the clocks run twice as fast.
# The switch is meant for targets that make no arrays, so compiled functions must not make any.
if hasattr(CPUTargetOptions, "_nrt"):
    OPTIONS["_nrt"] = False


class _First(event.Listener):  # type: ignore[misc]
    """Tells of the first compilation. numba reports none for a function that is read from the cache."""

    def __init__(self, tell: Callable[[], None]) -> None:
        self._tell: Callable[[], None] | None = tell

    def on_start(self, event: object) -> None:
        tell, self._tell = self._tell, None
        if tell:
            tell()

    def on_end(self, event: object) -> None:
        pass


def on_first_compilation(tell: Callable[[], None]) -> None:
    """Call `tell` once if this process begins to compile; not if everything it uses is cached."""
    event.register("numba:compile", _First(tell))


def njit(function: F) -> F:
    """The function, compiled. It must not make arrays."""
    compiled: F = numba.njit(function, cache=True, **OPTIONS)
    return compiled


def inlined(function: F) -> F:
    """The function, inlined where compiled functions call it, because passing tuples of arrays is expensive."""
    compiled: F = numba.njit(function, inline="always", **OPTIONS)
    return compiled
