"""What a program's errors say is missing, and what it would not miss, without fitting anything.

Every candidate term is added with coefficient 0; the mean field's derivative in that coefficient, cleared of what
the program's own constants can do, is held against the residuals that are left (orthogonal matching pursuit: Pati,
Rezaiifar and Krishnaprasad 1993, one step). What leaving out a constant would cost follows from the same matrix
(optimal brain surgeon: Hassibi and Stork 1993).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from evaluator.fit.corrections import ratio_of
from evaluator.fit.loss import FitSet, huber_weights
from evaluator.fit.pose import problem_of
from evaluator.fit.problem import KERNEL_WEIGHT
from simulator.language.ir import Const, Constant, Expr, Op, Program

RIDGE = 1e-9  # keeps constants that the data cannot tell apart from being infinitely uncertain


def gains(
    program: Program, method: str, terms: Sequence[Sequence[Expr]], data: FitSet, ratio: np.ndarray
) -> np.ndarray:
    """The share of the squared residuals that each term (a product of factors) would take away if added to `method`
    with a coefficient >= 0, the other constants free; float64[terms], 0 where it would not help.
    """
    function = program.function(method)
    assert function is not None
    names = [f"_{i}" for i in range(len(terms))]
    result = function.result
    for name, factors in zip(names, terms, strict=True):
        term: Expr = Const(name)
        for factor in factors:
            term = Op("*", term, factor)
        result = Op("+", result, term)
    new = tuple(Constant(name, 0.0, None) for name in names)
    longer = replace(function, constants=(*function.constants, *new), result=result)
    first = 0
    for f in program.functions:
        if f.name == method:
            break
        first += len(f.constants)
    first += len(function.constants)
    extended = Program(tuple(longer if f.name == method else f for f in program.functions), program.doc)
    slope, left = residual_matrix(extended, data, ratio, frozenset(range(first, first + len(terms))))
    added = slope[:, first : first + len(terms)]
    own = np.delete(slope, np.s_[first : first + len(terms)], axis=1)
    size = np.linalg.norm(own, axis=0)
    basis = np.linalg.qr(own[:, size > 0] / size[size > 0])[0] if (size > 0).any() else np.zeros((len(left), 0))
    left = left - basis @ (basis.T @ left)
    whole = np.linalg.norm(added, axis=0)
    added = added - basis @ (basis.T @ added)
    rest = np.linalg.norm(added, axis=0)
    told = rest > 1e-3 * whole  # the others can say the same
    towards = np.where(told, -(added.T @ left) / np.where(told, rest, 1.0), 0.0)
    return np.maximum(towards, 0.0) ** 2 / max(float(left @ left), 1e-300)


def costs(program: Program, data: FitSet, ratio: np.ndarray) -> np.ndarray:
    """How much the squared residuals would grow, as a share, if each constant were 0 and the others adapted;
    float64[theta], to second order."""
    slope, left = residual_matrix(program, data, ratio)
    size = np.linalg.norm(slope, axis=0)
    scaled = slope / np.where(size > 0, size, 1.0)
    spread = np.diag(np.linalg.inv(scaled.T @ scaled + RIDGE * np.eye(len(size))))
    grown = np.square(np.array(program.theta) * size) / spread
    share: np.ndarray = grown / max(float(left @ left), 1e-300)
    return share


def replay_ratio(program: Program, data: FitSet) -> np.ndarray:
    """Replay over mean field of every load stage at the program's constants, float64[stages, 3]."""
    problem = problem_of(program, data)
    return ratio_of(problem, problem.start, problem.replay(problem.start, True))


def residual_matrix(
    program: Program, data: FitSet, ratio: np.ndarray, new: frozenset[int] = frozenset()
) -> tuple[np.ndarray, np.ndarray]:
    """(derivative of every weighted residual in every constant, the residuals), Huber-weighted, of what is observed;
    then a row for the prior of every factor of a measured kernel, without those at `new`, which are not there yet."""
    problem = problem_of(program, data)
    theta = problem.start
    value = problem.predict(theta)
    slopes = np.zeros((theta.size, *value.shape))
    slopes[problem.free] = problem.jacobian(theta, False, problem.scales(theta)[0], value)
    known = ~np.isnan(data.stages.observed_ms).ravel()
    slope = (slopes * (ratio / data.stages.observed_ms * data.weights)).reshape(theta.size, -1).T[known]
    left = data.residuals(value * ratio).ravel()[known]
    weight = np.sqrt(huber_weights(left))
    measured = [j for j in np.flatnonzero(problem.measured) if j not in new]
    prior = np.zeros((len(measured), theta.size))
    prior[np.arange(len(measured)), measured] = KERNEL_WEIGHT
    pull = prior * problem.tension(theta)
    away = (pull @ (theta - problem.origin)) if measured else np.zeros(0)
    return np.vstack([slope * weight[:, None], pull]), np.concatenate([left * weight, away])
