"""The bench: every method by both protocols, on all runs, and without each model and each workload."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from archive.journal import Damaged, Journal, read_journal
from evaluator.experiments import Written, data_hash
from evaluator.fit.fit import fit_set
from evaluator.score import MEANS, SCORE_SEEDS, Errors
from evolve import __version__
from evolve.methods.catalog import METHODS, Method
from evolve.methods.closed_form import Means, published_means
from evolve.methods.samples import TEST, TRAIN, samples_of
from evolve.methods.train import OWN, PROTOCOLS, Trained, Training, Untrainable, trained
from evolve.pool.pool import Pool
from evolve.pool.process import Call, Parcel, parcel
from evolve.program.fit.result import alias
from evolve.program.steps.figures import Figures, figures
from evolve.program.steps.score import predicted_us
from evolve.program.steps.sources import Run
from evolve.program.steps.targets import Targets, cycle_targets
from evolve.run import folder as run_folder
from evolve.run.data import fittable
from evolve.run.files import write_json
from evolve.run.folder import REMEDY
from evolve.run.program import write_program
from evolve.run.records import record, today
from evolve.study.held_out import held_out_errors
from evolve.study.study import read_about
from simulator.errors import InputError
from simulator.experiment.experiment import Experiment
from simulator.json import JsonObject
from simulator.language.complete import complete
from simulator.language.forest_file import forest_of
from simulator.language.key import key
from simulator.language.parse import parse
from simulator.language.simplify import brief
from simulator.language.unparse import unparse

ABOUT, RESULTS, PROGRAMS = "methods.json", "results.jsonl", "programs"
IN_SAMPLE = "in sample"
KINDS = (IN_SAMPLE, "models", "workloads")
FIGURES = ("e2e", "ttft", "itl", "e2e_p99")
DATE = "date"
WORDS = {"engine": "another release", "data": "other experiments", "steps": "other --steps", "seeds": "other seeds"}


@dataclass(frozen=True, slots=True)
class Task:
    """One training of a method. predicted: ids of the runs that it predicts and, unless in sample, does not see."""

    method: str
    protocol: str
    kind: str
    fold: str
    predicted: tuple[str, ...]


@dataclass(frozen=True)
class Result:
    """What a training came to. errors: of FIGURES in percent by run. cycles: figures of cycles by split, of the runs it
    predicts that have any. texts: of its programs by model, "" for other models. forest: in sample, the ensemble
    that its program reads. failure: why there is nothing, "" if there is."""

    task: Task
    constants: int
    times: int
    cpu_s: float
    errors: Mapping[str, Mapping[str, float | None]]
    cycles: Mapping[str, Figures]
    texts: Mapping[str, str]
    forest: JsonObject | None = None
    failure: str = ""

    def to_json(self) -> JsonObject:
        return asdict(self)

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> Result:
        """The result of a line of RESULTS."""
        task = Task(**{**raw["task"], "predicted": tuple(raw["task"]["predicted"])})
        cycles = {split: Figures(**f) for split, f in raw["cycles"].items()}
        return cls(**{**raw, "task": task, "cycles": cycles})


@dataclass(frozen=True)
class Bench:
    """The methods on a bench, and the data: experiments as they are written, and the runs whose steps were recorded."""

    path: Path
    methods: tuple[Method, ...]
    written: tuple[Written, ...]
    runs: tuple[Run, ...]

    @property
    def experiments(self) -> list[Experiment]:
        """The experiments that are fitted."""
        return fittable([w.experiment for w in self.written])


def tasks(bench: Bench) -> list[Task]:
    """All trainings, those of a method side by side. A kind of fold with one member is left out.

    Methods that differ in their own training only have one training by our protocol, that of the first.
    """
    fitted = bench.experiments
    groups: dict[str, dict[str, list[str]]] = {kind: {} for kind in KINDS}
    groups[IN_SAMPLE]["all"] = [e.id for e in fitted]
    first: dict[tuple[str, bool], str] = {}
    for method in bench.methods:
        first.setdefault((method.form, method.per_model), method.name)
    for e in fitted:
        groups["models"].setdefault(e.model, []).append(e.id)
        groups["workloads"].setdefault(e.workload.name, []).append(e.id)
    return [
        Task(method.name, protocol, kind, fold, tuple(predicted))
        for method in bench.methods
        for protocol in PROTOCOLS
        if protocol == OWN or first[method.form, method.per_model] == method.name
        for kind, folds in groups.items()
        if kind == IN_SAMPLE or len(folds) > 1
        for fold, predicted in folds.items()
    ]


def measure(bench: Bench, pool: Pool) -> list[Result]:
    """The results of all trainings, in the order of `tasks`; those in the bench's folder are not repeated.

    Raises InputError if the folder holds something else, or a bench with other data.
    """
    fitted = bench.experiments
    if not fitted:
        raise InputError("nothing to fit: no experiment is clean and has observed load stages")
    date = _begin(bench, fitted)
    todo = tasks(bench)
    with run_folder.lock(bench.path):
        done = {result.task: result for result in _earlier(bench.path / RESULTS)}
        missing = [task for task in todo if task not in done]
        data = _parcel(bench, fitted)
        journal = Journal(bench.path / RESULTS)
        try:
            calls = (pool.submit(Call(_measured, (task,), parcel=data), n) for n, task in enumerate(missing))
            # In this process a training is carried out as soon as it is submitted, and kept before the next one.
            waiting = calls if pool.here else list(calls)
            if missing:
                pool.line.show(f"{len(missing)} trainings ...")
            for n, (task, promise) in enumerate(zip(missing, waiting, strict=True)):
                pool.line.update(partial("{}/{} trainings; {}".format, n, len(missing), task.method))
                done[task] = promise.result()
                journal.append([done[task].to_json()])
        finally:
            pool.line.close()
            journal.close()
    results = [done[task] for task in todo]
    _write_programs(bench.path / PROGRAMS, results, fitted, date)
    return results


def _write_programs(folder: Path, results: Sequence[Result], fitted: Sequence[Experiment], date: str) -> None:
    """Write the programs that were trained on all runs, METHOD-PROTOCOL.py or METHOD-PROTOCOL-MODEL.py, each with the
    record of the runs that it was trained on."""
    folder.mkdir(exist_ok=True)
    for result in results:
        if result.task.kind != IN_SAMPLE:
            continue
        for model, text in result.texts.items():
            of_model = f"-{alias(model)}" if model else ""
            file = folder / f"{result.task.method}-{result.task.protocol}{of_model}.py"
            members = [e for e in fitted if not model or e.model == model]
            errors = [Errors(e.id, *(result.errors[e.id][name] for name in MEANS)) for e in members]
            forest = forest_of(result.forest, RESULTS) if result.forest else None
            program = complete(parse(text, file.name))
            form = key(program.with_forest(forest) if forest else program)
            write_program(file, text, forest, record(form, members, errors, SCORE_SEEDS, date))


def _earlier(path: Path) -> list[Result]:
    """The results in a bench's journal. Raises InputError if it is damaged."""
    results = list[Result]()
    try:
        for line in read_journal(path):
            results.append(Result.from_json(line))
        return results
    except (ValueError, KeyError, TypeError, AttributeError) as e:
        good = e.good if isinstance(e, Damaged) else len(results)
        remedy = "remove it and all lines after it, and their trainings are done again"
        raise InputError(f"{path}:{good + 1}: damaged line: {remedy}") from None


