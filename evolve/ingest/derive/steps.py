"""Sampled scheduler steps: their summaries, a check for several engines, their temporal split, and cycle times.

vLLM's `step.duration_us` is the CPU time of `schedule()`. The cost of a step is a cycle: the time between the starts of
two consecutive steps, if both were sampled.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np

from evolve.ingest.columns import NONE, Columns, select
from evolve.ingest.derive.journeys import SCHEDULED
from simulator.serving.splits import SHARES, SPLITS, TRAIN, VALID

REPEATED = "duplicate step summaries, dropped"
CONFLICTING = "step ids with two different summaries, the first one kept"
BACKWARDS = "steps that begin before the previous one"
MIXED = "several engines, or a restarted one, wrote into one file: no tables of steps and cycles"
FEW, SHARE = 2, 0.01  # up to this many contradictions, or this share of the steps, may be slips of single records

# A cycle holds `schedule()` and at least this much more, to launch a batch and to handle its output.
MARGIN_US = 300.0
LONG = 5.0
"""Usual cycles. In a longer one the engine waited for requests, compiled or was held up. A whole chunk of prompt takes
up to some seven decode steps of a small model, so a step is compared with those of at least half its tokens, if they
take longer than the run's median."""

EMPTY, IDLE = "empty step beside it", "nothing running"
SHORT, STALLED = "shorter than schedule() and its margin", "unusually long"


def sampled_steps(steps: Columns, tally: Counter[str]) -> Columns:
    """Batch summaries by ascending step id, each step once; dropped ones are counted."""
    order = np.lexsort((steps["ts_start_ns"], steps["step_id"]))
    ordered = select(steps, order)
    same = np.diff(ordered["step_id"], prepend=-1) == 0
    twin = same.copy()
    for name, column in ordered.items():
        if name != "kv_usage_ratio":
            twin &= np.diff(column, prepend=NONE) == 0
    tally[REPEATED] += int(twin.sum())
    tally[CONFLICTING] += int((same & ~twin).sum())
    return select(ordered, ~same)


def temporal_split(step_id: np.ndarray) -> np.ndarray:
    """`train`, `valid` or `test` for each sampled step of one run, in the order given.

    By step id, train is the first round(0.6 n), valid the next round(0.2 n), test the rest.
    """
    n = len(step_id)
    train = round(SHARES[TRAIN] * n)
    rank = np.empty(n, dtype=np.int64)
    rank[np.argsort(step_id, kind="stable")] = np.arange(n)
    split: np.ndarray = np.array(SPLITS)[(rank >= train).astype(int) + (rank >= train + round(SHARES[VALID] * n))]
    return split


def mixed(sampled: Columns, conflicting: int, journey_events: Columns) -> tuple[bool, int]:
    """True if several engines, or a restarted one, wrote the file, and the number of steps against the order of time.

    Each engine counts its steps from 0, so that ids and times do not rise together; this shows in batch summaries or in
    the times at which requests were scheduled. `conflicting`: step ids with two different summaries.
    """
    scheduled = journey_events["event"] == SCHEDULED
    steps = journey_events["step"][scheduled]
    by_summary = _backwards(sampled["step_id"], sampled["ts_start_ns"])
    by_start = _backwards(steps, journey_events["ts_ns"][scheduled])
    pairs = ((by_summary + conflicting, len(sampled["step_id"])), (by_start, len(np.unique(steps))))
    return any(n > FEW and n > SHARE * of for n, of in pairs), max(by_summary, by_start)


def _backwards(step: np.ndarray, ts_ns: np.ndarray) -> int:
    """The number of steps with a time before the latest one of the previous step; rows in any order."""
    known = (ts_ns != NONE) & (step != NONE)
    step, ts_ns = step[known], ts_ns[known]
    order = np.lexsort((ts_ns, step))
    step, ts_ns = step[order], ts_ns[order]
    last = np.flatnonzero(np.diff(step) != 0)
    return int((ts_ns[last + 1] < ts_ns[last]).sum())


@dataclass(frozen=True)
class Cycles:
    """One row per pair of consecutive sampled steps N, N+1 of a run, in order.

    step: int64, N. cycle_us: float64, ts_start[N+1] - ts_start[N]. duration_us: float64, of `schedule()` in N.
    measures: int64, the step whose execution the cycle is. usable: bool. why: str, the reason against it, or "".
    """

    step: np.ndarray
    cycle_us: np.ndarray
    duration_us: np.ndarray
    measures: np.ndarray
    usable: np.ndarray
    why: np.ndarray


def cycles_of(sampled: Columns, asynchronous: bool) -> Cycles:
    """The cycles of a run's batch summaries (see `sampled_steps`)."""
    timed = select(sampled, sampled["ts_start_ns"] != NONE)
    duration, running, scheduled = (
        np.where(timed[name] == NONE, np.nan, timed[name])
        for name in ("duration_us", "running_depth", "summary_scheduled_tokens")
    )
    return cycles(timed["step_id"], timed["ts_start_ns"], duration, running, scheduled, asynchronous)


def cycles(
    step_id: np.ndarray,
    ts_start_ns: np.ndarray,
    duration_us: np.ndarray,
    running_depth: np.ndarray,
    scheduled_tokens: np.ndarray,
    asynchronous: bool,
) -> Cycles:
    """The cycles of one run's sampled steps, sorted by step id, each once; NaN where a figure is unknown.

    With async scheduling two batches are in flight: `schedule()` of N+1 waits for the output of N-1, so the cycle is
    the execution of N-1 (measured on a simulated engine: within 0.001 ms, against 0.73 ms for N). Otherwise it is N's.
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
    # If the measured step was not sampled, its tokens are unknown: those of N are the nearest.
    tokens = scheduled_tokens[np.where(has_before, before, first) if asynchronous else first]
    others = why == ""
    usual = np.median(cycle[others]) if others.any() else 0.0
    for row in np.flatnonzero(others & (cycle > LONG * usual)):
        alike = others & (tokens >= tokens[row] / 2)
        if cycle[row] > LONG * max(usual, np.median(cycle[alike]) if alike.any() else 0.0):
            why[row] = STALLED
    return Cycles(step, cycle, duration, step - 1 if asynchronous else step, why == "", why.astype(str))
