"""Many folders into one output folder, in parallel: each is written whole or not at all, finished ones are skipped."""

from __future__ import annotations

import gc
import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

from evolve import __version__
from evolve.ingest import output
from evolve.ingest.account import account
from evolve.ingest.experiment import describe
from evolve.ingest.folder import derive, read
from evolve.ingest.options import Given, check_hardware
from evolve.ingest.output import OLD, PART, QUALITY, STATE, State
from evolve.ingest.read.sources import PER_REQUEST, Folder, shown_path
from evolve.ingest.report import QualityReport
from evolve.output.files import write_json
from evolve.output.progress import Line
from evolve.search.pool.local import LocalPool
from evolve.search.pool.process import WorkerCall
from simulator.common.errors import InputError, unwritable
from simulator.common.json import JsonObject
from simulator.common.records import to_json

OnRead = Callable[[str, int], None]
"""Called with a run's name and the bytes read since the last call."""


@dataclass(frozen=True)
class IngestedRun:
    """A run in the output folder. `was` is `made`, `replaced` (an earlier one) or `as before` (nothing has changed)."""

    report: QualityReport
    was: str

    def to_json(self) -> JsonObject:
        return {**to_json(self.report), "was": self.was}


@dataclass(frozen=True)
class IngestTask:
    """A folder to ingest into `out` with options, the fingerprint of both, and the run's id if it was made before."""

    folder: Folder
    out: Path
    given: Given
    fingerprint: str
    id: str | None

    @property
    def home(self) -> Path:
        return self.out / self.folder.name


def ingest(
    folders: Sequence[Folder], out: Path, given: Given, workers: int, on_read: OnRead, on_done: Callable[[str], None]
) -> list[IngestedRun]:
    """Ingest all folders and return the runs, in order. `on_done` gets the name of each run that was made.

    Raises InputError before anything is read if `out` cannot be written or has files that are not ours, or if no GPU is
    named.
    """
    check_hardware(given.hardware)
    states = {folder.name: output.read_state(out / folder.name) for folder in folders}
    options = {name: _with_earlier(given, state) for name, state in states.items()}
    for folder in folders:
        if options[folder.name].hardware is None and folder.listed.hardware is None:
            raise InputError(f"{folder.name}: no file names the GPU: name it with --hardware")
    output.check_out(out, folders)
    was: dict[str, str] = {}
    todo = []
    for folder in folders:
        state, mark = states[folder.name], fingerprint(folder, options[folder.name])
        task = IngestTask(folder, out, options[folder.name], mark, state.id if state else None)
        if state is None or state.fingerprint != mark or not output.is_whole(task.home, state):
            output.check_home(task.home)
            was[folder.name] = "replaced" if task.home.exists() else "made"
            todo.append(task)
    try:
        if workers == 1 or len(todo) < 2:
            for task in todo:
                ingest_folder(task, partial(on_read, task.folder.name))
                on_done(task.folder.name)
        else:
            _in_parallel(todo, min(workers, len(todo)), on_read, on_done)
    finally:
        output.write_experiments(out)
    return [IngestedRun(output.read_report(out / folder.name), was.get(folder.name, "as before")) for folder in folders]


def _with_earlier(given: Given, state: State | None) -> Given:
    """The options of this call, completed by those that the run was made with."""
    if state is None:
        return given
    old = state.options
    return Given(given.hardware or old.hardware, {**old.engine, **given.engine}, {**old.models, **given.models})


def fingerprint(folder: Folder, given: Given) -> str:
    """A hash of the sources, the options and the engine's version."""
    paths = [*folder.files.values(), *(path for _, path in folder.stages)]
    options = given.hardware, sorted(given.engine.items()), given.models
    about: list[Any] = [__version__, folder.name, options, repr(folder.listed)]
    about += [(path.relative_to(folder.path).as_posix(), *_size_and_time(path)) for path in paths]
    return sha256(json.dumps(about, sort_keys=True, default=str).encode()).hexdigest()[:32]


def bytes_of(folder: Folder) -> int:
    """Bytes of the streamed sources, all of which are reported to `on_read`."""
    streamed = ("traces.json", "kv_events.jsonl", PER_REQUEST)
    return sum(_size_and_time(folder.files[name])[0] for name in streamed if name in folder.files)


def _size_and_time(path: Path) -> tuple[int, int]:
    """Bytes, and time of the last change in ns; zeros for a file that has gone, which its reader will report."""
    try:
        stat = path.stat()
    except OSError:
        return 0, 0
    return stat.st_size, stat.st_mtime_ns


def ingest_folder(task: IngestTask, report: Callable[[int], None]) -> None:
    """Read and write one run. Its folder appears, or is replaced, once all of it has been written.

    `report` gets the bytes read.
    """
    folder, out, home = task.folder, task.out, task.home
    part, old = out / f"{PART}{folder.name}", out / f"{OLD}{folder.name}"
    # Millions of values are made and freed, none in a reference cycle: looking for cycles would take a quarter of the
    # time.
    collecting = gc.isenabled()
    gc.disable()
    shutil.rmtree(part, ignore_errors=True)
    try:
        part.mkdir()
        _write(task, part, report)
        if home.exists():
            shutil.rmtree(old, ignore_errors=True)
            home.rename(old)
        part.rename(home)
        shutil.rmtree(old, ignore_errors=True)
    except OSError as e:
        raise unwritable(shown_path(home), e, "choose another --out") from None
    finally:
        if collecting:
            gc.enable()
        shutil.rmtree(part, ignore_errors=True)


def _write(task: IngestTask, part: Path, on_read: Callable[[int], None]) -> None:
    inputs, findings = read(task.folder, part, on_read)
    derived = derive(inputs, part, findings)
    spec, quality = describe(inputs, derived, part, task.given, findings)
    experiment = spec.to_entry() if spec else None
    if fingerprint(task.folder, task.given) != task.fingerprint:
        findings.warn("folder", "changed while it was read: ingest it again once it is complete")
    report = account(inputs, derived, quality, findings, output.digest(part, experiment), spec is not None)
    write_json(part / QUALITY, to_json(report))
    state = State(
        engine=__version__,
        fingerprint=task.fingerprint,
        options=task.given,
        files={path.name: path.stat().st_size for path in sorted(part.iterdir())},
        id=task.id,
        experiment=experiment,
    )
    write_json(part / STATE, to_json(state))


def _in_parallel(todo: Sequence[IngestTask], workers: int, on_read: OnRead, on_done: Callable[[str], None]) -> None:
    pool = LocalPool(workers, Line(quiet=True))
    # The largest folders first, so that none of them is left alone at the end.
    tasks = sorted(todo, key=lambda task: bytes_of(task.folder), reverse=True)
    try:
        running = [
            pool.submit(WorkerCall(ingest_folder, (task,), streams=True), number, partial(on_read, task.folder.name))
            for number, task in enumerate(tasks)
        ]
        for task, waiting in zip(tasks, running, strict=True):
            waiting.result()
            on_done(task.folder.name)
    finally:
        pool.close()
        for task in todo:
            shutil.rmtree(task.out / f"{PART}{task.folder.name}", ignore_errors=True)
