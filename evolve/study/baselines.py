"""Every engine under every seed, each a search of its own with its own journal, and what came of them.

A search is one task of one process, so that nothing but its CPU times depends on how many run at once. What is in the
folder already is not done again: an interrupted comparison goes on, and engines or seeds can be added to one.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from concurrent.futures import wait
from dataclasses import replace
from pathlib import Path
from typing import Any

from evaluator.experiments import data_hash
from evolve import __version__
from evolve.propose.vocabulary import vocabulary
from evolve.report.progress import EVERY_S, Line
from evolve.run import folder as run_folder
from evolve.run.config import Config, config_from, to_mapping
from evolve.run.data import chosen
from evolve.search.assessor import executor, stop
from evolve.study.comparison import Comparison, summarise, write_curves
from evolve.study.engines.engines import ENGINES, search
from evolve.study.engines.judge import JOURNAL, Task
from simulator.errors import InputError
from simulator.experiment.experiment import Experiment

FILE = "baselines.json"


def create(path: Path, config: Config, engines: Sequence[str], seeds: int) -> Comparison:
    """A comparison in `path`, new or going on. Raises InputError if what is there has other settings or data."""
    found = Comparison(path, config, tuple(engines), seeds)
    fitted, _ = chosen(config.data)
    about = {
        "engine": __version__,
        "data": data_hash(fitted),
        "config": to_mapping(config),
        "engines": list(engines),
        "searches": seeds,
    }
    if (path / FILE).exists():
        old = _read(path)
        for name in ("engine", "config", "data"):
            if old.get(name) != about[name]:
                raise InputError(f"{path}: was made with another {name}: choose another --out")
        about["engines"] = [name for name in ENGINES if name in (*old["engines"], *engines)]
        about["searches"] = max(old["searches"], seeds)
    elif path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise InputError(f"{path}: holds something else already: choose another --out")
    try:
        path.mkdir(parents=True, exist_ok=True)
        run_folder.write_json(path / FILE, about)
    except OSError as e:
        raise InputError(f"{path}: cannot be written ({e.strerror}): choose another --out") from None
    return found


def reopen(path: Path) -> Comparison:
    """The comparison in `path`, all of it. Raises InputError if there is none."""
    about = _read(path)
    config = config_from(about["config"], str(path / FILE))
    return create(path, config, about["engines"], about["searches"])


def is_comparison(path: Path) -> bool:
    return (path / FILE).is_file()


def _read(path: Path) -> dict[str, Any]:
    try:
        about: dict[str, Any] = json.loads((path / FILE).read_text())
    except OSError:
        raise InputError(f"{path}: is not a comparison (no {FILE}): `evolve baselines` makes one") from None
    except ValueError:
        raise InputError(f"{path / FILE}: is damaged: restore it from a copy") from None
    return about


def compare(made: Comparison, workers: int, quiet: bool = False) -> dict[str, Any]:
    """Do whatever is not done yet, then say what came of it (report.json, curves.csv).

    Ctrl-C leaves the journals whole: `evolve resume` goes on from them.
    """
    fitted, _ = chosen(made.config.data)
    words = vocabulary(fitted, made.config.search.fields)
    tasks = [
        Task(engine, replace(made.config, seed=seed), words, made.folder(engine, seed))
        for seed in made.search_seeds
        for engine in made.engines
    ]
    with run_folder.lock(run_folder.Run(made.path, made.config, {})):
        if todo := [task for task in tasks if not _ended(task)]:
            _work(todo, tasks, fitted, min(workers, len(todo)), quiet)
        report = summarise(made, fitted)
        run_folder.write_json(made.path / "report.json", report)
        write_curves(made)
    return report


def _ended(task: Task) -> bool:
    return (task.folder / "done.json").exists()


def _work(todo: Sequence[Task], tasks: Sequence[Task], fitted: Sequence[Experiment], workers: int, quiet: bool) -> None:
    progress = _Progress(tasks, quiet)
    pool = executor(workers, fitted, tasks[0].config)
    try:
        if workers == 1:
            for task in todo:
                search(task, progress.update)
        else:
            left = {pool.submit(search, task) for task in todo}
            while left:
                done, left = wait(left, timeout=progress.every_s, return_when="FIRST_COMPLETED")
                for future in done:
                    future.result()
                progress.update()
    except BaseException:
        stop(pool)
        raise
    finally:
        progress.close()
    pool.shutdown()


class _Progress(Line):
    """Candidates of all the searches, counted in their journals, and which searches are under way."""

    def __init__(self, tasks: Sequence[Task], quiet: bool) -> None:
        super().__init__()
        self.tasks, self.quiet = tasks, quiet
        self.every_s = 1.0 if self.terminal else EVERY_S
        self.shown = time.monotonic()

    def update(self) -> None:
        if self.quiet or time.monotonic() - self.shown < 0.9 * self.every_s:
            return
        self.shown = time.monotonic()
        done, under_way = 0, []
        for task in self.tasks:
            if _ended(task):
                done += task.config.budget
            elif (journal := task.folder / JOURNAL).exists():
                done += journal.read_bytes().count(b"\n")
                under_way.append(task.folder.name)
        budget = sum(task.config.budget for task in self.tasks)
        self.show(f"{done}/{budget} candidates; {', '.join(under_way)}")
