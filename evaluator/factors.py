"""Programs with a factor of 1 on each of their parts: the slope in such a factor is what its part contributes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

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
    Op,
    Program,
    rebuild,
    walk,
)
from simulator.language.unparse import spell

GATE = "uncaptured"  # 0 or 1: what it switches counts for the field that it multiplies

Mark = Callable[[str, Expr], Expr]  # multiplies an expression by the factor of this name


@dataclass(frozen=True, slots=True)
class FactorPart:
    """What a factor multiplies: a term of a method, or a batch field; "" for all that reads none."""

    method: str
    text: str


@dataclass(frozen=True)
class Factored:
    """A program with factors, and what each of them multiplies, by its position in `program.theta`."""

    program: Program
    parts: dict[int, FactorPart]


def by_term(program: Program) -> Factored:
    """The program with a factor on every additive term of its methods, also inside max, min and choices.

    Terms with the same text share their factor.
    """
    return _factored(program, lambda function, mark: on_terms(function, lambda term: mark(spell(term), term)))


def by_field(program: Program) -> Factored:
    """The program with a factor on every batch field, and in each method one on the terms that read none.

    What these parts contribute adds up to the program's times, except where fields are multiplied with each other. The
    reference step counts for the fields of that step.
    """
    return _factored(program, _on_fields)


def terms(function: Function) -> dict[str, Expr]:
    """The additive terms of a method by their text, which are those that `by_term` gives factors, in its order.

    >>> list(terms(parse("def step_time(b, s, *, c=5.0): return max(c * s.layers + b.kv_read_us, c)").functions[0]))
    ['c * s.layers', 'b.kv_read_us', 'c']
    """
    found: dict[str, Expr] = {}

    def keep(term: Expr) -> Expr:
        found.setdefault(spell(term), term)
        return term

    on_terms(function, keep)
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
    """The function with `term` applied to the additive terms of its result, and `value` to what is assigned otherwise.

    Terms of a name that is itself a term are terms of the result.
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
    """Whether the node is a batch field, or the reference step, which is made of batch fields."""
    match node:
        case Field("b", name):
            return name != GATE
        case Field("s", name):
            return name == "reference_step_us"
    return False
