"""A run on disk: config.yaml, run.json, journal.jsonl, programs/ and report.*."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from archive.archive import Archive
from archive.elite import Elite
from archive.grid import Grid
from archive.journal import Damaged, cut, entries, unchecked
from archive.population import Island, Population
from archive.proposal import Outcome, Outcomes
from evolve import __version__
from evolve.output.files import REMEDY, write_json
from evolve.output.terminal import command, warn_once
from evolve.run.config import Config
from evolve.run.config_file import config_from, to_mapping
from evolve.run.data import chosen
from evolve.run.lock import lock
from evolve.run.ranges import Ranges
from simulator.common.documents import parse_yaml, read_bytes, read_json, yaml_text
from simulator.common.errors import InputError, unwritable
from simulator.common.files import plain_folder, write_text
from simulator.common.json import JsonObject
from simulator.common.records import from_json, record_class, stored, to_json
from simulator.common.text import counted
from simulator.serving.bundled import FILES
from simulator.serving.digests import data_hash
from simulator.serving.experiment import Experiment

COMPARISON = "baselines.json"  # in the folder of a comparison of engines
RUNS = Path("runs")  # where runs are made unless --out says otherwise
ABOUT, CONFIG, JOURNAL, REPORT = "run.json", "config.yaml", "journal.jsonl", "report.json"  # names of the files
START = "start"  # folder of the user's programs that a search starts from
SURVIVORS = 48  # elites that an island keeps besides the cells of its grid


@record_class
class About:
    """The identity of a run."""

    engine: str  # version of the engine that started the run
    data: str  # hash of the fitted experiments
    fitted: tuple[str, ...]  # ids of the fitted experiments
    ranges: Ranges  # ranges of the fitted experiments
    started: str  # time in UTC, ISO 8601
    # path of the recording that the run replays, if it is a replay
    replayed: str = stored(default="", brief=True)
    simulated: tuple[str, ...] = stored(default=(), brief=True)  # ids of fitted experiments with simulated times
    # path, from the run's folder, of the run whose recorded forms it assesses
    forms_of: str = stored(default="", brief=True)


@dataclass(frozen=True)
class RunFolder:
    """An existing run folder, with its settings and identity."""

    path: Path
    config: Config
    about: About

    @property
    def own_file(self) -> str | None:
        """The file of experiments that the run fits, if it is one of the user's own."""
        files = self.config.data.files
        return files[0] if len(files) == 1 and files[0] not in FILES else None

    @property
    def own_options(self) -> list[str]:
        """The options by which another command takes the experiments of `own_file`; none without one."""
        return ["--experiments", self.own_file] if self.own_file else []

    def experiments(self) -> tuple[list[Experiment], list[Experiment]]:
        """The experiments that the run fits, and those that it only predicts. Raises InputError, like `chosen`."""
        for name in (*self.config.data.files, *self.config.data.predict_files):
            if name not in FILES and not Path(name).exists():
                where = f"correct its path under `data` in {self.path / CONFIG}"
                raise InputError(f"{name}: is gone, and {self.path} was made from it: put it back, or {where}")
        return chosen(self.config.data)

    @property
    def journal(self) -> Path:
        """The journal; a shipped run has a compressed one instead."""
        return self.path / JOURNAL

    def outcomes(self) -> list[Outcome]:
        """The outcomes of all proposals, in the journal's order. Raises InputError if the journal is damaged."""
        return [outcome for _, outcome in self._read() if outcome]

    def calls(self) -> list[JsonObject]:
        """The lines about language models: the calls, and the outcomes of what they proposed. Raises like `lines`."""
        return [line for line, outcome in self._read() if not outcome or outcome.proposal.call]

    def lines(self) -> list[JsonObject]:
        """The journal's complete lines: outcomes of proposals, and calls to language models.

        Raises InputError if the journal is missing, or damaged before its end.
        """
        return list(self.each_line())

    def each_line(self) -> Iterator[JsonObject]:
        """The lines one at a time, since all of them take much more memory than their outcomes. Raises like `lines`."""
        return (line for line, _ in self._read())

    def _read(self) -> Iterator[tuple[JsonObject, Outcome | None]]:
        """The lines one at a time, each with its outcome if it has one."""
        reader = self.reader()
        with self._faults():
            yield from ((line, reader.read(line)) for line in entries(self.written))

    def reader(self) -> Outcomes:
        """A reader of the journal's lines, from the first one on."""
        remedy = (
            f"restore it from a copy, or go on from the line before: `{command('resume', self.path, '--to', 'LINE')}`"
        )
        return Outcomes(self.written, self.config.search.islands, remedy)

    @property
    def doubts(self) -> list[str]:
        """A line if nobody can tell whether the journal's first lines were changed, because they have no checks, as
        those of older releases. None for a journal that is missing or damaged, which reading it says."""
        try:
            lines = unchecked(self.written)
        except (ValueError, OSError):
            return []
        if not lines:
            return []
        return [f"{self.written}: {counted(lines, 'line')} without a check, which anybody may have changed"]

    @contextmanager
    def _faults(self) -> Iterator[None]:
        """Faults of the journal as InputErrors."""
        try:
            yield
        except Damaged as e:
            resume = command("resume", self.path, "--to", e.good)
            remedy = f"restore the file from a copy, or go on from the last good line: `{resume}`"
            raise InputError(f"{e}: {remedy}") from None
        except InputError:
            raise
        except ValueError as e:
            raise InputError(f"{e}: {REMEDY}") from None

    @property
    def shipped(self) -> bool:
        """True for a shipped run, which is read-only: its journal is compressed."""
        return self._packed.exists() and not self.journal.exists()

    @property
    def ended(self) -> bool:
        """True if a search has ended here, so that there is a report; a shipped run needs none."""
        return self.shipped or (self.path / REPORT).exists()

    @property
    def _packed(self) -> Path:
        return self.path / f"{JOURNAL}.xz"

    @property
    def written(self) -> Path:
        """The journal's file, compressed or not. Raises InputError if there is none."""
        if self.shipped:
            return self._packed
        if not self.journal.exists():
            raise InputError(f"{self.journal}: is missing: {REMEDY}, or start a new run")
        return self.journal

    def archive(self) -> Archive:
        return archive_of(self.config, self.outcomes())


