"""The baselines of a run: their errors on its experiments, computed once and kept in its folder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from archive.score import Errors
from evaluator import baselines
from evolve.output.files import write_json
from evolve.run.folder import RunFolder
from evolve.search.pool.pool import Pool
from evolve.search.pool.process import WorkerCall
from simulator.common.documents import read_json
from simulator.common.errors import InputError
from simulator.language.key import key
from simulator.serving.digests import data_hash
from simulator.serving.experiment import Experiment

FILE = "baseline_errors.json"
OLD_FILE = "known.json"  # in releases up to 0.3


def run_baselines(
    run: RunFolder, fitted: Sequence[Experiment], others: Sequence[Experiment], pool: Pool
) -> dict[str, list[Errors]]:
    """The errors of the baselines, by name. They depend only on the data and the programs, so the run's folder keeps
    them."""
    path, everything = run.path / FILE, [*fitted, *others]
    identity = {
        "data": [data_hash(fitted), data_hash(everything)],
        "programs": [key(baselines.form(name)) for name in baselines.NAMES],
    }
    kept = path if path.exists() else run.path / OLD_FILE
    if kept.exists() and (stored := _stored(kept, identity)):
        return stored
    tasks = baselines.tasks(fitted, everything)
    futures = [pool.submit(WorkerCall(baselines.solve, (task,))) for task in tasks]
    answers: dict[str, list[Errors]] = {name: [] for name in baselines.NAMES}
    for task, future in zip(tasks, futures, strict=True):
        answers[task.name] += future.result()
    write_json(path, {**identity, "answers": answers})
    return answers


def _stored(path: Path, identity: Mapping[str, list[str]]) -> dict[str, list[Errors]]:
    """The baselines in a run's file; none if they are of other data or programs. Raises InputError if it is damaged."""
    remedy = "remove it: it is computed again"
    value = read_json(path, remedy)
    try:
        if any(value.get(name) != of for name, of in identity.items()) or set(value["answers"]) != set(baselines.NAMES):
            return {}
        answers = {name: [Errors(*row) for row in rows] for name, rows in value["answers"].items()}
    except (TypeError, KeyError, AttributeError):
        raise InputError(f"{path}: is damaged: {remedy}") from None
    return answers
