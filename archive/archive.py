"""The archive of a run: grid, Pareto front and known forms, all rebuilt from scored candidates in order."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from archive.elite import Elite
from archive.grid import Added, Grid
from archive.pareto import front


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
        pool = [*self.front, elite]
        kept = [pool[i] for i in front([e.objectives for e in pool])]
        if not added and elite in kept:
            added = Added.BETTER
        self.front = kept
        return added

    def front_by_size(self) -> list[Elite]:
        """The front from the simplest program to the largest."""
        return sorted(self.front, key=lambda e: (e.complexity, e.id))

    def members(self) -> list[Elite]:
        """Cell winners and front, each once, by id: where parents come from."""
        return sorted({e.id: e for e in (*self.grid.cells.values(), *self.front)}.values(), key=lambda e: e.id)


def champion(elites: Iterable[Elite], within: float = 0.05, worst: float = 5.0) -> Elite | None:
    """The simplest program within `within` (relative) of the lowest joint error among those with no experiment above
    `worst` percent E2E; if there is none, the lowest worst3. Ties: the lower joint error, then the earlier one.
    """
    pool: Sequence[Elite] = list(elites)
    sound = [e for e in pool if e.worst_e2e <= worst]
    if not sound:
        return min(pool, key=lambda e: (e.worst3, e.joint, e.id), default=None)
    limit = (1.0 + within) * min(e.joint for e in sound)
    return min((e for e in sound if e.joint <= limit), key=lambda e: (e.complexity, e.joint, e.id))
