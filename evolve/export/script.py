"""Programs as a Python file that makes their expressions with sympy alone."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from importlib import resources

from evolve.export.source import ExportSource
from evolve.export.symbols import FIELD_SIGN, constant_symbols
from simulator.language import ir
from simulator.language.unparse import spell_number

# Names that the functions of the file use, so that no constant of a program may take them.
_TAKEN = {"sympy", "plain", "Divide", "Power", "Choose", "sqrt", "log", "log1p", "exp", "softplus", "expressions"}
_CALLS = {"max": "sympy.Max", "min": "sympy.Min", "pow": "Power"}
_RELATIONS = {"<": "Lt", "<=": "Le", ">": "Gt", ">=": "Ge", "==": "Eq", "!=": "Ne"}
_SUM, _PRODUCT, _UNARY, _ATOM = range(4)

Names = Mapping[tuple[str, str], str]  # (scope or method, name) -> the variable of that symbol

_HEAD = '''"""{title} as sympy expressions.

PROGRAMS has a function for each program. It returns the expressions by method, in microseconds, and the values of the
constants: `expressions["step_time"].subs(values)` has numbers for constants. The fields are what is left.
"""
'''
_TAIL = """
PROGRAMS = {{{programs}}}

if __name__ == "__main__":
    expressions, values = next(iter(PROGRAMS.values()))()
    for method, expression in expressions.items():
        print(method, "=", expression.subs(values))
"""


def script(title: str, entries: Sequence[ExportSource]) -> str:
    """The text of a Python file with a function for each program, which runs by itself where sympy is installed."""
    rules = resources.files("evolve.export").joinpath("rules.py").read_text("utf-8")
    body = re.sub(r"  # type: ignore\[[\w-]+\]", "", rules[rules.index("import sympy") :])
    fields = sorted(
        {
            (n.scope, n.name)
            for e in entries
            for f in e.program.functions
            for n in ir.nodes(f)
            if isinstance(n, ir.Field)
        }
    )
    names = {field: f"{field[0]}_{field[1]}" for field in fields}
    lines = [f'{name} = sympy.Symbol("{scope}.{field}", {FIELD_SIGN}=True)' for (scope, field), name in names.items()]
    functions = [_program(i, entry, names) for i, entry in enumerate(entries)]
    programs = ", ".join(f"{e.name!a}: program_{i}" for i, e in enumerate(entries))
    head, tail = _HEAD.format(title=_plain(title)), _TAIL.format(programs=programs)
    return "\n".join([head, body, "\n", "\n".join(lines), *functions, tail])


def _plain(text: str) -> str:
    """The text for a docstring: what is not harmless in one becomes a dot."""
    return re.sub(r'[^ -~]|[\\"]', ".", text)


def _program(number: int, entry: ExportSource, fields: Names) -> str:
    symbols = constant_symbols(entry.program)
    taken = {*_TAKEN, *fields.values()}
    names = dict(fields)
    lines = [f"\n\ndef program_{number}():", f'    """{_about(entry)}"""']
    for symbol in symbols:
        variable = _free(symbol.name.replace(".", "_"), taken)
        names[symbol.method, symbol.constant.name] = variable
        lines.append(f'    {variable} = sympy.Symbol("{symbol.name}", {symbol.sign}=True)')
    lines.append("    expressions = {}")
    for function in entry.program.functions:
        lines += _function(function, names, taken)
    values = ", ".join(f"{names[s.method, s.constant.name]}: {spell_number(s.constant.value)}" for s in symbols)
    return "\n".join([*lines, f"    return expressions, {{{values}}}"])


def _free(name: str, taken: set[str]) -> str:
    """The name, with underscores appended until it is free. It is taken then."""
    while name in taken:
        name += "_"
    taken.add(name)
    return name


def _about(entry: ExportSource) -> str:
    if entry.elite is None:
        return f"Program {_plain(entry.name)}."
    group_out = "" if entry.elite.group_out is None else f", leave-group-out error {entry.elite.group_out:.2f} %"
    return f"Program {entry.name}: mean error {entry.elite.mean_error:.2f} %{group_out}."


def _function(function: ir.Function, names: Names, taken: set[str]) -> list[str]:
    known = dict(names) | {("", c.name): names[function.name, c.name] for c in function.constants}
    lines, guards = list[str](), list[tuple[str, str]]()
    for statement in function.body:
        value = _spell(statement.value, known)[0]
        if isinstance(statement, ir.Let):
            variable = known["", statement.name] = _free(statement.name, taken)
            lines.append(f"    {variable} = {value}")
        else:
            guards.append((_condition(statement.condition, known), value))
    result = _spell(function.result, known)[0]
    for condition, value in reversed(guards):
        result = f"Choose({condition}, {value}, {result})"
    return [*lines, f'    expressions["{function.name}"] = plain({result})']


def _condition(node: ir.Compare, names: Names) -> str:
    left, right = _spell(node.left, names)[0], _spell(node.right, names)[0]
    return f"sympy.{_RELATIONS[node.op]}({left}, {right})"


def _inside(node: ir.Expr, names: Names, rank: int) -> str:
    text, own = _spell(node, names)
    return text if own >= rank else f"({text})"


def _spell(node: ir.Expr, names: Names) -> tuple[str, int]:
    """The expression as Python, and how tightly its outermost operation binds."""
    match node:
        case ir.Number(value) if value == int(value):
            return str(int(value)), _ATOM
        case ir.Number(value):
            return f"sympy.Rational({spell_number(value)})", _ATOM
        case ir.Const(name) | ir.Local(name):
            return names["", name], _ATOM
        case ir.Field(scope, name):
            return names[scope, name], _ATOM
        case ir.Neg(inner):
            return f"-{_inside(inner, names, _UNARY)}", _UNARY
        case ir.Op("/", left, right):
            return f"Divide({_spell(left, names)[0]}, {_spell(right, names)[0]})", _ATOM
        case ir.Op(op, left, right):
            rank = _PRODUCT if op == "*" else _SUM
            return f"{_inside(left, names, rank)} {op} {_inside(right, names, rank + 1)}", rank
        case ir.Call(name, args):
            return f"{_CALLS.get(name, name)}({', '.join(_spell(arg, names)[0] for arg in args)})", _ATOM
        case ir.Choose(condition, then, other):
            parts = _condition(condition, names), _spell(then, names)[0], _spell(other, names)[0]
            return f"Choose({', '.join(parts)})", _ATOM