def archive_of(config: Config, outcomes: Iterable[Outcome]) -> Archive:
    archive = empty_archive(config)
    for outcome in outcomes:
        if outcome.elite:
            archive.add(outcome.elite)
    return archive


def empty_archive(config: Config) -> Archive:
    search = config.search
    return Archive(Grid(config.caps.operations, search.operation_bins, search.feature_bins))


def first_population(config: Config) -> Population:
    """The population of a run without proposals."""
    search = config.search
    islands = [Island(empty_archive(config).grid, SURVIVORS, search.grid) for _ in range(search.islands)]
    return Population(empty_archive(config), islands, config.score.rule, search.selection, search.tournament)


def next_path(parent: Path = RUNS) -> Path:
    """The next of runs/0001, runs/0002, ...: one more than the highest number in `parent`."""
    taken = [int(p.name) for p in parent.iterdir() if re.fullmatch(r"\d+", p.name)] if parent.is_dir() else []
    return parent / f"{max(taken, default=0) + 1:04d}"


def new_folder(out: Path | None) -> Path:
    """Make the folder `out`, or else the next of `next_path` that no other process makes first. Raises OSError."""
    while True:
        path = out or next_path()
        try:
            path.mkdir(parents=True)
            return path
        except FileExistsError:
            if out:
                raise


def create(out: Path | None, config: Config, about: About) -> RunFolder:
    """A new run in `new_folder`. Raises InputError if `out` already exists, or if it cannot be written."""
    path = out or RUNS
    try:
        path = new_folder(out)
        _write_config(path, config)
        write_json(path / ABOUT, to_json(about))
        (path / JOURNAL).touch()
    except FileExistsError:
        raise taken(path, is_run(path)) from None
    except OSError as e:
        raise unwritable(path, e, "choose another --out") from None
    return RunFolder(path, config, about)


def taken(path: Path, whole: bool, option: str = "--out") -> InputError:
    """The error for a folder that exists. `whole`: it can be resumed. `option`: the option that names it."""
    if whole:
        return InputError(f"{path}: exists already: choose another {option}, or `{command('resume', path)}`")
    return InputError(f"{path}: exists already, and nothing in it can be resumed: choose another {option}")


def rewrite(run: RunFolder, config: Config) -> RunFolder:
    """The run with another configuration, which replaces config.yaml in one step."""
    _write_config(run.path, config)
    return RunFolder(run.path, config, run.about)


