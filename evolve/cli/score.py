"""The command `score`."""

from __future__ import annotations

from functools import partial

import click

from evolve.cli.endings import finish
from evolve.cli.options import (
    TableFiles,
    caps_options,
    explain_option,
    explaining,
    ids_option,
    load,
    named_experiments,
    tables_options,
)
from evolve.inspect.score import COLUMNS, print_score, runs_score
from simulator.serving.bundled import SERVING


@click.command()
@click.argument("program", default="champion")
@click.option("--experiments", metavar="FILE", help="Measured runs [default: the shipped ones of a fixed concurrency].")
@ids_option("Only these of them (repeatable).")
@tables_options("the rows")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, with the errors of every run.")
@caps_options
@explain_option
def score(
    program: str,
    experiments: str | None,
    ids: tuple[str, ...],
    tables: TableFiles,
    as_json: bool,
    caps: dict[str, int],
) -> int:
    """Score a program on measured runs as others do: TPOT, TTFT and their shape, by model, GPU and precision.

    Shape is a figure over that at the lowest concurrency of the same deployment and lengths. Nothing is fitted.

    \b
    evolve score
    evolve score kernels --experiments mine.yaml
    evolve score runs/0001:137 --json
    """
    found = runs_score(load(program, caps), named_experiments(experiments or SERVING, ids))
    tables.write(COLUMNS, found.rows)
    if as_json or not tables.on_stdout:
        finish(found, as_json, partial(print_score, explain=explaining()))
    return 0
