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


def _cache_folder() -> Path:
    here = Path(__file__).parent
    digest = hashlib.sha256()
    for path in sorted([*here.glob("*.py"), *here.glob("language/*.py"), *here.parent.glob("evaluator/meanfield.py")]):
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


def njit(function: F) -> F:
    """The compiled function, to its callers the same as the function itself."""
    compiled: F = numba.njit(function, cache=True, error_model="numpy")
    return compiled
