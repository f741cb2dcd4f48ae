"""The archive of a run: its grid, Pareto front and forms, rebuilt by adding the scored candidates in order."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import compress

import numpy as np

from archive.elite import OBJECTIVES, Elite
from archive.grid import Added, Grid
from archive.pareto import point, relations


@dataclass
class Archive:
    """Everything that a run keeps. The result depends only on the elites added and their order.

    - by_id: every elite that was ever added.
    - keys: those of all forms that the search knows: of elites, and of forms rejected or in assessment, which it adds.

    Only `add` may change grid and front: the archive remembers values derived from them.
    """

    grid: Grid
    front: list[Elite] = field(default_factory=list)
    by_id: dict[int, Elite] = field(default_factory=dict)
    keys: set[str] = field(default_factory=set)
    changes: int = field(default=0, init=False, repr=False, compare=False)  # how often the members changed
    _points: np.ndarray = field(init=False, repr=False, compare=False)  # of the front, one in each column
    _members: list[Elite] | None = field(default=None, init=False, repr=False, compare=False)  # None: to be collected

    def __post_init__(self) -> None:
        self._points = np.reshape([point(e) for e in self.front], (-1, 1 + OBJECTIVES)).T.copy()

    def add(self, elite: Elite) -> Added:
        """Offer an elite to its cell and to the front; NOT if neither keeps it."""
        self.by_id[elite.id] = elite
        self.keys.add(elite.key)
        added = self.grid.add(elite)
        column = np.array(point(elite))[:, np.newaxis]
        better, worse = relations(self._points, column)
        if not better.any():
            stays = ~worse
            self.front = [*compress(self.front, stays.tolist()), elite]
            self._points = np.hstack([self._points[:, stays], column])
            added = added or Added.BETTER
        if added:
            self.changes += 1
            self._members = None
        return added

    def front_by_size(self) -> list[Elite]:
        """The front, from the simplest program to the largest."""
        return sorted(self.front, key=lambda e: (e.complexity, e.id))

    def members(self) -> list[Elite]:
        """The winners of cells and the front, each elite once, by id."""
        if self._members is None:
            distinct = {e.id: e for e in (*self.grid.cells.values(), *self.front)}
            self._members = sorted(distinct.values(), key=lambda e: e.id)
        return [*self._members]
