"""The host simulator's own results, request by request, wherever KV blocks, timeouts and horizons play no part."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest

from simulator.bind import bind, ticks
from simulator.kernel import DONE, clock
from simulator.language.opcodes import assemble
from simulator.language.parse import parse
from simulator.reference import Limits, no_times, reference_clock, step_function

GOLDEN = Path(__file__).parents[2] / "shared" / "golden"
CASES = (
    "01_light", "02_saturation", "03_chunk_budget", "04_chunk_threshold", "05_maxseqs", "07_prefix", "09_single_token",
    "10_simultaneous", "11_alpha", "12_big_beta0", "15_full_hit", "17_fractional", "40_linear_kv_02", "40_linear_kv_10",
    "40_linear_kv_16",
)  # fmt: skip


def program(case: dict) -> str:  # type: ignore[type-arg]
    k, alpha = case["step_linear_kv"], case["alpha"]
    return f"""
def step_time(b, s, *, f={k["floor_us"]!r}, b0={k["b0_us"]!r}, p={k["per_prefill_token_us"]!r},
              d={k["per_decode_request_us"]!r}, kv={k["per_decode_kv_token_us"]!r}):
    return max(f, b0 + p * b.prefill_tokens + d * b.decode_reqs + kv * b.kv_decode_sum)

def queueing_time(r, s, *, base={alpha["base_us"]!r}, per={alpha["per_input_token_us"]!r}):
    return base + per * r.input_len
"""


@pytest.mark.parametrize("plain", [False, True], ids=["compiled", "plain"])
@pytest.mark.parametrize("name", CASES)
def test_ttft_and_e2e_of_every_request_are_the_hosts(name: str, plain: bool) -> None:
    if not GOLDEN.is_dir():
        pytest.skip(f"../shared absent: no recorded results of the host ({name})")
    case = json.loads((GOLDEN / name / "case.json").read_text())
    rows = list(csv.DictReader((GOLDEN / name / "trace.csv").read_text().splitlines()))
    told = {
        int(r["request_id"].removeprefix("request_")): r
        for r in csv.DictReader((GOLDEN / name / "results.csv").read_text().splitlines())
    }
    arrival = np.array([int(float(r["arrival_s"]) * 1e6) for r in rows])
    inputs, outputs = (np.array([int(r[c]) for r in rows]) for c in ("input_len", "output_len"))
    prefix = np.array([int(r["prefix_len"]) for r in rows])
    group = np.array([int(r["prefix_group"]) for r in rows])
    alone = 1000 + np.arange(len(rows))
    group = np.where(group >= 0, group, alone)
    whole = prefix == inputs  # nothing of its own: the same prompt as the others of its group
    prompt = np.where(whole, group, alone)
    shared = 0 if whole.all() else int(prefix.max())

    source = parse(program(case))
    code, engine = assemble(source), case["engine"]
    bound = bind(code, source.theta, {})
    queued = arrival + np.array([ticks(bound.queueing_us(int(n))) for n in inputs])
    order = np.lexsort((np.arange(len(rows)), arrival, queued))
    columns = tuple(np.ascontiguousarray(c[order]) for c in (queued, inputs, outputs, prompt, group))
    limits = Limits(
        engine["max_num_seqs"],
        engine["max_num_batched_tokens"],
        engine["long_prefill_token_threshold"],
        engine["block_size"],
    )
    if plain:
        times = reference_clock(*columns, shared, limits, step_function(source, {}))
    else:
        times = no_times(len(rows))
        status, *_ = clock(
            code.rows, code.static, code.step, bound.values.copy(), code.raw, code.results[0], False, False, *columns,
            int(prompt.max()) + 1, int(group.max()) + 1, shared, limits.block, True, limits.max_seqs, limits.budget,
            limits.threshold, False, times.start_us, times.first_us, times.decode_us,
        )  # fmt: skip
        assert status == DONE
    token, completion = (ticks(case["alpha"][k]) for k in ("per_output_token_us", "completion_us"))
    ttft = times.first_us + token - arrival[order]
    e2e = ttft + times.decode_us + token * (outputs[order] - 1) + completion
    assert len(told) == len(rows)
    assert list(ttft) == [int(told[i]["ttft_us"]) for i in order]
    assert list(e2e) == [int(told[i]["e2e_us"]) for i in order]
