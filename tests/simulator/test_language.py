"""The language: one program, one meaning, whoever reads it; text and representation are inverse."""

from __future__ import annotations

import gc
import math
import re
import struct
import sys
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from importlib.resources import files

import numpy as np
import oracle
import pytest
from drawn_programs import FACTS, facts_maps, programs
from examples import daily
from hypothesis import given, settings
from hypothesis import strategies as st
from written_programs import PROGRAMS

from simulator.clock.bind import bind
from simulator.clock.fields import Active, BatchFields, raw_fields
from simulator.clock.vm import clamps, to_ticks
from simulator.common.errors import InputError
from simulator.language import ir, measure, units
from simulator.language.bounds import at_bounds, bounds, kernel_factors, too_narrow
from simulator.language.complete import complete
from simulator.language.evaluate import evaluate
from simulator.language.ir import METHODS, Function, Program
from simulator.language.key import key
from simulator.language.measure import Caps, complaints
from simulator.language.opcodes import assemble
from simulator.language.parse import parse
from simulator.language.simplify import brief, lean, without_dominated
from simulator.language.unparse import spell, unparse
from simulator.schema import FIELDS, RAW

REFERENCE_BATCH = [Active(0, 0, 1)] * 24


class Everything(Mapping[tuple[str, str], float]):
    """A batch's and a deployment's fields, a request's input length and the reference step."""

    def __init__(self, batch: list[Active], facts: Mapping[str, float], input_len: int, reference: float) -> None:
        self.batch = BatchFields(batch, facts)
        self.more = {("r", "input_len"): float(input_len), ("s", "reference_step_us"): reference}

    def __getitem__(self, field: tuple[str, str]) -> float:
        return self.more[field] if field in self.more else self.batch[field]

    def __iter__(self):  # type: ignore[no-untyped-def]
        return iter(FIELDS)

    def __len__(self) -> int:
        return len(FIELDS)


def bits(x: float) -> bytes:
    """The bytes of a float64; all NaN alike."""
    return struct.pack("<d", x if x == x else math.nan)


def three_ways(program: Program, text: str, batch: list[Active], facts: Mapping[str, float], input_len: int) -> None:
    """Plain interpreter, compiled opcodes and CPython give the same bytes for every method."""
    reference = evaluate(program.functions[0], BatchFields(REFERENCE_BATCH, facts))
    fields = Everything(batch, facts, input_len, reference)
    plain = {f.name: evaluate(f, fields) for f in program.functions}
    by_cpython = oracle.run(text, fields)
    bound = bind(assemble(program), program.theta, facts)
    compiled = {
        "step_time": bound.step_us(np.array([raw_fields(batch)[name] for name in RAW])),
        "queueing_time": bound.queueing_us(input_len),
        "output_token_time": bound.output_token_us(),
        "completion_time": bound.completion_us(),
    }
    for name, value in plain.items():
        assert bits(by_cpython[name]) == bits(value), (name, by_cpython[name], value)
        if name in compiled:
            assert bits(compiled[name]) == bits(value), (name, compiled[name], value)


BATCHES: list[list[Active]] = [
    [],
    [Active(10, 10, 1)],
    [Active(100, 0, 100)],
    [Active(100, 32, 40), Active(7, 0, 7), Active(50, 50, 1), Active(20, 31, 1), Active(1, 9, 1)],
    [Active(5, 5 + i, 1) for i in range(9)],
    REFERENCE_BATCH,
]


@st.composite
def batches(draw) -> list[Active]:  # type: ignore[no-untyped-def]
    batch = []
    for _ in range(draw(st.integers(0, 12))):
        input_len = draw(st.integers(1, 5000))
        progress = draw(st.integers(0, 9000))
        new = draw(st.integers(1, input_len - progress)) if progress < input_len else 1
        batch.append(Active(input_len, progress, new))
    return batch


# (a) text and representation


@pytest.mark.parametrize("text", PROGRAMS)
def test_written_programs_round_trip(text: str) -> None:
    program = parse(text)
    assert parse(unparse(program)) == program
    assert unparse(parse(unparse(program))) == unparse(program)


@settings(max_examples=daily(40))
@given(programs())
def test_any_program_round_trips(program: Program) -> None:
    text = unparse(program)
    assert parse(text) == program
    assert parse(text.encode()) == program
    assert unparse(parse(text)) == text
    # the drawn constants are within the cap; numbers that formulas come to, such as 2 * 2, count as constants too
    assert measure.complaints(program, Caps(constants=Caps().constants + len(measure.made_numbers(program)))) == []


# Q is a quotation mark, A an apostrophe, B a backslash
MARKED = "Q QQ QQQ QQQQQQ QaQ aQbQQcQQQdQQQQ B BB BQ BQQQ AAA ends_in_a_quote:_Q Bn BN{DIGIT_ONE} {x} é"
QUOTED = MARKED.replace("Q", '"').replace("A", "'").replace("B", "\\").split()
DOCS = [*QUOTED, *"\0\t\ud800\u2028 ", "a\nb", "\r\n", "\x85\x0c\x7f"]


@pytest.mark.parametrize("doc", DOCS)
def test_docstrings_round_trip(doc: str) -> None:
    program = Program((Function("step_time", (), (), ir.Number(1.0), doc),), doc)
    assert parse(unparse(program).encode()) == program


def test_the_canonical_text() -> None:
    text = '''"""A doc."""


def step_time(b, s, *, a: us/token = 2.5, c: (us/token)[0.0, 5.0] = 1.0, k1=3.0):
    """Inner."""
    x = a * b.tokens
    if x > k1:
        return -x if b.kv_max == 0 else k1 * x
    return c * (b.tokens + 0.5) - x / 2


def completion_time(s):
    return s.tp
'''
    assert unparse(parse(text)) == text


