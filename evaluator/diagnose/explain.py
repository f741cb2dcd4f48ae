"""Rank terms to add and constants to drop from a program's residuals, without refitting or replaying it.

The residuals are those of the mean field times the data's own ratio to a replay.

Every candidate term is added with coefficient 0. The mean field's derivative in that coefficient, projected off what
the program's own constants can do, is compared with the remaining residuals (orthogonal matching pursuit: Pati,
Rezaiifar and Krishnaprasad 1993, one step). The cost of dropping a constant follows from the same matrix (optimal brain
surgeon: Hassibi and Stork 1993).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from evaluator.fit.loss import huber_weights
from evaluator.fit.machine import machine
from evaluator.fit.problem import KERNEL_WEIGHT, Problem, limits, with_slopes
from simulator.language.ir import Const, Constant, Expr, Op, Program
from simulator.language.opcodes import assemble

RIDGE = 1e-9  # keeps the matrix invertible for constants that the data cannot tell apart


def gains(problem: Problem, method: str, terms: Sequence[Sequence[Expr]]) -> np.ndarray:
    """The share of the squared residuals that each term would remove, float64[terms]; 0 if it would not help.

    Each term, a product of factors, is added to a method of the problem's program with a coefficient within its bounds:
    >= 0, or of either sign for what adjusts a kernel. The other constants are free.
    """
    extended, new = _with_terms(problem.program, method, terms)
    slope, residuals = _residual_matrix(problem, extended, new)
    added, own = slope[:, new], np.delete(slope, new, axis=1)
    size = np.linalg.norm(own, axis=0)
    basis = np.linalg.qr(own[:, size > 0] / size[size > 0])[0] if (size > 0).any() else np.zeros((len(slope), 0))
    residuals = residuals - basis @ (basis.T @ residuals)
    before = np.linalg.norm(added, axis=0)
    added = added - basis @ (basis.T @ added)
    after = np.linalg.norm(added, axis=0)
    distinct = after > 1e-3 * before  # otherwise the program's own constants can do the same
    towards = np.where(distinct, -(added.T @ residuals) / np.where(distinct, after, 1.0), 0.0)
    either = limits(extended)[0][new] < 0.0
    return np.where(either, towards, np.maximum(towards, 0.0)) ** 2 / max(float(residuals @ residuals), 1e-300)


def _with_terms(program: Program, method: str, terms: Sequence[Sequence[Expr]]) -> tuple[Program, slice]:
    """The program with the terms added to `method`, and the positions of their coefficients, which are 0, in theta."""
    function = program.function(method)
    assert function is not None
    coefficients = tuple(Constant(f"_{i}", 0.0, None) for i in range(len(terms)))
    result = function.result
    for coefficient, factors in zip(coefficients, terms, strict=True):
        term: Expr = Const(coefficient.name)
        for factor in factors:
            term = Op("*", term, factor)
        result = Op("+", result, term)
    longer = replace(function, constants=(*function.constants, *coefficients), result=result)
    position = program.functions.index(function)
    first = sum(len(f.constants) for f in program.functions[: position + 1])
    functions = (*program.functions[:position], longer, *program.functions[position + 1 :])
    return Program(functions, program.doc, program.forest), slice(first, first + len(terms))


def costs(problem: Problem) -> np.ndarray:
    """The share by which the squared residuals would grow if each constant were 0 and the others adapted.

    float64[theta], to second order.
    """
    slope, residuals = _residual_matrix(problem)
    size = np.linalg.norm(slope, axis=0)
    scaled = slope / np.where(size > 0, size, 1.0)
    spread = np.diag(np.linalg.inv(scaled.T @ scaled + RIDGE * np.eye(len(size))))
    grown = np.square(np.array(problem.program.theta) * size) / spread
    share: np.ndarray = grown / max(float(residuals @ residuals), 1e-300)
    return share


def without_effect(problem: Problem) -> np.ndarray:
    """bool[theta]: whether a constant moves no figure that was observed, so that only the prior decides it."""
    slope, _ = _residual_matrix(problem)
    seen = int((~np.isnan(problem.data.stages.observed_ms)).sum())  # rows below are the prior's
    idle: np.ndarray = np.all(slope[:seen] == 0.0, axis=0)
    return idle


def _residual_matrix(
    problem: Problem, extended: Program | None = None, new: slice = slice(0)
) -> tuple[np.ndarray, np.ndarray]:
    """(derivative of every weighted residual in every constant, the residuals), Huber-weighted.

    Rows: everything observed, then the prior of every factor of a measured kernel. `extended`: that program with more
    constants, which are 0 and at the positions `new`, and have derivatives too.
    """
    data, more = problem.data, extended or problem.program
    old = np.delete(np.arange(len(more.theta)), new)
    theta = np.zeros(len(more.theta))
    theta[old] = problem.start
    wider = problem.machine
    if extended:  # only its slopes are asked for, so it needs no bounds and no prior
        code, everyone = assemble(extended), [range(len(data.experiments))]
        table, bins = data.stages.table, data.stages.bins
        wider = machine(code, table, bins, data.deployments, everyone, np.arange(theta.size)[None])
    value, slopes = with_slopes(wider, theta)
    slopes[np.delete(old, problem.free)] = 0.0
    observed = ~np.isnan(data.stages.observed_ms).ravel()
    slope = (slopes * (data.ratio / data.stages.observed_ms * data.weights)).reshape(theta.size, -1).T[observed]
    residuals = data.residuals(value * data.ratio).ravel()[observed]
    weight = np.sqrt(huber_weights(residuals))
    measured = np.flatnonzero(problem.measured)
    pull = KERNEL_WEIGHT * problem.tension(problem.start)[measured]
    prior = np.zeros((len(measured), theta.size))
    prior[np.arange(len(measured)), old[measured]] = pull
    away = pull * (problem.start - problem.origin)[measured]
    return np.vstack([slope * weight[:, None], prior]), np.concatenate([residuals * weight, away])
