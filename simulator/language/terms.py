"""Latency formulas as sums of terms: where the sums are, what a term consists of, and how to put it back."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count

from simulator.language import ir, units
from simulator.language.infer import unit_of
from simulator.language.ir import Expr, Function, Program, children, inlined, nodes, rebuilt
from simulator.language.unparse import terms as signed_terms
from simulator.schema import READABLE

Path = tuple[int, ...]
US = units.read("us")
_STEMS = "|".join(sorted({name.removesuffix("_us") for _, name in READABLE}, key=len, reverse=True))
# The names that `stem` and `fresh` make.
OF_FIELDS = re.compile(rf"(?:base|(?:{_STEMS})(?:_(?:{_STEMS}))*)(?:_\d+)?")


@dataclass(frozen=True)
class Draft:
    """A function being changed: one expression, and the constants that it may use."""

    name: str
    expr: Expr
    constants: Mapping[str, ir.Constant]

    def with_constant(self, constant: ir.Constant) -> Draft:
        """The draft with one more constant, or another of the same name."""
        return replace(self, constants={**self.constants, constant.name: constant})

    def with_part(self, path: Path, new: Expr) -> Draft:
        """The draft with the sub-expression at `path` replaced."""
        return replace(self, expr=put(self.expr, path, new))


def draft(function: Function) -> Draft:
    """The function as one expression: lets are inlined, early returns become conditionals."""
    return Draft(function.name, inlined(function), {c.name: c for c in function.constants})


def function_of(d: Draft, doc: str = "") -> Function:
    """The draft as a function. It declares only the constants that it uses, in order of use."""
    bare = Function(d.name, (), (), d.expr)
    used = dict.fromkeys(n.name for n in nodes(bare) if isinstance(n, ir.Const))
    return Function(d.name, tuple(d.constants[name] for name in used), (), d.expr, doc)


def get(node: Expr, path: Path) -> Expr:
    """The sub-expression at `path`."""
    for i in path:
        node = children(node)[i]  # type: ignore[assignment]
    return node


def put(node: Expr, path: Path, new: Expr) -> Expr:
    """`node` with the sub-expression at `path` replaced."""
    if not path:
        return new
    i, rest = path[0], path[1:]
    match node:
        case ir.Neg(value):
            return ir.Neg(put(value, rest, new))
        case ir.Op(op, left, right):
            return ir.Op(op, put(left, rest, new), right) if i == 0 else ir.Op(op, left, put(right, rest, new))
        case ir.Call(name, args):
            return ir.Call(name, tuple(put(a, rest, new) if j == i else a for j, a in enumerate(args)))
        case ir.Choose(condition, then, other) if i == 1:
            return ir.Choose(condition, put(then, rest, new), other)
        case ir.Choose(condition, then, other):
            return ir.Choose(condition, then, put(other, rest, new))
    raise ValueError(f"no child {i} in {node!r}")


def sites(node: Expr, path: Path = ()) -> list[Path]:
    """Paths of the sums: the whole expression, and the branches of max, min and conditionals inside its terms."""
    paths: list[Path] = [path]
    for position, term in summands(node, path):
        match term:
            case ir.Call("max" | "min", args):
                for i, arg in enumerate(args):
                    paths += sites(arg, (*position, i))
            case ir.Choose(_, then, other):
                paths += sites(then, (*position, 1)) + sites(other, (*position, 2))
    return paths


def summands(node: Expr, path: Path = ()) -> list[tuple[Path, Expr]]:
    """A sum's terms with their paths, in the order of the text."""
    if isinstance(node, ir.Op) and node.op in "+-":
        return [*summands(node.left, (*path, 0)), ((*path, 1), node.right)]
    return [(path, node)]


def all_terms(node: Expr) -> list[tuple[Path, Expr]]:
    """Every term of every sum, with its path."""
    return [(path, term) for site in sites(node) for path, term in summands(get(node, site), site)]


def all_fields(node: Expr, path: Path = ()) -> list[tuple[Path, ir.Field]]:
    """Every field with its path, except those in conditions."""
    if isinstance(node, ir.Field):
        return [(path, node)]
    parts = [(i, part) for i, part in enumerate(children(node)) if not isinstance(part, ir.Compare)]
    return [found for i, part in parts for found in all_fields(part, (*path, i))]


