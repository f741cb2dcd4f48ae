"""A function of the original proposal in the language's units: it counts peaks per second, and has no units itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, is_dataclass, replace
from typing import TypeVar

from simulator.language.infer import infer
from simulator.language.ir import Const, Constant, Expr, Field, Function, Number, Op, nodes, rebuilt, with_returns
from simulator.language.reader import Scope
from simulator.language.units import ONE, base
from simulator.schema import PER_SECOND

MOST_ADDED = 16  # constants that make the units fit
MICRO = 1e6  # microseconds of a second

T = TypeVar("T")


def sound(function: Function, scope: Scope) -> Function:
    """The function with times in microseconds and with units that fit. Notes a mistake where seconds remain."""
    named = {n.name for n in nodes(function) if isinstance(n, Field) and n.name in PER_SECOND}
    if named:
        function = _in_microseconds(function, min(named), scope)
    return _with_units(function, scope)


def _in_microseconds(function: Function, name: str, scope: Scope) -> Function:
    """The function with peaks per microsecond, and without the factors of 1e6 that make seconds microseconds.

    A formula in which those factors cancel the seconds has the same value without both. So has any formula that would
    be consistent if the factor had a unit, and the peaks too.
    """
    millions = {c.name for c in function.constants if c.value == MICRO and c.unit is None}
    for million in millions:
        del scope.constants[million]

    def seconds(node: Expr) -> Expr:
        match node:
            case Const(name) if name in millions:
                return Const("second")
            case Field(_, name) if name in PER_SECOND:
                return Op("*", Const("second"), Const("pure"))
            case Const() | Field() | Number(1.0 | 2.0 | 0.5):
                return Const("pure")
            case _:
                return node

    shadow = with_returns(rebuilt(function, seconds), lambda value: Op("*", Const("us"), value))
    units = {"second": base("token"), "pure": ONE, "us": base("us")}
    if infer(replace(shadow, constants=tuple(Constant(n, 1.0, unit) for n, unit in units.items()))).clashes:
        remedy = "multiply the time that it gives by 1e6, once, and add no bare number to seconds"
        assert scope.tree
        scope.note(scope.fail(scope.tree, f"b[{name!r}] counts per second, and times are in microseconds: {remedy}"))

    def ours(node: Expr) -> Expr:
        match node:
            case Op("*", left, Const(name)) if name in millions:
                return left
            case Op("*", Const(name), right) if name in millions:
                return right
            case Field(_, name) if name in PER_SECOND:
                return Field("s", PER_SECOND[name])
            case _:
                return node

    function = rebuilt(replace(function, constants=tuple(scope.constants.values())), ours)
    return rebuilt(function, lambda n: Number(1.0) if isinstance(n, Const) and n.name in millions else n)


def _with_units(function: Function, scope: Scope) -> Function:
    """The function with a constant of 1 before each side whose unit does not fit, as the message would advise.

    Where MOST_ADDED are not enough, it is as it was.
    """
    corrected, added = function, 0
    while sides := [clash.side for clash in infer(corrected).clashes if clash.side]:
        before: list[tuple[Expr, Constant]] = []
        for side in sides:
            if not any(side is other for other, _ in before):
                before.append((side, Constant(scope.lift(1.0).name, 1.0)))
        added += len(before)
        if added > MOST_ADDED:
            return function
        constants = (*corrected.constants, *(constant for _, constant in before))
        corrected = replace(_with(corrected, before), constants=constants)
    return corrected


def _times(constant: Expr, side: Expr) -> Expr:
    """The side times the constant; a number that it adds stays a number."""
    match side:
        case Op("+", Number() as number, other):
            return Op("+", number, Op("*", constant, other))
        case Op("+", other, Number() as number):
            return Op("+", Op("*", constant, other), number)
        case _:
            return Op("*", constant, side)


def _with(value: T, before: Sequence[tuple[Expr, Constant]]) -> T:
    """The value with a constant before each of these parts; another part that equals one stays as it is."""
    constant = next((constant for side, constant in before if side is value), None)
    if isinstance(value, tuple):
        return tuple(_with(part, before) for part in value)  # type: ignore[return-value]
    if is_dataclass(value) and not isinstance(value, type):
        parts = {f.name: _with(getattr(value, f.name), before) for f in fields(value)}
        value = replace(value, **parts)
    return _times(Const(constant.name), value) if constant else value  # type: ignore[return-value, arg-type]