@pytest.mark.parametrize(
    ("written", "unit", "limits", "canonical"),
    [
        ("us/token**2", "us/token**2", None, "us/token**2"),
        ("us/token[0, 5]", "us/token", (0.0, 5.0), "(us/token)[0.0, 5.0]"),
        ("(us/request)[0, 5]", "us/request", (0.0, 5.0), "(us/request)[0.0, 5.0]"),
        ("one[0.8, 3]", "one", (0.8, 3.0), "one[0.8, 3.0]"),
        ("us[-2.5, -1e-3]", "us", (-2.5, -0.001), "us[-2.5, -0.001]"),
        ("flop/us*byte/byte", "flop/us", None, "flop/us"),
        ("(us*token)**2/us", "us*token**2", None, "us*token**2"),
        ("one/us", "one/us", None, "one/us"),
        ("us**9/request**9[1, 1]", None, None, ""),
        ("us/(request**3)[1, 1]", "us/request**3", (1.0, 1.0), "(us/request**3)[1.0, 1.0]"),
    ],
)
def test_annotations(written: str, unit: str | None, limits: tuple[float, float] | None, canonical: str) -> None:
    text = f"def step_time(b, s, *, a: {written} = -0.25): return a"
    if unit is None:
        with pytest.raises(InputError):
            parse(text)
        return
    program = parse(text)
    assert program.functions[0].constants == (ir.Constant("a", -0.25, units.read(unit), limits),)
    assert f"a: {canonical} = -0.25" in unparse(program)
    assert parse(unparse(program)) == program


def test_negative_literals_and_lifted_numbers() -> None:
    lets = "    x = -3 * b.tokens - -2\n    k2 = 7\n"
    text = f"def step_time(b, s, *, k1=-1e-30):\n{lets}    return x + k1 + k2 + 0.5"
    program = parse(text)
    assert [(c.name, c.value) for c in program.functions[0].constants] == [("k1", -1e-30), ("k3", 3.0), ("k4", 7.0)]
    assert program.functions[0].body[0] == ir.Let(
        "x", ir.Op("-", ir.Op("*", ir.Neg(ir.Const("k3")), ir.Field("b", "tokens")), ir.Neg(ir.Number(2.0)))
    )
    assert parse(unparse(program)) == program


def test_comments_line_ends_and_marks_do_not_matter() -> None:
    plain = parse("def step_time(b, s, *, a=1.0):\n    return a\n")
    for text in (
        "\ufeffdef step_time(b, s, *, a=1.0):\r\n    return a # é\r\n",
        "def step_time(b,s,*,a=+1): return (+a);",
    ):
        assert parse(text) == parse(text.encode()) == plain


def test_threads_read_texts_at_the_same_time() -> None:
    """Folds side by side do. Without a lock Python 3.11 raises SystemError within a second of this."""
    interval, thresholds = sys.getswitchinterval(), gc.get_threshold()
    texts = PROGRAMS * 20

    def yield_to_others(phase: str, info: dict[str, int]) -> None:
        time.sleep(0)  # a collection inside the parser lets another thread run

    try:
        sys.setswitchinterval(1e-6)
        gc.set_threshold(10)
        gc.callbacks.append(yield_to_others)
        with ThreadPoolExecutor(4) as threads:
            read = list(threads.map(lambda _: [parse(text) for text in texts], range(4)))
    finally:
        gc.callbacks.remove(yield_to_others)
        gc.set_threshold(*thresholds)
        sys.setswitchinterval(interval)
    assert read == [read[0]] * 4


def test_an_elif_and_what_follows_an_if_are_its_else() -> None:
    chain = "def step_time(b, s):\n if b.tokens > 1: return 1\n {} b.tokens > 0.5: return 2\n{}"
    spelled = [
        parse(chain.format("if", " return 0")),
        parse(chain.format("elif", " return 0")),
        parse(chain.format("elif", " else: return 0")),
        parse("def step_time(b, s):\n if b.tokens > 1: return 1\n else:\n  if b.tokens > 0.5: return 2\n return 0"),
    ]
    assert all(p == spelled[0] for p in spelled)


def test_theta_is_flat_and_replaceable() -> None:
    program = parse(PROGRAMS[5])
    assert program.theta == (1.25, 0.5, 1.0, 12.5, 3.0)
    assert program.with_theta((1, 2, 3, 4, 5)).theta == (1.0, 2.0, 3.0, 4.0, 5.0)
    assert key(program.with_theta((1, 2, 3, 4, 5))) == key(program)
    assert program.with_theta(program.theta) == program


# (b) three back ends


@pytest.mark.parametrize("text", PROGRAMS)
def test_written_programs_mean_the_same_everywhere(text: str) -> None:
    program = parse(text)
    for batch in BATCHES:
        three_ways(program, text, batch, FACTS, 123)
        three_ways(program, unparse(program), batch, FACTS, 123)


@settings(max_examples=daily(40))
@given(programs(), st.lists(batches(), min_size=2, max_size=2), facts_maps, st.integers(0, 10**6))
def test_any_program_means_the_same_everywhere(
    program: Program, some: list[list[Active]], facts: Mapping[str, float], input_len: int
) -> None:
    for batch in ([], *some):
        three_ways(program, unparse(program), batch, facts, input_len)


def test_opcodes_run_once_what_can_be_run_once() -> None:
    code = assemble(parse("def step_time(b, s, *, a=2.0): return a * s.layers + a * s.layers * b.kv_sum"))
    assert (code.static, code.step, len(code.rows)) == (1, 3, 3)  # a * s.layers is shared
    assert code.uses == {"kv_sum"}
    assert assemble(parse("def step_time(b, s): return b.kv_mean")).uses == {"kv_sum", "prefill_reqs", "decode_reqs"}
    assert assemble(parse("def step_time(b, s): return b.kv_max")).uses == {"kv_max"}
    assert assemble(parse("def step_time(b, s): return s.tp")).results[1:] == (-1, -1, -1)


# (i) guards

