"""The same search under several seeds: how much of a result is luck?

A folder of runs, OUT/seed-0 and so on, each a run like any other, and repeats.json that says which belong together. A
pilot is such a folder too, and ends with a verdict.
"""

from __future__ import annotations

import json
import shutil
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from evolve import __version__
from evolve.run import folder as run_folder
from evolve.run.config import Config
from evolve.run.data import chosen
from evolve.run.folder import Run
from evolve.search.run import start as start_run
from evolve.search.run import work as work_run
from evolve.study.outcome import summarise
from simulator.errors import InputError

FILE = "repeats.json"


@dataclass(frozen=True)
class Repeats:
    """Runs that differ in their seed only. `pilot`: they end with a verdict."""

    path: Path
    runs: tuple[Run, ...]
    pilot: bool


def start(config: Config, repeats: int, out: Path | None, pilot: bool = False) -> Repeats:
    """The run folders of seeds `config.seed` and those after it; nothing is computed yet.

    Raises InputError if `out` exists or cannot be written.
    """
    path = out or run_folder.next_path()
    if path.exists():
        raise InputError(f"{path}: exists already: choose another --out, or `evolve resume {path}`")
    seeds = list(range(config.seed, config.seed + repeats))
    runs = tuple(start_run(replace(config, seed=seed), path / f"seed-{seed}") for seed in seeds)
    about = {"engine": __version__, "data": runs[0].about["data"], "seeds": seeds, "pilot": pilot}
    run_folder.write_json(path / FILE, about)
    return Repeats(path, runs, pilot)


def is_repeats(path: Path) -> bool:
    return (path / FILE).is_file()


def reopen(path: Path) -> Repeats:
    """The repeats in `path`. Raises InputError if the file that names them, or one of them, is damaged."""
    try:
        about = json.loads((path / FILE).read_text())
        seeds, pilot = list(about["seeds"]), bool(about["pilot"])
    except (OSError, ValueError, KeyError, TypeError):
        raise InputError(f"{path / FILE}: is damaged: restore it from a copy") from None
    return Repeats(path, tuple(run_folder.open_run(path / f"seed-{seed}") for seed in seeds), pilot)


def work(repeats: Repeats, workers: int, quiet: bool = False) -> dict[str, Any]:
    """Every run to its end, from wherever it stands, then what they have in common (report.json)."""
    fitted, _ = chosen(repeats.runs[0].config.data)
    reports = []
    for i, run in enumerate(repeats.runs):
        run_folder.check_same(run, fitted)
        path = run.path / "report.json"
        if not path.exists():
            if not quiet:
                print(f"repeat {i + 1} of {len(repeats.runs)}, seed {run.config.seed}", file=sys.stderr, flush=True)
            _share_known_answers(repeats.runs[0], run)
            reports.append(work_run(run, workers, quiet))
        else:
            reports.append(json.loads(path.read_text()))
    report = summarise(repeats.path, repeats.runs[0].config, reports, repeats.pilot)
    run_folder.write_json(repeats.path / "report.json", report)
    return report


def _share_known_answers(first: Run, run: Run) -> None:
    """They depend on the data only: the first run finds them for all."""
    known = first.path / "known.json"
    if known.exists() and not (run.path / known.name).exists():
        shutil.copy(known, run.path / known.name)
