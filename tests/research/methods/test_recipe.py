"""Own trainings: each recovers known constants from measured times that were made with them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from research.methods.recipe import Phase, Recipe, train
from research.methods.samples import Sample
from simulator.clock.bind import bind
from simulator.common.streams import stream
from simulator.language.complete import complete
from simulator.language.ir import Program
from simulator.language.opcodes import assemble
from simulator.language.parse import parse
from simulator.schema import DECODE_REQS, KV_DECODE_SUM, KV_SUM, PREFILL_REQS, PREFILL_TOKENS, RAW_FIELDS
from simulator.serving.bundled import bundled_experiments
from simulator.serving.splits import TEST, TRAIN, VALID

LINE = "def step_time(b, s, *, base: us = 100.0, token: us/token = 1.0, request: us/request = 1.0):\n"
LINE += "    return base + token * b.prefill_tokens + request * b.decode_reqs\n"
POWER = "def step_time(b, s, *, base: one[-20, 20] = 5.0, power: one[-3, 3] = 0.0, unit: request[1, 1] = 1, us: us[1, 1] = 1):\n"
POWER += "    return us * exp(base + power * log(1 + b.decode_reqs / unit))\n"
TRUE = (5000.0, 12.0, 40.0)  # of LINE
COUNT = 200


def samples(truth: Program, noise: float = 0.0, runs: int = 2, lognormal: bool = False) -> list[Sample]:
    """Cycles of shipped deployments, timed by `truth`; half of the steps have a prompt."""
    made = []
    for number, e in enumerate(bundled_experiments()[:runs]):
        rng = stream(number, 7)
        raw = np.zeros((COUNT, RAW_FIELDS))
        raw[:, DECODE_REQS] = rng.integers(1, 100, COUNT)
        raw[:, KV_SUM] = raw[:, KV_DECODE_SUM] = raw[:, DECODE_REQS] * rng.integers(300, 1500, COUNT)
        mixed = rng.random(COUNT) < 0.5
        raw[mixed, PREFILL_REQS], raw[mixed, PREFILL_TOKENS] = 1, rng.integers(1, 500, mixed.sum())
        us = bind(assemble(truth), truth.theta, e.facts).steps_us(raw)
        spread = noise * rng.standard_normal(COUNT)
        us = us * (np.exp(spread) if lognormal else 1.0 + spread)
        split = np.where(np.arange(COUNT) < 120, TRAIN, np.where(np.arange(COUNT) < 160, VALID, TEST))
        each, ones = np.arange(COUNT), np.ones(COUNT)
        made.append(Sample(e.id, e.facts, raw, each, ones, us, ones.copy(), split, each.copy()))
    return made


def line(theta: tuple[float, ...] | None = None) -> Program:
    program = complete(parse(LINE))
    return program.with_theta((*theta, *program.theta[len(theta) :])) if theta else program


def found(recipe: Recipe, noise: float = 0.0, **kwargs: bool) -> tuple[float, ...]:
    return train(line(), samples(line(TRUE), noise, **kwargs), recipe).theta[:3]


STANDARDISED = Recipe(ridge="standardised", unpenalised=("base",))
RECIPES = [Recipe(), Recipe(loss="log"), Recipe(loss="huber"), Recipe(solver="L-BFGS-B"), Recipe(restarts=3)]
RECIPES += [Recipe(ridge="raw", unpenalised=("base",)), STANDARDISED, replace(STANDARDISED, over_runs=True)]


@pytest.mark.parametrize("recipe", RECIPES, ids=str)
def test_a_training_recovers_what_made_exact_times(recipe: Recipe) -> None:
    assert found(recipe) == pytest.approx(TRUE, rel=0.01)


def test_smearing_turns_the_median_into_the_mean() -> None:
    """Times with lognormal noise of sigma 0.5: their mean is exp(0.125) times their median."""
    truth = complete(parse(POWER))
    truth = truth.with_theta((8.0, 0.3, *truth.theta[2:]))
    times = samples(truth, 0.5, lognormal=True)
    start = complete(parse(POWER))
    median = train(start, times, Recipe(loss="log")).theta
    mean = train(start, times, Recipe(loss="log", smeared="base")).theta
    assert median[:2] == pytest.approx((8.0, 0.3), abs=0.15)
    assert mean[1] == median[1]
    assert mean[0] - median[0] == pytest.approx(0.125, abs=0.03)


def test_a_stage_moves_its_own_constants_on_its_own_steps_only() -> None:
    """On steps without prompts the cost of a prompt token shows nothing, so that stage leaves it at its start."""
    recipe = Recipe(stages=(Phase("pure", ("base", "request")),))
    base, token, request = train(line(), _without_mixed_costs(), recipe).theta[:3]
    assert (base, token, request) == pytest.approx((5000.0, 1.0, 40.0), rel=0.01)


def _without_mixed_costs() -> list[Sample]:
    """Times in which steps with a prompt make no sense, and must not be looked at."""
    made = []
    for s in samples(line(TRUE)):
        strange = s.raw[:, PREFILL_REQS] > 0
        made.append(replace(s, observed_us=np.where(strange, 1e6, s.observed_us)))
    return made


def test_outliers_are_winsorised_in_training_only() -> None:
    times = samples(line(TRUE))
    wild = [replace(s, observed_us=np.where(np.arange(COUNT) % 100 == 3, 1e7, s.observed_us)) for s in times]
    kept = [s.observed_us.copy() for s in wild]
    plain = train(line(), wild, Recipe(loss="log")).theta[:3]  # relative errors hardly feel times that are too long
    tamed = train(line(), wild, Recipe(loss="log", winsorised=True)).theta[:3]
    assert abs(tamed[0] / TRUE[0] - 1) < abs(plain[0] / TRUE[0] - 1)
    assert all((s.observed_us == before).all() for s, before in zip(wild, kept, strict=True))


def test_first_steps_are_dropped() -> None:
    times = samples(line(TRUE))
    cold = [replace(s, observed_us=np.where(s.step < 50, 10.0, 1.0) * s.observed_us) for s in times]
    assert train(line(), cold, Recipe(first_step=50)).theta[:3] == pytest.approx(TRUE, rel=0.01)
    assert train(line(), cold, Recipe()).theta[0] != pytest.approx(TRUE[0], rel=0.01)


def test_restarts_leave_a_bad_start() -> None:
    """From a power of -3 with a huge factor the descent ends elsewhere; other starts reach what made the times."""
    truth = complete(parse(POWER))
    truth = truth.with_theta((8.0, 0.3, *truth.theta[2:]))
    bad = truth.with_theta((-19.0, -3.0, *truth.theta[2:]))
    times = samples(truth)
    assert train(bad, times, Recipe(restarts=16)).theta[:2] == pytest.approx((8.0, 0.3), rel=0.01)


def test_a_load_stage_is_predicted_as_the_mean_over_its_batches() -> None:
    (cycles, *_) = samples(line(TRUE))
    bound = bind(assemble(line(TRUE)), line(TRUE).theta, cycles.facts)
    share = np.r_[0.25, 0.75, np.full(COUNT - 2, 1 / (COUNT - 2))]
    two = {name: getattr(cycles, name)[:2] for name in ("observed_us", "weight", "split", "step")}
    mixed = replace(cycles, first=np.array([0, 2]), share=share, **two)
    us = bound.steps_us(cycles.raw)
    assert mixed.predicted_us(bound) == pytest.approx([0.25 * us[0] + 0.75 * us[1], us[2:].mean()])
    second = mixed.where(np.array([False, True]))
    assert second.predicted_us(bound) == pytest.approx([us[2:].mean()])
