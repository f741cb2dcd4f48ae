"""Fits and predictions of the Python interface, and the experiments that they are on."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

import pandas as pd

from evaluator.fit.methods import METHODS
from evolve.api import arguments
from evolve.api.program import Program
from evolve.calibrate.fit import FitSettings, calibrate
from evolve.calibrate.result import FIT_ERRORS, ConstantChange, fit_error_rows
from evolve.output.frames import frame
from evolve.output.progress import Line
from evolve.plan.axes import Axes, axes_of
from evolve.plan.plan import Space
from evolve.plan.plan import plan as make_plan
from evolve.plan.plan_result import ROWS, plan_row
from evolve.plan.predict import predict as predict_all
from evolve.plan.prediction_rows import PREDICTIONS, prediction_row
from evolve.plan.prices import read_prices
from evolve.plan.slo import SloLimit, parse_slo, slo_limit
from evolve.plan.sweep import sweep as predict_sweep
from evolve.plan.sweep_rows import SWEEP, sweep_rows
from evolve.run.data import experiments_of, known_experiment
from evolve.run.program import load
from evolve.run.program_files import files_for
from evolve.run.selectors import positions
from simulator.common.errors import InputError, shown
from simulator.serving.bundled import BUNDLED, load_specs
from simulator.serving.experiment import Experiment, deploy
from simulator.serving.spec import Spec

MOST_SEEDS = 100
Asked = TypeVar("Asked", Experiment, Spec)
Item = str | Path | Experiment | Spec
Experiments = Item | Sequence[Item]


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


def Plan(
    model: str, hardware: str, rate_rps: float, prompt_len: int, output_len: int, tp: int = 1, id: str = ""
) -> Spec:
    """`Spec.of`, by the name that it had before release 0.4."""
    warnings.warn("evolve.Plan is deprecated: write evolve.Spec.of(..., rate=...)", DeprecationWarning, stacklevel=2)
    return Spec.of(model, hardware, rate_rps, prompt_len, output_len, tp, id)


def load_experiments(experiments: Experiments = "bundled") -> tuple[Experiment, ...]:
    """The experiments of YAML files and specs; `bundled` are those that the project ships.

    Raises InputError for a file that cannot be read or is wrong, for what no engine can run, and if two experiments
    have the same id.

    >>> [e.id for e in evolve.load_experiments(experiments)]
    ['dense-chat', 'dense-code', 'sparse-chat', 'dense-overloaded']
    """
    found: list[Experiment] = []
    for item in _several(experiments):
        match item:
            case Experiment():
                found.append(item)
            case Spec():
                found.append(deploy(item))
            case str() | Path():
                found += experiments_of(_files(str(item)))
            case _:
                raise _no_experiment("experiments", item)
    return tuple(_distinct("experiments", found).values())


def _specs(experiments: Experiments) -> dict[str, Spec]:
    """The specs of files, specs and experiments, by id. Raises InputError as `load_experiments`, but for deployments
    that no engine can run."""
    found: list[Spec] = []
    for item in _several(experiments):
        match item:
            case Spec():
                found.append(item)
            case Experiment(spec=Spec() as spec):
                found.append(replace(spec, id=item.id, workload=item.workload))
            case str() | Path():
                found += [spec for name in _files(str(item)) for spec in load_specs(name)]
            case _:
                raise _no_experiment("loads", item)
    return _distinct("loads", found)


def _no_experiment(argument: str, item: object) -> InputError:
    remedy = "give files (`evolve ingest --trace` makes one of a table), Spec or Experiment values"
    return InputError(f"{argument}: {arguments.spelled(item)} is no experiment: {remedy}")


def _distinct(argument: str, found: Sequence[Asked]) -> dict[str, Asked]:
    """The items by id. Raises InputError for a duplicate id, and without any item."""
    if not found:
        raise InputError(f"{argument}: there are none: give files, or what load_experiments gives")
    by_id: dict[str, Asked] = {}
    for item in found:
        if item.id in by_id:
            raise InputError(f"{argument}: duplicate experiment id {item.id!r}: rename one, or give the Spec an id")
        by_id[item.id] = item
    return by_id


def _files(name: str) -> Sequence[str]:
    return BUNDLED if name == "bundled" and not Path(name).exists() else [name]


def predict(program: Program | str | Path, experiments: Experiments = "bundled", *, seeds: int = 3) -> pd.DataFrame:
    """The predictions of a program, a row an experiment: predicted, observed, error, 80 and 95 % intervals, warnings.

    seeds: how many arrival seeds to average over. The columns are explained in docs/reference/tables.md.

    >>> evolve.predict("champion", experiments)[["experiment", "e2e_error_pct"]].round(1).head(2)
       experiment  e2e_error_pct
    0  dense-chat           -1.7
    1  dense-code           -0.3
    """
    forecasts = predict_all(_program(program).source, load_experiments(experiments), _arrival_seeds(seeds))
    return frame(PREDICTIONS, map(prediction_row, forecasts.experiments))


def sweep(
    program: Program | str | Path,
    loads: Experiments = "bundled",
    *,
    ids: str | Sequence[str] = (),
    vary: Mapping[str, str | Sequence[float] | Sequence[str]] | None = None,
    slo: str | Sequence[str] | Mapping[str, str] = (),
    seeds: int = 3,
) -> pd.DataFrame:
    """The predictions of a program at every combination of the values in `vary`, a row for each.

    loads: YAML files, specs or experiments, of which `ids` name some. vary: by a key of `--sweep`, values or a text
    FIRST:LAST:STEP. slo: limits such as `ttft_p99=500ms`, or `{"ttft_p99": "500ms"}`. seeds: how many arrival seeds.
    Raises InputError for anything that `evolve predict --sweep` refuses.

    >>> chat = evolve.Spec.of("llama-3.1-8b", "H100", rate=1, prompt_len=1000, output_len=300)
    >>> rates = evolve.sweep("champion", chat, vary={"rate": [5, 20]}, slo="ttft_p99=500ms")
    >>> rates[["rate_rps", "ttft_p99_ms", "holds"]].round()
       rate_rps  ttft_p99_ms  holds
    0       5.0         69.0   True
    1      20.0      40665.0  False
    """
    axes, limits = _axes(vary), _limits(slo)
    every, names = _specs(loads), _several(ids)
    for name in names:
        known_experiment("ids:", name, every)
    chosen = [spec for ident, spec in every.items() if ident in names or not names]
    swept = predict_sweep(_program(program).source, chosen, _arrival_seeds(seeds), axes, limits, Line(True))
    return frame(SWEEP, sweep_rows(swept))


def _axes(vary: Mapping[str, str | Sequence[float] | Sequence[str]] | None) -> Axes:
    if vary is not None and not isinstance(vary, Mapping):
        raise InputError(f'vary: {shown(vary)}: names no values: give a mapping such as {{"rate": [5, 10]}}')
    given = {key: values if isinstance(values, str) else _several(values) for key, values in (vary or {}).items()}
    return axes_of(given, "vary: ")


def deployments(
    program: Program | str | Path,
    load: Spec,
    *,
    vary: Mapping[str, str | Sequence[float] | Sequence[str]] | None = None,
    slo: str | Sequence[str] | Mapping[str, str] = (),
    prices: Mapping[str, float] | None = None,
    seeds: int = 3,
) -> pd.DataFrame:
    """The deployments that serve a load within limits, a row for each, the cheapest first, as `evolve plan` ranks them.

    load: a model, its engine, and the load of the whole service. vary: by a key of `--sweep`, the values to consider;
    of a parallelism that neither this nor the engine gives, all that fit. prices: dollars per hour by GPU; without any,
    GPUs are counted. Raises InputError for anything that `evolve plan` refuses.

    >>> chat = evolve.Spec.of("llama-3.1-8b", "H100", rate=60, prompt_len=1000, output_len=300)
    >>> found = evolve.deployments("champion", chat, vary={"tp": [1, 2]}, slo="ttft_p99=500ms", prices={"H100": 2.5})
    >>> found[["tp", "replicas", "usd_per_hour"]]
       tp  replicas  usd_per_hour
    0   1         4          10.0
    1   2         3          15.0
    """
    if not isinstance(load, Spec):
        raise InputError(f"load: {arguments.spelled(load)}: is no spec: give one, as evolve.Spec.of makes it")
    if prices is not None and not isinstance(prices, Mapping):
        raise InputError(f'prices: {shown(prices)}: names no GPUs: give a mapping such as {{"H100": 2.5}}')
    priced = read_prices([f"{gpu}={usd}" for gpu, usd in (prices or {}).items()], "prices")
    source, space = _program(program).source, Space(_axes(vary))
    found = make_plan(source, load, _arrival_seeds(seeds), space, _limits(slo), priced, Line(True))
    return frame(ROWS, map(plan_row, found.rows))


def _limits(slo: str | Sequence[str] | Mapping[str, str]) -> tuple[SloLimit, ...]:
    if isinstance(slo, Mapping):
        return tuple(slo_limit(str(name), most, "slo") for name, most in slo.items())
    return parse_slo([word for text in _several(slo) for word in str(text).split(",")], "slo:")


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
        constants=frame(ConstantChange, result.constants),
        errors=frame(FIT_ERRORS, fit_error_rows(result.before, result.best.errors)),
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


def _program(program: Program | str | Path) -> Program:
    return program if isinstance(program, Program) else Program(program)
