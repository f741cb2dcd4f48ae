"""The command `validate`: held-out errors of a run."""

from __future__ import annotations

from pathlib import Path

import click

from evolve.cli.endings import print_json, resumable
from evolve.cli.llm_options import limit_options, option_of
from evolve.cli.options import TableFiles, caps_options, list_option, load, quiet_flag, tables_options
from evolve.cli.pools import Where, pool_options
from evolve.output.terminal import command
from evolve.run.folder import open_run
from evolve.validate.held_out_views import print_validation
from evolve.validate.validate import Options
from evolve.validate.validate import validate as make
from simulator.common.errors import InputError


@click.command()
@click.argument("run_path", metavar="RUN", type=click.Path(path_type=Path))
@list_option("--folds", "folds", "KIND,KIND", "models, workloads, tp, architectures, hardware, files, stages "
             "(repeatable) [default: the configuration's, or all that apply].")  # fmt: skip
@click.option(
    "--budget",
    type=click.IntRange(min=1),
    help="Candidates of each fold's search [default: the configuration's, 500; recorded forms: all].",
)
@click.option(
    "--hindsight", is_flag=True, help="Refit the run's champion in every fold instead of searching; all output says so."
)
@click.option(
    "--ask-models",
    is_flag=True,
    help="Ask the language models of the run in every fold, and pay them. Without it their recorded forms are fitted "
    "and chosen in every fold; all output says so.",
)
@limit_options("With --ask-models: what all folds of the run may spend together")
@click.option(
    "--against",
    metavar="PROGRAM",
    help="Compare with this program, refitted in every fold [default: the best known answer].",
)
@click.option("--again", is_flag=True, help="Validate although settings have changed since the first time.")
@pool_options
@tables_options("a row for each fold and held-out experiment as CSV")
@click.option("--json", "as_json", is_flag=True, help="Print everything as JSON.")
@quiet_flag
@caps_options
def validate(run_path: Path, folds: tuple[str, ...], budget: int | None, hindsight: bool, ask_models: bool,
             limits: dict[str, float], against: str | None, again: bool, where: Where, tables: TableFiles,
             as_json: bool, quiet: bool, caps: dict[str, int]) -> int:  # fmt: skip
    """Measure held-out errors of a run: repeat the whole search in every fold, without what the fold holds out.

    Language models are asked in the folds with --ask-models only. Without it a run of theirs is validated for free: all
    forms that its journal recorded are fitted, scored and chosen again in every fold. The models that proposed them had
    seen the errors on all runs, so these figures are optimistic, and say so.

    Kinds of folds: leave out one model, one workload, one TP degree, dense models or mixtures of experts, one GPU type,
    or one experiments file (models, workloads, tp, architectures, hardware, files), or the last load stages (stages).
    The figures are written to RUN/validate.json too, and a line about every call to RUN/validate.jsonl.

    \b
    evolve validate runs/0001
    evolve validate runs/0001 --folds models,workloads --budget 300 --csv held_out.csv
    evolve validate runs/0001 --against champion --json
    evolve validate runs/0001 --hindsight
    evolve validate runs/0007                     of language models: their recorded forms, without a call
    evolve validate runs/0007 --ask-models --max-usd 20
    """
    run = open_run(run_path)
    if ask_models and hindsight:
        raise InputError("--ask-models searches in every fold, --hindsight in none: give one of the two")
    if hindsight and budget is not None:
        raise InputError("--budget is of searches, and --hindsight searches in no fold: give one of the two")
    if limits and not ask_models:
        raise InputError(f"{option_of(next(iter(limits)))} is for --ask-models: without it no model is asked")
    source = load(against, caps) if against else None
    options = Options(folds, budget, hindsight, ask_models, limits, source, again)
    flags = ["--hindsight"] * hindsight + ["--ask-models"] * ask_models + ["--again"] * again
    given: list[tuple[str, object]] = [("--folds", ",".join(folds)), ("--budget", budget), ("--against", against)]
    given += [(option_of(name), most) for name, most in limits.items()]
    words = [str(word) for pair in given if pair[1] for word in pair]
    with resumable(command("validate", run_path, *words, *flags)), where.pool(quiet) as pool:
        result = make(run, options, pool)
    tables.write("validation", "validation", result.to_json())
    if tables.on_stdout:
        return 0
    if as_json:
        print_json(result.to_json())
    else:
        print_validation(result)
    return 0
