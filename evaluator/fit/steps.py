"""The constants of step_time from measured times of single steps: bounded robust least squares on relative errors.

Before a fit on load stages, which sees step times only through sums of hundreds: single steps tell apart what depends
on the batch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import least_squares

from evaluator.fit.loss import MODEL_ERROR, huber, huber_weights
from evaluator.fit.pose import PRIOR
from evaluator.fit.problem import BELIEVED, rounded
from simulator.bind import bind
from simulator.language.bounds import bounds
from simulator.language.ir import Program
from simulator.language.opcodes import assemble

EVALUATIONS = 200  # of the residuals, each with its differences, at most
WORST = 1e3  # the relative error of a step time that is no number
_SMALL = 1e-3  # least size of a constant whose finite difference is taken


@dataclass(frozen=True)
class StepRun:
    """Steps of one deployment: its facts, float64[steps, RAW] their batches, float64[steps] their time."""

    facts: Mapping[str, float]
    raw: np.ndarray
    observed_us: np.ndarray


def step_positions(program: Program) -> tuple[int, ...]:
    """Positions in theta of the constants of step_time."""
    names = [f.name for f in program.functions for _ in f.constants]
    return tuple(i for i, name in enumerate(names) if name == "step_time")


def fit_steps(program: Program, runs: Sequence[StepRun], held: Sequence[int] = (), known: bool = False) -> Program:
    """`program` with the constants of step_time, but those at `held`, that fit the steps of `runs` best.

    Starts from the constants it has, within their bounds. Residuals are relative errors under the Huber loss of a fit
    on stages. A run weighs as much as one stage there, however many steps it has: they err together, and a thousand of
    them tell no more of what differs between deployments than one. What the runs do not decide stays near where it
    was, by the prior of a fit on stages (`known`: the constants were fitted before). Forward differences of
    `Bound.steps_us`; where a constant only moves a threshold they are 0 and it stays.
    """
    low, high = np.array(bounds(program), dtype=float).reshape(-1, 2).T
    theta = np.array(program.theta, dtype=float)
    free = np.array([j for j in step_positions(program) if j not in held and high[j] > low[j]], dtype=int)
    if not free.size:
        return program
    theta[free] = np.clip(theta[free], low[free], high[free])
    code, total = assemble(program), sum(len(run.observed_us) for run in runs)
    weights = np.concatenate([np.full(len(r.observed_us), 1.0 / len(r.observed_us)) for r in runs])

    def residuals(x: np.ndarray) -> np.ndarray:
        now = theta.copy()
        now[free] = x
        parts = [bind(code, tuple(now), r.facts).steps_us(r.raw) / r.observed_us - 1.0 for r in runs]
        errors = np.nan_to_num(np.concatenate(parts), nan=WORST, posinf=WORST, neginf=-WORST)
        out: np.ndarray = np.clip(errors, -WORST, WORST)
        return out

    start = theta[free].copy()
    pull = _prior(residuals, start, weights, known)
    rows = np.arange(total)

    def loss(z: np.ndarray) -> np.ndarray:
        """rho(z) of squared residuals z, rho' and rho'', as least_squares wants them; plain for the prior."""
        out = np.stack([z, np.ones_like(z), np.zeros_like(z)])
        size = np.sqrt(z[rows])
        out[0, rows] = weights * huber(size)
        out[1, rows] = weights * huber_weights(size)  # and no second: iteratively reweighted
        return out

    found = least_squares(
        lambda x: np.concatenate([residuals(x), pull * (x - start)]),
        start, bounds=(low[free], high[free]), loss=loss, x_scale="jac", max_nfev=EVALUATIONS,
    )  # fmt: skip
    # iterates are kept off the bounds that they tend to
    ends = np.where(found.active_mask < 0, low[free], np.where(found.active_mask > 0, high[free], found.x))
    theta[free] = rounded(ends, low[free], high[free])
    return program.with_theta(tuple(theta))


def _prior(
    residuals: Callable[[np.ndarray], np.ndarray], start: np.ndarray, weights: np.ndarray, known: bool
) -> np.ndarray:
    """float64[free]: the weight of a unit away from the start; see `evaluator.fit.pose` and `evaluator.fit.problem`."""
    base = residuals(start)
    effect = np.empty(start.size)
    for j, value in enumerate(start):
        step = 1e-6 * max(abs(value), _SMALL)
        moved = start.copy()
        moved[j] += step
        effect[j] = np.sqrt((weights * np.square((residuals(moved) - base) / step)).sum())
    pull: np.ndarray = PRIOR * effect
    if known:
        # a percent of every step, in units of the constant
        percent = np.divide(0.01 * np.sqrt(weights.sum()), effect, out=np.full(start.size, _SMALL), where=effect > 0)
        size = np.maximum(np.abs(start), percent)
        pull = np.maximum(pull, MODEL_ERROR / (BELIEVED * np.maximum(np.abs(start), 0.1 * size)))
    return np.where(effect > 0, pull, MODEL_ERROR)
