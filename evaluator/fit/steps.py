"""The constants of step_time from measured times of single steps: bounded least squares under one of four losses.

Runs before a fit on load stages, which sees step times only as sums of hundreds. Single steps separate the terms that
depend on the batch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from evaluator.fit.differences import slopes_by_differences, solved_within
from evaluator.fit.loss import MODEL_ERROR, huber, huber_weights
from evaluator.fit.problem import PRIOR, SMALL, believed_weight, limits, rounded
from evaluator.fit.smearing import smeared
from simulator.clock.bind import bind
from simulator.common.errors import InputError
from simulator.language.ir import Program
from simulator.language.measure import operations
from simulator.language.opcodes import Code, assemble
from simulator.schema import PROMPT_PAIRS

LOSSES = ("relative", "ridge", "log", "quantile")
QUANTILE = 0.99  # of step times, unless another one is asked for
EVALUATIONS = 200  # of the residuals and their differences, at most
WORST = 1e3  # the relative error of a step time that is not finite; its reciprocal stands in for times not above 0
FOLDS = 5  # of the cross-validation of ridge
STRENGTHS = tuple(10.0 ** (k / 2.0) for k in range(-8, 5))  # of ridge's penalty, tried in turn
LEAST_RESIDUAL = 1e-3  # below which the quantile's loss is a parabola
REWEIGHTINGS = 200  # at most
STILL = 1e-5  # relative change of every step time below which reweighting ends


@dataclass(frozen=True)
class StepRun:
    """Steps of one deployment in order of time: its facts, their batches (float64[steps, RAW]) and times
    (float64[steps]).

    weights: float64[steps], of the loss of each step's relative error; None: one over the number of steps.
    """

    facts: Mapping[str, float]
    raw: np.ndarray
    observed_us: np.ndarray
    weights: np.ndarray | None = None

    def at(self, rows: np.ndarray) -> StepRun:
        """These steps of the run."""
        weights = None if self.weights is None else self.weights[rows]
        return replace(self, raw=self.raw[rows], observed_us=self.observed_us[rows], weights=weights)


@dataclass(frozen=True)
class StepFit:
    """A program with fitted constants of step_time.

    start: the program before, in the form of `program`, which after a fit under `log` has `grown` by so many
    operations. strength: of ridge's penalty; smearing: what the step times were multiplied by after a fit under `log`;
    None under other losses.
    """

    program: Program
    start: Program
    strength: float | None = None
    smearing: float | None = None
    grown: int = 0


def check_recorded(code: Code, raw: np.ndarray) -> None:
    """Raise InputError if `code` reads whole prompt lengths and these batches (float64[rows, RAW]) lack them."""
    if "prompt_pairs" in code.uses and np.isnan(raw[:, PROMPT_PAIRS]).any():
        raise InputError(
            "b.prompt_pairs: step tables do not record the whole lengths of prompts in prefill: fit the program to "
            "load stages, without --steps, or use one that does not read it"
        )


def step_positions(program: Program) -> tuple[int, ...]:
    """Positions in theta of the constants of step_time."""
    names = [f.name for f in program.functions for _ in f.constants]
    return tuple(i for i, name in enumerate(names) if name == "step_time")


def fit_steps(
    program: Program,
    runs: Sequence[StepRun],
    held: Sequence[int] = (),
    fitted_before: bool = False,
    loss: str = LOSSES[0],
    quantile: float = QUANTILE,
    strength: float | None = None,
) -> StepFit:
    """`program` with the constants of step_time, except those at `held`, that fit the steps of `runs` best.

    Starts from the program's constants, within their bounds. A run weighs as much as one stage of a fit on stages,
    however many steps it has: its steps err together, and a thousand of them say no more than one about what differs
    between deployments. Slopes are forward differences of `Bound.steps_us`; a constant that only moves a threshold has
    slope 0 and stays. The losses:

    relative  the Huber loss, of a fit on stages, of relative errors.
    ridge     squares of relative errors, and of the constants in units of their effect times `strength` (None: the one
              of STRENGTHS that predicts best what is left out, where a fold leaves out a block of time of every run).
    log       squares of log(predicted / observed). Such a fit predicts the median, so the times are then multiplied by
              the mean of observed / predicted (smearing; Duan 1983, JASA 78): a constant around every return.
    quantile  the pinball loss of relative errors: the `quantile` of the times of like steps.

    Constants that the runs leave open stay near their start values, by the prior of a fit on stages (`fitted_before`:
    see `Problem`); ridge has its penalty instead. Raises InputError if ridge is to choose its strength from too few
    steps.
    """
    steps = _steps(program, runs, held)
    if loss == "ridge":
        strength = strength if strength is not None else _strength(program, runs, held)
        return StepFit(steps.program(program, _ridge(steps, strength)), program, strength=strength)
    if loss == "log":
        x = _log(steps, fitted_before)
        smearing = float(np.average(np.exp(-steps.logs(x)), weights=steps.weights))
        fitted, start = smeared(steps.program(program, x), smearing), smeared(program, 1.0)
        return StepFit(fitted, start, smearing=smearing, grown=operations(fitted) - operations(program))
    x = _relative(steps, fitted_before)
    if loss == "quantile":
        x = _quantile(replace(steps, start=x), steps.start, quantile, fitted_before)
    return StepFit(steps.program(program, x), program)


def share_within(program: Program, runs: Sequence[StepRun]) -> float | None:
    """The share of the steps whose time is at most the predicted one; None without steps."""
    code = assemble(program)
    below = [r.observed_us <= bind(code, program.theta, r.facts).steps_us(r.raw) for r in runs]
    return float(np.concatenate(below).mean()) if sum(map(len, below)) else None


@dataclass(frozen=True)
class _Steps:
    """The steps of a fit. free: positions in theta of the constants that may move, from `start` and within `low` and
    `high`, float64[free]. weights: float64[steps] of all runs."""

    code: Code
    theta: np.ndarray
    free: np.ndarray
    start: np.ndarray
    low: np.ndarray
    high: np.ndarray
    runs: Sequence[StepRun]
    weights: np.ndarray

    def program(self, program: Program, x: np.ndarray) -> Program:
        """`program` with the free constants at `x`, rounded."""
        if not self.free.size:
            return program
        theta = self.theta.copy()
        theta[self.free] = rounded(x, self.low, self.high)
        return program.with_theta(tuple(theta))

    def ratios(self, x: np.ndarray) -> np.ndarray:
        """float64[steps]: predicted over observed times."""
        trial = self.theta.copy()
        trial[self.free] = x
        parts = [bind(self.code, tuple(trial), r.facts).steps_us(r.raw) / r.observed_us for r in self.runs]
        return np.concatenate(parts)

    def errors(self, x: np.ndarray) -> np.ndarray:
        """float64[steps]: relative errors."""
        errors = np.nan_to_num(self.ratios(x) - 1.0, nan=WORST, posinf=WORST, neginf=-WORST)
        clipped: np.ndarray = np.clip(errors, -WORST, WORST)
        return clipped

    def logs(self, x: np.ndarray) -> np.ndarray:
        """float64[steps]: log(predicted / observed)."""
        ratios = self.ratios(x)
        clipped: np.ndarray = np.log(np.clip(np.where(ratios > 0.0, ratios, 0.0), 1.0 / WORST, WORST))
        return clipped

    def solved(
        self, residuals: Callable[[np.ndarray], np.ndarray], loss: str | Callable[[np.ndarray], np.ndarray] = "linear"
    ) -> np.ndarray:
        """float64[free]: where the losses of the residuals are least, from the start."""
        if not self.free.size:
            return self.start
        return solved_within(residuals, self.start, self.low, self.high, loss=loss, max_nfev=EVALUATIONS)


def _steps(program: Program, runs: Sequence[StepRun], held: Sequence[int]) -> _Steps:
    code = assemble(program)
    for run in runs:
        check_recorded(code, run.raw)
    low, high = limits(program)
    theta = np.array(program.theta, dtype=float)
    free = np.array([j for j in step_positions(program) if j not in held and high[j] > low[j]], dtype=int)
    theta[free] = np.clip(theta[free], low[free], high[free])
    weights = [np.full(len(r.observed_us), 1.0 / len(r.observed_us)) if r.weights is None else r.weights for r in runs]
    return _Steps(code, theta, free, theta[free].copy(), low[free], high[free], tuple(runs), np.concatenate(weights))


def _relative(steps: _Steps, fitted_before: bool) -> np.ndarray:
    """float64[free]: the constants under the Huber loss of relative errors."""
    start, rows = steps.start, np.arange(len(steps.weights))
    pull = _prior(steps.errors, start, steps.weights, fitted_before)

    def loss(z: np.ndarray) -> np.ndarray:
        """rho(z) of squared residuals z, rho' and rho'', as least_squares expects; the prior's stay plain squares."""
        rho = np.stack([z, np.ones_like(z), np.zeros_like(z)])
        size = np.sqrt(z[rows])
        rho[0, rows] = steps.weights * huber(size)
        rho[1, rows] = steps.weights * huber_weights(size)  # rho'' stays 0: iteratively reweighted least squares
        return rho

    return steps.solved(lambda x: np.concatenate([steps.errors(x), pull * (x - start)]), loss)


def _ridge(steps: _Steps, strength: float) -> np.ndarray:
    """float64[free]: the constants under squares of relative errors and ridge's penalty."""
    start, root = steps.start, np.sqrt(steps.weights)
    effect = _effects(steps.errors, start, steps.weights)
    # What no step shows has no effect to be penalised by: it stays where it starts.
    pull, origin = np.where(effect > 0, np.sqrt(strength) * effect, MODEL_ERROR), np.where(effect > 0, 0.0, start)
    return steps.solved(lambda x: np.concatenate([root * steps.errors(x), pull * (x - origin)]))