def _begin(bench: Bench, fitted: Sequence[Experiment]) -> str:
    """The date of the bench. Writes what it is made of, or raises InputError if its folder has another one."""
    steps = {run.experiment.id: run.steps.digest() for run in bench.runs}
    about = {"engine": __version__, "data": data_hash(fitted), "steps": steps, "seeds": list(SCORE_SEEDS)}
    file = bench.path / ABOUT
    if file.exists():
        old = read_about(file, "")
        for name, value in about.items():
            if old.get(name) != value:
                raise InputError(f"{bench.path}: was made with {WORDS[name]}: choose another --out")
        if not isinstance(old.get(DATE), str):
            raise InputError(f"{file}: is damaged: {REMEDY}")
        return str(old[DATE])
    if bench.path.exists() and (not bench.path.is_dir() or any(bench.path.iterdir())):
        raise InputError(f"{bench.path}: holds something else already: choose another --out")
    try:
        bench.path.mkdir(parents=True, exist_ok=True)
        date = today()
        write_json(file, {**about, DATE: date})
    except OSError as e:
        raise InputError(f"{bench.path}: cannot be written ({e.strerror}): choose another --out") from None
    return date


@dataclass(frozen=True)
class _Prepared:
    """All that a worker needs for any training."""

    training: Training
    targets: tuple[Targets, ...]


