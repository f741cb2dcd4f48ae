"""The language: one program, one meaning, whoever reads it; text and representation are inverse."""

from __future__ import annotations

import gc
import math
import struct
import sys
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
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
from simulator.language import measure, opcodes, units
from simulator.language.bounds import at_bounds, bounds, kernel_factors, too_narrow
from simulator.language.complete import complete
from simulator.language.evaluate import FUNCTIONS, evaluate
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
    rebuild,
)
from simulator.language.key import key
from simulator.language.measure import Caps, complaints
from simulator.language.opcodes import assemble
from simulator.language.parse import parse
from simulator.language.simplify import brief, lean
from simulator.language.unparse import unparse
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


@pytest.mark.parametrize(
    "doc",
    ['"', '""', '"""', '""""""', '"a"', 'a"b""c"""d""""', "\\", "\\\\", '\\"', '\\"""', "'''", "a\nb", "\r\n",
     "\0", "\t",
     "\ud800", "\\n", "\\N{DIGIT ONE}", "ends in a quote: \"", "{x}", "\u2028", "\x85\x0c\x7f", " ", "é"],
)  # fmt: skip
def test_docstrings_round_trip(doc: str) -> None:
    program = Program((Function("step_time", (), (), Number(1.0), doc),), doc)
    assert parse(unparse(program).encode()) == program


def test_long_heads_and_sums_are_broken_over_lines() -> None:
    names = [f"a_rather_long_name_{i}" for i in range(12)]
    sum_ = " + ".join(f"{n} * (b.tokens if {n} < 2 else 1)" for n in names)
    head = ", ".join(f"{n}: us/token[0, 5] = 1.5" for n in names)
    program = parse(
        f"def step_time(b, s, *, {head}):\n    if b.tokens > 1: return {sum_}\n    x = {sum_}\n    return x - x"
    )
    text = unparse(program)
    assert max(map(len, text.splitlines())) <= 100
    assert parse(text) == program and unparse(parse(text)) == text


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
        ("one", "one", None, "one"),
        ("us", "us", None, "us"),
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
    assert program.functions[0].constants == (Constant("a", -0.25, units.read(unit), limits),)
    assert f"a: {canonical} = -0.25" in unparse(program)
    assert parse(unparse(program)) == program


