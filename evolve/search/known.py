"""The known answers of a run: their errors on its experiments, computed once and kept in its folder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from evaluator import known
from evaluator.score import Errors
from evolve.output.files import write_json
from evolve.run.folder import RunFolder
from evolve.search.pool.pool import Pool
from evolve.search.pool.process import WorkerCall
from simulator.common.documents import read_json
from simulator.common.errors import InputError
from simulator.language.key import key
from simulator.serving.digests import data_hash
from simulator.serving.experiment import Experiment

KNOWN = "known.json"  # the name of the file


def known_answers(
    run: RunFolder, fitted: Sequence[Experiment], others: Sequence[Experiment], pool: Pool
) -> dict[str, list[Errors]]:
    """The errors of the known answers, by name. They depend only on the data and their programs, so the run's folder
    keeps them."""
    path, everything = run.path / KNOWN, [*fitted, *others]
    identity = {
        "data": [data_hash(fitted), data_hash(everything)],
        "programs": [key(known.form(name)) for name in known.NAMES],
    }
    if path.exists() and (stored := _stored(path, identity)):
        return stored
    tasks = known.tasks(fitted, everything)
    futures = [pool.submit(WorkerCall(known.solve, (task,))) for task in tasks]
    answers: dict[str, list[Errors]] = {name: [] for name in known.NAMES}
    for task, future in zip(tasks, futures, strict=True):
        answers[task.name] += future.result()
    rows = {name: [(e.experiment, e.e2e, e.ttft, e.itl) for e in errors] for name, errors in answers.items()}
    write_json(path, {**identity, "answers": rows})
    return answers


def _stored(path: Path, identity: Mapping[str, list[str]]) -> dict[str, list[Errors]]:
    """The known answers in a run's file; none if they are of other data or programs. Raises InputError if the file is
    damaged."""
    remedy = "remove it: it is computed again"
    value = read_json(path, remedy)
    try:
        if any(value.get(name) != of for name, of in identity.items()) or set(value["answers"]) != set(known.NAMES):
            return {}
        answers = {name: [Errors(*row) for row in rows] for name, rows in value["answers"].items()}
    except (TypeError, KeyError, AttributeError):
        raise InputError(f"{path}: is damaged: {remedy}") from None
    return answers
