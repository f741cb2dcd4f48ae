"""Baselines: each engine searches under each seed, with a journal per search, and the results are compared.

A search is one task of one worker, so only its CPU times depend on how many run at once. This process writes the lines
that it reports. Finished searches are not repeated, so an interrupted comparison can be resumed, and engines or seeds
can be added to it.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from archive.journal import Journal, read_journal
from archive.proposal import Outcome, is_outcome
from evolve import __version__
from evolve.output.files import write_json
from evolve.run.config import Config
from evolve.run.config_file import config_from, to_mapping
from evolve.run.data import chosen, located
from evolve.run.folder import COMPARISON, JOURNAL, REPORT, first_population
from evolve.run.lock import lock
from evolve.run.program import seed_texts
from evolve.search.assessor import Live, Remembering
from evolve.search.llm.setup import check
from evolve.search.pool.pool import Pool
from evolve.search.pool.process import Parcel, WorkerCall
from evolve.search.search import Search
from evolve.search.workers import Prepared, data_of, workers_inside
from evolve.validate.costs import runs_in
from evolve.validate.shares import check_spent, no_models, with_totals, without_limits
from evolve.validate.study import read_about
from research import asking
from research.comparison import (
    CURVE,
    DONE,
    Comparison,
    ComparisonReport,
    Curve,
    ended,
    read_curve,
    report_of,
    write_curves,
)
from research.engines.bench import Bench
from research.engines.engines import ENGINES
from simulator.common.errors import InputError, unwritable
from simulator.common.json import JsonObject
from simulator.serving.digests import data_hash


def create(path: Path, config: Config, engines: Sequence[str], seeds: int) -> Comparison:
    """A comparison in the folder `path`, new or extended by these engines and seeds.

    Limits of `config` on language models are for all searches in the folder together. Raises InputError if the folder
    holds something else, or a comparison with other settings or data, and if a language model cannot be called.
    """
    config = replace(config, data=located(config.data))
    fitted, _ = chosen(config.data)
    about = {"engine": __version__, "data": data_hash(fitted), "config": to_mapping(config)}
    every, most = list(engines), seeds
    if (path / COMPARISON).exists():
        old = dict(_read(path))
        # Read as settings, so that those which are newer than the comparison have their defaults.
        before = without_limits(config_from(old.get("config"), str(path / COMPARISON)))
        same = {
            "engine": old.get("engine") == __version__,
            "config": before == without_limits(config),
            "data": old.get("data") == about["data"],
        }
        for name, is_same in same.items():
            if not is_same:
                raise InputError(f"cannot extend {path}: it was made with another {name}. Choose another --out.")
        every = [name for name in ENGINES if name in (*old["engines"], *engines)]
        most = max(old["searches"], seeds)
    elif path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise InputError(f"cannot write {path}: it holds something else. Choose another --out.")
    count = sum(ENGINES[name].asks(config) for name in every) * most
    if count:
        check(config, count)
        check_spent(runs_in(path), count, config.llm)
    try:
        path.mkdir(parents=True, exist_ok=True)
        write_json(path / COMPARISON, about | {"engines": every, "searches": most})
    except OSError as e:
        raise unwritable(path, e, "choose another --out") from None
    return Comparison(path, config, tuple(engines), seeds, count)


def reopen(path: Path, raised: Mapping[str, float] | None = None) -> Comparison:
    """The comparison in the folder `path`, with the limits `raised` instead of those that it had.

    Raises InputError if there is none, and for limits if it asks no language model.
    """
    about = _read(path)
    config = config_from(about["config"], str(path / COMPARISON))
    if raised:
        if not any(ENGINES[name].asks(config) for name in about["engines"]):
            raise no_models(path, raised)
        config = replace(config, llm=with_totals(config.llm, raised))
    return create(path, config, about["engines"], about["searches"])


def _read(path: Path) -> Mapping[str, Any]:
    return read_about(
        path / COMPARISON,
        f"{path}: is not a comparison: it has no {COMPARISON}. `python -m research baselines` makes one.",
    )


@dataclass(frozen=True, slots=True)
class Task:
    """The search of one engine under one seed."""

    engine: str
    config: Config  # with the seed and the budget of this search


def compare(comparison: Comparison, pool: Pool) -> ComparisonReport:
    """Finish all searches, compare them, and write report.json and curves.csv.

    Ctrl-C leaves the journals intact, and `evolve resume` continues from them.
    """
    fitted, _ = chosen(comparison.config.data)
    searches = [
        Searching(comparison.folder(engine, seed), Task(engine, replace(comparison.config, seed=seed)))
        for seed in comparison.search_seeds
        for engine in comparison.engines
        if not ENGINES[engine].asks(comparison.config)
    ]
    with lock(comparison.path):
        try:
            _work(searches, data_of(fitted, comparison.config), pool)
            asking.work(asking.asking(comparison), pool)
        finally:
            pool.line.close()
            for search in searches:
                search.close()
        report = report_of(comparison, fitted)
        write_json(comparison.path / REPORT, report.to_json())
        write_curves(comparison)
    return report


def _work(searches: Sequence[Searching], data: Parcel, pool: Pool) -> None:
    def watch(search: Searching, entry: Entry) -> None:
        search.write(entry)
        pool.line.update(lambda: _state(searches, pool.state()))

    todo = [search for search in searches if not search.ended]
    running = []
    for number, search in enumerate(todo):
        search.open()
        call = WorkerCall(_search, (search.task, search.past, search.curve), parcel=data, streams=True)
        running.append(pool.submit(call, number, partial(watch, search)))
    for search, task in zip(todo, running, strict=True):
        search.finish(*task.result())


def _state(searches: Sequence[Searching], workers: str) -> str:
    """How many candidates the searches have assessed, the state of the pool, and which searches are running."""
    running = [search.folder.name for search in searches if search.begun and not search.ended]
    budgets = sum(search.task.config.budget for search in searches)
    assessed = f"{sum(search.assessed for search in searches)}/{budgets} candidates"
    return f"{assessed}{f', {workers}' if workers else ''}; {', '.join(running)}"


Entry = tuple[str, int, JsonObject]  # the file that it is a line of, its number there from 0, and the line


class Searching:
    """A search as the process that writes its files sees it; another one may carry it out."""

    def __init__(self, folder: Path, task: Task) -> None:
        self.folder, self.task = folder, task
        self.past: list[Outcome] = []  # of the journal, when the search was started or resumed
        self.curve: list[JsonObject] = []  # the lines of the learning curve
        self.begun = False  # whether this process has heard of it
        self._lock = threading.Lock()
        self._count = Counter[str]()  # lines of each file
        self._files: dict[str, Journal] = {}

    @property
    def ended(self) -> bool:
        """True if the search is finished."""
        return (self.folder / DONE).exists()

    @property
    def assessed(self) -> int:
        """How many candidates are in the learning curve."""
        return self.task.config.budget if self.ended else self._count[CURVE]

    def open(self) -> None:
        """Read the lines that are there, and open the files for more."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self.past = _past(self.folder)
        self.curve = read_curve(self.folder)
        self._count = Counter({JOURNAL: len(self.past), CURVE: len(self.curve)})
        self._files = {name: Journal(self.folder / name) for name in (JOURNAL, CURVE)}

    def write(self, entry: Entry) -> None:
        """Write a line, unless it is there: a search whose worker was lost is repeated from where it was resumed."""
        name, number, line = entry
        with self._lock:  # a report may still be on its way when the result is there
            self.begun = True
            if number == self._count[name]:
                self._files[name].append([line])
                self._count[name] += 1

    def finish(self, done: JsonObject, entries: Sequence[Entry]) -> None:
        """Write what is missing, and that the search is finished."""
        for entry in entries:
            self.write(entry)
        self.close()
        write_json(self.folder / DONE, done)

    def close(self) -> None:
        for file in self._files.values():
            file.close()
        self._files = {}