def test_negative_literals_and_lifted_numbers() -> None:
    lets = "    x = -3 * b.tokens - -2\n    k2 = 7\n"
    text = f"def step_time(b, s, *, k1=-1e-30):\n{lets}    return x + k1 + k2 + 0.5"
    program = parse(text)
    assert [(c.name, c.value) for c in program.functions[0].constants] == [
        ("k1", -1e-30),
        ("k3", 3.0),
        ("k4", 7.0),
    ]
    assert program.functions[0].body[0] == Let(
        "x", Op("-", Op("*", Neg(Const("k3")), Field("b", "tokens")), Neg(Number(2.0)))
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


def test_every_function_has_a_value_and_an_opcode() -> None:
    assert FUNCTIONS.keys() == CALLS.keys() and CALLS.keys() <= set(opcodes.OPERATIONS)


def test_the_constants_of_opcodes_are_the_positions_of_their_names() -> None:
    """The compiled machine branches on the constants, and `assemble` writes the positions."""
    signs = {"+": "ADD", "-": "SUB", "*": "MUL", "/": "DIV",
             "<": "LT", "<=": "LE", ">": "GT", ">=": "GE", "==": "EQ", "!=": "NE"}  # fmt: skip
    for position, name in enumerate(opcodes.OPERATIONS):
        assert getattr(opcodes, signs.get(name, name.upper())) == position, name


def test_opcodes_run_once_what_can_be_run_once() -> None:
    code = assemble(parse("def step_time(b, s, *, a=2.0): return a * s.layers + a * s.layers * b.kv_sum"))
    assert (code.static, code.step, len(code.rows)) == (1, 3, 3)  # a * s.layers is shared
    assert code.uses == {"kv_sum"}
    assert assemble(parse("def step_time(b, s): return b.kv_mean")).uses == {
        "kv_sum",
        "prefill_reqs",
        "decode_reqs",
    }
    assert assemble(parse("def step_time(b, s): return b.kv_max")).uses == {"kv_max"}
    assert assemble(parse("def step_time(b, s): return s.tp")).results[1:] == (-1, -1, -1)


# (i) guards

INF, NAN = math.inf, math.nan
LOG_FLOOR = math.log(1e-12)
GUARDS = [
    ("x / y", 1.0, 0.0, 0.0), ("x / y", 0.0, 0.0, 0.0), ("x / y", -1.0, -0.0, 0.0), ("x / y", NAN, 0.0, 0.0),
    ("x / y", INF, 0.0, 0.0), ("x / y", 1.0, NAN, NAN), ("x / y", 1.0, INF, 0.0), ("x / y", 1e308, 1e-308,
                                                                                   INF),
    ("x / y", 7.0, 2.0, 3.5), ("x - y", INF, INF, NAN), ("x * y", INF, 0.0, NAN), ("x * y", 1e308, 10.0, INF),
    ("sqrt(x)", -4.0, 0.0, 0.0), ("sqrt(x)", 0.0, 0.0, 0.0), ("sqrt(x)", 9.0, 0.0, 3.0),
    ("sqrt(x)", -INF, 0.0, 0.0), ("sqrt(x)", INF, 0.0, INF), ("sqrt(x)", NAN, 0.0, NAN),
    ("log(x)", 1.0, 0.0, 0.0), ("log(x)", 0.0, 0.0, LOG_FLOOR), ("log(x)", -5.0, 0.0, LOG_FLOOR),
    ("log(x)", -INF, 0.0, LOG_FLOOR), ("log(x)", 1e-13, 0.0, math.log(1e-13)), ("log(x)", INF, 0.0, INF),
    ("log(x)", NAN, 0.0, NAN),
    ("log1p(x)", 0.0, 0.0, 0.0), ("log1p(x)", -0.5, 0.0, 0.0), ("log1p(x)", -1.0, 0.0, 0.0),
    ("log1p(x)", -7.0, 0.0, 0.0), ("log1p(x)", 1.0, 0.0, math.log1p(1.0)), ("log1p(x)", INF, 0.0, INF),
    ("log1p(x)", NAN, 0.0, NAN),
    ("exp(x)", 0.0, 0.0, 1.0), ("exp(x)", 50.0, 0.0, math.exp(50.0)), ("exp(x)", 50.1, 0.0, math.exp(50.0)),
    ("exp(x)", INF, 0.0, math.exp(50.0)), ("exp(x)", -INF, 0.0, 0.0), ("exp(x)", -1e308, 0.0, 0.0),
    ("exp(x)", NAN, 0.0, NAN),
    ("softplus(x)", 0.0, 0.0, math.log(2.0)), ("softplus(x)", -0.0, 0.0, math.log(2.0)),
    ("softplus(x)", 1e-20, 0.0, math.log(2.0)), ("softplus(x)", 1.0, 0.0, 1.0 + math.log1p(math.exp(-1.0))),
    ("softplus(x)", -50.0, 0.0, math.exp(-50.0)), ("softplus(x)", 50.1, 0.0, 50.1), ("softplus(x)", 800.0, 0.0, 800.0),
    ("softplus(x)", -800.0, 0.0, 0.0), ("softplus(x)", 1e308, 0.0, 1e308), ("softplus(x)", INF, 0.0, INF),
    ("softplus(x)", -INF, 0.0, 0.0), ("softplus(x)", NAN, 0.0, NAN),
    ("pow(x, y)", 3.0, 2.0, 9.0), ("pow(x, y)", -3.0, 2.0, 0.0), ("pow(x, y)", -3.0, 0.0, 1.0),
    ("pow(x, y)", 0.0, 0.0, 1.0), ("pow(x, y)", -8.0, 1.0, 0.0), ("pow(x, y)", 0.0, -1.0, INF),
    ("pow(x, y)", -0.0, -3.0, INF), ("pow(x, y)", -2.0, -3.0, INF), ("pow(x, y)", 2.0, 5.0, 16.0),
    ("pow(x, y)", 2.0, -5.0, 0.0625), ("pow(x, y)", 2.0, INF, 16.0), ("pow(x, y)", 1e200, 4.0, INF),
    ("pow(x, y)", INF, -1.0, 0.0), ("pow(x, y)", NAN, 1.0, NAN), ("pow(x, y)", 2.0, NAN, NAN),
    ("max(x, y)", 1.0, 2.0, 2.0), ("max(x, y)", NAN, 2.0, NAN), ("max(x, y)", 2.0, NAN, NAN),
    ("max(x, y)", -INF, INF, INF), ("min(x, y)", 1.0, 2.0, 1.0), ("min(x, y)", NAN, 2.0, NAN),
    ("min(x, y)", 2.0, NAN, NAN), ("max(x, y, 1)", 0.0, NAN, NAN), ("min(1, x, y)", NAN, 0.0, NAN),
    ("x if x < y else y", 1.0, 2.0, 1.0), ("x if x < y else y", NAN, 2.0, 2.0), ("1 if x != y else 2", NAN,
                                                                                 NAN, 1.0),
    ("1 if x == y else 2", NAN, NAN, 2.0), ("1 if x >= y else 2", NAN, NAN, 2.0), ("1 if x == y else 2", 0.0,
                                                                                   -0.0, 1.0),
    ("1 if x > 0 else x / y", 1.0, 0.0, 1.0),
]  # fmt: skip


def test_every_function_has_guards_by_hand() -> None:
    """The compiled machine and the interpreter are compared with these rows alone where a function is new."""
    assert {name for name in CALLS if any(formula.startswith(f"{name}(") for formula, *_ in GUARDS)} == {*CALLS}


@pytest.mark.parametrize(("formula", "x", "y", "expected"), GUARDS)
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


@pytest.mark.parametrize(
    ("x", "low", "ticks", "clamped"),
    [
        (0.0, 1, 1, True), (0.999, 1, 1, True), (1.0, 1, 1, False), (1.999, 1, 1, False), (-5.0, 1, 1, True),
        (123.9, 1, 123, False), (1e10, 1, 10**10, False), (1e10 + 1, 1, 10**10, True), (INF, 1, 10**10, True),
        (-INF, 1, 1, True), (NAN, 1, 10**10, True), (0.0, 0, 0, False), (-0.5, 0, 0, True), (0.7, 0, 0,
                                                                                             False),
        (9999999999.5, 1, 9999999999, False),
    ],
)  # fmt: skip
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


SAME = [
    ("a * b.tokens + c * b.kv_sum", "d * b.kv_sum + e * b.tokens"),
    ("a * b.tokens + c * b.kv_sum", "b.kv_sum * a + b.tokens * c"),
    ("a + b.tokens + b.kv_sum", "b.kv_sum + (b.tokens + c)"),
    ("max(a, b.tokens, b.kv_sum)", "max(b.kv_sum, max(b.tokens, d))"),
    ("a if b.tokens > c else d", "c if d < b.tokens else e"),
    ("a if b.tokens == 1 else d", "a if 1 == b.tokens else d"),
    ("a * b.decode_tokens", "a * b.decode_reqs"),
    ("max(a * b.tokens + c * b.kv_sum, a * b.kv_max)", "max(d * b.kv_max, e * b.kv_sum + d * b.tokens)"),
    ("a * b.tokens + c * b.tokens + c * b.kv_sum", "d * b.kv_sum + d * b.tokens + a * b.tokens"),
    ("a * b.tokens + c * b.tokens + c * b.kv_sum", "a * b.kv_sum + c * b.tokens + a * b.tokens"),
    ("17 * b.tokens", "a * b.tokens"),
    ("pow(b.tokens, a)", "pow(b.tokens, 3)"),
    # algebraic duplicates
    ("a * b.tokens + 0", "a * b.tokens * 1"),
    ("a * b.tokens / 1 - 0 * b.kv_sum", "-(-( a * b.tokens))"),
    ("max(a * b.tokens, a * b.tokens)", "a * b.tokens"),
    ("max(b.tokens, b.kv_sum, b.tokens)", "max(b.kv_sum, b.tokens)"),
    ("max(b.tokens, 1, 2)", "max(2, b.tokens)"),
    ("a * (b.tokens + b.kv_sum)", "b.kv_sum * a + a * b.tokens"),
    ("(a + b.tokens) * (c - b.kv_sum)", "a * c - a * b.kv_sum + b.tokens * (c - b.kv_sum)"),
    ("(b.tokens + b.kv_sum) / b.kv_max", "b.tokens / b.kv_max + b.kv_sum / b.kv_max"),
    ("b.tokens / (b.kv_max / b.kv_sum)", "b.tokens * b.kv_sum / b.kv_max"),
    ("b.tokens / b.kv_max / b.kv_sum", "b.tokens / (b.kv_sum * b.kv_max)"),
    ("b.kv_max * b.kv_max / b.kv_max", "b.kv_max"),
    ("1 / (2 * b.tokens + 2 * b.kv_sum)", "0.5 / (b.tokens + b.kv_sum)"),
    ("b.tokens - b.tokens + a", "c"),
    ("b.tokens + b.tokens", "2 * b.tokens"),
    ("pow(b.kv_sum, 0.5)", "sqrt(b.kv_sum)"),
    ("pow(b.kv_sum, 0)", "1"),
    ("sqrt(2 + 2)", "2"),
    ("b.tokens if 1 < 2 else b.kv_sum", "b.tokens"),
    ("b.tokens if b.kv_max > a else b.tokens", "b.tokens"),
    ("b.tokens if b.kv_max >= a else b.kv_sum", "b.kv_sum if b.kv_max < a else b.tokens"),
    ("b.tokens if b.kv_max - a > 0 else b.kv_sum", "b.tokens if b.kv_max > a else b.kv_sum"),
    ("b.tokens if b.kv_max != a else b.kv_sum", "b.kv_sum if a - b.kv_max == 0 else b.tokens"),
    ("a if b.tokens >= c else d", "a if b.tokens < c else d"),  # a and d change places
    # derived fields
    ("a * b.kv_read_us", "a * s.kv_us_per_token * b.kv_sum"),
    ("b.tokens - b.prefill_tokens", "b.decode_reqs"),
    ("b.kv_sum / (b.prefill_reqs + b.decode_reqs)", "b.kv_mean"),
    # constants that one constant does the work of
    ("a * c * b.kv_max", "d * b.kv_max"),
    ("a * b.tokens + c * b.tokens", "d * b.tokens"),
    ("a * b.tokens + 0.5 * c * d * b.tokens", "b.tokens * a"),
    ("2 * a * b.kv_max", "a * b.kv_max"),
    ("max(a + c, b.tokens)", "max(b.tokens, d)"),
]

DIFFERENT = [
    "a * b.tokens + a * b.kv_sum", "a * b.tokens + c * b.kv_sum", "a * b.tokens + c * b.kv_max",
    "a * b.tokens + b.kv_sum", "a if b.tokens > c else d", "d if b.tokens > c else c",

    "a if b.tokens >= c else d", "a - b.tokens", "b.tokens - a", "a / b.tokens",
    "b.tokens / a", "a * b.tokens", "2 * b.tokens", "0.5 * b.tokens", "b.tokens", "-b.tokens",
    "max(a, b.tokens)",
    "min(a, b.tokens)", "max(a, b.tokens, c)", "b.kv_sum if b.tokens > c else b.kv_max",
    "b.kv_max if b.tokens > c else b.kv_sum", "pow(b.tokens, 2)", "pow(b.tokens, a)", "sqrt(b.tokens)",
    "a * b.tokens + a * b.kv_sum + c * b.kv_max", "a * b.tokens + c * b.kv_sum + a * b.kv_max",
    "a * b.tokens + c * b.kv_sum + c * b.kv_max", "a * b.tokens + c * b.kv_sum + d * b.kv_max",
    "a * s.layers", "a * s.experts_us", "max(a * b.tokens, c * b.tokens)",
    "b.kv_sum / b.kv_sum", "b.tokens * b.tokens", "a * b.tokens - c * b.tokens", "a * a * b.tokens",
    "a * c * b.tokens + c * b.kv_sum", "1 / (b.tokens + b.kv_sum)", "1 / b.tokens + 1 / b.kv_sum",
    "sqrt(a * b.tokens)", "log(b.tokens)", "log1p(b.tokens)", "exp(b.tokens)", "softplus(b.tokens)",
    "max(a + c * b.tokens, d + e * b.tokens)", "max(a + c * b.tokens, a + e * b.tokens)",
    "max(a + c * b.tokens, d + c * b.tokens)", "a + c * b.tokens", "a", "1", "0",
]  # fmt: skip


@pytest.mark.parametrize(("left", "right"), SAME)
def test_key_of_one_form(left: str, right: str) -> None:
    assert key(step(left)) == key(step(right, a=7.0, c=-1.0, d=0.25, e=9e9))


def test_key_of_different_forms() -> None:
    by_key: dict[str, str] = {}
    for expression in DIFFERENT:
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
    """The same form: operands swapped, comparisons mirrored, all renamed, other values, other order."""
    turn = iter(flips * 200)
    mirrored = dict(zip(COMPARISONS, (">", ">=", "<", "<=", "==", "!="), strict=True))

    def compare(c: Compare) -> Compare:
        return Compare(mirrored[c.op], c.right, c.left) if next(turn) else c

    def change(node: Expr) -> Expr:
        match node:
            case Const(name):
                return Const(f"const_{name}")
            case Local(name):
                return Local(f"local_{name}")
            case Op("+" | "*" as op, left, right) if next(turn):
                return Op(op, right, left)
            case Call("max" | "min" as name, args) if next(turn):
                return Call(name, args[::-1])
            case Choose(condition, then, other):
                return Choose(compare(condition), then, other)
        return node

    functions = []
    for f in program.functions:
        body: list[Let | Guard] = []
        for statement in f.body:
            value = rebuild(statement.value, change)
            if isinstance(statement, Let):
                body.append(Let(f"local_{statement.name}", value))
            else:
                c = statement.condition
                body.append(Guard(compare(Compare(c.op, rebuild(c.left, change), rebuild(c.right, change))), value))
        constants = tuple(Constant(f"const_{c.name}", c.value / 2 + 1) for c in f.constants[::-1])
        functions.append(Function(f.name, constants, tuple(body), rebuild(f.result, change), "Another doc."))
    return Program(tuple(functions))


@settings(max_examples=daily(40))
@given(programs(), st.lists(st.booleans(), min_size=1, max_size=9))
def test_key_of_a_disguised_program(program: Program, flips: list[bool]) -> None:
    other = disguise(program, flips)
    assert key(other) == key(program) == key(parse(unparse(program)))
    assert measure.complexity(other) == measure.complexity(program)


# (d), (e) size


@pytest.mark.parametrize(
    ("body", "operations", "conditionals", "features"),
    [
        ("return b.tokens", 0, 0, ("b.tokens",)),
        ("return 1", 0, 0, ()),
        ("return -b.tokens", 0, 0, ("b.tokens",)),
        ("return - - -b.tokens", 0, 0, ("b.tokens",)),
        ("x = b.tokens\n    y = x\n    return y", 0, 0, ("b.tokens",)),
        ("return b.tokens + b.tokens", 1, 0, ("b.tokens",)),
        ("return b.tokens + b.kv_sum - s.tp * 2 / b.tokens", 4, 0, ("b.kv_sum", "b.tokens", "s.tp")),
        ("return max(b.tokens, 1)", 1, 0, ("b.tokens",)),
        ("return max(b.tokens, 1, 2, 0, s.tp)", 4, 0, ("b.tokens", "s.tp")),
        ("return min(max(b.tokens, 1), 2, 0)", 3, 0, ("b.tokens",)),
        ("return sqrt(log(log1p(softplus(exp(b.tokens)))))", 5, 0, ("b.tokens",)),
        ("return pow(b.tokens, 2)", 1, 0, ("b.tokens",)),
        ("return pow(b.tokens, -2)", 1, 0, ("b.tokens",)),
        ("return 1 if b.tokens > 2 else 0", 2, 1, ("b.tokens",)),
        ("return 1 if b.tokens + 1 > 2 else -s.tp", 3, 1, ("b.tokens", "s.tp")),
        ("if b.tokens > 2:\n        return 1\n    return 0", 2, 1, ("b.tokens",)),
        (
            "if b.tokens > 2: return 1\n    elif b.tokens > 1: return 2 * s.tp\n    return 0",
            5,
            2,
            ("b.tokens", "s.tp"),
        ),
        ("x = b.tokens * 2\n    return x * b.tokens", 2, 0, ("b.tokens",)),
    ],
)
def test_measures(body: str, operations: int, conditionals: int, features: tuple[str, ...]) -> None:
    program = parse(f"def step_time(b, s):\n    {body}")
    assert measure.operations(program) == operations
    assert measure.conditionals(program) == conditionals
    assert measure.features(program) == features
    assert measure.constants(program) == 0
    assert measure.complexity(program) == operations


@pytest.mark.parametrize(
    ("body", "numbers"),
    [
        ("return 2 * 2 * 2 * 0.5 * b.tokens", [4.0]),
        ("return 2 / 0.5 * b.tokens", [4.0]),
        ("return 2 * b.tokens / 0.5 + 2 * 2 * b.kv_sum", [4.0]),  # one number, though in two places of a sum
        ("return pow(2, 2) * b.tokens", [4.0]),
        ("return pow(2, -2) * b.tokens", [0.25]),
        ("return b.tokens + 1 + 2", [3.0]),
        ("return -2 * 2 * b.tokens", [4.0]),
        ("return sqrt(0.5) * b.tokens", [math.sqrt(0.5)]),
        ("return max(b.tokens, 2 * 2)", [4.0]),
        ("return b.kv_sum if b.tokens > 2 + 2 else 1", [0.25]),  # read as b.tokens / 4 > 1
        ("x = 2 * b.tokens\n    return 2 * x", [4.0]),
        ("return 2 * (b.tokens + 2 * b.kv_sum)", [4.0]),
        ("return b.tokens + b.tokens + b.tokens", [3.0]),
        # numbers that may stand in a formula
        ("return 2 * 0.5 * b.tokens + 2 * 2 * 0.5 * b.kv_sum", []),
        ("return 2 * (b.tokens + 0.5 * b.kv_sum) - 1 - 1", []),
        ("return sqrt(2 * b.tokens) + b.kv_sum / 2 + b.kv_max / 0.5", []),
        ("return max(b.tokens, 2) + min(2, b.kv_sum / (b.tokens + 2)) + pow(b.tokens, 2)", []),
    ],
)
def test_numbers_made_of_free_ones_count_as_constants(body: str, numbers: list[float]) -> None:
    program = parse(f"def step_time(b, s):\n    {body}")
    assert measure.made_numbers(program) == pytest.approx(numbers, abs=0)
    assert measure.constants(program) == len(numbers)


def test_shipped_programs_make_no_numbers_and_keep_to_wide_bounds() -> None:
    texts = {f.name: f.read_text() for f in files("seeds").iterdir() if f.name.endswith(".py")}
    del texts["__init__.py"]
    programs = {name: parse(text) for name, text in texts.items()}
    assert {n for n, p in programs.items() if measure.made_numbers(p) or too_narrow(p)} == set() != set(programs)


@pytest.mark.parametrize(
    ("bounds", "narrow"),
    [
        ("3, 4", True), ("1, 9.99", True), ("1, 10", False), ("0, 1e-9", False), ("-1, 1", False), ("7, 7", True),
        ("-4, -3", True), ("-40, -4", False), ("-4, 0", False), ("0, 0", False), ("1e-300, 1e300", False), ("1e-300, 2e-300", True),
    ],
)  # fmt: skip
def test_bounds_that_give_a_value_away(bounds: str, narrow: bool) -> None:
    assert bool(too_narrow(parse(f"def step_time(b, s, *, c: us[{bounds}] = 1): return c"))) is narrow


def test_measures_are_summed_over_functions() -> None:
    program = parse(PROGRAMS[5])
    assert measure.operations(program) == 2 + 4 + 1 + 2
    assert measure.conditionals(program) == 1
    assert measure.constants(program) == 5
    assert measure.complexity(program) == 14
    assert measure.features(program) == (
        "b.allreduce_us", "b.weight_read_us", "r.input_len", "s.block_size", "s.is_moe",
        "s.reference_step_us", "s.tp_log2",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("body", "complaint"),
    [
        (" + ".join(["b.tokens"] * 41), None),
        (" + ".join(["b.tokens"] * 42),
         "41 operations, at most 40 are allowed: shorten the program or raise --max-operations"),
        ("max(" + ", ".join(["b.tokens"] * 41) + ")", None),
        ("max(" + ", ".join(["b.tokens"] * 42) + ")",
         "41 operations, at most 40 are allowed: shorten the program or raise --max-operations"),
        (" + ".join(["(1 if b.tokens > 2 else 0)"] * 4), None),
        (" + ".join(["(1 if b.tokens > 2 else 0)"] * 5),
         "5 conditionals, at most 4 are allowed: shorten the program or raise --max-conditionals"),
        ("max(" + ", ".join(map(str, range(3, 19))) + ")", None),
        ("max(" + ", ".join(map(str, range(3, 20))) + ")",
         "17 constants, at most 16 are allowed: shorten the program or raise --max-constants"),
    ],
)  # fmt: skip
def test_caps(body: str, complaint: str | None) -> None:
    program = parse(f"def step_time(b, s):\n    return {body}")
    if complaint is None:
        assert measure.enforce(program, Caps(), "p.py") is program
        return
    assert measure.complaints(program, Caps()) == [complaint]
    with pytest.raises(InputError) as error:
        measure.enforce(program, Caps(), "p.py")
    assert str(error.value) == f"p.py: {complaint}"
    assert measure.enforce(program, Caps(99, 99, 99), "p.py") is program


# (f) bounds


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        *((f"def step_time(b, s, *, a=1.0): return a * b.{name}", 1.0) for name in (
            "weight_read_us", "expert_read_us", "kv_read_us", "decode_kv_read_us", "kv_write_us",
            "prefill_gemm_us",
            "decode_gemm_us", "prefill_attention_us", "decode_attention_us", "logits_us")),
        *((f"def step_time(b, s, *, a=1.0): return s.{name} * a", 1.0) for name in (
            "shared_weights_us", "experts_us", "weights_us", "kv_us_per_token * b.kv_sum",
            "gemm_us_per_token * b.tokens", "attention_us_per_pair * b.prefill_pairs",
            "logits_us_per_row * b.batch_size")),
        *((f"def step_time(b, s, *, a=1.0): return a * {name}", 1.0) for name in (
            "b.total_flops / s.flops_per_us", "b.total_bytes / s.bytes_per_us", "b.attention_flops / s.flops_per_us",
            "s.kv_bytes_per_token / s.bytes_per_us * b.kv_sum")),
        *((f"def step_time(b, s, *, a=1.0): return a * {name}", 0.0) for name in (
            "b.allreduce_us", "s.allreduce_us_per_token", "b.tokens", "b.total_flops", "b.total_bytes",
            "s.layers", "b.total_flops / s.bytes_per_us", "b.weight_read_us * b.batch_size",
            "b.tokens * s.weights_us")),
        ("def step_time(b, s, *, a=1.0): return a", 0.0),
        ("def step_time(b, s, *, a=1.0): return a + b.kv_read_us", 0.0),
        ("def step_time(b, s, *, a=1.0): return max(a, b.kv_read_us)", 0.0),
        ("def step_time(b, s, *, a: token=1.0): return b.kv_read_us / a", 1e-9),
        ("def step_time(b, s, *, a=1.0): return exp(b.kv_read_us / a)", 1e-9),
        ("def step_time(b, s, *, a=1.0): return 1 / (1 + 1 / a)", 1e-9),
        ("def step_time(b, s, *, a=1.0): return a / b.kv_read_us", 0.0),
        ("def step_time(b, s, *, a=1.0): return a * b.kv_read_us / s.layers", 1.0),
        ("def step_time(b, s, *, a=1.0): return b.kv_read_us / 2 * a", 2.0),
        ("def step_time(b, s, *, a=1.0): return a * (b.kv_read_us + b.weight_read_us)", 1.0),
        ("def step_time(b, s, *, a=1.0): return a * max(b.allreduce_us, b.kv_read_us)", 1.0),
        ("def step_time(b, s, *, a=1.0): return a * (b.kv_read_us if b.tokens > 1 else 0)", 1.0),
        ("def step_time(b, s, *, a=1.0): return (a if b.tokens > 1 else 2) * b.kv_read_us", 1.0),
        ("def step_time(b, s, *, a=1.0): return b.kv_read_us * max(a, 1)", 1.0),
        ("def step_time(b, s, *, a=1.0):\n x = b.kv_read_us + b.weight_read_us\n y = max(x, 2)\n return a * y", 1.0),
        ("def step_time(b, s, *, a=1.0):\n f = a\n g = f * 2\n return g * b.kv_read_us", 0.5),
        ("def step_time(b, s, *, a=1.0):\n if b.tokens > 1: return a * b.kv_read_us\n return 0", 1.0),
        ("def step_time(b, s, *, a=1.0): return 1 if a * b.kv_read_us > b.logits_us else 2", 0.0),
        # what is taken away, what two parts share, and what comes on top of the whole
        ("def step_time(b, s, *, a=1.0): return b.weight_read_us - a * b.kv_read_us", 0.0),
        ("def step_time(b, s, *, a=1.0): return max(b.weight_read_us, b.kv_read_us) + a * min(b.weight_read_us, b.kv_read_us)", 0.0),
        ("def step_time(b, s, *, a=1.0): return b.weight_read_us + a * b.weight_read_us", 0.0),
        ("def step_time(b, s, *, a=1.0): return b.weight_read_us * (1 + a * b.batch_size)", 0.0),
        ("def step_time(b, s, *, a=1.0): return b.weight_read_us / 2 + a * b.weight_read_us", 1.0),
        ("def step_time(b, s, *, a=1.0): return 2 * a * b.kv_read_us + a * b.logits_us", 1.0),
        ("def step_time(b, s, *, a=1.0): return a * sqrt(b.kv_read_us)", 0.0),
        ("def step_time(b, s, *, a=1.0): return exp(a * b.kv_read_us)", 0.0),
        ("def step_time(b, s): return 3 * b.kv_read_us", 1.0),
        ("def step_time(b, s): return 0\ndef queueing_time(r, s, *, a=1.0): return a * s.weights_us", 0.0),
        ("def step_time(b, s): return 0\ndef completion_time(s, *, a=1.0): return a * s.weights_us", 0.0),
    ],
)  # fmt: skip
def test_default_bounds(text: str, expected: float) -> None:
    assert bounds(parse(text)) == ((expected, math.inf),)


