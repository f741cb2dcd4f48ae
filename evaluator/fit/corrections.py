"""What the mean field leaves out, put back: a full replay shows it as a ratio for every stage and latency, and the fit
is repeated against the scaled figures as long as the replay's errors improve."""

from __future__ import annotations

import numpy as np

from evaluator.fit.gauss_newton import NOTHING
from evaluator.fit.outer import rough
from evaluator.fit.problem import Problem
from evaluator.fit.routes import Route
from simulator.clock.run import HostileStep

CORRECTIONS = 3  # replays of all experiments, at most
GAIN = 0.01  # share of the loss below which nothing more is gained


def corrected(
    problem: Problem, route: Route, corrections: int, allow_hostile: bool
) -> tuple[np.ndarray, float, np.ndarray]:
    """(phi, the replay's loss, ratio of replay to mean field) at the best of at most `corrections` replays.

    Raises HostileStep if a replay near the optimum meets a step time outside [1, 10^10] us (unless `allow_hostile`).
    """
    phi, data = problem.start, problem.data
    if not problem.free.size:
        means = problem.replay(phi, allow_hostile)
        return phi, data.loss(means), ratio_of(problem, phi, means)
    best, lowest, means_there = phi, np.inf, data.stages.observed_ms
    ratio, last = data.ratio, np.inf
    scales = problem.scales(phi)
    for i in range(corrections):
        phi = problem.rounded(route(problem, phi, ratio, scales, i == 0))
        # under the ratio of the last replay the mean field's loss was that replay's
        if i > 0 and not last - problem.loss(phi, ratio) > GAIN * last:
            break
        try:
            means = problem.replay(phi, allow_hostile)
        except HostileStep:  # the optimum lies where some step takes no time: stay a little on this side of it
            phi = problem.rounded(0.9 * phi + 0.1 * problem.origin)
            means = problem.replay(phi, allow_hostile)
        last = data.loss(means)
        improved = lowest - last
        if last < lowest:
            best, lowest, means_there = phi, last, means
        if not improved > GAIN * last:
            break
        ratio = ratio_of(problem, phi, means)
    best, lowest = _without_idle(problem, best, lowest, allow_hostile)
    return best, lowest, ratio_of(problem, best, means_there)


def ratio_of(problem: Problem, phi: np.ndarray, means_ms: np.ndarray) -> np.ndarray:
    """What a replay says over what the mean field says, float64[stages, 3]; 1 where either says nothing."""
    with np.errstate(invalid="ignore", divide="ignore"):
        ratio = means_ms / problem.predict(phi)
    return np.where(np.isfinite(ratio) & (ratio > 0), ratio, 1.0)


def _without_idle(problem: Problem, phi: np.ndarray, loss: float, allow_hostile: bool) -> tuple[np.ndarray, float]:
    """Constants that change nothing here, of a term or a branch that these runs never show, go to 0 where the replays
    agree: what was never seen is not part of the law, and a value it came with is not learned from these runs. But what
    was fitted before, on others, stays."""
    if problem.known:
        return phi, loss
    size, effect = problem.scales(phi)
    smooth = ~np.isin(problem.position, rough(problem.program))
    unused = (effect * size < NOTHING) & smooth & ~problem.sure
    idle = unused & (problem.low == 0.0) & (phi > 0.0) & (problem.high > 0.0)
    if not idle.any():
        return phi, loss
    plain = np.where(idle, 0.0, phi)
    try:
        found = problem.data.loss(problem.replay(plain, allow_hostile))
    except HostileStep:
        return phi, loss
    return (plain, found) if found <= loss else (phi, loss)
