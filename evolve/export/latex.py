r"""A program as LaTeX: an `aligned` block with a line for each term, in the order of the text.

It is meant for reading, so the guards of the language are not shown: x/0 is 0, and roots and logarithms of negative
numbers are those of 0.
"""

from __future__ import annotations

import re

from simulator.common.text import visible
from simulator.language import ir
from simulator.language.unparse import terms

_CALLS = {"max": r"\max", "min": r"\min", "log": r"\ln", "exp": r"\exp"}
_COMPARE = {"<": "<", "<=": r"\leq", ">": ">", ">=": r"\geq", "==": "=", "!=": r"\neq"}
_SPECIAL = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    '"': "''",
    "|": r"\textbar{}",
    **{c: f"\\{c}" for c in "{}$&#%_"},
}
_SUM, _PRODUCT, _ATOM = range(3)  # how tightly the outermost operation of an expression binds


def to_latex(program: ir.Program) -> str:
    r"""The methods of a program as one block for a formula, to be set between `\[` and `\]`.

    Fields are upright, constants and assigned names in italics.

    >>> print(to_latex(parse("def step_time(b, s, *, c=2.0): return c * b.kv_sum + max(b.tokens, 1)")))
    \begin{aligned}
    \mathrm{step\_time} ={}& \mathit{c} \cdot \mathrm{b.kv\_sum} \\
     &+ \max\left(\mathrm{b.tokens}, 1\right)
    \end{aligned}
    """
    lines = [line for f in program.functions for line in _function(f)]
    return "\n".join([r"\begin{aligned}", " \\\\\n".join(lines), r"\end{aligned}"])


def escaped(text: str) -> str:
    r"""Any text, to be set as it is outside of a formula.

    >>> escaped("50 % of kv_sum")
    '50 \\% of kv\\_sum'
    """
    return re.sub(r'[\\~^<>"|{}$&#%_]', lambda match: _SPECIAL[match[0]], visible(text))


def _function(function: ir.Function) -> list[str]:
    lines, guards = [], list[ir.Guard]()
    for statement in function.body:
        if isinstance(statement, ir.Let):
            lines += _equation(_italic(statement.name), statement.value)
        else:
            guards.append(statement)
    name = rf"\mathrm{{{escaped(function.name)}}}"
    if not guards:
        return [*lines, *_equation(name, function.result)]
    return [*lines, f"{name} ={{}}& {_cases([(g.condition, g.value) for g in guards], function.result)}"]


def _equation(name: str, value: ir.Expr) -> list[str]:
    """The lines of `name = value`, one for each term."""
    (_, first), *rest = terms(value)
    return [f"{name} ={{}}& {_inside(first, _SUM)}", *(f" &{sign} {_inside(term, _PRODUCT)}" for sign, term in rest)]


def _cases(cases: list[tuple[ir.Compare, ir.Expr]], other: ir.Expr) -> str:
    rows = [rf"{_inside(value, _SUM)} & \text{{if }} {_condition(condition)}" for condition, value in cases]
    return r"\begin{cases} " + r" \\ ".join([*rows, rf"{_inside(other, _SUM)} & \text{{otherwise}}"]) + r" \end{cases}"


def _condition(node: ir.Compare) -> str:
    return f"{_inside(node.left, _SUM)} {_COMPARE[node.op]} {_inside(node.right, _SUM)}"


def _inside(node: ir.Expr, rank: int) -> str:
    """The expression, in brackets where it binds less tightly than `rank`."""
    text, own = _set(node)
    return text if own >= rank else rf"\left({text}\right)"


def _set(node: ir.Expr) -> tuple[str, int]:
    """The expression, and how tightly its outermost operation binds."""
    match node:
        case ir.Number(value):
            return f"{value:g}", _ATOM
        case ir.Const(name) | ir.Local(name):
            return _italic(name), _ATOM
        case ir.Field(scope, name):
            return rf"\mathrm{{{escaped(f'{scope}.{name}')}}}", _ATOM
        case ir.Neg(inner):
            return f"-{_inside(inner, _PRODUCT)}", _SUM
        case ir.Op("/", left, right):
            return rf"\frac{{{_inside(left, _SUM)}}}{{{_inside(right, _SUM)}}}", _PRODUCT
        case ir.Op("*", left, right):
            return rf"{_inside(left, _PRODUCT)} \cdot {_inside(right, _PRODUCT)}", _PRODUCT
        case ir.Op(op, left, right):
            return f"{_inside(left, _SUM)} {op} {_inside(right, _PRODUCT)}", _SUM
        case ir.Call("pow", (base, exponent)):
            return f"{{{_inside(base, _ATOM)}}}^{{{_inside(exponent, _SUM)}}}", _PRODUCT
        case ir.Call("sqrt", (inner,)):
            return rf"\sqrt{{{_inside(inner, _SUM)}}}", _PRODUCT
        case ir.Call("log1p", (inner,)):
            return rf"\ln\left(1 + {_inside(inner, _PRODUCT)}\right)", _PRODUCT
        case ir.Call("softplus", (inner,)):
            return rf"\ln\left(1 + \exp\left({_inside(inner, _SUM)}\right)\right)", _PRODUCT
        case ir.Call(name, args):
            spelled = _CALLS.get(name, rf"\operatorname{{{name}}}")
            return rf"{spelled}\left({', '.join(_inside(arg, _SUM) for arg in args)}\right)", _PRODUCT
        case ir.Choose(condition, then, other):
            return _cases([(condition, then)], other), _SUM


def _italic(name: str) -> str:
    return rf"\mathit{{{escaped(name)}}}"
