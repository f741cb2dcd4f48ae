"""The champion of a run: the one program that represents it, and the rule that chooses it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from archive.elite import Elite

OLD_RULES = {"joint": "mean_error", "transfer": "group_out"}  # of `Rule.by`, in releases up to 0.3


@dataclass(frozen=True, slots=True)
class Rule:
    """The rule that chooses a champion: the simplest program within `within` (relative) of the lowest selection score.

    Only physically consistent programs compete, if there are any. Of these, only programs with no experiment above
    `worst_pct` percent E2E compete. If no program is that good, the rule drops this limit: a run that no program
    explains must not choose for all others.

    `by` names the selection score: `mean_error` is the mean error, `group_out` the average of the mean error and the
    leave-group-out error.

    At the end of a search only the share `nearer` of the programs within the distance compete. Their predictions for
    deployments never measured are nearest to those of other near-optimal programs (evaluator.ensemble).
    """

    by: str = "group_out"
    within: float = 0.05
    worst_pct: float = 10.0
    nearer: float = 0.5

    def selection_score(self, elite: Elite) -> float:
        """The elite's selection score in percent; smaller is better."""
        if self.by == "mean_error":
            return elite.mean_error
        return (elite.mean_error + elite.charged_group_out) / 2.0

    def measured_selection_score(self, elite: Elite) -> float | None:
        """The selection score; None if it needs a leave-group-out error that was not measured."""
        return None if self.by == "group_out" and elite.group_out is None else self.selection_score(elite)


def contenders(elites: Iterable[Elite], rule: Rule) -> tuple[list[Elite], Rule]:
    """The elites that compete, and the rule: by the mean error if no leave-group-out error was measured."""
    candidates = list(elites)
    candidates = [e for e in candidates if e.consistent] or candidates
    if all(e.group_out is None for e in candidates):  # no run could be left out of the fit
        rule = replace(rule, by="mean_error")
    return [e for e in candidates if e.score.worst_e2e <= rule.worst_pct] or candidates, rule


def within(elites: Iterable[Elite], rule: Rule) -> tuple[list[Elite], Rule]:
    """The contenders whose selection score is near the lowest by the rule, and the rule of `contenders`."""
    close, rule = contenders(elites, rule)
    scores = [rule.selection_score(e) for e in close]
    limit = (1.0 + rule.within) * min(scores, default=0.0)
    return [e for e, score in zip(close, scores, strict=True) if score <= limit], rule


def champion(elites: Iterable[Elite], rule: Rule, apart: Mapping[int, float] | None = None) -> Elite | None:
    """The elite that `rule` chooses, None if there are none. Ties: the lower selection score, then the earlier elite.

    `apart`: by id, the distance of an elite's predictions from those of the others. Without it, all elites within the
    rule's distance compete.

    >>> from archive.elite import example
    >>> best = example(id=1, mean_error=2.0, operations=20)
    >>> simple = example(id=2, mean_error=2.05, operations=8)  # within 5 %, and simpler
    >>> champion([best, simple], Rule("mean_error")).id
    2
    >>> champion([best, simple], Rule("mean_error"), {1: 0.5, 2: 9.0}).id  # the simple one is alone
    1
    """
    near, rule = within(elites, rule)
    if apart:
        near = sorted(near, key=lambda e: (apart[e.id], e.id))[: math.ceil(rule.nearer * len(near))]
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
    """The average of a program's mean error and leave-group-out error; the mean error alone without the other.

    >>> selection_score(2.0, 4.0), selection_score(2.0, None)
    (3.0, 2.0)
    """
    return mean_error if group_out is None else (mean_error + group_out) / 2.0