def _write_config(path: Path, config: Config) -> None:
    write_text(path / CONFIG, yaml_text(to_mapping(config), 80))


def is_run(path: Path) -> bool:
    return (path / ABOUT).is_file()


def shipped_run() -> Path:
    """The folder of the run that found the shipped champion."""
    about = Path(str(resources.files("seeds"))) / "champion" / ABOUT
    return about.resolve().parent  # some installers link every file of a package


def open_run(path: Path) -> RunFolder:
    """The run in the folder `path`, with a warning if its journal may have been changed.

    Raises InputError if there is none, or if its files are damaged.
    """
    try:
        about = read_json(path / ABOUT, REMEDY, kept=True)
        raw = parse_yaml(read_bytes(path / CONFIG, kept=True), str(path / CONFIG), REMEDY)
    except OSError:
        run, colon, _ = str(path).rpartition(":")
        if colon and is_run(Path(run)):
            raise InputError(f"{path}: is one program of a run, and this is for the whole run: name {run}") from None
        known = "`evolve list` names the runs"
        if path.name == shipped_run().name:
            known += f", and {shipped_run()} is the one that ships"
        if repeats := sorted(each for each in path.glob("seed-*") if is_run(each)):
            raise InputError(f"{path}: holds repeats: name one of these runs, such as {repeats[0]}") from None
        raise InputError(f"{path}: is not a run (no run.json, config.yaml): {known}") from None
    found = RunFolder(path, config_from(raw, str(path / CONFIG)), from_json(About, about, path / ABOUT))
    for doubt in found.doubts:
        warn_once(doubt)
    return found


def check_same(run: RunFolder, fitted: Sequence[Experiment]) -> None:
    """Raises InputError if the run is a shipped one, or like `check_alike`."""
    if run.shipped:
        raise InputError(f"{run.path}: is a shipped run, which is read-only: `{command('archive', run.path)}` shows it")
    check_alike(run, fitted)


def check_alike(run: RunFolder, fitted: Sequence[Experiment]) -> None:
    """Raises InputError if the run was made by another engine version or on other data."""
    about = run.about
    if about.engine != __version__:
        text = f"made by engine {about.engine}, this is {__version__}: install that version, or start a new run"
        raise InputError(f"{run.path}: {text}")
    check_data(run, fitted)


def check_data(run: RunFolder, fitted: Sequence[Experiment]) -> None:
    """Raises InputError if the run was made on other data."""
    if (now := data_hash(fitted)) != run.about.data:
        text = f"made on data {run.about.data}, these are {now}: restore the experiments files, or start a new run"
        raise InputError(f"{run.path}: {text}")


def rewind(run: RunFolder, line: int) -> Path | None:
    """Shorten the run's journal to its first `line` lines, so that its search continues from there.

    Returns the file that keeps the other lines, or None. Raises InputError if the journal has fewer good
    lines.
    """
    if run.shipped:
        raise InputError(f"{run.path}: is a shipped run, which is read-only: leave out --to")
    with lock(run.path):
        try:
            kept = cut(run.written, line)
        except ValueError as e:
            raise InputError(f"{e}: name an earlier line with --to") from None
        if kept:
            (run.path / REPORT).unlink(missing_ok=True)  # it is of the longer journal
    return kept


def write_start(run: RunFolder, programs: Sequence[tuple[str, str]]) -> None:
    """Copy the user's programs, (name, text), that a search starts from: their files may change or vanish."""
    for i, (name, text) in enumerate(programs):
        write_text(plain_folder(run.path / START, make=True) / f"{i:03d}-{name}.py", text)


def read_start(run: RunFolder) -> list[tuple[str, str]]:
    """The user's programs that a search starts from, (name, text), in their order."""
    paths = sorted(plain_folder(run.path / START).glob("*.py"))
    return [(path.stem[4:], read_bytes(path, kept=True).decode()) for path in paths]


def write_programs(run: RunFolder, elites: Sequence[Elite]) -> None:
    """Write programs/ID.py for each of these elites, and remove the other programs there."""
    folder = plain_folder(run.path / "programs", make=True)
    for old in folder.glob("*.py"):
        old.unlink()
    for elite in elites:
        write_text(folder / f"{elite.id}.py", elite.text)
