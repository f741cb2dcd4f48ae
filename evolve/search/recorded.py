"""The proposer that proposes nothing itself: the forms of another run's journal, in the order they were proposed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from archive.population import Offered, Population
from archive.proposal import POLISH, SEED, Outcome, Proposal
from evolve.run.config import Config

ENDLESS = 10**9  # generations: the recording ends the search


class RecordedProposals:
    """Proposes every form that another run fitted, under the same numbers; starting programs come before them.

    A form is as its journal has it: of a scored program without the terms that the fit had set to 0. What was not
    fitted there (unreadable, a duplicate, refused by judges) is left out.
    """

    def __init__(self, outcomes: Iterable[Outcome], batch: int) -> None:
        self._forms = forms_of(outcomes)
        self._batch, self._next = batch, 0

    def ask(self, population: Population, generation: int) -> list[Proposal]:
        proposals = self._forms[self._next : self._next + self._batch]
        self._next += len(proposals)
        if proposals:
            population.numbered = proposals[-1].id + 1
        return proposals

    def tell(self, outcomes: Sequence[Offered]) -> None:
        """Learns nothing: what comes next is recorded."""


def forms_of(outcomes: Iterable[Outcome]) -> list[Proposal]:
    """The fitted forms of a journal as new proposals, without starting programs, polished ones, calls and reviews."""
    return [
        replace(_as_scored(outcome), call="", idea="", reviews=(), motivation="", judges=0)
        for outcome in outcomes
        if outcome.key and not outcome.proposal.operator.startswith((SEED, POLISH))
    ]


def _as_scored(outcome: Outcome) -> Proposal:
    elite = outcome.elite
    return replace(outcome.proposal, text=elite.text) if elite else outcome.proposal


def to_the_end(config: Config) -> Config:
    """The settings of a search that ends with its recording or its budget, not where it no longer improves."""
    return replace(config, search=replace(config.search, generations=ENDLESS, patience=ENDLESS))
