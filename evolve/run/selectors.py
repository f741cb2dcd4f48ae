"""Constants by name: those that words of a command line select, and the certainty of each in a record."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from evaluator.fit.fit import fit_set
from evaluator.fit.uncertainty import uncertainty
from evolve.run.data import experiments_of
from evolve.run.folder import open_run
from evolve.run.records import ConstantRecord, Record, constant_records
from simulator.common.errors import InputError, nearest
from simulator.language.ir import Program
from simulator.serving.bundled import FILES
from simulator.serving.digests import data_hash
from simulator.serving.experiment import Experiment

# The host's names for its coefficients: those of the step, and those of all other times.
WORDS = {"beta": ("step_time",), "alpha": ("queueing_time", "output_token_time", "completion_time")}


def positions(program: Program, words: Sequence[str], option: str) -> tuple[int, ...]:
    """Positions in `program.theta` of the constants that the words select.

    A word is `alpha`, `beta`, a method, `method.name`, or a name that only one method has. Raises InputError, naming
    `option`, for any other word.
    """
    names = [(f.name, c.name) for f in program.functions for c in f.constants]
    selected: set[int] = set()
    for word in words:
        methods = WORDS.get(word, (word,))
        matches = [i for i, (method, name) in enumerate(names) if method in methods or word == f"{method}.{name}"]
        if not matches:
            matches = [i for i, (_, name) in enumerate(names) if name == word]
            if len(matches) > 1:
                choices = " or ".join(".".join(names[i]) for i in matches)
                raise InputError(f"{option} {word}: several methods have a constant of that name: write {choices}")
        if not matches:
            valid = sorted({*WORDS, *(m for m, _ in names), *(n for _, n in names), *map(".".join, names)})
            raise InputError(f"{option} {word}: no such constant or method: {nearest(word, valid)}")
        selected.update(matches)
    return tuple(sorted(selected))


def known_constants(record: Record | None, program: Program) -> Mapping[str, ConstantRecord] | None:
    """The certainty of the constants of a fitted program, by `method.name`; None if it is unknown.

    It is computed again if the record lacks it and the experiments are available.
    """
    if record is None:
        return None
    if record.constants is not None:
        return record.constants
    fitted = _fitted(record)
    return constant_records(uncertainty(program, fit_set(fitted))) if fitted else None


def _fitted(record: Record) -> list[Experiment]:
    """The experiments of a record; none unless all are available with the same measurements."""
    try:
        offered = open_run(Path(record.run)).experiments()[0] if record.run else experiments_of(FILES)
    except InputError:  # the run's files have been moved
        return []
    experiments = [e for e in offered if e.id in record.fitted]
    return experiments if data_hash(experiments) == record.data else []
