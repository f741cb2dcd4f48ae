"""The data of a fit and the loss on them: weighted relative errors of stage means under a Huber loss.

The noisier a stage mean is from one draw of arrivals to the next, the less its residual says about the program, and
the smaller its weight.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from evaluator.fit.cells import Cells
from evaluator.fit.gauss_newton import HUBER, LOST
from evaluator.fit.meanfield import DEPLOYMENT, DURATION, RATE
from evaluator.fit.stages import Stages
from simulator.clock.bind import Deployments, deployments_in_order
from simulator.serving.experiment import Experiment
from simulator.serving.load import Load

WEIGHTS = np.array([1.0, 0.3, 1.0])  # of E2E, TTFT, ITL in a stage without arrival noise
# What a good program still misses in a calm stage: about a percent, as in the E2E errors of the data. The residual's
# variance is the sum of this one and the arrival noise's; weights are inverse deviations in units of MODEL_ERROR.
MODEL_ERROR = 0.01


@dataclass(frozen=True)
class FitSet:
    """Experiments prepared for fitting: their load stages, and the loads of the correcting replays.

    noise: float64[stages, 3], the relative standard deviation over arrival seeds of each stage's mean E2E, TTFT, ITL.
    ratio: float64[stages, 3], replay over mean field for a simple law fitted to each experiment alone. A fit starts
    from it, until it has replays of its own program. cells: of the experiments whose requests were recorded one by one.
    """

    experiments: tuple[Experiment, ...]
    stages: Stages
    loads: tuple[Load, ...]
    noise: np.ndarray
    ratio: np.ndarray
    cells: tuple[Cells | None, ...]

    @cached_property
    def deployments(self) -> Deployments:
        """The deployment of each experiment, named by its position."""
        return deployments_in_order(self.experiments)

    @property
    def experiment_of(self) -> np.ndarray:
        """int[stages]: the position of each stage's experiment."""
        positions: np.ndarray = self.stages.table[:, DEPLOYMENT].astype(int)
        return positions

    @cached_property
    def weights(self) -> np.ndarray:
        """float64[stages, 3]: the weights of the relative errors, 0 where nothing was observed."""
        return weights_of(self.noise, self.stages.observed_ms)

    def residuals(self, predicted_ms: np.ndarray) -> np.ndarray:
        """Weighted relative errors, float64[stages, 3]; 0 where nothing was observed."""
        observed = self.stages.observed_ms
        with np.errstate(invalid="ignore"):
            relative = (predicted_ms - observed) / observed
        weighted = np.nan_to_num(relative, nan=LOST, posinf=LOST, neginf=-LOST) * self.weights
        return np.where(np.isnan(observed), 0.0, weighted)

    def loss(self, predicted_ms: np.ndarray) -> float:
        """Mean Huber loss of the residuals."""
        return float(huber(self.residuals(predicted_ms)).mean())

    def errors_pct(self, predicted_ms: np.ndarray) -> np.ndarray:
        """Signed errors in percent of each run's mean E2E, TTFT and ITL, float64[experiments, 3], NaN where nothing was
        observed. The mean is that of the predicted stage means, float64[stages, 3], weighted by their requests."""
        observed = self.stages.observed_ms
        requests = (self.stages.table[:, RATE] * self.stages.table[:, DURATION])[:, None]
        known = ~np.isnan(observed)
        sums = np.zeros((2, len(self.experiments), 3))
        np.add.at(sums[0], self.experiment_of, np.where(known, requests * predicted_ms, 0.0))
        np.add.at(sums[1], self.experiment_of, np.where(known, requests * observed, 0.0))
        with np.errstate(invalid="ignore", divide="ignore"):
            errors: np.ndarray = 100.0 * (sums[0] / sums[1] - 1.0)
        return errors

    def joint(self, predicted_ms: np.ndarray) -> float:
        """The joint error in percent of predicted stage means, as `evaluator.score` computes it from whole runs. NaN if
        nothing was observed."""
        of_runs = np.abs(self.errors_pct(predicted_ms))
        means = [column[~np.isnan(column)].mean() for column in of_runs.T if not np.isnan(column).all()]
        return float(np.mean(means)) if means else float("nan")

    def stages_at(self, keep: Sequence[int]) -> list[np.ndarray]:
        """The positions of the load stages of each of the experiments at `keep`."""
        ends = (*self.stages.first, len(self.stages.table))
        return [np.arange(ends[i], ends[i + 1]) for i in keep]

    def subset(self, keep: Sequence[int]) -> FitSet:
        """The experiments at the positions `keep`: equal to a fresh `fit_set` of them, without the work."""
        rows = self.stages_at(keep)
        every = np.concatenate(rows) if rows else np.arange(0)
        table = self.stages.table[every]
        table[:, DEPLOYMENT] = np.repeat(np.arange(len(rows)), [len(r) for r in rows])
        first = tuple(int(x) for x in np.cumsum([0, *(len(r) for r in rows)])[:-1])
        observed_ms = self.stages.observed_ms[every]
        stages = Stages(table, self.stages.bins[every], observed_ms, first)
        experiments = tuple(self.experiments[i] for i in keep)
        loads, cells = tuple(self.loads[i] for i in keep), tuple(self.cells[i] for i in keep)
        return FitSet(experiments, stages, loads, self.noise[every], self.ratio[every], cells)


def weights_of(noise: np.ndarray, observed_ms: np.ndarray) -> np.ndarray:
    """float64[..., 3]: the weights of relative errors of means with this relative noise; 0 where none was observed."""
    weights = WEIGHTS / np.sqrt(1.0 + np.square(noise / MODEL_ERROR))
    return np.where(np.isnan(observed_ms), 0.0, weights)


def huber_weights(residuals: np.ndarray) -> np.ndarray:
    """Weights of the squared residuals under which least squares takes the step of the Huber loss: 1 up to HUBER."""
    weights: np.ndarray = np.minimum(1.0, HUBER / np.maximum(np.abs(residuals), 1e-12))
    return weights


def huber(residuals: np.ndarray) -> np.ndarray:
    """The Huber loss of each residual: its square up to HUBER, linear beyond."""
    size = np.abs(residuals)
    loss: np.ndarray = np.where(size <= HUBER, size * size, HUBER * (2 * size - HUBER))
    return loss
