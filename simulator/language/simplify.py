"""Shorten a program without changing its results: terms that a fit switched off, x + 0, x * 1, max(x, x)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

from simulator.language import ir
from simulator.language.ir import OVERHEADS, Expr, Function, Node, Program, nodes, rebuild, rebuilt, walk
from simulator.language.units import ONE
from simulator.language.unparse import terms


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


def without_dominated(program: Program) -> Program:
    """The program without arguments of max and min that another one never lets through, because no field is negative.

    Such an argument is another one less (in a max) or plus (in a min) terms that are not negative, whatever a fit
    makes of the constants. Equal but for the last bit, where terms are added in another order.

    >>> text = "def step_time(b, s, *, c=2.0, d=3.0): return max(c * b.tokens + d * b.kv_sum, c * b.tokens)"
    >>> print(unparse(without_dominated(parse(text))), end="")
    def step_time(b, s, *, c=2.0, d=3.0):
        return c * b.tokens + d * b.kv_sum
    """
    return replace(program, functions=tuple(map(_without_dominated, program.functions)))


def _without_dominated(function: Function) -> Function:
    signs = {c.name: min(c.value, c.bounds[0] if c.bounds else 0.0) for c in function.constants}
    for statement in function.body:
        if isinstance(statement, ir.Let):
            signs[statement.name] = 0.0 if _never_negative(statement.value, signs) else -1.0

    def simpler(node: Expr) -> Expr:
        if not isinstance(node, ir.Call) or node.name not in ("max", "min"):
            return node
        kept = list(node.args)
        for arg in node.args:
            others = [other for other in kept if other is not arg]
            pairs = [(other, arg) if node.name == "max" else (arg, other) for other in others]
            if any(_never_negative_gap(high, low, signs) for high, low in pairs):
                kept = others
        return kept[0] if len(kept) == 1 else ir.Call(node.name, tuple(kept))

    shorter = rebuilt(function, simpler)
    return function if shorter == function else without_unused(shorter)


def _never_negative_gap(high: Expr, low: Expr, signs: Mapping[str, float]) -> bool:
    """True if `high - low` cannot be negative: terms that both have cancel, and no other one can lower it."""
    gap = Counter(terms(high))
    gap.subtract(terms(low))
    left = [(sign if n > 0 else {"+": "-", "-": "+"}[sign], term) for (sign, term), n in gap.items() if n]
    return all(sign == "+" and _never_negative(term, signs) for sign, term in left)


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
        case ir.Const(name) | ir.Local(name):
            return constants.get(name, -1.0) >= 0.0  # of a variable, only where its sign is among them
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
