"""What is exported: the champion and the Pareto front of a run, or a single program."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from archive.archive import Archive
from archive.elite import Elite
from archive.proposal import Outcome
from evaluator.committee import final_champion
from evolve.report.result import read_report
from evolve.run.folder import Run, empty_archive, open_run
from evolve.run.program import load
from evolve.terminal import command
from simulator.errors import InputError
from simulator.language.ir import Program
from simulator.language.measure import Caps
from simulator.language.parse import parse


@dataclass(frozen=True, slots=True)
class Entry:
    """A program to write, with what its run knows of it. name: its number in the run, or the program's name."""

    name: str
    program: Program
    elite: Elite | None = None


@dataclass(frozen=True, slots=True)
class Searched:
    """A run with its outcomes, its archive and its champion."""

    run: Run
    outcomes: tuple[Outcome, ...]
    archive: Archive
    champion: Elite

    @property
    def entries(self) -> tuple[Entry, ...]:
        """The champion, then the other programs of the front by size."""
        elites = [self.champion, *(e for e in self.archive.front_by_size() if e.id != self.champion.id)]
        return tuple(Entry(str(e.id), parse(e.text), e) for e in elites)


def is_run(spec: str) -> bool:
    """Whether `RUN|PROGRAM` of a command line names the folder of a run."""
    return (Path(spec) / "run.json").is_file()


def searched(path: Path) -> Searched:
    """The run in a folder. Raises InputError if there is none, or nothing in it was scored yet."""
    run = open_run(path)
    outcomes = tuple(run.outcomes())
    archive = empty_archive(run.config)
    for outcome in outcomes:
        if outcome.elite:
            archive.add(outcome.elite)
    best = _champion(run, len(outcomes), archive)
    if best is None:
        raise InputError(f"{path}: no candidate could be scored: `{command('resume', path)}` goes on or shows why")
    return Searched(run, outcomes, archive, best)


def _champion(run: Run, proposals: int, archive: Archive) -> Elite | None:
    """The champion of the run's report if that covers the journal, else the one that the rule chooses now."""
    path = run.path / "report.json"
    if path.is_file():
        report = read_report(path)
        if report.proposals == proposals:
            return report.champion
    return final_champion(archive.members(), run.config.score.rule)


def program_entry(spec: str, caps: Caps) -> Entry:
    """The program that `spec` names. Raises InputError if it is none."""
    source = load(spec, caps)
    return Entry(source.name, source.program)
