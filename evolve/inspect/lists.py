"""What `evolve archive` and `evolve list` print: the programs that a run kept, and what there is to work with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from archive.grid import Grid
from evolve import __version__
from evolve.output.columns import figures, words
from evolve.output.printing import more, prose, show
from evolve.output.table import Table, arrival_seeds
from evolve.output.terminal import command, say
from evolve.output.terms import legend
from evolve.run.config_file import bundled_configs
from evolve.run.folder import REPORT, RunFolder
from evolve.run.program import method_names, seed_names
from evolve.run.validations import calls_note, sources_note
from evolve.summary.result import REBUILD, report_json
from evolve.summary.run import FRONT_LEGEND, front_table, thinned
from evolve.summary.searched import Searched
from simulator.common.json import JsonObject
from simulator.common.records import read_by, reader_of
from simulator.common.text import listed
from simulator.serving.bundled import bundled_experiments
from simulator.serving.digests import data_hash
from simulator.serving.gpu import hardware_table
from simulator.serving.model import model_table, own_models
from simulator.serving.observations import OVERLOADED

MOST_NAMES = 8  # of a list without -v
RUNS_LEGEND = "data: what was fitted; errors of runs with unlike data cannot be compared."


def archive_json(found: Searched) -> JsonObject:
    """The archive of a run as JSON values. It depends on the run's seed, data and settings only."""
    run, archive, best = found.run, found.archive, found.best
    about = {"engine": run.about.engine, "data": run.about.data, "seed": run.config.seed}
    seeds = {"seeds": run.config.score.arrival_seeds, "champion": best.id if best else None}
    front = [e.to_json() for e in archive.front_by_size()]
    cells = sorted(archive.grid.cells.items())
    return {**about, **seeds, "front": front, "grid": [{"cell": list(cell), **e.to_json()} for cell, e in cells]}


def print_archive(found: Searched, grid: bool, pareto: bool, explain: bool = False, verbose: bool = False) -> None:
    """The Pareto front and the MAP-Elites grid, whichever is wanted, and how often held-out errors were computed.

    verbose: all of the front.
    """
    run, archive, best = found.run, found.archive, found.best  # read before anything is printed
    held_out = f"Held-out figures: {calls_note(run.path)}. {sources_note(run.path)}".rstrip()
    left = list[str]()
    if pareto:
        seeds = arrival_seeds(run.config.score.arrival_seeds)
        terms = "mean error", "worst-3 E2E", "group-out", "consistent", "Pareto front"
        if explain:
            legend(*terms, also=FRONT_LEGEND.format(seeds=seeds))
        front = archive.front_by_size()
        shown = front if verbose or best is None else thinned(front, best)
        show(front_table(shown, f"Pareto front of {run.path}"))
        if len(shown) < len(front):
            left.append(f"{len(front) - len(shown)} more programs of the front")
    if grid:
        if explain:
            legend("mean error", "features")
        show(_grid_table(run, archive.grid))
    if best:
        prose(f"Champion: proposal {best.id}")
        say(f"  {command('show', f'{run.path}:{best.id}')}")
    prose(held_out)
    more(left, explain)


def _grid_table(run: RunFolder, grid: Grid) -> Table:
    columns, names = grid.spans()
    rows = []
    for y, name in enumerate(names):
        elites = [grid.cells.get((x, y)) for x in range(len(columns))]
        rows.append([name, *(f"{e.mean_error:.2f} ({e.id})" if e else "." for e in elites)])
    heads = [words("features"), figures("", *(f"{column} op" for column in columns))]
    return Table.of(f"Lowest mean error in percent (id) by operations and features, {run.path}", heads, rows)


@dataclass(frozen=True, slots=True)
class RunState:
    """A run folder: whether its report is written, and what that says.

    data: hash of the runs that it fits; fitted: how many. champion: its id; mean_error, e2e, ttft, itl, group_out: its
    errors in percent by the arrival seeds of the search. usd: spent on language models. None where there is none.
    """

    run: str
    done: bool
    mean_error: float | None = None
    champion: int | None = None
    e2e: float | None = None
    ttft: float | None = None
    itl: float | None = None
    group_out: float | None = None
    data: str | None = None
    fitted: int | None = None
    seed: int | None = None
    candidates: int | None = None
    usd: float | None = None


