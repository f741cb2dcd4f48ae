"""Growing tables of numbers: a compact array for each column, appended to while a file streams by."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any

import numpy as np

Columns = dict[str, np.ndarray]
"""Columns of one length by name."""


class Growing:
    """Rows of whole numbers (int64), floats in the columns named so. Missing whole numbers are `NONE`, floats NaN."""

    def __init__(self, names: Sequence[str], floats: Sequence[str] = ()) -> None:
        self._columns = {name: array("d" if name in floats else "q") for name in names}
        self._add = tuple(column.append for column in self._columns.values())

    def append(self, row: Sequence[float]) -> None:
        for add, value in zip(self._add, row, strict=True):
            add(value)  # type: ignore[arg-type]

    def columns(self) -> Columns:
        """The columns as numpy arrays, without a copy: the table cannot grow any more."""
        return {name: view(column) for name, column in self._columns.items()}

    def __len__(self) -> int:
        return len(next(iter(self._columns.values())))


NONE = -(2**62)


def view(numbers: array[Any]) -> np.ndarray:
    """The numbers as a numpy array, without a copy."""
    out: np.ndarray = np.frombuffer(numbers, dtype=np.int64 if numbers.typecode == "q" else np.float64)
    return out


def rows(columns: Columns, keep: np.ndarray) -> Columns:
    """The rows `keep`, a mask or positions, of every column."""
    return {name: column[keep] for name, column in columns.items()}
