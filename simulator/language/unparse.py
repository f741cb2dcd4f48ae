"""Program -> text, the inverse of `parse`: `parse(unparse(p)) == p`."""

from __future__ import annotations

import re

from simulator.language import ir, units
from simulator.language.ir import METHODS, Expr, Function, Program

WIDTH = 100  # columns; a line that cannot be broken may be longer

_CHOOSE, _SUM, _PRODUCT, _UNARY, _ATOM = range(5)
_RANK = {"+": _SUM, "-": _SUM, "*": _PRODUCT, "/": _PRODUCT}


def spell_number(value: float) -> str:
    """The shortest text that reads back as `value`."""
    return repr(float(value))


def _spell(node: Expr) -> tuple[str, int]:
    """The expression as text, and the rank of its outermost operation."""
    match node:
        case ir.Number(value):
            return (str(int(value)) if value == int(value) else repr(value)), _ATOM
        case ir.Const(name) | ir.Local(name):
            return name, _ATOM
        case ir.Field(scope, name):
            return f"{scope}.{name}", _ATOM
        case ir.Neg(value):
            return f"-{_inside(value, _UNARY)}", _UNARY
        case ir.Op(op, left, right):
            rank = _RANK[op]
            return f"{_inside(left, rank)} {op} {_inside(right, rank + 1)}", rank
        case ir.Call(name, args):
            return f"{name}({', '.join(spell(a) for a in args)})", _ATOM
        case ir.Choose(condition, then, other):
            return f"{_inside(then, _SUM)} if {spell_condition(condition)} else {spell(other)}", _CHOOSE


def _inside(node: Expr, rank: int) -> str:
    """The expression as text, in brackets where its rank is below `rank`."""
    text, own = _spell(node)
    return text if own >= rank else f"({text})"


def spell(node: Expr) -> str:
    """The expression as text, on one line."""
    return _spell(node)[0]


def spell_condition(node: ir.Compare) -> str:
    """The condition as text."""
    return f"{_inside(node.left, _SUM)} {node.op} {_inside(node.right, _SUM)}"


def _constant(constant: ir.Constant) -> str:
    unit, bounds = constant.unit, constant.bounds
    if unit is None and bounds is None:
        return f"{constant.name}={spell_number(constant.value)}"
    annotation = units.spell(unit or units.ONE)
    if bounds is not None:
        low, high = map(spell_number, bounds)
        name = annotation if annotation.isidentifier() else f"({annotation})"
        annotation = f"{name}[{low}, {high}]"
    return f"{constant.name}: {annotation} = {spell_number(constant.value)}"


def _head(function: Function) -> str:
    objects = ", ".join(METHODS[function.name])
    constants = [_constant(c) for c in function.constants]
    one_line = f"def {function.name}({', '.join([objects, '*', *constants] if constants else [objects])}):"
    if len(one_line) <= WIDTH:
        return one_line
    return "\n".join([f"def {function.name}(", f"    {objects}, *,", *(f"    {c}," for c in constants), "):"])


def terms(node: Expr) -> list[tuple[str, Expr]]:
    """The terms of a sum in order, each with its sign."""
    if isinstance(node, ir.Op) and node.op in "+-":
        return [*terms(node.left), (node.op, node.right)]
    return [("+", node)]


def _assign(prefix: str, value: Expr) -> str:
    text = f"    {prefix}{spell(value)}"
    if len(text) <= WIDTH:
        return text
    if isinstance(value, ir.Call) and len(value.args) > 1:
        return "\n".join(_rows(value, _CHOOSE, "    ", prefix))
    return "\n".join([f"    {prefix}(", *_rows(value, _CHOOSE, "        "), "    )"])


def _rows(node: Expr, rank: int, indent: str, before: str = "", after: str = "") -> list[str]:
    """The lines of an expression inside brackets: one if it fits, else broken at its terms, arguments or branches."""
    text = f"{indent}{before}{_inside(node, rank)}{after}"
    if len(text) <= WIDTH:
        return [text]
    deeper = indent + "    "
    if _spell(node)[1] < rank:
        return [f"{indent}{before}(", *_rows(node, _CHOOSE, deeper), f"{indent}){after}"]
    match node:
        case ir.Op("+" | "-"):
            (_, first), *rest = terms(node)
            last = len(rest) - 1
            rows = _rows(first, _SUM, indent, before)
            for i, (sign, term) in enumerate(rest):
                rows += _rows(term, _PRODUCT, indent, f"{sign} ", after if i == last else "")
            return rows
        case ir.Call(name, args) if len(args) > 1:
            inside = [row for arg in args for row in _rows(arg, _CHOOSE, deeper, after=",")]
            return [f"{indent}{before}{name}(", *inside, f"{indent}){after}"]
        case ir.Choose(condition, then, other):
            rows = _rows(then, _SUM, indent, before)
            rows.append(f"{indent}if {spell_condition(condition)}")
            return [*rows, *_rows(other, _CHOOSE, indent, "else ", after)]
        case _:
            return [text]


def _doc(text: str, indent: str) -> list[str]:
    """A docstring, with characters escaped that would end it or not survive in a text file."""
    if not text:
        return []
    escaped = re.sub(r'"(?="|\Z)', r"\"", text.replace("\\", "\\\\"))
    escaped = re.sub(r"[^\n\t -\uD7FF\uE000-\U0010FFFF]|\x7f", lambda m: f"\\u{ord(m[0]):04x}", escaped)
    return [f'{indent}"""{escaped}"""']


def _function(function: Function) -> str:
    lines = [_head(function), *_doc(function.doc, "    ")]
    for statement in function.body:
        match statement:
            case ir.Let(name, value):
                lines.append(_assign(f"{name} = ", value))
            case ir.Guard(condition, value):
                lines.append(f"    if {spell_condition(condition)}:")
                lines.append("    " + _assign("return ", value).replace("\n", "\n    "))
    lines.append(_assign("return ", function.result))
    return "\n".join(lines)


def unparse(program: Program) -> str:
    """The program's canonical text.

    >>> print(unparse(parse("def step_time(b,s,*,c=2): return(c*b.tokens)")), end="")
    def step_time(b, s, *, c=2.0):
        return c * b.tokens
    """
    parts = ["\n".join(_doc(program.doc, ""))] if program.doc else []
    return "\n\n\n".join([*parts, *map(_function, program.functions)]) + "\n"
