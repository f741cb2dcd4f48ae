"""The commands that show runs: what one kept, and which there are."""

from __future__ import annotations

from pathlib import Path

import click

from evolve.cli.endings import print_json
from evolve.cli.options import TableFiles, tables_options
from evolve.inspect.attribution import attribution, print_attribution
from evolve.inspect.lists import archive_json, inventory, print_archive, print_inventory
from evolve.run.folder import RUNS, open_run
from evolve.summary.searched import Searched, tell_unfinished
from simulator.common.errors import InputError


@click.command()
@click.argument("run_path", metavar="RUN", type=click.Path(path_type=Path))
@click.option("--grid", is_flag=True, help="The MAP-Elites grid: best joint error by operations and features.")
@click.option("--pareto", is_flag=True, help="The Pareto front (the default).")
@click.option("--by", type=click.Choice(["proposer"]), help="What each operator and model found, and at which cost.")
@tables_options("the front, or with --grid the grid, as CSV")
@click.option("--json", "as_json", is_flag=True, help="Everything as JSON.")
def archive(run_path: Path, grid: bool, pareto: bool, by: str | None, tables: TableFiles, as_json: bool) -> int:
    """Show what a run kept, rebuilt from its journal.

    \b
    evolve archive runs/0001
    evolve archive runs/0001 --grid
    evolve archive runs/0001 --by proposer
    evolve archive runs/0001 --json > archive.json
    evolve archive runs/0001 --csv front.csv --latex front.tex
    """
    if tables.files and (by or (grid and pareto)):
        raise InputError(f"--{next(iter(tables.files))} writes the front or the grid: leave out --by, and one of the "
                         "two")  # fmt: skip
    run = open_run(run_path)
    if by:
        result = attribution(run)
        print_json(result.to_json()) if as_json else print_attribution(result)
    else:
        found = Searched(run, run.outcomes())
        if tables.files:
            tables.write("run", "grid" if grid else "front", found.archive)
        if as_json:
            print_json(archive_json(found))
        elif not tables.on_stdout:
            print_archive(found, grid, pareto or not grid)
    tell_unfinished(run)
    return 0


@click.command("list")
@click.option(
    "--runs", "folder", type=click.Path(path_type=Path), default=RUNS, show_default=True, help="Folder of runs."
)
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
def list_(folder: Path, as_json: bool) -> int:
    """List runs, shipped programs, configurations, experiments, models and GPUs.

    \b
    evolve list
    evolve list --runs elsewhere --json
    """
    if not folder.is_dir() and folder != RUNS:
        raise InputError(f"--runs {folder}: there is no such folder: name the one that has the runs")
    if as_json:
        print_json(inventory(folder).to_json())
    else:
        print_inventory(inventory(folder))
    return 0
