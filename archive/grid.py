"""The MAP-Elites grid: cells by operations and distinct features, with the lowest joint error kept in each."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from itertools import pairwise

from archive.elite import Elite


class Added(IntEnum):
    """What happened to an elite that was offered to a cell. True if it was kept.

    >>> bool(Added.NOT), bool(Added.BETTER)
    (False, True)
    """

    NOT = 0
    BETTER = 1
    NEW = 2


@dataclass
class Grid:
    """`operation_bins` equal bins up to `operation_cap` operations, by `feature_bins` bins of two features each.

    >>> from archive.elite import example
    >>> grid = Grid()
    >>> grid.add(example(id=1)), len(grid.cells)
    (<Added.NEW: 2>, 1)
    """

    operation_cap: int = 40
    operation_bins: int = 10
    feature_bins: int = 5
    cells: dict[tuple[int, int], Elite] = field(default_factory=dict)

    def cell(self, elite: Elite) -> tuple[int, int]:
        """(operations bin, features bin). Anything beyond the last edge counts in the last bin.

        >>> from archive.elite import example
        >>> Grid().cell(example(operations=5, features=3)), Grid().cell(example(operations=99, features=99))
        ((1, 1), (9, 4))
        """
        return self.cell_of(elite.operations, elite.features)

    def cell_of(self, operations: int, features: int) -> tuple[int, int]:
        """The cell of a program with so many operations and distinct features.

        >>> Grid().cell_of(5, 3)
        (1, 1)
        """
        column = max(operations - 1, 0) * self.operation_bins // self.operation_cap
        row = max(features - 1, 0) // 2
        return min(column, self.operation_bins - 1), min(row, self.feature_bins - 1)

    def spans(self, to: str = "-") -> tuple[list[str], list[str]]:
        """What the cells of each column and of each row span: operations, and distinct features.

        >>> Grid(operation_cap=20, operation_bins=2, feature_bins=3).spans()
        (['1-10', '11-20'], ['1-2', '3-4', '5+'])
        >>> Grid(operation_cap=3, operation_bins=4).spans()[0]  # more bins than sizes
        ['1', '2', '3', 'none']
        """
        edges = [-(-i * self.operation_cap // self.operation_bins) for i in range(self.operation_bins + 1)]
        columns = [_span(low + 1, high, to) for low, high in pairwise(edges)]
        rows = [f"{2 * i + 1}{to}{2 * i + 2}" for i in range(self.feature_bins - 1)]
        return columns, [*rows, f"{2 * self.feature_bins - 1}+"]

    def add(self, elite: Elite) -> Added:
        """Keep the elite if its cell is empty or holds a worse one: unsound, or with a larger joint error.

        The earlier elite wins ties.

        >>> from archive.elite import example
        >>> grid = Grid()
        >>> [grid.add(example(joint=joint)).name for joint in (3.0, 3.0, 2.0)]
        ['NEW', 'NOT', 'BETTER']
        """
        cell = self.cell(elite)
        holder = self.cells.get(cell)
        if holder is not None and not (not elite.sound, elite.joint) < (not holder.sound, holder.joint):
            return Added.NOT
        self.cells[cell] = elite
        return Added.NEW if holder is None else Added.BETTER


def _span(first: int, last: int, to: str) -> str:
    if first >= last:
        return str(first) if first == last else "none"
    return f"{first}{to}{last}"
