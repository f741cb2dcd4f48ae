"""Evidence on the judges of a run: how many reviews there are, and whether high marks go along with low errors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import scipy

from archive.proposal import Outcome, is_outcome
from evolve.search.llm import judges
from evolve.search.llm.call_log import call_log
from evolve.search.llm.calls import reviewing

LEAST = 10  # programs for a rank correlation


@dataclass(frozen=True, slots=True)
class Reviews:
    """The reviews in a run: given, questions asked again because an answer could not be used, and reviews missing.

    programs: how many were reviewed and scored, of parents whose transfer error is known too. rank_correlation: of
    their mean marks with the change of transfer error from parent to program; None below LEAST programs.
    """

    given: int
    asked_again: int
    missing: int
    programs: int
    rank_correlation: float | None


def reviews(lines: Sequence[Mapping[str, Any]]) -> Reviews:
    """The reviews in a journal's lines."""
    outcomes = [Outcome.from_json(line) for line in lines if is_outcome(line)]
    log, second = call_log(lines), reviewing(2)
    calls = {*(name for name, _ in log.sent), *log.answers}
    pairs = _pairs(outcomes)
    return Reviews(
        given=sum(len(outcome.proposal.reviews) for outcome in outcomes),
        asked_again=sum(name.split("/")[1] == second for name in calls),
        missing=sum(max(o.proposal.judges - len(o.proposal.reviews), 0) for o in outcomes),
        programs=len(pairs),
        rank_correlation=_rank_correlation(pairs),
    )


def _pairs(outcomes: Sequence[Outcome]) -> list[tuple[float, float]]:
    """(mean mark, change of transfer error from the parent in points) of each program that has both."""
    elites = {outcome.elite.id: outcome.elite for outcome in outcomes if outcome.elite}
    pairs = []
    for outcome in outcomes:
        proposal, elite = outcome.proposal, outcome.elite
        parent = elites.get(proposal.parents[0]) if proposal.parents else None
        if proposal.reviews and elite and parent and elite.transfer is not None and parent.transfer is not None:
            pairs.append((judges.average(proposal.reviews), elite.transfer - parent.transfer))
    return pairs


def _rank_correlation(pairs: Sequence[tuple[float, float]]) -> float | None:
    """Spearman's rank correlation; None for few pairs, or if all values on one side are the same."""
    if len(pairs) < LEAST or any(len(set(side)) == 1 for side in zip(*pairs, strict=True)):
        return None
    return float(scipy.stats.spearmanr(*zip(*pairs, strict=True)).statistic)
