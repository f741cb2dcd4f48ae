"""The prior of a design: how the log figures of runs vary together, before any of them is measured.

Its covariance has four parts: how near-optimal programs, and other step times, deviate from the program over all runs;
what the standard errors of the constants move; errors that all runs of a deployment share; and those of each run alone,
which is also the noise of a measurement. The last two are as large as the held-out residuals say.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from evaluator.design import Joint, shared_share
from evaluator.intervals import Residual, figure_of
from evaluator.score import MEANS, Prediction
from evolve.run.program import Source
from evolve.run.selectors import known_constants
from simulator.language.ir import Program
from simulator.serving.experiment import Experiment

NORMAL = 0.6745  # the median of the size of a standard normal variable


@dataclass(frozen=True)
class Prior:
    """The parts of the covariance of log figures; columns are MEANS of each run, those of the `targets` first.

    ensemble, paces, constants: float64[programs, columns], deviations whose squares add up to variances. shared,
    alone: float64[columns, columns], covariances.
    """

    ensemble: np.ndarray
    paces: np.ndarray
    constants: np.ndarray
    shared: np.ndarray
    alone: np.ndarray
    targets: int

    @classmethod
    def of(
        cls,
        deviations: Sequence[np.ndarray],
        sizes: tuple[np.ndarray, np.ndarray],
        runs: Sequence[Experiment],
        targets: int,
    ) -> Prior:
        """The prior of these runs, the first `targets` of which are to be predicted.

        deviations: float64[programs, columns] of ensemble, paces and constants, see `logs`. sizes: see `sizes`.
        """
        ensemble, paces, constants = deviations
        members = len(ensemble) + len(paces)  # of which the spread is the root mean square
        where = [(e.model, e.hardware, e.engine.tensor_parallel) for e in runs]
        same = np.array([[float(a == b) for b in where] for a in where])
        shared, alone = np.kron(same, sizes[0]), np.kron(np.eye(len(runs)), sizes[1])
        return cls(ensemble / math.sqrt(members), paces / math.sqrt(members), constants, shared, alone, targets)

    def joint(self, shared: bool = True) -> Joint:
        every = np.vstack([self.ensemble, self.paces, self.constants])
        latent = every.T @ every
        aim, first = latent + self.shared if shared else latent, self.targets * len(MEANS)
        observed = (latent + self.shared + self.alone)[first:, first:]
        run = np.repeat(np.arange(len(observed) // len(MEANS)), len(MEANS))
        return Joint(np.diag(aim)[:first], aim[:first, first:], observed, run)

    def spread(self, chosen: Sequence[int]) -> np.ndarray:
        """float64[targets, MEANS]: the spread that `evolve predict` will see once these runs are fitted.

        The ensemble comes closer as far as the runs explain the differences of programs; other paces stay as far off.
        """
        first = self.targets * len(MEANS)
        joint = self.joint(shared=False)
        left = joint.posterior(chosen) / np.maximum(joint.prior, 1e-300)
        ensemble, paces = (np.square(part[:, :first]).sum(axis=0) for part in (self.ensemble, self.paces))
        spread: np.ndarray = np.sqrt(ensemble * left + paces).reshape(-1, len(MEANS))
        return spread


def moved(source: Source) -> tuple[list[Program], tuple[str, ...]]:
    """The program moved along each axis of its constants' joint error by one deviation; and a line on unknown errors.

    The axes are the columns of the root of the covariance matrix. So the squares of their effects on a figure add up to
    the variance that all constants' errors give it.
    """
    program = source.complete
    records = known_constants(source.record, program) or {}
    names = [f"{f.name}.{c.name}" for f in program.functions for c in f.constants]
    known = {name: c for name, c in records.items() if c.standard_error}
    at = [j for j, name in enumerate(names) if name in known]
    errors = np.array([known[names[j]].standard_error for j in at])
    correlations = np.array([[known[names[j]].correlated.get(names[i], float(i == j)) for i in at] for j in at])
    shifted = []
    if at:
        squares, axes = np.linalg.eigh((correlations + correlations.T) / 2.0)
        for square, axis in zip(squares, axes.T, strict=True):
            theta = np.array(program.theta)
            theta[at] += np.sqrt(max(square, 0.0)) * axis * errors  # correlations are rounded: squares may be below 0
            shifted.append(program.with_theta(tuple(theta.tolist())))
    without = len(names) - len(at)
    missing = (f"standard errors of {without} of {len(names)} constants",) if without else ()
    return shifted, missing


def logs(ours: Sequence[Prediction], theirs: Sequence[Sequence[Prediction]]) -> np.ndarray:
    """float64[programs, columns]: log(theirs / ours) of each figure of each run; 0 where either has none."""

    def log(p: Prediction, q: Prediction, name: str) -> float:
        a, b = (figure_of(x.predicted.summary, name) for x in (p, q))
        return math.log(b / a) if a and b else 0.0

    rows = [[log(p, q, f) for p, q in zip(ours, one, strict=True) for f in MEANS] for one in theirs]
    return np.array(rows).reshape(len(rows), len(ours) * len(MEANS))


def sizes(residuals: Sequence[Residual]) -> tuple[np.ndarray, np.ndarray]:
    """Covariances of MEANS, float64[3, 3]: what runs of a deployment share, and what is each run's alone.

    By the median size of the residuals, because few are very large. The share is that within folds of models, in which
    one model is held out; within all folds if there are none.
    """
    rows = [r for r in residuals if all(r.log_ratio[f] is not None for f in MEANS)]
    of_models = [r for r in rows if r.fold.startswith("models ")] or rows
    size, shares = np.zeros(len(MEANS)), np.zeros(len(MEANS))
    for i, f in enumerate(MEANS):
        size[i] = float(np.median([abs(r.log_ratio[f] or 0.0) for r in rows])) / NORMAL if rows else 0.0
        folds = dict.fromkeys(r.fold for r in of_models)
        shares[i] = shared_share([[r.log_ratio[f] or 0.0 for r in of_models if r.fold == fold] for fold in folds])
    units = np.array([[r.log_ratio[f] or 0.0 for f in MEANS] for r in rows]) / np.maximum(size, 1e-300)
    units = np.clip(units, -3.0, 3.0)  # the largest must not decide alone how figures err together
    products = units.T @ units
    norm = np.sqrt(np.maximum(np.diag(products), 1e-300))
    together = products / np.outer(norm, norm)
    shared, alone = (np.sqrt(x) * size for x in (shares, 1.0 - shares))
    return together * np.outer(shared, shared), together * np.outer(alone, alone) + 1e-12 * np.eye(len(MEANS))
