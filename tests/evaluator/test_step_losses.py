"""The losses of a fit to single steps: what each finds of a law, and what it reports beside the constants."""

from __future__ import annotations

import math

import numpy as np
import pytest
from laws import law
from scipy.optimize import linprog, lsq_linear

from evaluator.fit.problem import limits
from evaluator.fit.steps import LOSSES, STRENGTHS, StepRun, fit_steps, share_within, smeared
from evaluator.judge.sweep import decode_batch, table_of
from simulator.clock.bind import bind
from simulator.common.errors import InputError
from simulator.common.streams import stream
from simulator.language.ir import Program
from simulator.language.opcodes import assemble
from simulator.language.parse import parse
from simulator.language.unparse import unparse
from simulator.serving.bundled import bundled_experiments

RUNS = {e.id: e for e in bundled_experiments()}
DEPLOYMENTS = ("llama-2-7b-tp1-codegen", "llama-2-70b-tp4-general", "codellama-34b-tp2-general")
TRUTH = law("""
def step_time(b, s, *, weights: one = 1.2, kv: one = 1.5, layer: us = 40.0):
    return weights * b.weight_read_us + kv * b.kv_read_us + layer * s.layers
""")
START = TRUTH.with_theta((2.0, 3.0, 5.0, 8000.0))
WIDE = law("""
def step_time(
    b, s, *, base: us[-1000000, 1000000] = 5000.0, each: us/request[-1000000, 1000000] = 10.0,
    token: us/token[-1000000, 1000000] = 0.1,
):
    return base + each * b.decode_reqs + token * b.kv_sum
""")
USUAL = (1.19982, 1.49583, 40.3674, 8000.0)
SPREAD = 0.3  # standard deviation of log times


def predicted_us(program: Program, run: StepRun) -> np.ndarray:
    return bind(assemble(program), program.theta, run.facts).steps_us(run.raw)


def measured(noise: float = 0.0, steps: int = 300, program: Program = TRUTH) -> list[StepRun]:
    """Decode batches of three deployments with the times of a program, times exp(noise * standard normal)."""
    runs, rng = [], stream(7, 1)
    for ident in DEPLOYMENTS:
        raw = table_of([decode_batch(1 + (7 * i) % 100, 300 + (37 * i) % 900) for i in range(steps)])
        run = StepRun(RUNS[ident].facts, raw, np.ones(steps))
        factors = np.exp(noise * rng.standard_normal(steps))
        runs.append(StepRun(run.facts, raw, predicted_us(program, run) * factors))
    return runs


def design(runs: list[StepRun], program: Program = TRUTH) -> np.ndarray:
    """float64[steps, 3]: what a unit of each constant adds to predicted over observed times."""
    units = [program.with_theta((*row, 0.0)) for row in np.eye(3)]
    return np.concatenate([np.stack([predicted_us(u, r) / r.observed_us for u in units], axis=1) for r in runs])


@pytest.mark.parametrize("loss", LOSSES)
def test_every_loss_finds_the_law_behind_exact_times(loss: str) -> None:
    fit = fit_steps(START, measured(steps=60), loss=loss)
    np.testing.assert_allclose(fit.program.theta[:3], TRUTH.theta[:3], rtol=0.01)
    assert fit.smearing == (pytest.approx(1.0, abs=1e-3) if loss == "log" else None)
    assert fit.strength == (STRENGTHS[0] if loss == "ridge" else None)  # without noise the weakest is best


@pytest.mark.parametrize("loss", LOSSES)
def test_every_loss_keeps_to_the_bounds(loss: str) -> None:
    """Weights that are read at twice the datasheet's speed end at it, and a negative time for each layer at 0."""
    faster = measured(0.05, 60, TRUTH.with_theta((0.5, 2.0, 0.0, 8000.0)))
    found = fit_steps(START, faster, loss=loss).program.theta
    low, high = limits(TRUTH)
    assert found[0] == 1.0 and found[2] == 0.0
    assert all(a <= x <= b for a, x, b in zip(low, found[:3], high, strict=False))


def test_the_usual_loss_is_what_it_was_before_there_were_others() -> None:
    """USUAL is what release 0.3.0 found from the same steps, exact times in waves of 5 %."""
    waves = 1.0 + 0.05 * np.sin(np.arange(60))
    runs = [StepRun(r.facts, r.raw, r.observed_us * waves) for r in measured(steps=60)]
    assert fit_steps(START, runs).program.theta == USUAL


def test_ridge_without_a_penalty_is_least_squares_within_the_bounds() -> None:
    """The reference is scipy's solver of linear least squares on the same relative errors."""
    runs = measured(0.1)
    low, high = limits(TRUTH)
    reference = lsq_linear(design(runs), np.ones(900), bounds=(low[:3], high[:3])).x
    for strength in (0.0, 1e-12):
        found = fit_steps(START, runs, loss="ridge", strength=strength)
        np.testing.assert_allclose(found.program.theta[:3], reference, rtol=1e-4)


def ridge(a: np.ndarray, strength: float) -> np.ndarray:
    """The normal equations of constants that should give 1 in every row of `a`, of the weight of a run in all, with
    the penalty on the root mean square of each constant's column."""
    effects = np.diag((a * a).sum(axis=0))
    solution: np.ndarray = np.linalg.solve(a.T @ a + strength * effects, a.sum(axis=0))
    return solution


