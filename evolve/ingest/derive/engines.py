"""Whether a trace file is of one engine: step ids and times rise together. Those of several engines, or of one that was
started again, count from 0 each, so that their steps have each other's ids."""

from __future__ import annotations

import numpy as np

from evolve.ingest.columns import NONE, Columns
from evolve.ingest.derive.journeys import SCHEDULED

FEW, SHARE = 2, 0.01
"""So many contradictions, and such a share of the steps, may be slips of single records."""

BACKWARDS = "steps that begin before the one ahead of them"
MIXED = "several engines, or one started again, wrote into one file: no tables of steps and cycles"


def backwards(step: np.ndarray, ts_ns: np.ndarray) -> int:
    """How many steps have a time before the latest of the step before them; in any order, NONE where not known."""
    known = (ts_ns != NONE) & (step != NONE)
    step, ts_ns = step[known], ts_ns[known]
    order = np.lexsort((ts_ns, step))
    step, ts_ns = step[order], ts_ns[order]
    last = np.flatnonzero(np.diff(step) != 0)
    return int((ts_ns[last + 1] < ts_ns[last]).sum())


def mixed(sampled: Columns, conflicting: int, journeys: Columns) -> tuple[bool, int]:
    """Whether several engines wrote, by batch summaries or by the times at which requests were scheduled, and how many
    steps contradict the order of time. `conflicting`: step ids with two different summaries."""
    scheduled = journeys["event"] == SCHEDULED
    summaries = backwards(sampled["step_id"], sampled["ts_start_ns"])
    starts = backwards(journeys["step"][scheduled], journeys["ts_ns"][scheduled])
    several = _many(summaries + conflicting, len(sampled["step_id"]))
    return several or _many(starts, len(np.unique(journeys["step"][scheduled]))), max(summaries, starts)


def _many(contradictions: int, steps: int) -> bool:
    return contradictions > FEW and contradictions > SHARE * steps
