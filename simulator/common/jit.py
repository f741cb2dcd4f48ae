"""numba's `njit` as this project uses it: IEEE division, compiled once and cached on disk.

numba notices changes in a function's own file only, not in the functions it calls. So the cache folder is named after a
hash of all sources that are compiled: a new version never runs the machine code of an old one.
"""

from __future__ import annotations

import errno
import hashlib
import os
import pickle
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import numba
from numba.core import event
from numba.core.caching import CompileResultCacheImpl, FunctionCache
from numba.core.cpu import CPUTargetOptions

from simulator.common.home import home

REMEDY = "every command compiles, for a minute. Set NUMBA_CACHE_DIR to a folder that you can write."
_loss = ""  # why compiled code is not kept; "" while it is
FOLDER = ""  # of compiled code; "" if there is none
_LOSS = "evolve:loss"  # numba's listeners hear of it as an event of this name


def _digest() -> str:
    simulator = Path(__file__).parents[1]
    digest = hashlib.sha256()
    for path in sorted([*simulator.rglob("*.py"), *simulator.parent.glob("evaluator/**/*.py")]):
        text = path.read_bytes()
        if simulator in path.parents or b"simulator.common.jit import" in text:
            digest.update(text)
    return digest.hexdigest()[:16]


def _made(folder: Path, private: bool) -> str:
    """The folder, made if missing, to write in; `private`: no one else can, as numba executes it. Raises OSError."""
    folder.mkdir(0o700, parents=True, exist_ok=True)
    found = folder.lstat()
    if private and (not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o022):
        raise OSError(errno.EPERM, "a link, or others can write it", str(folder))
    if not os.access(folder, os.W_OK | os.X_OK):
        raise OSError(errno.EACCES, os.strerror(errno.EACCES), str(folder))
    return str(folder)


def _own(folder: Path) -> str:
    """The folder of these sources in the project's folder."""
    return _made(Path(_made(folder, private=True)) / _digest(), private=True)


def _cache_folder() -> str:
    """The folder of compiled code: the user's own choice, else in the home folder, else a temporary one. "" if none."""
    try:
        if given := os.environ.get("NUMBA_CACHE_DIR"):
            return _made(Path(given) / _digest(), private=False)
        try:
            return _own(Path(os.environ.get("XDG_CACHE_HOME") or home() / ".cache") / "evolve-latency")
        except OSError:
            return _own(Path(tempfile.gettempdir()) / f"evolve-latency-{os.geteuid()}")
    except OSError as e:
        _lose(e)
        return ""


def _lose(error: OSError) -> None:
    """Go on without keeping compiled code, and tell once."""
    global _loss
    if not _loss:
        _loss = f"compiled code is not kept ({error.filename or FOLDER}: {error.strerror or error}): {REMEDY}"
        event.broadcast(event.Event(_LOSS, event.EventStatus.START))


class _Files(CompileResultCacheImpl):  # type: ignore[misc]
    """numba's cache files, in `FOLDER` or nowhere: elsewhere, numba would run the code of an old version."""

    _locator_classes = CompileResultCacheImpl._locator_classes[:1]  # that of the option CACHE_DIR


class _Cache(FunctionCache):  # type: ignore[misc]
    """numba's cache, which compiles again what cannot be read, and goes on if there is no room to write."""

    _impl_class = _Files

    @contextmanager
    def _guard_against_spurious_io_errors(self) -> Iterator[None]:
        try:
            yield
        except (EOFError, pickle.UnpicklingError):  # cut off by a crash of the machine
            with self._guard_against_spurious_io_errors():
                self.flush()
        except OSError as e:
            _lose(e)


FOLDER = _cache_folder()
numba.config.CACHE_DIR = FOLDER  # type: ignore[attr-defined]

F = TypeVar("F", bound=Callable[..., Any])
# The message meanwhile; it takes 23 s before a prediction and 18 more before a search.
COMPILING = "compiling (once, about half a minute)"

OPTIONS: dict[str, Any] = {"error_model": "numpy"}
# Without numba's reference counts, which are atomic and taken at every use of an array, the clocks run twice as fast.
# The switch is meant for targets that make no arrays, so compiled functions must not make any.
if hasattr(CPUTargetOptions, "_nrt"):
    OPTIONS["_nrt"] = False


class _Listener(event.Listener):  # type: ignore[misc]
    """Tells of the first compilation and of a loss, once each. numba reports nothing that is read from the cache."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell = tell
        self._told: set[str] = set()

    def on_start(self, event: object) -> None:
        if _loss not in self._told:
            self._told |= {"", _loss}
            self._tell(_loss)

    def on_end(self, event: object) -> None:
        pass


def on_compilation(tell: Callable[[str], None]) -> None:
    """Call `tell` once if this process begins to compile; not if everything it uses is cached.

    Its argument is "". If compiled code is not kept, it is why, then or as soon as that turns out.
    """
    listener = _Listener(tell)
    event.register("numba:compile", listener)
    event.register(_LOSS, listener)


def njit(function: F) -> F:
    """The function, compiled. It must not make arrays."""
    compiled: F = numba.njit(function, **OPTIONS)
    if FOLDER:
        try:
            compiled._cache = _Cache(function)  # type: ignore[attr-defined]
        except RuntimeError as e:  # no room for a folder of its own
            _lose(OSError(errno.ENOSPC, str(e), FOLDER))
    return compiled


def inlined(function: F) -> F:
    """The function, inlined where compiled functions call it, because passing tuples of arrays is expensive."""
    compiled: F = numba.njit(function, inline="always", **OPTIONS)
    return compiled
