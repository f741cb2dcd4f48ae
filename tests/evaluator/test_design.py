"""Designs by hand: posterior variances of one and two figures, and which runs are chosen."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from evaluator.design import Joint, choose, shared_share


def joint(prior: list[float], cross: list[list[float]], observed: list[list[float]], run: list[int]) -> Joint:
    return Joint(np.array(prior), np.array(cross), np.array(observed), np.array(run))


def test_a_measurement_explains_the_square_of_its_covariance() -> None:
    one = joint([4.0], [[2.0]], [[3.0]], [0])  # 4 - 2 x 2 / 3
    assert one.posterior([0]) == pytest.approx([4.0 - 4.0 / 3.0]) and one.posterior([]) == pytest.approx([4.0])


def test_two_measurements_by_the_inverse_of_a_2x2_matrix() -> None:
    """inv([[2, 1], [1, 2]]) = [[2, -1], [-1, 2]] / 3, so (1, 1) explains 2/3, and (1, 0) explains 2/3 too."""
    two = joint([1.0, 1.0], [[1.0, 1.0], [1.0, 0.0]], [[2.0, 1.0], [1.0, 2.0]], [0, 1])
    assert two.posterior([0, 1]) == pytest.approx([1 / 3, 1 / 3])
    assert two.posterior([0]) == pytest.approx([0.5, 0.5]) and two.posterior([1]) == pytest.approx([0.5, 1.0])
    together = joint([1.0, 1.0], [[1.0, 1.0], [1.0, 0.0]], [[2.0, 1.0], [1.0, 2.0]], [7, 7])  # one run's two figures
    assert together.posterior([7]) == pytest.approx([1 / 3, 1 / 3])


def test_a_second_run_that_says_the_same_is_not_chosen() -> None:
    """Runs 0 and 1 measure target 0, run 2 target 1, which is less uncertain."""
    cross, noise = [[2.0, 1.9, 0.0], [0.0, 0.0, 1.0]], 0.1
    observed = [[2.0 + noise, 1.9, 0.0], [1.9, 2.0 + noise, 0.0], [0.0, 0.0, 1.0 + noise]]
    same = joint([2.0, 1.0], cross, observed, [0, 1, 2])
    assert choose(same, 1) == [0] and choose(same, 2) == [0, 2] and choose(same, 9) == [0, 2, 1]


def test_an_exchange_finds_what_the_greedy_choice_misses() -> None:
    """Run 0 measures the sum of both targets, runs 1 and 2 one each, all with noise 0.2.

    The sum alone leaves 1 - 1/2.2 of each, one target alone (1 - 1/1.2 + 1)/2; but both single ones leave 1 - 1/1.2.
    """
    reads = np.array([[1.0, 1.0], [1.0, 0.0], [0.0, 1.0]])
    sums = Joint(np.ones(2), reads.T, reads @ reads.T + 0.2 * np.eye(3), np.arange(3))
    assert sums.posterior([0]) == pytest.approx([1.2 / 2.2] * 2)
    assert sums.posterior([1, 2]) == pytest.approx([1 / 6] * 2)
    assert choose(sums, 1) == [0] and choose(sums, 2) == [1, 2]


def test_no_exchange_of_a_single_run_improves_a_choice() -> None:
    rng = np.random.default_rng(3)
    for _ in range(20):
        factors = rng.normal(size=(14, 5))
        every = factors @ factors.T
        one = Joint(np.diag(every)[:4], every[:4, 4:], every[4:, 4:] + 0.3 * np.eye(10), np.repeat(np.arange(5), 2))
        chosen = choose(one, 2)
        pairs = [pair for pair in itertools.combinations(range(5), 2) if set(pair) & set(chosen)]
        least = min(one.posterior(pair).mean() for pair in pairs)
        assert one.posterior(chosen).mean() <= least * (1.0 + 1e-6)


def test_the_shared_part_is_the_mean_product_of_two_residuals() -> None:
    assert shared_share([[2.0, 2.0], [-1.0, -1.0]]) == 1.0  # (4 + 1) / 2 over (4 + 4 + 1 + 1) / 4
    assert shared_share([[3.0, 1.0]]) == pytest.approx(0.6)  # 3 over (9 + 1) / 2
    assert shared_share([[1.0, -1.0]]) == shared_share([[1.0], [2.0]]) == shared_share([]) == 0.0
