"""The verdicts of the three hypotheses, against hand calculations and SciPy's test."""

from __future__ import annotations

import pytest
from scipy.stats import wilcoxon

from research.methods.hypotheses import H3Verdict, h1, h2, h3, smallest_p
from research.methods.protocol import H1, H2, H3
from research.methods.view import h3_text

RULES = H1(0.05, 2.0, (1.0,))
LIMITS = H2(10.0, 15.0, 15.0)


def pairs(*differences: float) -> dict[str, tuple[float, float]]:
    """Runs whose errors on raw counts are so many points above those on features, which are 5 %."""
    return {str(i): (5.0, 5.0 + d) for i, d in enumerate(differences)}


def errors(e2e: float, ttft: float = 0.0, itl: float = 0.0) -> dict[str, float | None]:
    return {"e2e": e2e, "ttft": ttft, "itl": itl, "e2e_p99": None}


@pytest.mark.parametrize("n", [3, 5, 6, 11])
def test_the_smallest_p_is_that_of_a_test_in_which_every_pair_is_better(n: int) -> None:
    assert smallest_p(n) == pytest.approx(wilcoxon(range(1, n + 1)).pvalue)


def test_few_runs_cannot_support_h1_whatever_they_show() -> None:
    verdict = h1(RULES, pairs(30.0, 31.0, 32.0))
    assert verdict and verdict.points == pytest.approx(31.0) and verdict.p == verdict.smallest_p == 0.25
    assert not verdict.possible(RULES.alpha) and not verdict.supported


@pytest.mark.parametrize(("scale", "supported"), [(1.0, True), (0.5, False), (-1.0, False)])
def test_h1_needs_two_points_in_the_right_direction(scale: float, supported: bool) -> None:
    """Six pairs of 2 to 3 points have p = 0.031; half of these are 1.25 points, though as significant."""
    verdict = h1(RULES, pairs(*(scale * x for x in (2.0, 2.2, 2.4, 2.6, 2.8, 3.0))))
    assert verdict and verdict.p == 0.03125 and verdict.points == pytest.approx(2.5 * scale)
    assert verdict.supported is supported and verdict.possible(RULES.alpha)


def test_h2_looks_at_means_and_counts_the_runs_that_pass() -> None:
    verdict = h2(LIMITS, {"a": errors(12.0, -3.0), "b": errors(-4.0, 14.0), "c": errors(-2.0, 14.9)}, 3)
    assert (verdict.e2e, verdict.passing, verdict.supported) == (6.0, 2, True)
    assert not h2(LIMITS, {"a": errors(1.0)}, 2).supported  # it needs every run
    assert h1(RULES, {}) is None


@pytest.mark.parametrize("of_b", [errors(20.0), errors(1.0, 31.0), errors(1.0, 0.0, -31.0)])
def test_h2_fails_at_any_limit(of_b: dict[str, float | None]) -> None:
    assert not h2(LIMITS, {"a": errors(1.0), "b": of_b}, 2).supported


def test_h3_needs_every_kind_of_fold_that_there_is_and_every_run() -> None:
    rules = H3(10.0, ("models", "workloads", "hardware"))
    good, bad = {"a": errors(9.0), "b": errors(-9.5)}, {"a": errors(9.0), "b": errors(12.0)}
    kinds, half = ["models", "workloads"], {"models": True, "workloads": False}
    both = h3(rules, {"models": good, "workloads": good}, kinds, 2)
    some = h3(rules, {"models": {"a": errors(1.0)}}, ["models"], 2)
    assert both and both.supported and some and not some.supported
    for of_workloads in (bad, {}):
        assert h3(rules, {"models": good, "workloads": of_workloads}, kinds, 2) == H3Verdict(half, (), False)
    assert h3(rules, {}, [], 2) is None


def test_h3_is_open_where_a_kind_was_not_judged() -> None:
    rules = H3(10.0, ("models", "workloads"))
    verdict = h3(rules, {"models": {"a": errors(1.0)}}, ["models", "workloads"], 1)
    assert verdict == H3Verdict({"models": True}, ("workloads",), False)
    assert h3_text(verdict) == "open, 1 of 2"
