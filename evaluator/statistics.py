"""Statistics of held-out errors over experiments: median, bias, confidence intervals, a paired test."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import scipy

from archive.score import CellErrors
from evaluator.metrics import present

RESAMPLES = 9999
LEVEL = 0.95


@dataclass(frozen=True, slots=True)
class SignedRank:
    """Wilcoxon's signed-rank test of paired absolute errors (ours - theirs), two-sided.

    better: pairs in which ours is smaller. median_difference: in percentage points. statistic, p: None if the errors of
    every pair are equal.
    """

    pairs: int
    better: int
    median_difference: float
    statistic: float | None
    p: float | None


def median_abs(errors: Sequence[float | None]) -> float | None:
    """Median absolute error over the errors that are not None; None if all are. One saturated run barely moves it."""
    numbers = present(errors)
    return float(np.median(np.abs(numbers))) if numbers else None


def bias(errors: Sequence[float | None]) -> float | None:
    """Mean signed error over the errors that are not None; None if all are."""
    numbers = present(errors)
    return sum(numbers) / len(numbers) if numbers else None


def paired(ours: CellErrors, theirs: CellErrors) -> tuple[float | None, tuple[float, float] | None, int]:
    """(mean difference of errors in points, its 95 % interval by Student's t, cells), paired by cell.

    None for fewer than two cells.
    """
    known = dict(theirs.cells)
    cells = sum(name in known for name, _ in ours.cells)
    if cells < 2:
        return None, None, cells
    mean, error = ours.above(theirs)
    width = float(scipy.stats.t.ppf(0.5 + LEVEL / 2, cells - 1)) * error
    return mean, (mean - width, mean + width), cells


def mean_abs_interval(errors: Sequence[float | None], seed: int) -> tuple[float, float] | None:
    """Bootstrap 95 % percentile interval (Efron 1979) of the mean absolute error over resampled experiments.

    None for fewer than two experiments. The draws depend on SeedSequence([seed]) alone.
    """
    return _interval([[abs(v)] for v in present(errors)], seed)


def mean_interval(values: Sequence[float], seed: int) -> tuple[float, float] | None:
    """Bootstrap 95 % percentile interval of the mean of signed values; None for fewer than two."""
    return _interval([[v] for v in values], seed)


def clustered_interval(
    errors: Sequence[float | None], clusters: Sequence[str], seed: int
) -> tuple[float, float] | None:
    """`mean_abs_interval` with whole clusters resampled, because the experiments of a model share their errors.

    The statistic is the mean over all experiments of the drawn clusters. None for fewer than two clusters.
    """
    pairs = [(abs(value), cluster) for value, cluster in zip(errors, clusters, strict=True) if value is not None]
    return clustered_mean_interval([value for value, _ in pairs], [cluster for _, cluster in pairs], seed)


def clustered_mean_interval(values: Sequence[float], clusters: Sequence[str], seed: int) -> tuple[float, float] | None:
    """`mean_interval` with whole clusters resampled; None for fewer than two clusters."""
    groups: dict[str, list[float]] = {}
    for value, cluster in zip(values, clusters, strict=True):
        groups.setdefault(cluster, []).append(value)
    return _interval(list(groups.values()), seed)


def _interval(groups: Sequence[Sequence[float]], seed: int) -> tuple[float, float] | None:
    if len(groups) < 2:
        return None
    totals = np.array([sum(g) for g in groups])
    sizes = np.array([float(len(g)) for g in groups])
    limits = scipy.stats.bootstrap(
        (totals, sizes),
        lambda t, n, axis=-1: t.sum(axis=axis) / n.sum(axis=axis),
        paired=True,
        vectorized=True,
        n_resamples=RESAMPLES,
        confidence_level=LEVEL,
        method="percentile",
        rng=np.random.default_rng(np.random.SeedSequence([seed])),
    ).confidence_interval
    return float(limits.low), float(limits.high)


def signed_rank(ours: Sequence[float | None], theirs: Sequence[float | None]) -> SignedRank | None:
    """The test of |ours| against |theirs| over the pairs with both; None without such a pair."""
    pairs = [(abs(a), abs(b)) for a, b in zip(ours, theirs, strict=True) if a is not None and b is not None]
    if not pairs:
        return None
    difference = np.array([a - b for a, b in pairs])
    better, median = int((difference < 0).sum()), float(np.median(difference))
    if not difference.any():
        return SignedRank(len(pairs), better, median, None, None)
    test = scipy.stats.wilcoxon(difference)
    return SignedRank(len(pairs), better, median, float(test.statistic), float(test.pvalue))
