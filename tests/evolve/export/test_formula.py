"""A program's expressions have the values that the interpreter computes, and its LaTeX is well formed."""

from __future__ import annotations

import doctest
import math
import re
import subprocess
import sys
from random import Random

import pytest
import sympy
from drawn_programs import programs
from hypothesis import given, settings
from matplotlib.mathtext import MathTextParser
from paths import ROOT
from random_programs import OTHERS, random_program

from evolve.export import formula, latex
from evolve.export.formula import field, to_sympy, values
from evolve.export.latex import to_latex
from evolve.inspect.readings import readings
from evolve.run.program import load, seed_names
from simulator.language import ir
from simulator.language.evaluate import evaluate
from simulator.language.ir import Field, Function, Program, nodes
from simulator.language.parse import parse
from simulator.language.unparse import unparse


def inputs(function: Function, rng: Random) -> dict[tuple[str, str], float]:
    """A value for each field that the function reads: often 0, 1 or a whole number, so that branches meet."""
    read = sorted({(n.scope, n.name) for n in nodes(function) if isinstance(n, Field)})
    return {
        name: float(rng.choice([0, 1, rng.randint(0, 4), rng.randint(1, 4000) / 8, rng.uniform(0, 1000)]))
        for name in read
    }


def number(x: float) -> sympy.Float:
    return sympy.Float(x, 50)  # so that rounding is the interpreter's alone


def assert_equal_values(program: Program, rng: Random, draws: int) -> int:
    """Compare every method with the interpreter; returns the number of finite values compared."""
    expressions, compared = to_sympy(program), 0
    constants = {symbol: number(x) for symbol, x in values(program).items()}
    assert list(expressions) == [f.name for f in program.functions]
    for f in program.functions:
        for _ in range(draws):
            fields = inputs(f, rng)
            expected = evaluate(f, fields)
            if math.isfinite(expected):
                at = constants | {field(*name): number(x) for name, x in fields.items()}
                actual = float(expressions[f.name].xreplace(at).evalf(30))
                # The interpreter's numbers are float64, which has few digits below 1e-300: of their root, below 1e-150.
                assert actual == pytest.approx(expected, rel=1e-9, abs=1e-150), (unparse(program), f.name, fields)
                compared += 1
    return compared


@pytest.mark.parametrize("name", seed_names())
def test_a_shipped_programs_expressions_have_the_interpreters_values(name: str) -> None:
    program = load(name).complete
    assert assert_equal_values(program, Random(name), 20) == 20 * len(program.functions)


@pytest.mark.parametrize(("name", "count"), [(name, fewest) for name, (fewest, _) in ir.CALLS.items()])
def test_every_function_is_exported_and_described(name: str, count: int) -> None:
    called = f"{name}({', '.join(['b.tokens', '2'][:count])})"
    program = parse(f"def step_time(b, s, *, c=2.0): return c * {called}")
    assert assert_equal_values(program, Random(name), 20) > 0  # sympy's
    mathtext(*lines(to_latex(program)))
    assert readings(program)[0].meaning


@pytest.mark.slow
def test_expressions_of_random_programs_have_the_interpreters_values_branch_for_branch() -> None:
    rng = Random(2)
    compared = sum(assert_equal_values(random_program(rng, OTHERS), rng, 3) for _ in range(25))
    assert compared > 0.9 * 25 * 6 * 3  # few values are too large for float64


@pytest.mark.parametrize(
    "text",
    [
        "def step_time(b, s): return 1 if b.tokens / b.kv_sum > 2 else b.kv_sum / b.tokens",
        "def step_time(b, s): return 2 if (1 if b.tokens / b.kv_sum > 1 else 0) == 1 else 1 / (b.tokens - b.kv_sum)",
        "def step_time(b, s): return 1 if log(b.tokens) < -20 else sqrt(b.tokens - b.kv_sum) + exp(b.kv_sum)",
        "def step_time(b, s, *, c=-9.0): return min(pow(b.tokens, c), 2) + pow(b.kv_sum - b.tokens, -c)",
        "def step_time(b, s, *, c=9.0): return pow(b.tokens, 1) if pow(b.tokens, -c) > 0.5 else log1p(-b.tokens)",
        "def step_time(b, s): return 1 if softplus(b.tokens - b.kv_sum) < 0.5 else softplus(b.kv_sum / b.tokens)",
        "def step_time(b, s): return softplus(b.tokens - b.kv_sum) / softplus(-b.kv_sum)",
        "def step_time(b, s):\n    if b.kv_sum == 0: return 0\n    if b.tokens / b.kv_sum > 2: return 0\n    return b.tokens",
    ],
)
def test_guards_hold_within_conditions_too(text: str) -> None:
    """A condition that divides by 0 is the hard case: sympy evaluates all parts of a condition."""
    program = parse(text)
    expression, constants = to_sympy(program)["step_time"], values(program)
    for tokens in (0.0, 1.0, 5.0):
        for kv in (0.0, 1.0, 2.0, 60.0):
            fields = {("b", "tokens"): tokens, ("b", "kv_sum"): kv}
            expected = evaluate(program.functions[0], fields)
            at = {field(*name): x for name, x in fields.items()}
            assert float(expression.subs(constants | at)) == pytest.approx(expected, rel=1e-9, abs=0), (tokens, kv)


