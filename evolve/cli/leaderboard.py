"""The command that compares methods: leaderboard."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import click

from evaluator.experiments import data_hash
from evaluator.score import SCORE_SEEDS
from evolve import __version__
from evolve.cli.endings import print_json, resumable
from evolve.cli.options import Tables, tables_options, written_and_named
from evolve.cli.pools import Where, pool_options
from evolve.cli.steps import STEPS, SYNC
from evolve.methods.bench import Bench, measure
from evolve.methods.catalog import METHODS, Method
from evolve.methods.summary import summaries, worth
from evolve.methods.view import page, print_bench
from evolve.program.steps.sources import sources
from evolve.terminal import command, say, warn
from simulator.errors import InputError, nearest, shown


@click.command()
@click.argument("methods", nargs=-1)
@click.option("--steps", type=click.Path(path_type=Path), multiple=True, help=STEPS)
@click.option("--sync", is_flag=True, help=SYNC)
@click.option("--experiments", metavar="FILE", help="Train on these experiments [default: the runs the project ships].")
@click.option("--id", "ids", metavar="ID,ID", help="Only these experiments.")
@click.option("--out", type=click.Path(path_type=Path), default=Path("runs/leaderboard"), show_default=True,
              help="Folder of the results; those in it are not computed again.")  # fmt: skip
@pool_options
@tables_options("a row for each training and run that it predicts as CSV")
@click.option("--json", "as_json", is_flag=True, help="Every figure and program as JSON.")
@click.option("--md", "as_md", is_flag=True, help="The tables as Markdown.")
@click.option("--quiet", is_flag=True, help="No progress line.")
def leaderboard(methods: tuple[str, ...], steps: tuple[Path, ...], sync: bool, experiments: str | None, ids: str | None,
                out: Path, where: Where, tables: Tables, as_json: bool, as_md: bool, quiet: bool) -> int:  # fmt: skip
    """Compare the methods of the original exercise, each trained by its own protocol and by ours.

    A method is trained on all runs, and once more without each model and each workload, which it then predicts. With
    --steps, own protocols train on the measured times of single steps too. METHODS are names, or the beginnings of
    names where none is that name; all of them by default (docs/methods.md).

    \b
    evolve leaderboard --steps steps.parquet
    evolve leaderboard components jams --experiments mine.yaml --out runs/mine
    evolve leaderboard --csv errors.csv --json
    """
    chosen = _chosen(methods)
    if as_json and as_md:
        raise InputError("--json and --md both go to standard output: give one of the two")
    if sync and not steps:
        raise InputError("--sync is said of step tables: give it with --steps")
    runs = sources(steps, experiments, ids, sync).runs if steps else ()
    bench = Bench(out, chosen, tuple(written_and_named(experiments, ids)), runs)
    given = [*(("--steps", path) for path in steps), ("--experiments", experiments), ("--id", ids), ("--out", out)]
    words = [word for option in given if option[1] is not None for word in option]
    with resumable(command("leaderboard", *methods, *words, *["--sync"] * sync)), where.pool(quiet) as pool:
        results = measure(bench, pool)
    tables.write("methods", "methods", results)
    if tables.on_stdout:
        return 0
    if as_json:
        rows = summaries(results)
        print_json({
            "engine": __version__,
            "data": data_hash(bench.experiments),
            "seeds": list(SCORE_SEEDS),
            "step_tables": {run.experiment.id: run.steps.digest() for run in runs},
            "methods": [row.to_json() for row in rows],
            "own_constants": [verdict.to_json() for verdict in worth(rows)],
            "results": [result.to_json() for result in results],
        })  # fmt: skip
    elif as_md:
        say(page(results))
    else:
        print_bench(results, out)
    return 0


def _chosen(names: tuple[str, ...]) -> tuple[Method, ...]:
    """The methods that are named, or whose names begin so, in the catalog's order. Raises InputError for a name that is
    none."""
    known = [method.name for method in METHODS]
    named = set[str]()
    for name in (n.lower().replace("_", "-") for n in names):
        found = [name] if name in known else [k for k in known if k.startswith(name)]
        if not found:
            raise InputError(f"{shown(name)}: no such method: {nearest(name, known)}")
        named.update(found)
    chosen = tuple(method for method in METHODS if not names or method.name in named)
    if importlib.util.find_spec("sklearn") is not None:
        return chosen
    lacking = [method.name for method in chosen if method.needs_extra]
    needs = f"{', '.join(lacking)}: needs the extra: pip install 'evolve-latency[trees]'"
    if names and lacking:
        raise InputError(needs)
    if lacking:
        warn(f"left out: {needs}")
    return tuple(method for method in chosen if not method.needs_extra)
