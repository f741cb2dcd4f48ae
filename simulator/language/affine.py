"""Which constants of a method enter affinely once the branch of every max, min and conditional is taken, and the
feature vectors of the dot products that remain.

The host knows latency as such dot products: beta * features for a step, alpha * features for the delay before the
queue. Constants inside calls, divisors, powers and conditions are not of them, nor is, of two that multiply each other,
the one that multiplies more.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations, islice

from simulator.language.ir import Compare, Expr, Function
from simulator.language.normal import BRANCHES, Monomial, Normal, Polynomial, collected, reachable
from simulator.language.unparse import spell, spell_condition
from simulator.language.written import Written

MOST_PIECES = 16  # that are written out


@dataclass(frozen=True, slots=True)
class Term:
    """A product of a dot product: the constant (None where the feature stands alone) and what it multiplies."""

    constant: str | None
    feature: Expr


@dataclass(frozen=True, slots=True)
class Piece:
    """One branch assignment: what was taken, and the dot product there."""

    taken: tuple[str, ...]
    terms: tuple[Term, ...]


@dataclass(frozen=True)
class Affine:
    """`linear`, `outer`: names of the constants that enter affinely, and of the others. `pieces`: the dot product of
    each branch assignment, of the first MOST_PIECES; `complete` whether those are all. `whole`: no branches, and every
    constant affine."""

    linear: tuple[str, ...]
    outer: tuple[str, ...]
    pieces: tuple[Piece, ...]
    complete: bool

    @property
    def whole(self) -> bool:
        return not self.outer and self.complete and len(self.pieces) == 1


def affine(function: Function) -> Affine:
    """The analysis of one method."""
    normal = Normal(expand=False)
    root = normal.function(function)
    outer, written = _outer(normal, root), Written(normal)
    first = list(islice(_pieces(written, root), MOST_PIECES + 1))
    pieces = tuple(Piece(taken, _terms(written, p, outer)) for taken, p in first[:MOST_PIECES])
    names = [c.name for c in function.constants]
    linear = tuple(name for name in names if name not in outer)
    return Affine(linear, tuple(name for name in names if name in outer), pieces, len(first) <= MOST_PIECES)


def _outer(normal: Normal, root: Polynomial) -> set[str]:
    """Constants that are not affine on any branch; of two that multiply each other, the one in more such pairs."""
    outer: set[str] = set()
    pairs: set[tuple[str, str]] = set()
    inside: dict[int, set[str]] = {}

    def visit(p: Polynomial) -> set[str]:
        """Constants that enter the polynomial affinely as far as is known; notes the others and the pairs."""
        found: set[str] = set()
        for m, _ in p:
            parts = [atom(i, power) for i, power in m]
            for a, b in combinations(parts, 2):
                pairs.update((x, y) for x in a for y in b)
            found.update(*parts)
        return found

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

    for i in reachable(normal, root):  # operands first: nothing recurses far
        atom(i, 1)
    visit(root)
    while clashes := [pair for pair in pairs if outer.isdisjoint(pair)]:
        often = Counter(name for pair in sorted(clashes) for name in sorted(set(pair)))
        outer.add(max(sorted(often), key=lambda name: often[name]))
    return outer


def _pieces(written: Written, root: Polynomial) -> Iterator[tuple[tuple[str, ...], Polynomial]]:
    """Every branch assignment of the polynomial with what it leaves."""
    normal = written.normal
    waiting: list[tuple[tuple[str, ...], Polynomial]] = [((), root)]
    while waiting:
        taken, p = waiting.pop()
        open_ = [i for m, _ in p for i, power in m if power == 1 and normal.atoms[i].kind in BRANCHES]
        if not open_:
            yield taken, p
            continue
        branch = max(open_)  # the outermost: what is inside it may be open elsewhere too, and is then taken once
        for label, choice in reversed(_choices(written, branch)):
            rest: list[tuple[Monomial, float]] = []
            for m, c in p:
                if (branch, 1) in m:
                    others = tuple(entry for entry in m if entry != (branch, 1))
                    rest += normal.product(((others, c),), choice)
                else:
                    rest.append((m, c))
            waiting.append(((*taken, label), collected(rest)))


def _choices(written: Written, branch: int) -> list[tuple[str, Polynomial]]:
    a = written.normal.atoms[branch]
    if a.kind in ("max", "min"):
        return [(f"{a.kind} is {spell(written.expression(arg))}", arg) for arg in a.args]
    gap, then, other = a.args
    test, contrary = (">", "<=") if a.kind == "positive" else ("==", "!=")
    condition = written.condition(test, gap)
    opposite = Compare(contrary, condition.left, condition.right)
    return [(spell_condition(condition), then), (spell_condition(opposite), other)]


def _terms(written: Written, p: Polynomial, outer: set[str]) -> tuple[Term, ...]:
    """The dot product: the feature of each affine constant, in order of the text, then what has none."""
    atoms = written.normal.atoms
    features: dict[str | None, list[tuple[Monomial, float]]] = {}
    for m, c in p:
        linear = [i for i, _ in m if atoms[i].kind == "const" and atoms[i].name not in outer]
        name = atoms[linear[0]].name if linear else None
        rest = tuple(entry for entry in m if entry[0] not in linear)
        features.setdefault(name, []).append((rest, c))
    alone = features.pop(None, None)
    found = [Term(name, written.expression(collected(feature))) for name, feature in features.items()]
    return (*found, Term(None, written.expression(collected(alone)))) if alone else tuple(found)
