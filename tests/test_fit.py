"""The fit: a law put into simulated data is found again, and bounds hold."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from evaluator.assess import Rejected, Scored, assess, prepare, read
from evaluator.experiments import bundled_experiments
from evaluator.fit import fit, fit_set, rounded
from evaluator.meanfield import stages_of
from evaluator.metrics import observe_all
from evaluator.score import Errors, errors, predictions, score_set, summarise
from simulator.experiment import Experiment
from simulator.language.complete import complete
from simulator.language.measure import Caps
from simulator.language.parse import parse
from simulator.replay import replay

RUNS = {e.id: e for e in bundled_experiments()}
SOME = [
    RUNS[f"{m}-{w}"] for m in ("llama-2-7b-tp1", "llama-2-70b-tp4", "mixtral-8x7b-tp2") for w in ("codegen", "roleplay")
]

TRUTH = parse("""
def step_time(b, s, *, weights: one = 1.15, kv: one = 1.4, layer: us = 40.0):
    return weights * b.weight_read_us + kv * b.kv_read_us + layer * s.layers

def queueing_time(r, s, *, base: us = 8000.0, cycles: one = 1.5):
    return base + cycles * s.weights_us

def output_token_time(s):
    return 0

def completion_time(s):
    return 0
""")


def simulated(truth_seed: int = 77) -> list[Experiment]:
    """The runs with what the true program would have shown instead of what was measured."""
    return [replace(e, observed=observe_all(replay(e, TRUTH, truth_seed))) for e in SOME]


def test_fit_finds_the_constants_of_simulated_data_again() -> None:
    start = TRUTH.with_theta((2.5, 2.5, 5.0, 1000.0, 0.1))
    fitted = fit(start, fit_set(simulated())).program
    # other arrivals than the fit's move stage means by a few tenths of a percent (data findings, noise)
    np.testing.assert_allclose(fitted.theta, TRUTH.theta, rtol=0.08)
    for prediction, e in zip(predictions(fitted, score_set(simulated(), [5])), simulated(), strict=True):
        wrong = errors(prediction, e)
        assert abs(wrong.e2e or 9) < 1.0 and abs(wrong.itl or 9) < 1.0


def test_fit_respects_physical_and_given_bounds() -> None:
    text = """
def step_time(b, s, *, weights: one = 1.0, kv: one[2.0, 2.5] = 2.1, layer: us[0, 10] = 5.0):
    return weights * b.weight_read_us + kv * b.kv_read_us + layer * s.layers
"""
    fitted = fit(complete(parse(text)), fit_set(SOME)).program
    values = {c.name: c.value for f in fitted.functions for c in f.constants}
    assert values["weights"] >= 1.0 and 2.0 <= values["kv"] <= 2.5 and 0 <= values["layer"] <= 10
    assert all(v >= 0 for v in values.values())


def test_fitted_constants_have_six_significant_digits() -> None:
    low, high = np.zeros(3), np.full(3, np.inf)
    assert list(rounded(np.array([1234567.8, 0.00123456789, 5.0]), low, high)) == [1234570.0, 0.00123457, 5.0]
    fitted = fit(TRUTH, fit_set(SOME[:2])).program
    assert all(float(f"{x:.6g}") == x for x in fitted.theta)


def test_blackbox_per_experiment_is_nearly_exact_and_never_worse_than_a_constant() -> None:
    """Four free constants and two stages: what a converged fit must reach (known from the data: well under 1 %)."""
    blackbox = (
        "def step_time(b, s, *, b0=8000.0, b1=10.0, b2=30.0): return b0 + b1 * b.prefill_tokens + b2 * b.decode_reqs"
    )
    for e in SOME[:4]:
        fitted = fit(complete(parse(blackbox)), fit_set([e]), allow_hostile=True).program
        wrong = errors(predictions(fitted, score_set([e], [1]))[0], e)
        assert abs(wrong.e2e or 99) < 1.0 and abs(wrong.itl or 99) < 1.0
    constant = fit(complete(parse("def step_time(b, s, *, c=10000.0): return c")), fit_set(SOME), allow_hostile=True)
    assert fit(complete(parse(blackbox)), fit_set(SOME), allow_hostile=True).loss <= constant.loss * 1.05


def test_mean_field_agrees_with_the_replay_on_calm_stages() -> None:
    """Little's law against the replay it stands in for: within 4 % where nothing saturates (measured: 3.2)."""
    from evaluator.fit import _MeanField
    from simulator.language.opcodes import assemble

    stages = stages_of(SOME)
    model = _MeanField(assemble(TRUTH), stages)
    predicted = model.predict(np.array(TRUTH.theta), False)
    row = 0
    for e in SOME:
        for o in observe_all(replay(e, TRUTH, 1)).stages:
            assert predicted[row, 0] == pytest.approx(o.e2e_ms.mean, rel=0.04), (e.id, row)
            assert predicted[row, 2] == pytest.approx(o.itl_ms.mean, rel=0.04), (e.id, row)
            row += 1


def test_objectives_by_hand() -> None:
    rows = [
        Errors("a", 1.0, -4.0, 2.0),
        Errors("b", -3.0, 8.0, None),
        Errors("c", 2.0, 0.0, -2.0),
        Errors("moe", -2.5, 0.0, 0.0),
    ]
    score = summarise(rows, {"moe": 2.0})
    assert score.e2e == pytest.approx((1 + 3 + 2 + 2.5) / 4)
    assert score.ttft == pytest.approx(3.0)
    assert score.itl == pytest.approx(4 / 3)
    assert score.joint == pytest.approx((score.e2e + score.ttft + score.itl) / 3)
    assert score.worst3 == pytest.approx((3.0 + 2.0 + 5.0) / 3)


FIXED = "def step_time(b, s, *, k: us[9000, 9000] = 9000"  # whatever the measurements say


def test_a_bad_candidate_is_a_rejection_with_stage_and_reason() -> None:
    data = prepare(SOME[:1], [1])
    cases = {
        "parse": read("import os", Caps()),
        "caps": read("def step_time(b, s): return b.tokens + 1", Caps(operations=0)),
        "units": read("def step_time(b, s): return b.tokens + s.weights_us", Caps()),
        "fields": read("def step_time(b, s, *, k=1.0): return k * b.tokens + 1", Caps(), frozenset({"b.kv_sum"})),
        "finite": assess(complete(parse("def step_time(b, s): return b.kv_sum")), data),
        "monotone": assess(complete(parse(f"{FIXED}): return k / max(b.tokens, 1) + k")), data),
        "growth": assess(
            complete(parse(f"{FIXED}, w: token[200, 200] = 200): return k + k * exp(b.prefill_tokens / w)")), data
        ),
    }
    for stage, verdict in cases.items():
        assert isinstance(verdict, Rejected) and verdict.stage == stage and "\n" not in verdict.why


def test_assess_scores_the_very_text_it_returns() -> None:
    data = prepare(SOME[:2], [1])
    verdict = assess(TRUTH, data)
    assert isinstance(verdict, Scored)
    again = [errors(p, e) for p, e in zip(predictions(parse(verdict.text), data.score), SOME[:2], strict=True)]
    assert tuple(again) == verdict.score.rows
