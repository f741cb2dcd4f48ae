"""What a fit makes small: weighted relative errors of stage means under a Huber loss.

A stage counts as much as it can tell: where the arrivals alone move a mean, its residual says less about the program.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from evaluator.fit.meanfield import Stages
from simulator.experiment.experiment import Experiment
from simulator.experiment.load import Load

HUBER = 0.03  # relative error beyond which a residual counts linearly
WEIGHTS = np.array([1.0, 0.3, 1.0])  # of E2E, TTFT, ITL in a stage that the arrivals do not move
# What a good program still misses of a calm stage, about a percent (the data's E2E errors). A residual is this and the
# arrivals' noise together, whose variances add: in units of it, the weight is that of the smaller inverse deviation.
MODEL_ERROR = 0.01


@dataclass(frozen=True)
class FitSet:
    """Experiments prepared for fitting: their load stages, and the loads of the correcting replays.

    noise: float64[stages, 3], the relative standard deviation over arrival seeds of each stage's mean E2E, TTFT, ITL.
    ratio: float64[stages, 3], a replay over its mean field as each experiment's own blackbox has them: where a fit
    starts, before it has replays of its program.
    """

    experiments: tuple[Experiment, ...]
    stages: Stages
    loads: tuple[Load, ...]
    noise: np.ndarray
    ratio: np.ndarray

    @cached_property
    def weights(self) -> np.ndarray:
        """float64[stages, 3]: of the relative errors, 0 where nothing was observed."""
        weights = WEIGHTS / np.sqrt(1.0 + np.square(self.noise / MODEL_ERROR))
        return np.where(np.isnan(self.stages.observed_ms), 0.0, weights)

    def residuals(self, predicted_ms: np.ndarray) -> np.ndarray:
        """Weighted relative errors, float64[stages, 3]; 0 where nothing was observed."""
        observed = self.stages.observed_ms
        with np.errstate(invalid="ignore"):
            relative = (predicted_ms - observed) / observed
        weighted = np.nan_to_num(relative, nan=1e6, posinf=1e6, neginf=-1e6) * self.weights
        return np.where(np.isnan(observed), 0.0, weighted)

    def loss(self, predicted_ms: np.ndarray) -> float:
        """Mean Huber loss of the residuals."""
        return float(huber(self.residuals(predicted_ms)).mean())


def huber_weights(residuals: np.ndarray) -> np.ndarray:
    """Of their squares, under which least squares makes the same step as the Huber loss: 1 up to HUBER."""
    weights: np.ndarray = np.minimum(1.0, HUBER / np.maximum(np.abs(residuals), 1e-12))
    return weights


def huber(residuals: np.ndarray) -> np.ndarray:
    """Squared up to HUBER, linear beyond."""
    size = np.abs(residuals)
    loss: np.ndarray = np.where(size <= HUBER, size * size, HUBER * (2 * size - HUBER))
    return loss