def test_ridges_penalty_is_on_the_constants_in_units_of_their_effect() -> None:
    runs, strength = measured(0.3), 0.03
    # each row has the weight 1/300 in the sum of squares
    reference = ridge(design(runs, WIDE) / math.sqrt(300), strength) * math.sqrt(1 / 300)
    found = fit_steps(WIDE, runs, loss="ridge", strength=strength)
    np.testing.assert_allclose(found.program.theta[:3], reference, rtol=1e-4)


def test_ridge_chooses_its_strength_by_cross_validation() -> None:
    """The reference repeats the five folds with normal equations: contiguous fifths of each run's 12 steps."""
    runs = measured(0.6, 12)
    a, blocks = design(runs, WIDE).reshape(3, 12, 3), np.array_split(np.arange(12), 5)
    squares = []
    for strength in STRENGTHS:
        total = 0.0
        for block in blocks:
            rest = np.setdiff1d(np.arange(12), block)
            weight = 1.0 / math.sqrt(len(rest))
            constants = ridge(np.concatenate(a[:, rest]) * weight, strength) * weight
            total += np.square(np.concatenate(a[:, block]) @ constants - 1.0).mean()
        squares.append(total)
    best = STRENGTHS[int(np.argmin(squares))]
    assert STRENGTHS[0] < best < STRENGTHS[-1]
    assert fit_steps(WIDE, runs, loss="ridge").strength == best
    with pytest.raises(InputError, match="no run has 5 steps"):
        fit_steps(WIDE, measured(steps=4), loss="ridge")


def test_log_with_smearing_predicts_the_mean_of_lognormal_times() -> None:
    """The mean of exp(spread * normal) is exp(spread^2 / 2) = 1.046; of 900 draws its standard error is 0.011."""
    fit = fit_steps(START, measured(SPREAD), loss="log")
    assert fit.smearing == pytest.approx(math.exp(SPREAD**2 / 2), abs=0.03)
    assert fit.grown == 1 and fit.program.theta[3] == pytest.approx(fit.smearing, rel=1e-5)
    runs = measured(SPREAD)
    without = fit.program.with_theta((*fit.program.theta[:3], 1.0, 8000.0))
    medians = [np.median(r.observed_us / predicted_us(without, r)) for r in runs]
    means = [np.mean(r.observed_us / predicted_us(fit.program, r)) for r in runs]
    assert np.mean(medians) == pytest.approx(1.0, abs=0.03) and np.mean(means) == pytest.approx(1.0, abs=1e-4)
    assert [predicted_us(fit.start, r).tolist() for r in runs] == [predicted_us(START, r).tolist() for r in runs]


def test_a_time_of_zero_is_the_worst_in_logarithms() -> None:
    """A start at which every step takes no time: no slope leads away from there, and nothing fails."""
    nothing = law("def step_time(b, s, *, layer: us = 0.0): return min(layer, 0) * s.layers")
    fit = fit_steps(nothing, measured(steps=10), loss="log")
    assert fit.program.theta[0] == 0.0 and fit.smearing == pytest.approx(1e3)  # WORST; the constant is at its bound
    assert fit.program.theta[1] == 10.0


@pytest.mark.parametrize("quantile", [0.5, 0.9, 0.99])
def test_a_quantile_covers_its_share_with_the_least_pinball_loss(quantile: float) -> None:
    """Coverage within three standard errors of a share of 900, and two points for the weights, one over the time.

    The reference of the pinball loss is the linear program of quantile regression; the fit has a smoothed loss.
    """
    runs = measured(0.1)
    fitted = fit_steps(START, runs, loss="quantile", quantile=quantile).program
    allowed = 3 * math.sqrt(quantile * (1 - quantile) / 900) + 0.02
    assert share_within(fitted, runs) == pytest.approx(quantile, abs=allowed)
    assert share_within(TRUTH, []) is None
    a, n = design(runs), 900

    def pinball(x: np.ndarray) -> float:
        errors = a @ x - 1.0
        return float(np.where(errors < 0.0, -quantile * errors, (1.0 - quantile) * errors).mean())

    costs = np.concatenate([np.zeros(3), np.full(n, quantile), np.full(n, 1.0 - quantile)])
    equal = np.hstack([a, np.eye(n), -np.eye(n)])
    best = linprog(costs, A_eq=equal, b_eq=np.ones(n), bounds=[(1, None)] + [(0, None)] * (2 + 2 * n)).x[:3]
    assert pinball(best) <= pinball(np.array(fitted.theta[:3])) <= 1.01 * pinball(best)


def test_smearing_goes_around_every_return_and_is_there_once() -> None:
    early = parse("def step_time(b, s, *, a: us = 2.0):\n if s.tp > 1: return a\n return a + a * s.layers")
    once = smeared(early, 1.25)
    assert "smearing: one[0.1, 10.0] = 1.25" in unparse(once)
    assert unparse(once).count("return smearing * ") == 2
    twice = smeared(parse(unparse(once)), 2.0)  # as a fit of what was written
    assert twice.theta == (2.0, 2.5) and unparse(twice) == unparse(once).replace("1.25", "2.5")
    taken = smeared(parse("def step_time(b, s, *, smearing: us = 2.0): return smearing + s.layers * smearing"), 2.0)
    assert [c.name for c in taken.functions[0].constants] == ["smearing", "smearing_2"]