INF, NAN = math.inf, math.nan
LOG_FLOOR = math.log(1e-12)
# formula | x, y and the value, by the words of the contract
GUARDS = """
x / y | 1 0 0, 0 0 0, -1 -0 0, NAN 0 0, INF 0 0, 1 NAN NAN, 1 INF 0, 1e+308 1e-308 INF, 7 2 3.5
x - y | INF INF NAN
x * y | INF 0 NAN, 1e+308 10 INF
sqrt(x) | -4 0 0, 0 0 0, 9 0 3, -INF 0 0, INF 0 INF, NAN 0 NAN
log(x) | 1 0 0, 0 0 LOG_FLOOR, -5 0 LOG_FLOOR, -INF 0 LOG_FLOOR, 1e-13 0 math.log(1e-13), INF 0 INF, NAN 0 NAN
log1p(x) | 0 0 0, -0.5 0 0, -1 0 0, -7 0 0, 1 0 math.log1p(1), INF 0 INF, NAN 0 NAN
exp(x) | 0 0 1, 50 0 math.exp(50), 50.1 0 math.exp(50), INF 0 math.exp(50), -INF 0 0, -1e+308 0 0, NAN 0 NAN
softplus(x) | 0 0 math.log(2), -0 0 math.log(2), 1e-20 0 math.log(2), 1 0 1+math.log1p(math.exp(-1))
softplus(x) | -50 0 math.exp(-50), 50.1 0 50.1, 800 0 800, -800 0 0, 1e+308 0 1e+308, INF 0 INF, -INF 0 0, NAN 0 NAN
pow(x, y) | 3 2 9, -3 2 0, -3 0 1, 0 0 1, -8 1 0, 0 -1 INF, -0 -3 INF, -2 -3 INF, 2 5 16, 2 -5 0.0625, 2 INF 16
pow(x, y) | 1e+200 4 INF, INF -1 0, NAN 1 NAN, 2 NAN NAN
max(x, y) | 1 2 2, NAN 2 NAN, 2 NAN NAN, -INF INF INF
min(x, y) | 1 2 1, NAN 2 NAN, 2 NAN NAN
max(x, y, 1) | 0 NAN NAN
min(1, x, y) | NAN 0 NAN
x if x < y else y | 1 2 1, NAN 2 2
1 if x != y else 2 | NAN NAN 1
1 if x == y else 2 | NAN NAN 2, 0 -0 1
1 if x >= y else 2 | NAN NAN 2
1 if x > 0 else x / y | 1 0 1
"""
GUARD_CASES = [
    (formula, *map(eval, case.split()))
    for formula, cases in (line.split(" | ") for line in GUARDS.strip().splitlines())
    for case in cases.split(", ")
]


@pytest.mark.parametrize(("formula", "x", "y", "expected"), GUARD_CASES)
def test_guards(formula: str, x: float, y: float, expected: float) -> None:
    """x comes in as a field, y as a constant: edge values of float64 against the contract's words."""
    lets = f"    x = s.ffn\n    z = {formula}\n"
    text = f"def step_time(b, s, *, y=1.0):\n{lets}    return z + 0 * (1 if x == y else 0)"
    program = parse(text).with_theta((y,))
    facts = FACTS | {"ffn": x}
    plain = evaluate(program.functions[0], BatchFields([], facts))
    assert bits(plain) == bits(expected), plain
    compiled = bind(assemble(program), (y,), facts).step_us(np.zeros(len(RAW)))
    assert bits(compiled) == bits(expected), compiled
    by_field = text.replace("*, y=1.0", "*, k=1.0").replace("z =", "y = s.hidden * k\n    z =")
    if not formula.startswith("pow"):
        fields = BatchFields([], FACTS | {"ffn": x, "hidden": y})
        assert bits(oracle.run(by_field, fields)["step_time"]) == bits(expected)


TICKS = """0.0 1 1 True, 0.999 1 1 True, 1.0 1 1 False, 1.999 1 1 False, -5.0 1 1 True, 123.9 1 123 False,
    10000000000.0 1 10**10 False, 10000000000.0+1 1 10**10 True, INF 1 10**10 True, -INF 1 1 True,
    NAN 1 10**10 True, 0.0 0 0 False, -0.5 0 0 True, 0.7 0 0 False, 9999999999.5 1 9999999999 False"""  # time, least, ticks, clamped


@pytest.mark.parametrize(
    ("x", "low", "ticks", "clamped"), [tuple(map(eval, case.split())) for case in TICKS.split(",")]
)
def test_ticks(x: float, low: int, ticks: int, clamped: bool) -> None:
    assert to_ticks(x, low) == ticks
    assert clamps(x, low) is clamped


# (c) identity of a form


def step(expression: str, **constants: float) -> Program:
    """A step_time with the constants a, c, d, e as far as the expression names them."""
    names = [
        n
        for n in ("a", "c", "d", "e")
        if f" {n} " in f" {expression.replace('(', ' ').replace(')', ' ').replace(',', ' ')} "
    ]
    head = "".join(f", {n}={constants.get(n, 1.5)}" for n in names)
    return parse(f"def step_time(b, s{', *' + head if head else ''}):\n    return {expression}")


# Names and order, algebraic duplicates, derived fields, and constants that one constant does the work of.
SAME = """
a * b.tokens + c * b.kv_sum ~ d * b.kv_sum + e * b.tokens ; a * b.tokens + c * b.kv_sum ~ b.kv_sum * a + b.tokens * c
a + b.tokens + b.kv_sum ~ b.kv_sum + (b.tokens + c) ; max(a, b.tokens, b.kv_sum) ~ max(b.kv_sum, max(b.tokens, d))
a if b.tokens > c else d ~ c if d < b.tokens else e ; a if b.tokens == 1 else d ~ a if 1 == b.tokens else d
a * b.decode_tokens ~ a * b.decode_reqs
max(a * b.tokens + c * b.kv_sum, a * b.kv_max) ~ max(d * b.kv_max, e * b.kv_sum + d * b.tokens)
a * b.tokens + c * b.tokens + c * b.kv_sum ~ d * b.kv_sum + d * b.tokens + a * b.tokens
a * b.tokens + c * b.tokens + c * b.kv_sum ~ a * b.kv_sum + c * b.tokens + a * b.tokens ; 17 * b.tokens ~ a * b.tokens
pow(b.tokens, a) ~ pow(b.tokens, 3) ; a * b.tokens + 0 ~ a * b.tokens * 1
a * b.tokens / 1 - 0 * b.kv_sum ~ -(-( a * b.tokens)) ; max(a * b.tokens, a * b.tokens) ~ a * b.tokens
max(b.tokens, b.kv_sum, b.tokens) ~ max(b.kv_sum, b.tokens) ; max(b.tokens, 1, 2) ~ max(2, b.tokens)
a * (b.tokens + b.kv_sum) ~ b.kv_sum * a + a * b.tokens
(a + b.tokens) * (c - b.kv_sum) ~ a * c - a * b.kv_sum + b.tokens * (c - b.kv_sum)
(b.tokens + b.kv_sum) / b.kv_max ~ b.tokens / b.kv_max + b.kv_sum / b.kv_max
b.tokens / (b.kv_max / b.kv_sum) ~ b.tokens * b.kv_sum / b.kv_max
b.tokens / b.kv_max / b.kv_sum ~ b.tokens / (b.kv_sum * b.kv_max) ; b.kv_max * b.kv_max / b.kv_max ~ b.kv_max
1 / (2 * b.tokens + 2 * b.kv_sum) ~ 0.5 / (b.tokens + b.kv_sum) ; b.tokens - b.tokens + a ~ c
b.tokens + b.tokens ~ 2 * b.tokens ; pow(b.kv_sum, 0.5) ~ sqrt(b.kv_sum) ; pow(b.kv_sum, 0) ~ 1 ; sqrt(2 + 2) ~ 2
b.tokens if 1 < 2 else b.kv_sum ~ b.tokens ; b.tokens if b.kv_max > a else b.tokens ~ b.tokens
b.tokens if b.kv_max >= a else b.kv_sum ~ b.kv_sum if b.kv_max < a else b.tokens
b.tokens if b.kv_max - a > 0 else b.kv_sum ~ b.tokens if b.kv_max > a else b.kv_sum
b.tokens if b.kv_max != a else b.kv_sum ~ b.kv_sum if a - b.kv_max == 0 else b.tokens
a if b.tokens >= c else d ~ a if b.tokens < c else d ; a * b.kv_read_us ~ a * s.kv_us_per_token * b.kv_sum
b.tokens - b.prefill_tokens ~ b.decode_reqs ; b.kv_sum / (b.prefill_reqs + b.decode_reqs) ~ b.kv_mean
a * c * b.kv_max ~ d * b.kv_max ; a * b.tokens + c * b.tokens ~ d * b.tokens
a * b.tokens + 0.5 * c * d * b.tokens ~ b.tokens * a ; 2 * a * b.kv_max ~ a * b.kv_max
max(a + c, b.tokens) ~ max(b.tokens, d) ; 1 / (2 * a + b.tokens + c) ~ 1 / (a + b.tokens + 2 * c)
"""

