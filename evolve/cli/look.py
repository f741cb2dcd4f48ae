"""The commands `archive` and `list`."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import click

from evolve.cli.endings import finish, print_json
from evolve.cli.options import TableFiles, explain_option, explaining, tables_options, verbose, verbose_option
from evolve.inspect.attribution import attribution, print_attribution
from evolve.inspect.lists import archive_json, inventory, print_archive, print_inventory
from evolve.run.folder import RUNS, open_run
from evolve.summary.rows import ELITES, GRID, front_rows, grid_rows
from evolve.summary.searched import Searched, tell_unfinished
from simulator.common.errors import InputError


@click.command()
@click.argument("run_path", metavar="RUN", type=click.Path(path_type=Path))
@click.option("--grid", is_flag=True, help="Show the MAP-Elites grid: best mean error by operations and features.")
@click.option("--pareto", is_flag=True, help="Show the Pareto front (the default).")
@click.option("--by", type=click.Choice(["proposer"]), help="Show the finds and the cost of each operator and model.")
@tables_options("the front, or with --grid the grid, as CSV")
@click.option("--json", "as_json", is_flag=True, help="Print everything as JSON.")
@explain_option
@verbose_option
def archive(run_path: Path, grid: bool, pareto: bool, by: str | None, tables: TableFiles, as_json: bool) -> int:
    """Show the programs that a run kept. They are rebuilt from its journal.

    \b
    evolve archive runs/0001
    evolve archive runs/0001 --grid
    evolve archive runs/0001 --by proposer
    evolve archive runs/0001 --csv front.csv --latex front.tex
    """
    if tables.files and (by or (grid and pareto)):
        option = next(iter(tables.files))
        raise InputError(f"--{option} writes the front or the grid. Leave out --by, and give --pareto or --grid.")
    run = open_run(run_path)
    if by:
        finish(attribution(run), as_json, partial(print_attribution, explain=explaining()))
    else:
        found = Searched(run, run.outcomes())
        if tables.files and grid:
            tables.write(GRID, grid_rows(found.archive))
        elif tables.files:
            tables.write(ELITES, front_rows(found.archive))
        if as_json:
            print_json(archive_json(found))
        elif not tables.on_stdout:
            print_archive(found, grid, pareto or not grid, explaining(), verbose())
    tell_unfinished(run)
    return 0


@click.command("list")
@click.option(
    "--runs", "folder", type=click.Path(path_type=Path), default=RUNS, show_default=True, help="Folder of runs."
)
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
@explain_option
@verbose_option
def list_(folder: Path, as_json: bool) -> int:
    """List runs, shipped programs, configurations, experiments, models and GPUs.

    \b
    evolve list
    evolve list --runs elsewhere --json
    """
    if not folder.is_dir() and folder != RUNS:
        raise InputError(f"--runs {folder}: no such folder. Name a folder of runs.")
    finish(inventory(folder), as_json, partial(print_inventory, explain=explaining(), verbose=verbose()))
    return 0
