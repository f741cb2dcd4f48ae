"""Uncertainty of fitted constants: the standard error of each, and the share of it that the data determine."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from evaluator.fit.loss import MODEL_ERROR, FitSet, huber_weights
from evaluator.fit.problem import Problem, Scales, problem_of, with_slopes
from evaluator.fit.replayed import clusters_of, idle_of, independent, residuals, slopes_near
from simulator.language.ir import Program

LEAST_CLUSTERS = 5  # of a jackknife, at least; fewer experiments are split into parts
# Least share of a constant's information from the data. Two constants with the same effect get half each.
IDENTIFIED = 0.9
FURTHER = 3.0  # slopes for standard errors go so many times as far as in a search, because noise in them shrinks errors
_LEAST_LEFT = 0.1  # share of a residual that other clusters must leave open for a jackknife to count it
_NEAR = 1e-6  # sizes of a constant within which it counts as at a bound
_CORRELATED = 0.1  # smallest correlation that is kept


@dataclass(frozen=True, slots=True)
class Certainty:
    """A constant of `method` after a fit; `group` owns it, None if all experiments share it.

    standard_error: in the unit of the constant; inf if no residual depends on it; NaN if it is held, or at a bound
    while residuals depend on it by the mean field (with recorded requests they always count as dependent), or if
    observed delays decide it (delays.py). bound:
    `low`, `high` or None. data_share: the share in [0, 1] of its information from the data, not the prior. identified:
    data_share above IDENTIFIED, at no bound, and larger than its standard error. held: not searched. correlated: the
    correlations of its error with those of other constants, by `method.name`.
    """

    method: str
    name: str
    value: float
    standard_error: float
    bound: str | None
    data_share: float
    identified: bool
    held: bool = False
    group: int | None = None
    correlated: Mapping[str, float] = field(default_factory=dict)


def uncertainty(program: Program, data: FitSet) -> tuple[Certainty, ...]:
    """The uncertainty of every constant of a program fitted on `data`, in the order of `program.theta`.

    One replay of the experiments gives the residuals; the mean field gives their slopes J, weighted as in the fit. With
    the weights W of the prior the information is H = J'J + W^2, and data_share is 1 - (W^2 inv(H))_jj. Constants at a
    bound count as known. The residual variance divides by the number of independent observations (at most two of E2E,
    TTFT and ITL of a stage) less the effective degrees of freedom (the sum of data_share), and includes one residual of
    MODEL_ERROR, because a fit may meet few stages by chance.

    The standard error is the larger of this classical one and a jackknife over clusters, whose residuals may correlate
    (CR3: Bell and McCaffrey 2002, Survey Methodology 28); it misses effects that a cluster alone decides. Clusters are
    the experiments; with fewer than LEAST_CLUSTERS, their windows or load stages; with fewer still, the cells of
    traces. Ignored: that the form was chosen on the same data, that bounds truncate the distribution, and curvature.
    """
    return certainties(problem_of(program, data), np.array(program.theta, dtype=float))


def certainties(problem: Problem, phi: np.ndarray) -> tuple[Certainty, ...]:
    """The uncertainty of every entry of phi; see `uncertainty`."""
    scales = problem.scales(phi)
    names = [(f.name, c.name) for f in problem.program.functions for c in f.constants]
    held, near = np.isin(problem.position, problem.held), _NEAR * scales[0]
    delayed = np.isin(np.arange(phi.size), problem.delayed)
    searched = ~held & ~delayed
    low, high = searched & (phi <= problem.low + near), searched & (phi >= problem.high - near)
    at_bound = (low | high)[problem.free]
    inside, stuck = problem.free[~at_bound], problem.free[at_bound]
    errors, data_share = np.full(phi.size, np.nan), np.zeros(phi.size)
    correlation = np.zeros((phi.size, phi.size))
    if inside.size:
        errors[inside], data_share[inside], correlation[np.ix_(inside, inside)] = _errors(problem, phi, scales, inside)
    if stuck.size and not any(problem.data.cells):
        _, slopes_ms = with_slopes(problem.machine, phi)
        errors[stuck[~slopes_ms[stuck].any(axis=(1, 2))]] = np.inf
    data_share[delayed] = 1.0
    owners = list(zip(problem.position, problem.group_of, strict=True))
    rows = []
    for j, (position, group) in enumerate(owners):
        bound = "low" if low[j] else "high" if high[j] else None
        identified = bool(delayed[j]) or (bound is None and data_share[j] > IDENTIFIED and errors[j] < abs(phi[j]))
        correlated = {
            ".".join(names[other]): round(float(correlation[j, i]), 3)
            for i, (other, of) in enumerate(owners)
            if i != j and of in (group, None) and abs(correlation[j, i]) >= _CORRELATED
        }
        method, name = names[position]
        value, error, share = float(phi[j]), float(errors[j]), float(data_share[j])
        row = Certainty(method, name, value, error, bound, share, bool(identified), bool(held[j]), group, correlated)
        rows.append(row)
    return tuple(rows)


def effective(constants: Sequence[Certainty]) -> float:
    """The effective degrees of freedom: the number of constants that the data determine."""
    return math.fsum(c.data_share for c in constants)


def residual_variance(r: np.ndarray, w: np.ndarray, freedom: float) -> float:
    """The variance of the residuals `r` and one of MODEL_ERROR, under the weights `w`, with `freedom` degrees."""
    variance: float = (w @ np.square(r) + MODEL_ERROR**2) / (max(freedom, 0.0) + 1.0)
    return variance


def linearised(
    problem: Problem, phi: np.ndarray, size: np.ndarray, of: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """(slopes, residuals, Huber weights, clusters) of all observed means, the residuals from a replay.

    slopes: float64[rows, of], per size of each constant of phi[of]: those of the mean field, or with the recorded
    requests of a trace those of replays.
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

    Such a matrix is singular but for rounding: plain inversion gives negative variances. So no direction has less
    information than rounding leaves of the most informed one.
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
    """(standard errors, data_share, classical correlations) of the free entries `of`; the others count as known."""
    size = scales[0]
    a, r, w, clusters = linearised(problem, phi, size, of)
    prior = problem.prior(scales)[of] * size[of]
    acts = ~idle_of(a)
    errors, data_share, correlation = np.full(of.size, np.inf), np.zeros(of.size), np.zeros((of.size, of.size))
    if not acts.any():
        return errors, data_share, correlation
    a, prior = a[:, acts], prior[acts]
    inverse = _inverse((a.T * w) @ a + np.diag(np.square(prior) + 1e-18))
    data_share[acts] = np.clip(1.0 - np.square(prior) * np.diag(inverse), 0.0, 1.0)
    variance = residual_variance(r, w, independent(problem.data) - data_share.sum())
    root, of_prior = np.sqrt(w), np.diag(np.square(prior))
    middle = _left_out(a * root[:, None], r * root, inverse, clusters) + variance * of_prior
    squared = np.maximum(variance * np.diag(inverse), np.diag(inverse @ middle @ inverse))  # standard errors, in sizes
    errors[acts] = np.sqrt(squared) * size[of][acts]
    lengths = np.sqrt(np.diag(inverse))
    correlation[np.ix_(acts, acts)] = inverse / lengths[:, None] / lengths
    return errors, data_share, correlation


def _left_out(a: np.ndarray, r: np.ndarray, inverse: np.ndarray, clusters: np.ndarray) -> np.ndarray:
    """float64[of, of]: the sum over clusters of the squared score of each after a fit of the others; 0 of a single one.

    `a`, `r`: weighted slopes and residuals.
    """
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
