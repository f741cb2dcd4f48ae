"""The findings of a run so far: outcomes, archive, report and champion."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from archive.archive import Archive
from archive.champion import champion
from archive.elite import Elite
from archive.proposal import Outcome
from evolve.output.terminal import command, warn, warn_once
from evolve.run.folder import RunFolder, archive_of, open_run
from evolve.run.program import Source, source_of, with_true_names
from evolve.summary.result import RunReport, cut_off, finished
from simulator.common.errors import InputError

NOT_SCORED = "{}: no candidate was scored, so it has no champion: `{}` goes on or shows why"


@dataclass(frozen=True)
class Searched:
    """A run and its outcomes; the rest is derived from them once."""

    run: RunFolder
    outcomes: Sequence[Outcome]

    @property
    def name(self) -> str:
        return str(self.run.path)

    @cached_property
    def archive(self) -> Archive:
        return archive_of(self.run.config, self.outcomes)

    @cached_property
    def report(self) -> RunReport | None:
        """The report; None if there is none yet, or if the search has gone on since."""
        report = finished(self.run.path)
        if missing := cut_off(report, self.run.path, len(self.outcomes)):
            warn_once(missing)
        return report if report and report.proposals == len(self.outcomes) else None

    @cached_property
    def best(self) -> Elite | None:
        """The champion of the report, or the one that a report would name now; None where no candidate was scored."""
        if self.report:
            return self.report.champion
        best = champion(self.archive.members(), self.run.config.score.rule)
        return with_true_names(best) if best else None

    @property
    def champion(self) -> Elite:
        """`best`. Raises InputError if there is none."""
        if self.best is None:
            raise InputError(NOT_SCORED.format(self.name, command("resume", self.run.path)))
        return self.best

    @property
    def source(self) -> Source:
        """The champion as a program, under the name `RUN:ID`. Raises InputError if there is none."""
        return source_of(self.run, next(o for o in self.outcomes if o.elite and o.elite.id == self.champion.id))


def searched(path: Path) -> Searched:
    """The run in a folder. Raises InputError if there is none, its files are damaged, or no candidate was scored.

    A run whose search has not ended has a warning.
    """
    run = open_run(path)
    outcomes = run.outcomes()
    if not any(outcome.elite for outcome in outcomes):
        raise InputError(NOT_SCORED.format(path, command("resume", path)))
    tell_unfinished(run)
    return Searched(run, outcomes)


def tell_unfinished(run: RunFolder) -> None:
    """Warn if the run's search has not ended: what it has now may not be what it ends with."""
    if not run.ended:
        goes_on = command("resume", run.path)
        warn(f"{run.path}: its search has not ended, so this is what it has until now: `{goes_on}` goes on")
