"""The compiled clock against the plain one: equal per request, for random loads, limits and programs."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.bind import bind
from simulator.kernel import DONE, ORDER_MATTERS, clock
from simulator.language.opcodes import assemble
from simulator.language.parse import parse
from simulator.reference import Limits, Times, reference_clock, step_function

FACTS = {
    "shared_weights_us": 3000.0, "experts_us": 900.0, "active_experts": 2.0, "experts": 8.0, "kv_us_per_token": 0.31,
    "layers": 32.0, "hidden": 64.0, "vocab": 100.0, "tp": 2.0, "bytes_per_us": 3.35e6, "flops_per_us": 9.9e8,
    "gemm_us_per_token": 0.7, "attention_us_per_pair": 0.0003, "logits_us_per_row": 1.3, "allreduce_us_per_token": 0.2,
}  # fmt: skip

PROGRAMS = [
    "def step_time(b, s, *, a=900.5, c=12.25, d=33.3): return a + c * b.prefill_tokens + d * b.decode_reqs",
    "def step_time(b, s, *, a=500.0): return a + b.kv_var + b.kv_max * b.kv_decode_max - b.kv_decode_mean",
    "def step_time(b, s, *, a=700.0): return max(a, b.weight_read_us + b.kv_read_us) + b.prefill_attention_us",
    "def step_time(b, s): return b.total_flops / s.flops_per_us + log1p(b.prefill_pairs) * b.graph_batch",
    "def step_time(b, s): return b.max_prefill_chunk * 3 if b.prefill_reqs > 1 else sqrt(b.kv_sum) * b.kv_mean",
    "def step_time(b, s): return b.kv_decode_sum + b.decode_attention_us + b.total_bytes / s.bytes_per_us",
]


@st.composite
def loads(draw):  # type: ignore[no-untyped-def]
    n = draw(st.integers(1, 60))
    gaps = draw(st.lists(st.integers(0, 20_000), min_size=n, max_size=n))
    prompts = draw(st.integers(1, 6))
    lengths = draw(st.lists(st.integers(1, 120), min_size=prompts, max_size=prompts))
    chosen = draw(st.lists(st.integers(0, prompts - 1), min_size=n, max_size=n))
    outputs = draw(st.lists(st.integers(1, 40), min_size=n, max_size=n))
    shared = draw(st.integers(0, min(lengths)))
    limits = Limits(
        max_seqs=draw(st.integers(1, 20)),
        budget=draw(st.integers(1, 150)),
        threshold=draw(st.sampled_from([0, 0, 0, 1, 7, 33])),
        block=draw(st.sampled_from([1, 4, 16])),
        caching=draw(st.booleans()),
    )
    prompt = np.array(chosen, np.int64)
    columns = np.cumsum(gaps), np.array(lengths, np.int64)[prompt], np.array(outputs, np.int64), prompt, prompt % 2
    return tuple(np.asarray(c, np.int64) for c in columns), shared, limits


def compiled(columns, shared: int, limits: Limits, program):  # type: ignore[no-untyped-def]
    code = assemble(program)
    out = Times(*(np.zeros(len(columns[0]), np.int64) for _ in range(3)))
    status, steps, clamped, _ = clock(
        code.rows, code.static, code.step, bind(code, program.theta, FACTS).values, code.raw, code.results[0],
        "kv_var" in code.uses, bool({"kv_max", "kv_decode_max"} & code.uses), *columns, 6, 6,
        shared, limits.block, limits.caching, limits.max_seqs, limits.budget, limits.threshold, False,
        out.start_us, out.first_us, out.decode_us,
    )  # fmt: skip
    out.steps, out.clamped = steps, clamped
    return status, out


@settings(max_examples=400, deadline=None)
@given(loads(), st.sampled_from(PROGRAMS))
def test_compiled_clock_equals_plain_clock(load, text):  # type: ignore[no-untyped-def]
    columns, shared, limits = load
    program = parse(text)
    status, fast = compiled(columns, shared, limits, program)
    if status == ORDER_MATTERS:  # the case is handed to the plain clock
        assert limits.threshold > 0 or limits.max_seqs > limits.budget
        return
    assert status == DONE
    plain = reference_clock(*columns, shared, limits, step_function(program, FACTS))
    np.testing.assert_array_equal(fast.start_us, plain.start_us)
    np.testing.assert_array_equal(fast.first_us, plain.first_us)
    np.testing.assert_array_equal(fast.decode_us, plain.decode_us)
    assert (fast.steps, fast.clamped) == (plain.steps, plain.clamped)
