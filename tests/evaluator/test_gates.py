"""Gates and consistency checks: each refuses what it is for, by name, with the batch that shows it."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

import numpy as np
import pytest

from evaluator.judge import gates, sweep
from evaluator.judge.physics import (
    _STEPS,
    DECODES,
    PROMPTS,
    consistent,
    hardware_of,
    kernel_checks,
    kernel_sums,
    physics,
    roofline_us,
)
from evolve.run.program import load
from simulator.clock.bind import Deployments, bind
from simulator.clock.fields import Active, raw_row
from simulator.language.complete import complete
from simulator.language.ir import Program
from simulator.language.opcodes import assemble
from simulator.language.parse import parse
from simulator.schema import RAW
from simulator.serving.bundled import bundled_experiments
from simulator.serving.known import datasheet_deployments, kernel_deployments

DEPLOYMENTS = gates.deployments_of(bundled_experiments())
ONE = Deployments(dict(list(DEPLOYMENTS.facts.items())[:1]))


def step(formula: str, rest: str = "") -> Program:
    return complete(parse(f"def step_time(b, s): return {formula}\n{rest}"))


def judged(program: Program, deployments: Deployments) -> list[gates.Gate]:
    return gates.judge(assemble(program), program.theta, deployments)


def by_physics(program: Program) -> dict[str, gates.Gate]:
    return {g.name: g for g in physics(assemble(program), program.theta, HARDWARE)}


RANGE = "it must be finite and within 1 and 1e10"  # the whole sentence once, its figures in each case


@pytest.mark.parametrize(
    ("program", "gate", "complaint"),
    [
        (step("b.tokens * s.layers"), "finite", rf"tp1, empty batch: the step would last 0 us: {RANGE}"),
        (step("1000 - b.kv_max / 100"), "finite", r"one decode in 128k context: .* -310.72 us"),
        (step("10 + exp(b.prefill_tokens)"), "finite", r"one prefill of 2048: .* 5\.\d+e\+21 us"),
        (step("10 + b.prefill_reqs * b.kv_sum * 1e300 * 1e300"), "finite", "one prefill token: .* inf us"),
        (step("10 + b.kv_sum * 1e300 * 1e300 - b.kv_sum * 1e300 * 1e300"), "finite", "one decode: gives no number"),
        # no edge has 62 decodes: a doubled batch has
        (step("10 - 11 * (1 if b.decode_reqs == 62 else 0)"), "finite", r"31 decodes .*, doubled: .* -1 us"),
        (step("10", "def queueing_time(r, s): return 100 - r.input_len"), "finite", "prompt of 512 tokens: .* -412 us"),
        (step("10", "def output_token_time(s): return 0 - s.layers"), "finite", "an output token: .* -32 us"),
        (step("10", "def completion_time(s): return exp(s.hidden)"), "finite", r"a completion: .* 5\.\d+e\+21 us"),
        (step("10000 + 1000 / max(b.prefill_tokens, 1)"), "monotone", r"worst: .* tp1: .*prefill of .*: [\d,]+ ->"),
        (step("10000 - b.kv_decode_max / 100"), "monotone", r"worst: .*, \d+ decodes? more: [\d,]+ -> [\d,]+ us"),
        (step("10 + b.kv_var"), "monotone", r"us: more work must not take less time"),
        (step("10000 if b.decode_reqs < 16 else 9000"), "monotone", r", \d+ decodes? more: 10,000 -> 9,000 us"),
        (step("1000 + b.kv_mean * b.kv_mean * b.tokens / 1e5"), "growth", r"9\.\d+ times at most: .* tp1: .*, doubled"),
        (step("1000 if b.tokens < 100 else 10000"), "growth", r"10\.00 times at most"),
    ],
)
def test_a_gate_refuses_and_shows_the_batch(program: Program, gate: str, complaint: str) -> None:
    found = {g.name: g.complaint for g in judged(program, ONE) if not g.passes}
    assert gate in found and re.search(complaint, found[gate]), found
    assert "\n" not in found[gate]


def test_shipped_programs_pass() -> None:
    for name in ("floor", "linear", "linear_kv", "regimes", "roofline", "champion"):
        assert all(g.passes for g in judged(load(name).complete, DEPLOYMENTS)), name


def test_every_move_and_doubling_is_more_work() -> None:
    swept = sweep.sweep()
    column = {name: i for i, name in enumerate(RAW)}
    tokens, context = (
        swept.raw[:, [column["prefill_tokens"], column["decode_reqs"]]].sum(1),
        swept.raw[:, column["kv_sum"]],
    )
    more = (tokens[swept.more] > tokens[swept.base]) | (context[swept.more] > context[swept.base])
    assert more.all() and len(swept.more) == len(swept.base) and len(swept.names) == len(swept.raw)
    n = len(swept.twice)
    assert (swept.raw[swept.twice, column["decode_reqs"]] == 2 * swept.raw[:n, column["decode_reqs"]]).all()
    assert (tokens[swept.twice] == 2 * tokens[:n]).all()
    decodes = column["kv_decode_sum"]
    assert (swept.raw[swept.twice, decodes] == 4 * swept.raw[:n, decodes]).all()
    assert {re.sub(r"\d+", "{}", swept.names[i].rsplit(", ", 1)[1]) for i in swept.more} == set(sweep._MOVES)


# consistency with hardware

KNOWN = datasheet_deployments()
HARDWARE = hardware_of(KNOWN)
BOUND = "max(b.total_bytes / s.bytes_per_us, b.total_flops / s.flops_per_us)"


@pytest.mark.parametrize(
    ("formula", "failing"),
    [
        (f"1 + {BOUND}", set()),  # the datasheet itself
        ("100 + b.tokens", {"roofline", "parallel", "size"}),  # knows no model
        (f"1 + 0.5 * {BOUND}", {"roofline"}),
        (f"1 + {BOUND} * s.tp", {"parallel"}),
        (f"1 + {BOUND} * s.tp / s.tp / s.tp", {"roofline", "parallel"}),
        (f"1 + {BOUND} * b.batch_size", {"sublinear"}),
        (f"1e7 - s.model_params_b + {BOUND} / 1e9", {"efficiency", "parallel", "size"}),
        ("b.kernel_us + b.kernel_sampler_us * b.prefill_reqs", {"sampling"}),
        ("b.kernel_us + (b.kernel_sampler_us if b.prefill_tokens > 0 else 0)", {"sampling"}),
        ("b.kernel_us + b.uncaptured * b.kernel_lm_head_us", {"sampling"}),
        ("b.kernel_us + 0.001 * b.prefill_reqs * s.vocab", {"sampling"}),
        ("b.kernel_us + b.kernel_sampler_us * 0.5 + 0.0002 * b.batch_size * s.vocab", set()),  # in every step
        ("b.kernel_us + (b.kernel_sampler_us if b.prefill_tokens <= 0 else 0)", set()),  # overlaps with a prompt
        (f"1 + 21 * {BOUND}", {"efficiency"}),
    ],
)
def test_a_program_contradicts_hardware(formula: str, failing: set[str]) -> None:
    found = by_physics(step(formula))
    assert list(found) == ["roofline", "efficiency", "parallel", "sublinear", "size", "sampling"]
    assert {name for name, g in found.items() if not g.passes} == failing, found
    assert all(bool(g.complaint) != g.passes for g in found.values())


def test_a_step_that_is_proportional_to_its_decodes_is_sublinear() -> None:
    """Twice as long for twice the decodes, up to rounding: 7.3 * 2 n is not always 2 * (7.3 * n)."""
    for formula in ("2 * b.decode_reqs", "7.3 * b.decode_reqs + 0.1 * b.tokens"):
        assert by_physics(step(formula))["sublinear"].passes, formula


def test_the_roofline_by_hand() -> None:
    # Llama-2-7B, one decode at 511 tokens: 32 layers * (4 * 4096^2 + 3 * 4096 * 11008) + 32000 * 4096 weights of 2
    # bytes, 512 KiB of KV a token for 511 read and 1 written, 32000 float32 logits written and read, over 3.35 TB/s
    facts = KNOWN["meta-llama/Llama-2-7b-hf tp1"]
    weights = 32 * (4 * 4096**2 + 3 * 4096 * 11008) + 32000 * 4096
    least = (2 * weights + 512 * 2**19 + 32000 * 8) / 3.35e6
    batch = (Active(16, 511, 1),)
    assert roofline_us(batch, facts) == pytest.approx(least, rel=1e-12)
    assert alone(step("1 + b.total_bytes / s.bytes_per_us"), facts)(batch) == pytest.approx(least + 1)


def test_a_step_that_is_hardly_shorter_is_shown_with_different_figures() -> None:
    measured = [g.measured for g in judged(step("10000 - b.kv_decode_max / 1e6"), ONE) if g.name == "monotone"]
    shown = re.search(r"worst: .*: ([\d,.]+) -> ([\d,.]+) us", measured[0])
    assert shown and shown[1] != shown[2]


# what a gate measured, against plain loops over every deployment alone and every case with its text


def alone(program: Program, facts: Mapping[str, float]) -> Callable[[sweep.Batch], float]:
    bound = bind(assemble(program), program.theta, facts)
    return lambda batch: bound.step_us(raw_row(batch))


SLOW = step("6000 + b.kernel_us")  # beyond the limits on some deployments
PROGRAMS = [load("champion").complete, load("linear").complete, step("20000 + b.tokens"), SLOW]


@pytest.mark.parametrize("program", PROGRAMS)
def test_the_roofline_shows_the_worst_case(program: Program) -> None:
    cases = []
    for name, facts in KNOWN.items():
        for label, batch in _STEPS.items():
            us, least = max(alone(program, facts)(batch), 1.0), roofline_us(batch, facts)
            cases.append((us / least, f"{name}: {label}: {us:,.0f} us, the datasheet allows {least:,.0f} us"))
    ratio, worst = min(cases)  # of equal ratios the first by text
    low = sum(r < 0.8 for r, _ in cases)
    assert by_physics(program)["roofline"].measured == (
        f"{ratio:.2f} of the datasheet's time at least ({low} of {len(cases)} steps below 0.8): {worst}"
    )


@pytest.mark.parametrize("program", PROGRAMS)
def test_the_kernel_checks_show_the_worst_case(program: Program) -> None:
    some = dict(list(kernel_deployments().items())[::12])
    decode, prefill = kernel_checks(assemble(program), program.theta, kernel_sums(some))
    decodes, prefills = [], []
    for name, facts in some.items():
        ours, measured = alone(program, facts), alone(step("b.kernel_us"), facts)
        for n, context in DECODES:
            x, k = (us(sweep.decode_batch(n, context)) for us in (ours, measured))
            text = f"{name}: {n} decodes in {context} context: {x:,.0f} us, kernels {k:,.0f} us"
            decodes.append((max(0.7 * k / x, x / (1.6 * k + 3000.0)), text))
        for tokens in PROMPTS:
            chunks = [(Active(tokens, done, 2048),) for done in range(0, tokens, 2048)]
            x, k = (float(np.sum([us(chunk) for chunk in chunks])) for us in (ours, measured))
            text = f"{name}: a prompt of {tokens} tokens: {x / 1e3:,.1f} ms, kernels {k / 1e3:,.1f} ms"
            prefills.append((max(0.9 * k / x, x / (2.0 * k)), text))
    for gate, cases in ((decode, decodes), (prefill, prefills)):
        beyond = sum(ratio > 1.0 for ratio, _ in cases)
        which = "farthest beyond" if beyond else "closest to a limit"
        expected = f"{len(cases) - beyond} of {len(cases)} within bounds, {which}: {max(cases)[1]}"
        assert (gate.measured, gate.passes) == (expected, not beyond)


@pytest.mark.parametrize(
    ("program", "is_so"), [(load("champion").complete, True), (step("0 * b.tokens"), False), (SLOW, False)]
)
def test_datasheets_and_kernels_both_decide_whether_a_program_is_consistent(program: Program, is_so: bool) -> None:
    datasheets = all(g.passes for g in by_physics(program).values())
    assert datasheets is (is_so or program is SLOW)  # only kernels contradict a step that is slow everywhere
    assert consistent(program) is is_so


def test_the_first_time_out_of_range_is_shown() -> None:
    # deployments in order, on each of them its steps before its overheads
    names, facts = DEPLOYMENTS.names, list(DEPLOYMENTS.facts.values())
    second = next(i for i, f in enumerate(facts) if f["tp"] != facts[0]["tp"])
    negative = f"10 - 11 * (1 if s.tp == {facts[second]['tp']:.0f} else 0)"
    late = step(negative, "def completion_time(s): return 0 - s.layers")
    assert judged(late, DEPLOYMENTS)[0].complaint.startswith(f"{names[0]}, a completion: would take -")
    both = step(negative, f"def completion_time(s): return {negative}")
    assert judged(both, DEPLOYMENTS)[0].complaint.startswith(f"{names[second]}, empty batch: the step would last -1 us")