@pytest.mark.parametrize(
    "formula",
    [
        "b.kv_read_us / a",
        "b.total_flops / (a * s.flops_per_us)",
        "b.total_bytes / s.bytes_per_us / a",
        "b.tokens * (s.gemm_us_per_token / (2 * a))",
        "b.weight_read_us / 0.7",
    ],
)
def test_an_efficiency_is_at_most_the_datasheets(formula: str) -> None:
    head = "" if "0.7" in formula else ", *, a=1.0"
    assert bounds(parse(f"def step_time(b, s{head}): return {formula}")) == ((0.01, 1.0),)
    text = "def step_time(b, s): return 1\ndef queueing_time(r, s, *, a=1.0): return s.weights_us / a"
    assert bounds(parse(text)) == ((1e-9, math.inf),)
    split = "def step_time(b, s, *, e=1.0, f=1.0): return b.weight_read_us / e / f"
    assert bounds(parse(split)) == ((0.01, 1.0),) * 2


@pytest.mark.parametrize(
    "formula",
    [
        "a * b.kernel_gemm_us",
        "a * (b.kernel_gemm_us + b.kernel_router_us) + b.kernel_moe_us",
        "s.layers + b.kernel_us * a",
        "a * b.kernel_decode_us_per_token * b.kv_decode_sum",
        "a * b.prefill_pairs * b.kernel_prefill_us_per_pair + a * b.kernel_gemm_us",
        "max(a * b.kernel_us, 4000)",
        "a * b.kernel_gemm_us if b.tokens > 256 else b.kernel_us",
    ],
)
def test_a_factor_of_a_measured_kernel_is_near_one(formula: str) -> None:
    program = parse(f"def step_time(b, s, *, a=1.0): return {formula}")
    at = [c.name for c in program.functions[0].constants].index("a")  # numbers become constants, too
    assert kernel_factors(program)[at] and bounds(program)[at] == (0.5, 2.0)


