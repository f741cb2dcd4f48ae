"""What a worker of dask does for a pool: it hands calls to worker processes of ours, see evolve.search.pool.cluster."""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

from evolve.search.pool.identity import identity
from evolve.search.pool.process import Parcel, WorkerCall, WorkerProcess

IDLE_S = 120.0  # without a call, after which a worker process ends

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


def carry_out(call: WorkerCall, parcel: Parcel | None, settings: Mapping[str, str], topic: str) -> None:
    """Carry out a call, and log as events of the topic: its key, and what it reports, returns or raises, pickled.

    Events are at the scheduler before it hears that the task is done. A result of dask's would stay on this worker
    until it is fetched, and be lost with it.
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
    """Why this worker must be refused; "" if not, and then it has the resource for which tasks are sent."""
    own = await dask_worker.loop.run_in_executor(None, _identity, settings)
    wrong = [f"{name} {own.get(name)} instead of {value}" for name, value in expected.items() if own.get(name) != value]
    if wrong:
        return ", ".join(wrong)
    await dask_worker.set_resources(**{resource: dask_worker.state.nthreads})
    return ""


def _identity(settings: Mapping[str, str]) -> dict[str, str]:
    with _process(settings) as process:
        own: dict[str, str] = process.call(WorkerCall(identity))
        return own


async def end_idle() -> None:
    """End the worker processes that wait for calls. A coroutine: a worker of dask runs nothing else without waiting."""
    while (waiting := _taken()) is not None:
        waiting.close()


def _taken() -> WorkerProcess | None:
    """The worker process that came to wait last; None if none waits. Several threads take them."""
    try:
        return _idle.pop()
    except IndexError:
        return None
