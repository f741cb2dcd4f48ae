"""The normal form says what the method says, exactly; its dot products are those of the branch that is taken."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction
from random import Random

import pytest
from drawn_programs import programs
from examples import daily
from grown import grown
from hypothesis import given, settings
from hypothesis import strategies as st

from evolve.run.program import load
from simulator.language import ir
from simulator.language.affine import MOST_PIECES, Affine, WrittenTerm, affine
from simulator.language.evaluate import value
from simulator.language.ir import Function
from simulator.language.normal import Normal
from simulator.language.opcodes import formula
from simulator.language.parse import parse
from simulator.language.unparse import spell
from simulator.schema import FIELDS

Values = Mapping[str | tuple[str, str], Fraction]


def exact(node: ir.Expr, names: Mapping[str, Fraction], fields: Mapping[tuple[str, str], Fraction]) -> Fraction:
    """The value of an expression without calls but max and min in rational numbers, x/0 = 0."""
    match node:
        case ir.Number(number):
            return Fraction(number)
        case ir.Const(name) | ir.Local(name):
            return names[name]
        case ir.Field("b", name) if FIELDS["b", name].formula:
            return exact(formula(name), {}, fields)
        case ir.Field(scope, name):
            return fields[scope, name]
        case ir.Neg(inner):
            return -exact(inner, names, fields)
        case ir.Op(op, left, right):
            x, y = exact(left, names, fields), exact(right, names, fields)
            return x + y if op == "+" else x - y if op == "-" else x * y if op == "*" else x / y if y else Fraction(0)
        case ir.Call(name, args):
            return (max if name == "max" else min)(exact(a, names, fields) for a in args)
        case ir.Choose(condition, then, other):
            return exact(then if holds(condition, names, fields) else other, names, fields)
    raise AssertionError(node)


def holds(c: ir.Compare, names: Mapping[str, Fraction], fields: Mapping[tuple[str, str], Fraction]) -> bool:
    x, y = exact(c.left, names, fields), exact(c.right, names, fields)
    return {"<": x < y, "<=": x <= y, ">": x > y, ">=": x >= y, "==": x == y, "!=": x != y}[c.op]


def result(function: Function, fields: Mapping[tuple[str, str], Fraction]) -> Fraction:
    names = {c.name: Fraction(c.value) for c in function.constants}
    for statement in function.body:
        if not isinstance(statement, ir.Guard):
            names[statement.name] = exact(statement.value, names, fields)
        elif holds(statement.condition, names, fields):
            return exact(statement.value, names, fields)
    return exact(function.result, names, fields)


def rational(function: Function) -> Function:
    """The function without what is not rational: a root or a logarithm becomes its argument."""

    def change(node: ir.Expr) -> ir.Expr:
        return node.args[0] if isinstance(node, ir.Call) and node.name not in ("max", "min") else node

    def compare(c: ir.Compare) -> ir.Compare:
        return ir.Compare(c.op, ir.rebuild(c.left, change), ir.rebuild(c.right, change))

    body = [replace(s, value=ir.rebuild(s.value, change)) for s in function.body]
    body = [replace(s, condition=compare(s.condition)) if isinstance(s, ir.Guard) else s for s in body]
    return replace(function, body=tuple(body), result=ir.rebuild(function.result, change))


def some_fields(seed: int) -> dict[tuple[str, str], Fraction]:
    """Small fields, often 0 and often equal, so that branches and divisions by 0 are met."""
    rng = Random(seed)
    return {field: Fraction(rng.choice((0, 0, 1, 2, 2, 3, 5, 8)), rng.choice((1, 1, 4))) for field in FIELDS}


@settings(max_examples=daily(25, 100), derandomize=True)
@given(programs(), st.integers(0, 10**6), st.booleans())
def test_the_normal_form_has_the_methods_value_to_the_last_digit(program, seed: int, expand: bool) -> None:  # type: ignore[no-untyped-def]
    for function in map(rational, program.functions):
        small = tuple(replace(c, value=float(round(c.value) % 7 - 2)) for c in function.constants)
        function = replace(function, constants=small)
        normal = Normal(expand=expand)
        written = WrittenTerm(normal).expression(normal.function(function))
        if any(
            isinstance(n, ir.Local) or (isinstance(n, ir.Call) and n.name == "pow")
            for n in ir.nodes(Function("", (), (), written))
        ):
            continue  # too large to be written out
        names = {c.name: Fraction(c.value) for c in function.constants}
        fields = some_fields(seed)
        got, wanted = exact(written, names, fields), result(function, fields)
        assert abs(got - wanted) <= abs(wanted) / 10**9, spell(written)  # 1/3 as a coefficient is rounded


def dot_products(function: Function, found: Affine, fields: Mapping[tuple[str, str], float]) -> list[float]:
    names = {c.name: c.value for c in function.constants}
    return [
        sum((names[t.constant] if t.constant else 1.0) * value(t.feature, names, fields) for t in piece.terms)
        for piece in found.pieces
    ]


def test_the_taken_branch_is_one_of_the_dot_products() -> None:
    fields_of = {seed: {f: float(x) + 0.125 for f, x in some_fields(seed).items()} for seed in range(5)}
    whole = branched = 0
    for seed in range(100):
        for function in grown(seed).functions:
            found = affine(function)
            assert set(found.linear) | set(found.outer) == {c.name for c in function.constants}
            for piece in found.pieces:  # no feature has an affine constant, and each constant one feature
                assert len({t.constant for t in piece.terms}) == len(piece.terms)
                for node in (n for t in piece.terms for n in ir.nodes(Function("", (), (), t.feature))):
                    assert not isinstance(node, ir.Const) or node.name in found.outer
            if not found.complete:
                assert len(found.pieces) == MOST_PIECES
                continue
            whole += found.whole
            branched += len(found.pieces) > 1
            names = {c.name: c.value for c in function.constants}
            for fields in fields_of.values():
                written_out = {**fields, **{f: value(formula(f[1]), {}, fields) for f in FIELDS if FIELDS[f].formula}}
                body = {s.name: s for s in function.body if not isinstance(s, ir.Guard)}
                assert not body or len(body) == len(function.body)  # grown programs have no guards
                wanted = value(
                    function.result,
                    {**names, **{n: value(s.value, names, written_out) for n, s in body.items()}},
                    written_out,
                )
                assert any(wanted == pytest.approx(x, rel=1e-9) for x in dot_products(function, found, written_out))
    assert whole > 50 and branched > 15


# formula | affine constants | others | dot products, each after the branches that are taken
EXAMPLES = """
return a * (b.tokens + b.kv_sum) + c | a c | | [a: b.tokens + b.kv_sum, c: 1]
return max(a, c * b.weight_read_us) + b.kv_read_us / c | a | c | max is a [a: 1, -: b.kv_read_us / c] max is \
c * b.weight_read_us [-: b.kv_read_us / c + c * b.weight_read_us]
return a * (c * b.tokens + d * b.kv_sum) | c d | a | [c: a * b.tokens, d: a * b.kv_sum]
if b.tokens > c: return a * log1p(d * b.tokens); return a | a | c d | b.tokens > c [a: log1p(d * b.tokens)] \
b.tokens <= c [a: 1]
"""


@pytest.mark.parametrize("line", EXAMPLES.strip().splitlines())
def test_written_examples(line: str) -> None:
    text, *expected = (cell.strip() for cell in line.split(" |"))
    names = ", ".join(f"{name}=2.0" for name in "acd" if re.search(rf"\b{name}\b", text))
    found = affine(parse(f"def step_time(b, s, *, {names}):\n    " + text.replace("; ", "\n    ")).functions[0])
    terms = [", ".join(f"{t.constant or '-'}: {spell(t.feature)}" for t in p.terms) for p in found.pieces]
    pieces = [f"{' and '.join(p.taken)} [{each}]" for p, each in zip(found.pieces, terms, strict=True)]
    assert [" ".join(found.linear), " ".join(found.outer), " ".join(pieces).strip()] == expected


def test_the_champion_is_one_dot_product_but_for_its_divisors() -> None:
    for function in load("champion").complete.functions:
        found = affine(function)
        floor = function.name == "step_time"  # the time that the host needs to issue a step is the other piece
        choices = 2 if floor else 1 + (function.name == "queueing_time")  # each has one choice within
        assert len(found.pieces) == choices + floor and found.complete
