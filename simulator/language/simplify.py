"""Shorten a program without changing its results: terms that a fit switched off, x + 0, x * 1, max(x, x)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from simulator.language.ir import (
    OVERHEADS,
    Call,
    Choose,
    Compare,
    Const,
    Expr,
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
    nodes,
    rebuild,
    walk,
)
from simulator.language.units import ONE


def lean(program: Program) -> Program:
    """The program without terms that a constant of value 0 multiplies, factors of 1, and operations that do nothing.

    Nested max and min are flattened. Equal on every batch whose values are finite.

    >>> print(unparse(lean(parse("def step_time(b, s, *, c=0.0): return c * b.kv_sum + b.tokens * 1"))), end="")
    def step_time(b, s):
        return b.tokens
    """
    return replace(program, functions=tuple(map(_function, program.functions)))


def brief(program: Program) -> Program:
    """The program without overheads whose constants make them 0; `complete` writes them out again.

    >>> text = "def step_time(b, s): return b.tokens\\ndef completion_time(s, *, c=0.0): return c"
    >>> [f.name for f in brief(parse(text)).functions]
    ['step_time']
    """
    return replace(program, functions=tuple(f for f in program.functions if f.name not in OVERHEADS or not _is_none(f)))


def without_dead_lets(function: Function) -> Function:
    """The function without assignments that nothing after them reads."""
    read = _locals(function.result)
    body: list[Let | Guard] = []
    for statement in reversed(function.body):
        if isinstance(statement, Guard):
            read |= _locals(statement.condition)
        elif statement.name not in read:
            continue
        read |= _locals(statement.value)
        body.insert(0, statement)
    return replace(function, body=tuple(body))


def without_unused(function: Function) -> Function:
    """The function without assignments and constants that nothing reads."""
    bare = without_dead_lets(function)
    used = {n.name for n in nodes(bare) if isinstance(n, Const)}
    return replace(bare, constants=tuple(c for c in function.constants if c.name in used))


def _is_none(function: Function) -> bool:
    """True if the function has constants, and is 0 because they are; a function that says 0 says so on purpose."""
    return bool(function.constants) and not function.body and _is_zero(function.result, _zeros(function))


def _zeros(function: Function) -> set[str]:
    return {c.name for c in function.constants if c.value == 0.0}


def _locals(node: Node) -> set[str]:
    return {n.name for n in walk(node) if isinstance(n, Local)}


def _function(function: Function) -> Function:
    zeros = _zeros(function)
    constants = {c.name: c.value for c in function.constants}
    ones = {c.name for c in function.constants if c.value == 1.0 and c.unit == ONE}

    def simpler(node: Expr) -> Expr:
        return rebuild(node, lambda n: _idle(_largest(_flat(_sum(n, zeros)), zeros, constants), ones))

    body: list[Let | Guard] = []
    for statement in function.body:
        match statement:
            case Let(name, value):
                value = simpler(value)
                body.append(Let(name, value))
                if _is_zero(value, zeros):
                    zeros.add(name)
            case Guard(Compare(op, left, right), value):
                body.append(Guard(Compare(op, simpler(left), simpler(right)), simpler(value)))
    result = simpler(function.result)
    return without_unused(replace(function, body=tuple(body), result=result))


def _sum(node: Expr, zeros: set[str]) -> Expr:
    match node:
        case Op("+", left, right) if _is_zero(left, zeros):
            return right
        case Op("+" | "-", left, right) if _is_zero(right, zeros):
            return left
        case _:
            return node


def _flat(node: Expr) -> Expr:
    match node:
        case Call("max" | "min" as name, args) if any(isinstance(a, Call) and a.name == name for a in args):
            parts = [a.args if isinstance(a, Call) and a.name == name else (a,) for a in args]
            return Call(name, tuple(part for group in parts for part in group))
        case _:
            return node


def _largest(node: Expr, zeros: set[str], constants: Mapping[str, float]) -> Expr:
    """The maximum without arguments that are 0, if another one is never negative."""
    match node:
        case Call("max", args) if any(_never_negative(a, constants) for a in args if not _is_zero(a, zeros)):
            kept = tuple(a for a in args if not _is_zero(a, zeros))
            return kept[0] if len(kept) == 1 else Call("max", kept)
        case _:
            return node


def _never_negative(node: Expr, constants: Mapping[str, float]) -> bool:
    """True if the expression cannot be negative at these constants, because no field is."""
    match node:
        case Number(value):
            return value >= 0.0
        case Const(name):
            return constants[name] >= 0.0
        case Field():
            return True
        case Op("+" | "*" | "/", left, right):
            return _never_negative(left, constants) and _never_negative(right, constants)
        case Call("max", args):
            return any(_never_negative(a, constants) for a in args)
        case Call("min", args):
            return all(_never_negative(a, constants) for a in args)
        case Choose(_, then, other):
            return _never_negative(then, constants) and _never_negative(other, constants)
        case _:
            return False


def _idle(node: Expr, ones: set[str]) -> Expr:
    """The node, or its operand if the operation does nothing."""
    match node:
        case Op("*", Const(name), inner) if name in ones:
            return inner
        case Op("*", inner, Const(name)) if name in ones:
            return inner
        case Op("*" | "/", inner, Number(1.0)) | Op("*", Number(1.0), inner) | Neg(Neg(inner)):
            return inner
        case Choose(_, then, other) if then == other:
            return then
        case Call("max" | "min" as name, args) if len(set(args)) < len(args):
            kept = tuple(dict.fromkeys(args))
            return kept[0] if len(kept) == 1 else Call(name, kept)
        case _:
            return node


def _is_zero(node: Expr, zeros: set[str]) -> bool:
    match node:
        case Number(value):
            return value == 0.0
        case Const(name) | Local(name):
            return name in zeros
        case Neg(value):
            return _is_zero(value, zeros)
        case Op("*", left, right):
            return _is_zero(left, zeros) or _is_zero(right, zeros)
        case Op("/", left, right):  # x/0 is 0, too
            return _is_zero(left, zeros) or (isinstance(right, Const | Local) and right.name in zeros)
        case Choose(_, then, other):
            return _is_zero(then, zeros) and _is_zero(other, zeros)
        case Call("max" | "min", args):
            return all(_is_zero(a, zeros) for a in args)
        case _:
            return False
