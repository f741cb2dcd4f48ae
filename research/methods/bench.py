"""The bench: every entry by its protocols, on all runs, and without each model, each workload and either architecture.

`judge.py` trains and judges one entry in a worker. This module orders the trainings and keeps their results.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from archive.journal import Journal
from archive.score import Errors
from evaluator.group_out import groups
from evaluator.score import MEANS, SCORE_SEEDS
from evolve import __version__
from evolve.calibrate.steps.sources import TableRun
from evolve.output.files import REMEDY, write_json
from evolve.output.terminal import warn
from evolve.run.data import fittable
from evolve.run.lock import lock
from evolve.run.program import write_program
from evolve.run.program_files import alias
from evolve.run.records import record, today
from evolve.search.pool.pool import Pool
from evolve.search.pool.process import Parcel, WorkerCall, parcel
from evolve.validate.study import read_about
from research.methods.closed_form import published_means
from research.methods.entries import SEARCH, Entry
from research.methods.judge import judged, prepared
from research.methods.protocol import protocol
from research.methods.result import IN_SAMPLE, Result, Task, read_results
from simulator.common.errors import InputError, unwritable
from simulator.language.complete import complete
from simulator.language.forest_file import forest_of
from simulator.language.key import key
from simulator.language.parse import parse
from simulator.serving.digests import data_hash
from simulator.serving.experiment import Experiment

ABOUT, RESULTS, PROGRAMS = "leaderboard.json", "results.jsonl", "programs"
DATE = "date"
WORDS = {"engine": "another release", "data": "other experiments", "steps": "other --steps", "seeds": "other seeds"}
WORDS |= {"protocol": "another protocol"}


@dataclass(frozen=True)
class Bench:
    """The entries on a bench, and the data: experiments, and the runs whose steps were recorded.

    short_circuit: True if an entry with large errors on single steps is neither replayed nor held out.
    """

    path: Path
    entries: tuple[Entry, ...]
    data: tuple[Experiment, ...]
    runs: tuple[TableRun, ...]
    short_circuit: bool = True

    @property
    def experiments(self) -> list[Experiment]:
        return fittable(self.data)


def tasks(bench: Bench) -> list[Task]:
    """All trainings, those of an entry side by side.

    A kind of fold with one member is left out. A program that a search found is not trained again.
    """
    kinds = predicted_together(bench.experiments)
    return [
        Task(entry.name, by, kind, fold, tuple(predicted), _digest(entry))
        for entry in bench.entries
        for by in entry.protocols
        for kind, folds in kinds.items()
        if kind == IN_SAMPLE or by != SEARCH
        for fold, predicted in folds.items()
    ]


def predicted_together(fitted: Sequence[Experiment]) -> dict[str, dict[str, list[str]]]:
    """The ids of the runs that are predicted together, by kind and name: all in sample, then what is held out."""
    held_out = groups(fitted, protocol().h3.kinds)
    return {IN_SAMPLE: {"all": [e.id for e in fitted]}} | {
        kind: {name: [fitted[i].id for i in members] for name, members in folds.items()}
        for kind, folds in held_out.items()
    }


def _digest(entry: Entry) -> str:
    """16 hex digits of a program's text and ensemble; "" for an entry that a release fixes."""
    if entry.source is None:
        return ""
    forest = entry.source.program.forest
    return hashlib.sha256(f"{entry.source.text}{forest.digest if forest else ''}".encode()).hexdigest()[:16]


def measure(bench: Bench, pool: Pool) -> list[Result]:
    """The results of all trainings, in the order of `tasks`; those in the bench's folder are not repeated.

    First the entries are trained on all runs, the reference of the short circuit before the others, then on all but
    what is held out, those that are not skipped. Raises InputError if the folder holds something else, or a bench with
    other data or of another protocol.
    """
    fitted = bench.experiments
    if not fitted:
        raise InputError("cannot fit: no experiment is clean and has observed load stages. Add measurements.")
    date = _begin(bench, fitted)
    todo = tasks(bench)
    short = protocol().short_circuit
    with lock(bench.path):
        kept = {r.task: r for r in read_results(bench.path / RESULTS) if bench.short_circuit or not r.skipped}
        for name in changed(todo, kept):
            warn(f"{name} is trained again: its text has changed since it was trained for {bench.path}")
        work = _Work(bench, pool, _parcel(bench, fitted), kept, len(todo))
        try:
            whole = [task for task in todo if task.kind == IN_SAMPLE]
            results = work.carry_out([task for task in whole if task.name == short.reference], math.inf)
            reference = next((r.test_mape for r in results.values()), None)
            limit = short.limit(reference) if bench.short_circuit else math.inf
            results |= work.carry_out([task for task in whole if task.name != short.reference], limit)
            over = {(r.task.name, r.task.protocol) for r in results.values() if r.misses_by_more_than(limit)}
            held = [task for task in todo if task.kind != IN_SAMPLE and (task.name, task.protocol) not in over]
            results |= work.carry_out(held, math.inf)
        finally:
            pool.line.close()
            work.journal.close()
    # An entry that an earlier call without a short circuit replayed is skipped all the same.
    every = [r.without_errors() if r.misses_by_more_than(limit) else r for t in todo if (r := results.get(t))]
    _write_programs(bench.path / PROGRAMS, every, fitted, date)
    return every


