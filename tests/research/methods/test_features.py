"""The ridges of h1: what the features of a form are, what a ridge is trained on, and what it comes to."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from evaluator.fit.trees import FEATURES
from research.methods.features import mape_by_run, of_trees, raw_counts, slopes
from research.methods.samples import Sample
from simulator.language.parse import parse
from simulator.schema import RAW
from simulator.serving.bundled import bundled_experiments
from simulator.serving.splits import TEST, TRAIN, VALID

E = {e.id: e for e in bundled_experiments()}
CYCLES, STAGES, OTHER = "llama-2-7b-tp1-codegen", "mixtral-8x7b-tp2-codegen", "llama-2-70b-tp4-codegen"
STRENGTHS = (1e-9, 1e-3, 1.0)
DECODES, KV = RAW.index("decode_reqs"), RAW.index("kv_decode_sum")
REGIMES = parse("""
def step_time(b, s, *, p0: us[-9, 9] = 1.0, p1: us/token[-9, 9] = 2.0, d0: us[-9, 9] = 0.0, d1: us/request[-9, 9] = 3.0):
    if b.prefill_reqs > 0:
        return p0 + p1 * b.prefill_tokens
    return d0 + d1 * b.decode_reqs
""")


def sample(name: str, timed: bool, n: int = 20, base: float = 5000.0, slope: float = 100.0) -> Sample:
    """Times of pure decode steps, base + slope * decodes; of 60 % train, 20 % valid and 20 % test steps if they are
    cycles, else of load stages, of which every fifth is valid."""
    raw = np.zeros((n, len(RAW)))
    raw[:, DECODES] = 1 + np.arange(n) * 7 % 16
    raw[:, KV] = 300.0 * raw[:, DECODES] + np.arange(n) * 13 % 29
    if timed:
        split = np.repeat([TRAIN, VALID, TEST], [n * 6 // 10, n * 2 // 10, n - n * 8 // 10])
    else:
        split = np.where(np.arange(n) % 5 == 4, VALID, TRAIN)
    us, step = base + slope * raw[:, DECODES], np.arange(n) if timed else np.full(n, -1)
    return Sample(name, E[name].facts, raw, np.arange(n), np.ones(n), us, np.ones(n), split, step)


def test_the_features_of_a_linear_form_are_what_its_constants_multiply() -> None:
    s = sample(CYCLES, True, 3)
    s.raw[1, [RAW.index("prefill_reqs"), RAW.index("prefill_tokens")]] = 1.0, 64.0
    expected = [[0, 0, 1, s.raw[0, DECODES]], [1, 64, 0, 0], [0, 0, 1, s.raw[2, DECODES]]]
    assert slopes(REGIMES)(s) == pytest.approx(np.array(expected), rel=1e-5, abs=1e-5)


def test_features_of_a_load_stage_are_means_over_its_batches() -> None:
    s = sample(STAGES, False, 4)
    halves = replace(s, first=np.array([0, 2]), share=np.full(4, 0.5), observed_us=s.observed_us[:2], split=s.split[:2])
    assert raw_counts(halves)[:, DECODES] == pytest.approx(raw_counts(s)[:, DECODES].reshape(2, 2).mean(axis=1))
    tokens = [f.name for f in FEATURES["own"]].index("decode tokens")
    assert of_trees(FEATURES["own"])(halves)[:, tokens] == pytest.approx(raw_counts(halves)[:, DECODES])


def test_a_law_that_the_features_span_is_found() -> None:
    errors = mape_by_run(raw_counts, [sample(CYCLES, True), sample(STAGES, False), sample(OTHER, False)], STRENGTHS)
    assert list(errors) == [CYCLES, STAGES, OTHER] and max(errors.values()) < 0.01
    assert mape_by_run(raw_counts, [sample(STAGES, False)], STRENGTHS) == {}  # no other run to train on


def test_test_cycles_and_a_run_without_cycles_are_not_trained_on() -> None:
    """Times that are twice as long where a run is judged are 50 % off, and change nothing elsewhere."""
    runs = [sample(CYCLES, True), sample(STAGES, False), sample(OTHER, False)]
    late = np.where(runs[0].split == TEST, 2.0, 1.0)
    errors = mape_by_run(raw_counts, [replace(runs[0], observed_us=runs[0].observed_us * late), *runs[1:]], STRENGTHS)
    assert errors[CYCLES] == pytest.approx(50.0, abs=0.1) and max(errors[STAGES], errors[OTHER]) < 0.1
    # the stages of a run are seen by the ridges of the others only
    slow = [runs[0], replace(runs[1], observed_us=runs[1].observed_us * 2.0), runs[2]]
    assert mape_by_run(raw_counts, slow, STRENGTHS)[STAGES] == pytest.approx(50.0, abs=0.1)


def test_a_ridge_is_that_of_scikit_learn() -> None:
    linear = pytest.importorskip("sklearn.linear_model")
    rng = np.random.default_rng(5)
    s = sample(CYCLES, True, 50)
    s = replace(s, observed_us=s.observed_us * rng.uniform(0.8, 1.2, 50))
    train, test = s.split == TRAIN, s.split == TEST
    x, y = s.raw[:, [DECODES, KV]], s.observed_us
    units = (x - x[train].mean(axis=0)) / x[train].std(axis=0)
    weight = 1.0 / np.square(y[train])
    ridge = linear.Ridge(alpha=0.3 * weight.sum()).fit(units[train], y[train], sample_weight=weight)
    expected = 100.0 * np.abs(ridge.predict(units[test]) / y[test] - 1.0).mean()
    errors = mape_by_run(lambda one: one.raw[:, [DECODES, KV]], [s], (0.3,))
    assert errors[CYCLES] == pytest.approx(expected, rel=1e-6)


def test_the_strength_is_the_one_that_predicts_the_valid_times_best() -> None:
    """Valid times follow the law, and so do test times; a strong ridge shrinks the slope of decodes."""
    s = sample(CYCLES, True)
    one_by_one = {strength: mape_by_run(raw_counts, [s], (strength,))[CYCLES] for strength in STRENGTHS}
    assert min(one_by_one, key=one_by_one.__getitem__) == 1e-9 and one_by_one[1.0] > 1.0
    assert mape_by_run(raw_counts, [s], STRENGTHS)[CYCLES] == one_by_one[1e-9]