@dataclass(frozen=True, slots=True)
class Inventory:
    """Runs below a folder, what the project ships (models and hardware with aliases), and the user's own models.

    overloaded: those of the experiments that are only predicted, because the engine could not keep up.
    """

    runs: tuple[RunState, ...]
    programs: tuple[str, ...]
    methods: tuple[str, ...]
    configs: tuple[str, ...]
    experiments: tuple[str, ...]
    overloaded: tuple[str, ...]
    models: Mapping[str, tuple[str, ...]]
    own_models: tuple[str, ...]
    hardware: Mapping[str, tuple[str, ...]]

    def to_json(self) -> JsonObject:
        return {"engine": __version__, "data": data_hash(bundled_experiments()), "seeds": [], **asdict(self)}


def inventory(folder: Path) -> Inventory:
    """The runs below `folder` with the shipped programs, configurations, experiments, models and GPUs."""
    paths = sorted(p.parent for p in [*folder.glob("*/run.json"), *folder.glob("*/seed-*/run.json")])
    return Inventory(
        runs=tuple(map(_run_state, paths)),
        programs=tuple(seed_names()),
        methods=tuple(method_names()),
        configs=tuple(bundled_configs()),
        experiments=tuple(e.id for e in bundled_experiments()),
        overloaded=tuple(e.id for e in bundled_experiments() if e.quality == OVERLOADED),
        models={str(e["id"]): tuple(e["aliases"]) for e in model_table().values()},
        own_models=tuple(own_models()),
        hardware={str(e["name"]): tuple(e["aliases"]) for e in hardware_table().values()},
    )


def _run_state(path: Path) -> RunState:
    report = path / REPORT
    if not report.exists():
        return RunState(str(path), False)
    return read_by(partial(_reached, str(path)), report_json(report), report, REBUILD)


def _reached(run: str, raw: Mapping[str, Any]) -> RunState:
    best = raw["champion"]
    errors = {name: best[name] for name in ("mean_error", "e2e", "ttft", "itl", "group_out")} if best else {}
    counts = {name: raw[name] for name in ("data", "seed", "candidates")}
    usd = raw["llm"]["usd"] if raw.get("llm") else None
    champion, fitted = best["id"] if best else None, len(raw["fitted"])
    named = {"run": run, "done": True, "champion": champion, "fitted": fitted, "usd": usd}
    state: RunState = reader_of(RunState)({**named, **errors, **counts})
    return state


def _runs_table(runs: Sequence[RunState]) -> Table:
    paid = any(run.usd is not None for run in runs)
    rows = []
    for run in runs:
        champion = "none scored" if run.champion is None else run.champion
        known = run.run, (run.data or "")[:6], run.fitted, run.seed, run.candidates, champion
        errors = run.e2e, run.ttft, run.itl, run.mean_error, run.group_out
        rows.append([*known, *errors, *([run.usd] if paid else [])])
    columns = [words("run", "data"), figures("d", "fitted", "seed", "candidates", "champion")]
    columns.append(figures(".2f", "E2E", "TTFT", "ITL", "mean error", "group-out"))
    if paid:
        columns.append(figures(".2f", "USD"))
    title = "Runs, and the errors of their champions in percent by the arrival seeds of the search"
    return Table.of(title, columns, rows)


def print_inventory(inventory: Inventory, explain: bool = False, verbose: bool = False) -> None:
    """The runs, then the shipped names, MOST_NAMES of a list. verbose: all, with the aliases of models and GPUs."""
    done = [run for run in inventory.runs if run.done]
    if done:
        if explain:
            legend("mean error", "group-out", also=RUNS_LEGEND)
        show(_runs_table(done))
    else:
        say("Runs", "bold", end="")
        say("" if inventory.runs else ": none yet; `evolve run` makes one")
    for run in inventory.runs:
        if not run.done:
            prose(f"  {run.run}: unfinished, to be continued with")
            say(f"    {command('resume', run.run)}")
    lists = {
        "Programs": inventory.programs,
        "Methods": inventory.methods,
        "Configurations": inventory.configs,
        "Experiments": inventory.experiments,
        "Of these overloaded, so never fitted": inventory.overloaded,
    }
    if inventory.own_models:
        lists["Models of your own"] = inventory.own_models
    aliases = {"Models": inventory.models, "Hardware": inventory.hardware}
    if not verbose:
        lists |= {t: tuple(next(iter(also), name) for name, also in of.items()) for t, of in aliases.items()}
    for title, names in lists.items():
        say(title, "bold")
        prose(f"  {', '.join(names) if verbose else listed(names, MOST_NAMES)}")
    for title, aliases_of in aliases.items() if verbose else ():
        say(title, "bold")
        for name, others in aliases_of.items():
            prose(f"  {name}" + (f" ({', '.join(others)})" if others else ""))
    more([] if verbose else ["all names and aliases"], explain)
