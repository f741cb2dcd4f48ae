"""numba's `njit` as this project uses it: IEEE division, compiled once and kept on disk.

numba notices changes of a function's own file only, not of what it calls. So the cache folder is named after all
the sources that compiled code is made from: a new version never runs with an old version's machine code.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import numba
from numba.core.cpu import CPUTargetOptions


def _cache_folder() -> Path:
    here = Path(__file__).parent
    digest = hashlib.sha256()
    for path in sorted([*here.rglob("*.py"), *here.parent.glob("evaluator/fit/meanfield.py")]):
        digest.update(path.read_bytes())
    name = digest.hexdigest()[:16]
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "evolve-latency" / name
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:  # no home, or a read-only one: compiled code then lasts as long as the temporary folder
        folder = Path(tempfile.gettempdir()) / f"evolve-latency-{os.getuid()}-{name}"
    return folder


if "NUMBA_CACHE_DIR" not in os.environ:  # the user's own choice wins
    numba.config.CACHE_DIR = str(_cache_folder())  # type: ignore[attr-defined]

F = TypeVar("F", bound=Callable[..., Any])


OPTIONS: dict[str, Any] = {"error_model": "numpy"}
# Without numba's reference counts, atomic ones at every use of an array, the clocks run twice as fast. The switch is
# numba's own for targets that make no arrays, and so may these functions not.
if hasattr(CPUTargetOptions, "_nrt"):
    OPTIONS["_nrt"] = False


def njit(function: F) -> F:
    """The compiled function, to its callers the same as the function itself. It may not make arrays."""
    compiled: F = numba.njit(function, cache=True, **OPTIONS)
    return compiled


def inlined(function: F) -> F:
    """`njit`, put in place where it is called: tuples of arrays are dear to pass."""
    compiled: F = numba.njit(function, inline="always", **OPTIONS)
    return compiled
