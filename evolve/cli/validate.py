"""The command `validate`: held-out errors of a run."""

from __future__ import annotations

from pathlib import Path

import click

from evolve.cli.endings import print_json, resumable
from evolve.cli.options import Tables, caps_options, list_option, load, tables_options
from evolve.cli.pools import Where, pool_options
from evolve.run.folder import open_run
from evolve.study.held_out_views import print_validation
from evolve.study.validate import Options
from evolve.study.validate import validate as make
from evolve.terminal import command
from simulator.errors import InputError


@click.command()
@click.argument("run_path", metavar="RUN", type=click.Path(path_type=Path))
@list_option("--folds", "folds", "KIND,KIND", "models, workloads, tp, architectures, hardware, files, stages "
             "(repeatable) [default: the configuration's, or all that apply].")  # fmt: skip
@click.option(
    "--budget", type=click.IntRange(min=1), help="Candidates of each fold's search [default: the configuration's, 500]."
)
@click.option(
    "--hindsight", is_flag=True, help="Refit the run's champion in every fold instead of searching; all output says so."
)
@click.option(
    "--against",
    metavar="PROGRAM",
    help="Compare with this program, refitted in every fold [default: the best known answer].",
)
@click.option("--again", is_flag=True, help="Validate although settings have changed since the first time.")
@pool_options
@tables_options("a row for each fold and held-out experiment as CSV")
@click.option("--json", "as_json", is_flag=True, help="Print everything as JSON.")
@click.option("--quiet", is_flag=True, help="No progress line.")
@caps_options
def validate(run_path: Path, folds: tuple[str, ...], budget: int | None, hindsight: bool, against: str | None,
             again: bool, where: Where, tables: Tables, as_json: bool, quiet: bool,
             caps: dict[str, int]) -> int:  # fmt: skip
    """Measure held-out errors of a run: repeat the whole search in every fold, without what the fold holds out.

    Kinds of folds: leave out one model, one workload, one TP degree, dense models or mixtures of experts, one GPU type,
    or one experiments file (models, workloads, tp, architectures, hardware, files), or the last load stages (stages).
    The figures are written to RUN/validate.json too, and a line about every call to RUN/validate.jsonl.

    \b
    evolve validate runs/0001
    evolve validate runs/0001 --folds models,workloads --budget 300 --csv held_out.csv
    evolve validate runs/0001 --against champion --json
    evolve validate runs/0001 --hindsight
    """
    run = open_run(run_path)
    if run.config.search.proposer != "offline" and not hindsight:
        raise InputError(f"{run_path}: validate repeats the search in every fold, and would pay its models every time: "
                         "give --hindsight")  # fmt: skip
    source = load(against, caps) if against else None
    options = Options(folds, budget, hindsight, source, again)
    with resumable(f"{command('validate', run_path)} ..."), where.pool(quiet) as pool:
        result = make(run, options, pool)
    tables.write("validation", "validation", result.to_json())
    if tables.on_stdout:
        return 0
    if as_json:
        print_json(result.to_json())
    else:
        print_validation(result)
    return 0