class _Lines:
    """A file of a search that is carried out elsewhere: each new line is reported."""

    def __init__(self, name: str, count: int, report: Callable[[Entry], None]) -> None:
        self._name, self._count, self._report = name, count, report

    def append(self, lines: Sequence[JsonObject]) -> None:
        for line in lines:
            self._report((self._name, self._count, line))
            self._count += 1


def _search(
    prepared: Prepared,
    task: Task,
    past: Sequence[Outcome],
    curve: Sequence[JsonObject],
    report: Callable[[Entry], None],
) -> tuple[JsonObject, list[Entry]]:
    """The content of done.json, and the new lines of the files, of a search that starts where its journal ends.

    Engines are deterministic, so a search is resumed by starting it again with the outcomes in the journal.
    """
    entries: list[Entry] = []

    def line(entry: Entry) -> None:
        entries.append(entry)
        report(entry)

    engine = ENGINES[task.engine]
    config, own = engine.config(task.config), workers_inside(prepared)
    population = first_population(config)
    proposer = engine.proposer(Bench(config, prepared.words, prepared.probe, own))
    assessor = Remembering({outcome.proposal.id: outcome for outcome in past}, Live(config, own))
    journal, growing = _Lines(JOURNAL, len(past), line), Curve(curve, _Lines(CURVE, len(curve), line))
    Search(config, population, proposer, assessor, journal, growing.update).run(seed_texts())
    return ended(task.engine, task.config.seed, population), entries


def _past(folder: Path) -> list[Outcome]:
    path = folder / JOURNAL
    try:
        lines = read_journal(path)
    except ValueError as e:
        raise InputError(f"{e}. Remove {folder} to search again.") from None
    if not all(map(is_outcome, lines)):
        raise InputError(f"cannot read {path}: it is of an older release. Remove {folder} to search again.")
    return [Outcome.from_json(line) for line in lines]
