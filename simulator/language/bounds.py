"""Between which values the fit may move a constant: as annotated, else by physics.

In step_time a constant that multiplies a field of bytes or FLOPs over a datasheet peak is at least 1, because
nothing beats the datasheet; every other constant is at least 0.
"""

from __future__ import annotations

import math

from simulator.language.ir import (
    Call,
    Choose,
    Const,
    Constant,
    Expr,
    Field,
    Function,
    Let,
    Local,
    Neg,
    Op,
    Program,
    nodes,
)
from simulator.schema import PHYSICAL

Bounds = tuple[float, float]


def bounds(program: Program) -> tuple[Bounds, ...]:
    """(low, high) of every constant, in the order of `program.theta`."""
    return tuple(b for f in program.functions for b in _function_bounds(f))


def _function_bounds(function: Function) -> list[Bounds]:
    floored = _physical_factors(function) if function.name == "step_time" else set()
    return [_bounds(c, floored) for c in function.constants]


def _bounds(constant: Constant, floored: set[str]) -> Bounds:
    if constant.bounds is not None:
        return constant.bounds
    return (1.0 if constant.name in floored else 0.0), math.inf


def _physical_factors(function: Function) -> set[str]:
    """Names of the constants that multiply a physical field somewhere in the function."""
    physical_local: dict[str, bool] = {}
    factors_of: dict[str, set[str]] = {}
    found: set[str] = set()

    def physical(node: Expr) -> bool:
        """Whether the value carries a physical field as an additive part."""
        match node:
            case Field(_, name):
                return name in PHYSICAL
            case Local(name):
                return physical_local[name]
            case Neg(inner) | Op("/", inner, _):
                return physical(inner)
            case Op(_, left, right):
                return physical(left) or physical(right)
            case Call("max" | "min", args):
                return any(map(physical, args))
            case Choose(_, then, other):
                return physical(then) or physical(other)
            case _:
                return False

    def factors(node: Expr) -> set[str]:
        """Names of the constants of which the value is a multiple, on either branch of a conditional."""
        match node:
            case Const(name):
                return {name}
            case Local(name):
                return factors_of[name]
            case Neg(inner) | Op("/", inner, _):
                return factors(inner)
            case Op("*", left, right):
                return factors(left) | factors(right)
            case Choose(_, then, other):
                return factors(then) | factors(other)
            case _:
                return set()

    for statement in function.body:
        if isinstance(statement, Let):
            physical_local[statement.name] = physical(statement.value)
            factors_of[statement.name] = factors(statement.value)
    for node in nodes(function):
        if isinstance(node, Op) and node.op in "*/" and physical(node):
            found |= factors(node)
    return found
