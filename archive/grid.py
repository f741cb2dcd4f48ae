"""The MAP-Elites grid: operations by distinct features, the lowest joint error in every cell."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum

from archive.elite import Elite


class Added(IntEnum):
    """What became of an elite offered to a cell; truthy when it was kept."""

    NOT = 0
    BETTER = 1
    NEW = 2


@dataclass
class Grid:
    """`operation_bins` equal bins up to `operation_cap`, `feature_bins` bins of two features each, open at the end."""

    operation_cap: int = 40
    operation_bins: int = 10
    feature_bins: int = 5
    cells: dict[tuple[int, int], Elite] = field(default_factory=dict)

    def cell(self, elite: Elite) -> tuple[int, int]:
        """(operations bin, features bin); what lies beyond the last edge is counted in the last bin."""
        column = max(elite.operations - 1, 0) * self.operation_bins // self.operation_cap
        row = max(elite.features - 1, 0) // 2
        return min(column, self.operation_bins - 1), min(row, self.feature_bins - 1)

    def add(self, elite: Elite) -> Added:
        """Keep the elite if its cell is empty, holds an unsound one or a larger joint error (ties: the earlier)."""
        cell = self.cell(elite)
        holder = self.cells.get(cell)
        if holder is not None and not (not elite.sound, elite.joint) < (not holder.sound, holder.joint):
            return Added.NOT
        self.cells[cell] = elite
        return Added.NEW if holder is None else Added.BETTER
