"""The command that compares everything that predicts latencies: leaderboard."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from evaluator.score import SCORE_SEEDS
from evolve import __version__
from evolve.calibrate.steps.sources import TableRun, sources
from evolve.cli.endings import print_json, resumable
from evolve.cli.options import TableFiles, caps_options, ids_option, quiet_flag, tables_options, written_and_named
from evolve.cli.pools import Where, pool_options
from evolve.cli.steps import STEPS, SYNC
from evolve.output.terminal import research, say, warn
from evolve.run.data import fittable
from research.methods.bench import Bench, measure
from research.methods.board import Board, board, worth
from research.methods.entries import Entry, added, champion, checked, known_answers, shipped_methods, without_extra
from research.methods.protocol import protocol
from research.methods.result import Result
from research.methods.view import page, print_board
from simulator.common.errors import InputError, nearest, shown
from simulator.common.json import JsonObject
from simulator.language.measure import Caps
from simulator.serving.bundled import STEPS as SHIPPED
from simulator.serving.digests import data_hash
from simulator.serving.experiment import Experiment


@click.command()
@click.argument("methods", nargs=-1)
@click.option("--add", "programs", metavar="PROGRAM|RUN", multiple=True,
              help="Put a program, or a run's champion, on the board too (repeatable).")  # fmt: skip
@click.option("--no-short-circuit", is_flag=True,
              help="Replay and hold out also what misses single steps by too much.")  # fmt: skip
@click.option("--steps", type=click.Path(path_type=Path), multiple=True,
              help=f"{STEPS} [default: {SHIPPED}, with the runs the project ships]")  # fmt: skip
@click.option("--sync", is_flag=True, help=SYNC)
@click.option("--experiments", metavar="FILE", help="Train on these experiments [default: the runs the project ships].")
@ids_option()
@click.option("--out", type=click.Path(path_type=Path), default=Path("runs/leaderboard"), show_default=True,
              help="Folder of the results; those in it are not computed again.")  # fmt: skip
@pool_options
@tables_options("the rows of the board as CSV")
@click.option("--json", "as_json", is_flag=True, help="Every figure and program as JSON.")
@click.option("--md", "as_md", is_flag=True, help="The tables as Markdown.")
@quiet_flag
@caps_options
def leaderboard(methods: tuple[str, ...], programs: tuple[str, ...], no_short_circuit: bool, steps: tuple[Path, ...],
                sync: bool, experiments: str | None, ids: tuple[str, ...], out: Path, where: Where, tables: TableFiles,
                as_json: bool, as_md: bool, quiet: bool, caps: dict[str, int]) -> int:  # fmt: skip
    """Compare everything that predicts latencies on one board, by a protocol that was fixed before.

    On it are the methods of the original exercise, the known answers, the shipped champion, published errors, and what
    --add names. Each is trained on all runs, and once more without each model, each workload and either architecture,
    which it then predicts; docs/leaderboard.md has the protocol, its three hypotheses, and how to read the tables.
    METHODS are names, or the beginnings of names where none is that name; everything by default. The reference of
    the protocol, blackbox, is always on the board.

    \b
    python -m research leaderboard
    python -m research leaderboard jams champion --add mine.py --add runs/0003
    python -m research leaderboard --experiments mine.yaml --steps ingested/ --out runs/mine
    python -m research leaderboard --csv board.csv --md > board.md
    """
    if as_json and as_md:
        raise InputError("--json and --md both go to standard output: give one of the two")
    if sync and not steps:
        raise InputError("--sync only applies together with --steps")
    written = tuple(written_and_named(experiments, ids))
    entries = _entries(methods, programs, Caps(**caps), fittable([w.experiment for w in written]))
    bench = Bench(out, entries, written, _runs(steps, experiments, ids, sync), not no_short_circuit)
    given = [*(("--add", spec) for spec in programs), *(("--steps", path) for path in steps),
             ("--experiments", experiments), ("--id", ",".join(ids) or None), ("--out", out)]  # fmt: skip
    words = [word for option in given if option[1] is not None for word in option]
    words += ["--no-short-circuit"] * no_short_circuit + ["--sync"] * sync
    with resumable(research("leaderboard", *methods, *words)), where.pool(quiet) as pool:
        results = measure(bench, pool)
    made = board(bench, results, with_published=not methods)
    tables.write("research.methods.frame", "leaderboard", made)
    if tables.on_stdout:
        return 0
    if as_json:
        print_json(_json(bench, made, results))
    elif as_md:
        say(page(made, bench))
    else:
        print_board(made, out)
    return 0


def _json(bench: Bench, made: Board, results: Sequence[Result]) -> JsonObject:
    return {
        "engine": __version__,
        "data": data_hash(bench.experiments),
        "seeds": list(SCORE_SEEDS),
        "protocol": protocol().to_json(),
        "step_tables": {run.experiment.id: run.steps.digest() for run in bench.runs},
        "short_circuit_pct": made.limit_pct,
        "held_out_by": list(made.kinds),
        "rows": [row.to_json() for row in made.rows],
        "own_constants": [verdict.to_json() for verdict in worth(made.rows)],
        "results": [result.to_json() for result in results],
    }


def _runs(steps: tuple[Path, ...], experiments: str | None, ids: tuple[str, ...], sync: bool) -> tuple[TableRun, ...]:
    """The runs whose steps were recorded: of the tables given, or those that are shipped with the shipped runs."""
    if steps:
        return sources(steps, experiments, ids, sync).runs
    if experiments:
        return ()
    shipped = sources((Path(SHIPPED),), None, (), False).runs
    return tuple(run for run in shipped if not ids or run.experiment.id in ids)


def _entries(
    names: Sequence[str], programs: Sequence[str], caps: Caps, experiments: Sequence[Experiment]
) -> tuple[Entry, ...]:
    """The entries that are named, or whose names begin so, and those that are added. Raises InputError for a name that
    is none."""
    every = [*shipped_methods(), *known_answers(), champion(experiments)]
    reference = protocol().short_circuit.reference
    known = {_spelled(entry.name): entry.name for entry in every} | {entry.name: entry.name for entry in every}
    named = {reference}
    for word in names:
        name = word if word in known else _spelled(word)
        found = [name] if name in known else [k for k in known if k.startswith(name)]
        if not found:
            near = nearest(name, [*dict.fromkeys(map(_spelled, known))])
            more = " Or compare" if near.endswith("?") else "; or compare"
            raise InputError(f"{shown(word)}: no such method: {near}{more} a program by --add PROGRAM")
        named.update(known[k] for k in found)
    chosen = [entry for entry in every if not names or entry.name in named]
    lacking = without_extra(chosen)
    needs = f"{', '.join(lacking)}: needs the extra: pip install 'evolve-latency[trees]'"
    if names and lacking:
        raise InputError(needs)
    if lacking:
        warn(f"left out: {needs}")
    yours = [added(spec, caps, experiments) for spec in programs]
    return checked([*(entry for entry in chosen if entry.name not in lacking), *yours])


def _spelled(name: str) -> str:
    """A name as a command line has it."""
    return name.lower().replace("_", "-").replace(" ", "-")
