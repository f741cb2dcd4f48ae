"""Trees of genetic programming as expressions of our language, and back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from evolve.propose.terms import draft
from evolve.study.engines.primitives import US, Language
from simulator.language import units
from simulator.language.infer import infer
from simulator.language.ir import Call, Choose, Compare, Const, Constant, Expr, Field, Function, Op
from simulator.language.units import Unit
from simulator.schema import FIELDS


def expression(tree: Sequence[Any], known: Language) -> tuple[Expr, tuple[Constant, ...]]:
    """A tree (nodes in prefix order) as an expression and its constants: each random constant is one to be fitted."""
    leaves = [node for node in tree if not node.arity and node.name not in known.leaves]
    constants = [Constant(f"c{i}", leaf.value) for i, leaf in enumerate(leaves, 1)]
    names, stack = [c.name for c in constants], list[Expr]()
    for node in reversed(tree):
        if node.arity:
            stack.append(known.forms[node.name](*(stack.pop() for _ in range(node.arity))))
        elif node.name in known.leaves:
            stack.append(known.leaves[node.name])
        else:
            stack.append(Const(names.pop()))
    (expr,) = stack
    return expr, tuple(constants)


def tree_of(function: Function, known: Language) -> list[Any] | None:
    """The nodes of a tree that spells this function, or None where it uses what no primitive does."""
    found = infer(function).units
    d = draft(function)
    at = {c.name: (c.value, units.read(found[c.name] or "one")) for c in d.constants.values()}
    try:
        nodes, unit = _nodes(d.expr, at, known)
    except KeyError:
        return None
    return nodes if unit == US else None


def _nodes(node: Expr, at: dict[str, tuple[float, Unit]], known: Language) -> tuple[list[Any], Unit]:
    """The nodes of an expression and its unit. Raises KeyError for what no primitive spells."""
    mapping = known.pset.mapping
    match node:
        case Field(scope, name):
            return [mapping[f"{scope}.{name}"]], units.read(FIELDS[scope, name].unit)
        case Const(name):
            value, unit = at[name]
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
    below = [_nodes(arg, at, known) for arg in args]
    orders = [below, below[::-1]] if kind == "*" else [below]
    for order in orders:
        primitive = mapping.get(f"{kind}({','.join(units.spell(unit) for _, unit in order)})")
        if primitive is not None:
            return [primitive, *(n for nodes, _ in order for n in nodes)], primitive.ret.unit
    raise KeyError(kind)
