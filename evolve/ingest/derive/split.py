"""The temporal split of a run's sampled steps: the first part to fit on, the last one to be judged on."""

from __future__ import annotations

import numpy as np

SPLITS = ("train", "valid", "test")
TRAIN, VALID = 0.6, 0.2  # shares of the steps


def temporal_split(step_id: np.ndarray) -> np.ndarray:
    """`train`, `valid` or `test` for each sampled step of one run, in the order given.

    Sorted by step id: train is the first round(0.6 n), valid the next round(0.2 n), test the rest.
    """
    n = len(step_id)
    train = round(TRAIN * n)
    rank = np.empty(n, dtype=np.int64)
    rank[np.argsort(step_id, kind="stable")] = np.arange(n)
    out: np.ndarray = np.array(SPLITS)[(rank >= train).astype(int) + (rank >= train + round(VALID * n))]
    return out
