"""Unit inference: solve for the units that a program leaves open, or name the two sides that do not fit.

Each constant without an annotation has one unknown unit. Adding, comparing and choosing equate two units; a product
adds them; `exp`, `log`, `log1p`, `softplus` and exponents take pure numbers; a method returns microseconds. A bare 0
has any unit. A bare 1, 2 or 0.5 has the unit of what it is added to or compared with, and as a factor it is a pure
number. The unit of `pow(x, c)` has c as an exponent, which only another unknown or the same power can cancel.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cache

from simulator.language import ir, units
from simulator.language.ir import Expr, Function, Program, rebuild, walk
from simulator.language.source import ProgramError
from simulator.language.units import Form, Key, Unit, Unknown
from simulator.language.unparse import spell
from simulator.schema import READABLE

SHOWN = 60  # characters of an expression or a unit in a message
UNSPELLABLE = "by a constant without a unit"  # where no annotation can spell the unit
LIFTED = re.compile(r"k\d+")  # name that the reader gives to a number in a formula


class UnitError(ProgramError):
    """Two sides of a program that cannot have the same unit. Message: `where:line: units: sides: remedy`."""


@dataclass(frozen=True, slots=True)
class Clash:
    """Two sides that do not fit: their line in the text (0 if there is no text), and what is wrong and what to do.

    side: the one that a constant of the right unit would correct; None for an exponent.
    """

    line: int
    why: str
    side: Expr | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True)
class Inference:
    """The unit of every constant of a function, as text or None where it is left open, and the sides that clash."""

    units: Mapping[str, str | None]
    clashes: tuple[Clash, ...]


def check_units(program: Program, where: str) -> Program:
    """The program itself. Raises UnitError with the first clash of its methods."""
    for function in program.functions:
        for clash in infer(function).clashes:
            raise UnitError(where, clash.line or 1, f"units: {clash.why}")
    return program


def infer(function: Function) -> Inference:
    """The units of a function's constants, solved for where they are not annotated.

    >>> infer(parse("def step_time(b, s, *, c=2.0): return c * b.tokens").functions[0]).units
    {'c': 'us/token'}
    """
    solver = _Solver(function.constants, function.name)
    for statement in function.body:
        match statement:
            case ir.Let(name, value, line):
                solver.line = line
                solver.locals[name] = solver.unit(value, bare=True)
            case ir.Guard(condition, value, line):
                solver.line = line
                solver.compare(condition)
                solver.returned(value)
    solver.line = function.line
    solver.returned(function.result)
    found: dict[str, str | None] = {}
    for c in function.constants:
        form = solver.reduced(solver.constants[c.name])
        found[c.name] = None if any(isinstance(key, str) for key in form) else units.spell_form(form)
    return Inference(found, tuple(solver.clashes))


def unit_of(node: Expr, constants: Mapping[str, ir.Constant]) -> Unit | None:
    """The unit of an expression without locals, or None where it is left open or has no integer exponents.

    >>> unit_of(expr("b.tokens / b.batch_size"), {})
    (0, 1, -1, 0, 0)
    """
    solver = _Solver(constants.values())
    return units.unit_of_form(solver.reduced(solver.unit(node, bare=True)))


class _Solver:
    """Gaussian elimination while an expression is walked: each equation determines an unknown, or must hold already."""

    def __init__(self, constants: Iterable[ir.Constant], method: str = "") -> None:
        constants = tuple(constants)
        self.method = method
        self.constants: dict[str, Form] = {
            c.name: units.form_of(c.unit) if c.unit is not None else {c.name: Fraction(1)} for c in constants
        }
        self.annotated = [c.name for c in constants if c.unit is not None]
        self.numbered: dict[str, Expr] = {
            c.name: ir.Number(c.value) for c in constants if c.unit is None and LIFTED.fullmatch(c.name)
        }
        self.locals: dict[str, Form] = {}
        self.solved: dict[Unknown, Form] = {}  # in terms of what was unknown at the time, so never circular
        self.raised: dict[Unknown, tuple[Unknown, str]] = {}  # unknown u**c -> u, c
        self.clashes: list[Clash] = []
        self.line = 0
        self.numbers = 0

    def reduced(self, form: Form) -> Form:
        """The form with every solved unknown replaced."""
        while unknown := next((key for key in form if isinstance(key, str) and key in self.solved), None):
            n = form[unknown]
            form = units.plus(
                {key: m for key, m in form.items() if key != unknown}, units.scaled(self.solved[unknown], n), 1
            )
        return form

    def same(self, left: Form, right: Form) -> bool:
        """Make two forms equal. False if no choice of the unknowns does."""
        gap = self.reduced(units.plus(left, right, -1))
        open_ = [key for key in gap if isinstance(key, str)]
        if not open_:
            return not gap
        chosen = min(open_, key=lambda key: (not key.startswith("#"), key))  # a number's unit rather than a constant's
        self.solved[chosen] = rest = {key: -n / gap[chosen] for key, n in gap.items() if key != chosen}
        root, exponent = self.raised.get(chosen, (None, ""))
        if root and root not in self.solved and all(isinstance(key, tuple) and key[-1] == exponent for key in rest):
            self.solved[root] = {key[:-1]: n for key, n in rest.items()}  # u**c = token**c: u is token
        return True

    def clash(self, why: str, side: Expr | None, *sides: Expr) -> None:
        """Note two sides that do not fit, see Clash. If one has an annotated constant, the remedy may be its
        annotation."""
        held = {n.name for side in sides for n in walk(side) if isinstance(n, ir.Const)}
        doubted = [name for name in self.annotated if name in held]
        change = "leave out" if why.endswith(UNSPELLABLE) else "correct"
        self.clashes.append(
            Clash(self.line, why + (f", or {change} the unit of {doubted[0]}" if doubted else ""), side)
        )

    def returned(self, value: Expr) -> None:
        """Require that a returned expression is in microseconds."""
        form = self.unit(value, bare=True)
        if not self.same(form, units.MICROSECONDS):
            remedy = self._factor("it", form, units.MICROSECONDS)
            self.clash(f"{self.method} returns us, {self._side(value)} is {self._text(form)}: {remedy}", value, value)

    def compare(self, condition: ir.Compare) -> None:
        """Require that both sides of a condition have the same unit."""
        self._sides("compare", condition.left, condition.right)

    def _sides(self, verb: str, left: Expr, right: Expr) -> Form:
        return self._equal(verb, left, self.unit(left, bare=True), right)

    def _equal(self, verb: str, left: Expr, a: Form, right: Expr) -> Form:
        b = self.unit(right, bare=True)
        if not self.same(a, b):
            sides = f"{self._side(left)} ({self._text(a)}) and {self._side(right)} ({self._text(b)})"
            first = self.reduced(b) == units.MICROSECONDS  # change the other side: a time is wanted in the end
            remedy = self._factor("the first", a, b) if first else self._factor("the second", b, a)
            self.clash(f"cannot {verb} {sides}: {remedy}", left if first else right, left, right)
            return b if first else a  # as if corrected, so that this is said once
        return a

    def _factor(self, what: str, form: Form, goal: Form) -> str:
        """The remedy that turns `form` into `goal`: multiply `what` by a constant of the right unit."""
        ratio = self.reduced(units.plus(goal, form, -1))
        if units.unit_of_form(ratio) is None:
            return f"multiply {what} {UNSPELLABLE}"
        return f"multiply {what} by a constant of {_cut(units.spell_form(ratio))}"

    def _text(self, form: Form) -> str:
        return _cut(units.spell_form(self.reduced(form)))

    def _side(self, node: Expr) -> str:
        """The expression as it was written, with numbers that became constants as numbers, cut short."""
        return _cut(spell(rebuild(node, lambda n: self.numbered.get(n.name, n) if isinstance(n, ir.Const) else n)))

    def pure(self, what: str, value: Expr, exponent: bool = False) -> None:
        """Require that the argument of `what` is a pure number."""
        form = self.unit(value, bare=True)
        if not self.same(form, units.PURE):
            text = self._text(form)
            why = f"{what} takes a pure number (one), {self._side(value)} is {text}: divide it by a constant of {text}"
            self.clash(why, None if exponent else value, value)

    def unit(self, node: Expr, *, bare: bool = False) -> Form:
        """The form of an expression. `bare`: a number here takes the unit of its surroundings."""
        match node:
            case ir.Number(value):
                if value != 0.0 and not bare:
                    return units.PURE
                self.numbers += 1
                return {f"#{self.numbers}": Fraction(1)}
            case ir.Const(name):
                return self.constants[name]
            case ir.Local(name):
                return self.locals[name]
            case ir.Field(scope, name):
                return _form_of_field(scope, name)
            case ir.Neg(value):
                return self.unit(value, bare=bare)
            case ir.Op("*", left, right):
                return units.plus(self.unit(left), self.unit(right), 1)
            case ir.Op("/", left, right):
                return units.plus(self.unit(left), self.unit(right), -1)
            case ir.Op(op, left, right):
                return self._sides("add" if op == "+" else "subtract", left, right)
            case ir.Call("max" | "min", args):
                first = self.unit(args[0], bare=True)
                for other in args[1:]:
                    self._equal("take the larger or smaller of", args[0], first, other)
                return first
            case ir.Call("sqrt", (arg,)):
                return units.scaled(self.unit(arg), Fraction(1, 2))
            case ir.Call("pow", (base, exponent)):
                return self._power(base, exponent)
            case ir.Call(name, (arg,)):
                self.pure(name, arg)
                return units.PURE
            case ir.Choose(condition, then, other):
                self.compare(condition)
                return self._sides("choose between", then, other)
        raise AssertionError(node)

    def _power(self, base: Expr, exponent: Expr) -> Form:
        """The form of `pow(base, exponent)`; the exponent is a number or a constant, either perhaps negated."""
        form, sign, inner = self.unit(base), 1, exponent
        while isinstance(inner, ir.Neg):
            sign, inner = -sign, inner.value
        if isinstance(inner, ir.Number):
            return units.scaled(form, Fraction(inner.value) * sign)
        assert isinstance(inner, ir.Const)
        self.pure("the exponent of pow", inner, exponent=True)
        power: dict[Key, Fraction] = {}
        for key, n in self.reduced(form).items():
            if isinstance(key, str):
                unknown = f"{key}**{inner.name}"
                self.raised[unknown] = key, inner.name
                power[unknown] = n * sign
            else:
                power[(*key, inner.name)] = n * sign
        return power


@cache
def _form_of_field(scope: str, name: str) -> Form:
    return units.form_of(units.read(READABLE[scope, name].unit))


def _cut(text: str) -> str:
    return text if len(text) <= SHOWN else f"{text[: SHOWN - 3]}..."
