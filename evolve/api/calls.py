"""Fits and predictions of the Python interface, and the experiments that they are on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pandas as pd

from evaluator.fit.methods import METHODS
from evolve.api import arguments
from evolve.api.frames import constants as constant_frames
from evolve.api.frames.predictions import predictions as prediction_frame
from evolve.api.frames.sweep import sweep as sweep_frame
from evolve.api.program import Program
from evolve.calibrate.fit import FitSettings, calibrate
from evolve.output.progress import Line
from evolve.plan.axes import parse_axes
from evolve.plan.plan import Plan, written
from evolve.plan.predict import predict as predict_all
from evolve.plan.slo import parse_slo
from evolve.plan.sweep import sweep as predict_sweep
from evolve.run.data import experiments_of, known_experiment
from evolve.run.program import load
from evolve.run.program_files import files_for
from evolve.run.selectors import positions
from simulator.common.errors import InputError, shown
from simulator.serving.bundled import BUNDLED, Written, as_planned, written_experiments
from simulator.serving.experiment import Experiment
from simulator.serving.limits import MOST_RATE

MOST_SEEDS = 100
FORMS = 'give values, such as {"rate": [5, 10], "tp": [1, 2]}, or a text FIRST:LAST:STEP'
Experiments = str | Path | Experiment | Plan | Sequence[str | Path | Experiment | Plan]
Loads = str | Path | Plan | Sequence[str | Path | Plan]


@dataclass(frozen=True)
class Fit:
    """A fit: the program with the new constants, and what changed.

    constants: a row for each, with its value before and after, its standard error, and what that correlates with.
    errors: a row for each fitted experiment. left_out: ids of experiments that could not be fitted. warnings: what the
    replays assume and leave out.

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
    """The experiments of YAML files and plans; `bundled` are those that the project ships.

    Raises InputError for a file that cannot be read or is wrong, and if two experiments have the same id.

    >>> [e.id for e in evolve.load_experiments(experiments)]
    ['dense-chat', 'dense-code', 'sparse-chat', 'dense-overloaded']
    """
    given = _several(experiments)
    found: list[Experiment] = []
    for item in given:
        match item:
            case Experiment():
                found.append(item)
            case Plan():
                found.append(written(item).experiment)
            case str() | Path():
                found += experiments_of(_files(str(item)))
            case _:
                remedy = "give files (`evolve ingest --trace` makes one of a table), plans or Experiment values"
                raise InputError(f"experiments: {arguments.spelled(item)} is no experiment: {remedy}")
    for i, e in enumerate(found):
        if e.id in {other.id for other in found[:i]}:
            raise InputError(f"experiments: there are two of the id {e.id!r}: rename one, or give Plan an id")
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
    forecasts = predict_all(_program(program).source, load_experiments(experiments), _arrival_seeds(seeds))
    return prediction_frame(forecasts.experiments)


def sweep(
    program: Program | str | Path,
    loads: Loads = "bundled",
    *,
    ids: str | Sequence[str] = (),
    vary: Mapping[str, str | Sequence[float | str]] | None = None,
    slo: str | Sequence[str] | Mapping[str, str] = (),
    load_rps: float | None = None,
    seeds: int = 3,
) -> pd.DataFrame:
    """What a program predicts at every combination of the values in `vary`, a row for each.

    loads: plans or YAML files, of which `ids` name experiments. vary: by `rate` (requests/s), `hardware`, `tp`,
    `max_num_seqs` or `max_num_batched_tokens`, values or FIRST:LAST:STEP. slo: limits such as `ttft_p99=500ms`, or
    `{"ttft_p99": "500ms"}`. load_rps: how many replicas does it take to serve so many requests/s? Then no rates are
    given, and load stages have rows, too, with a `stage`. seeds: how many arrival seeds. Raises InputError for anything
    that `evolve predict --sweep` refuses.

    >>> chat = evolve.Plan("llama-3.1-8b", "H100", rate_rps=1, prompt_len=1000, output_len=300)
    >>> rates = evolve.sweep("champion", chat, vary={"rate": [5, 20]}, slo="ttft_p99=500ms")
    >>> rates[["rate_rps", "ttft_p99_ms", "holds"]].round()
       rate_rps  ttft_p99_ms  holds
    0       5.0         68.0   True
    1      20.0      60359.0  False
    """
    if vary is not None and not isinstance(vary, Mapping):
        raise InputError(f'vary: {shown(vary)}: names no values: give a mapping such as {{"rate": [5, 10]}}')
    axes = parse_axes([f"{key}={_values(values)}" for key, values in (vary or {}).items()], "vary:", FORMS)
    if axes.rate and load_rps is not None:
        raise InputError("load_rps tries the rates of one, two, three ... replicas: leave rate out of vary")
    load = None if load_rps is None else arguments.positive("load_rps", load_rps, MOST_RATE, "requests/s")
    limited = [f"{name}={most}" for name, most in slo.items()] if isinstance(slo, Mapping) else _several(slo)
    limits = parse_slo([word for text in limited for word in str(text).split(",")], "slo:")
    every = _written(loads)
    names = _several(ids)
    for name in names:
        known_experiment("ids:", name, every)
    chosen = [w for ident, w in every.items() if ident in names or not names]
    swept = predict_sweep(_program(program).source, chosen, _arrival_seeds(seeds), axes, limits, Line(True), load)
    return sweep_frame(swept)


