"""The champion of a run: the one program that represents it, and the rule that chooses it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from archive.elite import SEED, Elite

MOST_GAIN_PCT = 5.0  # of a proposal; a larger fall of the selection score tells of a poor parent
OLD_RULES = {"joint": "mean_error", "transfer": "group_out"}  # of `Rule.by`, in releases up to 0.3


@dataclass(frozen=True, slots=True)
class Rule:
    """The rule that chooses a champion: the simplest program that is not worse than the best one.

    `by` names the selection score: the mean error (`mean_error`), or the leave-group-out error (`group_out`). Not worse
    is a program within `within` (relative) of the lowest score whose errors are, cell by cell, above those of the best
    by at most the standard error of that difference. No program above the best fitted seed competes.

    Only physically consistent programs compete, if there are any. Of these, only programs with no experiment above
    `worst_pct` percent E2E compete. If no program is that good, the rule drops this limit: a run that no program
    explains must not choose for all others.
    """

    by: str = "group_out"
    within: float = 0.05
    worst_pct: float = 10.0

    def selection_score(self, elite: Elite) -> float:
        """The elite's selection score in percent; smaller is better."""
        return elite.mean_error if self.by == "mean_error" else elite.charged_group_out

    def measured_selection_score(self, elite: Elite) -> float | None:
        """The selection score; None if it needs a leave-group-out error that was not measured."""
        return None if self.by == "group_out" and elite.group_out is None else self.selection_score(elite)

    def gain_pct(self, elite: Elite | None, elites: Mapping[int, Elite]) -> float:
        """The fall of the selection score from the elite's first parent among `elites`, in percent of the parent's.

        From 0 to MOST_GAIN_PCT. 0 for None, without a parent, where a score was not measured, and for an inconsistent
        program of a consistent parent.

        >>> from archive.elite import example
        >>> parent = example(id=1, mean_error=4.0)
        >>> Rule("mean_error").gain_pct(example(id=2, mean_error=3.875, parents=(1,)), {1: parent})
        3.125
        """
        parent = elites.get(elite.parents[0]) if elite and elite.parents else None
        if elite is None or parent is None or elite.consistent < parent.consistent:
            return 0.0
        before, after = self.measured_selection_score(parent), self.measured_selection_score(elite)
        if not before or after is None:
            return 0.0
        return min(max(100.0 * (before - after) / before, 0.0), MOST_GAIN_PCT)

    def not_worse(self, elite: Elite, best: Elite) -> bool:
        """True if the elite is not worse than the best one."""
        if self.selection_score(elite) > (1.0 + self.within) * self.selection_score(best):
            return False
        if self.by != "group_out" or not elite.cells or not best.cells:
            return True
        difference, error = elite.above(best)
        return difference <= error


def contenders(elites: Iterable[Elite], rule: Rule) -> tuple[list[Elite], Rule]:
    """The elites that compete, and the rule: by the mean error if no leave-group-out error was measured."""
    candidates = list(elites)
    candidates = [e for e in candidates if e.consistent] or candidates
    if all(e.group_out is None for e in candidates):  # no run could be left out of the fit
        rule = replace(rule, by="mean_error")
    return [e for e in candidates if e.score.worst_e2e <= rule.worst_pct] or candidates, rule


def best_seed(elites: Iterable[Elite], rule: Rule) -> Elite | None:
    """The fitted seed program with the lowest selection score; None without one."""
    seeds = [e for e in elites if e.operator.startswith(SEED)]
    return min(seeds, key=lambda e: (rule.selection_score(e), e.id), default=None)


def within(elites: Iterable[Elite], rule: Rule) -> tuple[list[Elite], Rule]:
    """The contenders that are not worse than the best of them, nor above the best seed, and the rule of
    `contenders`."""
    close, rule = contenders(elites, rule)
    if not close:
        return [], rule
    best, seed = min(close, key=lambda e: (rule.selection_score(e), e.id)), best_seed(close, rule)
    most = rule.selection_score(seed) if seed else math.inf
    return [e for e in close if rule.not_worse(e, best) and rule.selection_score(e) <= most], rule


def champion(elites: Iterable[Elite], rule: Rule) -> Elite | None:
    """The elite that `rule` chooses, None if there are none. Ties: the lower selection score, then the earlier elite.

    >>> from archive.elite import example
    >>> best = example(id=1, mean_error=2.0, operations=20)
    >>> simple = example(id=2, mean_error=2.05, operations=8)  # within 5 %, and simpler
    >>> champion([best, simple], Rule("mean_error")).id
    2
    """
    near, rule = within(elites, rule)
    return min(near, key=lambda e: (e.complexity, rule.selection_score(e), e.id), default=None)


def finalists(elites: Iterable[Elite], rule: Rule, count: int) -> list[Elite]:
    """Up to `count` elites: the champion, then the champion of the remaining elites, and so on."""
    candidates, chosen = list(elites), list[Elite]()
    while candidates and len(chosen) < count:
        best = champion(candidates, rule)
        assert best is not None
        chosen.append(best)
        candidates.remove(best)
    return chosen


def selection_score(mean_error: float, group_out: float | None) -> float:
    """The leave-group-out error; the mean error where that was not measured.

    >>> selection_score(2.0, 4.0), selection_score(2.0, None)
    (4.0, 2.0)
    """
    return mean_error if group_out is None else group_out