def _strength(program: Program, runs: Sequence[StepRun], held: Sequence[int]) -> float:
    """The strength of ridge's penalty with the least squared errors on blocks of time that were left out."""
    if not any(len(run.observed_us) >= FOLDS for run in runs):
        raise InputError(f"loss ridge: no run has {FOLDS} steps or more to choose its strength by: use another loss")
    blocks = [np.array_split(np.arange(len(run.observed_us)), FOLDS) for run in runs]
    squares = np.zeros(len(STRENGTHS))
    for k in range(FOLDS):
        rest = [run.at(np.concatenate(rows[:k] + rows[k + 1 :])) for run, rows in zip(runs, blocks, strict=True)]
        out = [run.at(rows[k]) for run, rows in zip(runs, blocks, strict=True)]
        train, test = (_steps(program, [r for r in part if len(r.observed_us)], held) for part in (rest, out))
        for i, strength in enumerate(STRENGTHS):
            squares[i] += (test.weights * np.square(test.errors(_ridge(train, strength)))).sum()
    return float(STRENGTHS[int(np.argmin(squares))])


def _log(steps: _Steps, fitted_before: bool) -> np.ndarray:
    """float64[free]: the constants under squares of log(predicted / observed)."""
    start, root = steps.start, np.sqrt(steps.weights)
    pull = _prior(steps.logs, start, steps.weights, fitted_before)
    return steps.solved(lambda x: np.concatenate([root * steps.logs(x), pull * (x - start)]))