@pytest.mark.parametrize(
    ("formula", "expected"),
    [
        ("b.kernel_gemm_us + a * b.kernel_gemm_us", (0.0, math.inf)),  # what is added to the bare time
        ("2 * a * b.kernel_gemm_us", (0.0, math.inf)),
        ("a * b.kernel_gemm_us * s.tp", (0.0, math.inf)),
        ("a * b.kernel_gemm_us * b.kernel_moe_us", (0.0, math.inf)),
        ("a * b.kernel_decode_us_per_token", (0.0, math.inf)),  # no time without a context
        ("a * b.kernel_gemm_us + a * s.layers", (0.0, math.inf)),  # something else too
        ("b.kernel_gemm_us / a", (1e-9, math.inf)),
        ("a * b.weight_read_us", (1.0, math.inf)),
        ("a * b.graph_tokens", (0.0, math.inf)),
        ("b.kernel_gemm_us + a * b.kernel_gemm_us * b.uncaptured", (0.0, 1.0)),  # at most as long again
        ("a * b.uncaptured * (b.kernel_gemm_us + b.kernel_router_us)", (0.0, 1.0)),
        ("a * b.kernel_gemm_us * b.uncaptured * s.layers", (0.0, math.inf)),
        ("a * b.kernel_gemm_us * b.uncaptured + a * b.kernel_gemm_us", (0.0, math.inf)),
        ("a * b.uncaptured", (0.0, math.inf)),
    ],
)
def test_what_is_no_factor_of_a_measured_kernel(formula: str, expected: tuple[float, float]) -> None:
    program = parse(f"def step_time(b, s, *, a=1.0): return {formula}")
    at = [c.name for c in program.functions[0].constants].index("a")
    assert not kernel_factors(program)[at] and bounds(program)[at] == expected


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
    assert bounds(parse(text + more)) == (
        (0.8, 3.0),
        (1.0, math.inf),
        (-5.0, 5.0),
        (2.0, 2.0),
        (0.0, math.inf),
    )


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


