"""Replay corrections: a full replay shows, as a ratio per stage and latency, what the mean field leaves out, and the
fit repeats with the mean field scaled by it for as long as the replay's loss improves."""

from __future__ import annotations

import math

import numpy as np

from evaluator.fit.gauss_newton import NO_EFFECT
from evaluator.fit.methods import Method
from evaluator.fit.problem import Problem
from evaluator.fit.replayed import irregularity, refined
from evaluator.fit.solvers import not_smooth
from simulator.clock.run import HostileStep

CORRECTIONS = 3  # replays of all experiments, at most
NEGLIGIBLE = 1e-6  # relative error, of all stages together, below which a constant is left out
GAIN = 0.01  # share of the loss below which a correction gains nothing
# How irregular loads have to be (replayed.irregularity) for a search to fit them by replays alone, which takes it ten
# times as long. `evolve fit` always does.
IRREGULAR = 0.1


class Hopeless(Exception):
    """The mean field's joint error shows that a program is not worth a replay."""

    def __init__(self, joint: float, most: float) -> None:
        super().__init__(f"{joint:.3g} % joint error by the mean field: above {most:.3g} % it is not replayed")


def corrected(
    problem: Problem,
    method: Method,
    corrections: int,
    allow_hostile: bool,
    most: float = math.inf,
    irregular: float = IRREGULAR,
) -> tuple[np.ndarray, float, np.ndarray]:
    """(phi, the replay's loss, ratio of replay to mean field) at the best of at most `corrections` replays, followed by
    Gauss-Newton on replays if loads are more than `irregular`.

    Raises Hopeless if the mean field's joint error exceeds `most` percent before any replay, and HostileStep if a
    replay near the optimum meets a step time outside [1, 10^10] us (unless `allow_hostile`).
    """
    phi, data = problem.start, problem.data
    if not problem.free.size:
        means_ms = problem.replay(phi, allow_hostile)
        return phi, data.loss(means_ms), ratio_of(problem, phi, means_ms)
    best, lowest, best_means_ms = phi, np.inf, data.stages.observed_ms
    first = phi
    ratio, last = data.ratio, np.inf
    scales = problem.scales(phi)
    for i in range(corrections):
        phi = problem.rounded(method(problem, phi, ratio, scales, i == 0))
        if i == 0:
            first = phi
            if most < math.inf and (joint := data.joint(problem.predict(phi) * ratio)) > most:
                raise Hopeless(joint, most)
        # Under this ratio the mean field's loss at the previous phi was the loss of the previous replay.
        if i > 0 and not last - problem.loss(phi, ratio) > GAIN * last:
            break
        try:
            means_ms = problem.replay(phi, allow_hostile)
        except HostileStep:  # at the optimum some step takes no time: stay a little on this side of it
            phi = problem.rounded(0.9 * phi + 0.1 * problem.origin)
            means_ms = problem.replay(phi, allow_hostile)
        last = data.loss(means_ms)
        improved = lowest - last
        if last < lowest:
            best, lowest, best_means_ms = phi, last, means_ms
        if not improved > GAIN * last:
            break
        ratio = ratio_of(problem, phi, means_ms)
    if irregularity(problem, ratio_of(problem, best, best_means_ms)) > irregular:
        # Where it is by chance whether two requests meet, ratios depend on the constants, and corrections lead astray.
        traced = any(data.cells)
        near = refined(problem, best if traced else first, scales, allow_hostile)
        means_ms = problem.replay(near, allow_hostile)
        if traced or data.loss(means_ms) < lowest:
            best, lowest, best_means_ms = near, data.loss(means_ms), means_ms
    best, lowest = without_idle(problem, best, lowest, allow_hostile)
    return best, lowest, ratio_of(problem, best, best_means_ms)


def ratio_of(problem: Problem, phi: np.ndarray, means_ms: np.ndarray) -> np.ndarray:
    """A replay's stage means over the mean field's at `phi`, float64[stages, 3]; 1 where either has none."""
    with np.errstate(invalid="ignore", divide="ignore"):
        ratio = means_ms / problem.predict(phi)
    return np.where(np.isfinite(ratio) & (ratio > 0), ratio, 1.0)


def without_idle(problem: Problem, phi: np.ndarray, loss: float, allow_hostile: bool) -> tuple[np.ndarray, float]:
    """(phi, the replay's loss) with constants that change nothing in these runs at 0, if the replays agree.

    Either the constant belongs to a term or a branch that these runs never reach, so that nothing was learned about its
    value, or its value is too small to matter. Constants from an earlier fit to other runs keep their values.
    """
    if problem.fitted_before:
        return phi, loss
    size, effect = problem.scales(phi)
    smooth = ~np.isin(problem.position, not_smooth(problem.program))
    unused = ((effect * size < NO_EFFECT) | (effect * phi < NEGLIGIBLE)) & smooth & ~problem.trusted
    idle = unused & (problem.low == 0.0) & (phi > 0.0) & (problem.high > 0.0)
    if not idle.any():
        return phi, loss
    plain = np.where(idle, 0.0, phi)
    try:
        plain_loss = problem.data.loss(problem.replay(plain, allow_hostile))
    except HostileStep:
        return phi, loss
    return (plain, plain_loss) if plain_loss <= loss * (1.0 + NEGLIGIBLE) else (phi, loss)
