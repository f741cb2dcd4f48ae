"""Stretches of decoding: a request takes part in every step from `start` to `end`, with one token more in each."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Segments:
    """int64 arrays, a stretch each. `tokens`: the value of the counted-up quantity in step `start`."""

    request: np.ndarray
    start: np.ndarray
    end: np.ndarray
    tokens: np.ndarray

    @classmethod
    def of(cls, rows: list[tuple[int, int, int, int]]) -> Segments:
        """From (request, start, end, tokens); stretches that end before they start are nothing."""
        table = np.array([r for r in rows if r[2] >= r[1]], dtype=np.int64).reshape(-1, 4)
        return cls(*(table[:, i].copy() for i in range(4)))

    def counts(self, steps: np.ndarray) -> np.ndarray:
        """int64[steps]: how many stretches each of `steps` lies in."""
        begun = np.searchsorted(np.sort(self.start), steps, side="right")
        over = np.searchsorted(np.sort(self.end), steps, side="left")
        out: np.ndarray = begun - over
        return out

    def expand(self, low: int, high: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(step, request, tokens) of every step in [low, high), a row for each stretch that it lies in."""
        near = np.flatnonzero((self.start < high) & (self.end >= low))
        first = np.maximum(self.start[near], low)
        length = np.minimum(self.end[near], high - 1) - first + 1
        which = np.repeat(np.arange(near.size), length)
        offset = np.arange(which.size) - np.repeat(np.cumsum(length) - length, length)
        step = first[which] + offset
        return step, self.request[near][which], self.tokens[near][which] + step - self.start[near][which]


def windows(segments: Segments, steps: np.ndarray, width: int) -> Iterator[tuple[int, int]]:
    """Ranges [low, high) of `width` steps that cover all segments and `steps`, in order; empty ones left out."""
    spans = segments.end // width - segments.start // width + 1
    inside = np.repeat(segments.start // width - (np.cumsum(spans) - spans), spans) + np.arange(int(spans.sum()))
    for number in np.unique(np.concatenate([inside, steps // width])).tolist():
        yield number * width, (number + 1) * width
