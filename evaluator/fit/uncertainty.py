"""Uncertainty of fitted constants: the standard error of each, and whether the data or the prior determine it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from evaluator.fit.loss import MODEL_ERROR, FitSet, huber_weights
from evaluator.fit.problem import Problem, Scales, problem_of, with_slopes
from evaluator.fit.replayed import clusters_of, idle_of, independent, residuals, slopes_near
from simulator.language.ir import Program

LEAST_CLUSTERS = 5  # experiments whose errors are taken as wholes in a standard error; of fewer, parts of them
# The least share of a constant's information that must come from the data. Of two constants with the same effect each
# gets half.
IDENTIFIED = 0.9
FURTHER = 3.0  # times as far as in a search go the slopes for standard errors, which noise in them would shrink
_LEAST_LEFT = 0.1  # share of a residual that those of other clusters must leave open for a jackknife to count it
_NEAR = 1e-6  # sizes of a constant within which it counts as at a bound
_CORRELATED = 0.1  # smallest correlation that is kept


@dataclass(frozen=True, slots=True)
class Certainty:
    """A constant of `method` after a fit; `group`: whose it is, None if all experiments share it.

    standard_error: in the constant's unit; inf if no residual depends on it, NaN if it is held, or at a bound and
    residuals depend on it, as far as the mean field tells (with recorded requests it is taken as if they did). bound:
    the bound it is at, `low`, `high` or None. determined: the share in [0, 1] of its information that comes from the
    data, not the prior. identified: determined above IDENTIFIED, at no bound, and larger than its standard error. held:
    the fit did not search it. correlated: how its error correlates with those of other constants, by `method.name`:
    what raises one may lower the other.
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
    correlated: Mapping[str, float] = field(default_factory=dict)


def uncertainty(program: Program, data: FitSet) -> tuple[Certainty, ...]:
    """The uncertainty of every constant of a program fitted on `data`, in the order of `program.theta`.

    One replay of the experiments gives the residuals; the mean field gives their slopes J, weighted as in the fit. With
    the prior's weights W the information is H = J'J + W^2, and determined is 1 - (W^2 inv(H))_jj. Constants at a bound
    count as known. The residual variance divides by what the effective degrees of freedom (the sum of determined)
    leave of what was observed independently, at most two of a stage's E2E, TTFT and ITL, and adds one residual of
    MODEL_ERROR, because a fit may meet few stages by chance. The standard error is the larger of this classical one and
    a jackknife of clusters, whose residuals may correlate (CR3: Bell and McCaffrey 2002, Survey Methodology 28): how
    far the constants move without each cluster. What a cluster alone decides, it cannot tell. Clusters are the
    experiments; of fewer than LEAST_CLUSTERS, their windows or load stages; of fewer still, the cells of traces.
    Ignored: that the form was chosen on the same data, that bounds truncate the distribution, and curvature.
    """
    return certainties(problem_of(program, data), np.array(program.theta, dtype=float))


def certainties(problem: Problem, phi: np.ndarray) -> tuple[Certainty, ...]:
    """The uncertainty of every entry of phi; see `uncertainty`."""
    scales = problem.scales(phi)
    size = scales[0]
    names = [(f.name, c.name) for f in problem.program.functions for c in f.constants]
    bounds = [_bound(problem, phi, size, j) for j in range(phi.size)]
    errors, determined = np.full(phi.size, np.nan), np.zeros(phi.size)
    correlation = np.zeros((phi.size, phi.size))
    inside = problem.free[[bounds[j] is None for j in problem.free]]
    if inside.size:
        errors[inside], determined[inside], correlation[np.ix_(inside, inside)] = _errors(problem, phi, scales, inside)
    stuck = np.array([j for j in problem.free if bounds[j] is not None], dtype=int)
    if stuck.size and not any(problem.data.cells):
        _, slopes_ms = with_slopes(problem.machine, phi)
        errors[stuck[~slopes_ms[stuck].any(axis=(1, 2))]] = np.inf
    rows = []
    for j, (position, group) in enumerate(zip(problem.position, problem.group_of, strict=True)):
        method, name = names[position]
        rows.append(
            Certainty(
                method, name, float(phi[j]), float(errors[j]), bounds[j], float(determined[j]),
                identified=bool(bounds[j] is None and determined[j] > IDENTIFIED and errors[j] < abs(phi[j])),
                held=bool(position in problem.held), group=group,
                correlated=_correlated(problem, names, correlation, j),
            )
        )  # fmt: skip
    return tuple(rows)


def _correlated(
    problem: Problem, names: Sequence[tuple[str, str]], correlation: np.ndarray, j: int
) -> dict[str, float]:
    """The correlations of entry j with other constants of its group, or shared by all groups, by `method.name`."""
    groups = (problem.group_of[j], None)
    return {
        ".".join(names[position]): round(float(correlation[j, i]), 3)
        for i, (position, group) in enumerate(zip(problem.position, problem.group_of, strict=True))
        if i != j and group in groups and abs(correlation[j, i]) >= _CORRELATED
    }


