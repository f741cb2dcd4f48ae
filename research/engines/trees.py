"""Conversion between the trees of genetic programming and expressions of our language."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from research.engines.primitives import US, Language
from simulator.language import units
from simulator.language.infer import infer
from simulator.language.ir import Call, Choose, Compare, Const, Constant, Expr, Field, Function, Op
from simulator.language.terms import draft
from simulator.language.units import Unit
from simulator.schema import FIELDS


def expression(tree: Sequence[Any], language: Language) -> tuple[Expr, tuple[Constant, ...]]:
    """The expression of a tree (nodes in prefix order), and its constants: every random constant is to be fitted."""
    leaves = [node for node in tree if not node.arity and node.name not in language.leaves]
    constants = [Constant(f"c{i}", leaf.value) for i, leaf in enumerate(leaves, 1)]
    names, stack = [c.name for c in constants], list[Expr]()
    for node in reversed(tree):
        if node.arity:
            stack.append(language.forms[node.name](*(stack.pop() for _ in range(node.arity))))
        elif node.name in language.leaves:
            stack.append(language.leaves[node.name])
        else:
            stack.append(Const(names.pop()))
    (expr,) = stack
    return expr, tuple(constants)


def tree_of(function: Function, language: Language) -> list[Any] | None:
    """The nodes of the tree of this function, in prefix order, or None if the primitives cannot express it."""
    inferred = infer(function).units
    d = draft(function)
    constants = {c.name: (c.value, units.read(inferred[c.name] or "one")) for c in d.constants.values()}
    try:
        nodes, unit = _nodes(d.expr, constants, language)
    except KeyError:
        return None
    return nodes if unit == US else None


def _nodes(node: Expr, constants: dict[str, tuple[float, Unit]], language: Language) -> tuple[list[Any], Unit]:
    """The nodes of an expression, and its unit. Raises KeyError if no primitive expresses it.

    `constants`: value and unit by name.
    """
    mapping = language.pset.mapping
    match node:
        case Field(scope, name):
            return [mapping[f"{scope}.{name}"]], units.read(FIELDS[scope, name].unit)
        case Const(name):
            value, unit = constants[name]
            leaf = mapping[f"c({units.spell(unit)})"]()
            leaf.value = value
            return [leaf], unit
        case Op(op, left, right):
            kind, args = op, [left, right]
        case Call(name, (left, right, *rest)) if name in ("max", "min"):
            kind, args = name, [left, Call(name, (right, *rest)) if rest else right]
        case Call(name, (arg,)):
            kind, args = name, [arg]
        case Choose(Compare(">", left, right), then, other):
            kind, args = ">", [left, right, then, other]
        case _:
            raise KeyError(node)
    below = [_nodes(arg, constants, language) for arg in args]
    orders = [below, below[::-1]] if kind == "*" else [below]  # a product is a primitive in one order only
    for order in orders:
        primitive = mapping.get(f"{kind}({','.join(units.spell(unit) for _, unit in order)})")
        if primitive is not None:
            return [primitive, *(n for nodes, _ in order for n in nodes)], primitive.ret.unit
    raise KeyError(kind)
