"""The data of a fit, and the loss on them: weighted relative errors of stage means under a Huber loss.

A mean that varies more from one draw of arrivals to the next says less about a program, and has a smaller weight. So
has each of many runs of a model on a GPU (`evaluator.cells`). The requests of a trace form cells of similar lengths in
a time window, which say more than the mean of the window.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from evaluator.cells import WEIGHTS, mean_error, run_weights, weighted_mean
from evaluator.fit.gauss_newton import HUBER, LOST
from evaluator.fit.machine import DEPLOYMENT, DURATION, RATE
from evaluator.fit.stages import Stages
from evaluator.requests import QUARTERS, predicted_ms, quarters, recorded_ms
from simulator.clock.bind import Deployments, deployments_in_order
from simulator.clock.replay import Replay
from simulator.serving.experiment import Experiment
from simulator.serving.load import Load
from simulator.serving.trace import Recorded, rows_by_stage

# Error of a good program in a calm stage: about a percent, as in the E2E errors of the data. Arrival noise adds its own
# variance to a residual; weights are inverse deviations in units of MODEL_ERROR.
MODEL_ERROR = 0.01
LEAST = 10  # requests of a cell, at least
BATCHES = 10  # of consecutive requests, whose means show the noise


@dataclass(frozen=True)
class Cells:
    """The requests of a trace by time window and quarters of prompt and answer lengths.

    of: int per request, its cell, -1 for none. window: int per cell. observed_ms, noise: float64[cells, 3], the means
    of E2E, TTFT and ITL (NaN where none was observed) and their relative standard errors.
    """

    of: np.ndarray
    window: np.ndarray
    observed_ms: np.ndarray
    noise: np.ndarray


class Delays(NamedTuple):
    """Mean times in ms of a run's requests; NaN where not observed."""

    before: float  # of the TTFT, outside of steps: the wait for a step included
    after: float  # of the E2E after the first token, outside of steps


def observed_delays(experiment: Experiment) -> Delays:
    """The delays of a run by its latencies and the parts of its E2E that were observed."""
    c, summary = experiment.components, experiment.observed.summary if experiment.observed else None
    if c is None or summary is None:
        return Delays(np.nan, np.nan)
    e2e, ttft, prefill, decode = (
        np.nan if x is None else x for x in (summary.e2e_ms.mean, summary.ttft_ms.mean, c.prefill_steps, c.decode_steps)
    )
    seen = c.after_finish is not None or c.client is not None  # else the last step's end is the last thing known
    return Delays(ttft - prefill, max(e2e - ttft - decode, 0.0) if seen else np.nan)


@dataclass(frozen=True)
class FitSet:
    """Experiments prepared for fitting: their load stages, and the loads of the correcting replays.

    noise: float64[stages, 3], the relative standard deviation over arrival seeds of mean E2E, TTFT, ITL. ratio:
    float64[stages, 3], replay over mean field for a simple law fitted to each experiment alone; a fit starts from it.
    cells: of each experiment, None unless its requests were recorded one by one. in_steps: bool[experiments], True for
    runs whose replay is taken as the mean field times `ratio`: the schedule of a closed load, in steps, hardly depends
    on how long these last.
    """

    experiments: tuple[Experiment, ...]
    stages: Stages
    loads: tuple[Load, ...]
    noise: np.ndarray
    ratio: np.ndarray
    cells: tuple[Cells | None, ...]
    in_steps: np.ndarray

    @cached_property
    def run_weights(self) -> np.ndarray:
        """float64[experiments]: see evaluator.cells."""
        return run_weights(self.experiments)

    @cached_property
    def delays(self) -> dict[int, Delays]:
        """What was observed of delays outside of steps, by position of the experiment; none without any."""
        every = enumerate(map(observed_delays, self.experiments))
        return {i: delays for i, delays in every if not np.isnan(delays).all()}

    @cached_property
    def deployments(self) -> Deployments:
        """The deployment of each experiment, named by its position."""
        return deployments_in_order(self.experiments)

    @cached_property
    def experiment_of(self) -> np.ndarray:
        """int[stages]: the position of the experiment of each stage."""
        positions: np.ndarray = self.stages.table[:, DEPLOYMENT].astype(int)
        return positions

    @cached_property
    def weights(self) -> np.ndarray:
        """float64[stages, 3]: the weights of the relative errors, 0 where nothing was observed."""
        shares = np.sqrt(self.run_weights)[self.experiment_of]
        weights: np.ndarray = weights_of(self.noise, self.stages.observed_ms) * shares[:, None]
        return weights

    def residuals(self, predicted_ms: np.ndarray) -> np.ndarray:
        """Weighted relative errors, float64[stages, 3]; 0 where nothing was observed."""
        observed = self.stages.observed_ms
        with np.errstate(invalid="ignore"):
            relative = (predicted_ms - observed) / observed
        weighted = np.nan_to_num(relative, nan=LOST, posinf=LOST, neginf=-LOST) * self.weights
        return np.where(np.isnan(observed), 0.0, weighted)

    def loss(self, predicted_ms: np.ndarray) -> float:
        return float(huber(self.residuals(predicted_ms)).mean())

    def errors_pct(self, predicted_ms: np.ndarray) -> np.ndarray:
        """Signed errors in percent of mean E2E, TTFT and ITL, float64[experiments, 3]; NaN where nothing was observed.

        predicted_ms: float64[stages, 3]. The mean of an experiment weighs its stages by their requests.
        """
        observed = self.stages.observed_ms
        requests = (self.stages.table[:, RATE] * self.stages.table[:, DURATION])[:, None]
        known = ~np.isnan(observed)
        sums = np.zeros((2, len(self.experiments), 3))
        np.add.at(sums[0], self.experiment_of, np.where(known, requests * predicted_ms, 0.0))
        np.add.at(sums[1], self.experiment_of, np.where(known, requests * observed, 0.0))
        with np.errstate(invalid="ignore", divide="ignore"):
            errors: np.ndarray = 100.0 * (sums[0] / sums[1] - 1.0)
        return errors

    def mean_error(self, predicted_ms: np.ndarray) -> float:
        """The mean error in percent of predicted stage means, as in `evaluator.score`; NaN if nothing was observed."""
        of_runs = np.abs(self.errors_pct(predicted_ms))
        means = [weighted_mean(_known(column), self.run_weights) for column in of_runs.T]
        mean = mean_error(*means)
        return math.nan if mean is None else mean

    def stages_at(self, keep: Sequence[int]) -> list[np.ndarray]:
        """The rows of the load stages of each experiment at `keep`."""
        return [np.flatnonzero(self.experiment_of == i) for i in keep]

    def subset(self, keep: Sequence[int]) -> FitSet:
        """The experiments at `keep`: equal to a fresh `fit_set` of them, without its work."""
        rows = self.stages_at(keep)
        every = np.concatenate([*rows, np.arange(0)])
        table = self.stages.table[every]
        table[:, DEPLOYMENT] = np.repeat(np.arange(len(rows)), [len(r) for r in rows])
        stages = Stages(table, self.stages.bins[every], self.stages.observed_ms[every])
        experiments = tuple(self.experiments[i] for i in keep)
        loads, cells = tuple(self.loads[i] for i in keep), tuple(self.cells[i] for i in keep)
        in_steps = self.in_steps[list(keep)]
        return FitSet(experiments, stages, loads, self.noise[every], self.ratio[every], cells, in_steps)


