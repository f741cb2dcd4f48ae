"""The plain interpreter of the IR: slow, obvious, and the reference for the opcodes and the Go."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping

from simulator.language import guarded, ir
from simulator.language.ir import COMPARISONS, Expr, Function

Fields = Mapping[tuple[str, str], float]  # ("b", "tokens") -> value

_OPS: dict[str, Callable[..., float]] = {"+": operator.add, "-": operator.sub, "*": operator.mul, "/": guarded.div}
# The functions of the language by name. `max` and `min` take two values at a time.
FUNCTIONS: dict[str, Callable[..., float]] = {"max": guarded.maximum, "min": guarded.minimum}
FUNCTIONS |= {name: getattr(guarded, name) for name in ("sqrt", "log", "log1p", "exp", "softplus")}
FUNCTIONS["pow"] = guarded.power
_TESTS = (operator.lt, operator.le, operator.gt, operator.ge, operator.eq, operator.ne)
_COMPARE: dict[str, Callable[[float, float], bool]] = dict(zip(COMPARISONS, _TESTS, strict=True))


def evaluate(function: Function, fields: Fields) -> float:
    """The function's value, float64, for these fields. Raises KeyError for a field that is missing."""
    names = {c.name: c.value for c in function.constants}
    for statement in function.body:
        if isinstance(statement, ir.Guard):
            if holds(statement.condition, names, fields):
                return value(statement.value, names, fields)
        else:
            names[statement.name] = value(statement.value, names, fields)
    return value(function.result, names, fields)


def holds(condition: ir.Compare, names: Mapping[str, float], fields: Fields) -> bool:
    """True if the condition holds for these constants and locals (`names`) and fields."""
    return _COMPARE[condition.op](value(condition.left, names, fields), value(condition.right, names, fields))


def value(node: Expr, names: Mapping[str, float], fields: Fields) -> float:
    """The value of an expression, float64, for these constants and locals (`names`) and fields."""
    match node:
        case ir.Number(number):
            return number
        case ir.Const(name) | ir.Local(name):
            return names[name]
        case ir.Field(scope, name):
            return fields[scope, name]
        case ir.Neg(inner):
            return -value(inner, names, fields)
        case ir.Op(op, left, right):
            return _OPS[op](value(left, names, fields), value(right, names, fields))
        case ir.Call(name, args):
            result = value(args[0], names, fields)
            if len(args) == 1:
                return FUNCTIONS[name](result)
            for arg in args[1:]:
                result = FUNCTIONS[name](result, value(arg, names, fields))
            return result
        case ir.Choose(condition, then, other):
            return value(then if holds(condition, names, fields) else other, names, fields)
