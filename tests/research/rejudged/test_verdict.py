"""Rules: every verdict that each can give; and intervals against baselines."""

from __future__ import annotations

import pytest

from research.rejudged.verdict import (
    KEPT,
    OVERTURNED,
    UNDECIDED,
    Better,
    Estimate,
    Inside,
    Limit,
    Ratio,
    Rule,
    Same,
    Verdict,
    apart,
    mean_of,
)


@pytest.mark.parametrize(
    ("rule", "value", "low", "high", "verdict"),
    [
        (Better(1.0), 3.0, 0.5, 6.0, KEPT),
        (Better(1.0), 3.0, -0.1, 6.0, UNDECIDED),
        (Better(1.0), 0.9, 0.1, 1.7, UNDECIDED),  # better, but perhaps by less than matters
        (Better(1.0), 0.3, 0.1, 0.6, OVERTURNED),  # a difference of a point is excluded
        (Better(1.0), -3.0, -6.0, -0.5, OVERTURNED),
        (Same(1.0), 0.2, -0.9, 0.9, KEPT),
        (Same(1.0), 0.9, -0.9, 1.1, UNDECIDED),
        (Same(1.0), 3.0, 1.1, 9.0, OVERTURNED),
        (Same(1.0), -3.0, -9.0, -1.1, OVERTURNED),
        (Limit(100.0), 300.0, 101.0, 900.0, KEPT),
        (Limit(100.0), 80.0, 20.0, 101.0, UNDECIDED),
        (Limit(100.0), 8.0, 6.0, 11.0, OVERTURNED),
        (Limit(1.0, below=True), 0.2, 0.0, 0.5, KEPT),
        (Limit(1.0, below=True), 0.9, 0.0, 1.5, UNDECIDED),
        (Limit(1.0, below=True), 4.0, 1.1, 9.0, OVERTURNED),
        (Ratio(13.0), 12.0, 9.0, 16.0, KEPT),
        (Ratio(13.0), 12.0, 2.0, 90.0, UNDECIDED),
        (Ratio(13.0), 13.3, 13.1, 13.5, KEPT),  # nobody meant 13.0 exactly
        (Ratio(13.0), 5.0, 3.0, 11.0, OVERTURNED),
        (Ratio(13.0), 1 / 12, 1 / 16, 1 / 9, OVERTURNED),
        (Ratio(13.0, either=True), 1 / 12, 1 / 16, 1 / 9, KEPT),
        (Inside(0.05), 0.5, 0.3, 0.7, KEPT),
        (Inside(0.05), 0.5, 0.0, 0.7, UNDECIDED),
        (Inside(0.05), 0.98, 0.96, 1.0, OVERTURNED),
        (Inside(0.05), 0.01, 0.0, 0.04, OVERTURNED),
    ],
)
def test_a_rule_gives_each_of_its_verdicts(rule: Rule, value: float, low: float, high: float, verdict: Verdict) -> None:
    assert rule.verdict(Estimate(value, low, high, "", "")) == verdict
    assert rule.text.startswith(("kept if", "overturned if"))


def test_clusters_are_resampled_whole() -> None:
    """Two clusters: the mean of a resample is one of 0, 10 and the mean of both, whatever their sizes."""
    estimate = mean_of([0.0] * 5 + [10.0] * 5, ["a"] * 5 + ["b"] * 5, "points", "")
    assert (estimate.value, estimate.low, estimate.high) == (5.0, 0.0, 10.0)
    alone = mean_of([0.0] * 50 + [10.0] * 50, [str(i) for i in range(100)], "points", "")
    assert 3.5 < alone.low < 4.5 < 5.5 < alone.high < 6.5  # 1.96 standard errors of 0.5


def test_two_groups_are_resampled_apart() -> None:
    estimate = apart([[7.0]] * 3, [[2.0], [4.0]], "points", "")
    assert (estimate.value, estimate.low, estimate.high) == (4.0, 3.0, 5.0)
