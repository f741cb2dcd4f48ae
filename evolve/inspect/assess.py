"""`evolve show --assess`: a program fitted and scored again as a run's search does, and compared with another one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from archive.elite import SEED, Elite
from archive.proposal import Proposal, Rejected
from archive.score import CellErrors
from evaluator.statistics import paired
from evolve.output.printing import prose, show
from evolve.output.terminal import say
from evolve.run.folder import RunFolder
from evolve.run.program import Source
from evolve.search.assessor import Live, begin_alone
from evolve.search.pool.pool import Pool
from evolve.search.workers import workers_of
from evolve.summary.finding import difference as difference_text
from evolve.summary.ideas import cells_table, errors_table, rows_table
from simulator.common.json import JsonObject


@dataclass(frozen=True)
class Assessment:
    """The verdicts on programs, on the runs that `run` fits: (name, scored program, or why it is refused)."""

    run: RunFolder
    verdicts: Sequence[tuple[str, Elite | Rejected]]

    @property
    def scored(self) -> list[tuple[str, Elite]]:
        return [(name, verdict) for name, verdict in self.verdicts if isinstance(verdict, Elite)]

    def to_json(self) -> JsonObject:
        """`difference`: of the first program's leave-group-out error to the second's, in points, paired by cell."""
        about = {"engine": self.run.about.engine, "data": self.run.about.data}
        programs = [
            {"name": name, "refused": {"stage": v.stage, "why": v.why}}
            if isinstance(v, Rejected)
            else {"name": name, "refused": None, **v.to_json()}
            for name, v in self.verdicts
        ]
        found: JsonObject = {**about, "seeds": self.run.config.score.arrival_seeds, "programs": programs}
        if len(self.scored) == 2:
            points, interval, cells = self.difference()
            found["difference"] = {"points": points, "interval_95": interval and [*interval], "cells": cells}
        return found

    def difference(self) -> tuple[float | None, tuple[float, float] | None, int]:
        (_, ours), (_, theirs) = self.scored
        return paired(CellErrors(ours.cells), CellErrors(theirs.cells))


def assess(run: RunFolder, programs: Sequence[Source], pool: Pool) -> Assessment:
    """The programs, fitted and scored by a pool on the runs that `run` fits, with its settings but without caps."""
    live = Live(run.config, workers_of(pool, run.experiments()[0], run.config))
    started = [
        (source.name, begin_alone(live, Proposal(i, None, source.text, f"{SEED}{source.name}", ())))
        for i, source in enumerate(programs)
    ]
    return Assessment(run, [(name, pending().outcome.verdict) for name, pending in started])


def print_assessment(found: Assessment, verbose: bool = False) -> None:
    """Print the errors of the programs, and of two their difference, cell by cell.

    verbose: also the errors in sample, and the fitted programs.
    """
    for name, verdict in found.verdicts:
        if isinstance(verdict, Rejected):
            prose(f"{name}: refused at {verdict.stage}: {verdict.why}")
    if found.scored:
        show(errors_table(found.scored))
    if len(found.scored) == 2:
        points, interval, cells = found.difference()
        prose(f"Difference of group-out: {difference_text(points, interval)} points over {cells} cells, 95 %.\n")
        (_, ours), (_, theirs) = found.scored
        show(cells_table(ours.cells, theirs.cells))
        if verbose:
            show(rows_table(ours, theirs))
    for name, elite in found.scored if verbose else ():
        prose(f"{name}, fitted:\n")
        say(elite.text)
