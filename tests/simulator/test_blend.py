"""A blend is the mean of its programs on every batch, and as small as their common terms allow."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from random import Random

import pytest
from drawn_programs import FACTS, programs
from examples import daily
from hypothesis import given, settings
from hypothesis import strategies as st

from evolve.run.program import load, seed_names
from simulator.clock.fields import Active, BatchFields
from simulator.common.errors import InputError
from simulator.language.blend import blend, terms
from simulator.language.complete import complete
from simulator.language.evaluate import evaluate, value
from simulator.language.infer import check_units
from simulator.language.ir import METHODS, Expr, Function, Neg, Op, Program, inlined
from simulator.language.measure import conditionals, constants, operations
from simulator.language.parse import parse
from simulator.language.unparse import unparse

Fields = Mapping[tuple[str, str], float]


class Step(dict[tuple[str, str], float]):
    """All fields of a random step of a deployment, and of a request."""

    def __init__(self, rng: Random) -> None:
        batch = []
        for _ in range(rng.randint(1, 20)):
            prompt = rng.randint(1, 3000)
            progress = rng.choice((0, rng.randint(0, prompt), prompt + rng.randint(0, 500)))
            batch.append(Active(prompt, progress, 1 if progress >= prompt else rng.randint(1, prompt - progress)))
        self.batch = BatchFields(batch, FACTS)
        self["r", "input_len"] = float(rng.randint(1, 3000))
        self["s", "reference_step_us"] = rng.uniform(1e3, 1e5)

    def __missing__(self, field: tuple[str, str]) -> float:
        return self.batch[field]


def magnitude(node: Expr, names: Mapping[str, float], fields: Fields) -> float:
    """The value of an expression if nothing in its sums cancelled: rounding is relative to this."""
    match node:
        case Neg(inner):
            return magnitude(inner, names, fields)
        case Op("+" | "-", left, right):
            return magnitude(left, names, fields) + magnitude(right, names, fields)
        case Op("*", left, right):
            return magnitude(left, names, fields) * magnitude(right, names, fields)
        case Op(_, left, right):
            below = abs(value(right, names, fields))
            return magnitude(left, names, fields) / below if below else 0.0
        case _:
            return abs(value(node, names, fields))


def at(function: Function | None, fields: Fields) -> tuple[float, float]:
    """The value and the magnitude of a method, 0 if it is missing."""
    if function is None:
        return 0.0, 0.0
    names = {c.name: c.value for c in function.constants}
    return evaluate(function, fields), magnitude(inlined(function), names, fields)


def compared(some: Sequence[Program], rng: Random) -> int:
    """How many times of the blend were compared with the mean of its programs' times; those that overflow are not."""
    mixed, n = complete(blend(some)), 0
    if not all(map(math.isfinite, mixed.theta)):
        return 0
    for _ in range(5):
        fields = Step(rng)
        for method in METHODS:
            values, sizes = zip(*(at(complete(p).function(method), fields) for p in some), strict=True)
            if all(map(math.isfinite, (*values, *sizes))):
                mean, size = math.fsum(values) / len(values), math.fsum(sizes) / len(values)
                ours, _ = at(mixed.function(method), fields)
                assert abs(ours - mean) <= max(1e-9 * abs(mean), 1e-13 * size), (method, ours, mean, unparse(mixed))
                n += 1
    return n


# The first seeds stand for the others: the draws are alike.
# What searches find, each term in several spellings. A quantity of the second column makes a coefficient of the first
# microseconds.
SPELLINGS = [
    line.split(" ; ")
    for line in """
us/token ; {} * b.tokens ; b.tokens * {} ; ({} * b.tokens * 2) / 2 ; {} * (b.tokens + b.prefill_tokens)
one ; {} * b.kernel_gemm_us ; b.kernel_gemm_us ; b.kernel_gemm_us / {} ; {} * (b.kernel_gemm_us + b.weight_read_us)
us/token ; {} * b.kv_sum * s.layers ; s.layers * ({} * b.kv_sum) ; s.layers * ({} * b.kv_sum + 2 * b.kernel_us / s.tp)
us ; {} ; -(0 - {}) ; {} * s.is_fp8 ; {} if b.prefill_reqs > 0 else 2 * {}
one ; max({} * b.kernel_moe_us, b.kernel_us) ; pow(b.uncaptured + 1, {}) * b.kernel_us ; b.kernel_us * log1p({})
""".strip().splitlines()
]


