"""What the measurements say about each constant: how far it may be off, and whether they or the prior decide it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from evaluator.fit.loss import MODEL_ERROR, FitSet, huber_weights
from evaluator.fit.pose import problem_of
from evaluator.fit.problem import Problem, Scales
from simulator.language.ir import Program

LEAST_CLUSTERS = 5  # experiments from which on their residuals may be alike within each
# The share of its information that the data must have. Of two constants that always act alike each gets half.
IDENTIFIED = 0.9
_NEAR = 1e-6  # of a constant's size from a bound: at it
_NOTHING = 1e-9  # relative error that a constant of its present size makes: none


@dataclass(frozen=True, slots=True)
class Certainty:
    """A constant of `method` after a fit; `group` says of which experiments (None: of all).

    standard_error: in the constant's unit; inf where nothing bears on it, NaN where it is held or at a bound. bound:
    the one it is at, `low`, `high` or None. determined: share in [0, 1] of its information that is the data's, not the
    prior's. identified: determined above IDENTIFIED, at no bound, and the standard error smaller than the constant, or
    than what makes a percent of a step if that is more. held: it was not searched.
    """

    method: str
    name: str
    value: float
    standard_error: float
    bound: str | None
    determined: float
    identified: bool
    held: bool = False
    group: int | None = None


def uncertainty(program: Program, data: FitSet) -> tuple[Certainty, ...]:
    """Of every constant of a program that was fitted on `data`, in the order of `program.theta`.

    One replay of the experiments gives the residuals, the mean field their slopes J, weighted as in the fit; with the
    prior's weights W the information is H = J'J + W^2, determined is 1 - (W^2 inv(H))_jj. Constants at a bound count as
    known. The residual variance is over what the effective degrees of freedom (the sum of determined) leave, with one
    more residual of MODEL_ERROR, because few stages may be met by chance. From LEAST_CLUSTERS experiments on the
    standard error is the larger of this classical one and a cluster-robust one (CR1 sandwich, the residuals of an
    experiment may go together: Liang and Zeger 1986), which few experiments understate. Ignored: that the form was
    chosen on the same data, that bounds cut the distribution off, curvature, and, with fewer experiments, that E2E and
    ITL of a stage err together.
    """
    return certainties(problem_of(program, data), np.array(program.theta, dtype=float))


def certainties(problem: Problem, phi: np.ndarray) -> tuple[Certainty, ...]:
    """`uncertainty` of every entry of phi."""
    scales = problem.scales(phi)
    size = scales[0]
    names = [(f.name, c.name) for f in problem.program.functions for c in f.constants]
    bound = [_bound(problem, phi, size, j) for j in range(phi.size)]
    error, determined = np.full(phi.size, np.nan), np.zeros(phi.size)
    of = problem.free[[bound[j] is None for j in problem.free]]
    if of.size:
        error[of], determined[of] = _errors(problem, phi, scales, of)
    held = set(problem.held)
    out = []
    for j, (position, group) in enumerate(zip(problem.position, problem.group_of, strict=True)):
        sure = bound[j] is None and determined[j] > IDENTIFIED and error[j] < size[j]
        method, name = names[position]
        out.append(
            Certainty(
                method, name, float(phi[j]), float(error[j]), bound[j], float(determined[j]), bool(sure),
                bool(position in held), group,
            )
        )  # fmt: skip
    return tuple(out)


def effective(found: Sequence[Certainty]) -> float:
    """Effective degrees of freedom: how many constants' worth the data decide."""
    return math.fsum(c.determined for c in found)


def _bound(problem: Problem, phi: np.ndarray, size: np.ndarray, j: int) -> str | None:
    if problem.position[j] in problem.held:
        return None
    if phi[j] <= problem.low[j] + _NEAR * size[j]:
        return "low"
    return "high" if phi[j] >= problem.high[j] - _NEAR * size[j] else None


def linearised(
    problem: Problem, phi: np.ndarray, size: np.ndarray, of: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(slopes, residuals, Huber weights) of what was observed: float64[rows, of] per size of each constant, so that all
    are of one kind; [rows] of a replay; [rows]."""
    data = problem.data
    means, value = problem.replay(phi, True), problem.predict(phi)
    with np.errstate(invalid="ignore", divide="ignore"):
        units = np.nan_to_num(means / value / data.stages.observed_ms, nan=0.0, posinf=0.0, neginf=0.0) * data.weights
    slopes = problem.jacobian(phi, False, size, value)[np.isin(problem.free, of)] * units * size[of][:, None, None]
    known = data.weights > 0
    r = data.residuals(means)[known]
    return slopes[:, known].T, r, huber_weights(r)


def _errors(problem: Problem, phi: np.ndarray, scales: Scales, of: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(standard errors, determined) of the free entries `of`, the others taken as known."""
    data, size = problem.data, scales[0]
    a, r, w = linearised(problem, phi, size, of)
    prior = problem.prior(scales)[of] * size[of]
    bears = np.linalg.norm(a, axis=0) > _NOTHING
    error, determined = np.full(of.size, np.inf), np.zeros(of.size)
    if not bears.any():
        return error, determined
    a, prior = a[:, bears], prior[bears]
    inverse = np.linalg.inv((a.T * w) @ a + np.diag(np.square(prior) + 1e-18))
    determined[bears] = np.clip(1.0 - np.square(prior) * np.diag(inverse), 0.0, 1.0)
    rest = len(w) - determined.sum()
    variance = (w @ np.square(r) + MODEL_ERROR**2) / (max(rest, 0.0) + 1.0)
    spread = variance * np.diag(inverse)
    clusters = problem.experiment_of[np.nonzero(data.weights > 0)[0]]
    count = len(np.unique(clusters))
    if count >= LEAST_CLUSTERS:
        scores = np.zeros((len(data.experiments), a.shape[1]))
        np.add.at(scores, clusters, a * (w * r)[:, None])
        few = count / (count - 1) * (len(w) - 1) / max(rest, 1.0)
        middle = few * scores.T @ scores + variance * np.diag(np.square(prior))
        spread = np.maximum(spread, np.diag(inverse @ middle @ inverse))
    error[bears] = np.sqrt(spread) * size[of][bears]
    return error, determined
