"""The MAP-Elites grid: cells by operations and distinct features, with the lowest mean error kept in each."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from itertools import pairwise

from archive.elite import Elite


class Added(IntEnum):
    """The result of offering an elite to a cell. True if the cell kept it."""

    NOT = 0
    BETTER = 1
    NEW = 2


@dataclass
class Grid:
    """`operation_bins` equal bins up to `operation_cap` operations, by `feature_bins` bins of two features each."""

    operation_cap: int = 40
    operation_bins: int = 10
    feature_bins: int = 5
    cells: dict[tuple[int, int], Elite] = field(default_factory=dict)

    def cell(self, elite: Elite) -> tuple[int, int]:
        """(operations bin, features bin). The last bins hold everything beyond them."""
        return self.cell_of(elite.operations, elite.features)

    def cell_of(self, operations: int, features: int) -> tuple[int, int]:
        """The cell of a program with so many operations and distinct features."""
        column = max(operations - 1, 0) * self.operation_bins // self.operation_cap
        row = max(features - 1, 0) // 2
        return min(column, self.operation_bins - 1), min(row, self.feature_bins - 1)

    def spans(self, to: str = "-") -> tuple[list[str], list[str]]:
        """The spans of the columns (operations) and of the rows (distinct features).

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
        """Keep the elite if its cell is empty or holds a worse one: not consistent, or with a larger mean error.

        The earlier elite wins ties.
        """
        cell = self.cell(elite)
        holder = self.cells.get(cell)
        if holder is not None and not _badness(elite) < _badness(holder):
            return Added.NOT
        self.cells[cell] = elite
        return Added.NEW if holder is None else Added.BETTER


def _badness(elite: Elite) -> tuple[bool, float]:
    """The order of elites in a cell, the best first."""
    return not elite.consistent, elite.mean_error


def _span(first: int, last: int, to: str) -> str:
    if first >= last:
        return str(first) if first == last else "none"
    return f"{first}{to}{last}"
