"""The names and signs that fields and constants have in formulas."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from simulator.language.bounds import bounds
from simulator.language.ir import Constant, Program

FIELD_SIGN = "nonnegative"  # what is assumed of fields


@dataclass(frozen=True, slots=True)
class ConstantSymbol:
    """A constant with its method, its name among all methods, and its sign as sympy calls it.

    name: as in the text, or `method.name` where methods share a name. sign: what the bounds say, unless the value is
    outside of them.
    """

    method: str
    constant: Constant
    name: str
    sign: str


def constant_symbols(program: Program) -> list[ConstantSymbol]:
    """The constants of a program, in the order of its text.

    >>> [(c.name, c.sign) for c in constant_symbols(parse("def step_time(b, s, *, c=2.0): return c * b.tokens"))]
    [('c', 'nonnegative')]
    """
    named = [(f.name, c) for f in program.functions for c in f.constants]
    count = Counter(c.name for _, c in named)
    symbols = []
    for (method, constant), (low, _) in zip(named, bounds(program), strict=True):
        name = constant.name if count[constant.name] == 1 else f"{method}.{constant.name}"
        least = min(low, constant.value)
        sign = "positive" if least > 0 else "nonnegative" if least == 0 else "real"
        symbols.append(ConstantSymbol(method, constant, name, sign))
    return symbols


def constant_values(program: Program) -> dict[str, float]:
    """The value of each constant, by its name among all methods.

    >>> constant_values(parse("def step_time(b, s, *, c=2.0): return c * b.tokens"))
    {'c': 2.0}
    """
    return {symbol.name: symbol.constant.value for symbol in constant_symbols(program)}
