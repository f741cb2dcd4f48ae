"""A method as dot products: its affine constants and their features on each branch of its max, min and conditionals.

The host describes latency by such dot products: beta * features for a step, alpha * features for the delay before the
queue. Constants inside calls, divisors, powers and conditions are not affine. Of two constants that multiply each
other, the one that multiplies more others is not.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from itertools import combinations, islice

from simulator.language.ir import Call, Choose, Compare, Const, Expr, Field, Function, Local, Neg, Number, Op, walk
from simulator.language.normal import BRANCHES, Monomial, Normal, Polynomial, collected, reachable, scaled, unexpanded
from simulator.language.unparse import spell, spell_condition

LARGEST = 200  # nodes of an atom that is written back; a larger one becomes `...`
MOST_PIECES = 16  # branch assignments that are written out


@dataclass(frozen=True, slots=True)
class Term:
    """A term of a dot product: the constant (None for a feature without one) and the feature it multiplies."""

    constant: str | None
    feature: Expr


@dataclass(frozen=True, slots=True)
class Piece:
    """A branch assignment: the branches taken, and the dot product there."""

    taken: tuple[str, ...]
    terms: tuple[Term, ...]


@dataclass(frozen=True)
class Affine:
    """The affine structure of a method."""

    linear: tuple[str, ...]  # constants that enter affinely
    outer: tuple[str, ...]  # the other constants
    _normal: Normal = field(repr=False)
    _root: Polynomial = field(repr=False)

    @property
    def pieces(self) -> tuple[Piece, ...]:
        """The first MOST_PIECES branch assignments."""
        return self._written_out[0]

    @property
    def complete(self) -> bool:
        """True if those are all."""
        return self._written_out[1]

    @cached_property
    def _written_out(self) -> tuple[tuple[Piece, ...], bool]:
        """`pieces` and `complete`, on demand: a fit asks for the names of the constants alone."""
        written, outer = WrittenTerm(self._normal), set(self.outer)
        first = list(islice(_pieces(written, self._root), MOST_PIECES + 1))
        pieces = tuple(Piece(taken, _terms(written, p, outer)) for taken, p in first[:MOST_PIECES])
        return pieces, len(first) <= MOST_PIECES

    @property
    def whole(self) -> bool:
        """True if the method is one dot product: no branches, and every constant affine."""
        return not self.outer and self.complete and len(self.pieces) == 1


def affine(function: Function) -> Affine:
    """The affine structure of a method.

    >>> a = affine(parse("def step_time(b, s, *, c=2.0, d=3.0): return max(c * b.tokens, sqrt(d))").functions[0])
    >>> a.linear, a.outer, [piece.taken for piece in a.pieces]
    (('c',), ('d',), [('max is c * b.tokens',), ('max is sqrt(d)',)])
    """
    normal, root = unexpanded(function)
    outer = _outer(normal, root)
    names = [c.name for c in function.constants]
    linear = tuple(name for name in names if name not in outer)
    return Affine(linear, tuple(name for name in names if name in outer), normal, root)


def thresholds(function: Function) -> set[str]:
    """The constants that occur in conditions alone: they choose between values and are part of none."""
    normal, root = unexpanded(function)
    values, seen, names = [root], set[int](), set[str]()
    for p in values:  # grows while it is walked
        for i in {i for m, _ in p for i, _ in m} - seen:
            atom = normal.atoms[i]
            seen.add(i)
            names.add(atom.name)
            values += atom.args[1:] if atom.kind in ("positive", "zero") else atom.args
    return {c.name for c in function.constants} - names


def _outer(normal: Normal, root: Polynomial) -> set[str]:
    """The constants that are not affine; of two that multiply each other, the one in more such pairs."""
    outer: set[str] = set()
    pairs: set[tuple[str, str]] = set()  # constants that multiply each other
    inside: dict[int, set[str]] = {}  # atom -> constants in it

    def visit(p: Polynomial) -> set[str]:
        """The constants in the polynomial. Adds to `outer` and `pairs`."""
        names: set[str] = set()
        for m, _ in p:
            parts = [atom(i, power) for i, power in m]
            for a, b in combinations(parts, 2):
                pairs.update((x, y) for x in a for y in b)
            names.update(*parts)
        return names

    def atom(i: int, power: int) -> set[str]:
        if i not in inside:
            a = normal.atoms[i]
            inside[i] = {a.name} if a.kind == "const" else set().union(*map(visit, a.args))
            if a.kind in ("positive", "zero"):
                outer.update(
                    normal.atoms[n].name for n in reachable(normal, a.args[0]) if normal.atoms[n].kind == "const"
                )
            elif a.kind not in ("const", "max", "min"):
                outer.update(inside[i])
        if power != 1:
            outer.update(inside[i])
        return inside[i]

    for i in reachable(normal, root):  # operands first, so that nothing recurses far
        atom(i, 1)
    visit(root)
    while clashes := [pair for pair in pairs if outer.isdisjoint(pair)]:
        often = Counter(name for pair in sorted(clashes) for name in sorted(set(pair)))
        outer.add(max(sorted(often), key=lambda name: often[name]))
    return outer


def _pieces(written: WrittenTerm, root: Polynomial) -> Iterator[tuple[tuple[str, ...], Polynomial]]:
    """Every branch assignment of the polynomial, with the polynomial that it leaves."""
    normal = written.normal
    waiting: list[tuple[tuple[str, ...], Polynomial]] = [((), root)]
    while waiting:
        taken, p = waiting.pop()
        open_ = [i for m, _ in p for i, power in m if power == 1 and normal.atoms[i].kind in BRANCHES]
        if not open_:
            yield taken, p
            continue
        branch = max(open_)  # the outermost first: a branch inside it may occur elsewhere too, and is taken only once
        for label, choice in reversed(_choices(written, branch)):
            rest: list[tuple[Monomial, float]] = []
            for m, c in p:
                if (branch, 1) in m:
                    others = tuple(entry for entry in m if entry != (branch, 1))
                    rest += normal.product(((others, c),), choice)
                else:
                    rest.append((m, c))
            waiting.append(((*taken, label), collected(rest)))


def _choices(written: WrittenTerm, branch: int) -> list[tuple[str, Polynomial]]:
    """The ways to take a branch, each with a label and the value."""
    a = written.normal.atoms[branch]
    if a.kind in ("max", "min"):
        return [(f"{a.kind} is {spell(written.expression(arg))}", arg) for arg in a.args]
    gap, then, other = a.args
    test, contrary = (">", "<=") if a.kind == "positive" else ("==", "!=")
    condition = written.condition(test, gap)
    opposite = Compare(contrary, condition.left, condition.right)
    return [(spell_condition(condition), then), (spell_condition(opposite), other)]


def _terms(written: WrittenTerm, p: Polynomial, outer: set[str]) -> tuple[Term, ...]:
    """The dot product: the feature of each affine constant in order of the text, then the term without one."""
    atoms = written.normal.atoms
    features: dict[str | None, list[tuple[Monomial, float]]] = {}
    for m, c in p:
        linear = [i for i, _ in m if atoms[i].kind == "const" and atoms[i].name not in outer]
        name = atoms[linear[0]].name if linear else None
        rest = tuple(entry for entry in m if entry[0] not in linear)
        features.setdefault(name, []).append((rest, c))
    alone = features.pop(None, None)
    terms = [Term(name, written.expression(collected(feature))) for name, feature in features.items()]
    return (*terms, Term(None, written.expression(collected(alone)))) if alone else tuple(terms)


class WrittenTerm:
    """Polynomials of a normal form written back as expressions, for a reader."""

    def __init__(self, normal: Normal) -> None:
        self.normal = normal
        self._atoms: list[Expr] = []  # each made once, operands first as in the normal form, so that nothing recurses

    def expression(self, p: Polynomial) -> Expr:
        """The polynomial as an expression, its terms in the order in which their atoms came up."""
        if not p:
            return Number(0.0)
        for i in range(len(self._atoms), 1 + max((i for m, _ in p for i, _ in m), default=-1)):
            made = self._made(i)
            small = sum(1 for _ in zip(walk(made), range(LARGEST + 1), strict=False)) <= LARGEST
            self._atoms.append(made if small else Local("..."))
        (first, c), *rest = p
        total = self._monomial(first, abs(c))
        total = total if c > 0 else Neg(total)
        for m, c in rest:
            total = Op("+" if c > 0 else "-", total, self._monomial(m, abs(c)))
        return total

    def condition(self, op: str, gap: Polynomial) -> Compare:
        """The condition `gap > 0` (or another comparison with 0), with negative terms on the right."""
        left = tuple((m, c) for m, c in gap if c > 0)
        right = scaled(tuple((m, c) for m, c in gap if c < 0), -1.0)
        return Compare(op, self.expression(left), self.expression(right))

    def _monomial(self, m: Monomial, c: float) -> Expr:
        above = [factor for i, power in m for factor in self._power(i, max(power, int(power == 0)))]
        below = [factor for i, power in m for factor in self._power(i, max(-power, int(power == 0)))]
        product, *factors = above if c == 1.0 and above else [Number(c), *above]
        for factor in factors:
            product = Op("*", product, factor)
        for factor in below:
            product = Op("/", product, factor)
        return product

    def _power(self, i: int, n: int) -> list[Expr]:
        return [self._atoms[i]] * n if n <= 4 else [Call("pow", (self._atoms[i], Number(float(n))))]

    def _made(self, i: int) -> Expr:
        """Atom `i` as an expression, from those before it."""
        a = self.normal.atoms[i]
        if a.kind == "const":
            return Const(a.name)
        if a.kind == "field":
            scope, _, name = a.name.partition(".")
            return Field(scope, name)
        args = tuple(map(self.expression, a.args))
        match a.kind:
            case "inverse":
                return Op("/", Number(1.0), args[0])
            case "product":
                return Op("*", args[0], args[1])
            case "positive" | "zero":
                return Choose(self.condition(">" if a.kind == "positive" else "==", a.args[0]), args[1], args[2])
            case name:
                return Call(name, args)