def fit(
    program: Program | str | Path,
    experiments: Experiments,
    *,
    only: str | Sequence[str] = (),
    method: str = "auto",
    out: str | Path | None = None,
) -> Fit:
    """The same form with constants from these experiments, one value for all models.

    only: change only these constants: `alpha`, `beta`, a method, or names. method: one of `evolve fit`. out: write the
    program to this file, with its record; predictions of the program have intervals only then. Raises InputError if
    nothing can be fitted.

    >>> fit = evolve.fit("linear", experiments, only=["beta"])
    >>> fit.program == evolve.Program("linear"), list(fit.errors["experiment"])
    (True, ['dense-chat', 'dense-code', 'sparse-chat'])
    """
    if method not in tuple(METHODS):
        raise InputError(f"method: {shown(method)}: is not a method: choose one of {', '.join(METHODS)}")
    names = tuple(only.split(",") if isinstance(only, str) else _several(only))
    if not all(isinstance(name, str) for name in names):
        raise InputError(f"only: {shown(only)}: names no constants: give alpha, beta, a method, or names")
    source, settings = _program(program).source, FitSettings((method,), only=names)
    positions(source.complete, names, "only:")
    with TemporaryDirectory() as folder:
        # The program and its record are read back from the file, so that they are those of `evolve fit`.
        file = Path(folder) / "fitted.py" if out is None else _free(out, source.name)
        result = calibrate(source, load_experiments(experiments), file, settings)
        [name] = result.out
        fitted = load(name)
    return Fit(
        program=Program.of(fitted if out is not None else replace(fitted, name=f"{source.name}, fitted")),
        constants=constant_frames.fitted(result.constants),
        errors=constant_frames.errors(result.before, result.best.errors),
        left_out=tuple(result.left_out),
        warnings=tuple(dict.fromkeys(text for texts in result.warnings.values() for text in texts)),
    )


def _free(out: str | Path, name: str) -> Path:
    """The file for a fit of the program of this name. Raises InputError before any work if it cannot be written."""
    file = arguments.path("out", out, "a file to write")
    files_for(file, name, None, "`out`")
    return file


def _arrival_seeds(count: int) -> range:
    return range(1, arguments.whole("seeds", count, 1, MOST_SEEDS) + 1)


def _several(values: Any) -> list[Any]:
    """The values; one alone, such as a text, as a list of it."""
    alone = isinstance(values, str | Mapping | pd.DataFrame) or not isinstance(values, Iterable)
    return [values] if alone else [*values]


def _values(values: object) -> str:
    """The values of a key of a sweep as `--sweep` takes them."""
    return values if isinstance(values, str) else ",".join(str(value) for value in _several(values))


def _written(loads: Loads) -> dict[str, Written]:
    """The experiments of plans and files with their entries, by id. Raises InputError for two of one id."""
    found: dict[str, Written] = {}
    for item in _several(loads):
        if not isinstance(item, str | Path | Plan):
            raise InputError(f"loads: {arguments.spelled(item)} is no load: give files or plans, which can be varied")
        of_item = [written(item, as_planned)] if isinstance(item, Plan) else [
            w for name in _files(str(item)) for w in written_experiments(name, as_planned)
        ]  # fmt: skip
        for w in of_item:
            if w.experiment.id in found:
                raise InputError(f"loads: there are two of the id {w.experiment.id!r}: rename one, or give Plan an id")
            found[w.experiment.id] = w
    if not found:
        raise InputError("loads: there are none: give files or plans")
    return found


def _program(program: Program | str | Path) -> Program:
    return program if isinstance(program, Program) else Program(program)