DIFFERENT = """
a * b.tokens + a * b.kv_sum ; a * b.tokens + c * b.kv_sum ; a * b.tokens + c * b.kv_max ; a * b.tokens + b.kv_sum
a if b.tokens > c else d ; d if b.tokens > c else c ; a if b.tokens >= c else d ; a - b.tokens ; b.tokens - a
a / b.tokens ; b.tokens / a ; a * b.tokens ; 2 * b.tokens ; 0.5 * b.tokens ; b.tokens ; -b.tokens ; max(a, b.tokens)
min(a, b.tokens) ; max(a, b.tokens, c) ; b.kv_sum if b.tokens > c else b.kv_max
b.kv_max if b.tokens > c else b.kv_sum ; pow(b.tokens, 2) ; pow(b.tokens, a) ; sqrt(b.tokens)
a * b.tokens + a * b.kv_sum + c * b.kv_max ; a * b.tokens + c * b.kv_sum + a * b.kv_max
a * b.tokens + c * b.kv_sum + c * b.kv_max ; a * b.tokens + c * b.kv_sum + d * b.kv_max ; a * s.layers
a * s.experts_us ; max(a * b.tokens, c * b.tokens) ; b.kv_sum / b.kv_sum ; b.tokens * b.tokens
a * b.tokens - c * b.tokens ; a * a * b.tokens ; a * c * b.tokens + c * b.kv_sum ; 1 / (b.tokens + b.kv_sum)
1 / b.tokens + 1 / b.kv_sum ; sqrt(a * b.tokens) ; log(b.tokens) ; log1p(b.tokens) ; exp(b.tokens) ; softplus(b.tokens)
max(a + c * b.tokens, d + e * b.tokens) ; max(a + c * b.tokens, a + e * b.tokens)
max(a + c * b.tokens, d + c * b.tokens) ; a + c * b.tokens ; a ; 1 ; 0
"""


@pytest.mark.parametrize("pair", re.split(" ; |\n", SAME.strip()))
def test_key_of_one_form(pair: str) -> None:
    left, right = pair.split(" ~ ")
    assert key(step(left)) == key(step(right, a=7.0, c=-1.0, d=0.25, e=9e9))


def test_key_of_different_forms() -> None:
    by_key: dict[str, str] = {}
    for expression in re.split(" ; |\n", DIFFERENT.strip()):
        other = by_key.setdefault(key(step(expression)), expression)
        assert other == expression, (other, expression)


def test_key_sees_through_names_docs_and_guards() -> None:
    plain = parse("def step_time(b, s, *, a=1.0, c=2.0): return a * b.tokens if b.kv_max > c else c")
    named = parse(
        '"""Doc."""\ndef step_time(b, s, *, y: us = 3.0, z: us/token[0, 9] = 8.0):\n  "Doc"\n'
        "  x = z * b.tokens\n  limit = y\n  if limit < b.kv_max: return x\n  return limit"
    )
    assert key(plain) == key(named) and len(key(plain)) == 16
    other = parse("def step_time(b, s, *, a=1.0, c=2.0, d=3.0): return a * b.tokens if b.kv_max > c else d")
    assert key(other) != key(plain)
    both = "def step_time(b, s): return b.tokens\ndef {}(s, *, a=1.0): return a"
    assert len({key(parse(both.format(m))) for m in METHODS if METHODS[m] == ("s",)}) == 4


def disguise(program: Program, flips: list[bool]) -> Program:
    """The same form: operands swapped, constants and locals renamed, other values, other order."""
    turn = iter(flips * 200)

    def change(node: ir.Expr) -> ir.Expr:
        match node:
            case ir.Const(name):
                return ir.Const(f"const_{name}")
            case ir.Local(name):
                return ir.Local(f"local_{name}")
            case ir.Op("+" | "*" as op, left, right) if next(turn):
                return ir.Op(op, right, left)
            case ir.Call("max" | "min" as name, args) if next(turn):
                return ir.Call(name, args[::-1])
        return node

    functions = []
    for f in (ir.rebuilt(f, change) for f in program.functions):
        body = tuple(replace(s, name=f"local_{s.name}") if isinstance(s, ir.Let) else s for s in f.body)
        constants = tuple(ir.Constant(f"const_{c.name}", c.value / 2 + 1) for c in f.constants[::-1])
        functions.append(replace(f, constants=constants, body=body, doc="Another doc."))
    return Program(tuple(functions))


@settings(max_examples=daily(40))
@given(programs(), st.lists(st.booleans(), min_size=1, max_size=9))
def test_key_of_a_disguised_program(program: Program, flips: list[bool]) -> None:
    other = disguise(program, flips)
    assert key(other) == key(program) == key(parse(unparse(program)))
    assert measure.complexity(other) == measure.complexity(program)


# (d), (e) size


