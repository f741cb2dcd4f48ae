"""Statistics of held-out errors over experiments: mean absolute error, bias, their uncertainty, a paired test."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import bootstrap, wilcoxon

RESAMPLES = 9999
LEVEL = 0.95


@dataclass(frozen=True, slots=True)
class SignedRank:
    """Wilcoxon's signed-rank test of paired absolute errors (ours - theirs): two-sided p; `better`: pairs in which ours
    is smaller; median_difference in percentage points. p is None where every pair is equal."""

    pairs: int
    better: int
    median_difference: float
    statistic: float | None
    p: float | None


def known(values: Sequence[float | None]) -> list[float]:
    """Those that are not None."""
    return [v for v in values if v is not None]


def mean_abs(errors: Sequence[float | None]) -> float | None:
    """Mean absolute error over those that are known; None if none is."""
    found = known(errors)
    return sum(map(abs, found)) / len(found) if found else None


def median_abs(errors: Sequence[float | None]) -> float | None:
    """Median absolute error over those that are known: one run that saturates does not move it. None if none is."""
    found = known(errors)
    return float(np.median(np.abs(found))) if found else None


def bias(errors: Sequence[float | None]) -> float | None:
    """Mean signed error over those that are known; None if none is."""
    found = known(errors)
    return sum(found) / len(found) if found else None


def interval(errors: Sequence[float | None], seed: int) -> tuple[float, float] | None:
    """Bootstrap 95 % percentile interval (Efron 1979) of the mean absolute error, experiments resampled.

    None for fewer than two experiments. Drawn from SeedSequence([seed]) alone.
    """
    return _interval([[abs(v)] for v in known(errors)], seed)


def clustered_interval(
    errors: Sequence[float | None], clusters: Sequence[str], seed: int
) -> tuple[float, float] | None:
    """The same with whole clusters resampled (all experiments of a model stand or fall together): the mean over all
    experiments of the clusters drawn. None for fewer than two clusters."""
    groups: dict[str, list[float]] = {}
    for value, cluster in zip(errors, clusters, strict=True):
        if value is not None:
            groups.setdefault(cluster, []).append(abs(value))
    return _interval(list(groups.values()), seed)


def _interval(groups: Sequence[Sequence[float]], seed: int) -> tuple[float, float] | None:

    if len(groups) < 2:
        return None
    totals = np.array([sum(g) for g in groups])
    sizes = np.array([float(len(g)) for g in groups])
    found = bootstrap(
        (totals, sizes),
        lambda t, n, axis=-1: t.sum(axis=axis) / n.sum(axis=axis),
        paired=True, vectorized=True, n_resamples=RESAMPLES, confidence_level=LEVEL, method="percentile",
        rng=np.random.default_rng(np.random.SeedSequence([seed])),
    ).confidence_interval  # fmt: skip
    return float(found.low), float(found.high)


def signed_rank(ours: Sequence[float | None], theirs: Sequence[float | None]) -> SignedRank | None:
    """The test of |ours| against |theirs|, pairs with both known; None where there is no such pair."""
    pairs = [(abs(a), abs(b)) for a, b in zip(ours, theirs, strict=True) if a is not None and b is not None]
    if not pairs:
        return None
    difference = np.array([a - b for a, b in pairs])
    better, median = int((difference < 0).sum()), float(np.median(difference))
    if not difference.any():
        return SignedRank(len(pairs), better, median, None, None)
    found = wilcoxon(difference)
    return SignedRank(len(pairs), better, median, float(found.statistic), float(found.pvalue))
