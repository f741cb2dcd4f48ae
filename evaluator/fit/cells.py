"""The requests of a trace by time window and length: many short and long ones in a window tell more than its mean."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from evaluator.requests import QUARTERS, predicted_ms, quarters, recorded_ms
from simulator.clock.replay import Replay
from simulator.serving.trace import Recorded, rows_by_stage

LEAST = 10  # requests of a cell that counts
BATCHES = 10  # of consecutive requests, whose means show the noise


@dataclass(frozen=True)
class Cells:
    """`of`: int per request, its cell, -1 for none. `window`: int per cell. observed_ms, noise: float64[cells, 3], the
    means of E2E, TTFT and ITL, NaN where none was observed, and how far chance may move them, relative to them."""

    of: np.ndarray
    window: np.ndarray
    observed_ms: np.ndarray
    noise: np.ndarray


def cells_of(replay: Replay, recorded: Recorded) -> Cells | None:
    """The cells of a trace, None if all are too small.

    `replay` is that of a program that is about right, whose errors show the noise.
    """
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
    """float64[parts, 3]: the standard error in ms of the mean difference between recorded and replayed E2E, TTFT and
    ITL of the requests of a part, int per request; NaN with fewer than 2 batches of them.

    Requests that run together share their luck. So it is that of BATCHES batches of consecutive requests, whose means
    hardly depend on each other (batch means: Law and Kelton, Simulation Modeling and Analysis, section 9.5).
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
    """float64[cells, 3]: means over the members of each cell that have the latency; NaN without any."""
    means = np.full((count, 3), np.nan)
    for j, values in enumerate(latencies):
        known = (of >= 0) & ~np.isnan(values)
        counts = np.bincount(of[known], minlength=count)
        sums = np.bincount(of[known], weights=values[known], minlength=count)
        means[counts > 0, j] = sums[counts > 0] / counts[counts > 0]
    return means
