"""The population of a search: its archive, its islands, and all that it remembers of what was proposed.

It is rebuilt from a journal by telling it the outcomes in order. Nothing else changes it but migration.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from archive.archive import Archive
from archive.champion import Rule, champion
from archive.elite import Elite
from archive.grid import Added, Grid
from archive.pareto import fitness
from archive.proposal import MODEL, Outcome

REMEMBERED = 64  # rejections
GREED = 8  # times as many elites compete on greedy islands, so that most parents there are among the very best
EXCESS = 0.1  # percent of merit for each percent of E2E error by which the worst experiment exceeds the rule's limit


@dataclass
class Island:
    """A part of the population whose members become parents of its own proposals.

    It has the cells of a grid and, chosen by NSGA-II, the `size` fittest of all elites that were added. `cells` says
    whether the grid's cells are parents too. Sound elites come before unsound ones (Deb's rule for constraints), then
    rank and crowding on worst3, joint error, complexity and transfer.
    """

    grid: Grid
    size: int
    cells: bool = True
    survivors: list[Elite] = field(default_factory=list)

    def add(self, elite: Elite) -> Added:
        """Offer an elite to its cell; it is also among the survivors until the next `select`."""
        if any(e.key == elite.key and e.joint <= elite.joint for e in self.survivors):
            return Added.NOT
        self.survivors.append(elite)
        return self.grid.add(elite)

    def select(self) -> None:
        """Keep the fittest survivors."""
        if len(self.survivors) > self.size:
            self.survivors = self.fittest(self.size)

    def fittest(self, count: int) -> list[Elite]:
        """The fittest survivors, the best first."""
        order = fitness(self.survivors)
        chosen = sorted(range(len(self.survivors)), key=lambda i: (order[i], self.survivors[i].id))
        return [self.survivors[i] for i in chosen[:count]]

    def members(self) -> list[Elite]:
        """All elites that may become parents, each once, by id."""
        holders = self.grid.cells.values() if self.cells else ()
        return sorted({e.id: e for e in (*holders, *self.survivors)}.values(), key=lambda e: e.id)


@dataclass
class Population:
    """All that a search knows.

    rule: how a champion is chosen. selection: how parents are (nsga2 or lexicographic), by tournaments of `tournament`.
    fitted: candidates that reached fitting. numbered: ids given away, those of empty places included.
    stages: outcomes by stage of the cascade. best: the champion's joint and transfer error (None: not measured) after
    every generation. rejected: the last rejections. reached: (proposer, what) -> count of proposals, fits and gains.
    """

    archive: Archive
    islands: list[Island]
    rule: Rule
    selection: str = "nsga2"
    tournament: int = 3
    fitted: int = 0
    proposals: int = 0
    numbered: int = 0
    stages: Counter[str] = field(default_factory=Counter)
    best: list[tuple[float, float | None]] = field(default_factory=list)
    rejected: deque[Outcome] = field(default_factory=lambda: deque(maxlen=REMEMBERED))
    reached: Counter[tuple[str, str]] = field(default_factory=Counter)

    def tell(self, outcome: Outcome) -> bool:
        """Take in an outcome; True if its elite took a place on its island."""
        self.proposals += 1
        self.stages[outcome.rejection.stage if outcome.rejection else "scored"] += 1
        if outcome.key:
            self.fitted += 1
            self.archive.keys.add(outcome.key)
        gained = False
        island, elite = outcome.proposal.island, outcome.elite
        if elite:
            self.archive.add(elite)
            homes = self.islands if island is None else [self.islands[island]]
            gained = [home.add(elite) for home in homes] != [Added.NOT] * len(homes)
        else:
            self.rejected.append(outcome)
        for name in proposers(outcome.proposal.operator):
            counts = {(name, "proposals"): 1, (name, "fitted"): bool(outcome.key), (name, "kept"): gained}
            self.reached.update(counts)
        return gained

    def champion(self) -> Elite | None:
        """The best elite so far, by the rule."""
        return champion(self.archive.members(), self.rule)

    def end_generation(self) -> None:
        """Note how good the champion is now."""
        best = self.champion()
        self.best.append((best.joint, best.transfer) if best else (float("inf"), None))

    def migrate(self, count: int) -> None:
        """Copy each island's `count` fittest to the next island round the ring."""
        if len(self.islands) < 2:
            return
        leaving = [island.fittest(count) for island in self.islands]
        for i, elites in enumerate(leaving):
            for elite in elites:
                self.islands[(i + 1) % len(self.islands)].add(elite)

    def greedy(self, island: int) -> bool:
        """Whether an island follows the merit: three of four do, and one that is alone."""
        return len(self.islands) == 1 or island % 4 != 0

    def entrants(self, island: int) -> tuple[int, int]:
        """How many elites compete to be the first parent, and how many to be another."""
        return self.tournament * (GREED if self.greedy(island) else 1), self.tournament

    def order(self, elites: Sequence[Elite], island: int) -> list[tuple[float, ...]]:
        """What a tournament compares, smaller is fitter: NSGA-II's ranks, or on greedy islands the merit by which a
        champion is chosen, worsened by what the worst experiment exceeds the rule's limit by."""
        if self.selection == "lexicographic":
            return [(e.worst3, e.joint if e.itl is None else e.itl, float(e.complexity)) for e in elites]
        if not self.greedy(island):
            return fitness(elites)
        excess = [EXCESS * max(e.worst_e2e - self.rule.worst_pct, 0.0) for e in elites]
        return [
            (float(not e.sound), self.rule.merit(e) + more, float(e.complexity))
            for e, more in zip(elites, excess, strict=True)
        ]


def tournament(
    elites: Sequence[Elite], order: Sequence[tuple[float, ...]], size: int, rng: np.random.Generator
) -> Elite:
    """The fittest of `size` elites drawn with replacement; the earlier one on ties."""
    entrants = rng.integers(len(elites), size=size)
    return elites[min(entrants, key=lambda i: (order[i], elites[i].id))]


def proposers(operator: str) -> list[str]:
    """The names that a proposal counts for: both operators of `add+drop`, or the language model."""
    return [operator] if operator.startswith(MODEL) else operator.split("+")
