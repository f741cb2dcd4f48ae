"""Fits and predictions of the Python interface, and the experiments that they are on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from numbers import Integral
from pathlib import Path
from tempfile import TemporaryDirectory

import pandas as pd

from evaluator.experiments import BUNDLED
from evaluator.fit.methods import METHODS
from evolve.frames import constants as constant_frames
from evolve.frames.predictions import predictions as prediction_frame
from evolve.interface.program import Program
from evolve.program.fit.calibrate import Settings, calibrate
from evolve.program.predict import predict as predict_all
from evolve.run.data import experiments_of
from evolve.run.program import load
from simulator.errors import InputError, shown
from simulator.experiment.experiment import Experiment

MOST_SEEDS = 100
Experiments = str | Path | Experiment | Sequence[str | Path | Experiment]


@dataclass(frozen=True)
class Fit:
    """A fit: the program with the new constants, and what changed.

    constants: a row for each, with its value before and after, and its standard error. errors: a row for each fitted
    experiment. left_out: ids of experiments that could not be fitted. warnings: what the replays assume and leave out.

    >>> fit = evolve.fit("linear", experiments)
    >>> fit.constants[["name", "identified"]].head(2)
      name  identified
    0   b0        True
    1   b1       False
    >>> fit.left_out
    ('dense-overloaded',)
    """

    program: Program
    constants: pd.DataFrame
    errors: pd.DataFrame
    left_out: tuple[str, ...]
    warnings: tuple[str, ...]


def load_experiments(experiments: Experiments = "bundled") -> tuple[Experiment, ...]:
    """The experiments of YAML files; `bundled` are those that the project ships.

    Raises InputError for a file that cannot be read or is wrong, and if two experiments have the same id.

    >>> [e.id for e in evolve.load_experiments(experiments)]
    ['dense-chat', 'dense-code', 'sparse-chat', 'dense-overloaded']
    """
    given = [experiments] if isinstance(experiments, str | Path | Experiment | Mapping) else experiments
    found: list[Experiment] = []
    for item in given:
        if not isinstance(item, str | Path | Experiment):
            raise InputError(f"experiments: {shown(item)} is no experiment: give files, or what load_experiments gives")
        found += [item] if isinstance(item, Experiment) else experiments_of(_files(str(item)))
    for i, e in enumerate(found):
        if e.id in {other.id for other in found[:i]}:
            raise InputError(f"experiments: there are two of the id {e.id!r}: rename one")
    if not found:
        raise InputError("experiments: there are none: give files, or what load_experiments gives")
    return tuple(found)


def _files(name: str) -> Sequence[str]:
    return BUNDLED if name == "bundled" and not Path(name).exists() else [name]


def predict(program: Program | str | Path, experiments: Experiments = "bundled", *, seeds: int = 3) -> pd.DataFrame:
    """What a program predicts, a row an experiment: predicted, observed, error, intervals of 80 and 95 %, warnings.

    seeds: how many arrival seeds to average over. The columns are explained in docs/python.md.

    >>> evolve.predict("champion", experiments)[["experiment", "e2e_mean_error_pct"]].round().head(2)
       experiment  e2e_mean_error_pct
    0  dense-chat                -1.0
    1  dense-code                 1.0
    """
    if not isinstance(seeds, Integral) or not 1 <= seeds <= MOST_SEEDS:
        raise InputError(f"seeds: {shown(seeds)}: must be a number from 1 to {MOST_SEEDS}: give another one")
    forecasts = predict_all(_program(program).source, load_experiments(experiments), range(1, seeds + 1))
    return prediction_frame(forecasts.experiments)


def fit(
    program: Program | str | Path,
    experiments: Experiments,
    *,
    only: str | Sequence[str] = (),
    method: str = "auto",
    out: str | Path | None = None,
) -> Fit:
    """The same form with constants from these experiments, one value for all models.

    only: change only these constants: `alpha`, `beta`, a method, or names. method: as for `evolve fit`. out: write the
    program to this file, with its record; predictions of the program have intervals only then. Raises InputError if
    nothing can be fitted.

    >>> fit = evolve.fit("linear", experiments, only=["beta"])
    >>> fit.program == evolve.Program("linear"), list(fit.errors["experiment"])
    (True, ['dense-chat', 'dense-code', 'sparse-chat'])
    """
    if method not in METHODS:
        raise InputError(f"method: {method!r}: is not a method: choose one of {', '.join(METHODS)}")
    names = (only,) if isinstance(only, str) else tuple(only)
    source, settings = _program(program).source, Settings((method,), only=names)
    with TemporaryDirectory() as folder:
        # The program and its record are read back from the file, so that they are those of `evolve fit`.
        file = Path(folder) / "fitted.py" if out is None else Path(out)
        result = calibrate(source, load_experiments(experiments), file, settings)
        [written] = result.out
        fitted = load(written)
    return Fit(
        program=Program.of(fitted if out is not None else replace(fitted, name=f"{source.name}, fitted")),
        constants=constant_frames.fitted(result.constants),
        errors=constant_frames.errors(result.before, result.best.errors),
        left_out=tuple(result.left_out),
        warnings=tuple(dict.fromkeys(text for texts in result.warnings.values() for text in texts)),
    )


def _program(program: Program | str | Path) -> Program:
    return program if isinstance(program, Program) else Program(program)
