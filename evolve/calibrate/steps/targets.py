"""Measured times of steps, each with the batch whose time it is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from evolve.calibrate.steps.estimate import Summary, estimate
from evolve.calibrate.steps.sources import TableRun
from evolve.calibrate.steps.table import SUMMARY
from evolve.ingest.derive.steps import EMPTY, cycles, temporal_split
from simulator.clock.fields import raw_row
from simulator.schema import DECODE_REQS, PREFILL_REQS
from simulator.serving.splits import SPLITS

OWN, NEIGHBOUR = "own batch", "neighbour's batch"
ESTIMATED = "estimated"  # evidence of a batch that was estimated from a summary
MOST_REQUESTS = 1e5  # summaries of larger batches are not believed
_NO_BATCH = "no batch is known"


@dataclass(frozen=True)
class Targets:
    """The steps of one run that have a measured time, a row each.

    step: int64, the sampled step of the row. observed_us: float64. raw: float64[rows, RAW], the batch. batch: str, OWN
    for the batch of the measured step, NEIGHBOUR where the sampled step's own is used instead. evidence: str, how sure
    the batch is. split: str. candidates: how many steps there were; dropped: how many of them are missing here, by
    reason. moved: estimated batches whose KV length was moved into what the workload allows. splits: every sampled
    step, by split.
    """

    run: TableRun
    step: np.ndarray
    observed_us: np.ndarray
    raw: np.ndarray
    batch: np.ndarray
    evidence: np.ndarray
    split: np.ndarray
    candidates: int
    dropped: dict[str, int]
    moved: int
    splits: dict[str, list[int]]

    @property
    def usable(self) -> int:
        return self.candidates - sum(self.dropped.values())

    def of(self, split: str) -> Targets:
        keep = np.full(len(self.step), True) if split == "all" else self.split == split
        columns = ("step", "observed_us", "raw", "batch", "evidence", "split")
        return replace(self, **{name: getattr(self, name)[keep] for name in columns})


def cycle_targets(run: TableRun) -> Targets:
    """The usable cycles of a run, with the batch of the step that each measures; see `evolve.ingest.derive.steps`.

    If that batch is unknown, use the sampled step's own batch as an approximation. Under async scheduling that is the
    batch of the next step: between neighbours a decode batch hardly changes, though a prefill does.
    """
    s = run.steps
    at = np.flatnonzero(s.sampled)
    duration, running, tokens = (s.figures[name][at] for name in ("duration_us", "running", "scheduled_tokens"))
    pairs = cycles(s.step_id[at], s.start_ns[at], duration, running, tokens, run.asynchronous)
    own, named = _place(s.step_id, pairs.measures), _place(s.step_id, pairs.step)
    batches = _Batches(run)
    why, rows = pairs.why.astype(object), np.zeros(len(own), dtype=int)
    for i in np.flatnonzero(pairs.usable).tolist():
        choice = next((row for row in (int(own[i]), int(named[i])) if row >= 0 and batches.has(row)), None)
        if choice is None:
            why[i] = _NO_BATCH
        elif not batches.size(choice):
            why[i] = EMPTY
        else:
            rows[i] = choice
    keep = np.flatnonzero(why == "")
    kind = np.where(rows[keep] == own[keep], OWN, NEIGHBOUR)
    return _targets(run, pairs.step[keep], pairs.cycle_us[keep], rows[keep], kind, why, batches)


def duration_targets(run: TableRun) -> Targets:
    """The CPU time of `schedule()` in every sampled step, with the batch of that step. It is not the step's cost."""
    s = run.steps
    at = np.flatnonzero(s.sampled)
    duration, batches = s.figures["duration_us"][at], _Batches(run)
    why = np.full(len(at), "", dtype=object)
    for i, row in enumerate(at.tolist()):
        if not duration[i] > 0.0:
            why[i] = "no duration"
        elif not batches.has(row):
            why[i] = _NO_BATCH
        elif not batches.size(row):
            why[i] = "empty step"
    keep = why == ""
    return _targets(run, s.step_id[at][keep], duration[keep], at[keep], np.full(keep.sum(), OWN), why, batches)


class _Batches:
    """The batches of a run. One that no journeys give is estimated from its summary when it is first needed."""

    def __init__(self, run: TableRun) -> None:
        s = run.steps
        self.run, self.raw, self.evidence, self.moved = run, s.raw.copy(), s.evidence.astype(object), set[int]()
        figures = np.stack([s.figures[name] for name in SUMMARY], axis=1)
        p, d, total, free = (SUMMARY.index(n) for n in ("prefill_reqs", "decode_reqs", "blocks_total", "blocks_free"))
        with np.errstate(invalid="ignore"):
            self.summarised = s.sampled & np.isfinite(figures).all(axis=1) & (figures >= 0).all(axis=1)
            self.summarised &= figures[:, p] + figures[:, d] <= MOST_REQUESTS
            self.summarised &= figures[:, free] <= figures[:, total]

    def has(self, row: int) -> bool:
        return bool(not np.isnan(self.raw[row, 0]) or self.summarised[row])

    def size(self, row: int) -> float:
        if np.isnan(self.raw[row, 0]):
            self._estimate(row)
        return float(self.raw[row, PREFILL_REQS] + self.raw[row, DECODE_REQS])

    def _estimate(self, row: int) -> None:
        running, p, d, _, prefill, decode, total, free = (int(self.run.steps.figures[name][row]) for name in SUMMARY)
        summary = Summary(p, d, prefill, decode, running, total - free)
        batch, moved = estimate(summary, self.run.experiment, self.run.asynchronous)
        self.raw[row], self.evidence[row] = raw_row(batch), ESTIMATED
        if moved:
            self.moved.add(row)


def _place(ids: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """int[wanted]: the position of each among the sorted `ids`, -1 if it is not among them."""
    at = np.minimum(np.searchsorted(ids, wanted), len(ids) - 1)
    return np.where(ids[at] == wanted, at, -1)


def _targets(
    run: TableRun,
    step: np.ndarray,
    us: np.ndarray,
    rows: np.ndarray,
    kind: np.ndarray,
    why: np.ndarray,
    batches: _Batches,
) -> Targets:
    s = run.steps
    sampled = s.step_id[s.sampled]
    in_table = s.split[s.sampled]
    split = in_table if np.isin(in_table, SPLITS).all() else temporal_split(sampled)
    evidence, dropped = batches.evidence[rows].astype(str), dict(Counter(reason for reason in why if reason))
    moved, splits = len(batches.moved & set(rows.tolist())), {name: sampled[split == name].tolist() for name in SPLITS}
    found = kind.astype(str), evidence, split[_place(sampled, step)]
    return Targets(run, step, us, batches.raw[rows], *found, len(why), dropped, moved, splits)


def together(targets: Sequence[Targets], name: str) -> np.ndarray:
    """One column over all runs."""
    return np.concatenate([getattr(t, name) for t in targets])
