"""Units through a whole program: every wildcard is solved for, or the two sides that do not fit are named.

There is one unknown unit for each constant without an annotation. Adding, comparing and choosing equate two units, a
product adds them; `exp`, `log`, `log1p` and an exponent take pure numbers; a method returns microseconds. A bare 0 has
any unit; a bare 1, 2 or 0.5 that of what it is added to or compared with, and is a pure number as a factor. The unit
of `pow(x, c)` has the exponent c itself, which only another unknown, or the same power, can cancel.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

from simulator.language import units
from simulator.language.forms import ONE, US, Form, Key, Unknown, form_of, plus, scaled, spell_form
from simulator.language.ir import (
    Call,
    Choose,
    Compare,
    Const,
    Expr,
    Field,
    Function,
    Guard,
    Let,
    Local,
    Neg,
    Number,
    Op,
    Program,
    rebuild,
    walk,
)
from simulator.language.source import ProgramError
from simulator.language.unparse import spell
from simulator.schema import FIELDS

SHOWN = 60  # characters of an expression or a unit in a complaint
UNSPELLABLE = "by a constant without a unit"  # where an annotation cannot say which
LIFTED = re.compile(r"k\d+")  # how the reader calls a number in a formula that became a constant


class UnitError(ProgramError):
    """Two sides of a program that cannot have the same unit. Message: `where:line: units: sides: remedy`."""


@dataclass(frozen=True, slots=True)
class Clash:
    """Two sides that do not fit: the line of the text (0 where it came from none) and what to do about it."""

    line: int
    why: str


@dataclass(frozen=True)
class Inference:
    """The unit of every constant of a function, as text; None where the program leaves it open; and what does not
    fit."""

    units: Mapping[str, str | None]
    clashes: tuple[Clash, ...]


def check_units(program: Program, where: str) -> Program:
    """The program itself, or UnitError with the first clash of its methods."""
    for function in program.functions:
        for clash in infer(function).clashes:
            raise UnitError(f"{where}:{clash.line or 1}: units: {clash.why}")
    return program


def infer(function: Function) -> Inference:
    """Solve for the units of a function's constants."""
    solver = _Solver(function)
    for statement in function.body:
        match statement:
            case Let(name, value, line):
                solver.line = line
                solver.locals[name] = solver.unit(value, bare=True)
            case Guard(condition, value, line):
                solver.line = line
                solver.compare(condition)
                solver.returned(value)
    solver.line = function.line
    solver.returned(function.result)
    found: dict[str, str | None] = {}
    for c in function.constants:
        form = solver.reduced(solver.constants[c.name])
        found[c.name] = None if any(isinstance(key, str) for key in form) else spell_form(form)
    return Inference(found, tuple(solver.clashes))