def split(node: Expr) -> list[Expr]:
    """A sum's terms; subtracted terms are negated."""
    return [term if sign == "+" else ir.Neg(term) for sign, term in signed_terms(node)]


def join(parts: list[Expr]) -> Expr:
    """The sum of these terms; the inverse of `split`."""
    total, *rest = parts
    for part in rest:
        total = ir.Op("-", total, part.value) if isinstance(part, ir.Neg) else ir.Op("+", total, part)
    return total


def factors(node: Expr) -> list[Expr]:
    """A product's factors from left to right."""
    if isinstance(node, ir.Op) and node.op == "*":
        return [*factors(node.left), node.right]
    return [node]


def product(parts: Sequence[Expr]) -> Expr:
    """The product of these factors; the inverse of `factors`."""
    total, *rest = parts
    for part in rest:
        total = ir.Op("*", total, part)
    return total


def basis_of(term: Expr) -> list[Expr]:
    """A term's factors without its constants."""
    return [factor for factor in factors(term) if not isinstance(factor, ir.Const)]


def coefficient(term: Expr) -> ir.Const | None:
    """The constant of a plain `constant * fields` term; None for any other term."""
    parts = factors(term)
    constants = [f for f in parts if isinstance(f, ir.Const)]
    plain = all(isinstance(f, (ir.Const, ir.Field, ir.Call)) or (isinstance(f, ir.Op) and f.op == "/") for f in parts)
    return constants[0] if plain and len(constants) == 1 and not isinstance(term, ir.Call) else None


def coefficient_unit(basis: Sequence[Expr], constants: Mapping[str, ir.Constant]) -> units.Unit | None:
    """The unit that makes `coefficient * basis` microseconds; None if a wildcard leaves it open."""
    if not basis:
        return US
    unit = unit_of(product(basis), constants)
    return None if unit is None else units.over(US, unit)


def fresh(d: Draft, stem: str) -> str:
    """A constant's name, from `stem`, that the draft does not use yet."""
    return _fresh(stem, d.constants)


def _fresh(stem: str, taken: Collection[str]) -> str:
    stem = stem[:40].strip("_") or "c"
    return next(name for n in count(1) if (name := stem if n == 1 else f"{stem}_{n}") not in taken)


def stem(parts: Sequence[Expr]) -> str:
    """A readable name for the coefficient of these factors: `s.layers * b.batch_size` -> `layers_batch_size`."""
    fields = [f.name for f in parts if isinstance(f, ir.Field)]
    fields += [n.name for f in parts if isinstance(f, ir.Call) for n in f.args if isinstance(n, ir.Field)]
    return "_".join(name.removesuffix("_us") for name in fields) or "base"


def truthful(program: Program, authored: bool = False) -> Program:
    """The program with the constants of plain terms renamed after the fields that they multiply.

    Operators that change a term keep the name of its constant, which then no longer fits. Nothing else changes: the
    values, their order and the locals stay. `authored`: a person or a language model wrote the program, and its own
    words for constants stay too; only names that are made of fields are corrected.
    """
    return replace(program, functions=tuple(_truthful(f, authored) for f in program.functions))


def _truthful(function: Function, authored: bool) -> Function:
    stems: dict[str, list[str]] = {c.name: [] for c in function.constants}
    for _, term in all_terms(inlined(function)):
        constant, basis = coefficient(term), basis_of(term)
        if constant is not None and basis and not (authored and not OF_FIELDS.fullmatch(constant.name)):
            stems[constant.name].append(stem(basis))
    locals_ = [statement.name for statement in function.body if isinstance(statement, ir.Let)]
    taken = {*locals_, *(name for name, found in stems.items() if not found)}
    names: dict[str, str] = {}
    for name, found in stems.items():
        names[name] = _fresh("_and_".join(dict.fromkeys(found)), taken) if found else name
        taken.add(names[name])
    if all(name == old for old, name in names.items()):
        return function
    renamed = rebuilt(function, lambda n: ir.Const(names[n.name]) if isinstance(n, ir.Const) else n)
    return replace(renamed, constants=tuple(replace(c, name=names[c.name]) for c in function.constants))
