"""Smearing: the constant by which the step times of a fit of logarithms are multiplied.

A fit of logarithms predicts the median; the mean is larger (Duan 1983, JASA 78).
"""

from __future__ import annotations

from dataclasses import replace

from simulator.language.ir import Const, Constant, Expr, Function, Let, Op, Program, with_returns
from simulator.language.units import read

NAME = "smearing"
BOUNDS = (0.1, 10.0)


def smeared(program: Program, factor: float) -> Program:
    """The program with its step times multiplied by `factor`, as a constant around every return of step_time.

    A program that has such a constant already keeps its form.
    """
    (function,) = (f for f in program.functions if f.name == "step_time")
    name = _smearing_of(function)
    constants = function.constants
    if name is None:
        taken = {c.name for c in constants} | {s.name for s in function.body if isinstance(s, Let)}
        name = next(n for n in (NAME, *(f"{NAME}_{i}" for i in range(2, len(taken) + 3))) if n not in taken)
        constants = (*constants, Constant(name, 1.0, read("one"), BOUNDS))
        factor_of_all = Const(name)
        function = with_returns(function, lambda value: Op("*", factor_of_all, value))
    low, high = BOUNDS

    def scaled(c: Constant) -> Constant:
        return replace(c, value=float(f"{min(max(c.value * factor, low), high):.6g}")) if c.name == name else c

    function = replace(function, constants=tuple(map(scaled, constants)))
    return replace(program, functions=tuple(function if f.name == "step_time" else f for f in program.functions))


def _smearing_of(function: Function) -> str | None:
    """The name of the constant that multiplies every return of a smeared function, None if there is none."""
    names: set[str] = set()

    def note(value: Expr) -> Expr:
        first = value.left if isinstance(value, Op) and value.op == "*" else None
        names.add(first.name if isinstance(first, Const) else "")
        return value

    with_returns(function, note)
    name = names.pop() if len(names) == 1 else ""
    return name if name.startswith(NAME) else None