def _known(values: np.ndarray) -> list[float | None]:
    return [None if math.isnan(x) else x for x in values.tolist()]


def weights_of(noise: np.ndarray, observed_ms: np.ndarray) -> np.ndarray:
    """float64[..., 3]: the weights of relative errors of means with this relative noise; 0 where nothing was
    observed."""
    weights = WEIGHTS / np.sqrt(1.0 + np.square(noise / MODEL_ERROR))
    return np.where(np.isnan(observed_ms), 0.0, weights)


def huber_weights(residuals: np.ndarray) -> np.ndarray:
    """The weights that make least squares take the step of the Huber loss: 1 up to HUBER."""
    weights: np.ndarray = np.minimum(1.0, HUBER / np.maximum(np.abs(residuals), 1e-12))
    return weights


def huber(residuals: np.ndarray) -> np.ndarray:
    """The Huber loss of each residual: its square up to HUBER, linear beyond."""
    size = np.abs(residuals)
    loss: np.ndarray = np.where(size <= HUBER, size * size, HUBER * (2 * size - HUBER))
    return loss


def cells_of(replay: Replay, recorded: Recorded) -> Cells | None:
    """The cells of a trace, None if all are too small; the errors of `replay`, of a program about right, show noise."""
    r = replay.requests
    of = np.full(len(r), -1, np.int32)
    windows: list[int] = []
    for window, rows in enumerate(rows_by_stage(r.stage, int(r.stage.max(initial=-1)) + 1)):
        both = quarters(r.input_len[rows]) * QUARTERS + quarters(r.output_len[rows])
        for cell in np.unique(both):
            members = rows[both == cell]
            if len(members) >= LEAST:
                of[members] = len(windows)
                windows.append(window)
    if not windows:
        return None
    count = len(windows)
    observed_ms = means_ms(of, count, recorded_ms(r, recorded))
    with np.errstate(invalid="ignore", divide="ignore"):
        noise = standard_errors_ms(replay, recorded, of, count) / observed_ms
    return Cells(of, np.array(windows, dtype=int), observed_ms, np.where(np.isfinite(noise), noise, 0.0))


def standard_errors_ms(replay: Replay, recorded: Recorded, part: np.ndarray, parts: int) -> np.ndarray:
    """float64[parts, 3]: standard errors in ms of the mean difference between recorded and replayed E2E, TTFT and ITL.

    part: int per request. Requests that run together err together, so the errors are those of BATCHES means of
    consecutive requests (batch means: Law and Kelton, Simulation Modeling and Analysis, section 9.5); NaN with fewer
    than two batches.
    """
    differences = recorded_ms(replay.requests, recorded) - predicted_ms(replay)
    errors = np.full((parts, 3), np.nan)
    for i, rows in enumerate(rows_by_stage(part, parts)):
        for j, difference in enumerate(differences[:, rows]):
            known = difference[~np.isnan(difference)]
            count = min(BATCHES, len(known))
            if count > 1:
                means = [batch.mean() for batch in np.array_split(known, count)]
                errors[i, j] = np.std(means, ddof=1) / np.sqrt(count)
    return errors


def replayed_ms(replay: Replay, cells: Cells) -> np.ndarray:
    """float64[cells, 3]: the mean E2E, TTFT and ITL in ms of the completed requests of each cell."""
    return means_ms(cells.of, len(cells.observed_ms), predicted_ms(replay))


def means_ms(of: np.ndarray, count: int, latencies: np.ndarray) -> np.ndarray:
    """float64[count, 3]: means of float64[3, requests] over the members of each cell that have the latency, or NaN."""
    means = np.full((count, 3), np.nan)
    for j, values in enumerate(latencies):
        known = (of >= 0) & ~np.isnan(values)
        counts = np.bincount(of[known], minlength=count)
        sums = np.bincount(of[known], weights=values[known], minlength=count)
        means[counts > 0, j] = sums[counts > 0] / counts[counts > 0]
    return means
