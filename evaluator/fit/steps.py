"""The constants of step_time from measured times of single steps: bounded least squares under one of four losses.

A fit on load stages, which follows, sees step times only as sums of hundreds. Single steps separate the terms that
depend on the batch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import scipy

from evaluator.fit.loss import MODEL_ERROR, huber, huber_weights
from evaluator.fit.problem import PRIOR, SMALL, believed_weight, limits, rounded
from simulator.clock.bind import bind
from simulator.common.errors import InputError
from simulator.language.ir import Const, Constant, Expr, Function, Let, Op, Program, with_returns
from simulator.language.measure import operations
from simulator.language.opcodes import Code, assemble
from simulator.language.units import read
from simulator.schema import PROMPT_PAIRS

LOSSES = ("relative", "ridge", "log", "quantile")
QUANTILE = 0.99  # of step times, by default
EVALUATIONS = 200  # of the residuals and their differences, at most
WORST = 1e3  # ratio of a step time that is not finite to an observed one; its reciprocal stands for times not above 0
FOLDS = 5  # of the cross-validation of ridge
STRENGTHS = tuple(10.0 ** (k / 2.0) for k in range(-8, 5))  # of ridge's penalty, tried in turn
LEAST_RESIDUAL = 1e-3  # below which the quantile's loss is a parabola
REWEIGHTINGS = 200  # at most
STILL = 1e-5  # relative change of every step time below which reweighting ends
SMEARING = "smearing"  # the name of that constant, see `smeared`
SMEARING_BOUNDS = (0.1, 10.0)

Residuals = Callable[[np.ndarray], np.ndarray]  # float64[constants] -> float64[residuals]


@dataclass(frozen=True)
class StepRun:
    """Steps of one deployment in order of time. raw: float64[steps, RAW], batches; observed_us: float64[steps],
    times."""

    facts: Mapping[str, float]
    raw: np.ndarray
    observed_us: np.ndarray

    def at(self, rows: np.ndarray) -> StepRun:
        """These steps of the run."""
        return replace(self, raw=self.raw[rows], observed_us=self.observed_us[rows])


@dataclass(frozen=True)
class StepFit:
    """A program with fitted constants of step_time; `start` is the program before, in the same form.

    strength: of the penalty of ridge. smearing: the factor on step times after a fit under `log`, whose form has
    `grown` by so many operations. None under other losses.
    """

    program: Program
    start: Program
    strength: float | None = None
    smearing: float | None = None
    grown: int = 0


def slopes_by_differences(residuals: Residuals, at: np.ndarray) -> np.ndarray:
    """float64[residuals, constants]: forward differences of the residuals at these constants."""
    base = residuals(at)
    slopes = np.empty((base.size, at.size))
    for j, value in enumerate(at):
        step = 1e-6 * max(abs(value), SMALL)
        moved = at.copy()
        moved[j] += step
        slopes[:, j] = (residuals(moved) - base) / step
    return slopes


def solved_within(
    residuals: Residuals, start: np.ndarray, low: np.ndarray, high: np.ndarray, **options: Any
) -> np.ndarray:
    """float64[constants]: the point of the least losses of the residuals within the bounds; `options` as SciPy's."""
    result = scipy.optimize.least_squares(residuals, start, bounds=(low, high), x_scale="jac", **options)
    # Iterates stay strictly inside the bounds that they tend to: put them on the bounds.
    ends: np.ndarray = np.where(result.active_mask < 0, low, np.where(result.active_mask > 0, high, result.x))
    return ends


def check_recorded(code: Code, raw: np.ndarray) -> None:
    """Raise InputError if `code` reads whole prompt lengths and these batches (float64[rows, RAW]) lack them."""
    if "prompt_pairs" in code.uses and np.isnan(raw[:, PROMPT_PAIRS]).any():
        raise InputError(
            "cannot predict steps: b.prompt_pairs needs the whole lengths of prompts, which step tables lack. Use load "
            "stages, without --steps, or a program that does not read it."
        )


