"""The normal form says what the method says, exactly; its dot products are those of the branch that is taken."""

from __future__ import annotations

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
from simulator.language.affine import MOST_PIECES, Affine, WrittenTerm, affine
from simulator.language.evaluate import value
from simulator.language.ir import (
    Call,
    Choose,
    Compare,
    Const,
    Expr,
    Field,
    Function,
    Guard,
    Local,
    Neg,
    Number,
    Op,
    nodes,
    rebuild,
)
from simulator.language.normal import Normal
from simulator.language.opcodes import formula
from simulator.language.parse import parse
from simulator.language.unparse import spell
from simulator.schema import FIELDS

Values = Mapping[str | tuple[str, str], Fraction]


def exact(node: Expr, names: Mapping[str, Fraction], fields: Mapping[tuple[str, str], Fraction]) -> Fraction:
    """The value of an expression without calls but max and min in rational numbers, x/0 = 0."""
    match node:
        case Number(number):
            return Fraction(number)
        case Const(name) | Local(name):
            return names[name]
        case Field("b", name) if FIELDS["b", name].formula:
            return exact(formula(name), {}, fields)
        case Field(scope, name):
            return fields[scope, name]
        case Neg(inner):
            return -exact(inner, names, fields)
        case Op(op, left, right):
            x, y = exact(left, names, fields), exact(right, names, fields)
            return x + y if op == "+" else x - y if op == "-" else x * y if op == "*" else x / y if y else Fraction(0)
        case Call(name, args):
            return (max if name == "max" else min)(exact(a, names, fields) for a in args)
        case Choose(condition, then, other):
            return exact(then if holds(condition, names, fields) else other, names, fields)
    raise AssertionError(node)


def holds(c: Compare, names: Mapping[str, Fraction], fields: Mapping[tuple[str, str], Fraction]) -> bool:
    x, y = exact(c.left, names, fields), exact(c.right, names, fields)
    return {"<": x < y, "<=": x <= y, ">": x > y, ">=": x >= y, "==": x == y, "!=": x != y}[c.op]


def result(function: Function, fields: Mapping[tuple[str, str], Fraction]) -> Fraction:
    names = {c.name: Fraction(c.value) for c in function.constants}
    for statement in function.body:
        if not isinstance(statement, Guard):
            names[statement.name] = exact(statement.value, names, fields)
        elif holds(statement.condition, names, fields):
            return exact(statement.value, names, fields)
    return exact(function.result, names, fields)


def rational(function: Function) -> Function:
    """The function without what is not rational: a root or a logarithm becomes its argument."""

    def change(node: Expr) -> Expr:
        return node.args[0] if isinstance(node, Call) and node.name not in ("max", "min") else node

    def compare(c: Compare) -> Compare:
        return Compare(c.op, rebuild(c.left, change), rebuild(c.right, change))

    body = [
        replace(
            s, value=rebuild(s.value, change), **({"condition": compare(s.condition)} if isinstance(s, Guard) else {})
        )
        for s in function.body
    ]
    return replace(function, body=tuple(body), result=rebuild(function.result, change))


def some_fields(seed: int) -> dict[tuple[str, str], Fraction]:
    """Small fields, often 0 and often equal, so that branches and divisions by 0 are met."""
    rng = Random(seed)
    return {field: Fraction(rng.choice((0, 0, 1, 2, 2, 3, 5, 8)), rng.choice((1, 1, 4))) for field in FIELDS}


