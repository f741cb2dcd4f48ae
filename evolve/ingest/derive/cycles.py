"""Cycles: the time from one scheduler step to the next, and of which step it is the cost.

vLLM's `step.duration_us` is the CPU time of `schedule()`. What a step costs is seen between the starts of two
consecutive steps, where both were sampled.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

# A cycle holds `schedule()` and, beside it, at least this much: to launch a batch and to handle its output.
MARGIN_US = 300.0
# Longer than this many usual cycles, an engine waited for requests, compiled or was held up. A whole chunk of prompt
# takes up to some seven decode steps of a small model, so a step is held against those of at least half its tokens,
# where they take longer than the run's median.
LONG = 5.0

EMPTY, IDLE = "empty step beside it", "nothing running"
SHORT, STALLED = "shorter than schedule() and its margin", "unusually long"


@dataclass(frozen=True)
class Cycles:
    """A row for each pair of consecutive sampled steps N, N+1 of one run, in their order.

    step: int64, N. cycle_us: float64, ts_start[N+1] - ts_start[N]. duration_us: float64, of `schedule()` in N.
    measures: int64, the step whose execution the cycle is. usable: bool. why: str, what speaks against it,
    or "".
    """

    step: np.ndarray
    cycle_us: np.ndarray
    duration_us: np.ndarray
    measures: np.ndarray
    usable: np.ndarray
    why: np.ndarray


def cycles(
    step_id: np.ndarray,
    ts_start_ns: np.ndarray,
    duration_us: np.ndarray,
    running_depth: np.ndarray,
    scheduled_tokens: np.ndarray,
    asynchronous: bool,
) -> Cycles:
    """The cycles of one run's sampled steps, sorted by step id, each once; NaN where a figure is not known.

    With async scheduling two batches are in flight: `schedule()` of N+1 waits for the output of N-1, so the cycle is
    the execution of N-1 (measured on a simulated engine: within 0.001 ms, against 0.73 ms for N). Otherwise of N.
    """
    first = np.flatnonzero(np.diff(step_id) == 1)
    step = step_id[first].astype(np.int64)
    cycle = (ts_start_ns[first + 1] - ts_start_ns[first]) / 1e3
    duration = duration_us[first].astype(np.float64)
    before = np.maximum(first - 1, 0)
    has_before = (first > 0) & (step_id[before] == step - 1)
    empty = (scheduled_tokens[first] == 0) | (scheduled_tokens[first + 1] == 0)
    empty |= has_before & (scheduled_tokens[before] == 0)
    why = np.full(len(first), "", dtype=object)
    short = cycle < np.nan_to_num(duration) + MARGIN_US
    for reason, rows in ((SHORT, short), (IDLE, running_depth[first] == 0), (EMPTY, empty)):
        why[rows] = reason
    measured = np.where(has_before, before, first) if asynchronous else first
    why[_long(cycle, scheduled_tokens[measured], why == "")] = STALLED
    return Cycles(step, cycle, duration, step - 1 if asynchronous else step, why == "", why.astype(str))


def _long(cycle: np.ndarray, tokens: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Which of the rows `others` are unusually long: see LONG."""
    out = np.full(len(cycle), False)
    if not others.any():
        return out
    usual = np.median(cycle[others])
    for row in np.flatnonzero(others & (cycle > LONG * usual)):
        alike = others & (tokens >= tokens[row] / 2)
        out[row] = cycle[row] > LONG * max(usual, np.median(cycle[alike]) if alike.any() else 0.0)
    return out
