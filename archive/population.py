"""The population of a search: its archive, its islands, and everything it remembers about past proposals.

Telling it the outcomes of a journal in order rebuilds it. Only outcomes and migration change it.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from archive.archive import Archive
from archive.champion import Rule, champion
from archive.elite import Elite
from archive.grid import Added, Grid
from archive.pareto import fitness
from archive.proposal import MODEL, SCORED, TRIM, Outcome

REMEMBERED = 64  # the number of latest rejections that are kept
IDEAS = 20  # the number of language models' latest proposals that are kept
GREED = 8  # greedy islands enter this many times more elites, so that most of their parents are among the very best
EXCESS = 0.1  # percent of selection score added per percent by which the worst E2E error exceeds the rule's limit


@dataclass
class Island:
    """A part of the population whose members become the parents of its own proposals.

    Members are the cells of a grid (if `cells` is true) and the `size` fittest of all elites that were added. NSGA-II
    chooses the fittest by `Elite.objectives`; consistent elites come before the others (Deb's rule for constraints).
    Only `add` and `select` may add survivors: the island remembers the errors of their forms.
    """

    grid: Grid
    size: int
    cells: bool = True
    survivors: list[Elite] = field(default_factory=list)
    _lowest: dict[str, float] = field(init=False, repr=False, compare=False)  # mean error of each survivor's form

    def __post_init__(self) -> None:
        self._lowest = _lowest(self.survivors)

    def add(self, elite: Elite) -> Added:
        """Offer an elite to its cell. Until the next `select` it is also among the survivors."""
        if elite.key in self._lowest and self._lowest[elite.key] <= elite.mean_error:
            return Added.NOT
        self._lowest[elite.key] = elite.mean_error
        self.survivors.append(elite)
        return self.grid.add(elite)

    def select(self) -> None:
        """Keep only the fittest survivors."""
        if len(self.survivors) > self.size:
            self.survivors = self.fittest(self.size)
            self._lowest = _lowest(self.survivors)

    def fittest(self, count: int) -> list[Elite]:
        """Up to `count` survivors, the fittest first."""
        order = fitness(self.survivors)
        chosen = sorted(range(len(self.survivors)), key=lambda i: (order[i], self.survivors[i].id))
        return [self.survivors[i] for i in chosen[:count]]

    def members(self) -> list[Elite]:
        """All elites that may become parents, each once, by id."""
        holders = self.grid.cells.values() if self.cells else ()
        return sorted({e.id: e for e in (*holders, *self.survivors)}.values(), key=lambda e: e.id)


class Offered(NamedTuple):
    """An outcome that was offered to a population; kept: True if the grid of an island kept its elite.

    gain_pct: see archive.champion.Rule.
    """

    outcome: Outcome
    kept: bool
    gain_pct: float


class ChampionErrors(NamedTuple):
    """A champion's mean error (inf without a champion) and leave-group-out error (None if not measured), percent."""

    mean_error: float
    group_out: float | None


@dataclass
class Population:
    """Everything that a search knows.

    - rule: the rule that chooses a champion.
    - selection: the order of parents (nsga2 or lexicographic), in tournaments of `tournament` elites.
    - fitted: the number of candidates that were fitted. proposals: the number of outcomes so far.
    - numbered: how many ids are assigned, including those of places that stayed empty.
    - stages: outcomes by stage of the cascade.
    - best: the champion's errors after every generation.
    - rejected: the latest rejections. ideas: the latest outcomes of language models' proposals.
    - reached: proposals, fits and elites that were kept, counted by (proposer, what).
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
    best: list[ChampionErrors] = field(default_factory=list)
    rejected: deque[Outcome] = field(default_factory=lambda: deque(maxlen=REMEMBERED))
    ideas: deque[Outcome] = field(default_factory=lambda: deque(maxlen=IDEAS))
    reached: Counter[tuple[str, str]] = field(default_factory=Counter)
    _champion: tuple[int, Elite | None] = field(default=(-1, None), init=False, repr=False, compare=False)

    def tell(self, outcome: Outcome) -> bool:
        """Take in an outcome. True if the grid of an island kept its elite."""
        self.proposals += 1
        self.stages[outcome.rejection.stage if outcome.rejection else SCORED] += 1
        if outcome.key:
            self.fitted += outcome.proposal.operator != TRIM  # which are beyond the budget
            self.archive.keys.add(outcome.key)
        kept = False
        island, elite = outcome.proposal.island, outcome.elite
        if elite:
            self.archive.add(elite)
            homes = self.islands if island is None else [self.islands[island]]
            # a list, not any(): every island must be offered the elite
            kept = [home.add(elite) for home in homes] != [Added.NOT] * len(homes)
        else:
            self.rejected.append(outcome)
        if outcome.proposal.operator.startswith(MODEL):
            self.ideas.append(outcome)
        for name in proposers(outcome.proposal.operator):
            counts = {(name, "proposals"): 1, (name, "fitted"): bool(outcome.key), (name, "kept"): kept}
            self.reached.update(counts)
        return kept

    def champion(self) -> Elite | None:
        """The best elite so far, by the rule; None if nothing was scored yet."""
        changes = self.archive.changes
        if self._champion[0] != changes:
            self._champion = changes, champion(self.archive.members(), self.rule)
        return self._champion[1]

    def end_generation(self) -> None:
        """Record the champion's errors."""
        best = self.champion()
        errors = (best.mean_error, best.group_out) if best else (float("inf"), None)
        self.best.append(ChampionErrors(*errors))

    def migrate(self, count: int) -> None:
        """Copy the `count` fittest elites of each island to the next island around the ring."""
        if len(self.islands) < 2:
            return
        leaving = [island.fittest(count) for island in self.islands]
        for i, elites in enumerate(leaving):
            for elite in elites:
                self.islands[(i + 1) % len(self.islands)].add(elite)

    def greedy(self, island: int) -> bool:
        """True if an island follows the selection score: three of every four do, and an only island does."""
        return len(self.islands) == 1 or island % 4 != 0

    def entrants(self, island: int) -> tuple[int, int]:
        """The number of elites that compete to become the first parent, and the number for every other parent."""
        return self.tournament * (GREED if self.greedy(island) else 1), self.tournament

    def order(self, elites: Sequence[Elite], island: int) -> list[tuple[float, ...]]:
        """The values that a tournament compares; smaller is fitter.

        They are the rank of NSGA-II or, on greedy islands, (inconsistent, selection score, complexity). The selection
        score gets worse as the worst experiment exceeds the rule's limit.
        """
        if self.selection == "lexicographic":
            scores = [e.score for e in elites]
            steady = [s.mean_error if s.itl is None else s.itl for s in scores]
            return [(e.worst3, itl, float(e.complexity)) for e, itl in zip(elites, steady, strict=True)]
        if not self.greedy(island):
            return fitness(elites)
        # where no E2E was observed, worst_e2e is NaN, which `max` returns only where it comes first
        excess = [EXCESS * max(0.0, e.score.worst_e2e - self.rule.worst_pct) for e in elites]
        return [
            (float(not e.consistent), self.rule.selection_score(e) + more, float(e.complexity))
            for e, more in zip(elites, excess, strict=True)
        ]


def _lowest(elites: Sequence[Elite]) -> dict[str, float]:
    return {e.key: e.mean_error for e in sorted(elites, key=lambda e: -e.mean_error)}


def tournament(
    elites: Sequence[Elite], order: Sequence[tuple[float, ...]], size: int, rng: np.random.Generator
) -> Elite:
    """The fittest of `size` elites drawn with replacement; the earlier one on ties."""
    entrants = rng.integers(len(elites), size=size)
    return elites[min(entrants, key=lambda i: (order[i], elites[i].id))]


def proposers(operator: str) -> list[str]:
    """The names that a proposal counts for: every operator of `add+drop`, or the language model.

    >>> proposers("add+drop"), proposers("llm:openai/gpt-5.4-mini")
    (['add', 'drop'], ['llm:openai/gpt-5.4-mini'])
    """
    return [operator] if operator.startswith(MODEL) else operator.split("+")
