"""The last percent: CMA-ES on the replay itself, around constants that are fitted already. For finalists: seconds."""

from __future__ import annotations

import numpy as np

from evaluator.fit.corrections import ratio_of
from evaluator.fit.fit import Fit
from evaluator.fit.loss import MODEL_ERROR, FitSet
from evaluator.fit.pose import problem_of
from evaluator.fit.problem import Problem
from evaluator.fit.search import WORST, minimise
from evaluator.fit.uncertainty import linearised
from simulator.clock.run import HostileStep
from simulator.language.ir import Program

REGION = 0.2  # of a constant's size, to either side: the trust region
REACH = 3.0  # of the box, in standard errors to either side
SIGMA = 0.05  # of the box: the first step
GAIN = 0.01  # share of the loss that a first search must gain for a second one, with twice the population
POLISH_SEED = 30


def polish(
    program: Program,
    data: FitSet,
    evaluations: int = 300,
    seed: int = POLISH_SEED,
    *,
    allow_hostile: bool = False,
) -> Fit:
    """`program` with constants near its own under which the replays of `data` and the prior of measured kernels lose
    least; never worse than its own.

    `evaluations`: replays of all experiments, for each of at most two searches. Raises HostileStep if none of them, the
    program's own constants included, keeps every step within [1, 10^10] us (unless `allow_hostile`).
    """
    problem = problem_of(program, data)
    own = np.array(program.theta, dtype=float)
    free = problem.free
    if not free.size:
        means = problem.replay(own, allow_hostile)
        return Fit(program, data.loss(means), ratio_of(problem, own, means))
    start, size = problem.start[free], problem.scales(problem.start)[0]
    low = np.maximum(start - REGION * size[free], problem.low[free])
    high = np.minimum(start + REGION * size[free], problem.high[free])
    axes = _axes(problem, size, free)
    best, lowest, refused = own, WORST, None
    count = data.stages.observed_ms.size  # the loss is a mean over as many

    def loss(phi: np.ndarray) -> float:
        nonlocal best, lowest, refused
        try:
            found = data.loss(problem.replay(phi, allow_hostile)) + problem.disbelief(phi) / count
        except HostileStep as e:
            refused = e
            return WORST
        if found < lowest:
            best, lowest = phi, found
        return found

    def value(x: np.ndarray) -> float:
        phi = problem.start.copy()
        phi[free] = np.clip(start + axes @ (REACH * (2.0 * x - 1.0)), low, high)
        return loss(problem.rounded(phi))

    first = loss(own)
    middle = np.full(free.size, 0.5)
    minimise(value, middle, SIGMA, evaluations, seed)
    if first - lowest > GAIN * first:
        population = 2 * (4 + int(3 * np.log(max(free.size, 2))))
        start = best[free]
        minimise(value, middle, SIGMA, evaluations, seed + 1, population)
    if lowest >= WORST and refused is not None:
        raise refused
    means = problem.replay(best, True)
    return Fit(program.with_theta(tuple(best)), data.loss(means), ratio_of(problem, best, means))


def _axes(problem: Problem, size: np.ndarray, free: np.ndarray) -> np.ndarray:
    """float64[free, free]: the axes along which the data leave the constants about as free as each other, a standard
    error long, and no longer than the trust region. Constants that can stand in for each other move together so."""
    a, r, w = linearised(problem, problem.start, size, free)
    variance = (w @ np.square(r) + MODEL_ERROR**2) / (max(len(w) - free.size, 0) + 1.0)
    information = (a.T * w) @ a / variance + np.eye(free.size) / REGION**2
    root: np.ndarray = size[free][:, None] * np.linalg.cholesky(np.linalg.inv(information))
    return root