def step_positions(program: Program) -> tuple[int, ...]:
    """The positions in theta of the constants of step_time."""
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
    however many steps it has: its steps err together, and say no more than one step about differences between
    deployments. Slopes are forward differences of `Bound.steps_us`; a constant that only moves a threshold has slope 0
    and stays. The losses:

    relative  the Huber loss of relative errors, as in a fit on stages.
    ridge     squares of relative errors, and of the constants in units of their effect times `strength` (None: the one
              of STRENGTHS with the least errors on blocks of time that are left out of every run in turn).
    log       squares of log(predicted / observed). Such a fit predicts the median, so the mean of observed / predicted
              then multiplies the times (smearing; Duan 1983, JASA 78).
    quantile  the pinball loss of relative errors: the `quantile` of the times of like steps.

    Constants that the runs leave open stay near their start values, by the prior of a fit on stages (`fitted_before`:
    see `problem_of`); ridge has its penalty instead. Raises InputError if ridge has too few steps to choose a strength.
    """
    steps = _steps(program, runs, held)
    if loss == "ridge":
        strength = strength if strength is not None else _strength(program, runs, held)
        return StepFit(steps.fitted(_ridge(steps, strength)), program, strength=strength)
    if loss == "log":
        x = _log(steps, fitted_before)
        smearing = float(np.average(np.exp(-steps.logs(x)), weights=steps.weights))
        fitted, start = smeared(steps.fitted(x), smearing), smeared(program, 1.0)
        return StepFit(fitted, start, smearing=smearing, grown=operations(fitted) - operations(program))
    x = _relative(steps, fitted_before)
    if loss == "quantile":
        x = _quantile(replace(steps, start=x), steps.start, quantile, fitted_before)
    return StepFit(steps.fitted(x), program)


def share_within(program: Program, runs: Sequence[StepRun]) -> float | None:
    """The share of the steps that take at most the predicted time; None without steps."""
    code = assemble(program)
    below = [r.observed_us <= bind(code, program.theta, r.facts).steps_us(r.raw) for r in runs]
    return float(np.concatenate(below).mean()) if sum(map(len, below)) else None


def smeared(program: Program, factor: float) -> Program:
    """The program with its step times multiplied by `factor`, as a constant around every return of step_time.

    A program that has such a constant already keeps its form.
    """
    (function,) = (f for f in program.functions if f.name == "step_time")
    name = _smearing_of(function)
    constants = function.constants
    if name is None:
        taken = {c.name for c in constants} | {s.name for s in function.body if isinstance(s, Let)}
        names = (SMEARING, *(f"{SMEARING}_{i}" for i in range(2, len(taken) + 3)))
        name = next(n for n in names if n not in taken)
        constants = (*constants, Constant(name, 1.0, read("one"), SMEARING_BOUNDS))
        factor_of_all = Const(name)
        function = with_returns(function, lambda value: Op("*", factor_of_all, value))
    low, high = SMEARING_BOUNDS

    def scaled(c: Constant) -> Constant:
        return replace(c, value=float(f"{min(max(c.value * factor, low), high):.6g}")) if c.name == name else c

    function = replace(function, constants=tuple(map(scaled, constants)))
    return replace(program, functions=tuple(function if f.name == "step_time" else f for f in program.functions))


def _smearing_of(function: Function) -> str | None:
    """The name of the constant that multiplies every return of a smeared function, None for any other function."""
    names: set[str] = set()

    def note(value: Expr) -> Expr:
        first = value.left if isinstance(value, Op) and value.op == "*" else None
        names.add(first.name if isinstance(first, Const) else "")
        return value

    with_returns(function, note)
    name = names.pop() if len(names) == 1 else ""
    return name if name.startswith(SMEARING) else None


@dataclass(frozen=True)
class _Steps:
    """The steps of a fit. free: positions in theta of the constants that may move; start, low, high: float64[free].

    weights: float64[steps], one over the number of steps of the run.
    """

    program: Program
    code: Code
    free: np.ndarray
    start: np.ndarray
    low: np.ndarray
    high: np.ndarray
    runs: Sequence[StepRun]
    weights: np.ndarray

    def theta(self, x: np.ndarray) -> tuple[float, ...]:
        """All constants, with the free ones at `x`."""
        theta = np.array(self.program.theta, dtype=float)
        theta[self.free] = x
        return tuple(theta)

    def fitted(self, x: np.ndarray) -> Program:
        """The program with the free constants at `x`, rounded."""
        return self.program.with_theta(self.theta(rounded(x, self.low, self.high)))

    def ratios(self, x: np.ndarray) -> np.ndarray:
        """float64[steps]: predicted over observed times."""
        theta = self.theta(x)
        return np.concatenate([bind(self.code, theta, r.facts).steps_us(r.raw) / r.observed_us for r in self.runs])

    def errors(self, x: np.ndarray) -> np.ndarray:
        """float64[steps]: relative errors of the predicted times."""
        errors = np.nan_to_num(self.ratios(x) - 1.0, nan=WORST, posinf=WORST, neginf=-WORST)
        clipped: np.ndarray = np.clip(errors, -WORST, WORST)
        return clipped

    def logs(self, x: np.ndarray) -> np.ndarray:
        """float64[steps]: log(predicted / observed)."""
        ratios = self.ratios(x)
        clipped: np.ndarray = np.log(np.clip(np.where(ratios > 0.0, ratios, 0.0), 1.0 / WORST, WORST))
        return clipped

    def solved(self, residuals: Residuals, loss: str | Residuals = "linear") -> np.ndarray:
        """float64[free]: the point of the least losses of the residuals, from the start."""
        if not self.free.size:
            return self.start
        return solved_within(residuals, self.start, self.low, self.high, loss=loss, max_nfev=EVALUATIONS)


def _steps(program: Program, runs: Sequence[StepRun], held: Sequence[int]) -> _Steps:
    code = assemble(program)
    for run in runs:
        check_recorded(code, run.raw)
    low, high = limits(program)
    free = np.array([j for j in step_positions(program) if j not in held and high[j] > low[j]], dtype=int)
    low, high = low[free], high[free]
    start = np.clip(np.array(program.theta, dtype=float)[free], low, high)
    weights = [np.full(len(r.observed_us), 1.0 / len(r.observed_us)) for r in runs]
    return _Steps(program, code, free, start, low, high, tuple(runs), np.concatenate(weights))


def _relative(steps: _Steps, fitted_before: bool) -> np.ndarray:
    """float64[free]: the constants under the Huber loss of relative errors."""
    start, rows = steps.start, np.arange(len(steps.weights))
    pull = _prior(steps.errors, start, steps.weights, fitted_before)

    def loss(z: np.ndarray) -> np.ndarray:
        """rho(z) of squared residuals z, rho' and rho'', as least_squares expects; squares for those of the prior."""
        rho = np.stack([z, np.ones_like(z), np.zeros_like(z)])
        size = np.sqrt(z[rows])
        rho[0, rows] = steps.weights * huber(size)
        rho[1, rows] = steps.weights * huber_weights(size)  # rho'' stays 0: iteratively reweighted least squares
        return rho

    return steps.solved(lambda x: np.concatenate([steps.errors(x), pull * (x - start)]), loss)