# operations, conditionals, features ~ bodies
MEASURES = """
0 0 b.tokens ~ return b.tokens ; return -b.tokens ; x = b.tokens|y = x|return y
1 0 b.tokens ~ return b.tokens + b.tokens ; return pow(b.tokens, -2)
4 0 b.kv_sum b.tokens s.tp ~ return b.tokens + b.kv_sum - s.tp * 2 / b.tokens
4 0 b.tokens s.tp ~ return max(b.tokens, 1, 2, 0, s.tp)
3 0 b.tokens ~ return min(max(b.tokens, 1), 2, 0)
5 0 b.tokens ~ return sqrt(log(log1p(softplus(exp(b.tokens)))))
2 1 b.tokens ~ return 1 if b.tokens > 2 else 0 ; if b.tokens > 2: return 1|return 0
3 1 b.tokens s.tp ~ return 1 if b.tokens + 1 > 2 else -s.tp
5 2 b.tokens s.tp ~ if b.tokens > 2: return 1|elif b.tokens > 1: return 2 * s.tp|return 0
2 0 b.tokens ~ x = b.tokens * 2|return x * b.tokens
"""


@pytest.mark.parametrize("line", MEASURES.strip().splitlines())
def test_measures(line: str) -> None:
    expected, bodies = line.split(" ~ ")
    operations, conditionals, *features = expected.split()
    for body in bodies.split(" ; "):
        program = parse("def step_time(b, s):\n    " + body.replace("|", "\n    "))
        assert (measure.operations(program), measure.conditionals(program)) == (int(operations), int(conditionals))
        assert measure.features(program) == tuple(features) and measure.constants(program) == 0
        assert measure.complexity(program) == int(operations)


# number ~ formulas that make it of free ones (b.tokens > 2 + 2 is read as b.tokens / 4 > 1); none: numbers of a formula
MADE = """
4 ~ 2 * 2 * 2 * 0.5 * b.tokens ; 2 / 0.5 * b.tokens ; 2 * b.tokens / 0.5 + 2 * 2 * b.kv_sum ; pow(2, 2) * b.tokens
4 ~ -2 * 2 * b.tokens ; max(b.tokens, 2 * 2) ; 2 * (b.tokens + 2 * b.kv_sum)
0.25 ~ pow(2, -2) * b.tokens ; b.kv_sum if b.tokens > 2 + 2 else 1
3 ~ b.tokens + 1 + 2 ; b.tokens + b.tokens + b.tokens
0.7071067811865476 ~ sqrt(0.5) * b.tokens
none ~ 2 * 0.5 * b.tokens + 2 * 2 * 0.5 * b.kv_sum ; 2 * (b.tokens + 0.5 * b.kv_sum) - 1 - 1
none ~ sqrt(2 * b.tokens) + b.kv_sum / 2 + b.kv_max / 0.5
none ~ max(b.tokens, 2) + min(2, b.kv_sum / (b.tokens + 2)) + pow(b.tokens, 2)
"""


@pytest.mark.parametrize("line", MADE.strip().splitlines())
def test_numbers_made_of_free_ones_count_as_constants(line: str) -> None:
    number, formulas = line.split(" ~ ")
    for formula in formulas.split(" ; "):
        program = parse(f"def step_time(b, s): return {formula}")
        assert measure.made_numbers(program) == ([] if number == "none" else [float(number)]), formula
        assert measure.constants(program) == (number != "none")


def test_shipped_programs_make_no_numbers_and_keep_to_wide_bounds() -> None:
    texts = {f.name: f.read_text() for f in files("seeds").iterdir() if f.name.endswith(".py")}
    del texts["__init__.py"]
    programs = {name: parse(text) for name, text in texts.items()}
    assert {n for n, p in programs.items() if measure.made_numbers(p) or too_narrow(p)} == set() != set(programs)


NARROW = ["3, 4", "1, 9.99", "7, 7", "-4, -3", "1e-300, 2e-300"]
WIDE = ["1, 10", "0, 1e-9", "-1, 1", "-40, -4", "-4, 0", "0, 0", "1e-300, 1e300"]


@pytest.mark.parametrize("bounds", [*NARROW, *WIDE])
def test_bounds_that_give_a_value_away(bounds: str) -> None:
    program = parse(f"def step_time(b, s, *, c: us[{bounds}] = 1): return c")
    assert bool(too_narrow(program)) is (bounds in NARROW)


def test_measures_are_summed_over_functions() -> None:
    program = parse(PROGRAMS[5])
    assert measure.operations(program) == 2 + 4 + 1 + 2
    assert measure.conditionals(program) == 1
    assert measure.constants(program) == 5
    assert measure.complexity(program) == 14
    names = "b.allreduce_us b.weight_read_us r.input_len s.block_size s.is_moe s.reference_step_us s.tp_log2"
    assert measure.features(program) == tuple(names.split())


CHOICE = "(1 if b.tokens > 2 else 0)"


@pytest.mark.parametrize(
    ("cap", "allowed", "refused"),
    [
        ("40 operations", " + ".join(["b.tokens"] * 41), " + ".join(["b.tokens"] * 42)),
        ("40 operations", f"max({', '.join(['b.tokens'] * 41)})", f"max({', '.join(['b.tokens'] * 42)})"),
        ("4 conditionals", " + ".join([CHOICE] * 4), " + ".join([CHOICE] * 5)),
        ("16 constants", f"max({', '.join(map(str, range(3, 19)))})", f"max({', '.join(map(str, range(3, 20)))})"),
    ],
)
def test_caps(cap: str, allowed: str, refused: str) -> None:
    program, larger = (parse(f"def step_time(b, s):\n    return {body}") for body in (allowed, refused))
    assert measure.enforce(program, Caps(), "p.py") is program
    most, kind = cap.split()
    with pytest.raises(InputError) as error:
        measure.enforce(larger, Caps(), "p.py")
    assert str(error.value).startswith(f"p.py: {int(most) + 1} {kind}, at most {most} are allowed")
    assert [f"p.py: {line}" for line in measure.complaints(larger, Caps())] == [str(error.value)]
    assert measure.enforce(larger, Caps(99, 99, 99), "p.py") is larger


# (f) bounds