def found(rng: Random) -> str:
    """The text of a program with some of these terms, assignments and an early return."""
    names, lines, parts = [], [], []
    for i, (unit, *spellings) in enumerate(SPELLINGS):
        if rng.random() < 0.7:
            term = rng.choice(spellings).format(f"c{i}", f"c{i}")
            if f"c{i}" in term:
                names.append(f"c{i}: {unit} = {rng.uniform(0.1, 3.0)!r}")
            if rng.random() < 0.3:
                lines.append(f"x{i} = {term}")
                term = f"x{i}"
            parts.append(term)
    if rng.random() < 0.2:
        lines.append("if b.batch_size > 1000000: return 2 * b.kernel_us")
    body = "; ".join(line for line in lines if not line.startswith("if"))
    early = "\n    ".join(line for line in lines if line.startswith("if"))
    rng.shuffle(parts)
    text = "\n    ".join(part for part in (body, early, f"return {' + '.join(parts) or 'b.kernel_us'}") if part)
    return f"def step_time(b, s{''.join(f', {n}' for n in ['*', *names]) if names else ''}):\n    {text}\n"


# The first seeds stand for the others: the draws are alike.
@pytest.mark.parametrize("seed", [*range(40), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(40, 100))])
def test_programs_as_searches_find_them_have_consistent_units_and_share_terms(seed: int) -> None:
    rng = Random(seed)
    some = [parse(found(rng)) for _ in range(rng.randint(2, 6))]
    assert compared(some, rng) == 30
    mixed = blend(some)
    assert parse(unparse(mixed)) == mixed
    check_units(mixed, "blend")
    assert blend([mixed]) == mixed
    # no more terms than the programs have together, so never more of anything but the coefficients
    assert conditionals(mixed) <= sum(map(conditionals, some))
    assert constants(mixed) <= sum(constants(p) + len(terms(p.functions[0])) for p in some) + 2


@settings(max_examples=daily(15, 60), derandomize=True)
@given(st.lists(programs(), min_size=1, max_size=3), st.randoms(use_true_random=False))
def test_every_time_is_the_mean_for_any_program(drawn: list[Program], rng: Random) -> None:
    def moderate(x: float) -> float:
        """The constant, so far from the limits of float64 that products do not reach them."""
        return math.copysign(min(max(abs(x), 1e-9), 1e9), x) if x else 0.0

    compared([p.with_theta(tuple(map(moderate, p.theta))) for p in drawn], rng)


def test_the_mean_of_one_program_is_its_shortest_spelling() -> None:
    for name in set(seed_names()) - {"trained_physics"}:  # its fields are no search's
        program = load(name).program
        once = blend([program])
        assert blend([once, once]) == once
        assert operations(once) <= operations(complete(program)) + 2, name
        assert compared([program], Random(0)) == 30


def test_terms_in_common_are_merged_and_others_count_as_nothing_where_they_are_missing() -> None:
    one = parse("def step_time(b, s, *, g: one = 0.9, c=4.0): return g * (b.kernel_gemm_us + b.kernel_router_us) + c")
    two = parse(
        "def step_time(b, s, *, k: one = 0.7, base: us = 2.0):\n"
        "    return k * b.kernel_router_us + k * b.kernel_gemm_us + b.kernel_moe_us + base\n"
    )
    assert unparse(blend([one, two])).split("\n\n\n")[0] == (
        "def step_time(b, s, *, g: one = 0.8, c: us = 3.0, kernel_moe: one = 0.5):\n"
        "    return g * (b.kernel_gemm_us + b.kernel_router_us) + c + kernel_moe * b.kernel_moe_us"
    )


def test_what_is_not_affine_keeps_its_constants_under_names_of_their_own() -> None:
    text = "def step_time(b, s, *, c: one = {}): return max(c * b.kernel_us, b.weight_read_us) + c * b.kernel_moe_us"
    mixed = blend([parse(text.format(x)) for x in (0.8, 0.6)])
    assert unparse(mixed).split("\n\n\n")[0] == (
        "def step_time(b, s, *, c: one = 0.8, c_2: one = 0.6, share: one = 0.5, c_3: one = 0.7):\n"
        "    return (\n"
        "        share * (max(c * b.kernel_us, b.weight_read_us) + max(c_2 * b.kernel_us, b.weight_read_us))\n"
        "        + c_3 * b.kernel_moe_us\n"
        "    )"
    )


def test_terms_that_cancel_and_overheads_of_nothing_are_left_out() -> None:
    text = (
        "def step_time(b, s, *, c=2.0): return b.kernel_us {} c * b.tokens\ndef completion_time(s, *, k=0.0): return k"
    )
    mixed = blend([parse(text.format("+")), parse(text.format("-"))])
    assert [f.name for f in mixed.functions] == ["step_time", "queueing_time"]
    assert unparse(mixed).startswith("def step_time(b, s):\n    return b.kernel_us\n")


def test_a_program_that_grows_beyond_bounds_without_its_assignments_is_refused() -> None:
    lines = "".join(f"x{i} = x{i - 1} * x{i - 1}\n    " for i in range(1, 30))
    huge = parse(f"def step_time(b, s):\n    x0 = b.tokens\n    {lines}return x29\n")
    with pytest.raises(InputError, match="step_time: has more than 2,000 parts without its assignments: leave"):
        blend([huge])
