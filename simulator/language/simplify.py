"""Shorten a program without changing its results: terms that a fit switched off, x + 0, x * 1, max(x, x)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from simulator.language import ir
from simulator.language.ir import OVERHEADS, Expr, Function, Node, Program, nodes, rebuild, walk
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
    """The program without overheads whose constants make them 0; `complete` writes them out again."""
    return replace(program, functions=tuple(f for f in program.functions if f.name not in OVERHEADS or not _is_none(f)))


def without_dead_lets(function: Function) -> Function:
    """The function without assignments that nothing after them reads."""
    read = _locals(function.result)
    body: list[ir.Let | ir.Guard] = []
    for statement in reversed(function.body):
        if isinstance(statement, ir.Guard):
            read |= _locals(statement.condition)
        elif statement.name not in read:
            continue
        read |= _locals(statement.value)
        body.insert(0, statement)
    return replace(function, body=tuple(body))


def without_unused(function: Function) -> Function:
    """The function without assignments and constants that nothing reads."""
    bare = without_dead_lets(function)
    used = {n.name for n in nodes(bare) if isinstance(n, ir.Const)}
    return replace(bare, constants=tuple(c for c in function.constants if c.name in used))


def _is_none(function: Function) -> bool:
    """True if the function has constants, and is 0 because they are; a function that says 0 says so on purpose."""
    return bool(function.constants) and not function.body and _is_zero(function.result, _zeros(function))


def _zeros(function: Function) -> set[str]:
    return {c.name for c in function.constants if c.value == 0.0}


def _locals(node: Node) -> set[str]:
    return {n.name for n in walk(node) if isinstance(n, ir.Local)}


def _function(function: Function) -> Function:
    zeros = _zeros(function)
    constants = {c.name: c.value for c in function.constants}
    ones = {c.name for c in function.constants if c.value == 1.0 and c.unit == ONE}

    def simpler(node: Expr) -> Expr:
        return rebuild(node, lambda n: _idle(_largest(_flat(_sum(n, zeros)), zeros, constants), ones))

    body: list[ir.Let | ir.Guard] = []
    for statement in function.body:
        match statement:
            case ir.Let(name, value):
                value = simpler(value)
                body.append(ir.Let(name, value))
                if _is_zero(value, zeros):
                    zeros.add(name)
            case ir.Guard(ir.Compare(op, left, right), value):
                body.append(ir.Guard(ir.Compare(op, simpler(left), simpler(right)), simpler(value)))
    result = simpler(function.result)
    return without_unused(replace(function, body=tuple(body), result=result))


def _sum(node: Expr, zeros: set[str]) -> Expr:
    match node:
        case ir.Op("+", left, right) if _is_zero(left, zeros):
            return right
        case ir.Op("+" | "-", left, right) if _is_zero(right, zeros):
            return left
        case _:
            return node


def _flat(node: Expr) -> Expr:
    match node:
        case ir.Call("max" | "min" as name, args) if any(isinstance(a, ir.Call) and a.name == name for a in args):
            parts = [a.args if isinstance(a, ir.Call) and a.name == name else (a,) for a in args]
            return ir.Call(name, tuple(part for group in parts for part in group))
        case _:
            return node


def _largest(node: Expr, zeros: set[str], constants: Mapping[str, float]) -> Expr:
    """The maximum without arguments that are 0, if another one is never negative."""
    match node:
        case ir.Call("max", args) if any(_never_negative(a, constants) for a in args if not _is_zero(a, zeros)):
            kept = tuple(a for a in args if not _is_zero(a, zeros))
            return kept[0] if len(kept) == 1 else ir.Call("max", kept)
        case _:
            return node


def _never_negative(node: Expr, constants: Mapping[str, float]) -> bool:
    """True if the expression cannot be negative at these constants, because no field is."""
    match node:
        case ir.Number(value):
            return value >= 0.0
        case ir.Const(name):
            return constants[name] >= 0.0
        case ir.Field():
            return True
        case ir.Op("+" | "*" | "/", left, right):
            return _never_negative(left, constants) and _never_negative(right, constants)
        case ir.Call("max", args):
            return any(_never_negative(a, constants) for a in args)
        case ir.Call("min", args):
            return all(_never_negative(a, constants) for a in args)
        case ir.Choose(_, then, other):
            return _never_negative(then, constants) and _never_negative(other, constants)
        case _:
            return False


def _idle(node: Expr, ones: set[str]) -> Expr:
    """The node, or its operand if the operation does nothing."""
    match node:
        case ir.Op("*", ir.Const(name), inner) if name in ones:
            return inner
        case ir.Op("*", inner, ir.Const(name)) if name in ones:
            return inner
        case ir.Op("*" | "/", inner, ir.Number(1.0)) | ir.Op("*", ir.Number(1.0), inner) | ir.Neg(ir.Neg(inner)):
            return inner
        case ir.Choose(_, then, other) if then == other:
            return then
        case ir.Call("max" | "min" as name, args) if len(set(args)) < len(args):
            kept = tuple(dict.fromkeys(args))
            return kept[0] if len(kept) == 1 else ir.Call(name, kept)
        case _:
            return node


def _is_zero(node: Expr, zeros: set[str]) -> bool:
    match node:
        case ir.Number(value):
            return value == 0.0
        case ir.Const(name) | ir.Local(name):
            return name in zeros
        case ir.Neg(value):
            return _is_zero(value, zeros)
        case ir.Op("*", left, right):
            return _is_zero(left, zeros) or _is_zero(right, zeros)
        case ir.Op("/", left, right):  # x/0 is 0, too
            return _is_zero(left, zeros) or (isinstance(right, ir.Const | ir.Local) and right.name in zeros)
        case ir.Choose(_, then, other):
            return _is_zero(then, zeros) and _is_zero(other, zeros)
        case ir.Call("max" | "min", args):
            return all(_is_zero(a, zeros) for a in args)
        case _:
            return False
