"""How a method's authors train its step time: on measured times of steps, in stages, under a loss of their choice."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import scipy

from evaluator.fit.problem import limits, rounded
from evaluator.fit.steps import slopes_by_differences, solved_within, step_positions
from research.methods.samples import Sample
from simulator.clock.bind import Deployments, settled
from simulator.common.streams import stream
from simulator.language.ir import Program
from simulator.language.opcodes import Code, assemble
from simulator.serving.splits import TRAIN, VALID

Rows = Literal["all", "pure", "mixed", "few prompt tokens"]
# Strengths of a ridge, as shares of the sum of weights; constants in their own units may be large numbers.
STRENGTHS = {"raw": np.logspace(-12, 2, 8), "standardised": np.logspace(-4, 2, 7)}
LOSSES = {"squares": "squares of relative errors", "huber": "Huber loss of relative errors"}
LOSSES |= {"log": "squares of logarithms"}
BLOCKS = 5  # of consecutive times, for the cross-validation of the strength
FEW = 10.0  # prompt tokens of a step
SPAN = 4.0  # a restart begins at up to this many times, or that fraction of, each start value
EVALUATIONS = 100
TOLERANCE = 1e-6
WORST = 10.0  # a residual where the predicted time is not positive or not finite
TAIL = 0.99  # times above this quantile of their run are set to it, if they are winsorised


@dataclass(frozen=True)
class Phase:
    """A stage of a training: on which times, and the constants that it moves (none: all of step_time).

    meanwhile: the value that another constant has during the stage; it then returns to its start value.
    """

    rows: Rows = "all"
    free: tuple[str, ...] = ()
    meanwhile: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True)
class Recipe:
    """How a step time is trained. loss: of relative errors (squares, or Huber with the corner at 1.5 interquartile
    ranges of the residuals), or of the logarithm.

    ridge: penalise the constants but those in `unpenalised`, in their own units (raw) or in units of their effect on
    the times (standardised); the strength comes from cross-validation, over blocks of consecutive times or over runs
    (`over_runs`). smeared: a constant that takes the mean of exp(residual) after a fit of logarithms (Duan 1983, JASA
    78). restarts: from seeded starts, the best on the validation times is kept. first_step: earlier steps of a run are
    dropped.
    """

    loss: Literal["squares", "huber", "log"] = "squares"
    ridge: Literal["", "raw", "standardised"] = ""
    unpenalised: tuple[str, ...] = ()
    over_runs: bool = False
    smeared: str = ""
    stages: tuple[Phase, ...] = (Phase(),)
    restarts: int = 1
    winsorised: bool = False
    first_step: int = 0
    solver: Literal["trust region", "L-BFGS-B"] = "trust region"

    @property
    def words(self) -> str:
        parts = [LOSSES[self.loss]]
        if self.ridge:
            over = "runs" if self.over_runs else "blocks of steps"
            parts.append(f"ridge, {self.ridge}, strength by leaving {over} out")
        if self.solver != "trust region":
            parts.append(self.solver)
        if self.winsorised:
            parts.append("winsorised at p99")
        if self.first_step:
            parts.append(f"first {self.first_step} steps dropped")
        if self.smeared:
            parts.append("smearing")
        if self.restarts > 1:
            parts.append(f"{self.restarts} starts, chosen on validation steps")
        if len(self.stages) > 1:
            parts.append("stages: " + ", ".join(f"{', '.join(s.free) or 'all'} on {s.rows}" for s in self.stages))
        return "; ".join(parts)


def train(program: Program, samples: Sequence[Sample], recipe: Recipe) -> Program:
    """`program` with the constants of step_time by the recipe: fitted on the train times, chosen on the others."""
    train, valid = (_split(samples, name, recipe) for name in (TRAIN, VALID))
    starts = [program, *(_elsewhere(program, seed) for seed in range(1, recipe.restarts))]
    trained = [_train_once(start, train, recipe) for start in starts]
    if len(trained) == 1:
        return trained[0]
    return min(trained, key=lambda p: mean_error(p, valid))


def mean_error(program: Program, samples: Sequence[Sample]) -> float:
    """The mean absolute relative error of the program on these times, at most WORST each."""
    return float(np.average(np.abs(_residuals(program, samples, "squares")), weights=_weights(samples)))


def _split(samples: Sequence[Sample], split: str, recipe: Recipe) -> list[Sample]:
    """The times of a split that the recipe uses; those of all splits if the split has none."""
    chosen = []
    for sample in samples:
        late = (sample.step < 0) | (sample.step >= recipe.first_step)  # a load stage has no step
        part = sample.where((sample.split == split) & late)
        if recipe.winsorised and split == TRAIN and len(part.observed_us):
            part = replace(part, observed_us=np.minimum(part.observed_us, np.quantile(part.observed_us, TAIL)))
        chosen.append(part)
    return timed(chosen) or list(samples)


def timed(samples: Iterable[Sample]) -> list[Sample]:
    """The samples that have any times."""
    return [sample for sample in samples if len(sample.observed_us)]


def _elsewhere(program: Program, seed: int) -> Program:
    """The program with the constants of step_time at seeded other values within their bounds."""
    low, high = limits(program)
    theta = np.array(program.theta, dtype=float)
    where = list(step_positions(program))
    factors = SPAN ** stream(seed).uniform(-1.0, 1.0, len(where))
    theta[where] = np.clip(theta[where] * factors, low[where], high[where])
    return program.with_theta(tuple(theta))


def _train_once(program: Program, samples: Sequence[Sample], recipe: Recipe) -> Program:
    for stage in recipe.stages:
        if rows := timed(sample.where(_rows(sample, stage.rows)) for sample in samples):
            program = _stage(program, rows, recipe, stage)
    if recipe.smeared:
        residuals = _residuals(program, samples, "log")
        smearing = float(np.average(np.exp(-residuals), weights=_weights(samples)))
        (j,) = _positions(program, (recipe.smeared,))
        theta = list(program.theta)
        theta[j] += np.log(smearing)
        program = program.with_theta(tuple(theta))
    low, high = limits(program)
    return program.with_theta(tuple(rounded(np.array(program.theta, dtype=float), low, high)))


def _rows(sample: Sample, rows: Rows) -> np.ndarray:
    """bool[times]: which times a stage uses."""
    if rows == "all":
        return np.full(len(sample.observed_us), True)
    if rows == "few prompt tokens":
        return sample.prefill_tokens < FEW
    return sample.pure if rows == "pure" else ~sample.pure


def _stage(program: Program, samples: Sequence[Sample], recipe: Recipe, stage: Phase) -> Program:
    """`program` after a stage of the training on these times."""
    low, high = limits(program)
    before = np.array(program.theta, dtype=float)
    theta = before.copy()
    for name, value in stage.meanwhile:
        theta[_positions(program, (name,))] = value
    named = _positions(program, stage.free) if stage.free else step_positions(program)
    free = np.array([j for j in named if high[j] > low[j]], dtype=int)
    fit = _Fit(assemble(program), theta, free, low, high, recipe)
    penalty = np.zeros(len(free))
    if recipe.ridge:
        penalty = fit.penalty(samples, [j in _positions(program, recipe.unpenalised) for j in free])
    found = fit.solve(samples, penalty)
    before[free] = found[free]
    return program.with_theta(tuple(before))


@dataclass(frozen=True)
class _Fit:
    """Least squares over the constants at `free`; theta has the values of the others."""

    code: Code
    theta: np.ndarray
    free: np.ndarray
    low: np.ndarray
    high: np.ndarray
    recipe: Recipe

    def residuals(self, samples: Sequence[Sample]) -> Callable[[np.ndarray], np.ndarray]:
        """The weighted residuals of these times, float64[times], as a function of the free constants."""
        base, size = _base(self.code, samples), np.sqrt(_weights(samples))

        def at(x: np.ndarray) -> np.ndarray:
            theta = self.theta.copy()
            theta[self.free] = x
            weighted: np.ndarray = size * _residuals_of(self.code, base, theta, samples, self.recipe.loss)
            return weighted

        return at

    def solve(self, samples: Sequence[Sample], penalty: np.ndarray) -> np.ndarray:
        """float64[theta]: the constants of least loss; `penalty`: of the square of each free constant."""
        low, high = self.low[self.free], self.high[self.free]
        start = np.clip(self.theta[self.free], low, high)
        size, residuals = np.sqrt(penalty), self.residuals(samples)

        def value(x: np.ndarray) -> np.ndarray:
            return np.concatenate([residuals(x), size * x])

        if self.recipe.solver == "L-BFGS-B":
            x = _lbfgsb(value, start, low, high)
        else:
            x = _least_squares(value, start, low, high)
            if self.recipe.loss == "huber":
                quartiles = np.quantile(residuals(x), (0.25, 0.75))
                x = _least_squares(value, x, low, high, 1.5 * float(quartiles[1] - quartiles[0]))
        theta = self.theta.copy()
        theta[self.free] = x
        return theta

    def penalty(self, samples: Sequence[Sample], unpenalised: Sequence[bool]) -> np.ndarray:
        """float64[free]: the ridge's penalties, their strength chosen by cross-validation."""
        unit = np.where(unpenalised, 0.0, 1.0)
        if self.recipe.ridge == "standardised":
            start = np.clip(self.theta[self.free], self.low[self.free], self.high[self.free])
            slopes = slopes_by_differences(self.residuals(samples), start)
            unit *= np.square(slopes).sum(axis=0) / _weights(samples).sum()
        total = _weights(samples).sum()
        parts, strengths = folds(samples, self.recipe.over_runs), STRENGTHS[self.recipe.ridge]
        errors = []
        for strength in strengths:
            left_out = 0.0
            for train, held in parts:
                theta = self.solve(train, strength * total * unit)
                left_out += float(np.square(self.residuals(held)(theta[self.free])).sum())
            errors.append(left_out)
        chosen: np.ndarray = strengths[int(np.argmin(errors))] * total * unit
        return chosen


