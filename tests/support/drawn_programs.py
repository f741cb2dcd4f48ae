"""Any program that the parser could have made, and any deployment, drawn by hypothesis."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from hypothesis import strategies as st

from simulator.language.ir import (
    CALLS,
    COMPARISONS,
    FREE_LITERALS,
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
    nodes,
)
from simulator.language.measure import Caps
from simulator.schema import FIELDS
from simulator.serving.engine import Engine
from simulator.serving.facts import Facts
from simulator.serving.known import facts_of

FACTS = Facts(
    {name: 1.0 + i / 8 for i, (scope, name) in enumerate(FIELDS) if scope == "s" and name != "reference_step_us"}
    | {
        "experts": 8.0,
        "active_experts": 2.0,
        "dp": 1.0,
        "draft_tokens": 0.0,
        "layers": 32.0,
        "tp": 2.0,
        "flops_per_us": 9.9e8,
        "bytes_per_us": 3.35e6,
    },
    facts_of("mixtral-8x7b", "H100", Engine(tensor_parallel=2)).deployed,  # measured kernels are as they are
)

STATIC = sorted(FACTS)
facts_maps = st.dictionaries(
    st.sampled_from(STATIC),
    st.sampled_from([0.0, -1.0, 0.1, 1e9, 1e300, 1e-300, math.inf, math.nan]),
    max_size=4,
).map(lambda some: Facts(FACTS | some, FACTS.deployed))

WORDS = [f"{stem}{n}" for stem in ("k", "c", "x_", "Long_Name_") for n in range(9)] + [
    "us",
    "one",
    "type",
    "_",
    "tokens",
]


class _Growth:
    """Draws one function's expressions within what is left of the caps."""

    def __init__(self, draw: Callable[..., Any], left: Caps, scopes: tuple[str, ...], queueing: bool) -> None:
        self.draw, self.left = draw, left
        self.fields = [f for f in FIELDS if f[0] in scopes and (queueing or f[1] != "reference_step_us")]
        self.words = list(WORDS)
        self.constants: dict[str, Constant] = {}
        self.locals: list[str] = []

    def pick(self, options: Sequence[Any]) -> Any:
        return self.draw(st.sampled_from(options))

    def word(self) -> str:
        return str(self.words.pop(self.draw(st.integers(0, len(self.words) - 1))))

    def spend(self, **amounts: int) -> bool:
        after = replace(self.left, **{k: getattr(self.left, k) - n for k, n in amounts.items()})
        enough = min(after.operations, after.conditionals, after.constants) >= 0
        self.left = after if enough else self.left
        return enough

    def constant(self) -> Expr:
        if (self.constants and self.draw(st.booleans())) or not self.spend(constants=1):
            return Const(self.pick(list(self.constants))) if self.constants else Number(1.0)
        name = self.word()
        value = self.draw(st.floats(allow_nan=False, allow_infinity=False) | st.floats(0, 100))
        unit = self.draw(st.none() | st.tuples(*[st.integers(-2, 2) | st.integers(-9, 9)] * 5))
        limits = self.draw(st.none() | st.tuples(*[st.floats(-1e9, 1e9)] * 2).map(sorted).map(tuple))
        self.constants[name] = Constant(name, value, unit, limits if unit is not None else None)
        return Const(name)

    def leaf(self) -> Expr:
        match self.pick(["field", "field", "constant", "number", "local"]):
            case "field":
                return Field(*self.pick(self.fields))
            case "number":
                return Number(self.pick(FREE_LITERALS))
            case "local" if self.locals:
                return Local(self.pick(self.locals))
            case _:
                return self.constant()

    def compare(self, depth: int) -> Compare:
        return Compare(self.pick(COMPARISONS), self.grow(depth - 1), self.grow(depth - 1))

    def grow(self, depth: int) -> Expr:
        kind = self.pick(["op", "op", "op", "call", "choose", "neg", "leaf"]) if depth else "leaf"
        if kind == "op" and self.spend(operations=1):
            return Op(self.pick("+-*/"), self.grow(depth - 1), self.grow(depth - 1))
        if kind == "neg":
            return Neg(self.grow(depth - 1))
        if kind == "choose" and self.spend(operations=2, conditionals=1):
            return Choose(self.compare(depth), self.grow(depth - 1), self.grow(depth - 1))
        if kind == "call":
            name = self.pick(list(CALLS))
            size = self.draw(st.integers(2, 4)) if CALLS[name][1] > 2 else CALLS[name][1]
            if self.spend(operations=size - 1 if CALLS[name][1] > 2 else 1):
                if name == "pow":
                    exponent = self.pick([self.constant, lambda: Number(2.0)])()
                    exponent = Neg(exponent) if self.draw(st.booleans()) else exponent
                    return Call(name, (self.grow(depth - 1), exponent))
                return Call(name, tuple(self.grow(depth - 1) for _ in range(size)))
        return self.leaf()


documents = st.text(st.sampled_from("ab \"'\\\n\r\t\0\x0b\x7f\xe9\u2028\ud800#{") | st.characters(), max_size=12)


@st.composite
def programs(draw) -> Program:  # type: ignore[no-untyped-def]
    """Any program over the schema's fields within the caps, as the parser could have made it."""
    left, functions = Caps(), []
    for method, scopes in METHODS.items():
        if method != "step_time" and not draw(st.booleans()):
            continue
        growth = _Growth(draw, left, scopes, method == "queueing_time")
        body: list[Let | Guard] = []
        for _ in range(draw(st.integers(0, 3))):
            if draw(st.booleans()) and growth.spend(operations=2, conditionals=1):
                body.append(Guard(growth.compare(2), growth.grow(2)))
            else:
                value = growth.grow(3)
                body.append(Let(growth.word(), value))
                growth.locals.append(body[-1].name)  # type: ignore[union-attr]
        function = Function(method, (), tuple(body), growth.grow(5), draw(documents))
        while dead := unused_lets(function):
            function = replace(function, body=tuple(s for s in function.body if s not in dead))
        used = {n.name for n in nodes(function) if isinstance(n, Const)}
        constants = tuple(c for c in growth.constants.values() if c.name in used)
        functions.append(replace(function, constants=constants))
        left = growth.left
    return Program(tuple(functions), draw(documents))


def unused_lets(function: Function) -> list[Let]:
    used = {n.name for n in nodes(function) if isinstance(n, Local)}
    return [s for s in function.body if isinstance(s, Let) and s.name not in used]
