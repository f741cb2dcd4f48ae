"""Coverage: on simulated truths with errors that folds share, of the shipped residuals, and its statistics by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
from paths import ROOT

from evaluator.coverage import FEW_FOLDS, HOLDS, Coverage, JudgedFigure, binomial_interval, effective, judged
from evaluator.intervals import LEVELS, STATISTICS, Residual, scales
from evolve.run.trust import trust_in

NOTHING: dict[str, float | None] = dict.fromkeys(STATISTICS)
SIZES = (1, 1, 3, 4, 12, 40)  # runs of the folds of a world: as uneven as those of the shipped run
WORLDS = 1000


def residual(log_ratio: float, spread: float = 0.0, fold: str = "f", experiment: str = "e") -> Residual:
    """One that has an E2E mean and nothing else."""
    return Residual(fold, experiment, NOTHING | {"e2e": log_ratio}, NOTHING | {"e2e": spread})


def covered(shared: float, seed: int) -> list[float]:
    """The share of worlds in which the interval at each level covers a run of a fold that was never seen.

    shared: the share of the variance of an error that all runs of its fold have in common.
    """
    rng = np.random.default_rng(seed)

    def runs(fold: str, count: int) -> list[Residual]:
        spreads = rng.uniform(0.01, 0.1, count)
        units = math.sqrt(shared) * rng.normal() + math.sqrt(1.0 - shared) * rng.normal(size=count)
        errors = units * np.hypot(0.05, spreads)
        return [
            residual(float(x), float(s), fold, f"{fold} {i}")
            for i, (x, s) in enumerate(zip(errors, spreads, strict=True))
        ]

    hits = np.zeros(len(LEVELS))
    for _ in range(WORLDS):
        known = [r for i, count in enumerate(SIZES) for r in runs(f"fold {i}", count)]
        [new] = runs("new", 1)
        scale = scales(known)["e2e"]
        size, spread = abs(new.log_ratio["e2e"] or 0.0), new.spread["e2e"] or 0.0
        hits += [size <= scale.half_width(spread, level) for level in LEVELS]
    return (hits / WORLDS).tolist()


@pytest.mark.parametrize("shared", [1.0, 0.5, 0.0])
def test_runs_of_a_new_fold_are_covered_as_often_as_said(shared: float) -> None:
    """Never less than 80 and 95 % but for chance, four standard deviations of a share of 1000 worlds; a little more
    where the runs of a fold share no error."""
    for share, level in zip(covered(shared, 19), LEVELS, strict=True):
        chance = 4.0 * math.sqrt(level * (1.0 - level) / WORLDS)
        assert level - chance <= share <= level + chance + 0.05 * (1.0 - shared)


def test_the_shipped_intervals_are_not_rejected() -> None:
    """seeds/champion/trust.json: 17 folds without a model on a GPU in a type of weights, 367 runs, and 6 saturated."""
    trust = trust_in(ROOT / "seeds" / "champion")
    assert trust
    found = trust.coverage()
    assert all(c.verdict.startswith((HOLDS, FEW_FOLDS)) for of_figures in found.values() for c in of_figures.values())
    rate, closed = (
        {f: found[f"{name}, {load}"] for f, name in enumerate(("inside", "outside"))}
        for load in ("at a rate", "closed load")
    )
    measured = {"e2e", "ttft", "itl", "e2e_p90", "e2e_p99", "ttft_p90", "ttft_p99"}
    assert set(rate[0]) == set(rate[1]) == measured and set(closed[0]) == set(closed[1]) == {"ttft", "itl"}
    for figure in ("e2e_p99", "ttft_p99", "e2e_p90", "ttft_p90"):  # 24 runs: 12, 8 and 4
        assert [found[f"{name}, at a rate"][figure].runs for name in ("inside", "outside", "saturated")] == [12, 8, 4]
    independent = {name for name, of in found.items() for c in of.values() if c.verdict == f"{HOLDS} (too narrow)"}
    assert not independent


def test_no_run_is_judged_by_its_own_fold_or_by_itself() -> None:
    x, y, z = residual(0.5, 0.0, "a", "x"), residual(0.5, 0.0, "a", "y"), residual(0.5, 0.0, "b", "x")
    small = [residual(0.01, 0.0, "b", "z"), residual(0.01, 0.0, "c", "w")]
    row = judged(x, [x, y, z, *small])["e2e"]
    assert row.half_widths[0] == pytest.approx(1.8856 * 0.01, rel=1e-4)  # of the two small ones; t_2
    assert row.covered == [False, False] and row.log_ratio == 0.5
    assert judged(x, [x, y, z]) == {}


def test_the_effective_number_by_hand() -> None:
    assert effective([[0.1, 0.1], [-0.1, -0.1], [0.1, 0.1]]) == pytest.approx(3.0)  # as many as groups
    assert effective([[0.1], [0.2], [0.3]]) == pytest.approx(3.0)
    assert effective([[0.1, -0.1], [0.1, -0.1]]) == pytest.approx(4.0)  # nothing is shared
    assert effective([[1.0, 0.5]]) == pytest.approx(2.0 / (1.0 + 0.5 / 0.625))  # 1 x 0.5 over the mean square


def test_binomial_intervals_are_those_of_clopper_and_pearson() -> None:
    """15 of 20: binom.test of R. None of n: 1 - 0.025**(1/n)."""
    assert binomial_interval(15 / 20, 20) == pytest.approx((0.5089541, 0.9134285), abs=1e-6)
    assert binomial_interval(0.0, 10) == pytest.approx((0.0, 1.0 - 0.025**0.1))
    assert binomial_interval(1.0, 10) == pytest.approx((0.025**0.1, 1.0))


def test_a_coverage_is_rejected_by_runs_that_err_alone() -> None:
    def of(errors: dict[str, list[float]], half: float) -> Coverage:
        halves = half, 2.0 * half
        return Coverage.of([JudgedFigure(fold, x, halves) for fold, xs in errors.items() for x in xs])

    apart = {f"fold {i}": [0.1 * (-1) ** j for j in range(20)] for i in range(3)}
    alike = {f"fold {i}": [0.1] * 20 for i in range(3)}
    assert of(apart, 0.04).verdict == "too narrow" and of(apart, 0.2).verdict == "too wide"
    assert of(alike, 0.2).verdict == "holds (too wide)"  # three independent errors can be covered by chance
    assert of({"one": [0.1] * 60}, 0.04).verdict == FEW_FOLDS
    found = of(apart, 0.2)
    assert (found.runs, found.folds, found.effective_runs) == (60, 3, pytest.approx(60.0))
    assert found.width_80_pct == pytest.approx(100.0 * (math.exp(0.2) - math.exp(-0.2)))
