"""Shares of a prediction: terms by hand where requests are alone, and ensembles that differ in known parts."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from laws import law
from loads import workload

from evaluator.intervals import Disagreement, Scale, disagreements, figure_of
from evaluator.parts import FactorPart, by_field, by_term
from evaluator.score import predictions, score_set
from evaluator.sensitivity import (
    CONSTANT,
    DISAGREEMENT,
    HELD_OUT,
    PACE,
    ConstantError,
    Dispute,
    constant_errors,
    disputes,
    origins,
    term_contributions,
    term_shares,
    traffic_of,
)
from simulator.language.ir import Program
from simulator.language.parse import parse
from simulator.serving.bundled import bundled_experiments
from simulator.serving.experiment import Experiment
from simulator.serving.workload import gaps_of

RUNS = {e.id: e for e in bundled_experiments()}
CALM = RUNS["llama-2-70b-tp4-codegen"]  # 80 layers, 248 output tokens
CROWDED = replace(CALM, engine=replace(CALM.engine, max_num_seqs=8), facts={**CALM.facts, "max_num_seqs": 8.0})
TWO_TERMS = law("def step_time(b, s, *, base: us = 9000.0, layer: us = 30.0): return base + layer * s.layers")
NO_ERROR = ConstantError(0.0, "")
STEP = """
def step_time(b, s, *, base: us = 9000.0, one: us/request = {one}, context: us/token = {context}):
    return base + one * b.decode_reqs + context * b.kv_decode_sum
"""


def alone(e: Experiment) -> Experiment:
    """The experiment at a rate at which no two requests meet."""
    stages = tuple(replace(stage, rate=0.01, duration_s=2000.0) for stage in e.workload.stages[:1])
    return replace(e, workload=replace(e.workload, stages=stages), observed=None)


def member(one: float, context: float) -> Program:
    return law(STEP.format(one=one, context=context))


def apart(ensemble: list[Program], e: Experiment = CALM) -> tuple[list[Dispute], Disagreement]:
    """The disputes of this ensemble, with member(100, 0.1) as the program."""
    ours = member(100.0, 0.1)
    doubts = disagreements(ours, ensemble, [e], 1)
    return disputes(ours, ensemble, doubts, traffic_of([e], 1))[0], doubts[0]


def test_factors_change_no_prediction_and_name_every_part() -> None:
    text = """
def step_time(b, s, *, base: us = 9000.0, layer: us = 30.0, one: us/request = 50.0):
    sums = b.tokens + 1
    fixed = layer * s.layers
    if b.prefill_reqs > 0:
        return base + one * sums
    return max(base + fixed, one * b.decode_reqs) - b.uncaptured * b.kernel_gemm_us

def queueing_time(r, s, *, delay: us = 8000.0):
    return delay + s.reference_step_us
