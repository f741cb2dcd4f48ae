"""Constants by Bayesian optimisation on full replays."""

from __future__ import annotations

import sys

import numpy as np
import pytest
from laws import law

from evaluator.fit.fit import fit_set
from evaluator.fit.loss import FitSet
from evaluator.fit.problem import problem_of
from research.methods.bayes import REACH, LogBox, calibrate
from simulator.clock.run import HostileStep
from simulator.common.errors import InputError
from simulator.language.ir import Program
from simulator.serving.bundled import bundled_experiments

RUNS = {e.id: e for e in bundled_experiments()}
FORM = law("""
def step_time(b, s, *, weights: one = 1.4, kv: one = 1.5, layer: us = 30.0):
    return weights * b.weight_read_us + kv * b.kv_read_us + layer * s.layers
""")


@pytest.fixture(scope="module")
def data() -> FitSet:
    """Two runs of two models, a stage or two each."""
    return fit_set([RUNS["llama-2-7b-tp1-codegen"], RUNS["llama-2-70b-tp4-roleplay"]])


def error(program: Program, data: FitSet) -> float:
    """Mean |relative error| of the stage means of E2E under full replays."""
    problem = problem_of(program, data)
    means_ms, observed_ms = problem.replay(np.array(program.theta), False)[:, 0], data.stages.observed_ms[:, 0]
    return float(np.abs(means_ms / observed_ms - 1.0).mean())


def test_a_perturbed_program_is_improved_and_always_in_the_same_way(data: FitSet) -> None:
    """A design alone finds less than a design with as many points chosen by the process after it."""
    pytest.importorskip("sklearn")
    found = calibrate(FORM, data, evaluations=40)
    assert found == calibrate(FORM, data, evaluations=40)
    assert error(found, data) < 0.5 * error(FORM, data)
    design = calibrate(FORM, data, evaluations=21)
    assert error(found, data) < error(design, data) <= error(FORM, data)
    assert design != calibrate(FORM, data, evaluations=21, seed=1)
    assert found.theta == tuple(float(f"{x:.6g}") for x in found.theta)


def test_the_box_is_a_factor_around_each_constant_within_its_bounds(data: FitSet) -> None:
    problem = problem_of(FORM, data)
    box = LogBox.around(problem)
    assert box.which.tolist() == [0, 1, 2, 3]  # every constant is free
    np.testing.assert_allclose(box.phi(box.start), FORM.theta)
    size = problem.scales(problem.start)[0]
    assert size[:3].tolist() == list(FORM.theta[:3])  # and that of the delay is larger than the delay, see Problem
    np.testing.assert_allclose(box.phi(np.ones(4)), REACH * size)
    low = box.phi(np.zeros(4))
    assert low[0] == low[1] == 1.0  # nothing beats the datasheet
    np.testing.assert_allclose(low[2:], size[2:] / REACH)


def test_points_at_which_a_step_takes_no_time_are_the_worst(data: FitSet) -> None:
    """A third to three times half a microsecond: below one nothing can be replayed, above it the longer the better."""
    pytest.importorskip("sklearn")
    found = calibrate(law("def step_time(b, s, *, a: us = 0.5): return a\n"), data, evaluations=25)
    assert 1.0 <= found.theta[0] <= 1.5
    with pytest.raises(HostileStep):
        calibrate(law("def step_time(b, s, *, a: us[0, 0.9] = 0.5): return a\n"), data, evaluations=23)


def test_nothing_is_done_without_constants_and_the_library_is_named_where_it_is_missing(
    data: FitSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    fixed = law("def step_time(b, s): return b.kernel_us\n", "def queueing_time(r, s): return 0\n")
    assert calibrate(fixed, data) is fixed
    monkeypatch.setitem(sys.modules, "sklearn.gaussian_process", None)
    with pytest.raises(InputError, match="scikit-learn is missing"):
        calibrate(FORM, data, evaluations=22)
