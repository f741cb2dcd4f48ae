"""The archive of a run: grid, Pareto front and known forms, all rebuilt from scored candidates in order."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from archive.elite import Elite
from archive.grid import Added, Grid
from archive.pareto import dominates


@dataclass
class Archive:
    """Everything worth keeping. `add` in proposal order: the result depends on nothing else."""

    grid: Grid
    front: list[Elite] = field(default_factory=list)
    by_id: dict[int, Elite] = field(default_factory=dict)
    keys: set[str] = field(default_factory=set)

    def add(self, elite: Elite) -> Added:
        """Offer an elite to its cell and to the front; NOT if neither keeps it."""
        self.by_id[elite.id] = elite
        self.keys.add(elite.key)
        added = self.grid.add(elite)
        if not any(dominates(e, elite) for e in self.front):
            self.front = [e for e in self.front if not dominates(elite, e)] + [elite]
            added = added or Added.BETTER
        return added

    def front_by_size(self) -> list[Elite]:
        """The front from the simplest program to the largest."""
        return sorted(self.front, key=lambda e: (e.complexity, e.id))

    def members(self) -> list[Elite]:
        """Cell winners and front, each once, by id: where parents come from."""
        return sorted({e.id: e for e in (*self.grid.cells.values(), *self.front)}.values(), key=lambda e: e.id)


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
