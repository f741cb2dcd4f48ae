"""NAME_trees.go: the program's ensemble of trees as arrays, and the walk through them."""

from __future__ import annotations

from collections.abc import Sequence

from simulator.language.forest import LEAF, Forest, Tree
from simulator.schema import TREES
from translate_go.goexpr import CallOf, GoAtom, GoExpr, show, statement
from translate_go.naming import BackendName
from translate_go.spelling import MARK, batch_name, clean, digits

WIDTH = 16  # roots in a line

_FILE = """\
// {mark}

package latency

import "math"

// <name>Trees is exp of the sum of the ensemble's leaves for these features, in the order of the trees, with the
// correction of the step's phase.
func <name>Trees(features *[{count}]float64, prefillReqs, decodeReqs float64) float64 {{
	sum := {baseline}
	for _, root := range <name>Roots {{
		node := &<name>Nodes[root]
		for node.feature >= 0 {{
			if features[node.feature] <= node.number {{
				node = &<name>Nodes[node.left]
			}} else {{
				node = &<name>Nodes[node.right]
			}}
		}}
		sum += node.number
	}}
	switch {{
	case prefillReqs == 0:
		sum += {decode}
	case decodeReqs == 0:
		sum += {prefill}
	default:
		sum += {mixed}
	}}
	return math.Exp(min(sum, 50))
}}

// <name>Node is a node of a tree. A batch whose feature is at most number goes left, any other right. A leaf has
// feature -1, and number is what it adds. The features are:
//
{features}
type <name>Node struct {{
	number      float64
	left, right int32
	feature     int8
}}

// <name>Roots are the places of the trees' roots.
var <name>Roots = [...]int32{{
{roots}
}}

var <name>Nodes = [...]<name>Node{{
{nodes}
}}
"""


def trees_file(forest: Forest, name: BackendName) -> str:
    """The text of the file."""
    place, roots, nodes = 0, list[str](), list[str]()
    for tree in forest.trees:
        roots.append(str(place))
        nodes += _nodes(tree, place)
        place += len(tree.feature)
    return name.fill(_FILE).format(
        mark=MARK,
        count=len(forest.features),
        baseline=_number(forest.baseline),
        decode=_number(forest.corrections.decode),
        mixed=_number(forest.corrections.mixed),
        prefill=_number(forest.corrections.prefill),
        features="\n".join(f"//\t{i}: {clean(text)}" for i, text in enumerate(forest.features)),
        roots="\n".join(f"\t{', '.join(roots[i : i + WIDTH])}," for i in range(0, len(roots), WIDTH)),
        nodes="\n".join(nodes),
    )


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
    """A literal that Go takes for a float64 where nothing else says so."""
    text = digits(value)
    return text if "." in text or "e" in text else f"{text}.0"


def declare_trees(values: Sequence[GoExpr], indent: str, name: BackendName) -> list[str]:
    """The statements of the step function for the array of these features, and for what the ensemble makes of it."""
    lines = [f"{indent}features := [...]float64{{"]
    for value in values:
        *before, last = statement("", value, f"{indent}\t")
        lines += [*before, f"{last},"]
    return [*lines, f"{indent}}}", f"{indent}{batch_name(TREES.name)} := {show(call_of_trees(name))}"]


def call_of_trees(name: BackendName) -> GoExpr:
    """The call that gives the value of the ensemble, once its features are declared."""
    phase = (GoAtom(batch_name("prefill_reqs")), GoAtom(batch_name("decode_reqs")))
    return CallOf(name.of("trees"), (GoAtom("&features"), *phase))
