"""Constants by Bayesian optimisation: a Gaussian process over the E2E error of full replays.

It calibrates all constants at once from replays alone, as black boxes are calibrated (Jones, Schonlau and Welch 1998,
J. Global Optimization 13).
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
import scipy

from evaluator.fit.loss import FitSet
from evaluator.fit.problem import Problem, problem_of
from simulator.clock.run import HostileStep
from simulator.common.errors import InputError
from simulator.common.streams import stream
from simulator.language.ir import Program

DESIGN = 20  # points of the first design, a Latin hypercube
REACH = 3.0  # half-width of the box, as a factor on each constant's size
CANDIDATES = 2000  # points of the whole box whose expected improvement is compared
NEARBY = 500  # more such points about the best point
NEAR = 0.05  # standard deviation of these, as a share of the box
LENGTHS = (0.05, 20.0)  # bounds of the process's lengths, in widths of the box
NOISE = (1e-8, 1e-1)  # bounds of its noise, as a share of the variance: replays jump where batches change
LEAST_ERROR = 1e-6  # below which errors count as equal

# (points float64[n, d] of [0, 1]^d, values float64[n]) -> a function of points: (mean, deviation) of the values there
Surrogate = Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]


def calibrate(program: Program, data: FitSet, evaluations: int = 80, seed: int = 0) -> Program:
    """`program` with the constants of the lowest error among so many points, its own included; each replays all runs.

    The error is the mean of |relative error| over the stage means of E2E. The points are a Latin hypercube in a box
    around the constants (`LogBox`), then one after the other the point of the largest expected improvement of the
    logarithm of the error. A point with a step time outside [1, 10^10] us, or without a completed request in a stage,
    counts as the worst seen. Deterministic for a seed. Raises InputError without scikit-learn, or if no stage has an
    observed E2E, and HostileStep if every point has a step time outside.
    """
    problem = problem_of(program, data)
    if np.isnan(data.stages.observed_ms[:, 0]).all():
        raise InputError("cannot calibrate by replays: no load stage has an observed E2E. Add measurements.")
    box = LogBox.around(problem)
    if not box.which.size:
        return program
    rng = stream(seed, box.which.size)
    points, values = [box.start], [_log_error(problem, problem.start)]
    best, lowest = problem.start, values[0]
    design = scipy.stats.qmc.LatinHypercube(box.which.size, rng=rng).random(DESIGN)
    for i in range(evaluations - 1):
        x = design[i] if i < DESIGN else _next(np.array(points), np.array(values), rng, seed)
        phi = problem.rounded(box.phi(x))
        value = _log_error(problem, phi)
        if value < lowest or math.isnan(lowest):
            best, lowest = phi, value
        points.append(x)
        values.append(value)
    if math.isnan(lowest):
        problem.replay(best, False)  # raises HostileStep, if that is why
    return program.with_theta(tuple(best))


@dataclass(frozen=True)
class LogBox:
    """The constants at `which` as points of [0, 1]^n, on a logarithmic scale from `low` to `high`; `base` has the
    others."""

    base: np.ndarray
    which: np.ndarray
    low: np.ndarray
    high: np.ndarray

    @classmethod
    def around(cls, problem: Problem) -> LogBox:
        """From a third to three times the size of each free constant (`Problem.scales`), within its bounds."""
        size = problem.scales(problem.start)[0]
        sign = np.where(problem.start < 0.0, -1.0, 1.0)
        ends = [np.clip(sign * size * factor, problem.low, problem.high) for factor in (1.0 / REACH, REACH)]
        free = np.isin(np.arange(size.size), problem.free)
        which = np.flatnonzero(free & (ends[0] != ends[1]) & (ends[0] * ends[1] > 0.0))
        return cls(problem.start, which, ends[0][which], ends[1][which])

    @property
    def start(self) -> np.ndarray:
        """The point nearest to `base`."""
        share = np.log(np.maximum(self.base[self.which] / self.low, 1e-300)) / np.log(self.high / self.low)
        point: np.ndarray = np.clip(share, 0.0, 1.0)
        return point

    def phi(self, x: np.ndarray) -> np.ndarray:
        """All constants at the point `x`."""
        phi: np.ndarray = self.base.copy()
        phi[self.which] = self.low * np.power(self.high / self.low, x)
        return phi


def _log_error(problem: Problem, phi: np.ndarray) -> float:
    """The logarithm of the error at these constants, NaN if it cannot be computed."""
    observed_ms = problem.data.stages.observed_ms[:, 0]
    known = ~np.isnan(observed_ms)
    with suppress(HostileStep):
        error = float(np.abs(problem.replay(phi, False)[known, 0] / observed_ms[known] - 1.0).mean())
        if math.isfinite(error):
            return math.log(max(error, LEAST_ERROR))
    return math.nan


def _next(points: np.ndarray, values: np.ndarray, rng: np.random.Generator, seed: int) -> np.ndarray:
    """float64[d]: the candidate with the largest expected improvement on the lowest value."""
    d = points.shape[1]
    known = values[~np.isnan(values)]
    if not known.size:
        return np.asarray(rng.random(d))
    values = np.where(np.isnan(values), known.max(), values)
    best = int(np.argmin(values))
    near = np.clip(points[best] + NEAR * rng.standard_normal((NEARBY, d)), 0.0, 1.0)
    candidates = np.vstack([rng.random((CANDIDATES, d)), near])
    mean, deviation = _surrogate(points, values, seed)(candidates)
    gain = values[best] - mean
    z = gain / np.maximum(deviation, 1e-12)
    improvement = gain * scipy.stats.norm.cdf(z) + deviation * scipy.stats.norm.pdf(z)
    chosen: np.ndarray = candidates[int(np.argmax(improvement))]
    return chosen


def _surrogate(points: np.ndarray, values: np.ndarray, seed: int) -> Surrogate:
    """A Gaussian process through the values, with a Matern kernel of a length for each constant."""
    try:
        from sklearn.exceptions import ConvergenceWarning  # here, because a user need not have it
        from sklearn.gaussian_process import GaussianProcessRegressor
        from sklearn.gaussian_process.kernels import ConstantKernel, Matern, WhiteKernel
    except ImportError:
        raise InputError(
            "cannot calibrate by a Gaussian process: scikit-learn is missing. pip install 'evolve-latency[trees]'."
        ) from None
    kernel = ConstantKernel(1.0) * Matern(np.ones(points.shape[1]), LENGTHS, nu=2.5) + WhiteKernel(1e-4, NOISE)
    process = GaussianProcessRegressor(kernel, normalize_y=True, random_state=seed)
    with warnings.catch_warnings():  # a length at its bound is a constant that hardly matters
        warnings.simplefilter("ignore", ConvergenceWarning)
        process.fit(points, values)

    def at(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        mean, deviation = process.predict(x, return_std=True)
        return np.asarray(mean), np.asarray(deviation)

    return at
