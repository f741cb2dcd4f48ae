"""The commands on a program: show, check, fit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import click

from evaluator.fit.steps import LOSSES, QUANTILE
from evolve.calibrate.first_stage import RELATIVE, Loss
from evolve.calibrate.fit import FitSettings, calibrate
from evolve.calibrate.learning import learning_curve, print_curve
from evolve.calibrate.steps.sources import sources
from evolve.calibrate.view import print_fit
from evolve.cli.endings import print_json
from evolve.cli.options import (
    TableFiles,
    caps_options,
    ids_option,
    list_option,
    load,
    named_experiments,
    quiet,
    quiet_option,
    tables_options,
)
from evolve.cli.pools import Where, pool_options
from evolve.inspect.check import check as check_program
from evolve.inspect.check import fields_json, print_check, print_fields
from evolve.inspect.refusal import print_refusal, refusal_of
from evolve.inspect.show import describe, print_show
from evolve.output.terminal import warn
from evolve.run.config import FITS
from evolve.run.program import Source
from simulator.common.errors import InputError
from simulator.serving.experiment import Experiment

FIT_METHODS = (*FITS, "all")


@click.command()
@click.argument("program")
@tables_options("a row for each constant as CSV")
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
@caps_options
def show(program: str, tables: TableFiles, as_json: bool, caps: dict[str, int]) -> int:
    """Show a program: text, size, constants, dot products, and what it reached.

    Of a refused proposal of a run, RUN:ID, it shows the text, why it was refused, and the reviews of judges.

    \b
    evolve show champion
    evolve show runs/0001:137
    evolve show my_model.py --json
    evolve show champion --latex constants.tex
    """
    refusal = None if tables.files else refusal_of(program)
    if refusal and as_json:
        print_json(refusal.to_json())
    elif refusal:
        print_refusal(refusal)
    if refusal:
        return 0
    description = describe(load(program, caps))
    tables.write("constants", "constants", description)
    if tables.on_stdout:
        return 0
    if as_json:
        print_json(description.to_json())
    else:
        print_show(description)
    return 0


@click.command()
@click.argument("program", required=False)
@click.option("--fields", is_flag=True, help="List the fields that a program may read, with their units and meanings.")
@click.option("--experiments", metavar="FILE", help="Run the gates on its deployments [default: the shipped runs'].")
@ids_option("Only those of these experiments (repeatable).")
@click.option(
    "--physics", is_flag=True, help="Also check consistency with datasheets, parallelism, batch and model size."
)
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
@caps_options
def check(
    program: str | None, fields: bool, experiments: str | None, ids: tuple[str, ...], physics: bool, as_json: bool,
    caps: dict[str, int],
) -> int:  # fmt: skip
    """Check a program as a search would: language, caps, units and gates.

    The gates run it on batches of many kinds. Exit status 2 if the text is not a program with consistent units within
    the caps, 1 if a gate refuses it.

    \b
    evolve check my_model.py
    evolve check champion --physics
    evolve check mine.py --experiments mine.yaml --id my-plan
    evolve check --fields
    """
    if fields and (experiments or ids):
        raise InputError("--fields lists what any program may read: leave out --experiments and --id")
    if fields == (program is not None):
        raise InputError("check needs a PROGRAM (a file, RUN:ID or a shipped name) or --fields: give one of the two")
    if fields:
        if as_json:
            print_json(fields_json())
        else:
            print_fields()
        return 0

    verdict = check_program(load(str(program), caps), physics, named_experiments(experiments, ids))
    if as_json:
        print_json(verdict.to_json())
    else:
        print_check(verdict)
    return 0 if verdict.ok else 1


@click.command()
@click.argument("program", default="champion")
@click.option("--experiments", metavar="FILE", help="Experiments with observations [default: those of --steps, else "
              "those the project ships].")  # fmt: skip
@ids_option()
@list_option("--only", "only", "NAME,NAME", "Change only these constants (repeatable): alpha, beta, a method, or "
             "names.")  # fmt: skip
@click.option("--scope", type=click.Choice(["shared", "per-model"]), help="One value for all models, or one for each.")
@list_option("--per-model", "per_model", "NAME,NAME", "Only these constants have a value per model (repeatable).")
@click.option("--method", "methods", type=click.Choice(FIT_METHODS), multiple=True, help="How to fit "
              "(repeatable: compare several) [default: auto].")  # fmt: skip
@click.option("--steps", "steps", type=click.Path(path_type=Path), multiple=True, help="First fit step_time to these "
              "step tables: parquet files, or folders of `evolve ingest` (repeatable).")  # fmt: skip
@click.option("--sync", is_flag=True, help="With --steps: the engines did not schedule ahead.")
@click.option("--loss", "loss_name", type=click.Choice(LOSSES), help="With --steps: what that fit minimises [default: "
              "relative].")  # fmt: skip
@click.option("--quantile", type=click.FloatRange(0, 1, min_open=True, max_open=True), help="With --loss quantile: "
              f"which one of the step times [default: {QUANTILE:g}].")  # fmt: skip
@click.option("--split", is_flag=True, help="Fit the first 60 % of every trace; show the errors on the next and the "
              "last 20 %.")  # fmt: skip
@click.option("--learning-curve", "curve", is_flag=True, help="Write nothing: show the errors on runs left out, by how "
              "many others are fitted.")  # fmt: skip
@click.option("--out", type=click.Path(path_type=Path), help="Write the fitted program here, with its record next to "
              "it; per model: a file each, NAME-MODEL.py.")  # fmt: skip
@partial(pool_options, default=1)
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
@quiet_option
@caps_options
def fit(
    program: str, experiments: str | None, ids: tuple[str, ...], only: tuple[str, ...], scope: str | None,
    per_model: tuple[str, ...], methods: tuple[str, ...], steps: tuple[Path, ...], sync: bool, loss_name: str | None,
    quantile: float | None, split: bool, curve: bool, out: Path | None, where: Where, as_json: bool,
    caps: dict[str, int],
) -> int:  # fmt: skip
    """Fit a program's constants to experiments.

    The form stays the same. The output says of each constant how far it may be off, how far it moved, and whether the
    measurements decide it at all. `alpha` means queueing_time and the overheads, `beta` step_time. Methods: linear
    (Gauss-Newton; CMA-ES over the constants in conditions), lbfgsb, neldermead, cma; auto takes linear, followed by
    CMA-ES if there are more than two conditionals.

    Losses of --steps: relative (relative errors, robust), ridge (with a penalty on the constants, chosen by
    cross-validation), log (of logarithms, then scaled to the mean), quantile (of step times; the fit to load stages
    then leaves step_time as it is).

    With --learning-curve each model is left out in turn (of a single model, each run), the constants are fitted to 1,
    2, 4, ... and all of the other runs, and predict those left out: it shows how many runs a form needs.

    \b
    evolve fit champion --experiments mine.yaml --out mine.py
    evolve fit champion --experiments mine.yaml --only alpha
    evolve fit floor --scope per-model --out floors.py
    evolve fit floor --per-model weights,queueing_time.alpha0
    evolve fit my_model.py --method all --workers 4
    evolve fit floor --steps ingested/ --out mine.py
    evolve fit floor --steps ingested/ --loss quantile --quantile 0.9
    evolve fit champion --experiments traces.yaml --split
    evolve fit champion --experiments mine.yaml --learning-curve --workers 4
    """
    if curve:
        given = {
            "--only": only, "--scope": scope, "--per-model": per_model, "--method": methods, "--steps": steps,
            "--sync": sync, "--loss": loss_name, "--quantile": quantile, "--split": split, "--out": out,
        }  # fmt: skip
        return _learning_curve(load(program, caps), named_experiments(experiments, ids), given, where, as_json)
    if scope and per_model:
        raise InputError("--scope is for all constants, --per-model for some: give one of the two")
    own = None if scope == "per-model" else per_model
    routes = FIT_METHODS[:-1] if "all" in methods else tuple(dict.fromkeys(methods)) or FIT_METHODS[:1]
    source = load(program, caps)
    if source.foreign:
        warn(source.foreign)
    if sync and not steps:
        raise InputError("--sync only applies together with --steps")
    loss = _loss(loss_name, quantile, bool(steps))
    if steps:
        named = sources(steps, experiments, ids, sync)
        runs, fitted, files = named.runs, list(named.experiments), named.file_of
    else:
        runs, fitted = (), named_experiments(experiments, ids)
        files = {e.id: experiments for e in fitted if experiments}
    with where.pool(quiet()) as pool:
        result = calibrate(source, fitted, out, FitSettings(routes, own, only, runs, split, loss), pool)
    if as_json:
        print_json(result.to_json())
    else:
        print_fit(result, files.get(result.programs[0].fitted[0]))
    return 0


def _learning_curve(
    source: Source, experiments: Sequence[Experiment], given: Mapping[str, object], where: Where, as_json: bool
) -> int:
    """Print the learning curve. Raises InputError if one of the options `given` has a value: it has no use here."""
    if useless := next((option for option, value in given.items() if value), None):
        raise InputError(f"--learning-curve fits a program many times in the usual way and writes nothing: leave out "
                         f"{useless}")  # fmt: skip
    with where.pool(quiet()) as pool:
        curve = learning_curve(source, experiments, pool)
    if as_json:
        print_json(curve.to_json())
    else:
        print_curve(curve)
    return 0


def _loss(name: str | None, quantile: float | None, with_steps: bool) -> Loss:
    """The loss of a fit to steps. Raises InputError for one that has nothing to be applied to."""
    if name and not with_steps:
        raise InputError("--loss only applies together with --steps")
    if quantile is not None and name != "quantile":
        raise InputError("--quantile only applies together with --loss quantile")
    if name == "quantile":
        return Loss(name, QUANTILE if quantile is None else quantile)
    return Loss(name) if name else RELATIVE
