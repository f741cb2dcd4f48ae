"""Simpler forms of a program, each without one of its parts: what an ablation fits again.

Four kinds of parts. A term: an additive term of a method, also inside max, min and choices (evaluator.factors); of max
and min its argument goes, so that the others decide. A kernel: a measured kernel's field wherever step_time reads it,
with all that it multiplies. A factor: a constant that corrects a measured kernel, which is then taken as it was
measured. A method: queueing_time, output_token_time or completion_time, which is then the host's own form.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial

from evaluator.factors import on_terms, terms
from simulator.language.bounds import kernel_factors
from simulator.language.complete import complete
from simulator.language.ir import (
    Call,
    Choose,
    Const,
    Expr,
    Field,
    Function,
    Let,
    Local,
    Neg,
    Number,
    Op,
    Program,
    nodes,
    rebuilt,
)
from simulator.language.key import key
from simulator.language.simplify import brief, without_unused
from simulator.language.unparse import spell
from simulator.schema import KERNELS

KINDS = TERM, KERNEL, FACTOR, METHOD = "term", "kernel", "factor", "method"
_GONE = Local("* gone")  # what is dropped, until nothing is left that adds, multiplies or compares it


@dataclass(frozen=True)
class Dropped:
    """A part of a program, and the program without it, every timed method written out; None if nothing would be left
    of a step's time. kind: one of KINDS; text: the part as the program spells it, of a method its name."""

    kind: str
    method: str
    text: str
    program: Program | None


def dropped_parts(program: Program) -> tuple[Dropped, ...]:
    """The program without each of its parts in turn. A form that an earlier part gave already is left out, and so is
    one that is the program itself. Methods that it leaves to the host, and overheads of 0, have no parts.

    >>> text = "def step_time(b, s, *, c=2.0): return max(c * b.tokens, b.kv_sum)"
    >>> [(d.kind, d.text) for d in dropped_parts(parse(text))]
    [('term', 'c * b.tokens'), ('term', 'b.kv_sum')]
    """
    own = {f.name for f in brief(program).functions}
    program = complete(program)
    seen, parts = {key(program)}, list[Dropped]()
    for part in (*_terms(program), *_kernels(program), *_factors(program), *_methods(program)):
        if part.method not in own:
            continue
        if part.program is None:
            parts.append(part)
        elif (form := key(part.program)) not in seen:
            seen.add(form)
            parts.append(part)
    return tuple(parts)


def _terms(program: Program) -> Iterator[Dropped]:
    for function in program.functions:
        for text in terms(function):
            yield Dropped(TERM, function.name, text, _with(program, on_terms(function, partial(_unless, text))))


def _unless(text: str, term: Expr) -> Expr:
    return _GONE if spell(term) == text else term


def _kernels(program: Program) -> Iterator[Dropped]:
    step = program.function("step_time")
    assert step, "every program has one"
    fields = dict.fromkeys(n for n in nodes(step) if isinstance(n, Field) and n.scope == "b" and n.name in KERNELS)
    for field in fields:
        yield Dropped(KERNEL, step.name, spell(field), _with(program, _replaced(step, field, _GONE)))


def _factors(program: Program) -> Iterator[Dropped]:
    names = [(f, c.name) for f in program.functions for c in f.constants]
    for (function, name), corrects in zip(names, kernel_factors(program), strict=True):
        if corrects:
            yield Dropped(FACTOR, function.name, name, _with(program, _replaced(function, Const(name), Number(1.0))))


def _methods(program: Program) -> Iterator[Dropped]:
    for function in program.functions:
        others = tuple(f for f in program.functions if f is not function)
        bare = complete(replace(program, functions=others))
        if bare.function(function.name):  # the host has a form of its own for it
            yield Dropped(METHOD, function.name, function.name, bare)


def _replaced(function: Function, old: Expr, new: Expr) -> Function:
    """The function with one expression instead of another, wherever it occurs."""
    return rebuilt(function, lambda node: new if node == old else node)


def _with(program: Program, function: Function) -> Program | None:
    """The program with this function, in which _GONE stands for what is dropped; None if no step is left."""
    gone: set[Expr] = set()  # names of what is dropped, as far as they are found

    def without(node: Expr) -> Expr:
        return _GONE if node in gone else _without(node)

    bare = rebuilt(function, without)
    while names := {Local(s.name) for s in bare.body if isinstance(s, Let) and s.value == _GONE} - gone:
        gone |= names
        bare = rebuilt(bare, without)
    if bare.result == _GONE and function.name == "step_time":
        return None
    bare = without_unused(_replaced(bare, _GONE, Number(0.0)))  # where nothing else is left of a branch or a condition
    return replace(program, functions=tuple(bare if f.name == bare.name else f for f in program.functions))


def _without(node: Expr) -> Expr:
    """The node, whose operands are done, without what is gone."""
    match node:
        case Op("+", left, right) if _GONE in (left, right):
            return left if right == _GONE else right
        case Op("-", left, right) if _GONE in (left, right):
            return left if right == _GONE else Neg(right)
        case Op("*", left, right) if _GONE in (left, right):
            return _GONE
        case Op("*", Number(1.0), inner) | Op("*" | "/", inner, Number(1.0)):  # a factor that is held at 1
            return inner
        case Op("/", left, right) if _GONE in (left, right):
            return _GONE  # what is divided by 0 is 0
        case Neg(inner) if inner == _GONE:
            return _GONE
        case Call("max" | "min" as name, args) if _GONE in args:
            kept = tuple(a for a in args if a != _GONE)
            return Call(name, kept) if len(kept) > 1 else kept[0] if kept else _GONE
        case Choose(_, then, other) if then == other:
            return then
    return node
