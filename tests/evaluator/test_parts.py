"""Forms of a program without one of its parts."""

from __future__ import annotations

import pytest

from evaluator.parts import dropped_parts
from evolve.run.program import load
from simulator.language.parse import parse
from simulator.language.simplify import brief
from simulator.language.unparse import unparse

QUEUE = "\ndef queueing_time(r, s, *, wait: us = 5000.0): return wait"
# A whole text, the kind and the text of the part, what is left of step_time without it.
DROPPED = """
(b, s): x = b.tokens; y = min(x, b.kv_sum); return y + b.kv_max | term | b.tokens | (b, s): y = b.kv_sum return y + b.kv_max
(b, s, *, c=2.0, d=3.0): return c * b.tokens + c * d * b.kv_sum | term | c * d * b.kv_sum | (b, s, *, c=2.0): return c * b.tokens
(b, s, *, c=2.0, d=3.0): return c * b.tokens + c * d * b.kv_sum | term | c * b.tokens | (b, s, *, c=2.0, d=3.0): return c * d * b.kv_sum
(b, s, *, g: one = 0.9): return KERNELS | kernel | b.kernel_moe_us | (b, s, *, g: one = 0.9): return g * b.kernel_gemm_us
(b, s, *, g: one = 0.9): return KERNELS | factor | g | (b, s): return b.kernel_gemm_us + b.kernel_moe_us + b.uncaptured * b.kernel_moe_us
""".replace("KERNELS", "g * (b.kernel_gemm_us + b.kernel_moe_us) + b.uncaptured * b.kernel_moe_us")


def without(text: str) -> dict[tuple[str, str], str]:
    """The step_time that is left without each part, by kind and text, as a line."""
    forms = {}
    for part in dropped_parts(parse(text)):
        body = unparse(brief(part.program)).split("def queueing_time")[0] if part.program else ""
        forms[part.kind, part.text] = " ".join(body.split())
    return forms


@pytest.mark.parametrize(
    ("formula", "part", "left"),
    [
        ("c * b.tokens + b.kv_sum", "c * b.tokens", "b.kv_sum"),
        ("b.kv_sum - b.tokens", "b.kv_sum", "-b.tokens"),
        ("max(b.kv_sum, b.tokens, 1)", "b.tokens", "max(b.kv_sum, 1)"),
        ("min(b.kv_sum, b.tokens)", "b.tokens", "b.kv_sum"),
        ("b.kv_sum if s.tp > 1 else b.tokens", "b.tokens", "b.kv_sum if s.tp > 1 else 0"),
        ("b.kv_sum + (b.tokens if s.tp > 1 else 0)", "b.kv_sum", "b.tokens if s.tp > 1 else 0"),
        ("b.tokens", "b.tokens", ""),
    ],
)
def test_a_dropped_term_leaves_the_others_alone(formula: str, part: str, left: str) -> None:
    """By hand: a sum without it; of max and min the other arguments, not a 0 among them; nothing of a single term."""
    argument = ", *, c: us/token = 2.0" if "c *" in formula else ""
    form = without(f"def step_time(b, s{argument}): return {formula}{QUEUE}")["term", part]
    assert form.removeprefix("def step_time(b, s): return ") == left


@pytest.mark.parametrize(("text", "kind", "part", "left"), [line.split(" | ") for line in DROPPED.split("\n")[1:-1]])
def test_a_dropped_part_takes_what_belongs_to_it(text: str, kind: str, part: str, left: str) -> None:
    """A name is gone wherever it is added, constants go unless others read them, a factor is held at 1."""
    assert without(f"def step_time{text}{QUEUE}")[kind, part] == f"def step_time{left}"


def test_a_dropped_method_becomes_the_host_s_own() -> None:
    parts = dropped_parts(parse("def step_time(b, s): return b.tokens + b.kv_sum" + QUEUE))
    (method,) = (part for part in parts if part.kind == "method")
    assert method.program and "alpha0 + alpha1 * r.input_len" in unparse(method.program)
    assert {part.method for part in dropped_parts(load("regimes").program)} == {"step_time"}


def test_forms_of_the_champion_are_different_programs() -> None:
    champion = load("champion")
    texts = [unparse(part.program) for part in dropped_parts(champion.program) if part.program]
    assert len(set(texts)) == len(texts) > 20 and unparse(champion.complete) not in texts
    for text in texts:
        parse(text)
