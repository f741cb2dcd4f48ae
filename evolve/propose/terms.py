"""Latency formulas as sums of terms: where the sums are, what a term's factors are, and how to put them back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from simulator.language import units
from simulator.language.ir import (
    Call,
    Choose,
    Compare,
    Const,
    Constant,
    Expr,
    Field,
    Function,
    Guard,
    Let,
    Local,
    Neg,
    Op,
    children,
    nodes,
    rebuild,
)
from simulator.language.unparse import terms as signed_terms

Path = tuple[int, ...]
US = units.read("us")


@dataclass(frozen=True)
class Draft:
    """A function being changed: one expression and the constants it may name."""

    name: str
    expr: Expr
    constants: Mapping[str, Constant]


def draft(function: Function) -> Draft:
    """The function as one expression: lets written out, early returns as conditionals."""
    values: dict[str, Expr] = {}

    def written_out(node: Expr) -> Expr:
        return rebuild(node, lambda n: values[n.name] if isinstance(n, Local) else n)

    guards: list[tuple[Compare, Expr]] = []
    for statement in function.body:
        match statement:
            case Let(name, value):
                values[name] = written_out(value)
            case Guard(Compare(op, left, right), value):
                guards.append((Compare(op, written_out(left), written_out(right)), written_out(value)))
    expr = written_out(function.result)
    for condition, value in reversed(guards):
        expr = Choose(condition, value, expr)
    return Draft(function.name, expr, {c.name: c for c in function.constants})


def function_of(d: Draft, doc: str = "") -> Function:
    """The draft as a function that declares just the constants it uses, in order of use."""
    bare = Function(d.name, (), (), d.expr)
    used = dict.fromkeys(n.name for n in nodes(bare) if isinstance(n, Const))
    return Function(d.name, tuple(d.constants[name] for name in used), (), d.expr, doc)


def get(node: Expr, path: Path) -> Expr:
    for i in path:
        node = children(node)[i]  # type: ignore[assignment]
    return node


def put(node: Expr, path: Path, new: Expr) -> Expr:
    """`node` with the sub-expression at `path` replaced."""
    if not path:
        return new
    i, rest = path[0], path[1:]
    match node:
        case Neg(value):
            return Neg(put(value, rest, new))
        case Op(op, left, right):
            return Op(op, put(left, rest, new), right) if i == 0 else Op(op, left, put(right, rest, new))
        case Call(name, args):
            return Call(name, tuple(put(a, rest, new) if j == i else a for j, a in enumerate(args)))
        case Choose(condition, then, other):
            return (
                Choose(condition, put(then, rest, new), other)
                if i == 1
                else Choose(condition, then, put(other, rest, new))
            )
    raise ValueError(f"no child {i} in {node!r}")


def sites(node: Expr, path: Path = ()) -> list[Path]:
    """Paths of the sums: the whole, and inside it the branches of max, min and conditionals, term by term."""
    found: list[Path] = [path]
    for position, term in places(node, path):
        match term:
            case Call("max" | "min", args):
                for i, arg in enumerate(args):
                    found += sites(arg, (*position, i))
            case Choose(_, then, other):
                found += sites(then, (*position, 1)) + sites(other, (*position, 2))
    return found


def places(node: Expr, path: Path = ()) -> list[tuple[Path, Expr]]:
    """A sum's terms with their paths, in order of the text."""
    if isinstance(node, Op) and node.op in "+-":
        return [*places(node.left, (*path, 0)), ((*path, 1), node.right)]
    return [(path, node)]


def split(node: Expr) -> list[Expr]:
    """A sum's terms; a subtracted one comes negated."""
    return [term if sign == "+" else Neg(term) for sign, term in signed_terms(node)]


def join(parts: list[Expr]) -> Expr:
    total, *rest = parts
    for part in rest:
        total = Op("-", total, part.value) if isinstance(part, Neg) else Op("+", total, part)
    return total


def factors(node: Expr) -> list[Expr]:
    """A product's factors from left to right."""
    if isinstance(node, Op) and node.op == "*":
        return [*factors(node.left), node.right]
    return [node]


def product(parts: Sequence[Expr]) -> Expr:
    total, *rest = parts
    for part in rest:
        total = Op("*", total, part)
    return total


def fresh(d: Draft, stem: str) -> str:
    """A constant's name that the draft does not have yet."""
    stem = stem[:40].strip("_") or "c"
    name, n = stem, 1
    while name in d.constants:
        n += 1
        name = f"{stem}_{n}"
    return name


def stem(parts: Sequence[Expr]) -> str:
    """A readable name for the coefficient of these factors: `s.layers * b.batch_size` -> `layers_batch_size`."""
    named = [f.name for f in parts if isinstance(f, Field)]
    named += [n.name for f in parts if isinstance(f, Call) for n in f.args if isinstance(n, Field)]
    return "_".join(name.removesuffix("_us") for name in named) or "base"