"""
    program = parse(text)
    terms, fields = by_term(program), by_field(program)
    step = ("base", "one * sums", "layer * s.layers", "one * b.decode_reqs", "b.uncaptured * b.kernel_gemm_us")
    queueing = {FactorPart("queueing_time", "delay"), FactorPart("queueing_time", "s.reference_step_us")}
    assert set(terms.parts.values()) == {FactorPart("step_time", term) for term in step} | queueing
    # The gate counts for what it switches; base and layers read no batch field, the reference step is made of them.
    read = {FactorPart("step_time", f"b.{name}") for name in ("tokens", "decode_reqs", "kernel_gemm_us")}
    assert set(fields.parts.values()) == read | {FactorPart("step_time", ""), FactorPart("queueing_time", "")}
    for factored in (terms, fields):
        assert {factored.program.theta[position] for position in factored.parts} == {1.0}
        assert len(factored.program.theta) == len(program.theta) + len(factored.parts)
        data = score_set([CALM], [1])
        assert predictions(factored.program, data) == predictions(program, data)


def test_terms_of_lone_requests_have_their_share_of_the_e2e() -> None:
    e = alone(CALM)
    (shares,) = term_shares(TWO_TERMS, traffic_of([e], 1))
    # A prompt of 591 tokens fits a step, so a request takes 8 ms of delay and 248 steps of 9,000 + 30 x 80 us.
    steps = gaps_of(e.workload) + 1
    e2e_us = 8000.0 + steps * (9000.0 + 30.0 * 80)
    expected = {"base": 9000.0 * steps / e2e_us, "layer * s.layers": 2400.0 * steps / e2e_us}
    assert [s.term.method for s in shares] == ["step_time", "step_time"]  # the delay's 0.3 % is left out
    assert {s.term.text: s.share for s in shares} == pytest.approx(expected, rel=2e-3)


def test_shares_grow_near_capacity_as_replays_do() -> None:
    calm, crowded = term_shares(TWO_TERMS, traffic_of([CALM, CROWDED], 1))
    assert 0.9 < sum(s.share for s in calm) < 1.5 < sum(s.share for s in crowded)
    data = score_set([CROWDED], [1])
    programs = (TWO_TERMS.with_theta((base, 30.0, 8000.0)) for base in (9000.0 * 1.02, 9000.0 / 1.02))
    high, low = (figure_of(predictions(p, data)[0].predicted.summary, "e2e") for p in programs)
    assert high and low
    assert crowded[0].term.text == "base"
    assert crowded[0].share == pytest.approx(math.log(high / low) / math.log(1.02**2), rel=0.02)


def test_the_attention_of_a_long_prompt_reads_its_earlier_chunks() -> None:
    """20,470 tokens in ten chunks attend to 20,470 x 20,471 / 2 pairs, ten times those within the chunks."""
    prompt, pair_us, decodes = 20470, 0.02, 3
    program = law(
        "def step_time(b, s, *, base: us = 9000.0, layer: us = 1.0, few: us = 2.0, pair: us/token**2 = 0.02):"
        " return base + layer * s.layers + few * s.tp + pair * b.prefill_pairs"
    )
    engine = replace(CALM.engine, max_num_seqs=1, max_model_len=32768)
    facts = {**CALM.facts, "max_num_seqs": 1.0, "max_model_len": 32768.0}
    e = alone(replace(CALM, workload=workload(question_len=prompt, output_len=decodes + 1), engine=engine, facts=facts))
    traffic = traffic_of([e], 1)
    attention_us = pair_us * prompt * (prompt + 1) / 2
    steps_us = (9000.0 + e.facts["layers"] + 2.0 * e.facts["tp"]) * (10 + decodes)
    expected = attention_us / (attention_us + steps_us)
    most = term_shares(program, traffic)[0][0]
    assert most.term.text == "pair * b.prefill_pairs" and most.share == pytest.approx(expected, rel=2e-3)
    # The mean field lets a request meet others, so it is a little off; with the chunks alone it would say 0.78.
    assert term_contributions(program, traffic)[0][most.term] == pytest.approx(expected, abs=0.01)


def test_nothing_is_shared_out_where_no_request_completes() -> None:
    engine = replace(CALM.engine, max_model_len=100)  # prompts are longer
    refused = replace(CALM, engine=engine, facts={**CALM.facts, "max_model_len": 100.0})
    assert predictions(TWO_TERMS, score_set([refused], [1]))[0].refused > 0
    assert term_shares(TWO_TERMS, traffic_of([refused], 1)) == [[]]


def test_an_ensemble_disagrees_about_the_field_it_differs_in() -> None:
    found, doubt = apart([member(one, 0.1) for one in (90.0, 100.0, 120.0, 150.0)])
    assert found[0].part == FactorPart("", "b.decode_reqs")
    assert found[0].share == pytest.approx(1.0, abs=1e-3)
    assert (found[0].differ, found[0].members) == (3, 4)
    assert all(abs(d.share) < 1e-3 and d.differ == 0 for d in found[1:])
    assert sum(d.share for d in found) == pytest.approx(1.0)
    assert max(doubt.members, key=lambda x: x or 0.0) == doubt.members[3]


def test_shares_of_two_fields_are_of_squared_changes() -> None:
    one, context = (apart([member(*m)])[1].members[0] or 0.0 for m in ((120.0, 0.1), (100.0, 0.105)))
    # Four members in which the two change independently of each other.
    found, _ = apart([member(a, c) for a in (80.0, 120.0) for c in (0.095, 0.105)])
    shares = {d.part.text: d.share for d in found}
    assert shares["b.decode_reqs"] == pytest.approx(one**2 / (one**2 + context**2), abs=0.01)
    assert shares["b.kv_decode_sum"] == pytest.approx(context**2 / (one**2 + context**2), abs=0.01)


def test_parts_without_batch_fields_are_disputed_by_method() -> None:
    slower = law(STEP.format(one=100.0, context=0.1), "def queueing_time(r, s, *, base: us = 90000.0): return base")
    found, _ = apart([slower])
    assert found[0].part == FactorPart("queueing_time", "") and found[0].share == pytest.approx(1.0, abs=1e-3)
    found, _ = apart([law(STEP.format(one=100.0, context=0.1).replace("9000.0", "9900.0"))])
    assert found[0].part == FactorPart("step_time", "") and found[0].share == pytest.approx(1.0, abs=1e-3)


def test_an_ensemble_that_agrees_has_no_disputes() -> None:
    assert apart([member(100.0, 0.1)])[0] == [] and apart([])[0] == []


def test_origins_add_up_to_the_scale_of_the_interval() -> None:
    scale = Scale(0.03, 1.0, 1)
    doubt = Disagreement({"e2e": 0.04}, 0.0, members=(0.06, None), paces=(-0.02, math.sqrt(0.0048 - 0.004)))
    # spread**2 = (0.0036 + 0.0004 + 0.0008) / 3 = 0.0016 = 0.04**2; floor**2 + spread**2 = 0.0025
    about = [Dispute(FactorPart("", "b.tokens"), 1.25, 1, 2), Dispute(FactorPart("", "b.kv_sum"), -0.25, 1, 2)]
    found = origins(scale, doubt, about, NO_ERROR)
    kinds = [(o.kind, o.dispute.part.text if o.dispute else "") for o in found]
    assert kinds == [(DISAGREEMENT, "b.tokens"), (HELD_OUT, ""), (PACE, ""), (DISAGREEMENT, "b.kv_sum")]
    shares = np.array([1.25 * 0.0012, 0.0009, 0.0004, -0.25 * 0.0012]) / 0.0025  # they add up to 1
    assert [o.share for o in found] == pytest.approx(shares)
    first = origins(scale, doubt, about, ConstantError(0.005, "step_time.base"))[0]
    assert (first.kind, first.constant, first.share) == (CONSTANT, "step_time.base", pytest.approx(2.0))
    unexplained = origins(scale, doubt, [], NO_ERROR)
    assert [(o.kind, o.dispute) for o in unexplained] == [(DISAGREEMENT, None), (HELD_OUT, None), (PACE, None)]
    assert origins(Scale(0.0, 0.0, 1), Disagreement({}, 0.0), [], NO_ERROR) == []


def test_errors_of_constants_by_hand_and_what_correlation_makes_of_them() -> None:
    traffic = traffic_of([alone(CALM)], 1)
    steps = gaps_of(CALM.workload) + 1
    e2e_us = 8000.0 + steps * (9000.0 + 30.0 * 80)
    base, layer = 200.0 * steps / e2e_us, 2.5 * 80 * steps / e2e_us  # 200 us of a step each
    errors = {"step_time.base": 200.0, "step_time.layer": 2.5, "step_time.gone": 9.0}

    def found(r: float) -> ConstantError:
        pair = ("step_time.base", "step_time.layer")
        known = {name: (error, {other: r for other in pair if other != name}) for name, error in errors.items()}
        return constant_errors(TWO_TERMS, known, traffic)[0]

    assert found(0.0).variance == pytest.approx(base**2 + layer**2, rel=5e-3)
    assert found(0.5).variance == pytest.approx(base**2 + layer**2 + base * layer, rel=5e-3)
    assert found(-1.0).variance == pytest.approx(0.0, abs=1e-9)
    alone_known = {"step_time.base": (200.0, {}), "queueing_time.base": (1.0, {})}
    assert constant_errors(TWO_TERMS, alone_known, traffic)[0].most == "step_time.base"
    assert constant_errors(TWO_TERMS, {}, traffic) == [NO_ERROR]
