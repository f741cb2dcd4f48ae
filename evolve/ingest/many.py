"""Folders into an output folder: side by side, each whole or not at all, what is done already is not done again.

OUT/experiments.yaml         every run of OUT that holds enough for an experiment
OUT/<run>/*.parquet          its tables
OUT/<run>/quality.json       what became of the folder
OUT/<run>/ingest.json        what it was made from, and its entry of experiments.yaml
"""

from __future__ import annotations

import gc
import json
import multiprocessing
import shutil
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict, dataclass
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

from evolve import __version__
from evolve.ingest.account import account
from evolve.ingest.describe import describe
from evolve.ingest.entry import Given, check_hardware
from evolve.ingest.one import derive, read
from evolve.ingest.output import (
    OLD,
    PART,
    QUALITY,
    STATE,
    check_home,
    check_out,
    digest,
    dump,
    state,
    whole,
    write_experiments,
)
from evolve.ingest.sources.findings import warning
from evolve.ingest.sources.folder import Folder, shown_path
from evolve.processes import deaf_to_interrupts, end_with_parent
from simulator.errors import InputError

Told = Callable[[str, int], None]
"""(run, bytes read since the last call)"""


def ingest(
    folders: Sequence[Folder], out: Path, given: Given, workers: int, told: Told, finished: Callable[[str], None]
) -> list[dict[str, Any]]:
    """The quality report of every folder, in order; `was` among its keys: `made`, `made anew`, or `as before`.

    Raises InputError before any reading where OUT cannot be written or would lose what is not ours, or no GPU is named.
    """
    check_hardware(given.hardware)
    known = {folder.name: state(out, folder.name) for folder in folders}
    options = {name: _remembered(given, found) for name, found in known.items()}
    for folder in folders:
        if options[folder.name].hardware is None and folder.listed.hardware is None:
            raise InputError(f"{folder.name}: nothing in it names the GPU: name the GPU with --hardware")
    check_out(out, folders)
    tasks = [Task(f, out, options[f.name], fingerprint(f, options[f.name])) for f in folders]
    made = {name for name, found in known.items() if whole(out / name, found)}
    todo = [t for t in tasks if t.folder.name not in made or known[t.folder.name]["fingerprint"] != t.mark]
    before = {t.folder.name for t in tasks if (out / t.folder.name).exists()}
    for task in todo:
        check_home(out / task.folder.name)
    try:
        if workers == 1 or len(todo) < 2:
            for task in todo:
                one_folder(task, partial(told, task.folder.name))
                finished(task.folder.name)
        else:
            _side_by_side(todo, min(workers, len(todo)), told, finished)
    finally:
        write_experiments(out)
    fresh = {task.folder.name for task in todo}
    how = {name: "made anew" if name in before else "made" for name in fresh}
    return [{**json.loads((out / f.name / QUALITY).read_text()), "was": how.get(f.name, "as before")} for f in folders]


@dataclass(frozen=True)
class Task:
    """A folder to be read, under which options, and the mark of both."""

    folder: Folder
    out: Path
    given: Given
    mark: str


def _remembered(given: Given, known: dict[str, Any]) -> Given:
    """The options of this call, and of the run's last one those that are not given now."""
    if "options" not in known:
        return given
    old = Given(**known["options"])
    return Given(given.hardware or old.hardware, {**old.engine, **given.engine}, {**old.models, **given.models})


def fingerprint(folder: Folder, given: Given) -> str:
    """Changes when a source, the options or the engine's version do."""
    paths = [folder.exp_config, folder.profile, folder.log, folder.traces, folder.kv_events, folder.config,
             folder.per_request, folder.summary, *(path for _, path in folder.stages)]  # fmt: skip
    options = given.hardware, sorted(given.engine.items()), given.models
    about: list[Any] = [__version__, folder.name, options, repr(folder.listed)]
    for path in paths:
        if path is not None:
            about.append((path.relative_to(folder.path).as_posix(), *_size_and_time(path)))
    return sha256(json.dumps(about, sort_keys=True, default=str).encode()).hexdigest()[:32]


def _size_and_time(path: Path) -> tuple[int, int]:
    """Bytes and time of the last change in ns; zeros for a file that is gone meanwhile, which its reader says."""
    try:
        state = path.stat()
    except OSError:
        return 0, 0
    return state.st_size, state.st_mtime_ns


def one_folder(task: Task, done: Callable[[int], None]) -> None:
    """Read and write one run; its folder appears, or is replaced, when all of it is there.

    Millions of values come and go and none holds itself: looking for such cycles would take a quarter of the time.
    """
    folder, out, given = task.folder, task.out, task.given
    part, home = out / f"{PART}{folder.name}", out / folder.name
    collecting = gc.isenabled()
    gc.disable()
    shutil.rmtree(part, ignore_errors=True)
    try:
        part.mkdir()
        sources, findings = read(folder, part, done)
        derived = derive(sources, part, findings)
        mapping, quality = describe(sources, derived, given, findings)
        if fingerprint(folder, given) != task.mark:
            findings.append(warning("folder", "changed while it was read: read it again once it is whole"))
        report = account(sources, derived, quality, findings)
        dump(part / QUALITY, {**report, "data": digest(part, mapping), "experiment": mapping is not None})
        dump(part / STATE, {
            "engine": __version__, "fingerprint": task.mark, "options": asdict(given),
            "files": {path.name: path.stat().st_size for path in sorted(part.iterdir())},
            "id": state(out, folder.name).get("id"), "experiment": mapping,
        })  # fmt: skip
        old = out / f"{OLD}{folder.name}"
        if home.exists():
            shutil.rmtree(old, ignore_errors=True)
            home.rename(old)
        part.rename(home)
        shutil.rmtree(old, ignore_errors=True)
    except OSError as e:
        raise InputError(f"{shown_path(home)}: cannot be written ({e.strerror or e}): choose another --out") from None
    finally:
        if collecting:
            gc.enable()
        shutil.rmtree(part, ignore_errors=True)


_queue: Any = None


def _begin(queue: Any) -> None:
    global _queue
    _queue = queue
    end_with_parent()


def _task(task: Task) -> None:
    one_folder(task, lambda n: _queue.put((task.folder.name, n)))


def _side_by_side(todo: Sequence[Task], workers: int, told: Told, finished: Callable[[str], None]) -> None:
    context = multiprocessing.get_context("spawn")
    queue = context.SimpleQueue()
    with deaf_to_interrupts():  # Ctrl-C is this process's business
        pool = ProcessPoolExecutor(workers, context, _begin, (queue,))
        waiting: dict[Future[None], str] = {
            pool.submit(_task, task): task.folder.name
            for task in sorted(todo, key=lambda task: size(task.folder), reverse=True)
        }
    try:
        while waiting:
            ready, _ = wait(waiting, timeout=0.2, return_when=FIRST_COMPLETED)
            while not queue.empty():
                told(*queue.get())
            for future in ready:
                future.result()
                finished(waiting.pop(future))
    except BaseException as e:
        for process in multiprocessing.active_children():
            process.terminate()
            process.join()
        for task in todo:
            shutil.rmtree(task.out / f"{PART}{task.folder.name}", ignore_errors=True)
        if isinstance(e, BrokenProcessPool):
            left = ", ".join(sorted(waiting.values())[:4])
            text = f"{left}: a process that read it was ended from outside (memory?): fewer --workers need less"
            raise InputError(text) from None
        raise
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def size(folder: Folder) -> int:
    """Bytes of what is streamed, all of which `told` will be told of."""
    return sum(_size_and_time(p)[0] for p in (folder.traces, folder.kv_events, folder.per_request) if p is not None)
