"""The same search under several seeds: how much of a result is luck?

A folder of runs, OUT/seed-0 and so on, each a run like any other, and repeats.json that says which belong together. A
pilot is such a folder too, and ends with a verdict.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from evolve import __version__
from evolve.run import folder as run_folder
from evolve.run.config import Config
from evolve.run.data import chosen
from evolve.run.folder import Run
from evolve.search.run import start as start_run
from evolve.study.outcome import summarise
from evolve.study.study import Member, carry_out, read_about
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
    about = read_about(path / FILE, f"{path}: is not a folder of repeats (no {FILE})")
    try:
        seeds, pilot = list(about["seeds"]), bool(about["pilot"])
    except (KeyError, TypeError):
        raise InputError(f"{path / FILE}: is damaged: restore it from a copy") from None
    return Repeats(path, tuple(run_folder.open_run(path / f"seed-{seed}") for seed in seeds), pilot)


def work(repeats: Repeats, workers: int, quiet: bool = False) -> dict[str, Any]:
    """Every run to its end, from where it stopped, then what they have in common (report.json)."""
    fitted, _ = chosen(repeats.runs[0].config.data)
    for run in repeats.runs:
        run_folder.check_same(run, fitted)
    members = [Member(run.path, run.config) for run in repeats.runs]
    known = repeats.runs[0].path / "known.json"
    done = carry_out(members, "repeat", workers, quiet, full=True, known=known)
    report = summarise(repeats.path, repeats.runs[0].config, [d.report for d in done], repeats.pilot)
    run_folder.write_json(repeats.path / "report.json", report)
    return report