# bound | what a is multiplied with, or the whole formula
DEFAULT_BOUNDS = """
1 | a * b.weight_read_us ; a * b.expert_read_us ; a * b.kv_read_us ; a * b.decode_kv_read_us ; a * b.kv_write_us
1 | a * b.prefill_gemm_us ; a * b.decode_gemm_us ; a * b.prefill_attention_us ; a * b.decode_attention_us
1 | a * b.logits_us ; s.shared_weights_us * a ; s.experts_us * a ; s.weights_us * a ; s.kv_us_per_token * b.kv_sum * a
1 | s.gemm_us_per_token * b.tokens * a ; s.attention_us_per_pair * b.prefill_pairs * a
1 | s.logits_us_per_row * b.batch_size * a ; a * b.total_flops / s.flops_per_us ; a * b.total_bytes / s.bytes_per_us
1 | a * b.attention_flops / s.flops_per_us ; a * s.kv_bytes_per_token / s.bytes_per_us * b.kv_sum
0 | a * b.allreduce_us ; a * s.allreduce_us_per_token ; a * b.tokens ; a * b.total_flops ; a * b.total_bytes
0 | a * s.layers ; a * b.total_flops / s.bytes_per_us ; a * b.weight_read_us * b.batch_size ; a * b.tokens * s.weights_us
0 | a ; a + b.kv_read_us ; max(a, b.kv_read_us) ; a / b.kv_read_us ; a * sqrt(b.kv_read_us) ; exp(a * b.kv_read_us)
1e-9 | exp(b.kv_read_us / a) ; 1 / (1 + 1 / a)
1 | a * b.kv_read_us / s.layers ; a * (b.kv_read_us + b.weight_read_us) ; a * max(b.allreduce_us, b.kv_read_us)
1 | a * (b.kv_read_us if b.tokens > 1 else 0) ; (a if b.tokens > 1 else 2) * b.kv_read_us ; b.kv_read_us * max(a, 1)
2 | b.kv_read_us / 2 * a
0 | 1 if a * b.kv_read_us > b.logits_us else 2
# what is taken away, what two parts share, and what comes on top of the whole
0 | b.weight_read_us - a * b.kv_read_us ; max(b.weight_read_us, b.kv_read_us) + a * min(b.weight_read_us, b.kv_read_us)
0 | b.weight_read_us + a * b.weight_read_us ; b.weight_read_us * (1 + a * b.batch_size)
1 | b.weight_read_us / 2 + a * b.weight_read_us ; 2 * a * b.kv_read_us + a * b.logits_us
"""
HEAD_A = "def step_time(b, s, *, a=1.0):"


@pytest.mark.parametrize(
    ("expected", "text"),
    [
        *(
            (float(bound), f"{HEAD_A} return {formula}")
            for bound, formulas in (line.split(" | ") for line in DEFAULT_BOUNDS.splitlines() if " | " in line)
            for formula in formulas.split(" ; ")
        ),
        (1e-9, "def step_time(b, s, *, a: token=1.0): return b.kv_read_us / a"),
        (1.0, f"{HEAD_A}\n x = b.kv_read_us + b.weight_read_us\n y = max(x, 2)\n return a * y"),
        (0.5, f"{HEAD_A}\n f = a\n g = f * 2\n return g * b.kv_read_us"),
        (1.0, f"{HEAD_A}\n if b.tokens > 1: return a * b.kv_read_us\n return 0"),
        (1.0, "def step_time(b, s): return 3 * b.kv_read_us"),
        (0.0, "def step_time(b, s): return 0\ndef queueing_time(r, s, *, a=1.0): return a * s.weights_us"),
        (0.0, "def step_time(b, s): return 0\ndef completion_time(s, *, a=1.0): return a * s.weights_us"),
    ],
)
def test_default_bounds(expected: float, text: str) -> None:
    assert bounds(parse(text)) == ((expected, math.inf),)


EFFICIENCIES = """b.kv_read_us / a ; b.total_flops / (a * s.flops_per_us) ; b.total_bytes / s.bytes_per_us / a
b.tokens * (s.gemm_us_per_token / (2 * a)) ; b.weight_read_us / 0.7"""


@pytest.mark.parametrize("formula", re.split(" ; |\n", EFFICIENCIES))
def test_an_efficiency_is_at_most_the_datasheets(formula: str) -> None:
    head = "" if "0.7" in formula else ", *, a=1.0"
    assert bounds(parse(f"def step_time(b, s{head}): return {formula}")) == ((0.01, 1.0),)


def test_an_efficiency_outside_step_time_or_in_two_factors() -> None:
    text = "def step_time(b, s): return 1\ndef queueing_time(r, s, *, a=1.0): return s.weights_us / a"
    assert bounds(parse(text)) == ((1e-9, math.inf),)
    split = "def step_time(b, s, *, e=1.0, f=1.0): return b.weight_read_us / e / f"
    assert bounds(parse(split)) == ((0.01, 1.0),) * 2


# bounds of a | formulas; the first are factors of measured kernels
KERNEL_FACTORS = """
0.5 2 | a * b.kernel_gemm_us ; a * (b.kernel_gemm_us + b.kernel_router_us) + b.kernel_moe_us ; s.layers + b.kernel_us * a
0.5 2 | a * b.kernel_decode_us_per_token * b.kv_decode_sum ; max(a * b.kernel_us, 4000)
0.5 2 | a * b.prefill_pairs * b.kernel_prefill_us_per_pair + a * b.kernel_gemm_us
0.5 2 | a * b.kernel_gemm_us if b.tokens > 256 else b.kernel_us
# added to the bare time, of several factors, without a context, of something else too
0 inf | b.kernel_gemm_us + a * b.kernel_gemm_us ; 2 * a * b.kernel_gemm_us ; a * b.kernel_gemm_us * s.tp
0 inf | a * b.kernel_gemm_us * b.kernel_moe_us ; a * b.kernel_decode_us_per_token ; a * b.kernel_gemm_us + a * s.layers
0 inf | a * b.graph_tokens ; a * b.kernel_gemm_us * b.uncaptured * s.layers ; a * b.uncaptured
0 inf | a * b.kernel_gemm_us * b.uncaptured + a * b.kernel_gemm_us
1e-9 inf | b.kernel_gemm_us / a
1 inf | a * b.weight_read_us
# at most as long again
0 1 | b.kernel_gemm_us + a * b.kernel_gemm_us * b.uncaptured ; a * b.uncaptured * (b.kernel_gemm_us + b.kernel_router_us)
"""


