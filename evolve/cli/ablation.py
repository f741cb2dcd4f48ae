"""The command that drops each part of a program: ablate."""

from __future__ import annotations

from functools import partial

import click

from evolve.cli.endings import print_json
from evolve.cli.options import (
    TableFiles,
    caps_options,
    experiments_for,
    ids_option,
    load,
    quiet,
    quiet_option,
    run_of,
    tables_options,
)
from evolve.cli.pools import Where, pool_options
from evolve.inspect.ablation import ablate as ablate_parts
from evolve.inspect.ablation_view import print_ablation


@click.command()
@click.argument("program", default="champion")
@click.option("--experiments", metavar="FILE", help="Experiments with observations [default: those that the program's "
              "run fits, else those the project ships].")  # fmt: skip
@ids_option()
@tables_options("a row for each part as CSV")
@partial(pool_options, default=1)
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
@quiet_option
@caps_options
def ablate(
    program: str, experiments: str | None, ids: tuple[str, ...], tables: TableFiles, where: Where, as_json: bool,
    caps: dict[str, int],
) -> int:  # fmt: skip
    """Drop each part of a program in turn, fit the rest again, and say which parts earn their place.

    Parts are the terms of its sums, arguments of max and min, measured kernels, factors of these, and whole methods.
    Every form is fitted to all runs, and in folds without each model, TP degree, architecture and workload, whose runs
    it then predicts. A part earns its place if the error on these held-out runs grows without it.

    \b
    evolve ablate champion
    evolve ablate my_model.py --experiments mine.yaml --workers 4
    evolve ablate runs/0001:137 --csv parts.csv
    """
    source = load(program, caps)
    run = None if experiments or ids else run_of(source)
    chosen = run.experiments()[0] if run else experiments_for(source, experiments, ids)
    with where.pool(quiet()) as pool:
        result = ablate_parts(source, chosen, pool)
    tables.write("ablation", "ablation", result)
    if tables.on_stdout:
        return 0
    if as_json:
        print_json(result.to_json())
    else:
        print_ablation(result)
    return 0
