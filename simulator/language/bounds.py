"""Between which values the fit may move a constant: as annotated, else by physics.

In step_time a constant that multiplies a field of bytes or FLOPs over a datasheet peak is at least 1, and a pure number
that divides one (an efficiency) at most 1, because nothing beats the datasheet; every other constant is at least 0.
"""

from __future__ import annotations

import math

from simulator.language.infer import infer
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

LEAST_EFFICIENCY = 0.01  # share of the datasheet: a division by 0 would be 0, the fastest of all


def bounds(program: Program) -> tuple[Bounds, ...]:
    """(low, high) of every constant, in the order of `program.theta`."""
    return tuple(b for f in program.functions for b in _function_bounds(f))


def _function_bounds(function: Function) -> list[Bounds]:
    if function.name != "step_time":
        return [c.bounds or (0.0, math.inf) for c in function.constants]
    factors, divisors = _physical_factors(function)
    if divisors:
        units = infer(function).units
        divisors = {name for name in divisors if units[name] == "one"}
    return [_bounds(c, factors, divisors) for c in function.constants]


def _bounds(constant: Constant, factors: set[str], divisors: set[str]) -> Bounds:
    if constant.bounds is not None:
        return constant.bounds
    low = 1.0 if constant.name in factors else LEAST_EFFICIENCY if constant.name in divisors else 0.0
    return low, max(low, 1.0) if constant.name in divisors else math.inf


def _physical_factors(function: Function) -> tuple[set[str], set[str]]:
    """Names of the constants that multiply, and that divide, a physical field somewhere in the function."""
    physical_local: dict[str, bool] = {}
    factors_of: dict[str, set[str]] = {}
    found: set[str] = set()
    below: set[str] = set()

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
            below |= factors(node.right) if node.op == "/" and physical(node.left) else set()
    return found, below
