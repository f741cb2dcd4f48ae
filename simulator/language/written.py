"""The normal form written back as expressions, for a reader."""

from __future__ import annotations

from simulator.language.ir import Call, Choose, Compare, Const, Expr, Field, Local, Neg, Number, Op, walk
from simulator.language.normal import Monomial, Normal, Polynomial, scaled

LARGEST = 200  # nodes of an atom; a larger one is left out as `...`


class Written:
    """Expressions of one normal form, each atom's made once."""

    def __init__(self, normal: Normal) -> None:
        self.normal = normal
        self._atoms: list[Expr] = []  # operands first, as in the normal form: nothing recurses far

    def expression(self, p: Polynomial) -> Expr:
        """The polynomial as an expression, in the order in which its atoms came."""
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
        """`gap > 0` (or another comparison) with its negative terms on the right."""
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
