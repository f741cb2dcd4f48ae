"""The part of a worker of dask: it hands calls to worker processes of ours (see cluster), if it computes as we do.

Two processes of the same identity give the same digits.
"""

from __future__ import annotations

import pickle
import platform
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from hashlib import blake2b
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import scipy

from evolve import __version__
from evolve.search.pool.process import Parcel, WorkerCall, WorkerProcess

IDLE_S = 120.0  # without a call, after which a worker process ends
PACKAGES = ("archive", "configs", "evaluator", "evolve", "seeds", "simulator", "translate_go")
LIBRARIES = ("cma", "deap", "numba", "numpy", "scipy")
SIZE = 96  # of the matrices: larger than the blocks of any kernel of OpenBLAS

_idle: list[WorkerProcess] = []  # of this worker; its threads take one each


@contextmanager
def _process(settings: Mapping[str, str]) -> Iterator[WorkerProcess]:
    """A worker process that waits for a call; the next caller gets it too, unless it died or hung."""
    process = None
    while process is None and (waiting := _taken()) is not None:
        if waiting.alive and waiting.settings == settings:
            process = waiting
        else:
            waiting.close()
    process = process or WorkerProcess(settings, IDLE_S)
    try:
        yield process
    finally:
        if process.idle:
            _idle.append(process)
        else:
            process.close()


def _taken() -> WorkerProcess | None:
    """The worker process that came to wait last; None if none waits. Several threads take them."""
    try:
        return _idle.pop()
    except IndexError:
        return None


def carry_out(call: WorkerCall, parcel: Parcel | None, settings: Mapping[str, str], topic: str) -> None:
    """Carry out a call, and log as events of the topic: its key, and its reports and result or exception, pickled.

    A result of dask's would stay on this worker until it is fetched, and be lost with it.
    """
    from distributed import get_worker  # an optional library, which is loaded where this is called

    worker = get_worker()
    key = worker.get_current_task()

    def tell(kind: str, value: Any) -> None:
        worker.log_event(topic, (key, pickle.dumps((kind, value))))

    try:
        with _process(settings) as process:
            result = process.call(replace(call, parcel=parcel), partial(tell, "line"))
    except Exception as e:
        tell("raised", e)
    else:
        tell("result", result)


async def introduce(expected: Mapping[str, str], settings: Mapping[str, str], resource: str, dask_worker: Any) -> str:
    """Return the reason to refuse this worker; "" after giving it the resource for which tasks are sent."""

    def own_identity() -> dict[str, str]:
        with _process(settings) as process:
            found: dict[str, str] = process.call(WorkerCall(identity))
            return found

    own = await dask_worker.loop.run_in_executor(None, own_identity)
    wrong = [f"{name} {own.get(name)} instead of {value}" for name, value in expected.items() if own.get(name) != value]
    if not wrong:
        await dask_worker.set_resources(**{resource: dask_worker.state.nthreads})
    return ", ".join(wrong)


async def end_idle() -> None:
    """End the worker processes that wait for calls. A coroutine: a worker of dask runs nothing else without waiting."""
    while (waiting := _taken()) is not None:
        waiting.close()


def identity() -> dict[str, str]:
    """The causes of the digits of this process, by name: the engine, its libraries, and linear algebra."""
    return {
        "Python": ".".join(map(str, sys.version_info[:2])),
        "machine": platform.machine(),
        **{name: version(name) for name in LIBRARIES},
        "engine": f"{__version__}, sources {sources()}",
        "linear algebra": linear_algebra(),
    }


def sources() -> str:
    """A digest of the engine's source and data files."""
    digest = blake2b(digest_size=6)
    for package in PACKAGES:
        # It is not imported: that would take most of the time that a digest takes.
        spec = find_spec(package)
        if spec is None or not spec.submodule_search_locations:
            raise ModuleNotFoundError(package)
        folder = Path(spec.submodule_search_locations[0])
        for path in sorted(folder.rglob("*")):
            if path.is_file() and path.suffix != ".pyc":
                digest.update(str(path.relative_to(folder)).encode() + path.read_bytes())
    return digest.hexdigest()


def linear_algebra() -> str:
    """A digest of the bits of products, decompositions and elementary functions of some matrices.

    It differs between kernels of OpenBLAS, which add in different orders, and between vector units for exponentials.
    """
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((2, SIZE, SIZE))
    symmetric = a @ a.T + np.eye(SIZE)
    values = [a @ b, a @ b[0], np.exp(a), np.log(np.abs(a)), np.abs(a) ** 1.7, a.sum(axis=0), np.linalg.solve(a, b)]
    values += [np.linalg.lstsq(a[:, :9], b[:, 0], rcond=None)[0], np.linalg.eigh(symmetric)[0]]
    values += [np.linalg.svd(a, compute_uv=False), scipy.linalg.qr(a, mode="r")[0]]
    values += [scipy.linalg.cho_solve(scipy.linalg.cho_factor(symmetric), b)]
    return blake2b(b"".join(np.ascontiguousarray(value).tobytes() for value in values), digest_size=6).hexdigest()
