"""The command `validate`."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import click

from evolve.cli.endings import finish, resumable
from evolve.cli.llm_options import limit_options, option_of
from evolve.cli.options import (
    TableFiles,
    caps_options,
    explain_option,
    explaining,
    list_option,
    load,
    quiet_flag,
    tables_options,
    verbose,
    verbose_option,
)
from evolve.cli.pools import Where, pool_options
from evolve.output.terminal import command
from evolve.run.config import FOLDS
from evolve.run.folder import open_run
from evolve.validate.held_out_views import print_validation
from evolve.validate.rows import VALIDATION, validation_rows
from evolve.validate.validate import Options
from evolve.validate.validate import validate as make
from simulator.common.errors import InputError


@click.command()
@click.argument("run_path", metavar="RUN", type=click.Path(path_type=Path))
@list_option(
    "--folds",
    "folds",
    "KIND,KIND",
    f"{', '.join(FOLDS)} (repeatable) [default: the configuration's, or all that apply].",
)
@click.option(
    "--budget",
    type=click.IntRange(min=1),
    help="Candidates of each fold's search [default: the configuration's, 500; recorded forms: all].",
)
@click.option(
    "--hindsight", is_flag=True, help="Refit the run's champion in every fold instead of searching. All output says so."
)
@click.option(
    "--ask-models",
    is_flag=True,
    help="Ask, and pay, the run's language models in every fold [default: fit and choose their recorded forms].",
)
@limit_options("With --ask-models: limit on the cost of all folds together")
@click.option(
    "--against",
    metavar="PROGRAM",
    help="Compare with this program, refitted in every fold [default: the best baseline].",
)
@click.option("--again", is_flag=True, help="Validate although settings have changed since the first time.")
@pool_options
@tables_options("a row for each fold and held-out experiment as CSV")
@click.option("--json", "as_json", is_flag=True, help="Print everything as JSON.")
@quiet_flag
@caps_options
@explain_option
@verbose_option
def validate(
    run_path: Path,
    folds: tuple[str, ...],
    budget: int | None,
    hindsight: bool,
    ask_models: bool,
    limits: dict[str, float],
    against: str | None,
    again: bool,
    where: Where,
    tables: TableFiles,
    as_json: bool,
    quiet: bool,
    caps: dict[str, int],
) -> int:
    """Measure held-out errors: repeat the search without each fold.

    The figures evaluate the search procedure, not the shipped program. Language models are asked only with
    --ask-models. Without it, the forms in the journal are fitted, scored and chosen again in every fold, at no cost.
    These language models had seen the errors on all runs, so these figures are optimistic. The output says so.

    A fold leaves out one model, workload, TP degree, architecture (dense or mixture of experts), GPU type, type of
    weights, kind of parallelism, engine version, cell (model, GPU and type of weights) or experiments file, or the last
    load stages. The figures are also written to RUN/validate.json, and one line for every call to RUN/validate.jsonl.

    \b
    evolve validate runs/0001
    evolve validate runs/0001 --folds models,workloads --budget 300 --csv held_out.csv
    evolve validate runs/0001 --against champion --json
    evolve validate runs/0007                     forms that language models proposed, without a call
    evolve validate runs/0007 --ask-models --max-usd 20
    """
    run = open_run(run_path)
    if ask_models and hindsight:
        raise InputError("--ask-models searches in every fold, --hindsight in none. Give one of them.")
    if hindsight and budget is not None:
        raise InputError("--budget is for searches, and --hindsight searches in no fold. Give one of them.")
    if limits and not ask_models:
        raise InputError(f"{option_of(next(iter(limits)))} needs --ask-models: without it no model is asked.")
    source = load(against, caps) if against else None
    options = Options(folds, budget, hindsight, ask_models, limits, source, again)
    modes = {"--hindsight": hindsight, "--ask-models": ask_models, "--again": again}
    flags = [flag for flag, chosen in modes.items() if chosen]
    given: list[tuple[str, object]] = [("--folds", ",".join(folds)), ("--budget", budget), ("--against", against)]
    given += [(option_of(name), most) for name, most in limits.items()]
    words = [str(word) for pair in given if pair[1] for word in pair]
    with resumable(command("validate", run_path, *words, *flags)), where.pool(quiet) as pool:
        result = make(run, options, pool)
    tables.write(VALIDATION, validation_rows(result.to_json()))
    if not tables.on_stdout:
        finish(result, as_json, partial(print_validation, explain=explaining(), verbose=verbose()))
    return 0