# (h) the original proposal's dialect, and its five seeds

HEAD = "CONSTANTS = {'c1': 1.5, 'c2': 2.5, 'c3': 3.5, 'c4': 4.5, 'c5': 5.5}\n"
DIALECT = [
    (
        "CONSTANTS = {'b0': 5000.0, 'b1': 12.0, 'b2': 30.0}\ndef predict_step_time(b):\n"
        "    return (CONSTANTS['b0'] + CONSTANTS['b1'] * b['prefill_tokens']\n"
        "            + CONSTANTS['b2'] * b['decode_tokens'])",
        "def step_time(b, s, *, x=1, y=1, z=1): return x + y * b.prefill_tokens + z * b.decode_reqs",
    ),
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
        "CONSTANTS = {'a': 12.0, 'c': 30.0, 'd': 0.01, 'o': 4000.0}\ndef predict_step_time(b):\n"
        "    return max(b['prefill_tokens'] * CONSTANTS['a'],\n"
        "               b['decode_reqs'] * (CONSTANTS['c'] + b['kv_mean'] * CONSTANTS['d'])\n"
        "               ) + CONSTANTS['o']",
        "def step_time(b, s, *, o=1, a=1, c=1, d=1):\n"
        "    return o + max(b.decode_reqs * (c + d * b.kv_mean), a * b.prefill_tokens)",
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
]  # fmt: skip


