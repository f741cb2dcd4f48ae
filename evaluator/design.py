"""The choice of runs to measure: Bayesian linear design, A-optimal (Chaloner and Verdinelli 1995, Stat. Science
10:273).

Figures of targets and of candidate runs have a joint Gaussian prior. A measured run shows its figures with noise. The
posterior covariance does not depend on the measured values, so runs can be chosen before any is measured: those that
minimise the mean posterior variance of the targets, greedily, then by exchange of single runs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

GAIN = 1e-9  # relative fall of the mean variance up to which an exchange is a tie


@dataclass(frozen=True)
class Joint:
    """The prior of targets and candidates.

    prior: float64[targets], variances. cross: float64[targets, rows], their covariances with the measurements.
    observed: float64[rows, rows], the covariance of measurements, noise included. run: int[rows], the run of each row.
    """

    prior: np.ndarray
    cross: np.ndarray
    observed: np.ndarray
    run: np.ndarray

    def posterior(self, chosen: Sequence[int]) -> np.ndarray:
        """float64[targets]: the variances after measuring the `chosen` runs."""
        rows = np.flatnonzero(np.isin(self.run, list(chosen)))
        if not rows.size:
            return self.prior
        cross = self.cross[:, rows]
        explained = np.linalg.solve(self.observed[np.ix_(rows, rows)], cross.T)
        variances: np.ndarray = np.maximum(self.prior - np.einsum("tr,rt->t", cross, explained), 0.0)
        return variances


def choose(joint: Joint, count: int) -> list[int]:
    """The runs to measure, at most `count`, the most useful first."""
    chosen = _greedy(joint, sorted(set(joint.run.tolist())), count)
    while exchanged := _exchanged(joint, chosen):
        chosen = exchanged
    return _greedy(joint, chosen, count)


def _mean(joint: Joint, chosen: Sequence[int]) -> float:
    return float(joint.posterior(chosen).mean())


def _greedy(joint: Joint, offered: Sequence[int], count: int) -> list[int]:
    chosen = list[int]()
    while len(chosen) < min(count, len(offered)):
        left = [run for run in offered if run not in chosen]
        chosen.append(min(left, key=lambda run: (_mean(joint, [*chosen, run]), run)))
    return chosen


def _exchanged(joint: Joint, chosen: Sequence[int]) -> list[int] | None:
    """The runs after the exchange of one run that lowers the mean variance most, None if no exchange lowers it."""
    others = sorted(set(joint.run.tolist()) - set(chosen))
    sets = [[*chosen[:i], other, *chosen[i + 1 :]] for i in range(len(chosen)) for other in others]
    best = min(sets, key=lambda runs: _mean(joint, runs), default=None)
    return best if best and _mean(joint, best) < (1.0 - GAIN) * _mean(joint, chosen) else None


def shared_share(groups: Sequence[Sequence[float]]) -> float:
    """The share, 0 to 1, of the mean square of residuals that is common to a group; 0 if no group has two.

    The intraclass correlation about zero: the mean product of two residuals of a group over the mean square.
    """
    pairs = sum(len(g) * (len(g) - 1) for g in groups)
    squares, count = math.fsum(x * x for g in groups for x in g), sum(map(len, groups))
    if not pairs or not squares:
        return 0.0
    products = math.fsum(math.fsum(g) ** 2 - math.fsum(x * x for x in g) for g in groups)
    return min(max(products / pairs / (squares / count), 0.0), 1.0)
