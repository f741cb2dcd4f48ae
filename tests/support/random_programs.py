"""Random programs over the whole language, without regard to units: what back ends must agree on."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from simulator.language.ir import (
    CALLS,
    COMPARISONS,
    METHODS,
    Call,
    Choose,
    Compare,
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
)
from simulator.schema import FIELDS

BATCH_FIELDS = [f for f in FIELDS if f[0] == "b"]
STATIC_FIELDS = [f for f in FIELDS if f[0] == "s" and f[1] != "reference_step_us"]
DRAWN = ("max", "min", "sqrt")  # the functions that every program may have
OTHERS = tuple(name for name in CALLS if name not in DRAWN)
REQUEST_FIELDS = [("r", "input_len"), ("s", "reference_step_us")]


def random_expression(rng: Random, depth: int, leaves: Sequence[Expr], calls: Sequence[str] = ()) -> Expr:
    """An expression of the leaves and literals, over every operator and the functions DRAWN; of OTHERS only `calls`."""
    if depth == 0 or rng.random() < 0.1:
        return rng.choice(leaves) if rng.random() < 0.85 else Number(rng.choice((0.0, 1.0, 2.0, 0.5)))

    def below() -> Expr:
        return random_expression(rng, depth - 1, leaves, calls)

    kind = rng.randrange(12 + bool(calls))
    if kind < 8:
        return Op("+-*/"[kind % 4], below(), below())
    if kind == 8:
        return Call(rng.choice(("max", "min")), tuple(below() for _ in range(rng.randint(2, 4))))
    if kind == 9:
        return Neg(below())
    if kind == 10:
        return Call("sqrt", (below(),))
    if kind == 11:
        return Choose(Compare(rng.choice(COMPARISONS), below(), below()), below(), below())
    name = rng.choice(calls)
    if name != "pow":
        return Call(name, tuple(below() for _ in range(CALLS[name][0])))
    exponent = rng.choice([leaf for leaf in leaves if isinstance(leaf, Const)] or [Number(0.5), Number(2.0)])
    return Call(name, (below(), Neg(exponent) if rng.random() < 0.3 else exponent))


def random_program(rng: Random, calls: Sequence[str] = ()) -> Program:
    """Every method: lets (some of them dead), guards and a result in step_time, a formula in the others."""
    functions = [_step_time(rng, calls)]
    for name in METHODS:
        if name != "step_time":
            leaves = [Field(*rng.choice(STATIC_FIELDS)) for _ in range(3)]
            leaves += [Field(*f) for f in REQUEST_FIELDS] if name == "queueing_time" else []
            functions.append(Function(name, (), (), random_expression(rng, 3, leaves, calls)))
    return Program(tuple(functions))


def _step_time(rng: Random, calls: Sequence[str]) -> Function:
    constants = tuple(Constant(f"k{i}", rng.choice((0.0, 1.5, -2.25, 10 ** rng.uniform(-6, 6)))) for i in range(3))
    leaves: list[Expr] = [Field(*field) for field in rng.sample(BATCH_FIELDS, 6) + rng.sample(STATIC_FIELDS, 2)]
    leaves += [Const(c.name) for c in constants]
    body: list[Let | Guard] = []
    for i in range(3):
        body.append(Let(f"x{i}", random_expression(rng, 3, leaves, calls)))
        leaves += [Local(f"x{i}")] * 2
        if rng.random() < 0.5:
            condition = Compare("<", random_expression(rng, 1, leaves), random_expression(rng, 1, leaves))
            body.append(Guard(condition, random_expression(rng, 2, leaves, calls)))
    return Function("step_time", constants, tuple(body), random_expression(rng, 4, leaves, calls))