def folds(samples: Sequence[Sample], over_runs: bool) -> list[tuple[list[Sample], list[Sample]]]:
    """(train, held out) times of each fold: runs, or blocks of consecutive times of all runs."""
    if over_runs and len(samples) > 1:
        return [([*samples[:i], *samples[i + 1 :]], [samples[i]]) for i in range(len(samples))]
    counts = [len(sample.observed_us) for sample in samples]
    blocks, before = [], 0
    for n in counts:
        # The times of runs with few of them are dealt out in turn.
        blocks.append(np.arange(n) * BLOCKS // n if n >= BLOCKS else (before + np.arange(n)) % BLOCKS)
        before += n
    parts = []
    for k in range(BLOCKS):
        train = timed(s.where(block != k) for s, block in zip(samples, blocks, strict=True))
        held = timed(s.where(block == k) for s, block in zip(samples, blocks, strict=True))
        if train and held:
            parts.append((train, held))
    return parts


def _least_squares(
    value: Callable[[np.ndarray], np.ndarray], start: np.ndarray, low: np.ndarray, high: np.ndarray, corner: float = 0.0
) -> np.ndarray:
    """The constants of least squares within their bounds; with a `corner`, under the Huber loss that bends there."""
    # An iterative solver takes a tenth of the time, but cannot do with a single constant.
    solver, loss = "lsmr" if len(start) > 1 else "exact", "huber" if corner > 0.0 else "linear"
    ends = {"ftol": TOLERANCE, "xtol": TOLERANCE, "max_nfev": EVALUATIONS}
    return solved_within(value, start, low, high, loss=loss, f_scale=corner or 1.0, tr_solver=solver, **ends)


def _lbfgsb(
    value: Callable[[np.ndarray], np.ndarray], start: np.ndarray, low: np.ndarray, high: np.ndarray
) -> np.ndarray:
    """The constants of least squares by L-BFGS-B, in units in which a constant's effect is 1."""
    effect = np.sqrt(np.square(slopes_by_differences(value, start)).sum(axis=0))
    unit = np.divide(1.0, effect, out=np.ones(len(start)), where=effect > 0)

    def objective(z: np.ndarray) -> tuple[float, np.ndarray]:
        residuals = value(z * unit)
        return 0.5 * float(residuals @ residuals), (residuals @ slopes_by_differences(value, z * unit)) * unit

    bounds = list(zip(low / unit, high / unit, strict=True))
    result = scipy.optimize.minimize(
        objective, start / unit, jac=True, method="L-BFGS-B", bounds=bounds, options={"maxiter": EVALUATIONS}
    )
    found: np.ndarray = np.clip(result.x * unit, low, high)
    return found


def _positions(program: Program, names: Sequence[str]) -> list[int]:
    function = program.function("step_time")
    assert function
    first = step_positions(program)[0] if function.constants else 0
    own = [c.name for c in function.constants]
    return [first + own.index(name) for name in names]


def _weights(samples: Sequence[Sample]) -> np.ndarray:
    return np.concatenate([s.weight for s in samples])


def _residuals(program: Program, samples: Sequence[Sample], loss: str) -> np.ndarray:
    code = assemble(program)
    return _residuals_of(code, _base(code, samples), np.array(program.theta, dtype=float), samples, loss)


def _base(code: Code, samples: Sequence[Sample]) -> np.ndarray:
    """float64[samples, slots]: value vectors of their deployments, the constants not yet in place."""
    return Deployments({str(i): sample.facts for i, sample in enumerate(samples)}).base(code)


def _residuals_of(code: Code, base: np.ndarray, theta: np.ndarray, samples: Sequence[Sample], loss: str) -> np.ndarray:
    """float64[times]: relative errors, or differences of logarithms. `base`: of `_base`."""
    every, parts = settled(code, theta, base.copy()), []
    for i, sample in enumerate(samples):
        ratio = sample.predicted_us(every.at(i)) / sample.observed_us
        with np.errstate(invalid="ignore", divide="ignore"):
            parts.append(np.log(np.maximum(ratio, 0.0)) if loss == "log" else ratio - 1.0)
    errors = np.nan_to_num(np.concatenate(parts), nan=WORST, posinf=WORST, neginf=-WORST)
    clipped: np.ndarray = np.clip(errors, -WORST, WORST)
    return clipped
