"""Delays outside of steps: fitted to runs whose traces tell them apart, and right under other loads."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from trace_engine import simulate
from trace_files import write
from trace_records import MODEL, TINY

from evaluator.fit.delays import delays_ms, with_delays
from evaluator.fit.fit import ScopedFit, fit_scoped, fit_set
from evaluator.fit.loss import observed_delays
from evaluator.fit.problem import problem_of
from evaluator.metrics import components_ms
from evolve.ingest.batch import ingest
from evolve.ingest.options import Given
from evolve.ingest.read.sources import look
from simulator.clock.replay import replay
from simulator.language.complete import complete
from simulator.language.parse import parse
from simulator.serving.bundled import load_experiments
from simulator.serving.experiment import Experiment

FORM = """
def step_time(b, s, *, base: us = 6000.0, token: us/token = 10.0, kv: us/token = 0.01):
    return base + token * b.prefill_tokens + kv * b.kv_sum
def queueing_time(r, s, *, alpha: us = 5000.0): return alpha
def output_token_time(s, *, each: us = 1.0): return each
def completion_time(s, *, end: us = 100.0): return end
"""
SEEDS = range(1, 9)


def seen(home: Path, seed: int, *rates: float, requests: int = 1000) -> Experiment:
    """A run of the simulated engine at these rates, as `evolve ingest` reads its traces."""
    folder = home / f"{seed}" / "20260102-000000-tiny-llama-tp1-general"
    options: dict[str, Any] = {"requests": requests, "rates": rates, "offload": False, "step_rate": 0.0}
    write(simulate(seed=seed, **options), folder)
    given = Given("H100-SXM-80GB", {}, {MODEL: TINY})
    ingest([look(folder)], home / f"{seed}" / "out", given, 1, lambda run, n: None, lambda run: None)
    (experiment,) = load_experiments(home / f"{seed}" / "out" / "experiments.yaml")
    return experiment


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("delays")


@pytest.fixture(scope="module")
def fitted(home: Path) -> ScopedFit:
    return fit_scoped(problem_of(complete(parse(FORM)), fit_set([seen(home, 50, 20.0, 40.0)])))


@pytest.mark.parametrize(("seed", "rate"), [(51, 8.0), (52, 15.0), (53, 35.0)])
def test_each_part_is_right_at_loads_that_were_not_fitted(
    home: Path, fitted: ScopedFit, seed: int, rate: float
) -> None:
    """Within 5 % of what the simulated engine did, whose parts the traces tell exactly (test_ingest_truth)."""
    experiment = seen(home, seed, rate)
    replays = [components_ms(replay(experiment, fitted.programs[0], s)) for s in SEEDS]
    ours = {name: np.mean([parts[name] for parts in replays]) for name in replays[0]}
    assert experiment.observed and experiment.observed.summary and experiment.components
    theirs, (before, _) = experiment.components, observed_delays(experiment)
    assert ours["queueing"] + ours["waiting"] == pytest.approx(before, rel=0.05)
    assert ours["prefill_steps"] == pytest.approx(theirs.prefill_steps, rel=0.05)
    assert ours["decode_steps"] == pytest.approx(theirs.decode_steps, rel=0.05)
    assert sum(ours.values()) == pytest.approx(experiment.observed.summary.e2e_ms.mean, rel=0.05)


def test_observed_delays_decide_the_constants_that_they_show(fitted: ScopedFit) -> None:
    ((predicted, observed),) = delays_ms(fitted.problem, fitted.phi).values()
    assert predicted.before == pytest.approx(observed.before, rel=0.01)
    assert [fitted.problem.position[j] for j in fitted.problem.delayed] == [3, 4, 5], "alpha, each, end"


def test_without_them_nothing_changes(home: Path) -> None:
    bare = replace(seen(home, 54, 20.0, requests=60), components=None)
    problem = problem_of(complete(parse(FORM)), fit_set([bare]))
    assert with_delays(problem, problem.start) is problem
