"""Forms of a program without one of its parts."""

from __future__ import annotations

import pytest

from evaluator.dropped import dropped_parts
from evolve.run.program import load
from simulator.language.parse import parse
from simulator.language.simplify import brief
from simulator.language.unparse import unparse

QUEUE = "\ndef queueing_time(r, s, *, wait: us = 5000.0): return wait"


def without(text: str) -> dict[tuple[str, str], str]:
    """The step_time that is left without each part, by kind and text, as a line."""
    forms = {}
    for part in dropped_parts(parse(text)):
        step = parse(unparse(part.program)).function("step_time") if part.program else None
        assert step is None or part.program
        body = "" if part.program is None else unparse(brief(part.program)).split("def queueing_time")[0]
        forms[part.kind, part.text] = " ".join(body.split())
    return forms


@pytest.mark.parametrize(
    ("formula", "part", "left"),
    [
        ("c * b.tokens + b.kv_sum", "c * b.tokens", "def step_time(b, s): return b.kv_sum"),
        ("b.kv_sum - b.tokens", "b.kv_sum", "def step_time(b, s): return -b.tokens"),
        ("max(b.kv_sum, b.tokens, 1)", "b.tokens", "def step_time(b, s): return max(b.kv_sum, 1)"),
        ("min(b.kv_sum, b.tokens)", "b.tokens", "def step_time(b, s): return b.kv_sum"),
        ("b.kv_sum if s.tp > 1 else b.tokens", "b.tokens", "def step_time(b, s): return b.kv_sum if s.tp > 1 else 0"),
        ("b.kv_sum + (b.tokens if s.tp > 1 else 0)", "b.kv_sum", "def step_time(b, s): return b.tokens if s.tp > 1 else 0"),
        ("b.tokens", "b.tokens", ""),
    ],
)  # fmt: skip
def test_a_dropped_term_leaves_the_others_alone(formula: str, part: str, left: str) -> None:
    """By hand: a sum without it; of max and min the other arguments, not a 0 among them; nothing of a single term."""
    argument = ", *, c: us/token = 2.0" if "c *" in formula else ""
    assert without(f"def step_time(b, s{argument}): return {formula}{QUEUE}")["term", part] == left


def test_a_dropped_name_is_gone_wherever_it_is_added() -> None:
    text = "def step_time(b, s): x = b.tokens; y = min(x, b.kv_sum); return y + b.kv_max" + QUEUE
    assert without(text)["term", "b.tokens"] == "def step_time(b, s): y = b.kv_sum return y + b.kv_max"


def test_constants_of_a_dropped_term_go_with_it_unless_others_read_them() -> None:
    text = "def step_time(b, s, *, c=2.0, d=3.0): return c * b.tokens + c * d * b.kv_sum" + QUEUE
    forms = without(text)
    assert forms["term", "c * d * b.kv_sum"] == "def step_time(b, s, *, c=2.0): return c * b.tokens"
    assert forms["term", "c * b.tokens"] == "def step_time(b, s, *, c=2.0, d=3.0): return c * d * b.kv_sum"


def test_a_kernel_is_dropped_wherever_it_is_read_and_a_factor_is_held_at_1() -> None:
    text = (
        "def step_time(b, s, *, g: one = 0.9): "
        "return g * (b.kernel_gemm_us + b.kernel_moe_us) + b.uncaptured * b.kernel_moe_us" + QUEUE
    )
    forms = without(text)
    assert forms["kernel", "b.kernel_moe_us"] == "def step_time(b, s, *, g: one = 0.9): return g * b.kernel_gemm_us"
    assert forms["factor", "g"] == (
        "def step_time(b, s): return b.kernel_gemm_us + b.kernel_moe_us + b.uncaptured * b.kernel_moe_us"
    )


def test_a_method_becomes_the_hosts_own_and_the_hosts_own_has_no_parts() -> None:
    parts = dropped_parts(parse("def step_time(b, s): return b.tokens + b.kv_sum" + QUEUE))
    (method,) = (part for part in parts if part.kind == "method")
    assert method.program and "alpha0 + alpha1 * r.input_len" in unparse(method.program)
    assert {part.method for part in dropped_parts(load("regimes").program)} == {"step_time"}


def test_forms_of_the_champion_are_programs_that_differ_from_it_and_from_each_other() -> None:
    champion = load("champion")
    texts = [unparse(part.program) for part in dropped_parts(champion.program) if part.program]
    assert len(set(texts)) == len(texts) > 20 and unparse(champion.complete) not in texts
    for text in texts:
        parse(text)
