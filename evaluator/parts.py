"""Parts of a program: forms with a factor on each part, whose slopes are contributions, and forms without a part.

A term is an additive term of a method, also inside max, min and choices; without it max and min lose the argument. A
kernel is the field of a measured kernel wherever step_time reads it; its products go with it. A factor is a constant
that corrects a measured kernel; without it the kernel counts as measured. A method is queueing_time, output_token_time
or completion_time; without it the host's own form applies.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial

from simulator.language.bounds import kernel_factors
from simulator.language.complete import complete
from simulator.language.ir import (
    Call,
    Choose,
    Const,
    Constant,
    Expr,
    Field,
    Function,
    Guard,
    Let,
    Local,
    Neg,
    Number,
    Op,
    Program,
    nodes,
    rebuild,
    rebuilt,
    walk,
)
from simulator.language.key import key
from simulator.language.simplify import brief, without_unused
from simulator.language.unparse import spell
from simulator.schema import KERNELS

KINDS = TERM, KERNEL, FACTOR, METHOD = "term", "kernel", "factor", "method"
GATE = "uncaptured"  # 0 or 1: its product with another field counts for the other field

_GONE = Local("* gone")  # stands for a dropped part, until nothing adds, multiplies or compares it

Mark = Callable[[str, Expr], Expr]  # multiplies an expression by the factor of this name


@dataclass(frozen=True, slots=True)
class FactorPart:
    """The part that a factor multiplies: a term of a method, or a batch field; "" for terms without batch fields."""

    method: str
    text: str


@dataclass(frozen=True)
class Factored:
    """A program with factors, and the part of each, by its position in `program.theta`."""

    program: Program
    parts: dict[int, FactorPart]


def by_term(program: Program) -> Factored:
    """The program with a factor on every additive term of its methods, also inside max, min and choices.

    Terms with the same text share a factor.
    """
    return _factored(program, lambda function, mark: on_terms(function, lambda term: mark(spell(term), term)))


def by_field(program: Program) -> Factored:
    """The program with a factor on every batch field, and one in each method on the terms without any.

    The contributions add up to the times of the program, except where fields multiply each other. The reference step
    counts for the fields of that step.
    """
    return _factored(program, _on_fields)


def terms(function: Function) -> dict[str, Expr]:
    """The additive terms of a method by their text, in the order of `by_term`."""
    found: dict[str, Expr] = {}
    on_terms(function, lambda term: found.setdefault(spell(term), term))
    return found


def _factored(program: Program, rewrite: Callable[[Function, Mark], Function]) -> Factored:
    functions, parts, first = [], dict[int, FactorPart](), 0
    for function in program.functions:
        marked, names = _marked(function, rewrite)
        first += len(function.constants)
        parts |= {first + i: FactorPart(function.name, name) for i, name in enumerate(names)}
        first += len(names)
        functions.append(marked)
    return Factored(replace(program, functions=tuple(functions)), parts)


def _marked(function: Function, rewrite: Callable[[Function, Mark], Function]) -> tuple[Function, list[str]]:
    """The function with factors among its constants, and their names."""
    found: dict[str, Constant] = {}

    def mark(name: str, node: Expr) -> Expr:
        factor = found.setdefault(name, Constant(f"* {name}", 1.0))  # no program can spell a blank in a name
        return Op("*", Const(factor.name), node)

    marked = rewrite(function, mark)
    return replace(marked, constants=(*function.constants, *found.values())), list(found)


def on_terms(
    function: Function, term: Callable[[Expr], Expr], value: Callable[[Expr], Expr] = lambda value: value
) -> Function:
    """The function with `term` applied to the additive terms of its result, and `value` to other assigned values.

    The terms of a name that is itself a term are terms of the result.
    """
    additive: set[str] = set()

    def split(node: Expr) -> Expr:
        match node:
            case Op("+" | "-" as op, left, right):
                return Op(op, split(left), split(right))
            case Neg(inner):
                return Neg(split(inner))
            case Call("max" | "min" as name, args):
                return Call(name, tuple(map(split, args)))
            case Choose(condition, then, other):
                return Choose(condition, split(then), split(other))
            case Local(name):
                additive.add(name)
                return node
        return term(node)

    result, body = split(function.result), list[Let | Guard]()
    for s in reversed(function.body):  # a name is used after it is assigned
        summed = isinstance(s, Guard) or s.name in additive
        body.append(replace(s, value=(split if summed else value)(s.value)))
    return replace(function, body=tuple(reversed(body)), result=result)


def _on_fields(function: Function, mark: Mark) -> Function:
    batch: set[str] = set()  # names whose values read a batch field

    def reads(node: Expr) -> bool:
        return any(_is_batch(n) or (isinstance(n, Local) and n.name in batch) for n in walk(node))

    def field(node: Expr) -> Expr:
        return mark(spell(node), node) if isinstance(node, Field) and node.scope == "b" and _is_batch(node) else node

    def fields(value: Expr) -> Expr:
        return rebuild(value, field)

    for s in function.body:
        if isinstance(s, Let) and reads(s.value):
            batch.add(s.name)
    return on_terms(function, lambda term: fields(term) if reads(term) else mark("", term), fields)


def _is_batch(node: object) -> bool:
    """Return True for a batch field, and for the reference step, which is made of batch fields."""
    match node:
        case Field("b", name):
            return name != GATE
        case Field("s", name):
            return name == "reference_step_us"
    return False


@dataclass(frozen=True)
class Dropped:
    """A part of a program as the program spells it, and the program without it, every timed method written out.

    kind: one of KINDS. program: None if nothing would be left of the step time.
    """

    kind: str
    method: str
    text: str
    program: Program | None


def dropped_parts(program: Program) -> tuple[Dropped, ...]:
    """The program without each of its parts in turn, each form once, and none that is the program itself.

    Methods that the program leaves to the host, and overheads of 0, have no parts.
    """
    own = {f.name for f in brief(program).functions}
    program = complete(program)
    seen, parts = {key(program)}, list[Dropped]()
    for part in (*_terms(program), *_kernels(program), *_factors(program), *_methods(program)):
        if part.method not in own:
            continue
        if part.program is None:
            parts.append(part)
        elif key(part.program) not in seen:
            seen.add(key(part.program))
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
        if bare.function(function.name):  # the form of the host
            yield Dropped(METHOD, function.name, function.name, bare)


def _replaced(function: Function, old: Expr, new: Expr) -> Function:
    """The function with one expression instead of another, wherever it occurs."""
    return rebuilt(function, lambda node: new if node == old else node)


def _with(program: Program, function: Function) -> Program | None:
    """The program with this function, without _GONE; None if no step is left."""
    gone: set[Expr] = set()  # names whose values are _GONE

    def without(node: Expr) -> Expr:
        return _GONE if node in gone else _without(node)

    bare = rebuilt(function, without)
    while names := {Local(s.name) for s in bare.body if isinstance(s, Let) and s.value == _GONE} - gone:
        gone |= names
        bare = rebuilt(bare, without)
    if bare.result == _GONE and function.name == "step_time":
        return None
    bare = without_unused(_replaced(bare, _GONE, Number(0.0)))  # a branch or a condition of which nothing else is left
    return replace(program, functions=tuple(bare if f.name == bare.name else f for f in program.functions))


def _without(node: Expr) -> Expr:
    """The node without _GONE; its operands are done."""
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
            return _GONE  # a quotient by 0 is 0
        case Neg(inner) if inner == _GONE:
            return _GONE
        case Call("max" | "min" as name, args) if _GONE in args:
            kept = tuple(a for a in args if a != _GONE)
            return Call(name, kept) if len(kept) > 1 else kept[0] if kept else _GONE
        case Choose(_, then, other) if then == other:
            return then
    return node