@settings(max_examples=daily(40, 100), derandomize=True)
@given(programs(), st.integers(0, 10**6), st.booleans())
def test_the_normal_form_has_the_methods_value_to_the_last_digit(program, seed: int, expand: bool) -> None:  # type: ignore[no-untyped-def]
    for function in map(rational, program.functions):
        small = tuple(replace(c, value=float(round(c.value) % 7 - 2)) for c in function.constants)
        function = replace(function, constants=small)
        normal = Normal(expand=expand)
        written = WrittenTerm(normal).expression(normal.function(function))
        if any(
            isinstance(n, Local) or (isinstance(n, Call) and n.name == "pow")
            for n in nodes(Function("", (), (), written))
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
    for seed in range(200):
        for function in grown(seed).functions:
            found = affine(function)
            assert set(found.linear) | set(found.outer) == {c.name for c in function.constants}
            if not found.complete:
                assert len(found.pieces) == MOST_PIECES
                continue
            whole += found.whole
            branched += len(found.pieces) > 1
            names = {c.name: c.value for c in function.constants}
            for fields in fields_of.values():
                written_out = {**fields, **{f: value(formula(f[1]), {}, fields) for f in FIELDS if FIELDS[f].formula}}
                body = {s.name: s for s in function.body if not isinstance(s, Guard)}
                assert not body or len(body) == len(function.body)  # grown programs have no guards
                wanted = value(
                    function.result,
                    {**names, **{n: value(s.value, names, written_out) for n, s in body.items()}},
                    written_out,
                )
                assert any(wanted == pytest.approx(x, rel=1e-9) for x in dot_products(function, found, written_out))
    assert whole > 100 and branched > 30


def test_no_feature_depends_on_an_affine_constant() -> None:
    for seed in range(200):
        for function in grown(seed).functions:
            found = affine(function)
            for piece in found.pieces:
                for term in piece.terms:
                    inside = {n.name for n in nodes(Function("", (), (), term.feature)) if isinstance(n, Const)}
                    assert inside <= set(found.outer)
                assert len({t.constant for t in piece.terms}) == len(piece.terms)


def analysed(text: str) -> tuple[tuple[str, ...], tuple[str, ...], list[tuple[tuple[str, ...], list[str]]]]:
    found = affine(parse(text).functions[0])
    pieces = [(p.taken, [f"{t.constant or '-'}: {spell(t.feature)}" for t in p.terms]) for p in found.pieces]
    return found.linear, found.outer, pieces


def test_written_examples() -> None:
    assert analysed("def step_time(b, s, *, a=1.0, c=2.0): return a * (b.tokens + b.kv_sum) + c") == (
        ("a", "c"),
        (),
        [((), ["a: b.tokens + b.kv_sum", "c: 1"])],
    )
    assert analysed("def step_time(b, s, *, f=1.0, w=2.0): return max(f, w * b.weight_read_us) + b.kv_read_us / w") == (
        ("f",),
        ("w",),
        [
            (("max is f",), ["f: 1", "-: b.kv_read_us / w"]),
            (("max is w * b.weight_read_us",), ["-: b.kv_read_us / w + w * b.weight_read_us"]),
        ],
    )
    assert analysed("def step_time(b, s, *, a=1.0, c=2.0, d=3.0): return a * (c * b.tokens + d * b.kv_sum)") == (
        ("c", "d"),
        ("a",),
        [((), ["c: a * b.tokens", "d: a * b.kv_sum"])],
    )
    assert analysed(
        "def step_time(b, s, *, a=1.0, c=2.0, d=3.0):\n    if b.tokens > c: return a * log1p(d * b.tokens)\n    return a"
    ) == (("a",), ("c", "d"), [(("b.tokens > c",), ["a: log1p(d * b.tokens)"]), (("b.tokens <= c",), ["a: 1"])])


def test_the_names_of_affine_constants_cost_no_dot_products(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(normal: Normal) -> WrittenTerm:
        raise AssertionError("written out")

    monkeypatch.setattr("simulator.language.affine.WrittenTerm", refused)
    found = affine(parse("def step_time(b, s, *, c=2.0, d=3.0): return max(c * b.tokens, sqrt(d))").functions[0])
    assert (found.linear, found.outer) == (("c",), ("d",))
    with pytest.raises(AssertionError, match="written out"):
        found.pieces  # noqa: B018


def test_the_champion_is_one_dot_product_but_for_its_divisors() -> None:
    for function in load("champion").complete.functions:
        found = affine(function)
        assert len(found.pieces) == 1 and found.complete
