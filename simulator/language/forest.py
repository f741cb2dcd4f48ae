"""Ensembles of regression trees: the value of one, and the compiled walk that sums its leaves.

In every tree a batch goes left where its feature is at most the threshold, until it reaches a leaf. The leaves add up
to the logarithm of a time. `b.trees` is exp of that sum, which a program multiplies by a constant. The mean of
logarithms underestimates the mean of times; corrections, one for each phase of a step, make up for that.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property

import numpy as np

from simulator.common.jit import njit
from simulator.common.json import JsonObject

LEAF = -1  # the feature of a node that is a leaf
WIDTH = 4  # numbers of a node in a block: feature, threshold or value, left, right


@dataclass(frozen=True, slots=True)
class Tree:
    """A tree as columns, an entry for each node; node 0 is the root, and children come after their parents.

    feature: its number, LEAF for a leaf. left, right: the children of a node, 0 for a leaf. value: of a leaf.
    """

    feature: tuple[int, ...]
    threshold: tuple[float, ...]
    left: tuple[int, ...]
    right: tuple[int, ...]
    value: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Corrections:
    """Addends to the sum of the leaves: in a step of decodes alone, of both phases, and of prefill alone."""

    decode: float = 0.0
    mixed: float = 0.0
    prefill: float = 0.0


@dataclass(frozen=True)
class Forest:
    """An ensemble: exp(baseline + a leaf of every tree + the correction of the step's phase).

    features: formulas over b. and s. fields in the language of programs, by their numbers in the trees.
    """

    features: tuple[str, ...]
    trees: tuple[Tree, ...]
    baseline: float = 0.0
    corrections: Corrections = Corrections()

    def __hash__(self) -> int:
        return hash(self.digest)

    @cached_property
    def digest(self) -> str:
        """16 hexadecimal digits that differ for different ensembles."""
        return hashlib.sha256(json.dumps(self.to_json()).encode()).hexdigest()[:16]

    @property
    def nodes(self) -> int:
        """The number of nodes in all trees."""
        return sum(len(tree.feature) for tree in self.trees)

    def to_json(self) -> JsonObject:
        """The ensemble as JSON values, which `simulator.language.forest_file` reads."""
        values: JsonObject = json.loads(json.dumps(asdict(self)))  # lists, not tuples, as they are read
        return values

    def leaves(self, features: Sequence[float]) -> float:
        """The baseline and a leaf of every tree for these values of the features."""
        return float(leaves(np.concatenate([np.asarray(features, dtype=float), self._alone]), len(features)))

    @cached_property
    def _alone(self) -> np.ndarray:
        """The block behind nothing but the values of the features."""
        return block(self, range(len(self.features)))


def block(forest: Forest, slots: Sequence[int]) -> np.ndarray:
    """float64: the ensemble as `leaves` reads it; `slots` say where in the value vector its features are.

    First the number of features and their slots, then the baseline, the number of trees and where the root of each is,
    then the nodes, which name the slots of their features. Places are counted from the begin of the block.
    """
    head = [float(len(slots)), *map(float, slots), forest.baseline, float(len(forest.trees))]
    sizes = [len(tree.feature) for tree in forest.trees]
    roots = len(head) + len(sizes) + WIDTH * np.cumsum([0, *sizes])[:-1]
    of_feature = np.array([*slots, LEAF], dtype=float)  # LEAF is the last of it, as -1
    nodes = [np.zeros((0, WIDTH))]
    for tree, root in zip(forest.trees, roots, strict=True):
        feature = np.array(tree.feature)
        number = np.where(feature == LEAF, tree.value, tree.threshold)
        children = (root + WIDTH * np.array(side) for side in (tree.left, tree.right))
        nodes.append(np.column_stack([of_feature[feature], number, *children]))
    return np.concatenate([head, roots, np.concatenate(nodes).ravel()])


@njit
def leaves(v, at):  # type: ignore[no-untyped-def]
    """The baseline and a leaf of every tree of the block that begins at v[at]. Features are read from `v`."""
    place = at + 1 + int(v[at])
    total = v[place]
    trees = int(v[place + 1])
    place += 2
    for i in range(trees):
        node = at + int(v[place + i])
        while v[node] >= 0.0:
            goes_left = v[int(v[node])] <= v[node + 1]
            node = at + int(v[node + 2] if goes_left else v[node + 3])
        total += v[node + 1]
    return total
