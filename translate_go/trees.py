"""NAME_trees.go: the program's ensemble of trees as arrays, and the function that evaluates it."""

from __future__ import annotations

from collections.abc import Sequence

from simulator.language.forest import LEAF, Forest, Tree
from simulator.schema import TREES
from translate_go.lower import CallOf, GoAtom, GoExpr, show, statement
from translate_go.naming import MARK, BackendName, batch_name, clean, digits
from translate_go.templates import sections

WIDTH = 16  # roots in a line


def trees_file(forest: Forest, name: BackendName, package: str) -> str:
    """The text of the file of this Go package."""
    place, roots, nodes = 0, list[str](), list[str]()
    for tree in forest.trees:
        roots.append(str(place))
        nodes += _nodes(tree, place)
        place += len(tree.feature)
    text = name.fill(
        sections("trees")["trees"],
        mark=MARK,
        package=package,
        count=len(forest.features),
        baseline=_number(forest.baseline),
        decode=_number(forest.corrections.decode),
        mixed=_number(forest.corrections.mixed),
        prefill=_number(forest.corrections.prefill),
        features="\n".join(f"//\t{i}: {clean(text)}" for i, text in enumerate(forest.features)),
        roots="\n".join(f"\t{', '.join(roots[i : i + WIDTH])}," for i in range(0, len(roots), WIDTH)),
        nodes="\n".join(nodes),
    )
    return f"{text}\n"


def _nodes(tree: Tree, root: int) -> list[str]:
    """The nodes of a tree, a line each. `root`: the place of its first node."""
    columns = zip(tree.feature, tree.threshold, tree.left, tree.right, tree.value, strict=True)
    return [
        f"\t{{{digits(value)}, 0, 0, {LEAF}}},"
        if feature == LEAF
        else f"\t{{{digits(threshold)}, {root + left}, {root + right}, {feature}}},"
        for feature, threshold, left, right, value in columns
    ]


def _number(value: float) -> str:
    """A literal that Go reads as a float64 where no type is given."""
    text = digits(value)
    return text if "." in text or "e" in text else f"{text}.0"


def declare_trees(values: Sequence[GoExpr], indent: str, name: BackendName) -> list[str]:
    """The statements of the step function that declare the array of these features, and the ensemble's value."""
    lines = [f"{indent}features := [...]float64{{"]
    for value in values:
        *before, last = statement("", value, f"{indent}\t")
        lines += [*before, f"{last},"]
    return [*lines, f"{indent}}}", f"{indent}{batch_name(TREES.name)} := {show(call_of_trees(name))}"]


def call_of_trees(name: BackendName) -> GoExpr:
    """The call that gives the value of the ensemble, once its features are declared."""
    phase = (GoAtom(batch_name("prefill_reqs")), GoAtom(batch_name("decode_reqs")))
    return CallOf(name.of("trees"), (GoAtom("&features"), *phase))