def effective(constants: Sequence[Certainty]) -> float:
    """Effective degrees of freedom: how many constants the data determine."""
    return math.fsum(c.determined for c in constants)


def residual_variance(r: np.ndarray, w: np.ndarray, freedom: float) -> float:
    """Variance of the residuals `r` under the weights `w` with so many degrees of freedom, one of MODEL_ERROR added."""
    variance: float = (w @ np.square(r) + MODEL_ERROR**2) / (max(freedom, 0.0) + 1.0)
    return variance


def _bound(problem: Problem, phi: np.ndarray, size: np.ndarray, j: int) -> str | None:
    """The bound, `low` or `high`, that entry j is at; None for a held constant."""
    if problem.position[j] in problem.held:
        return None
    if phi[j] <= problem.low[j] + _NEAR * size[j]:
        return "low"
    return "high" if phi[j] >= problem.high[j] - _NEAR * size[j] else None


def linearised(
    problem: Problem, phi: np.ndarray, size: np.ndarray, of: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """(slopes, residuals, Huber weights, clusters) of everything observed, the residuals from a replay.

    slopes: float64[rows, of], per size of each constant of phi[of], so that all are on one scale: those of the mean
    field, or with the recorded requests of a trace those of replays.
    """
    data = problem.data
    if any(data.cells):
        r = residuals(problem, phi)
        first = slopes_near(problem, phi, r, size, None)
        slopes = slopes_near(problem, phi, r, size, first, FURTHER)
        return slopes[:, np.isin(problem.free, of)], r, huber_weights(r), clusters_of(data, LEAST_CLUSTERS)
    means_ms = problem.replay(phi, True)
    value, slopes_ms = with_slopes(problem.machine, phi)
    with np.errstate(invalid="ignore", divide="ignore"):
        units = np.nan_to_num(means_ms / value / data.stages.observed_ms, nan=0.0, posinf=0.0, neginf=0.0)
        units = units * data.weights
    slopes = slopes_ms[problem.free[np.isin(problem.free, of)]] * units * size[of][:, None, None]
    observed = data.weights > 0
    r = data.residuals(means_ms)[observed]
    return slopes[:, observed].T, r, huber_weights(r), clusters_of(data, LEAST_CLUSTERS)


def _inverse(information: np.ndarray) -> np.ndarray:
    """The inverse of an information matrix, symmetric and positive definite even if constants have the same effect.

    Then the matrix is singular but for rounding, and plain inversion gives negative variances and correlations beyond
    1. Here no direction has less information than rounding leaves of the most informed one.
    """
    root = np.sqrt(np.diag(information))
    values, vectors = np.linalg.eigh(information / root[:, None] / root)
    least = len(values) * np.finfo(float).eps * values[-1]
    scaled = vectors / root[:, None]
    inverse = (scaled / np.maximum(values, least)) @ scaled.T
    symmetric: np.ndarray = (inverse + inverse.T) / 2.0
    return symmetric


def _errors(
    problem: Problem, phi: np.ndarray, scales: Scales, of: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(standard errors, determined, classical correlations) of the free entries `of`, the others taken as known."""
    size = scales[0]
    a, r, w, clusters = linearised(problem, phi, size, of)
    prior = problem.prior(scales)[of] * size[of]
    acts = ~idle_of(a)
    errors, determined, correlation = np.full(of.size, np.inf), np.zeros(of.size), np.zeros((of.size, of.size))
    if not acts.any():
        return errors, determined, correlation
    a, prior = a[:, acts], prior[acts]
    inverse = _inverse((a.T * w) @ a + np.diag(np.square(prior) + 1e-18))
    determined[acts] = np.clip(1.0 - np.square(prior) * np.diag(inverse), 0.0, 1.0)
    variance = residual_variance(r, w, independent(problem.data) - determined.sum())
    root, of_prior = np.sqrt(w), np.diag(np.square(prior))
    middle = _left_out(a * root[:, None], r * root, inverse, clusters) + variance * of_prior
    squared = np.maximum(variance * np.diag(inverse), np.diag(inverse @ middle @ inverse))  # standard errors, in sizes
    errors[acts] = np.sqrt(squared) * size[of][acts]
    lengths = np.sqrt(np.diag(inverse))
    correlation[np.ix_(acts, acts)] = inverse / lengths[:, None] / lengths
    return errors, determined, correlation


def _left_out(a: np.ndarray, r: np.ndarray, inverse: np.ndarray, clusters: np.ndarray) -> np.ndarray:
    """The sum over clusters of the squared scores that each would have if the others alone had been fitted, float64[of,
    of]; `a`, `r`: weighted slopes and residuals. 0 for a single cluster."""
    names = np.unique(clusters)
    total = np.zeros_like(inverse)
    for name in names:
        own, residual = a[clusters == name], r[clusters == name]
        left, directions = np.linalg.eigh(np.eye(len(residual)) - own @ inverse @ own.T)
        told = left > _LEAST_LEFT
        without = directions[:, told] @ ((directions[:, told].T @ residual) / left[told])
        score = own.T @ without
        total += np.outer(score, score)
    scaled: np.ndarray = total * (len(names) - 1) / len(names)
    return scaled
