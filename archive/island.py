"""An island: the part of a population whose members become parents of its own proposals."""

from __future__ import annotations

from dataclasses import dataclass, field

from archive.elite import Elite
from archive.grid import Added, Grid
from archive.pareto import fitness


@dataclass
class Island:
    """The cells of a grid and, chosen by NSGA-II, the `size` fittest of all that were added.

    `cells`: whether the grid's cells are parents too. Sound elites come before unsound ones (Deb's rule for
    constraints), then rank and crowding on worst3, joint error, complexity and transfer.
    """

    grid: Grid
    size: int
    cells: bool = True
    survivors: list[Elite] = field(default_factory=list)

    def add(self, elite: Elite) -> Added:
        """Offer an elite to its cell; it stands among the survivors until the next `select`."""
        if any(e.key == elite.key and e.joint <= elite.joint for e in self.survivors):
            return Added.NOT
        self.survivors.append(elite)
        return self.grid.add(elite)

    def select(self) -> None:
        """Keep the fittest."""
        if len(self.survivors) > self.size:
            self.survivors = self.fittest(self.size)

    def fittest(self, count: int) -> list[Elite]:
        """The fittest survivors, the best first."""
        order = fitness(self.survivors)
        chosen = sorted(range(len(self.survivors)), key=lambda i: (order[i], self.survivors[i].id))
        return [self.survivors[i] for i in chosen[:count]]

    def members(self) -> list[Elite]:
        """All that may become parents, each once, by id."""
        holders = self.grid.cells.values() if self.cells else ()
        return sorted({e.id: e for e in (*holders, *self.survivors)}.values(), key=lambda e: e.id)
