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
import os
import shutil
import signal
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from hashlib import file_digest, sha256
from pathlib import Path
from typing import Any

from evolve import __version__
from evolve.ingest.entry import Given, check_hardware
from evolve.ingest.sources.findings import warning
from evolve.ingest.sources.folder import Folder, shown_path
from evolve.ingest.writing import HEADER, experiments_yaml
from simulator.errors import InputError

EXPERIMENTS, QUALITY, STATE = "experiments.yaml", "quality.json", "ingest.json"
_PART, _OLD = ".part-", ".old-"
_MARK = HEADER.partition(" from ")[0].rpartition(" ")[0]  # without the engine's version

Told = Callable[[str, int], None]
"""(run, bytes read since the last call)"""


def ingest(
    folders: Sequence[Folder], out: Path, given: Given, workers: int, told: Told, finished: Callable[[str], None]
) -> list[dict[str, Any]]:
    """The quality report of every folder, in order, `reused` among its keys: made now, or found as made before.

    Raises InputError before any reading where OUT cannot be written or would lose what is not ours, or no GPU is named.
    """
    check_hardware(given.hardware)
    for folder in folders:
        if given.hardware is None and folder.listed.hardware is None:
            raise InputError(f"{folder.name}: nothing in it names the GPU: name the GPU with --hardware")
    _check_out(out, folders)
    marks = {folder.name: fingerprint(folder, given) for folder in folders}
    todo = [folder for folder in folders if _state(out, folder.name).get("fingerprint") != marks[folder.name]]
    for folder in todo:
        _check_home(out / folder.name)
    try:
        if workers == 1 or len(todo) < 2:
            for folder in todo:
                one_folder(folder, out, given, marks[folder.name], partial(told, folder.name))
                finished(folder.name)
        else:
            _side_by_side(todo, out, given, marks, min(workers, len(todo)), told, finished)
    finally:
        _write_experiments(out)
    fresh = {folder.name for folder in todo}
    return [{**json.loads((out / f.name / QUALITY).read_text()), "reused": f.name not in fresh} for f in folders]


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


def one_folder(folder: Folder, out: Path, given: Given, mark: str, done: Callable[[int], None]) -> None:
    """Read and write one run; its folder appears, or is replaced, when all of it is there.

    Millions of values come and go and none holds itself: looking for such cycles would take a quarter of the time.
    """
    from evolve.ingest.account import account
    from evolve.ingest.one import derive, describe, read

    part, home = out / f"{_PART}{folder.name}", out / folder.name
    collecting = gc.isenabled()
    gc.disable()
    shutil.rmtree(part, ignore_errors=True)
    try:
        part.mkdir()
        sources, findings = read(folder, part, done)
        derived = derive(sources, part, findings)
        mapping, quality = describe(sources, derived, given, findings)
        if fingerprint(folder, given) != mark:
            findings.append(warning("folder", "changed while it was read: read it again once it is whole"))
        report = account(sources, derived, quality, findings)
        _dump(part / QUALITY, {**report, "data": _digest(part, mapping), "experiment": mapping is not None})
        _dump(part / STATE, {"engine": __version__, "fingerprint": mark, "experiment": mapping})
        old = out / f"{_OLD}{folder.name}"
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


def _task(folder: Folder, out: Path, given: Given, mark: str) -> None:
    one_folder(folder, out, given, mark, lambda n: _queue.put((folder.name, n)))


def _side_by_side(todo: Sequence[Folder], out: Path, given: Given, marks: dict[str, str], workers: int, told: Told,
                  finished: Callable[[str], None]) -> None:  # fmt: skip
    context = multiprocessing.get_context("spawn")
    queue = context.SimpleQueue()
    # Ctrl-C is this process's business: workers inherit that it is ignored, from their first moment on
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        pool = ProcessPoolExecutor(workers, context, _begin, (queue,))
        waiting: dict[Future[None], str] = {
            pool.submit(_task, folder, out, given, marks[folder.name]): folder.name
            for folder in sorted(todo, key=_size, reverse=True)
        }
    finally:
        signal.signal(signal.SIGINT, before)
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
        for folder in todo:
            shutil.rmtree(out / f"{_PART}{folder.name}", ignore_errors=True)
        if isinstance(e, BrokenProcessPool):
            left = ", ".join(sorted(waiting.values())[:4])
            text = f"{left}: a process that read it was ended from outside (memory?): fewer --workers need less"
            raise InputError(text) from None
        raise
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def _size(folder: Folder) -> int:
    """Bytes of what is streamed."""
    return sum(_size_and_time(p)[0] for p in (folder.traces, folder.kv_events, folder.per_request) if p is not None)


