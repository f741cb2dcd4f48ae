"""The command that compares everything that predicts latencies: leaderboard."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from evaluator.score import SCORE_SEEDS
from evolve import __version__
from evolve.calibrate.steps.sources import TableRun, sources
from evolve.cli.endings import print_json, resumable
from evolve.cli.options import TableFiles, caps_options, ids_option, named_experiments, quiet_flag, tables_options
from evolve.cli.pools import Where, pool_options
from evolve.output.terminal import research, say, warn
from evolve.run.data import fittable
from research.methods.bench import Bench, measure
from research.methods.board import Board, board, worth
from research.methods.entries import Entry, added, baseline_entries, champion, checked, shipped_methods, without_extra
from research.methods.frame import LEADERBOARD, board_row
from research.methods.protocol import protocol
from research.methods.result import Result
from research.methods.view import page, print_board
from simulator.common.errors import InputError, nearest, shown
from simulator.common.json import JsonObject
from simulator.language.measure import Caps
from simulator.serving.bundled import STEPS as SHIPPED
from simulator.serving.digests import data_hash
from simulator.serving.experiment import Experiment

STEPS = f"Step table: a parquet file, a folder of `evolve ingest`, or {SHIPPED}, which the project ships (repeatable)."
SYNC = "The engines did not schedule ahead: a cycle measures its own step, not the one before."


@click.command()
@click.argument("methods", nargs=-1)
@click.option(
    "--add",
    "programs",
    metavar="PROGRAM|RUN",
    multiple=True,
    help="Put a program, or a run's champion, on the board too (repeatable).",
)
@click.option(
    "--no-short-circuit", is_flag=True, help="Replay and hold out entries with large errors on single steps too."
)
@click.option(
    "--steps",
    type=click.Path(path_type=Path),
    multiple=True,
    help=f"{STEPS} [default: {SHIPPED}, with the runs the project ships]",
)
@click.option("--sync", is_flag=True, help=SYNC)
@click.option("--experiments", metavar="FILE", help="Train on these experiments [default: the runs the project ships].")
@ids_option()
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    default=Path("runs/leaderboard"),
    show_default=True,
    help="Folder of the results; those in it are not computed again.",
)
@pool_options
@tables_options("the rows of the board as CSV")
@click.option("--json", "as_json", is_flag=True, help="Every figure and program as JSON.")
@click.option("--md", "as_md", is_flag=True, help="The tables as Markdown.")
@quiet_flag
@caps_options
def leaderboard(
    methods: tuple[str, ...],
    programs: tuple[str, ...],
    no_short_circuit: bool,
    steps: tuple[Path, ...],
    sync: bool,
    experiments: str | None,
    ids: tuple[str, ...],
    out: Path,
    where: Where,
    tables: TableFiles,
    as_json: bool,
    as_md: bool,
    quiet: bool,
    caps: dict[str, int],
) -> int:
    """Compare latency models on one board, by a protocol that was fixed before.

    The board has the methods of the original exercise, the baselines, the shipped champion, published errors, and the
    programs of --add. Each entry is trained on all runs. It is also trained without each model, each workload and
    either architecture, which it then predicts. docs/leaderboard.md has the protocol, its three hypotheses, and a guide
    to the tables. METHODS are names or prefixes (default: all). The reference, blackbox, is always on the board.

    \b
    python -m research leaderboard
    python -m research leaderboard jams champion --add mine.py --add runs/0003
    python -m research leaderboard --experiments mine.yaml --steps ingested/ --out runs/mine
    python -m research leaderboard --csv board.csv --md > board.md
    """
    if as_json and as_md:
        raise InputError("--json and --md both write to standard output. Give one of the two.")
    if sync and not steps:
        raise InputError("--sync needs --steps. Give both, or leave out --sync.")
    data = tuple(named_experiments(experiments, ids))
    entries = _entries(methods, programs, Caps(**caps), fittable(data))
    bench = Bench(out, entries, data, _runs(steps, experiments, ids, sync), not no_short_circuit)
    given: list[tuple[str, object]] = [*(("--add", spec) for spec in programs), *(("--steps", path) for path in steps)]
    given += [("--experiments", experiments), ("--id", ",".join(ids) or None), ("--out", out)]
    words = [word for option in given if option[1] is not None for word in option]
    if no_short_circuit:
        words.append("--no-short-circuit")
    if sync:
        words.append("--sync")
    with resumable(research("leaderboard", *methods, *words)), where.pool(quiet) as pool:
        results = measure(bench, pool)
    made = board(bench, results, with_published=not methods)
    tables.write(LEADERBOARD, map(board_row, made.rows))
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
    """The runs with recorded steps: those of the given tables, or the shipped ones."""
    if steps:
        return sources(steps, experiments, ids, sync).runs
    if experiments:
        return ()
    shipped = sources((Path(SHIPPED),), None, (), False).runs
    return tuple(run for run in shipped if not ids or run.experiment.id in ids)


def _entries(
    names: Sequence[str], programs: Sequence[str], caps: Caps, experiments: Sequence[Experiment]
) -> tuple[Entry, ...]:
    """The entries with these names or prefixes, and those that are added. Raises InputError for an unknown name."""
    every = [*shipped_methods(), *baseline_entries(), champion(experiments)]
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
    needs = f"{', '.join(lacking)}: the extra is missing: pip install 'evolve-latency[trees]'"
    if names and lacking:
        raise InputError(needs)
    if lacking:
        warn(f"left out: {needs}")
    yours = [added(spec, caps, experiments) for spec in programs]
    return checked([*(entry for entry in chosen if entry.name not in lacking), *yours])


def _spelled(name: str) -> str:
    return name.lower().replace("_", "-").replace(" ", "-")
