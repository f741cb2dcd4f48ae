"""The command `fit`, with its modes --learning-curve, --score-steps and --blend."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

import click

from evaluator.fit.steps import LOSSES, QUANTILE
from evolve.calibrate.first_stage import RELATIVE, Loss
from evolve.calibrate.fit import FitSettings, calibrate
from evolve.calibrate.learning import learning_curve, print_curve
from evolve.calibrate.steps.score import print_score, score_steps
from evolve.calibrate.steps.sources import sources
from evolve.calibrate.view import print_fit
from evolve.cli.endings import finish
from evolve.cli.options import (
    caps_options,
    exclude_option,
    explain_option,
    explaining,
    ids_option,
    list_option,
    load,
    named_experiments,
    quiet,
    quiet_option,
    verbose,
    verbose_option,
)
from evolve.cli.pools import Where, pool_options
from evolve.inspect.blend import CAPS, blend_run, print_blend
from evolve.output.terminal import warn
from evolve.run.config import FITS
from evolve.run.folder import open_run
from evolve.summary.searched import tell_unfinished
from simulator.common.errors import InputError
from simulator.serving.bundled import STEPS as SHIPPED
from simulator.serving.splits import SPLITS

FIT_METHODS = (*FITS, "all")


@click.command()
@click.argument("program", default="champion", metavar="[PROGRAM|RUN]")
@click.option(
    "--experiments",
    metavar="FILE",
    help="Experiments with observations [default: those of --steps, else the shipped runs].",
)
@ids_option()
@exclude_option()
@list_option("--only", "only", "NAME,NAME", "Fit only these constants (repeatable): alpha, beta, a method, or names.")
@click.option("--scope", type=click.Choice(["shared", "per-model"]), help="One value for all models, or one for each.")
@list_option("--per-model", "per_model", "NAME,NAME", "Only these constants have a value per model (repeatable).")
@click.option(
    "--method",
    "methods",
    type=click.Choice(FIT_METHODS),
    multiple=True,
    help="Optimiser (repeatable: compare several) [default: auto].",
)
@click.option(
    "--steps",
    "steps",
    type=click.Path(path_type=Path),
    multiple=True,
    help="First fit step_time to these step tables: parquet files, or folders of `evolve ingest` (repeatable).",
)
@click.option("--sync", is_flag=True, help="The engines of --steps did not schedule ahead.")
@click.option("--loss", "loss_name", type=click.Choice(LOSSES), help="Loss on --steps [default: relative].")
@click.option(
    "--quantile",
    type=click.FloatRange(0, 1, min_open=True, max_open=True),
    help=f"Quantile of the step times that --loss quantile fits [default: {QUANTILE:g}].",
)
@click.option("--split", is_flag=True, help="Fit the first 60 % of every trace; show the errors on the other parts.")
@click.option("--learning-curve", "mode", flag_value="curve", help="Show held-out errors by number of fitted runs.")
@click.option("--score-steps", "mode", flag_value="score", help="Score step_time on --steps; fit nothing.")
@click.option(
    "--target",
    type=click.Choice(["cycle", "duration"]),
    help="Step time of --score-steps: from start to next start, or CPU time of schedule() [default: cycle].",
)
@click.option("--part", type=click.Choice(["all", *SPLITS]), help="Part of each run that --score-steps uses.")
@click.option("--blend", "mode", flag_value="blend", help="Average the near-optimal programs of RUN into one program.")
@click.option("--top", type=click.IntRange(min=2), metavar="N", help="Programs that --blend averages.")
@click.option("--out", type=click.Path(path_type=Path), help="Write the program here, with its record next to it.")
@partial(pool_options, default=1)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@quiet_option
@caps_options
@explain_option
@verbose_option
def fit(
    program: str,
    experiments: str | None,
    ids: tuple[str, ...],
    exclude: tuple[str, ...],
    only: tuple[str, ...],
    scope: str | None,
    per_model: tuple[str, ...],
    methods: tuple[str, ...],
    steps: tuple[Path, ...],
    sync: bool,
    loss_name: str | None,
    quantile: float | None,
    split: bool,
    mode: str | None,
    target: str | None,
    part: str | None,
    top: int | None,
    out: Path | None,
    where: Where,
    as_json: bool,
    caps: dict[str, int],
) -> int:
    """Fit the constants of a program to experiments.

    The form stays the same.
    The output shows each constant before and after, its standard error, and whether the measurements determine it.
    `--only alpha` fits queueing_time and the overheads, `--only beta` fits step_time. Methods: linear (Gauss-Newton,
    with CMA-ES for constants in conditions), lbfgsb, neldermead, cma; auto is linear, then CMA-ES for more than two
    conditionals.

    Losses on steps: relative (robust), ridge (penalty by cross-validation), log (of logarithms, then scaled to the
    mean), quantile (of step times; the fit to load stages then leaves step_time alone).

    With per-model constants --out gets one file per model, NAME-MODEL.py. --learning-curve holds out each model in turn
    and fits 1, 2, 4, ... of the other runs. With one model only, it holds out each run. --blend gives each term the
    mean of its constants in the ensemble: up to twelve programs within 10 % of the best selection score. It exits with
    status 1 if a gate refuses the blend.

    \b
    evolve fit champion --experiments mine.yaml --out mine.py
    evolve fit champion --experiments mine.yaml --only alpha
    evolve fit floor --per-model weights,queueing_time.alpha0
    evolve fit floor --steps ingested/ --loss quantile --quantile 0.9 --out mine.py
    evolve fit champion --experiments traces.yaml --split
    evolve fit champion --experiments mine.yaml --learning-curve --workers 4
    evolve fit my_model.py --score-steps --steps ingested/ --part test
    evolve fit runs/0001 --blend --out blend.py
    """
    if sync and not steps:
        raise InputError("--sync applies only together with --steps")
    given: dict[str, object] = {
        "--only": only,
        "--scope": scope,
        "--per-model": per_model,
        "--method": methods,
        "--loss": loss_name,
        "--quantile": quantile,
        "--split": split,
    }
    others: dict[str, object] = {"--steps": steps, "--out": out, "--target": target, "--part": part, "--top": top}
    match mode:
        case "curve":
            _refuse("--learning-curve", {**given, **others})
            with where.pool(quiet()) as pool:
                curve = learning_curve(load(program, caps), named_experiments(experiments, ids, exclude=exclude), pool)
            finish(curve, as_json, partial(print_curve, explain=explaining()))
            return 0
        case "score":
            _refuse("--score-steps", {**given, "--out": out, "--top": top})
            tables = sources(steps or (Path(SHIPPED),), experiments, ids, sync, exclude)
            finish(
                score_steps(load(program, caps), tables, target or "cycle", part or "all"),
                as_json,
                partial(print_score, explain=explaining(), verbose=verbose()),
            )
            return 0
        case "blend":
            used = {
                "--experiments": experiments,
                "--id": ids,
                "--exclude": exclude,
                **given,
                **others,
                "--out": None,
                "--top": None,
            }
            _refuse("--blend", used)
            run = open_run(Path(program))
            blend = blend_run(run, top, replace(CAPS, **caps), out)
            finish(blend, as_json, partial(print_blend, explain=explaining()))
            tell_unfinished(run)
            return 0 if blend.verdict.ok else 1
        case _:
            _refuse("", {"--target": target, "--part": part, "--top": top})
    if scope and per_model:
        raise InputError("--scope is for all constants, --per-model for some: give one of the two")
    loss = _loss(loss_name, quantile, bool(steps))
    routes = FIT_METHODS[:-1] if "all" in methods else tuple(dict.fromkeys(methods)) or FIT_METHODS[:1]
    source = load(program, caps)
    if source.foreign:
        warn(source.foreign)
    if steps:
        named = sources(steps, experiments, ids, sync, exclude)
        runs, fitted, files = named.runs, list(named.experiments), named.file_of
    else:
        runs, fitted = (), named_experiments(experiments, ids, exclude=exclude)
        files = {e.id: experiments for e in fitted if experiments}
    settings = FitSettings(routes, None if scope == "per-model" else per_model, only, runs, split, loss)
    with where.pool(quiet()) as pool:
        result = calibrate(source, fitted, out, settings, pool)
    file = files.get(result.fitted[0])
    shown = partial(print_fit, file=file, explain=explaining(), verbose=verbose(), excluded=exclude)
    finish(result, as_json, shown)
    return 0


def _refuse(mode: str, given: Mapping[str, object]) -> None:
    """Raise InputError for a given option that has no effect in this mode."""
    useless = next((option for option, value in given.items() if value), None)
    if useless and mode:
        raise InputError(f"{mode} does not use {useless}: leave it out")
    if useless:
        needed = "--blend" if useless == "--top" else "--score-steps"
        raise InputError(f"{useless} applies only together with {needed}")


def _loss(name: str | None, quantile: float | None, with_steps: bool) -> Loss:
    """The loss of a fit to steps. Raises InputError for one that has nothing to be applied to."""
    if name and not with_steps:
        raise InputError("--loss only applies together with --steps")
    if quantile is not None and name != "quantile":
        raise InputError("--quantile only applies together with --loss quantile")
    if name == "quantile":
        return Loss(name, QUANTILE if quantile is None else quantile)
    return Loss(name) if name else RELATIVE
