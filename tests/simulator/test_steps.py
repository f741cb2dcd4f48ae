"""What is remembered of a program's step times is what its opcodes say, to the microsecond."""

from __future__ import annotations

import re

import numpy as np
import pytest
from drawn_programs import facts_maps, programs
from examples import daily
from hypothesis import event, given, settings
from hypothesis import strategies as st
from plain_clock import FACTS

from simulator.clock.bind import bind
from simulator.clock.steps import DIRECT, LINE, WHOLE, KnownSteps, evaluate, piece_for, recall, steps_of
from simulator.clock.vm import clamps, to_ticks
from simulator.language.ir import Program
from simulator.language.opcodes import assemble
from simulator.language.parse import parse
from simulator.serving.load import EngineLimits

SEQS = 128
LIMITS = EngineLimits(max_seqs=SEQS, budget=8192, threshold=0, block=16, blocks=1000)


def remembered(t: KnownSteps, parts: tuple[int, int, int, int, int], context: int, tall: int) -> tuple[int, int]:
    """(kind of piece, step time in us or -1) for prefills, decodes, tokens, largest chunk and pairs."""
    i = piece_for(t, t.longest, *parts, context, tall)
    return int(t.pieces[i]["kind"]), int(recall(t.pieces, i, context, tall))


def told(t: KnownSteps, parts: tuple[int, int, int, int, int], context: int, tall: int) -> float:
    return float(evaluate(t, *parts, context, tall))


compositions = st.one_of(
    st.tuples(st.just(0), st.integers(1, SEQS)).map(lambda x: (*x, 0, 0, 0)),
    st.tuples(st.integers(1, 2), st.integers(0, SEQS), st.integers(1, 2048)).map(
        lambda x: (x[0], x[1], x[0] * x[2], x[2], x[0] * x[2] * (x[2] + 1) // 2)
    ),
)


def compare(program: Program, facts: dict[str, float], parts: tuple[int, ...], contexts: list[int]) -> list[int]:
    """The kinds of pieces met; raises where what is remembered is not what the opcodes say."""
    bound = bind(assemble(program), program.theta, facts)
    t = steps_of(bound, LIMITS)
    if not t.lines:
        return []
    seen: list[int] = []
    for context in contexts:
        if parts[1] == 0:
            context = 0
        tall = 0 if parts[1] == 0 else -(-context // parts[1]) + context % 7  # the longest is at least the mean
        kind, us = remembered(t, parts, context, tall)  # type: ignore[arg-type]
        x = told(t, parts, context, tall)  # type: ignore[arg-type]
        seen.append(kind)
        if us >= 0:
            assert us == to_ticks(x, 1) and not clamps(x, 1)
        else:  # left to the opcodes: for cause
            near = abs(x - round(x)) < 2e-6 if np.isfinite(x) else True
            assert kind != WHOLE and (kind == DIRECT or near)
    return seen


@settings(max_examples=daily(40), derandomize=True)
@given(programs(), facts_maps, compositions, st.lists(st.integers(0, 500_000), min_size=1, max_size=8))
def test_any_program_is_remembered_as_it_is(program, facts, parts, contexts):  # type: ignore[no-untyped-def]
    with np.errstate(all="ignore"):
        kinds = compare(program, facts, parts, contexts)
    for kind in set(kinds):
        event({WHOLE: "whole", LINE: "line", DIRECT: "direct"}[kind])


LINES = [
    "weights * b.weight_read_us + kv * b.kv_read_us + 70.31 * s.layers",
    "max(4000.7, weights * b.weight_read_us, kv * b.kv_read_us * 3.3)",
    "b.kv_mean * weights + (kv if b.kv_sum > 30000.5 else 900.3) * b.decode_reqs",
    "(b.kv_sum - 1e4 * kv) * (b.kv_sum * 0 + 1) / 3.3 + 1e5",
    "b.kv_sum / (b.kv_sum - b.kv_decode_sum) + min(b.kv_sum, 4e4) * 0.013 + 600",
    "log1p(b.batch_size) * 313.7 + sqrt(b.prefill_tokens) * 10.1 + b.decode_attention_us * kv + 1000",
    "1e9 * weights - b.kv_sum * 3.7",
    "2000.0 + b.kv_sum * 0.25",
    "8000.0 + 30.0 * b.decode_reqs + 0.0137 * b.kv_max * b.decode_reqs",
    "max(b.kv_max * 3.3, 900.1 + b.kv_sum * 0.17) + (70.7 if b.kv_decode_max > 2400.5 else b.kv_mean * 0.3)",
]


def line(text: str) -> Program:
    given = ", ".join(
        f"{name}={value}" for name, value in (("weights", 1.07), ("kv", 1.31)) if re.search(rf"\b{name}\b", text)
    )
    return parse(f"def step_time(b, s, *, {given}): return {text}".replace("*, )", "*)").replace(", *)", ")"))


@pytest.mark.parametrize("text", LINES)
def test_kinks_jumps_and_whole_microseconds(text: str) -> None:
    """Every context in a row across the places where these bend, and far away from where the line was drawn."""
    program = line(text)
    contexts = [20_000, *range(29_990, 30_012), *range(39_995, 40_005), 10, 300_000, 0, 5_000_000]
    for parts in ((0, 17, 0, 0, 0), (0, 1, 0, 0, 0), (1, 30, 7, 7, 28), (2, 3, 600, 590, 174_400)):
        compare(program, FACTS, parts, contexts)


def test_a_line_is_drawn_once_and_holds_for_all_contexts() -> None:
    program = line(LINES[0])
    t = steps_of(bind(assemble(program), program.theta, FACTS), LIMITS)
    assert remembered(t, (0, 5, 0, 0, 0), 100, 30)[0] == LINE
    piece = t.pieces[5].copy()
    assert remembered(t, (0, 5, 0, 0, 0), 4_000_000, 100_000)[0] == LINE
    assert t.pieces[5] == piece  # not looked at again
    program = parse("def step_time(b, s): return 1000 + b.kv_var")  # not decided by composition, context and longest
    assert not steps_of(bind(assemble(program), program.theta, FACTS), LIMITS).lines
