"""Coverage of prediction intervals on held-out runs, each judged by the residuals of other folds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import scipy

from evaluator.design import shared_share
from evaluator.intervals import LEAST_FOLDS, LEVELS, Interval, Residual, scales
from simulator.common.records import derived

HOLDS, FEW_FOLDS, TOO_NARROW, TOO_WIDE = "holds", "few folds", "too narrow", "too wide"


@dataclass(frozen=True, slots=True)
class JudgedFigure:
    """A held-out figure and half the widths of its intervals at LEVELS, in logarithms, from other folds and runs."""

    fold: str
    log_ratio: float
    half_widths: tuple[float, ...]

    @property
    def covered(self) -> list[bool]:
        return [abs(self.log_ratio) <= half for half in self.half_widths]


@dataclass(frozen=True, slots=True)
class Coverage:
    """The coverage of the intervals of one figure on held-out runs, and their median widths in percent.

    effective_runs: as many independent runs say as much, see `effective`; of fewer than LEAST_FOLDS folds, each is one.
    between_80, between_95: 95 % binomial intervals of the coverage, of so many runs.
    """

    runs: int
    folds: int
    effective_runs: float
    covered_80: float
    covered_95: float
    between_80: Interval
    between_95: Interval
    width_80_pct: float
    width_95_pct: float

    @classmethod
    def of(cls, rows: Sequence[JudgedFigure]) -> Coverage:
        groups: dict[str, list[float]] = {}
        for row in rows:
            groups.setdefault(row.fold, []).append(row.log_ratio / row.half_widths[0] if row.half_widths[0] else 0.0)
        number = effective(list(groups.values())) if len(groups) >= LEAST_FOLDS else float(len(groups))
        covered = np.mean([row.covered for row in rows], axis=0).tolist()
        widths = 200.0 * np.sinh(np.median([row.half_widths for row in rows], axis=0))
        between = [binomial_interval(share, number) for share in covered]
        return cls(len(rows), len(groups), number, *covered, *between, *widths.tolist())

    @derived
    def verdict(self) -> str:
        """`holds`, or what a two-sided binomial test of LEVELS at 5 % rejects it as. Runs of a fold err together; what
        it would be rejected as if they were independent is in brackets. Fewer than LEAST_FOLDS folds cannot tell."""
        if self.folds < LEAST_FOLDS:
            return FEW_FOLDS
        if said := self._rejected(self.effective_runs):
            return said
        said = self._rejected(self.runs)
        return f"{HOLDS} ({said})" if said else HOLDS

    def _rejected(self, number: float) -> str:
        said = []
        for level, share in zip(LEVELS, (self.covered_80, self.covered_95), strict=True):
            low, high = binomial_interval(share, number)
            said += [TOO_NARROW] * (high < level) + [TOO_WIDE] * (low > level)
        return ", ".join(dict.fromkeys(said))


def judged(residual: Residual, among: Sequence[Residual]) -> dict[str, JudgedFigure]:
    """The measured figures of a held-out run, by the residuals `among` of other folds and experiments; not those that
    these do not calibrate."""
    others = [x for x in among if x.fold != residual.fold and x.experiment != residual.experiment]
    found = {}
    for figure, scale in scales(others, residual.closed, LEAST_FOLDS - 1).items():  # its own fold is not among them
        ratio, spread = residual.log_ratio[figure], residual.spread[figure]
        if scale.calibrated and ratio is not None and spread is not None:
            halves = tuple(scale.half_width(spread, level) for level in LEVELS)
            found[figure] = JudgedFigure(residual.fold, ratio, halves)
    return found


def effective(groups: Sequence[Sequence[float]]) -> float:
    """The number of independent errors that say as much as these, which are alike within their groups.

    Kish's design effect: n / (1 + (m - 1) rho), where m is the size of the group of the average error, and rho the
    intraclass correlation.
    """
    count = sum(map(len, groups))
    size = sum(len(g) ** 2 for g in groups) / count
    return count / (1.0 + (size - 1.0) * shared_share(groups))


def binomial_interval(share: float, number: float) -> Interval:
    """The 95 % interval of Clopper and Pearson (1934) of a share of so many independent trials."""
    hits, misses = share * number, (1.0 - share) * number
    low = scipy.special.betaincinv(hits, misses + 1.0, 0.025) if hits > 0.0 else 0.0
    high = scipy.special.betaincinv(hits + 1.0, misses, 0.975) if misses > 0.0 else 1.0
    return float(low), float(high)
