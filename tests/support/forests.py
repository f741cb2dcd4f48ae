"""Ensembles of trees at random, and a program that reads one."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from simulator.language.forest import LEAF, Corrections, Forest, Tree

TREES_TEXT = "def step_time(b, s, *, scale: us = 1.25): return scale * b.trees"
SIZES = (0, 1, 2, 3, 5, 8, 16, 40, 100, 300, 1000, 5000)  # what batch fields are about, and thresholds too


def random_tree(rng: Random, features: int, depth: int, bottom: float, top: float) -> Tree:
    """A tree of at most this depth, whose leaves are between `bottom` and `top`; its thresholds are often met."""
    columns: tuple[list[int], list[float], list[int], list[int], list[float]] = ([], [], [], [], [])

    def grow(left: int) -> int:
        node = len(columns[0])
        leaf = left == 0 or rng.random() < 0.1
        threshold = rng.choice((-1, 1, 1)) * (rng.choice(SIZES) + rng.choice((0, 0.5)))
        new = (LEAF, 0.0, 0, 0, rng.uniform(bottom, top)) if leaf else (rng.randrange(features), threshold, 0, 0, 0.0)
        for column, x in zip(columns, new, strict=True):
            column.append(x)  # type: ignore[arg-type]
        if not leaf:
            columns[2][node], columns[3][node] = grow(left - 1), grow(left - 1)
        return node

    grow(depth)
    return Tree(*map(tuple, columns))  # type: ignore[arg-type]


def random_forest(seed: int, features: Sequence[str], trees: int = 12, depth: int = 5) -> Forest:
    """An ensemble whose values are around exp(7), which is about 1 ms, with corrections of its own."""
    rng = Random(seed)
    grown = tuple(random_tree(rng, len(features), depth, -0.5, 0.5) for _ in range(trees))
    return Forest(tuple(features), grown, 7.0, Corrections(0.01, -0.02, 0.3))