@pytest.mark.parametrize("line", [line for line in KERNEL_FACTORS.splitlines() if " | " in line])
def test_a_factor_of_a_measured_kernel_is_near_one(line: str) -> None:
    low, high = map(float, line.split(" | ")[0].split())
    for formula in line.split(" | ")[1].split(" ; "):
        program = parse(f"def step_time(b, s, *, a=1.0): return {formula}")
        at = [c.name for c in program.functions[0].constants].index("a")  # numbers become constants, too
        assert (kernel_factors(program)[at], bounds(program)[at]) == (high == 2.0, (low, high)), formula


def test_factors_of_kernels_by_method_and_with_bounds_of_their_own() -> None:
    text = """def step_time(b, s, *, a: one[0.9, 1.1] = 1.0, c: one = 1.0, d: one = 1.0):
    return a * b.kernel_gemm_us + c * d * b.kernel_moe_us
def completion_time(s, *, a: us = 1.0): return a
"""
    program = parse(text)
    assert kernel_factors(program) == (True, False, False, False)  # of two that multiply, neither is known
    assert bounds(program)[0] == (0.9, 1.1)


def test_bounds_do_not_depend_on_the_spelling() -> None:
    for one, other in (
        ("c + b.weight_read_us * (1 + a * b.batch_size)", "b.weight_read_us + a * b.batch_size * b.weight_read_us + c"),
        ("b.weight_read_us / a", "b.weight_read_us * (1 / a)"),
        ("a * b.kv_read_us", "b.kv_sum * (s.kv_us_per_token * a)"),
        ("a * (b.kv_read_us + b.logits_us) + c", "b.logits_us * a + c + b.kv_read_us * a"),
    ):
        assert key(step(one)) == key(step(other)) and bounds(step(one)) == bounds(step(other))


def test_annotated_bounds_win_and_keep_their_order() -> None:
    head = "def step_time(b, s, *, a: one[0.8, 3] = 1, c: one = 1, d: us[-5, 5] = 1)"
    text = f"{head}: return a * b.kv_read_us * c + d"
    more = "\ndef completion_time(s, *, a: us[2, 2] = 2, c=1): return a + c"
    assert bounds(parse(text + more)) == ((0.8, 3.0), (1.0, math.inf), (-5.0, 5.0), (2.0, 2.0), (0.0, math.inf))


def test_a_chain_that_doubles_forty_times_stays_cheap() -> None:
    for op in "+*":
        lets = "\n".join(f"    x{i + 1} = x{i} {op} x{i}" for i in range(40))
        program = parse(f"def step_time(b, s, *, a=1.0):\n    x0 = a * b.kv_read_us\n{lets}\n    return x40")
        assert len(key(program)) == 16
        assert bounds(program) == ((2.0**-40 if op == "+" else 0.0, math.inf),)
        assert len(assemble(program).rows) == 42
        assert measure.operations(program) == 41
        assert measure.features(program) == ("b.kv_read_us",)
        assert parse(unparse(program)) == program
        value = evaluate(program.functions[0], {("b", "kv_read_us"): 2.0})
        assert value == (2.0**41 if op == "+" else math.inf)


# (h) the original proposal's dialect, and three of its seeds

HEAD = "CONSTANTS = {'c1': 1.5, 'c2': 2.5, 'c3': 3.5, 'c4': 4.5, 'c5': 5.5}\n"
DIALECT = [
    (
        "CONSTANTS = {'b0': 5000.0, 'b1': 12.0, 'b2': 30.0, 'c': 0.01}\ndef predict_step_time(b):\n"
        "    linear = CONSTANTS['b0'] + CONSTANTS['b1'] * b['prefill_tokens'] + (\n"
        "        CONSTANTS['b2'] * b['decode_tokens'])\n"
        "    return linear + CONSTANTS['c'] * b['kv_max'] * b['decode_reqs']",
        "def step_time(b, s, *, x=1, y=1, z=1, c=1):\n"
        "    line = x + y * b.prefill_tokens + z * b.decode_tokens\n"
        "    return line + b.decode_reqs * (c * b.kv_max)",
    ),
    (
        "CONSTANTS = {'peak': 5e8, 'bandwidth': 2e6, 'o': 4000.0}\ndef predict_step_time(b):\n"
        "    compute = b['total_flops'] / CONSTANTS['peak']\n"
        "    memory = b['total_bytes'] / CONSTANTS['bandwidth']\n"
        "    return max(compute, memory) + CONSTANTS['o']",
        "def step_time(b, s, *, o=1, p=1, w=1): return max(b.total_bytes / w, b.total_flops / p) + o",
    ),
    (
        HEAD + "def predict_step_time(b):\n"
        "    if b['prefill_tokens'] > 100:\n"
        "        return CONSTANTS['c1'] * b['prefill_tokens'] + CONSTANTS['c2'] * b['kv_max']\n"
        "    return CONSTANTS['c3'] * b['decode_reqs'] + CONSTANTS['c4'] * b['kv_mean'] + CONSTANTS['c5']",
        "def step_time(b, s, *, c1=1, c2=1, c3=1, c4=1, c5=1, limit=50):\n"
        "    return (c1 * b.prefill_tokens + c2 * b.kv_max if b.prefill_tokens > limit\n"
        "            else c3 * b.decode_reqs + c4 * b.kv_mean + c5)",
    ),
]


@pytest.mark.parametrize(
    ("head", "formula", "side"),
    [
        ("w=1.0", "w * b.weight_read_us", "lower bound: the datasheet's peak"),
        ("w=0.5", "2 * w * b.weight_read_us", "lower bound: the datasheet's peak"),
        ("e=1.0", "b.weight_read_us / e", "upper bound: the datasheet's peak"),
        ("e=0.01", "b.weight_read_us / e", "lower bound: 1% of the datasheet's peak"),
        ("g=0.5", "g * b.kernel_gemm_us", "lower bound: half the measured kernel's time"),
        ("g=2.0", "g * b.kernel_gemm_us", "upper bound: twice the measured kernel's time"),
        ("c=0.0", "1 + c", "lower bound: what adds to a time is not negative"),
        ("c: us[3, 5] = 5.0", "1 + c", "upper bound: as annotated"),
        ("w=1.1", "w * b.weight_read_us", None),
    ],
)
def test_a_constant_at_its_bound_is_explained(head: str, formula: str, side: str | None) -> None:
    program = parse(f"def step_time(b, s, *, {head}): return {formula}")
    unfitted, fitted = (list(at_bounds(program, held).values()) for held in (None, ()))
    assert len(unfitted) == len(fitted) == (side is not None)
    for said, more in zip(unfitted, fitted, strict=True):
        assert side and f"at its {side}" in said and more.startswith(said[:-1])
        assert ("would take it lower" if "lower" in side else "would take it higher") in more


