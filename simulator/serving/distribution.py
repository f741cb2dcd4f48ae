"""Distributions that a load is drawn from: lengths in tokens, numbers of turns, times to think in seconds."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cache
from statistics import NormalDist

import numpy as np

KINDS = ("constant", "uniform", "normal", "lognormal", "empirical")
GRID = 1024  # quantiles that stand for a distribution where it is not drawn from
PROBABILITIES = (np.arange(GRID) + 0.5) / GRID  # of these


@dataclass(frozen=True, slots=True)
class Distribution:
    """A distribution of one of KINDS, cut off at `low` and `high`: what lies beyond counts as the bound.

    `mean` and `sd` are those of the variable itself, before it is cut off (of the lognormal variable, not of its
    logarithm); a constant is its `mean`, a uniform one lies between `low` and `high`. An empirical one has the distinct
    `values`, how often each was `counted`, and the `file` that lists them.
    """

    kind: str
    mean: float = 0.0
    sd: float = 0.0
    low: float = 0.0
    high: float = math.inf
    values: tuple[float, ...] = ()
    counted: tuple[int, ...] = ()
    file: str = field(default="", compare=False)

    @property
    def fixed(self) -> float | None:
        """The value, if it is always the same."""
        return self.mean if self.kind == "constant" else None

    @property
    def most(self) -> float:
        """No value is larger; inf if nothing bounds them."""
        return min(self.high, max(self.values)) if self.kind == "empirical" else self.high

    def draw(self, rng: np.random.Generator, count: int) -> np.ndarray:
        """float64[count]: values drawn with `rng`. A constant draws nothing."""
        match self.kind:
            case "constant":
                return np.full(count, self.mean)
            case "uniform":
                drawn = rng.uniform(self.low, self.high, count)
            case "normal":
                drawn = rng.normal(self.mean, self.sd, count)
            case "lognormal":
                drawn = np.exp(rng.normal(*self._logarithm(), count))
            case _:
                drawn = self._at(rng.random(count))
        return np.clip(drawn, self.low, self.high)

    def draw_whole(self, rng: np.random.Generator, count: int) -> np.ndarray:
        """int64[count]: values drawn with `rng`, rounded."""
        if self.kind == "uniform":  # every whole number equally often, those at the bounds as well
            return np.asarray(rng.integers(math.ceil(self.low), math.floor(self.high), count, endpoint=True))
        return np.asarray(np.rint(self.draw(rng, count)).astype(np.int64))

    def quantiles(self) -> np.ndarray:
        """float64[GRID]: values at evenly spaced probabilities; a single one for a constant."""
        p = PROBABILITIES
        match self.kind:
            case "constant":
                return np.array([self.mean])
            case "uniform":
                found = self.low + p * (self.high - self.low)
            case "empirical":
                found = self._at(p)
            case _:
                mean, sd = (self.mean, self.sd) if self.kind == "normal" else self._logarithm()
                found = mean + sd * _normal_quantiles()
                found = np.exp(found) if self.kind == "lognormal" else found
        return np.clip(found, self.low, self.high)

    def _logarithm(self) -> tuple[float, float]:
        """Mean and standard deviation of the logarithm of a lognormal variable."""
        variance = math.log1p((self.sd / self.mean) ** 2)
        return math.log(self.mean) - variance / 2.0, math.sqrt(variance)

    def _at(self, p: np.ndarray) -> np.ndarray:
        """The empirical values at the probabilities `p`."""
        ends = np.cumsum(self.counted)
        places = np.searchsorted(ends, p * ends[-1], side="right")
        return np.asarray(np.array(self.values)[np.minimum(places, len(self.values) - 1)])


@cache
def _normal_quantiles() -> np.ndarray:
    """float64[GRID]: those of the standard normal distribution."""
    return np.array([NormalDist().inv_cdf(p) for p in PROBABILITIES])


def constant(value: float) -> Distribution:
    """The distribution of something that is always the same."""
    return Distribution("constant", mean=value, low=value, high=value)
