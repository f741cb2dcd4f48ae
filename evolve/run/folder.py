"""A run on disk: config.yaml, run.json, journal.jsonl, programs/, report.* ; locked while somebody writes."""

from __future__ import annotations

import fcntl
import json
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import yaml

from archive.archive import Archive
from archive.elite import Elite
from archive.grid import Grid
from archive.journal import read_journal
from archive.population import Island, Population
from archive.proposal import Outcome, is_outcome
from evaluator.experiments import data_hash
from evolve import __version__
from evolve.run.config import Config, config_from, to_mapping
from simulator.errors import InputError
from simulator.experiment.experiment import Experiment

START = "start"  # the folder of the user's programs that a search starts from
SURVIVORS = 48  # elites that an island keeps besides the cells of its grid


@dataclass(frozen=True)
class Run:
    """A run folder that exists: its path, settings and identity (engine version, data hash, start, fitted ids)."""

    path: Path
    config: Config
    about: dict[str, Any]

    @property
    def journal(self) -> Path:
        return self.path / "journal.jsonl"

    def outcomes(self) -> list[Outcome]:
        """What became of every proposal, in the journal's order. Raises InputError like `lines`."""
        return [Outcome.from_json(line) for line in self.lines() if is_outcome(line)]

    def lines(self) -> list[dict[str, Any]]:
        """The journal's whole lines, of proposals and of calls to language models; of a run that is shipped, the
        compressed journal's. Raises InputError when it is damaged before its end."""
        packed = self.path / "journal.jsonl.xz"
        try:
            return read_journal(packed if packed.exists() and not self.journal.exists() else self.journal)
        except ValueError as e:
            raise InputError(f"{e}: restore the file from a copy, or start a new run") from None

    def archive(self) -> Archive:
        """The archive, rebuilt from the journal."""
        out = empty_archive(self.config)
        for outcome in self.outcomes():
            if outcome.elite:
                out.add(outcome.elite)
        return out


def empty_archive(config: Config) -> Archive:
    """The archive of a run in which nothing was proposed yet."""
    search = config.search
    return Archive(Grid(config.caps.operations, search.operation_bins, search.feature_bins))


def first_population(config: Config) -> Population:
    """The population of a run in which nothing was proposed yet."""
    search = config.search
    islands = [Island(empty_archive(config).grid, SURVIVORS, search.grid) for _ in range(search.islands)]
    return Population(empty_archive(config), islands, config.score.rule, search.selection, search.tournament)


def next_path(parent: Path = Path("runs")) -> Path:
    """runs/0001, runs/0002, ...: one more than the highest number there."""
    taken = [int(p.name) for p in parent.iterdir() if re.fullmatch(r"\d+", p.name)] if parent.is_dir() else []
    return parent / f"{max(taken, default=0) + 1:04d}"


def create(path: Path, config: Config, about: dict[str, Any]) -> Run:
    """A new run folder. Raises InputError if it exists already or cannot be written."""
    try:
        path.mkdir(parents=True)
        (path / "config.yaml").write_text(yaml.safe_dump(to_mapping(config), sort_keys=False))
        write_json(path / "run.json", about)
        (path / "journal.jsonl").touch()
    except FileExistsError:
        raise InputError(f"{path}: exists already: choose another --out, or `evolve resume {path}`") from None
    except OSError as e:
        raise InputError(f"{path}: cannot be written ({e.strerror}): choose another --out") from None
    return Run(path, config, about)


def rewrite(run: Run, config: Config) -> Run:
    """The run with another configuration, on disk too; a crash leaves the old or the new one."""
    draft = run.path / "config.yaml.new"
    draft.write_text(yaml.safe_dump(to_mapping(config), sort_keys=False))
    os.replace(draft, run.path / "config.yaml")
    return Run(run.path, config, run.about)


def open_run(path: Path) -> Run:
    """An existing run. Raises InputError if it is not one."""
    try:
        about = json.loads((path / "run.json").read_text())
        raw = yaml.safe_load((path / "config.yaml").read_text())
    except OSError:
        raise InputError(f"{path}: is not a run (no run.json, config.yaml): `evolve list` names the runs") from None
    except (ValueError, yaml.YAMLError):
        raise InputError(f"{path}: run.json or config.yaml is damaged: restore it from a copy") from None
    return Run(path, config_from(raw, str(path / "config.yaml")), about)


def check_same(run: Run, fitted: Sequence[Experiment]) -> None:
    """Raises InputError if the run was made by another engine version or on other data."""
    if not run.journal.exists():
        raise InputError(f"{run.path}: is a finished run that is shipped, to be read only: `evolve archive {run.path}`")
    if run.about.get("engine") != __version__:
        raise InputError(f"{run.path}: made by engine {run.about.get('engine')}, this is {__version__}: "
                         "install that version, or start a new run")  # fmt: skip
    if run.about.get("data") != data_hash(fitted):
        raise InputError(f"{run.path}: made on data {run.about.get('data')}, these are {data_hash(fitted)}: "
                         "restore the experiments files, or start a new run")  # fmt: skip


def lock(path: Path) -> IO[str]:
    """Hold the folder of a run or study until the file is closed or the process dies.

    Raises InputError if another process holds it.
    """
    try:
        handle = (path / ".lock").open("w")
    except OSError as e:
        raise InputError(f"{path}: cannot be written ({e.strerror}): check the folder's rights") from None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        handle.close()
        raise InputError(f"{path}: another process is working on this run: wait for it, or stop it") from None
    return handle


def write_json(path: Path, value: Any) -> None:
    """Replace the file in one go, so that a crash leaves the old or the new one."""
    draft = path.with_suffix(path.suffix + ".new")
    draft.write_text(json.dumps(value, indent=1, allow_nan=False) + "\n")
    os.replace(draft, path)


def write_start(run: Run, programs: Sequence[tuple[str, str]]) -> None:
    """Keep the user's programs that a search starts from, (name, text): their files may change or go."""
    for i, (name, text) in enumerate(programs):
        (run.path / START).mkdir(exist_ok=True)
        (run.path / START / f"{i:03d}-{name}.py").write_text(text, "utf-8")


def read_start(run: Run) -> list[tuple[str, str]]:
    """(name, text) of the user's programs that a search starts from, in order."""
    return [(path.stem[4:], path.read_text("utf-8")) for path in sorted((run.path / START).glob("*.py"))]


def write_programs(run: Run, elites: Sequence[Elite]) -> None:
    """programs/ID.py for every elite given, replacing what was there."""
    folder = run.path / "programs"
    folder.mkdir(exist_ok=True)
    for old in folder.glob("*.py"):
        old.unlink()
    for elite in elites:
        (folder / f"{elite.id}.py").write_text(elite.text)