@pytest.mark.parametrize(("theirs", "ours"), DIALECT)
def test_the_original_dialect(theirs: str, ours: str) -> None:
    program = parse(theirs)
    assert key(program) == key(parse(ours))
    assert parse(unparse(program)) == program
    assert measure.complexity(program) == measure.complexity(parse(ours))
    for batch in BATCHES:
        three_ways(program, theirs, batch, FACTS, 1)


def test_the_original_dialect_reads_constants_in_order() -> None:
    program = parse(DIALECT[-1][0])
    names = [c.name for c in program.functions[0].constants]
    assert (names, program.theta) == (["c1", "c2", "c3", "c4", "c5", "k1"], (1.5, 2.5, 3.5, 4.5, 5.5, 100.0))
    expression = "CONSTANTS['a'] * b['tp'] + CONSTANTS['z']"
    text = f"CONSTANTS = {{'z': 2, 'a': -1}}\ndef predict_step_time(b): return {expression}"
    assert parse(text).theta == (2.0, -1.0)


LEAN = {
    "terms that a fit switched off": (
        """def step_time(b, s, *, a=0.0, c=3.0, d=0.0, e=0.0):
    dead = d * b.kv_sum
    both = c * b.tokens + b.tokens / e + (a * b.kv_sum if b.tokens > 2 else e * s.layers)
    if b.tokens > c:
        return both - a * b.kv_sum
    return max(a + both, max(dead, 1)) + dead * 2""",
        """def step_time(b, s, *, c=3.0):
    both = c * b.tokens
    if b.tokens > c:
        return both
    return max(both, 1)""",
    ),
    "a floor of 0 below which nothing is possible": (
        "def step_time(b, s, *, c=2.0): return max(0, c * b.tokens)",
        "def step_time(b, s, *, c=2.0):\n    return c * b.tokens",
    ),
    "a floor of 0 that may hold": (
        "def step_time(b, s, *, c=-2.0): return max(0, c * b.tokens)",
        "def step_time(b, s, *, c=-2.0):\n    return max(0, c * b.tokens)",
    ),
    "factors of 1 where the units allow": (
        """def step_time(b, s, *, a: one = 1.0, c: us/token = 1.0, d=1.0, e: one = 1.5):
    return a * (b.kernel_gemm_us + e * b.kernel_moe_us * a) + c * b.tokens + d * b.kernel_lm_head_us""",
        """def step_time(b, s, *, c: us/token = 1.0, d=1.0, e: one = 1.5):
    return b.kernel_gemm_us + e * b.kernel_moe_us + c * b.tokens + d * b.kernel_lm_head_us""",
    ),
}


@pytest.mark.parametrize("name", LEAN)
def test_terms_without_effect_are_left_out(name: str) -> None:
    text, kept = LEAN[name]
    short = lean(parse(text))
    assert unparse(short) == kept + "\n" and parse(unparse(short)) == short


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("max(a, b.tokens - c)", "max(a, b.tokens - c)"),
        ("max(a, c * b.tokens, b.kv_sum)", "max(c * b.tokens, b.kv_sum)"),
        ("max(b.tokens - c, a, min(c, sqrt(b.tokens)))", "max(b.tokens - c, a, min(c, sqrt(b.tokens)))"),
        ("max(a * b.kv_sum, b.tokens if b.tokens > c else c)", "b.tokens if b.tokens > c else c"),
    ],
)
def test_a_maximum_keeps_a_zero_that_may_be_the_largest(text: str, kept: str) -> None:
    program = lean(parse(f"def step_time(b, s, *, a=0.0, c=3.0): return {text}"))
    assert unparse(program).endswith(f"return {kept}\n")


DOMINATED = """
max(c * b.tokens + d, c * b.tokens) ~ c * b.tokens + d
max(c * b.tokens, d + c * b.tokens, b.kv_sum) ~ max(d + c * b.tokens, b.kv_sum)
min(c * b.tokens + d, c * b.tokens) ~ c * b.tokens
min(d, d - c * b.tokens) ~ d - c * b.tokens
max(d - c * b.tokens, d) ~ d
max(d + b.tokens, b.tokens + d) ~ b.tokens + d
max(c * b.tokens + e, c * b.tokens) ~ max(c * b.tokens + e, c * b.tokens)
max(c * b.tokens + n, c * b.tokens) ~ max(c * b.tokens + n, c * b.tokens)
max(c * b.tokens, d) ~ max(c * b.tokens, d)
max(d - c, d + b.tokens - b.kv_sum) ~ max(d - c, d + b.tokens - b.kv_sum)
"""


@pytest.mark.parametrize("line", DOMINATED.strip().split("\n"))
def test_arguments_that_another_one_dominates_are_left_out(line: str) -> None:
    given, kept = line.split(" ~ ")
    heads = {"c": "c=2.0", "d": "d=3.0", "e": "e: us[-1, 9] = 4.0", "n": "n=-1.0"}  # a fit may make e negative
    used = ", ".join(text for name, text in heads.items() if re.search(rf"\b{name}\b", given))
    head = f"def step_time(b, s, *, {used}):\n    return "
    assert spell(without_dominated(parse(head + given)).functions[0].result) == kept


def test_variables_of_known_sign_dominate_too() -> None:
    text = "def step_time(b, s, *, c=2.0, d=3.0):\n    x = c * b.tokens\n    return max(d + x, d) + max(d - x, d)"
    assert unparse(without_dominated(parse(text))).endswith("    return d + x + d\n")


def test_overheads_of_zero_are_left_out_of_a_program_and_of_its_caps() -> None:
    text = (
        "def step_time(b, s, *, c=3.0): return c * b.tokens\n"
        "def queueing_time(r, s, *, a=0.0): return a\n"
        "def output_token_time(s, *, d=0.0): return d * s.layers\n"
        "def completion_time(s, *, e=0.0): return e\n"
    )
    program = parse(text)
    assert [f.name for f in brief(program).functions] == ["step_time", "queueing_time"]
    assert [f.name for f in brief(parse(text.replace("d=0.0", "d=0.1"))).functions][-1] == "output_token_time"
    assert not complaints(program, Caps(constants=2)) and complaints(program, Caps(constants=1))
    assert brief(complete(brief(program))) == brief(program)