def size(folder: Folder) -> int:
    """Bytes that `told` will be told of in all."""
    return _size(folder)


def _check_out(out: Path, folders: Sequence[Folder]) -> None:
    here = out.resolve()
    for folder in folders:
        if here == folder.path or folder.path in here.parents:
            raise InputError(f"{shown_path(out)}: is inside {folder.name}, which is read: choose another --out")
        if not folder.name or folder.name.startswith(".") or folder.name == EXPERIMENTS:
            raise InputError(f"{shown_path(folder.path)}: its name cannot be that of an output: rename it")
        home = out / folder.name
        if home.resolve() == folder.path:
            raise InputError(f"{shown_path(out)}: is where {folder.name} stands, which is read: choose another --out")
        if home.exists() and not (home / STATE).is_file():
            raise InputError(f"{shown_path(home)}: is there and not ours: choose another --out")
    try:
        out.mkdir(parents=True, exist_ok=True)
        text = (out / EXPERIMENTS).read_text("utf-8", "replace") if (out / EXPERIMENTS).exists() else _MARK
    except OSError as e:
        raise InputError(f"{shown_path(out)}: cannot be written ({e.strerror or e}): choose another --out") from None
    if not text.startswith(_MARK):
        raise InputError(f"{shown_path(out / EXPERIMENTS)}: is there and not ours: choose another --out")
    if not os.access(out, os.W_OK | os.X_OK):
        raise InputError(f"{shown_path(out)}: cannot be written (permissions): choose another --out")


def _check_home(home: Path) -> None:
    """Raises InputError where what is to be replaced holds a file that is not ours."""
    if not home.exists():
        return
    from evolve.ingest.tables import COLUMNS

    ours = {QUALITY, STATE, *(f"{table}.parquet" for table in COLUMNS)}
    others = sorted(path.name for path in home.iterdir() if path.name not in ours)
    if others:
        raise InputError(f"{shown_path(home / others[0])}: is not ours, and its folder is to be replaced: move it away")


def _state(out: Path, name: str) -> dict[str, Any]:
    """What is known of a run made before; nothing where it is not whole."""
    home = out / name
    try:
        found, quality = (json.loads((home / file).read_text("utf-8")) for file in (STATE, QUALITY))
    except (OSError, ValueError, RecursionError):
        return {}
    if not isinstance(found, dict) or not isinstance(quality, dict) or not isinstance(quality.get("tables"), dict):
        return {}
    return found if all((home / f"{table}.parquet").is_file() for table in quality["tables"]) else {}


def _write_experiments(out: Path) -> None:
    """experiments.yaml of every whole run in `out`, those of earlier calls too."""
    runs = sorted(path.name for path in out.iterdir() if path.is_dir() and not path.name.startswith("."))
    entries = [entry for name in runs if (entry := _state(out, name).get("experiment"))]
    target = out / EXPERIMENTS
    part = target.with_name(f"{_PART}{EXPERIMENTS}")
    try:
        if not entries:
            target.unlink(missing_ok=True)
            return
        part.write_text(experiments_yaml(entries), "utf-8")
        part.replace(target)
    except OSError as e:
        text = f"{shown_path(target)}: cannot be written ({e.strerror or e}): the same command writes it anew"
        raise InputError(text) from None


def _digest(part: Path, mapping: dict[str, Any] | None) -> str:
    """16 hex digits of the tables and the experiment."""
    whole = sha256(json.dumps(mapping, sort_keys=True).encode())
    for path in sorted(part.glob("*.parquet")):
        with path.open("rb") as file:
            whole.update(file_digest(file, "sha256").digest())
    return whole.hexdigest()[:16]


def data_of(reports: Sequence[dict[str, Any]]) -> str:
    """The data hash of several runs."""
    return sha256("".join(r["data"] for r in reports).encode()).hexdigest()[:16]


def _dump(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, indent=1, allow_nan=False) + "\n", "utf-8")
