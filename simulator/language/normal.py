"""The normal form of a method: one polynomial over atoms, in which algebraic duplicates coincide.

    polynomial = sum of coefficient * monomial
    monomial   = product of atom**power
    atom       = constant | field | call | choice | inverse of a sum | product too large to expand

Assignments are written out, early returns become choices, products of sums are expanded, equal terms collected, nested
`max` and `min` flattened, comparisons brought to `difference > 0` or `difference = 0`. Division is the guarded one
(x/0 = 0). Its inverse obeys x * x * (1/x) = x and (1/x) * (1/y) = 1/(x*y), but x * (1/x) is 1 or 0: such an atom is
kept, with power 0. A program and its normal form are equal in real arithmetic; in float64 the last bit may differ.

Atoms are numbered in the order in which they come up, and equal ones share a number. So a polynomial is a small tuple
of numbers even where every assignment doubles the one before.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache

from simulator.language import ir
from simulator.language.evaluate import FUNCTIONS
from simulator.language.ir import Expr, Function
from simulator.language.opcodes import formula
from simulator.schema import READABLE

Monomial = tuple[tuple[int, int], ...]  # (atom, power), by atom; negative powers are those of the guarded inverse
Polynomial = tuple[tuple[Monomial, float], ...]  # (monomial, coefficient), by monomial; () is 0

BRANCHES = ("max", "min", "positive", "zero")  # kinds of atoms that take one of several values
MAX_TERMS = 64  # of a product that is expanded; a larger one is an atom
ZERO: Polynomial = ()


@dataclass(frozen=True, slots=True)
class Atom:
    """A factor of monomials that is not looked into.

    `kind` is `const` or `field` (with a name), a function of the language (with args), `inverse` (of args[0]),
    `product` (of args), or `positive` or `zero` (args: difference, then, other), which is `then` where the difference
    is > 0 or = 0.
    """

    kind: str
    name: str = ""
    args: tuple[Polynomial, ...] = ()


def number(value: float) -> Polynomial:
    """The polynomial of a number."""
    return (((), value),) if value else ZERO


def _as_number(p: Polynomial) -> float | None:
    """The value of a polynomial without atoms, else None."""
    if not p:
        return 0.0
    return p[0][1] if len(p) == 1 and not p[0][0] else None


def scaled(p: Polynomial, factor: float) -> Polynomial:
    """The polynomial times a number."""
    if factor == 1.0:
        return p
    return tuple((m, c * factor) for m, c in p) if factor else ZERO


def collected(terms: Iterable[tuple[Monomial, float]]) -> Polynomial:
    """The sum of the terms, with equal monomials added up."""
    sums: dict[Monomial, float] = {}
    for m, c in terms:
        sums[m] = sums.get(m, 0.0) + c
    return tuple(sorted((m, c) for m, c in sums.items() if c))


def plus(p: Polynomial, q: Polynomial, sign: float = 1.0) -> Polynomial:
    """The polynomial p + sign * q."""
    return collected([*p, *scaled(q, sign)])


def _join(a: Monomial, b: Monomial) -> Monomial:
    powers = dict(a)
    for atom, power in b:
        powers[atom] = powers.get(atom, 0) + power
    return tuple(sorted(powers.items()))


class Normal:
    """Atoms by number, operands before what is made of them, and the polynomials of expressions over them.

    `expand`: write derived batch fields out by their formulas, `written` by name. `values`: numbers for constants (by
    name) and fields (by scope and name) whose values are known.
    """

    def __init__(
        self,
        *,
        expand: bool = True,
        values: Mapping[str | tuple[str, str], float] | None = None,
        written: Callable[[str], Expr] = formula,
    ) -> None:
        self.expand = expand
        self.written = written
        self.values = values or {}
        self.atoms: list[Atom] = []
        self._numbers: dict[Atom, int] = {}
        self._fields: dict[tuple[str, str], Polynomial] = {}

    def function(self, function: Function) -> Polynomial:
        """The polynomial of a method's result."""
        names: dict[str, Polynomial] = {}
        guards: list[tuple[ir.Compare, dict[str, Polynomial], Polynomial]] = []
        for statement in function.body:
            match statement:
                case ir.Let(name, value):
                    names[name] = self.of(value, names)
                case ir.Guard(condition, value):
                    guards.append((condition, dict(names), self.of(value, names)))
        result = self.of(function.result, names)
        for condition, names_then, early in reversed(guards):
            result = self._choice(condition, early, result, names_then)
        return result

    def of(self, node: Expr, names: Mapping[str, Polynomial]) -> Polynomial:
        """The polynomial of an expression with the locals `names`."""
        match node:
            case ir.Number(value):
                return number(value)
            case ir.Local(name):
                return names[name]
            case ir.Const(name):
                fixed = self.values.get(name)
                return self._atom(Atom("const", name)) if fixed is None else number(fixed)
            case ir.Field(scope, name):
                return self._field(scope, name)
            case ir.Neg(value):
                return scaled(self.of(value, names), -1.0)
            case ir.Op("+" | "-" as op, left, right):
                return plus(self.of(left, names), self.of(right, names), 1.0 if op == "+" else -1.0)
            case ir.Op("*", left, right):
                return self.product(self.of(left, names), self.of(right, names))
            case ir.Op(_, left, right):
                return self.product(self.of(left, names), self._inverse(self.of(right, names)))
            case ir.Call("max" | "min" as name, args):
                return self._extreme(name, [self.of(a, names) for a in args])
            case ir.Call(name, args):
                return self._call(name, tuple(self.of(a, names) for a in args))
            case ir.Choose(condition, then, other):
                return self._choice(condition, self.of(then, names), self.of(other, names), names)
        raise AssertionError(node)

    def _atom(self, atom: Atom) -> Polynomial:
        i = self._numbers.setdefault(atom, len(self.atoms))
        if i == len(self.atoms):
            self.atoms.append(atom)
        return ((((i, 1),), 1.0),)

    def _single(self, p: Polynomial) -> Atom | None:
        """The atom, if the polynomial is a single one."""
        if len(p) == 1 and p[0][1] == 1.0 and len(p[0][0]) == 1 and p[0][0][0][1] == 1:
            return self.atoms[p[0][0][0][0]]
        return None

    def _field(self, scope: str, name: str) -> Polynomial:
        if (scope, name) not in self._fields:
            fixed = self.values.get((scope, name))
            written_out = self.expand and scope == "b" and bool(READABLE[scope, name].formula)
            if fixed is not None:
                value = number(fixed)
            else:
                value = self.of(self.written(name), {}) if written_out else self._atom(Atom("field", f"{scope}.{name}"))
            self._fields[scope, name] = value
        return self._fields[scope, name]

    def product(self, p: Polynomial, q: Polynomial) -> Polynomial:
        """The product of two polynomials: expanded, or an atom if it has too many terms or would overflow."""
        if len(p) * len(q) <= max(MAX_TERMS, len(p), len(q)):
            expanded = collected((_join(a, b), x * y) for a, x in p for b, y in q)
            if all(math.isfinite(c) for _, c in expanded):
                return expanded
        return self._atom(Atom("product", args=tuple(sorted((p, q)))))

    def _inverse(self, p: Polynomial) -> Polynomial:
        """The guarded inverse; that of a sum is an atom."""
        if not p:
            return ZERO
        if len(p) == 1:
            m, c = p[0]
            return ((tuple((atom, -power) for atom, power in m), 1.0 / c),)
        # Sums that differ by a factor share their inverse: the atom is that of the sum with a largest coefficient of 1.
        scale = max(abs(c) for _, c in p)
        return scaled(self._atom(Atom("inverse", args=(scaled(p, 1.0 / scale),))), 1.0 / scale)

    def _extreme(self, name: str, args: list[Polynomial]) -> Polynomial:
        parts: set[Polynomial] = set()
        for arg in args:
            inside = self._single(arg)
            parts.update(inside.args if inside is not None and inside.kind == name else (arg,))
        numbers = [x for x in map(_as_number, parts) if x is not None]
        if len(numbers) > 1:
            pick = max(numbers) if name == "max" else min(numbers)
            parts = {p for p in parts if _as_number(p) is None} | {number(pick)}
        ordered = sorted(parts)
        return ordered[0] if len(ordered) == 1 else self._atom(Atom(name, args=tuple(ordered)))

    def _call(self, name: str, args: tuple[Polynomial, ...]) -> Polynomial:
        values = [_as_number(a) for a in args]
        if name == "pow" and values[1] == 0.0:
            return number(1.0)
        if name == "pow" and values[1] == 0.5:
            return self._call("sqrt", args[:1])
        if name != "pow" and values[0] is not None:
            return number(FUNCTIONS[name](values[0]))
        if name == "pow" and values[0] is not None and values[1] is not None:
            power = FUNCTIONS[name](values[0], values[1])
            if math.isfinite(power):
                return number(power)
        return self._atom(Atom(name, args=args))

    def _choice(
        self, condition: ir.Compare, then: Polynomial, other: Polynomial, names: Mapping[str, Polynomial]
    ) -> Polynomial:
        left, right = self.of(condition.left, names), self.of(condition.right, names)
        if condition.op in ("<", ">="):
            left, right = right, left
        if condition.op in ("<=", ">=", "!="):
            then, other = other, then
        gap = plus(left, right, -1.0)
        kind = "zero" if condition.op in ("==", "!=") else "positive"
        value = _as_number(gap)
        if value is not None:
            return then if (value == 0.0 if kind == "zero" else value > 0.0) else other
        if then == other:
            return then
        gap = scaled(gap, 1.0 / max(abs(c) for _, c in gap))
        return self._atom(Atom(kind, args=(gap, then, other)))


def unexpanded(function: Function) -> tuple[Normal, Polynomial]:
    """The normal form of a method in which derived fields stay as they are: atoms and polynomial, not to be changed.

    It is remembered for a while, because a search asks for that of one method several times in a row.
    """
    return _unexpanded(function.body, function.result)  # names, values and lines change nothing


@lru_cache(maxsize=128)
def _unexpanded(body: tuple[ir.Let | ir.Guard, ...], result: Expr) -> tuple[Normal, Polynomial]:
    normal = Normal(expand=False)
    return normal, normal.function(Function("", (), body, result))


def reachable(normal: Normal, root: Polynomial) -> list[int]:
    """The numbers of the atoms that the polynomial is made of, operands first."""
    needed: set[int] = set()
    waiting = [atom for m, _ in root for atom, _ in m]
    while waiting:
        i = waiting.pop()
        if i not in needed:
            needed.add(i)
            waiting += [atom for arg in normal.atoms[i].args for m, _ in arg for atom, _ in m]
    return sorted(needed)
