"""A study: several runs in one folder. Finished ones are read back, interrupted ones are resumed."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from archive.population import Population
from evolve.report.progress import Progress
from evolve.report.result import RunReport, read_report
from evolve.run.config import Config
from evolve.run.folder import REMEDY, open_run
from evolve.search.run import start, work
from simulator.documents import read_json
from simulator.errors import InputError


@dataclass(frozen=True, slots=True)
class Member:
    """One run of a study."""

    folder: Path
    config: Config


@dataclass(frozen=True, slots=True)
class Finished:
    """A finished run of a study."""

    report: RunReport
    searched: bool  # whether this process searched; otherwise the run had been finished before


def carry_out(
    members: Sequence[Member], noun: str, workers: int, quiet: bool, full: bool, known: Path | None = None
) -> list[Finished]:
    """Finish the runs of all members, in order, with one progress line for all of them.

    `noun` is what the line calls a member. `full`: see evolve.search.run.work. `known` is a file of known answers,
    which all members share because they depend only on the data.
    """
    progress = StudyProgress(members, noun, quiet)
    runs = []
    try:
        for member in members:
            report = finished(member.folder)
            if report is not None:
                progress.skip(member)
                runs.append(Finished(report, False))
                continue
            run = open_run(member.folder) if member.folder.exists() else start(member.config, member.folder)
            if known and known.exists() and not (run.path / known.name).exists():
                shutil.copy(known, run.path / known.name)
            progress.begin(member)
            runs.append(Finished(work(run, workers, quiet, progress, full), True))
    finally:
        progress.finish()
    return runs


def finished(folder: Path) -> RunReport | None:
    """The report of a finished run; None if the run is not finished."""
    path = folder / "report.json"
    return read_report(path) if path.exists() else None


def read_about(path: Path, missing: str) -> Mapping[str, Any]:
    """The contents of the file `path` that describes a study.

    Raises InputError if the file is damaged, and with the text `missing` if there is none.
    """
    try:
        about = read_json(path, REMEDY)
    except OSError:
        raise InputError(missing) from None
    if not isinstance(about, dict):
        raise InputError(f"{path}: is damaged: {REMEDY}")
    return about


class StudyProgress(Progress):
    """A progress line for a study: which member is searched, how far it is, and the time left for all of them."""

    def __init__(self, members: Sequence[Member], noun: str, quiet: bool) -> None:
        super().__init__(sum(member.config.budget for member in members), quiet)
        self.noun, self.count, self.number = noun, len(members), 0
        self.behind = 0  # candidates in the budgets of the earlier members
        self.before = 0  # candidates that this process assessed for earlier members
        self.current = 0  # candidates that this process assessed for the current member
        self.member = members[0]

    def begin(self, member: Member) -> None:
        """Call when the search of a member starts or is resumed."""
        self.number += 1
        self.member, self.current = member, 0
        self.rate.before = None
        self.line.show(self._where())

    def skip(self, member: Member) -> None:
        """Call for a member that is finished already."""
        self.number += 1
        self.behind += member.config.budget

    def stage(self, name: str) -> None:
        """Call when something other than the search of this member begins."""
        super().stage(f"{self._where()}: {name}")

    def close(self) -> None:
        """Call when the search of a member ends. The line stays open for the next member, see `finish`."""
        self.before += self.current
        self.behind += self.member.config.budget

    def finish(self) -> None:
        """End the line."""
        self.line.close()

    def _where(self) -> str:
        return f"{self.noun} {self.number}/{self.count} ({self.member.folder.name})"

    def _text(self, population: Population, done: int) -> str:
        self.current = done
        assessed = self.before + done
        rate = self.rate.per_s(assessed)
        left = self.budget - self.behind - population.fitted
        time_left = f"{left / rate:.0f} s left for all" if assessed >= 10 else "time left unknown"
        best = min((e.joint for e in population.archive.grid.cells.values()), default=float("nan"))
        return (
            f"{self._where()}: {population.fitted}/{self.member.config.budget} candidates, {rate:.1f}/s, "
            f"best joint error in training {best:.2f} %, {time_left}"
        )