class _Solver:
    """Gaussian elimination as the expression is walked: each equation determines one unknown or must hold already."""

    def __init__(self, function: Function) -> None:
        self.method = function.name
        self.constants: dict[str, Form] = {
            c.name: form_of(c.unit) if c.unit is not None else {c.name: Fraction(1)} for c in function.constants
        }
        self.annotated = [c.name for c in function.constants if c.unit is not None]
        self.numbered: dict[str, Expr] = {
            c.name: Number(c.value) for c in function.constants if c.unit is None and LIFTED.fullmatch(c.name)
        }
        self.locals: dict[str, Form] = {}
        self.known: dict[Unknown, Form] = {}  # in terms of what was unknown at the time: never a circle
        self.raised: dict[Unknown, tuple[Unknown, str]] = {}  # unknown u**c -> u, c
        self.clashes: list[Clash] = []
        self.line = 0
        self.numbers = 0

    def reduced(self, form: Form) -> Form:
        """The form with every unknown that is determined replaced."""
        while solved := next((key for key in form if isinstance(key, str) and key in self.known), None):
            n = form[solved]
            form = plus({key: m for key, m in form.items() if key != solved}, scaled(self.known[solved], n), 1)
        return form

    def same(self, left: Form, right: Form) -> bool:
        """Make two forms equal; False if no choice of the unknowns does."""
        gap = self.reduced(plus(left, right, -1))
        open_ = [key for key in gap if isinstance(key, str)]
        if not open_:
            return not gap
        chosen = min(open_, key=lambda key: (not key.startswith("#"), key))  # a number's unit rather than a constant's
        self.known[chosen] = rest = {key: -n / gap[chosen] for key, n in gap.items() if key != chosen}
        root, exponent = self.raised.get(chosen, (None, ""))
        if root and root not in self.known and all(isinstance(key, tuple) and key[-1] == exponent for key in rest):
            self.known[root] = {key[:-1]: n for key, n in rest.items()}  # u**c = token**c: u is token
        return True

    def clash(self, why: str, *sides: Expr) -> None:
        """Note what does not fit; a side that holds a constant with a unit may be wrong about it."""
        held = {n.name for side in sides for n in walk(side) if isinstance(n, Const)}
        doubted = [name for name in self.annotated if name in held]
        change = "leave out" if why.endswith(UNSPELLABLE) else "correct"
        self.clashes.append(Clash(self.line, why + (f", or {change} the unit of {doubted[0]}" if doubted else "")))

    def returned(self, value: Expr) -> None:
        form = self.unit(value, bare=True)
        if not self.same(form, US):
            remedy = self._factor("it", form, US)
            self.clash(f"{self.method} returns us, {self._side(value)} is {self._text(form)}: {remedy}", value)

    def compare(self, condition: Compare) -> None:
        self._sides("compare", condition.left, condition.right)

    def _sides(self, verb: str, left: Expr, right: Expr) -> Form:
        return self._equal(verb, left, self.unit(left, bare=True), right)

    def _equal(self, verb: str, left: Expr, a: Form, right: Expr) -> Form:
        b = self.unit(right, bare=True)
        if not self.same(a, b):
            sides = f"{self._side(left)} ({self._text(a)}) and {self._side(right)} ({self._text(b)})"
            first = self.reduced(b) == US  # towards the time that is wanted in the end
            remedy = self._factor("the first", a, b) if first else self._factor("the second", b, a)
            self.clash(f"cannot {verb} {sides}: {remedy}", left, right)
        return a

    def _factor(self, what: str, form: Form, goal: Form) -> str:
        ratio = self.reduced(plus(goal, form, -1))
        if any(isinstance(key, str) or len(key) > 1 or n.denominator > 1 for key, n in ratio.items()):
            return f"multiply {what} {UNSPELLABLE}"
        return f"multiply {what} by a constant of {_cut(spell_form(ratio))}"

    def _text(self, form: Form) -> str:
        return _cut(spell_form(self.reduced(form)))

    def _side(self, node: Expr) -> str:
        """The expression as it was written, numbers that became constants as numbers, cut short."""
        return _cut(spell(rebuild(node, lambda n: self.numbered.get(n.name, n) if isinstance(n, Const) else n)))

    def pure(self, what: str, value: Expr) -> None:
        form = self.unit(value, bare=True)
        if not self.same(form, ONE):
            text = self._text(form)
            why = f"{what} takes a pure number (one), {self._side(value)} is {text}: divide it by a constant of {text}"
            self.clash(why, value)

    def unit(self, node: Expr, *, bare: bool = False) -> Form:
        """The unit of an expression; `bare` where a number would take the unit of its surroundings."""
        match node:
            case Number(value):
                if value != 0.0 and not bare:
                    return ONE
                self.numbers += 1
                return {f"#{self.numbers}": Fraction(1)}
            case Const(name):
                return self.constants[name]
            case Local(name):
                return self.locals[name]
            case Field(scope, name):
                return form_of(units.read(FIELDS[scope, name].unit))
            case Neg(value):
                return self.unit(value, bare=bare)
            case Op("*", left, right):
                return plus(self.unit(left), self.unit(right), 1)
            case Op("/", left, right):
                return plus(self.unit(left), self.unit(right), -1)
            case Op(op, left, right):
                return self._sides("add" if op == "+" else "subtract", left, right)
            case Call("max" | "min", args):
                first = self.unit(args[0], bare=True)
                for other in args[1:]:
                    self._equal("take the larger or smaller of", args[0], first, other)
                return first
            case Call("sqrt", (arg,)):
                return scaled(self.unit(arg), Fraction(1, 2))
            case Call("pow", (base, exponent)):
                return self._power(base, exponent)
            case Call(name, (arg,)):
                self.pure(name, arg)
                return ONE
            case Choose(condition, then, other):
                self.compare(condition)
                return self._sides("choose between", then, other)
        raise AssertionError(node)

    def _power(self, base: Expr, exponent: Expr) -> Form:
        form, sign, inner = self.unit(base), 1, exponent
        while isinstance(inner, Neg):
            sign, inner = -sign, inner.value
        if isinstance(inner, Number):
            return scaled(form, Fraction(inner.value) * sign)
        assert isinstance(inner, Const)
        self.pure("the exponent of pow", inner)
        power: dict[Key, Fraction] = {}
        for key, n in self.reduced(form).items():
            if isinstance(key, str):
                unknown = f"{key}**{inner.name}"
                self.raised[unknown] = key, inner.name
                power[unknown] = n * sign
            else:
                power[(*key, inner.name)] = n * sign
        return power


def _cut(text: str) -> str:
    return text if len(text) <= SHOWN else f"{text[: SHOWN - 3]}..."
