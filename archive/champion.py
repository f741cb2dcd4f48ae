"""The champion of a run: the one program that represents it, and the rule that chooses it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from archive.elite import Elite


@dataclass(frozen=True, slots=True)
class Rule:
    """How a champion is chosen: the simplest program within `within` (relative) of the lowest merit.

    Only sound programs compete, if there are any, and only those with no experiment above `worst_pct` percent E2E. If
    no program is that good, this limit is dropped, because a run that nothing explains must not choose for all others.
    `by` names the merit: `joint` is the joint error, `transfer` the mean of the joint and the transfer error.

    At the end of a search only the share `nearer` of the programs within the distance compete: those whose predictions
    for deployments never measured are nearest to those of other near-optimal programs (evaluator.committee).

    >>> Rule("joint").within
    0.05
    """

    by: str = "transfer"
    within: float = 0.05
    worst_pct: float = 10.0
    nearer: float = 0.5

    def merit(self, elite: Elite) -> float:
        """The elite's merit in percent; smaller is better.

        >>> from archive.elite import example
        >>> elite = example(joint=3.0, transfer=5.0)
        >>> Rule("joint").merit(elite), Rule("transfer").merit(elite)
        (3.0, 4.0)
        """
        if self.by == "joint":
            return elite.joint
        return (elite.joint + elite.charged_transfer) / 2.0

    def measured_merit(self, elite: Elite) -> float | None:
        """The merit; None if it needs a transfer error that was not measured.

        >>> from archive.elite import example
        >>> Rule("transfer").measured_merit(example(transfer=None)) is None
        True
        """
        return None if self.by == "transfer" and elite.transfer is None else self.merit(elite)


def contenders(elites: Iterable[Elite], rule: Rule) -> tuple[list[Elite], Rule]:
    """The elites that compete by `rule`, and the rule, by the joint error if no transfer error was measured.

    >>> from archive.elite import example
    >>> competing, rule = contenders([example(id=1, transfer=None), example(id=2, sound=False)], Rule("transfer"))
    >>> [elite.id for elite in competing], rule.by
    ([1], 'joint')
    """
    candidates = list(elites)
    candidates = [e for e in candidates if e.sound] or candidates
    if all(e.transfer is None for e in candidates):  # no run could be left out of the fit
        rule = replace(rule, by="joint")
    return [e for e in candidates if e.worst_e2e <= rule.worst_pct] or candidates, rule


def within(elites: Iterable[Elite], rule: Rule) -> tuple[list[Elite], Rule]:
    """The contenders whose merit is within the rule's distance of the lowest, and the rule as in `contenders`.

    >>> from archive.elite import example
    >>> near, _ = within([example(id=1, joint=2.0), example(id=2, joint=2.05), example(id=3)], Rule("joint"))
    >>> [e.id for e in near]
    [1, 2]
    """
    close, rule = contenders(elites, rule)
    merits = [rule.merit(e) for e in close]
    limit = (1.0 + rule.within) * min(merits, default=0.0)
    return [e for e, merit in zip(close, merits, strict=True) if merit <= limit], rule


def champion(elites: Iterable[Elite], rule: Rule, apart: Mapping[int, float] | None = None) -> Elite | None:
    """The elite that `rule` chooses, None if there are none. Ties: the lower merit, then the earlier elite.

    `apart`: by id, how far the predictions of an elite are from those of the others; without it, all within the rule's
    distance compete.

    >>> from archive.elite import example
    >>> best = example(id=1, joint=2.0, operations=20)
    >>> simple = example(id=2, joint=2.05, operations=8)  # within 5 %, and simpler
    >>> champion([best, simple], Rule("joint")).id
    2
    >>> champion([best, simple], Rule("joint"), {1: 0.5, 2: 9.0}).id  # the simple one is alone with its predictions
    1
    """
    near, rule = within(elites, rule)
    if apart:
        near = sorted(near, key=lambda e: (apart[e.id], e.id))[: math.ceil(rule.nearer * len(near))]
    return min(near, key=lambda e: (e.complexity, rule.merit(e), e.id), default=None)


def finalists(elites: Iterable[Elite], rule: Rule, count: int) -> list[Elite]:
    """Up to `count` elites: the champion, then the champion of the remaining elites, and so on.

    >>> from archive.elite import example
    >>> elites = [example(id=i, joint=joint) for i, joint in enumerate((4.0, 2.0, 3.0))]
    >>> [elite.id for elite in finalists(elites, Rule("joint"), 2)]
    [1, 2]
    """
    candidates, chosen = list(elites), list[Elite]()
    while candidates and len(chosen) < count:
        best = champion(candidates, rule)
        assert best is not None
        chosen.append(best)
        candidates.remove(best)
    return chosen


def merit(joint: float, transfer: float | None) -> float:
    """The mean of a program's joint and transfer errors; the joint error alone if the other was not measured.

    >>> merit(2.0, 4.0), merit(2.0, None)
    (3.0, 2.0)
    """
    return joint if transfer is None else (joint + transfer) / 2.0
