"""MY.trees.json, the ensemble of trees of the program MY.py: read and checked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from simulator.common.documents import read_json
from simulator.common.errors import LARGEST_NUMBER, InputError, Section, shown, unreadable
from simulator.language.forest import LEAF, Corrections, Forest, Tree
from simulator.language.ir import Program
from simulator.language.opcodes import feature
from simulator.language.source import ProgramError

PHASES = ("decode", "mixed", "prefill")
MOST_FEATURES = 100
MOST_TREES = 2_000
MOST_NODES = 30_000  # about a megabyte of Go
REMEDY = "train the ensemble again, or copy its file again"


def forest_file(program: Path) -> Path:
    """The file of the ensemble that belongs to a program's file."""
    return program.with_suffix(".trees.json")


def with_forest(program: Program, path: Path) -> Program:
    """The program of the file `path`, with the ensemble next to it if it reads b.trees.

    Raises InputError if the ensemble is missing or damaged.
    """
    if not program.reads_trees:
        return program
    file = forest_file(path)
    try:
        return program.with_forest(read_forest(file))
    except OSError as e:
        remedy = f"{path.name} reads b.trees: put its ensemble of trees next to it"
        raise unreadable(file, e, remedy) from None


def read_forest(path: Path) -> Forest:
    """The ensemble in a file. Raises OSError if it cannot be read, InputError if it is damaged."""
    return forest_of(read_json(path, REMEDY), str(path))


def forest_of(raw: object, where: str) -> Forest:
    """The ensemble of JSON values from the file `where`. Raises InputError for values that are not an ensemble."""
    if not isinstance(raw, dict):
        raise InputError(f"{where}: is not an ensemble of trees: {REMEDY}")
    top = Section(where, "", raw)
    top.only(("features", "trees", "baseline", "corrections"))
    features = _features(top)
    corrections = top.section("corrections", REMEDY)
    corrections.only(PHASES)
    trees = tuple(_tree(tree, len(features)) for tree in top.sections("trees", REMEDY, most=MOST_TREES))
    phases = Corrections(*(corrections.number(phase, REMEDY) for phase in PHASES))
    forest = Forest(features, trees, top.number("baseline", REMEDY), phases)
    if forest.nodes > MOST_NODES:
        raise top.error("trees", f"have {forest.nodes:,} nodes, at most {MOST_NODES:,} are read", "train smaller trees")
    return forest


def _features(top: Section) -> tuple[str, ...]:
    texts = _column(top, "features")
    if not 1 <= len(texts) <= MOST_FEATURES:
        raise top.error("features", f"are {len(texts):,}, from 1 to {MOST_FEATURES} are read", REMEDY)
    for i, text in enumerate(texts):
        if not isinstance(text, str):
            raise top.error(f"features[{i}]", f"must be text, got {shown(text)}", REMEDY)
        try:
            feature(text)
        except ProgramError as e:
            raise InputError(f"{top.where}: features[{i}]: {e}") from None
    return tuple(texts)


def _tree(raw: Section, features: int) -> Tree:
    """A tree whose walk must end: all numbers are finite, and children come after their parents."""
    raw.only(("feature", "threshold", "left", "right", "value"))
    numbers, left, right = _wholes(raw, "feature", LEAF, features - 1), _wholes(raw, "left"), _wholes(raw, "right")
    tree = Tree(numbers, _numbers(raw, "threshold"), left, right, _numbers(raw, "value"))
    count = len(tree.feature)
    if not count:
        raise raw.error("feature", "is empty", REMEDY)
    for name in ("threshold", "left", "right", "value"):
        if len(getattr(tree, name)) != count:
            raise raw.error(name, f"has {len(getattr(tree, name)):,} entries, feature has {count:,}", REMEDY)
    for side in ("left", "right"):
        for node, (number, child) in enumerate(zip(tree.feature, getattr(tree, side), strict=True)):
            if number != LEAF and not node < child < count:
                where = f"{side}[{node}]"
                raise raw.error(where, f"must be a later node, from {node + 1} to {count - 1}, got {child}", REMEDY)
    return tree


def _column(raw: Section, name: str) -> list[Any]:
    column = raw.required(name, REMEDY)
    if not isinstance(column, list):
        raise raw.error(name, f"must be a list, got {shown(column)}", REMEDY)
    return column


def _wholes(raw: Section, name: str, least: int = 0, most: int = MOST_NODES) -> tuple[int, ...]:
    column = _column(raw, name)
    for i, x in enumerate(column):
        if type(x) is not int or not least <= x <= most:
            raise raw.error(f"{name}[{i}]", f"must be a whole number from {least} to {most}, got {shown(x)}", REMEDY)
    return tuple(column)


def _numbers(raw: Section, name: str) -> tuple[float, ...]:
    column = _column(raw, name)
    for i, x in enumerate(column):
        if type(x) not in (int, float) or not abs(x) <= LARGEST_NUMBER:
            raise raw.error(f"{name}[{i}]", f"must be a finite number, got {shown(x)}", REMEDY)
    return tuple(map(float, column))
