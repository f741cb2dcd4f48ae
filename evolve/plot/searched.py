"""A run as pictures need it, read once: its outcomes, its archive, its champion, and how that one came about."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from archive.archive import Archive
from archive.champion import champion, merit
from archive.elite import Elite
from archive.proposal import POLISH, SEED, Outcome
from evaluator.committee import final_champion
from evolve.report.result import read_report
from evolve.run.config import Config
from evolve.run.folder import Run, empty_archive, open_run
from evolve.run.program import Source
from evolve.run.records import record_of
from evolve.terminal import command
from simulator.errors import InputError
from simulator.language.parse import parse


@dataclass(frozen=True, slots=True)
class Best:
    """The champion after so many fitted candidates: its errors in percent, the transfer error None if not measured."""

    candidates: int
    joint: float
    transfer: float | None

    @property
    def merit(self) -> float:
        """The mean of both errors, or the joint error where the other was not measured."""
        return merit((self.joint, self.transfer))


@dataclass(frozen=True, slots=True)
class Scored:
    """An elite, and how many candidates had been fitted with it."""

    candidates: int
    elite: Elite


@dataclass(frozen=True, slots=True)
class Progress:
    """How a search went: every elite, the champion whenever it changed and at the end, and how many candidates were
    fitted at the end of each generation, that of the seed programs first."""

    scored: tuple[Scored, ...]
    best: tuple[Best, ...]
    generations: tuple[int, ...]


@dataclass(frozen=True)
class Searched:
    """A run with at least one scored candidate."""

    run: Run
    outcomes: Sequence[Outcome]
    archive: Archive

    @property
    def name(self) -> str:
        """The run as the user named it."""
        return str(self.run.path)

    @cached_property
    def champion(self) -> Elite:
        """The run's champion: that of its report, or if the report is missing or older than the journal, the one that
        a report would name now."""
        path = self.run.path / "report.json"
        report = read_report(path) if path.exists() else None
        if report and report.champion and report.proposals == len(self.outcomes):
            kept = self.archive.by_id.get(report.champion.id)
            if kept:
                return kept
        best = final_champion(self.archive.members(), self.run.config.score.rule)
        assert best is not None
        return best

    @property
    def source(self) -> Source:
        """The champion as a program, under the name `RUN:ID`."""
        best = self.champion
        name = f"{self.name}:{best.id}"
        [proposal] = {o.proposal.id: o.proposal for o in self.outcomes if o.elite is best}.values()
        return Source(name, best.text, parse(best.text, name), record_of(self.run, best, proposal))


def read(path: Path) -> Searched:
    """The run in the folder `path`. Raises InputError if there is none, or if it scored no candidate."""
    run = open_run(path)
    outcomes, archive = run.outcomes(), empty_archive(run.config)
    for outcome in outcomes:
        if outcome.elite:
            archive.add(outcome.elite)
    if not archive.by_id:
        raise InputError(f"{path}: no candidate was scored yet, so it has no champion: `{command('resume', path)}`")
    return Searched(run, outcomes, archive)


def progress(searched: Searched) -> Progress:
    """How the search of a run went, by its journal."""
    config, archive = searched.run.config, empty_archive(searched.run.config)
    seeds = sum(outcome.proposal.operator.startswith(SEED) for outcome in searched.outcomes)
    fitted, ends, scored, best = 0, dict[int, int](), list[Scored](), list[Best]()
    leader: Elite | None = None
    for outcome in searched.outcomes:
        fitted += bool(outcome.key)
        if outcome.proposal.operator != POLISH:
            ends[_generation(outcome, seeds, config)] = fitted
        if outcome.elite is None:
            continue
        scored.append(Scored(fitted, outcome.elite))
        if archive.add(outcome.elite):
            now = champion(archive.members(), config.score.rule)
            if now is not None and now is not leader:
                leader = now
                best.append(Best(fitted, now.joint, now.transfer))
    if leader:
        best.append(Best(fitted, leader.joint, leader.transfer))
    return Progress(tuple(scored), tuple(best), tuple(ends.values()))


def _generation(outcome: Outcome, seeds: int, config: Config) -> int:
    """The generation of a proposal, 0 for the seed programs; each later one numbers the same places on all islands."""
    number = outcome.proposal.id - seeds
    return 0 if number < 0 else 1 + number // (config.search.batch * config.search.islands)
