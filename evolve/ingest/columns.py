"""Columns of numbers: tables that grow while a file is read, and intervals of consecutive scheduler steps."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

NONE = -(2**62)
"""An unknown whole number. An unknown float is NaN."""

Columns = dict[str, np.ndarray]
"""Columns of equal length by name."""


class Growing:
    """A table to append rows to, one compact array per column: float64 for the names in `floats`, int64 for others."""

    def __init__(self, names: Sequence[str], floats: Sequence[str] = ()) -> None:
        self._columns = {name: array("d" if name in floats else "q") for name in names}
        self._append = tuple(column.append for column in self._columns.values())

    def append(self, row: Sequence[float]) -> None:
        for append, value in zip(self._append, row, strict=True):
            append(value)  # type: ignore[arg-type]

    def columns(self) -> Columns:
        """The columns as numpy arrays without a copy; afterwards the table can no longer grow."""
        return {name: as_array(column) for name, column in self._columns.items()}


def as_array(numbers: array[Any]) -> np.ndarray:
    """The numbers as a numpy array, without a copy."""
    view: np.ndarray = np.frombuffer(numbers, dtype=np.int64 if numbers.typecode == "q" else np.float64)
    return view


def select(columns: Columns, keep: np.ndarray) -> Columns:
    """The rows `keep`, a mask or positions, of every column."""
    return {name: column[keep] for name, column in columns.items()}


def table(rows: Sequence[tuple[int, ...]], names: Sequence[str]) -> Columns:
    """Rows of integers as int64 columns."""
    cells = np.array(rows, dtype=np.int64).reshape(-1, len(names))
    return {name: cells[:, i].copy() for i, name in enumerate(names)}


@dataclass(frozen=True)
class DecodeSegments:
    """Intervals of decoding: a request runs in every step from `start` to `end`, with one token more in each.

    int64 arrays, one entry per interval. `tokens` is the token count in step `start`.
    """

    request: np.ndarray
    start: np.ndarray
    end: np.ndarray
    tokens: np.ndarray

    @classmethod
    def of(cls, rows: Sequence[tuple[int, int, int, int]]) -> DecodeSegments:
        """From rows of (request, start, end, tokens); intervals that end before they start are dropped."""
        return cls(**table([r for r in rows if r[2] >= r[1]], ("request", "start", "end", "tokens")))

    def counts(self, steps: np.ndarray) -> np.ndarray:
        """The number of intervals that contain each of `steps`, as int64."""
        begun = np.searchsorted(np.sort(self.start), steps, side="right")
        running: np.ndarray = begun - np.searchsorted(np.sort(self.end), steps, side="left")
        return running

    def expand(self, low: int, high: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(step, request, tokens) for every step in [low, high) and every interval that contains it."""
        near = np.flatnonzero((self.start < high) & (self.end >= low))
        first = np.maximum(self.start[near], low)
        length = np.minimum(self.end[near], high - 1) - first + 1
        which = np.repeat(np.arange(near.size), length)
        step = first[which] + np.arange(which.size) - np.repeat(np.cumsum(length) - length, length)
        return step, self.request[near][which], self.tokens[near][which] + step - self.start[near][which]


def windows(segments: DecodeSegments, steps: np.ndarray, width: int) -> Iterator[tuple[int, int]]:
    """Ranges [low, high) of `width` steps, in order, that cover all intervals and `steps`; empty ranges are skipped."""
    spans = segments.end // width - segments.start // width + 1
    inside = np.repeat(segments.start // width - (np.cumsum(spans) - spans), spans) + np.arange(int(spans.sum()))
    for number in np.unique(np.concatenate([inside, steps // width])).tolist():
        yield number * width, (number + 1) * width
