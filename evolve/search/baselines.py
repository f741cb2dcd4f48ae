"""The baselines of a run: their errors on its experiments, computed once and kept in its folder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from archive.score import Errors
from evaluator import baselines
from evolve.output.files import write_json
from evolve.run.folder import RunFolder
from evolve.search.pool.pool import Pool
from evolve.search.pool.process import WorkerCall
from simulator.common.documents import read_json
from simulator.common.records import from_json, to_json
from simulator.language.key import key
from simulator.serving.digests import data_hash
from simulator.serving.experiment import Experiment

FILE = "baseline_errors.json"
OLD_FILE = "known.json"  # in releases up to 0.3
REMEDY = "remove it: it is computed again"


@dataclass(frozen=True)
class _Kept:
    """The file: the errors by baseline, of these data and programs."""

    data: list[str]
    programs: list[str]
    answers: dict[str, list[Errors]]


def run_baselines(
    run: RunFolder, fitted: Sequence[Experiment], others: Sequence[Experiment], pool: Pool
) -> dict[str, list[Errors]]:
    """The errors of the baselines, by name. They depend only on the data and the programs, so the run's folder keeps
    them."""
    path, everything = run.path / FILE, [*fitted, *others]
    answers: dict[str, list[Errors]] = {name: [] for name in baselines.NAMES}
    programs = [key(baselines.form(name)) for name in baselines.NAMES]
    now = _Kept([data_hash(fitted), data_hash(everything)], programs, answers)
    file = path if path.exists() else run.path / OLD_FILE
    kept = from_json(_Kept, read_json(file, REMEDY, kept=True), file, REMEDY) if file.exists() else None
    if kept and (kept.data, kept.programs, {*kept.answers}) == (now.data, now.programs, {*answers}):
        return kept.answers
    tasks = baselines.tasks(fitted, everything)
    futures = [pool.submit(WorkerCall(baselines.solve, (task,))) for task in tasks]
    for task, future in zip(tasks, futures, strict=True):
        answers[task.name] += future.result()
    write_json(path, to_json(now))
    return answers
