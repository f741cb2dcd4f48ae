"""The identity of a program's form: commutative order, names and constants' values do not matter.

Two programs with one key differ in nothing that a fit of their constants could not make equal.
"""

from __future__ import annotations

import hashlib

from simulator.language.ir import (
    Call,
    Choose,
    Compare,
    Const,
    Field,
    Function,
    Guard,
    Let,
    Local,
    Neg,
    Node,
    Number,
    Op,
    Program,
)
from simulator.schema import FIELDS

_MIRROR = {">": "<", ">=": "<="}
_SYMMETRIC = ("==", "!=")


def key(program: Program) -> str:
    """16 hex digits, equal for programs of one form."""
    return _digest(";".join(_function(f) for f in program.functions))[:16]


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _short(text: str) -> str:
    """Digests keep a let used many times from unfolding into an exponential text."""
    return text if len(text) <= 64 else _digest(text)


def _function(function: Function) -> str:
    """A constant is called after the places where it stands, so one used twice is not two used once."""
    blank = {c.name: "?" for c in function.constants}
    places = {name: _digest(_text(function, blank | {name: "!"})) for name in blank}
    return f"{function.name}:{_text(function, places)}"


def _text(function: Function, constants: dict[str, str]) -> str:
    """The function as one expression in canonical order, with its constants called as given."""
    names = dict(constants)
    guards: list[tuple[str, str]] = []
    for statement in function.body:
        match statement:
            case Let(name, value):
                names[name] = _form(value, names)
            case Guard(condition, value):
                guards.append((_form(condition, names), _form(value, names)))
    text = _form(function.result, names)
    for test, early in reversed(guards):
        text = _short(f"if({test},{early},{text})")
    return text


def _chain(node: Node, op: str, names: dict[str, str]) -> list[str]:
    if isinstance(node, Op) and node.op == op:
        return _chain(node.left, op, names) + _chain(node.right, op, names)
    if isinstance(node, Call) and node.name == op:
        return [part for arg in node.args for part in _chain(arg, op, names)]
    return [_form(node, names)]


def _form(node: Node, names: dict[str, str]) -> str:
    match node:
        case Number(value):
            return repr(value)
        case Const(name) | Local(name):
            return names[name]
        case Field(scope, name):
            formula = FIELDS[scope, name].formula or ""
            alias = formula.startswith("b.") and formula[2:].isidentifier()
            return formula if alias else f"{scope}.{name}"
        case Neg(value):
            return _short(f"-({_form(value, names)})")
        case Op("+" | "*" as op):
            return _short(f"({op.join(sorted(_chain(node, op, names)))})")
        case Op(op, left, right):
            return _short(f"({_form(left, names)}{op}{_form(right, names)})")
        case Call("max" | "min" as name):
            return _short(f"{name}({','.join(sorted(_chain(node, name, names)))})")
        case Call(name, args):
            return _short(f"{name}({','.join(_form(a, names) for a in args)})")
        case Compare(op, left, right):
            sides = [_form(left, names), _form(right, names)]
            if op in _MIRROR:
                op, sides = _MIRROR[op], sides[::-1]
            elif op in _SYMMETRIC:
                sides.sort()
            return _short(f"{sides[0]}{op}{sides[1]}")
        case Choose(condition, then, other):
            return _short(f"if({_form(condition, names)},{_form(then, names)},{_form(other, names)})")