def test_conditions_with_terms_on_both_sides_settle() -> None:
    """Within a Piecewise, sympy swaps the sides of this one, as it is written, until the stack is full."""
    program = parse("def step_time(b, s, *, k=14.0, x=-4.0): return 1 if s.ffn - k < k - x else b.tokens")
    expression = to_sympy(program)["step_time"]
    at = {field("b", "tokens"): 7.0} | values(program)
    assert [float(expression.subs(at | {field("s", "ffn"): ffn})) for ffn in (31.0, 32.0)] == [1.0, 7.0]
    assert "b.tokens" in str(expression.subs({field("s", "ffn"): field("b", "kv_sum") + 1}))


def test_a_plain_program_is_plain_sympy() -> None:
    program = parse("def step_time(b, s, *, c=3.0): return max(c * b.tokens, b.kv_sum) / s.tp")
    expression = to_sympy(program)["step_time"]
    tokens, kv, tp, c = field("b", "tokens"), field("b", "kv_sum"), field("s", "tp"), *values(program)
    assert expression == sympy.Piecewise((sympy.Max(c * tokens, kv) / tp, sympy.Ne(tp, 0)), (0, True))
    assert sympy.lambdify([tokens, kv, tp, c], expression)(2.0, 5.0, 2.0, 3.0) == 3.0


def test_constants_that_methods_share_a_name_for_are_told_apart() -> None:
    text = "def step_time(b, s, *, base=1.0, k=2.0): return base + k\ndef queueing_time(r, s, *, base=5.0): return base"
    program = parse(text)
    named = {symbol.name: x for symbol, x in values(program).items()}
    assert named == {"step_time.base": 1.0, "k": 2.0, "queueing_time.base": 5.0}
    assert [float(e.subs(values(program))) for e in to_sympy(program).values()] == [3.0, 5.0]


def test_a_constant_has_the_sign_of_its_bounds_unless_its_value_says_otherwise() -> None:
    text = "def step_time(b, s, *, a=1.0, c=-1.0, d: us[-9, 9] = 3.0, e=0.5): return a + c + d + b.weight_read_us / e"
    signs = [(s.is_positive, s.is_nonnegative) for s in values(parse(text))]
    assert signs == [(None, True), (None, None), (None, None), (True, True)]  # an efficiency is at least 0.01


def mathtext(line: str) -> None:
    MathTextParser("path").parse(f"${line.replace('&', '')}$")


def lines(block: str) -> list[str]:
    first, *inside, last = block.split("\n")
    assert (first, last) == (r"\begin{aligned}", r"\end{aligned}")
    return [line.removesuffix(r" \\") for line in inside]


@pytest.mark.parametrize("name", seed_names())
def test_a_shipped_programs_latex_has_a_line_for_each_term_that_mathtext_sets(name: str) -> None:
    for line in lines(to_latex(load(name).program)):
        assert "={}& " in line or line.startswith((" &+ ", " &- "))
        if "cases" not in line:  # mathtext has no environments
            mathtext(line)


@pytest.mark.slow
@settings(max_examples=30)
@given(programs())
def test_latex_of_any_program_is_balanced_and_escaped(program: Program) -> None:
    block = to_latex(program)
    assert block.count("{") == block.count("}") and block.count(r"\left(") == block.count(r"\right)")
    assert block.count(r"\begin{cases}") == block.count(r"\end{cases}")
    assert not re.search(r"(?<!\\)[_#$%~]", block)
    for line in lines(block):
        if "cases" not in line:
            mathtext(line)


def test_latex_keeps_brackets_where_the_text_needs_them() -> None:
    text = "def step_time(b, s, *, c=2.0): return c * (b.tokens - (b.kv_sum - 1)) / -c + pow(b.tokens + 1, 0.5)"
    b, k = r"\mathrm{b.tokens}", r"\mathrm{b.kv\_sum}"
    assert lines(to_latex(parse(text))) == [
        rf"\mathrm{{step\_time}} ={{}}& \frac{{\mathit{{c}} \cdot \left({b} - \left({k} - 1\right)\right)}}{{-\mathit{{c}}}}",
        rf" &+ {{\left({b} + 1\right)}}^{{0.5}}",
    ]
    assert lines(to_latex(parse("def step_time(b, s): return log1p(b.tokens - 1) * softplus(b.tokens - 1)"))) == [
        rf"\mathrm{{step\_time}} ={{}}& \ln\left(1 + \left({b} - 1\right)\right) \cdot "
        rf"\ln\left(1 + \exp\left({b} - 1\right)\right)"
    ]


def test_text_from_names_is_escaped() -> None:
    assert latex.escaped("a_b{50%}\\x\x1b") == r"a\_b\{50\%\}\textbackslash{}x\textbackslash{}x1b"


@pytest.mark.parametrize("module", [formula, latex])
def test_the_examples_run(module: object) -> None:
    assert doctest.testmod(module, extraglobs={"parse": parse}).failed == 0  # type: ignore[arg-type]


def test_without_the_extra_one_line_names_it() -> None:
    code = "import sys; sys.modules['sympy'] = None\nimport evolve.export.latex\nimport evolve.export.formula"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=ROOT)
    assert ended.stderr.rstrip().endswith("sympy is missing: needs the extra: pip install 'evolve-latency[view]'")