@pytest.mark.parametrize(
    ("head", "formula", "sentence"),
    [
        ("w=1.0", "w * b.weight_read_us", "w = 1 (at its lower bound: the datasheet's peak, which no kernel beats"),
        (
            "w=0.5",
            "2 * w * b.weight_read_us",
            "w = 0.5 (at its lower bound: the datasheet's peak, which no kernel beats",
        ),
        ("e=1.0", "b.weight_read_us / e", "e = 1 (at its upper bound: the datasheet's peak, which no kernel beats"),
        ("e=0.01", "b.weight_read_us / e", "e = 0.01 (at its lower bound: 1% of the datasheet's peak"),
        ("g=0.5", "g * b.kernel_gemm_us", "g = 0.5 (at its lower bound: half the measured kernel's time"),
        ("g=2.0", "g * b.kernel_gemm_us", "g = 2 (at its upper bound: twice the measured kernel's time"),
        ("c=0.0", "1 + c", "c = 0 (at its lower bound: what adds to a time is not negative"),
        ("c: us[3, 5] = 5.0", "1 + c", "c = 5 (at its upper bound: as annotated"),
        ("w=1.1", "w * b.weight_read_us", None),
    ],
)
def test_a_constant_at_its_bound_is_explained(head: str, formula: str, sentence: str | None) -> None:
    program = parse(f"def step_time(b, s, *, {head}): return {formula}")
    unfitted, fitted = (list(at_bounds(program, held).values()) for held in (None, ()))
    assert unfitted == ([] if sentence is None else [f"{sentence})"])
    wish = "" if sentence is None else "lower, or do not show it" if "lower" in sentence else "higher"
    assert fitted == ([] if sentence is None else [f"{sentence}; the fitted runs would take it {wish})"])


