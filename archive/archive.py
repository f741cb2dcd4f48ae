"""The archive of a run: grid, Pareto front and known forms, all rebuilt from scored candidates in order."""

from __future__ import annotations

from dataclasses import dataclass, field

from archive.elite import Elite
from archive.grid import Added, Grid
from archive.pareto import dominates


@dataclass
class Archive:
    """All that a run keeps. `add` in the order of proposals: the result depends on nothing else."""

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
