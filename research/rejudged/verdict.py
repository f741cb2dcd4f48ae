"""Estimates with their intervals, and the rules that turn one into a verdict. A rule never sees other figures."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np

from evaluator.statistics import LEVEL, clustered_mean_interval
from simulator.common.streams import stream

Verdict = Literal["kept", "overturned", "undecided"]
KEPT: Verdict = "kept"
OVERTURNED: Verdict = "overturned"
UNDECIDED: Verdict = "undecided"
SEED = 24  # of every bootstrap
POINTS = 1.0  # percentage points: a smaller difference decides nothing
REFITS = 200  # resamples of a statistic that is fitted again on each
NEAR = 1.1  # a ratio is taken as the value that was believed up to this factor
WIDE = 4.0  # an interval whose upper limit is more than so many times its lower one says too little of a ratio


@dataclass(frozen=True, slots=True)
class Estimate:
    """A figure with its 95 % interval. of: what it was computed from, as in `20 runs of 8 models`. unit: as printed.

    searched: the ends of the range in which the figure was searched, if it was; at an end it is only a bound.
    """

    value: float
    low: float
    high: float
    unit: str
    of: str
    searched: tuple[float, float] | None = None


class Rule(Protocol):
    """How an estimate becomes a verdict."""

    @property
    def text(self) -> str:
        """The rule in words, as the page prints it."""

    def verdict(self, estimate: Estimate) -> Verdict:
        """The verdict on a belief that has this estimate."""


@dataclass(frozen=True)
class Better:
    """The belief says that one way is better than another by some points. The estimate is by how much it is."""

    points: float = POINTS

    @property
    def text(self) -> str:
        return (
            f"kept if the interval is above 0 and the difference is at least {_points(self.points)}, overturned if the "
            f"whole interval is below {_points(self.points)}"
        )

    def verdict(self, estimate: Estimate) -> Verdict:
        if estimate.low > 0.0 and estimate.value >= self.points:
            return KEPT
        return OVERTURNED if estimate.high < self.points else UNDECIDED


@dataclass(frozen=True)
class Same:
    """The belief says that something changes nothing, or that two things are equal. The estimate is the difference."""

    within: float
    unit: str = "points"

    @property
    def text(self) -> str:
        within = _points(self.within) if self.unit == "points" else f"{self.within:g} {self.unit}".strip()
        return f"kept if the interval is within {within} of 0, overturned if it is wholly outside"

    def verdict(self, estimate: Estimate) -> Verdict:
        if -self.within <= estimate.low and estimate.high <= self.within:
            return KEPT
        return OVERTURNED if estimate.low > self.within or estimate.high < -self.within else UNDECIDED


@dataclass(frozen=True)
class Limit:
    """The belief says that a figure in percent is above a limit, or `below` it."""

    limit: float
    below: bool = False

    @property
    def text(self) -> str:
        believed, other = ("below", "above") if self.below else ("above", "below")
        return f"kept if the interval is {believed} {self.limit:g} %, overturned if it is {other}"

    def verdict(self, estimate: Estimate) -> Verdict:
        above, below = estimate.low > self.limit, estimate.high < self.limit
        if not above and not below:
            return UNDECIDED
        return KEPT if below == self.below else OVERTURNED


@dataclass(frozen=True)
class Ratio:
    """The belief says that a ratio has a value, or its reciprocal if it may be `either` way round."""

    value: float
    either: bool = False

    @property
    def text(self) -> str:
        value = f"{self.value:g}" + (f" or 1/{self.value:g}" if self.either else "")
        return (
            f"overturned if the whole interval is more than a factor of {NEAR:g} from {value}, kept if it is not and "
            f"its upper limit is at most {WIDE:g} times its lower one"
        )

    def verdict(self, estimate: Estimate) -> Verdict:
        values = (self.value, 1.0 / self.value) if self.either else (self.value,)
        if not any(estimate.low <= value * NEAR and value / NEAR <= estimate.high for value in values):
            return OVERTURNED
        return KEPT if estimate.high <= WIDE * estimate.low else UNDECIDED


@dataclass(frozen=True)
class Inside:
    """The belief says that a share is truly between 0 and 1: `margin` away from both ends."""

    margin: float

    @property
    def text(self) -> str:
        low, high = self.margin, 1.0 - self.margin
        return (
            f"kept if the interval is within {low:g} and {high:g}, overturned if it is wholly below {low:g} or above "
            f"{high:g}"
        )

    def verdict(self, estimate: Estimate) -> Verdict:
        low, high = self.margin, 1.0 - self.margin
        if low <= estimate.low and estimate.high <= high:
            return KEPT
        return OVERTURNED if estimate.high < low or estimate.low > high else UNDECIDED


def _points(points: float) -> str:
    """`1 point`, `2.5 points`."""
    return f"{points:g} point" if points == 1.0 else f"{points:g} points"


def mean_of(values: Sequence[float], clusters: Sequence[str], unit: str, of: str) -> Estimate:
    """The mean of these values, and its bootstrap interval over whole clusters (Efron 1979)."""
    limits = clustered_mean_interval(values, clusters, SEED)
    assert limits is not None, f"one cluster only: {of}"
    return Estimate(float(np.mean(values)), *limits, unit, of)


def apart(ours: Sequence[Sequence[float]], theirs: Sequence[Sequence[float]], unit: str, of: str) -> Estimate:
    """The mean over `ours` less that over `theirs`, and its bootstrap interval over whole clusters of both."""
    mine, other = [np.asarray(c) for c in ours], [np.asarray(c) for c in theirs]

    def difference(a: Sequence[np.ndarray], b: Sequence[np.ndarray]) -> float:
        return float(np.concatenate(a).mean() - np.concatenate(b).mean())

    def again(rng: np.random.Generator) -> float:
        return difference(_drawn(rng, mine), _drawn(rng, other))

    return resampled(difference(mine, other), again, unit, of, 10 * REFITS)


def resampled(
    value: float, again: Callable[[np.random.Generator], float], unit: str, of: str, resamples: int = REFITS
) -> Estimate:
    """`value` with the bootstrap interval of `again`, which computes it from data that it draws."""
    values = [again(stream(SEED, i)) for i in range(resamples)]
    low, high = np.quantile(values, ((1.0 - LEVEL) / 2.0, (1.0 + LEVEL) / 2.0))
    return Estimate(value, float(low), float(high), unit, of)


def _drawn(rng: np.random.Generator, clusters: Sequence[np.ndarray]) -> list[np.ndarray]:
    return [clusters[i] for i in rng.integers(0, len(clusters), len(clusters))]