@pytest.mark.parametrize(("theirs", "ours"), DIALECT)
def test_the_original_dialect(theirs: str, ours: str) -> None:
    program = parse(theirs)
    assert key(program) == key(parse(ours))
    assert parse(unparse(program)) == program
    assert measure.complexity(program) == measure.complexity(parse(ours))
    for batch in BATCHES:
        three_ways(program, theirs, batch, FACTS, 1)


def test_the_original_dialect_reads_constants_in_order() -> None:
    program = parse(DIALECT[4][0])
    assert [(c.name, c.value) for c in program.functions[0].constants] == [
        ("c1", 1.5), ("c2", 2.5), ("c3", 3.5), ("c4", 4.5), ("c5", 5.5), ("k1", 100.0),
    ]  # fmt: skip
    expression = "CONSTANTS['a'] * b['tp'] + CONSTANTS['z']"
    text = f"CONSTANTS = {{'z': 2, 'a': -1}}\ndef predict_step_time(b): return {expression}"
    assert parse(text).theta == (2.0, -1.0)


def test_the_original_dialect_shares_a_constant_as_a_copy() -> None:
    """A function has constants of its own, so one read by two functions becomes one each."""
    program = parse(PROGRAMS[-1])
    assert [[c.name for c in f.constants] for f in program.functions] == [["c1", "c2", "k1"], ["c1"]]