def _parcel(bench: Bench, fitted: Sequence[Experiment]) -> Parcel:
    return parcel(_prepared, tuple(fitted), tuple(published_means(bench.written)), bench.runs)


def _prepared(fitted: tuple[Experiment, ...], published: tuple[Means, ...], runs: tuple[Run, ...]) -> _Prepared:
    ids = {e.id for e in fitted}
    targets = tuple(cycle_targets(run) for run in runs if run.experiment.id in ids)
    data = fit_set(fitted)
    return _Prepared(Training(data, tuple(samples_of(data, targets)), published), targets)


def _measured(prepared: _Prepared, task: Task) -> Result:
    """One training, and what it predicts."""
    method = next(m for m in METHODS if m.name == task.method)
    whole = prepared.training
    every = whole.data.experiments
    predicted = [e for e in every if e.id in task.predicted]
    seen = [i for i, e in enumerate(every) if task.kind == IN_SAMPLE or e.id not in task.predicted]
    ids = {every[i].id for i in seen}
    samples = tuple(s for s in whole.samples if s.experiment in ids)
    begun = time.process_time()
    try:
        if method.per_model and not {e.model for e in predicted} & {every[i].model for i in seen}:
            raise Untrainable("constants of each model alone say nothing of another one")
        result = trained(method, task.protocol, Training(whole.data.subset(seen), samples, whole.published))
    except Untrainable as e:
        return Result(task, 0, 0, time.process_time() - begun, {}, {}, {}, failure=str(e))
    cpu_s = time.process_time() - begun
    return Result(
        task, result.constants, result.times, round(cpu_s, 3), _errors(result, predicted),
        _step_figures(result, predicted, prepared.targets, task.kind == IN_SAMPLE), _texts(result),
        forest.to_json() if task.kind == IN_SAMPLE and result.shared and (forest := result.shared.forest) else None,
    )  # fmt: skip


def _texts(result: Trained) -> dict[str, str]:
    of_models = {model: unparse(brief(program)) for model, program in result.of_model.items()}
    return of_models | ({"": unparse(brief(result.shared))} if result.shared else {})


def _errors(result: Trained, predicted: Sequence[Experiment]) -> dict[str, dict[str, float | None]]:
    errors: dict[str, dict[str, float | None]] = {}
    for e in predicted:
        program = result.program_for(e)
        if program is not None:
            (row,) = held_out_errors(program, [e], False)
            errors[e.id] = {name: row.errors[name] for name in FIGURES}
    return errors


def _step_figures(
    result: Trained, predicted: Sequence[Experiment], targets: Sequence[Targets], in_sample: bool
) -> dict[str, Figures]:
    """The figures of the cycles of these runs: by split in sample, of all where the runs are held out."""
    ids = {e.id for e in predicted}
    recorded = [t for t in targets if t.run.experiment.id in ids]
    steps = {}
    for split in (TRAIN, TEST) if in_sample else ("all",):
        parts = [(program, t.of(split)) for t in recorded if (program := result.program_for(t.run.experiment))]
        if parts:
            predicted_times = np.concatenate([predicted_us(program, t) for program, t in parts])
            steps[split] = figures(np.nan_to_num(predicted_times), np.concatenate([t.observed_us for _, t in parts]))
    return steps
