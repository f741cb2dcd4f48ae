"""Baselines: each engine searches under each seed, with a journal per search, and the results are compared.

A search is one task of one process, so only its CPU times depend on how many run at once. Finished searches are not
repeated, so an interrupted comparison can be resumed, and engines or seeds can be added to it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
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
from evolve.run.files import write_json
from evolve.run.folder import first_population
from evolve.run.program import seed_texts
from evolve.search import workers
from evolve.search.assessor import Live, Remembering
from evolve.search.search import Search
from evolve.study.comparison import CURVE, DONE, JOURNAL, Comparison, ComparisonReport, Curve, report_of, write_curves
from evolve.study.engines.bench import Bench
from evolve.study.engines.engines import ENGINES
from evolve.study.study import read_about
from simulator.errors import InputError
from simulator.experiment.experiment import Experiment
from simulator.json import JsonObject

FILE = "baselines.json"


def create(path: Path, config: Config, engines: Sequence[str], seeds: int) -> Comparison:
    """A comparison in the folder `path`, new or extended by these engines and seeds.

    Raises InputError if the folder holds something else, or a comparison with other settings or data.
    """
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
        write_json(path / FILE, about)
    except OSError as e:
        raise InputError(f"{path}: cannot be written ({e.strerror}): choose another --out") from None
    return comparison


def reopen(path: Path) -> Comparison:
    """The comparison in the folder `path`. Raises InputError if there is none."""
    about = _read(path)
    config = config_from(about["config"], str(path / FILE))
    return create(path, config, about["engines"], about["searches"])


def is_comparison(path: Path) -> bool:
    """Whether a folder holds a comparison."""
    return (path / FILE).is_file()


def _read(path: Path) -> Mapping[str, Any]:
    return read_about(path / FILE, f"{path}: is not a comparison (no {FILE}): `evolve baselines` makes one")


@dataclass(frozen=True, slots=True)
class Task:
    """The search of one engine under one seed."""

    engine: str
    config: Config  # with the seed and the budget of this search
    words: Vocabulary  # the fields that step_time may read
    folder: Path  # of the search's files

    @property
    def ended(self) -> bool:
        """Whether the search is finished."""
        return (self.folder / DONE).exists()


def compare(comparison: Comparison, workers: int, quiet: bool = False) -> ComparisonReport:
    """Finish all searches, compare them, and write report.json and curves.csv.

    Ctrl-C leaves the journals intact, and `evolve resume` continues from them.
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
        write_json(comparison.path / "report.json", report.to_json())
        write_curves(comparison)
    return report


def _work(todo: Sequence[Task], tasks: Sequence[Task], fitted: Sequence[Experiment], count: int, quiet: bool) -> None:
    line, config = Line(quiet), tasks[0].config
    if workers.alone(count):
        workers.start(count, fitted, config, line)
        try:
            for task in todo:
                search(task, lambda: line.update(lambda: _state(tasks, _assessed(tasks))))
        finally:
            line.close()
        return
    pool = workers.start_pool(count, fitted, config, line)
    try:
        running, assessed = [pool.submit(search, task) for task in todo], 0
        while running:
            for searching in running:
                if searching.ready(line.every_s / len(running)):
                    searching.result()
            running = [searching for searching in running if not searching.answered]
            if (now := _assessed(tasks)) > assessed:
                assessed = now
                pool.heard()
            line.update(partial(_state, tasks, assessed))
    finally:
        pool.close()
        line.close()


def _assessed(tasks: Sequence[Task]) -> int:
    """How many candidates the searches have assessed, counted in their curves."""
    curves = [task.folder / CURVE for task in tasks if not task.ended]
    ended = sum(task.config.budget for task in tasks if task.ended)
    return ended + sum(curve.read_bytes().count(b"\n") for curve in curves if curve.exists())


def _state(tasks: Sequence[Task], assessed: int) -> str:
    """How many candidates the searches have assessed, and which searches are running."""
    running = [task.folder.name for task in tasks if not task.ended and (task.folder / CURVE).exists()]
    return f"{assessed}/{sum(task.config.budget for task in tasks)} candidates; {', '.join(running)}"


def search(task: Task, watch: Callable[[], None] = lambda: None) -> None:
    """Run a task in this process, from where its journal ends to the end of its budget.

    Engines are deterministic, so a search is resumed by starting it again with the outcomes in the journal.
    """
    engine = ENGINES[task.engine]
    config = engine.config(task.config)
    task.folder.mkdir(parents=True, exist_ok=True)
    past = _past(task.folder)
    here, population, curve = workers.here(), first_population(config), Curve(task.folder)
    journal = Journal(task.folder / JOURNAL)

    def after_outcome(population: Population) -> None:
        curve.update(population)
        watch()

    try:
        proposer = engine.proposer(Bench(config, task.words, workers.prober()))
        assessor = Remembering(past, Live(config, here))
        Search(config, population, proposer, assessor, journal, after_outcome).run(seed_texts())
    finally:
        curve.close()
        journal.close()
    write_json(task.folder / DONE, _ended(task, population))


def _past(folder: Path) -> dict[int, Outcome]:
    """The outcomes in a search's journal, by proposal number."""
    path = folder / JOURNAL
    try:
        lines = read_journal(path)
    except ValueError as e:
        raise InputError(f"{e}: remove {folder} to search again") from None
    if not all(map(is_outcome, lines)):
        raise InputError(f"{path}: is the journal of an older release: remove {folder} to search again")
    return {line["id"]: Outcome.from_json(line) for line in lines}


def _ended(task: Task, population: Population) -> JsonObject:
    """What done.json keeps of a finished search: counts, rejections by stage (duplicates included), and the champion by
    the configuration's rule."""
    best = population.champion()
    return {
        "engine": task.engine,
        "seed": task.config.seed,
        "candidates": population.fitted,
        "proposals": population.proposals,
        "rejected": {stage: n for stage, n in sorted(population.stages.items()) if stage != "scored"},
        "champion": best.to_json() if best else None,
    }
