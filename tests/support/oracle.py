"""CPython as the tests' oracle: the text of a program is run where its names mean what the language says.

For tests only. Numbers are float64 with the guarded division, calls those of `simulator/language/guarded.py`,
units dummies. Nothing of the parser, the interpreter or the opcodes takes part.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from functools import reduce
from typing import Any

from simulator.language import guarded

Fields = Mapping[tuple[str, str], float]  # ("b", "tokens") -> value


def _binary(operation: Callable[[float, float], float]) -> Any:
    return lambda left, right: Float(operation(float(left), float(right)))


class Float(float):
    """A float64 that stays one under arithmetic, with x/0 = 0."""

    __add__ = _binary(operator.add)
    __sub__ = _binary(operator.sub)
    __mul__ = _binary(operator.mul)
    __truediv__ = _binary(guarded.div)
    __pow__ = _binary(guarded.power)

    def __neg__(self) -> Float:
        return Float(-float(self))


class _Unit:
    """Stands for any unit: every annotation evaluates to one."""

    def __mul__(self, other: object) -> _Unit:
        return self

    __truediv__ = __pow__ = __getitem__ = __mul__


class _Object:
    """`b`, `s` or `r`: fields as attributes, or as the original proposal's items (b has static ones too)."""

    def __init__(self, scope: str, fields: Fields) -> None:
        self._scope, self._fields = scope, fields

    def __getattr__(self, name: str) -> Float:
        return Float(self._fields[self._scope, name])

    def __getitem__(self, name: str) -> Float:
        try:
            return Float(self._fields[self._scope, name])
        except KeyError:
            return Float(self._fields["s", name])


class _Numbers(ast.NodeTransformer):
    """Wraps every number of the text, so that CPython does not compute with its own."""

    def visit_Constant(self, node: ast.Constant) -> ast.expr:
        if not isinstance(node.value, int | float):
            return node
        return ast.Call(ast.Name("Float", ast.Load()), [node], [])


def _call(function: Callable[..., float]) -> Callable[..., Float]:
    return lambda *args: Float(function(*map(float, args)))


_NAMES = {
    "Float": Float,
    "max": _call(lambda *args: reduce(guarded.maximum, args)),
    "min": _call(lambda *args: reduce(guarded.minimum, args)),
    "sqrt": _call(guarded.sqrt),
    "log": _call(guarded.log),
    "log1p": _call(guarded.log1p),
    "exp": _call(guarded.exp),
    "softplus": _call(guarded.softplus),
    "pow": _call(guarded.power),
    **dict.fromkeys(("one", "us", "token", "request", "byte", "flop"), _Unit()),
}


def run(text: str, fields: Fields) -> dict[str, float]:
    """Every method's value, by the method's name, for these fields; also for texts in the dialect."""
    tree = ast.fix_missing_locations(_Numbers().visit(ast.parse(text)))
    namespace: dict[str, Any] = {"__builtins__": {}, **_NAMES}
    exec(compile(tree, "<program>", "exec"), namespace)
    values = {}
    for node in tree.body:
        if isinstance(node, ast.FunctionDef):
            objects = [_Object(arg.arg, fields) for arg in node.args.args]
            values[node.name.removeprefix("predict_")] = float(namespace[node.name](*objects))
    return values
