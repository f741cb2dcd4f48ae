"""A study: several searches in one folder. Each is a run; finished ones are read back, interrupted ones go on."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from archive.population import Population
from evolve.report.progress import Progress
from evolve.report.result import RunReport
from evolve.run.config import Config
from evolve.run.folder import open_run
from evolve.search.run import start, work
from simulator.errors import InputError


@dataclass(frozen=True, slots=True)
class Member:
    """One search of a study: the folder of its run, and its configuration."""

    folder: Path
    config: Config


@dataclass(frozen=True, slots=True)
class Done:
    """The report of a member's search, and whether anything was left to do."""

    report: RunReport
    worked: bool


def carry_out(
    members: Sequence[Member], noun: str, workers: int, quiet: bool, full: bool, known: Path | None = None
) -> list[Done]:
    """Every member's search to its end, in order, with one progress line over all of them.

    `noun` is what the line calls a member. `full`: with known answers and predictions of what is not fitted. `known` is
    a file of known answers that all members share, since these depend on the data only.
    """
    progress = StudyProgress(members, noun, quiet)
    done = []
    try:
        for member in members:
            report = finished(member.folder)
            if report is not None:
                progress.skip(member)
                done.append(Done(report, False))
                continue
            run = open_run(member.folder) if member.folder.exists() else start(member.config, member.folder)
            if known and known.exists() and not (run.path / known.name).exists():
                shutil.copy(known, run.path / known.name)
            progress.begin(member, len(run.outcomes()))
            done.append(Done(work(run, workers, quiet, progress, full), True))
    finally:
        progress.finish()
    return done


def finished(folder: Path) -> RunReport | None:
    """The report of a run that came to its end, None of one that did not."""
    path = folder / "report.json"
    return RunReport.from_json(json.loads(path.read_text())) if path.exists() else None


def read_about(path: Path, missing: str) -> Mapping[str, Any]:
    """What the file `path`, which makes its folder a study, says about it.

    Raises InputError with the text `missing` if there is no such file, and for a damaged one.
    """
    try:
        about = json.loads(path.read_text())
    except OSError:
        raise InputError(missing) from None
    except ValueError:
        about = None
    if not isinstance(about, dict):
        raise InputError(f"{path}: is damaged: restore it from a copy")
    return about


class StudyProgress(Progress):
    """One line over all members of a study: which one is searched, how far it is, and the time left for all."""

    def __init__(self, members: Sequence[Member], noun: str, quiet: bool) -> None:
        super().__init__(sum(member.config.budget for member in members), 0, quiet)
        self.noun, self.count, self.number = noun, len(members), 0
        self.behind = self.made = self.here = 0  # candidates: of earlier members; made here for them, and for this one
        self.member = members[0]

    def begin(self, member: Member, resumed: int) -> None:
        """A member's search begins, or goes on after so many journalled outcomes."""
        self.number += 1
        self.member, self.resumed, self.here = member, resumed, 0
        self.rate.before = None
        self.line.show(self._where())

    def skip(self, member: Member) -> None:
        """A member is finished already."""
        self.number += 1
        self.behind += member.config.budget

    def stage(self, name: str) -> None:
        super().stage(f"{self._where()}: {name}")

    def close(self) -> None:
        """The member's search has ended; the line stays open for the next, see `finish`."""
        self.made += self.here
        self.behind += self.member.config.budget

    def finish(self) -> None:
        """End the line."""
        self.line.close()

    def _where(self) -> str:
        return f"{self.noun} {self.number}/{self.count} ({self.member.folder.name})"

    def _text(self, population: Population, done: int) -> str:
        self.here = done
        rate = self.rate.per_s(self.made + done)
        left = self.budget - self.behind - population.fitted
        time_left = f"{left / rate:.0f} s left for all" if self.made + done >= 10 else "begun"
        best = min((e.joint for e in population.archive.grid.cells.values()), default=float("nan"))
        return (
            f"{self._where()}: {population.fitted}/{self.member.config.budget} candidates, {rate:.1f}/s, "
            f"best joint error in training {best:.2f} %, {time_left}"
        )
