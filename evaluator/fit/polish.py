"""CMA-ES on the replay itself, around constants that are already fitted: the last percent, for finalists. Seconds."""

from __future__ import annotations

from functools import partial

import numpy as np

from evaluator.fit.corrections import ratio_of, without_idle
from evaluator.fit.fit import Fit
from evaluator.fit.loss import FitSet
from evaluator.fit.problem import Problem, forgetful, problem_of
from evaluator.fit.solvers import WORST, minimise
from evaluator.fit.uncertainty import linearised, residual_variance
from simulator.clock.run import HostileStep
from simulator.language.ir import Program

REGION = 0.2  # half-width of the trust region, in sizes of a constant
REACH = 3.0  # half-width of the box, in standard errors
SIGMA = 0.05  # the first step, as a share of the box
GAIN = 0.01  # share of the loss that the first search must gain to start a second one with twice the population
POLISH_SEED = 30


def polish(program: Program, data: FitSet, evaluations: int = 300) -> Fit:
    """`program` with the constants near its own that minimise the loss of the replays plus the prior of a search's fit;
    never worse than its own by that sum.

    Without the prior, a constant that the data leave open would follow the noise of one draw of arrivals: a time per
    completion moves by milliseconds for nothing. For the same reason a constant that the fit left at 0 stays there.
    `evaluations`: replays of all experiments, for each of at most two searches. Raises HostileStep if no constants
    tried, the program's own included, keep every step within [1, 10^10] us.
    """
    own = np.array(program.theta, dtype=float)
    problem = forgetful(problem_of(program, data, held=np.flatnonzero(own == 0.0).tolist()))
    free = problem.free
    if not free.size:
        means_ms = problem.replay(own, False)
        return Fit(program, data.loss(means_ms), ratio_of(problem, own, means_ms))
    start, scales = problem.start[free], problem.scales(problem.start)
    size, prior = scales[0], problem.prior(scales)
    low = np.maximum(start - REGION * size[free], problem.low[free])
    high = np.minimum(start + REGION * size[free], problem.high[free])
    axes = _axes(problem, size, prior, free)
    best, lowest, refused = own, WORST, None
    count = data.stages.observed_ms.size  # the loss is a mean over this many residuals

    def loss(phi: np.ndarray) -> float:
        nonlocal best, lowest, refused
        try:
            reached = data.loss(problem.replay(phi, False)) + problem.prior_cost(phi, prior) / count
        except HostileStep as e:
            refused = e
            return WORST
        if reached < lowest:
            best, lowest = phi, reached
        return reached

    def value(middle: np.ndarray, x: np.ndarray) -> float:
        """The loss at x, in the unit cube around the constants `middle`."""
        phi = problem.start.copy()
        phi[free] = np.clip(middle + axes @ (REACH * (2.0 * x - 1.0)), low, high)
        return loss(problem.rounded(phi))

    first = loss(own)
    center = np.full(free.size, 0.5)
    minimise(partial(value, start), center, SIGMA, evaluations, POLISH_SEED)
    if first - lowest > GAIN * first:
        population = 2 * (4 + int(3 * np.log(max(free.size, 2))))
        minimise(partial(value, best[free]), center, SIGMA, evaluations, POLISH_SEED + 1, population)
    if lowest >= WORST and refused is not None:
        raise refused
    means_ms = problem.replay(best, True)
    reached = data.loss(means_ms)
    if best is not own:
        best, reached = without_idle(problem, best, reached, False)
    return Fit(program.with_theta(tuple(best)), reached, ratio_of(problem, best, means_ms))


def _axes(problem: Problem, size: np.ndarray, prior: np.ndarray, free: np.ndarray) -> np.ndarray:
    """float64[free, free]: axes one standard error long, but no longer than the trust region.

    Data and prior determine the constants about equally well along all of them, so constants that can replace each
    other move together.
    """
    a, r, w, _ = linearised(problem, problem.start, size, free)
    known = (a.T * w) @ a + np.diag(np.square(prior * size)[free])
    information = known / residual_variance(r, w, len(w) - free.size) + np.eye(free.size) / REGION**2
    root: np.ndarray = size[free][:, None] * np.linalg.cholesky(np.linalg.inv(information))
    return root
