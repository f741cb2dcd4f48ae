"""The champion: the program that a run is judged by, and the rule that chooses it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from archive.elite import Elite


@dataclass(frozen=True, slots=True)
class Rule:
    """How a champion is chosen: the simplest program within `within` (relative) of the lowest merit, among those with
    no experiment above `worst_pct` percent E2E and, if there are any, sound ones. Where no program is that good, that
    limit is dropped: a run that nothing explains must not choose for all the others. merit: the joint error, or the
    mean of it and the transfer error (`by`: joint, transfer).
    """

    by: str = "transfer"
    within: float = 0.05
    worst_pct: float = 10.0

    def merit(self, elite: Elite) -> float:
        """In percent; smaller is better."""
        if self.by == "joint":
            return elite.joint
        return (elite.joint + elite.objectives[3]) / 2.0


def finalists(elites: Iterable[Elite], rule: Rule, count: int) -> list[Elite]:
    """The champion and those who would be if it were not there, `count` at most."""
    pool, out = list(elites), list[Elite]()
    while pool and len(out) < count:
        best = champion(pool, rule)
        assert best is not None
        out.append(best)
        pool.remove(best)
    return out


def champion(elites: Iterable[Elite], rule: Rule) -> Elite | None:
    """The elite that `rule` chooses. Ties: the lower merit, then the earlier one."""
    pool: Sequence[Elite] = list(elites)
    pool = [e for e in pool if e.sound] or pool
    if all(e.transfer is None for e in pool):  # nothing could be left out
        rule = replace(rule, by="joint")
    if not pool:
        return None
    close = [e for e in pool if e.worst_e2e <= rule.worst_pct] or pool
    limit = (1.0 + rule.within) * min(map(rule.merit, close))
    return min((e for e in close if rule.merit(e) <= limit), key=lambda e: (e.complexity, rule.merit(e), e.id))


def merit(best: tuple[float, float | None]) -> float:
    """The mean of a champion's joint and transfer error; the joint error where the other was not measured."""
    joint, transfer = best
    return joint if transfer is None else (joint + transfer) / 2.0
