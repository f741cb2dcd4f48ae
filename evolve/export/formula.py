"""A program as sympy expressions: the same values, branch for branch."""

from __future__ import annotations

import operator
from collections.abc import Mapping

from evolve.export.latex import to_latex
from evolve.export.symbols import FIELD_SIGN, constant_symbols
from simulator.common.errors import InputError
from simulator.language import ir

try:
    import sympy

    from evolve.export import rules
except ModuleNotFoundError:
    raise InputError("formulas: sympy is missing: needs the extra: pip install 'evolve-latency[view]'") from None

__all__ = ["field", "to_latex", "to_sympy", "values"]

_OPS = {"+": operator.add, "-": operator.sub, "*": operator.mul, "/": rules.Divide}
_CALLS = {
    "max": sympy.Max,
    "min": sympy.Min,
    "sqrt": rules.sqrt,
    "log": rules.log,
    "log1p": rules.log1p,
    "exp": rules.exp,
    "softplus": rules.softplus,
    "pow": rules.Power,
}
_COMPARE = {"<": sympy.Lt, "<=": sympy.Le, ">": sympy.Gt, ">=": sympy.Ge, "==": sympy.Eq, "!=": sympy.Ne}

Names = Mapping[str, sympy.Expr]


def to_sympy(program: ir.Program) -> dict[str, sympy.Expr]:
    """The expression of each method that the program has, in microseconds.

    Fields are the symbols of `field`, constants those of `values`, so `expression.subs(values(program))` has numbers
    for constants. Conditionals are Piecewise, and the guards of the language are part of the expressions. Where a
    number is too large for float64, the expression has its value and the program infinity.

    >>> to_sympy(parse("def step_time(b, s, *, c=2.0): return c * b.tokens + max(b.kv_sum, 1)"))["step_time"]
    b.tokens*c + Max(1, b.kv_sum)
    """
    symbols = _symbols(program)
    return {f.name: _function(f, {c.name: symbols[f.name, c.name] for c in f.constants}) for f in program.functions}


def values(program: ir.Program) -> dict[sympy.Symbol, float]:
    """The value of each constant by its symbol, named as in the text, or `method.name` where methods share a name.

    >>> values(parse("def step_time(b, s, *, c=2.0): return c * b.tokens"))
    {c: 2.0}
    """
    symbols = _symbols(program)
    return {symbols[f.name, c.name]: c.value for f in program.functions for c in f.constants}


def field(scope: str, name: str) -> sympy.Symbol:
    """The symbol of a field, such as `b.tokens`. No field is negative.

    >>> field("b", "tokens")
    b.tokens
    """
    return sympy.Symbol(f"{scope}.{name}", **{FIELD_SIGN: True})


def _symbols(program: ir.Program) -> dict[tuple[str, str], sympy.Symbol]:
    return {(c.method, c.constant.name): sympy.Symbol(c.name, **{c.sign: True}) for c in constant_symbols(program)}


def _function(function: ir.Function, constants: Names) -> sympy.Expr:
    names, guards = dict(constants), []
    for statement in function.body:
        if isinstance(statement, ir.Let):
            names[statement.name] = _expression(statement.value, names)
        else:
            guards.append((_condition(statement.condition, names), _expression(statement.value, names)))
    result = _expression(function.result, names)
    for condition, value in reversed(guards):
        result = rules.Choose(condition, value, result)
    return rules.plain(result)


def _condition(node: ir.Compare, names: Names) -> sympy.Basic:
    return _COMPARE[node.op](_expression(node.left, names), _expression(node.right, names))


def _expression(node: ir.Expr, names: Names) -> sympy.Expr:
    match node:
        case ir.Number(value):
            return sympy.Rational(value)  # exact: the numbers of formulas are few, such as 0.5
        case ir.Const(name) | ir.Local(name):
            return names[name]
        case ir.Field(scope, name):
            return field(scope, name)
        case ir.Neg(inner):
            return -_expression(inner, names)
        case ir.Op(op, left, right):
            return _OPS[op](_expression(left, names), _expression(right, names))
        case ir.Call(name, args):
            return _CALLS[name](*(_expression(arg, names) for arg in args))
        case ir.Choose(condition, then, other):
            return rules.Choose(_condition(condition, names), _expression(then, names), _expression(other, names))
