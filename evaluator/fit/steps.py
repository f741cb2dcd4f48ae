"""The constants of step_time from measured times of single steps: bounded robust least squares on relative errors.

Runs before a fit on load stages, which sees step times only as sums of hundreds. Single steps separate the terms that
depend on the batch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import least_squares

from evaluator.fit.loss import MODEL_ERROR, huber, huber_weights
from evaluator.fit.problem import PRIOR, SMALL, believed_weight, limits, rounded
from simulator.bind import bind
from simulator.language.ir import Program
from simulator.language.opcodes import assemble

EVALUATIONS = 200  # of the residuals and their differences, at most
WORST = 1e3  # the relative error of a step time that is not finite


@dataclass(frozen=True)
class StepRun:
    """Steps of one deployment: its facts, their batches (float64[steps, RAW]) and times (float64[steps])."""

    facts: Mapping[str, float]
    raw: np.ndarray
    observed_us: np.ndarray


def step_positions(program: Program) -> tuple[int, ...]:
    """Positions in theta of the constants of step_time."""
    names = [f.name for f in program.functions for _ in f.constants]
    return tuple(i for i, name in enumerate(names) if name == "step_time")


def fit_steps(
    program: Program, runs: Sequence[StepRun], held: Sequence[int] = (), fitted_before: bool = False
) -> Program:
    """`program` with the constants of step_time, except those at `held`, that fit the steps of `runs` best.

    Starts from the program's constants, within their bounds. Residuals are relative errors under the Huber loss of a
    fit on stages. A run weighs as much as one stage there, however many steps it has: its steps err together, and a
    thousand of them say no more than one about what differs between deployments. Constants that the runs leave open
    stay near their start values, by the prior of a fit on stages (`fitted_before`: see `Problem`). Slopes are forward
    differences of `Bound.steps_us`; a constant that only moves a threshold has slope 0 and stays.
    """
    low, high = limits(program)
    theta = np.array(program.theta, dtype=float)
    free = np.array([j for j in step_positions(program) if j not in held and high[j] > low[j]], dtype=int)
    if not free.size:
        return program
    theta[free] = np.clip(theta[free], low[free], high[free])
    code, total = assemble(program), sum(len(run.observed_us) for run in runs)
    weights = np.concatenate([np.full(len(r.observed_us), 1.0 / len(r.observed_us)) for r in runs])

    def residuals(x: np.ndarray) -> np.ndarray:
        trial = theta.copy()
        trial[free] = x
        parts = [bind(code, tuple(trial), r.facts).steps_us(r.raw) / r.observed_us - 1.0 for r in runs]
        errors = np.nan_to_num(np.concatenate(parts), nan=WORST, posinf=WORST, neginf=-WORST)
        clipped: np.ndarray = np.clip(errors, -WORST, WORST)
        return clipped

    start = theta[free].copy()
    pull = _prior(residuals, start, weights, fitted_before)
    rows = np.arange(total)

    def loss(z: np.ndarray) -> np.ndarray:
        """rho(z) of squared residuals z, rho' and rho'', as least_squares expects; the prior's stay plain squares."""
        rho = np.stack([z, np.ones_like(z), np.zeros_like(z)])
        size = np.sqrt(z[rows])
        rho[0, rows] = weights * huber(size)
        rho[1, rows] = weights * huber_weights(size)  # rho'' stays 0: iteratively reweighted least squares
        return rho

    result = least_squares(
        lambda x: np.concatenate([residuals(x), pull * (x - start)]),
        start, bounds=(low[free], high[free]), loss=loss, x_scale="jac", max_nfev=EVALUATIONS,
    )  # fmt: skip
    # Iterates stay strictly inside the bounds that they tend to: put them on the bounds.
    ends = np.where(result.active_mask < 0, low[free], np.where(result.active_mask > 0, high[free], result.x))
    theta[free] = rounded(ends, low[free], high[free])
    return program.with_theta(tuple(theta))


def _prior(
    residuals: Callable[[np.ndarray], np.ndarray], start: np.ndarray, weights: np.ndarray, fitted_before: bool
) -> np.ndarray:
    """float64[free]: the weight of a unit away from the start, as in `Problem.prior`."""
    base = residuals(start)
    effect = np.empty(start.size)
    for j, value in enumerate(start):
        step = 1e-6 * max(abs(value), SMALL)
        moved = start.copy()
        moved[j] += step
        effect[j] = np.sqrt((weights * np.square((residuals(moved) - base) / step)).sum())
    pull: np.ndarray = PRIOR * effect
    if fitted_before:
        # what makes a percent of every step, in units of the constant
        percent = np.divide(0.01 * np.sqrt(weights.sum()), effect, out=np.full(start.size, SMALL), where=effect > 0)
        pull = np.maximum(pull, believed_weight(start, np.maximum(np.abs(start), percent)))
    return np.where(effect > 0, pull, MODEL_ERROR)
