"""Baselines: every engine under every seed, each search with its own journal, and how they compare.

A search is one task of one process, so nothing but its CPU times depends on how many run at once. Searches that have
ended are not repeated: an interrupted comparison goes on, and engines or seeds can be added to one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import wait
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from archive.journal import Journal, read_journal
from archive.population import Population
from archive.proposal import Outcome, is_outcome
from evaluator.experiments import data_hash
from evolve import __version__
from evolve.propose.vocabulary import Vocabulary, vocabulary
from evolve.report.progress import Line
from evolve.run import folder as run_folder
from evolve.run.config import Config, config_from, to_mapping
from evolve.run.data import chosen
from evolve.run.folder import first_population
from evolve.run.program import seed_texts
from evolve.search import workers
from evolve.search.assessor import Live, Remembering
from evolve.search.search import Search
from evolve.search.workers import start as start_workers
from evolve.study.comparison import CURVE, DONE, JOURNAL, Comparison, ComparisonReport, Curve, report_of, write_curves
from evolve.study.engines.bench import Bench
from evolve.study.engines.engines import ENGINES
from evolve.study.study import read_about
from simulator.errors import InputError
from simulator.experiment.experiment import Experiment

FILE = "baselines.json"


def create(path: Path, config: Config, engines: Sequence[str], seeds: int) -> Comparison:
    """A comparison in `path`, new or going on. Raises InputError if what is there has other settings or data."""
    comparison = Comparison(path, config, tuple(engines), seeds)
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
    return comparison


def reopen(path: Path) -> Comparison:
    """The comparison in `path`, all of it. Raises InputError if there is none."""
    about = _read(path)
    config = config_from(about["config"], str(path / FILE))
    return create(path, config, about["engines"], about["searches"])


def is_comparison(path: Path) -> bool:
    return (path / FILE).is_file()


def _read(path: Path) -> Mapping[str, Any]:
    return read_about(path / FILE, f"{path}: is not a comparison (no {FILE}): `evolve baselines` makes one")


@dataclass(frozen=True, slots=True)
class Task:
    """One engine under one seed (that of `config`, like the budget), with its journal in `folder`."""

    engine: str
    config: Config
    words: Vocabulary
    folder: Path

    @property
    def ended(self) -> bool:
        """Whether the search has come to its end."""
        return (self.folder / DONE).exists()


def compare(comparison: Comparison, workers: int, quiet: bool = False) -> ComparisonReport:
    """Do the searches that have not ended, then compare all of them (report.json, curves.csv).

    Ctrl-C leaves the journals whole: `evolve resume` goes on from them.
    """
    fitted, _ = chosen(comparison.config.data)
    words = vocabulary(fitted, comparison.config.search.fields)
    tasks = [
        Task(engine, replace(comparison.config, seed=seed), words, comparison.folder(engine, seed))
        for seed in comparison.search_seeds
        for engine in comparison.engines
    ]
    with run_folder.lock(comparison.path):
        if todo := [task for task in tasks if not task.ended]:
            _work(todo, tasks, fitted, min(workers, len(todo)), quiet)
        report = report_of(comparison, fitted)
        run_folder.write_json(comparison.path / "report.json", report.to_json())
        write_curves(comparison)
    return report


def _work(todo: Sequence[Task], tasks: Sequence[Task], fitted: Sequence[Experiment], count: int, quiet: bool) -> None:
    line = Line(quiet)
    pool = start_workers(count, fitted, tasks[0].config)
    try:
        if count == 1:
            for task in todo:
                search(task, lambda: line.update(lambda: _state(tasks)))
        else:
            left = {pool.submit(search, task) for task in todo}
            while left:
                done, left = wait(left, timeout=line.every_s, return_when="FIRST_COMPLETED")
                for future in done:
                    future.result()
                line.update(lambda: _state(tasks))
    except BaseException:
        pool.stop()
        raise
    finally:
        line.close()
    pool.close()


def _state(tasks: Sequence[Task]) -> str:
    """How many candidates the searches have assessed, counted in their curves, and which are under way."""
    done, under_way = 0, []
    for task in tasks:
        if task.ended:
            done += task.config.budget
        elif (curve := task.folder / CURVE).exists():
            done += curve.read_bytes().count(b"\n")
            under_way.append(task.folder.name)
    return f"{done}/{sum(task.config.budget for task in tasks)} candidates; {', '.join(under_way)}"


def search(task: Task, watch: Callable[[], None] = lambda: None) -> None:
    """Run a task to the end of its budget, in this process, from where its journal ends.

    Engines are deterministic. So a search is resumed by starting it again with the outcomes that the journal remembers.
    """
    engine = ENGINES[task.engine]
    config = engine.config(task.config)
    task.folder.mkdir(parents=True, exist_ok=True)
    past = _past(task.folder)
    here, population, curve = workers.here(), first_population(config), Curve(task.folder)
    journal = Journal(task.folder / JOURNAL)

    def taken_in(population: Population) -> None:
        curve.update(population)
        watch()

    try:
        proposer = engine.proposer(Bench(config, task.words, workers.prober()))
        assessor = Remembering(past, Live(config, here))
        Search(config, population, proposer, assessor, journal, taken_in).run(seed_texts())
    finally:
        curve.close()
        journal.close()
    run_folder.write_json(task.folder / DONE, _ended(task, population))


def _past(folder: Path) -> dict[int, Outcome]:
    """The outcomes of a search that was interrupted, by proposal number."""
    path = folder / JOURNAL
    try:
        lines = read_journal(path)
    except ValueError as e:
        raise InputError(f"{e}: remove {folder} to search again") from None
    if not all(map(is_outcome, lines)):
        raise InputError(f"{path}: is a journal of an older release: remove {folder} to search again")
    return {line["id"]: Outcome.from_json(line) for line in lines}


def _ended(task: Task, population: Population) -> dict[str, Any]:
    """Counts, rejections by stage (duplicates among them), and the champion by the configuration's rule."""
    best = population.champion()
    return {
        "engine": task.engine,
        "seed": task.config.seed,
        "candidates": population.fitted,
        "proposals": population.proposals,
        "rejected": {stage: n for stage, n in sorted(population.stages.items()) if stage != "scored"},
        "champion": best.to_json() if best else None,
    }