def _quantile(steps: _Steps, origin: np.ndarray, quantile: float, fitted_before: bool) -> np.ndarray:
    """float64[free]: the constants under the pinball loss of relative errors; the prior pulls to `origin`.

    Every round minimises the parabolas that touch the loss of each step at its present error and lie above it (Hunter
    and Lange 2000, JCGS 9), so the loss falls from round to round.
    """
    pull, x = _prior(steps.errors, origin, steps.weights, fitted_before), steps.start
    root, middle = np.zeros_like(steps.weights), np.zeros_like(steps.weights)  # of the round

    def residuals(x: np.ndarray) -> np.ndarray:
        return np.concatenate([root * (steps.errors(x) - middle), pull * (x - origin)])

    errors = steps.errors(x)
    for _ in range(REWEIGHTINGS):
        size = np.maximum(np.abs(errors), LEAST_RESIDUAL)
        root, middle = np.sqrt(0.25 * steps.weights / size), (2.0 * quantile - 1.0) * size
        x = replace(steps, start=x).solved(residuals)
        before, errors = errors, steps.errors(x)
        if np.abs(errors - before).max() < STILL:
            break
    return x


def _effects(residuals: Callable[[np.ndarray], np.ndarray], start: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """float64[free]: the root of the weighted squares of what a unit of each constant changes."""
    effect: np.ndarray = np.sqrt((weights[:, None] * np.square(slopes_by_differences(residuals, start))).sum(axis=0))
    return effect


def _prior(
    residuals: Callable[[np.ndarray], np.ndarray], start: np.ndarray, weights: np.ndarray, fitted_before: bool
) -> np.ndarray:
    """float64[free]: the weight of a unit away from the start, as in `Problem.prior`."""
    effect = _effects(residuals, start, weights)
    pull: np.ndarray = PRIOR * effect
    if fitted_before:
        # what makes a percent of every step, in units of the constant
        percent = np.divide(0.01 * np.sqrt(weights.sum()), effect, out=np.full(start.size, SMALL), where=effect > 0)
        pull = np.maximum(pull, believed_weight(start, np.maximum(np.abs(start), percent)))
    return np.where(effect > 0, pull, MODEL_ERROR)