def test_terms_that_a_fit_switched_off_are_left_out_and_change_nothing() -> None:
    text = """
def step_time(b, s, *, a=0.0, c=3.0, d=0.0, e=0.0):
    dead = d * b.kv_sum
    both = c * b.tokens + b.tokens / e + (a * b.kv_sum if b.tokens > 2 else e * s.layers)
    if b.tokens > c:
        return both - a * b.kv_sum
    return max(a + both, max(dead, 1)) + dead * 2
"""
    short = lean(parse(text))
    assert unparse(short) == (
        "def step_time(b, s, *, c=3.0):\n"
        "    both = c * b.tokens\n"
        "    if b.tokens > c:\n"
        "        return both\n"
        "    return max(both, 1)\n"
    )
    assert parse(unparse(short)) == short


@pytest.mark.parametrize(("value", "kept"), [(2.0, "c * b.tokens"), (-2.0, "max(0, c * b.tokens)")])
def test_a_floor_of_zero_is_left_out_where_nothing_below_it_is_possible(value: float, kept: str) -> None:
    text = f"def step_time(b, s, *, c={value}): return max(0, c * b.tokens)"
    assert unparse(lean(parse(text))) == f"def step_time(b, s, *, c={value}):\n    return {kept}\n"


def test_a_factor_of_one_is_left_out_where_the_units_allow() -> None:
    text = (
        "def step_time(b, s, *, a: one = 1.0, c: us/token = 1.0, d=1.0, e: one = 1.5):\n"
        "    return a * (b.kernel_gemm_us + e * b.kernel_moe_us * a) + c * b.tokens + d * b.kernel_lm_head_us\n"
    )
    assert unparse(lean(parse(text))) == (
        "def step_time(b, s, *, c: us/token = 1.0, d=1.0, e: one = 1.5):\n"
        "    return b.kernel_gemm_us + e * b.kernel_moe_us + c * b.tokens + d * b.kernel_lm_head_us\n"
    )


def test_a_maximum_keeps_a_zero_that_may_be_the_largest() -> None:
    for text, kept in [("max(a, b.tokens - c)", "max(a, b.tokens - c)"), ("max(a, c * b.tokens, b.kv_sum)",
                       "max(c * b.tokens, b.kv_sum)"), ("max(b.tokens - c, a, min(c, sqrt(b.tokens)))",
                       "max(b.tokens - c, a, min(c, sqrt(b.tokens)))"), ("max(a * b.kv_sum, b.tokens if b.tokens > c else c)",
                       "b.tokens if b.tokens > c else c")]:  # fmt: skip
        program = lean(parse(f"def step_time(b, s, *, a=0.0, c=3.0): return {text}"))
        assert unparse(program).endswith(f"return {kept}\n")


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