def _ridge(steps: _Steps, strength: float) -> np.ndarray:
    """float64[free]: the constants under squares of relative errors and the penalty of ridge."""
    start, root = steps.start, np.sqrt(steps.weights)
    effect = _effects(steps.errors, start, steps.weights)
    # A constant that no step shows has no effect to be penalised by: it stays where it starts.
    pull, origin = np.where(effect > 0, np.sqrt(strength) * effect, MODEL_ERROR), np.where(effect > 0, 0.0, start)
    return steps.solved(lambda x: np.concatenate([root * steps.errors(x), pull * (x - origin)]))


def _strength(program: Program, runs: Sequence[StepRun], held: Sequence[int]) -> float:
    """The strength of the penalty of ridge with the least squared errors on blocks of time that were left out."""
    if not any(len(run.observed_us) >= FOLDS for run in runs):
        raise InputError(f"cannot choose the strength of loss ridge: no run has {FOLDS} steps. Use another loss.")
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

    Every round minimises parabolas that touch the loss of each step at its present error and lie above it, so the loss
    falls from round to round (Hunter and Lange 2000, JCGS 9).
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


def _effects(residuals: Residuals, start: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """float64[free]: the root of the weighted squares of the changes by a unit of each constant."""
    effect: np.ndarray = np.sqrt((weights[:, None] * np.square(slopes_by_differences(residuals, start))).sum(axis=0))
    return effect


def _prior(residuals: Residuals, start: np.ndarray, weights: np.ndarray, fitted_before: bool) -> np.ndarray:
    """float64[free]: the weight of a unit away from the start, as in `Problem.prior`."""
    effect = _effects(residuals, start, weights)
    pull: np.ndarray = PRIOR * effect
    if fitted_before:
        # the change of each constant that makes a percent of every step
        percent = np.divide(0.01 * np.sqrt(weights.sum()), effect, out=np.full(start.size, SMALL), where=effect > 0)
        pull = np.maximum(pull, believed_weight(start, np.maximum(np.abs(start), percent)))
    return np.where(effect > 0, pull, MODEL_ERROR)
