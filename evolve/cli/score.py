"""The command `score`."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import click

from evaluator.host_scorer import SEED
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
from evolve.host.evaluation import read_evaluation, scored, write_results
from evolve.inspect.score import COLUMNS, print_score, runs_score, score_of
from simulator.common.errors import InputError
from simulator.serving.bundled import SERVING


@click.command()
@click.argument("program", default="champion")
@click.option("--experiments", metavar="FILE", help="Measured runs [default: the shipped ones of a fixed concurrency].")
@ids_option("Only these of them (repeatable).")
@click.option(
    "--evaluation",
    multiple=True,
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Instead: measured points as BLIS has them, an EvaluationRun (repeatable).",
)
@click.option(
    "--scenarios",
    type=click.Path(path_type=Path),
    help="Folder of their scenarios, NAME.yaml [default: that of the file]; with --evaluation.",
)
@click.option(
    "--catalog",
    envvar="BLIS_CATALOG",
    type=click.Path(path_type=Path),
    help="blis-catalog, for models/NAME/config.json [default: models known by name]; with --evaluation.",
)
@click.option(
    "--simresult",
    metavar="FOLDER",
    type=click.Path(path_type=Path),
    help="Write the prediction of each point here, a SimResult of BLIS; with --evaluation.",
)
@tables_options("the rows")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, with the errors of every run.")
@caps_options
@explain_option
def score(
    program: str,
    experiments: str | None,
    ids: tuple[str, ...],
    evaluation: tuple[Path, ...],
    scenarios: Path | None,
    catalog: Path | None,
    simresult: Path | None,
    tables: TableFiles,
    as_json: bool,
    caps: dict[str, int],
) -> int:
    """Score a program on measured runs as others do: TPOT, TTFT and their shape, by model, GPU and precision.

    Shape is a figure over that at the lowest concurrency of the same deployment and lengths. Nothing is fitted.

    Points of BLIS are loaded and measured as BLIS's own scorer does (docs/emit.md).

    \b
    evolve score
    evolve score kernels --experiments mine.yaml
    evolve score runs/0001:137 --json
    evolve score --evaluation run.yaml --catalog ../blis-catalog --simresult results/
    """
    source = load(program, caps)
    if evaluation:
        if experiments or ids:
            raise InputError("--evaluation is a set of runs of its own: leave out --experiments and --id")
        measured = [point for file in evaluation for point in read_evaluation(file, scenarios, catalog)]
        runs = [point.experiment for point in measured]
        if len({e.id for e in runs}) < len(runs):
            raise InputError("--evaluation gives a scenario, its lengths and a concurrency twice: leave out a file")
        points = scored(source, measured)
        if simresult:
            write_results(simresult, source, points)
        found = score_of(source, runs, [p.errors for p in points], (SEED,))
    elif scenarios or simresult:
        raise InputError("--scenarios and --simresult go with --evaluation: name a file of measured points")
    else:
        found = runs_score(source, named_experiments(experiments or SERVING, ids))
    tables.write(COLUMNS, found.rows)
    if as_json or not tables.on_stdout:
        finish(found, as_json, partial(print_score, explain=explaining()))
    return 0