def changed(todo: Iterable[Task], kept: Iterable[Task]) -> list[str]:
    """Names of the programs that were trained before, but with another text only."""
    before: dict[str, set[str]] = {}
    for task in kept:
        before.setdefault(task.name, set()).add(task.text)
    return list(dict.fromkeys(t.name for t in todo if t.name in before and t.text not in before[t.name]))


class _Work:
    """Trainings carried out in waves, each kept in the journal when it is done."""

    def __init__(self, bench: Bench, pool: Pool, data: Parcel, kept: dict[Task, Result], most: int) -> None:
        self.entries = {entry.name: entry for entry in bench.entries}
        self.pool, self.data, self.kept, self.most = pool, data, kept, most
        self.journal = Journal(bench.path / RESULTS)
        self.done = 0

    def carry_out(self, wave: Sequence[Task], limit_pct: float) -> dict[Task, Result]:
        """The results of these tasks. Above the limit on test cycles, other errors are not computed."""
        missing = [task for task in wave if task not in self.kept]
        self.done += len(wave) - len(missing)
        calls = (
            self.pool.submit(WorkerCall(judged, (self.entries[task.name], task, limit_pct), parcel=self.data), n)
            for n, task in enumerate(missing)
        )
        # In this process a training is carried out as soon as it is submitted, and kept before the next one.
        waiting = calls if self.pool.here else list(calls)
        for task, promise in zip(missing, waiting, strict=True):
            self.pool.line.update(partial("{} of at most {} trainings; {}".format, self.done, self.most, task.name))
            self.kept[task] = promise.result()
            self.journal.append([self.kept[task].to_json()])
            self.done += 1
        return {task: self.kept[task] for task in wave}


def _write_programs(folder: Path, results: Sequence[Result], fitted: Sequence[Experiment], date: str) -> None:
    """Write the programs that were trained on all runs, each with the record of the runs that it was trained on.

    Files are NAME-PROTOCOL.py, or NAME-PROTOCOL-MODEL.py where every model or run has one.
    """
    folder.mkdir(exist_ok=True)
    for result in results:
        if result.task.kind != IN_SAMPLE:
            continue
        for of, text in result.texts.items():
            file = folder / program_file(result.task.name, result.task.protocol, of)
            members = [e for e in fitted if of in ("", e.model, e.id)]
            errors = [_errors(result, e) for e in members]
            forest = forest_of(result.forest, RESULTS) if result.forest else None
            program = complete(parse(text, file.name))
            form = key(program.with_forest(forest) if forest else program)
            write_program(file, text, forest, record(form, members, errors, SCORE_SEEDS, date))


def program_file(name: str, by: str, of: str = "") -> str:
    """The file in PROGRAMS of an entry's program, of all runs or of a model or run.

    A space is not a hyphen there: `overhead floor` and `overhead-floor` are two entries.
    """
    parts = [name.replace(" ", "_"), by, *([alias(of)] if of else [])]
    return "-".join("".join(c if c.isalnum() or c in ".-_" else "-" for c in part) for part in parts) + ".py"


def _errors(result: Result, e: Experiment) -> Errors:
    """The errors of a run for a record; None where they were not computed."""
    of_run = result.errors.get(e.id, {})
    return Errors(e.id, *(of_run.get(name) for name in MEANS))


def _begin(bench: Bench, fitted: Sequence[Experiment]) -> str:
    """The date of the bench. Writes its description; raises InputError if the folder has another bench."""
    steps = {run.experiment.id: run.steps.digest() for run in bench.runs}
    about = {"engine": __version__, "data": data_hash(fitted), "steps": steps, "seeds": list(SCORE_SEEDS)}
    about |= {"protocol": protocol().digest}
    file = bench.path / ABOUT
    if file.exists():
        old = read_about(file, "")
        for name, value in about.items():
            if old.get(name) != value:
                more = ", or give the same --experiments and --id" if name == "data" else ""
                raise InputError(
                    f"cannot use {bench.path}: it was made with {WORDS[name]}. Choose another --out{more}."
                )
        if not isinstance(old.get(DATE), str):
            raise InputError(f"{file}: is damaged: {REMEDY}")
        return str(old[DATE])
    if bench.path.exists() and (not bench.path.is_dir() or any(bench.path.iterdir())):
        raise InputError(f"cannot write {bench.path}: it holds something else. Choose another --out.")
    try:
        bench.path.mkdir(parents=True, exist_ok=True)
        date = today()
        write_json(file, {**about, DATE: date})
    except OSError as e:
        raise unwritable(bench.path, e, "choose another --out") from None
    return date


def _parcel(bench: Bench, fitted: Sequence[Experiment]) -> Parcel:
    return parcel(prepared, tuple(fitted), tuple(published_means(bench.data)), bench.runs)
