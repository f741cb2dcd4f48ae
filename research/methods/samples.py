"""Measured step times to train on: cycles where steps were recorded, elsewhere the mean of each load stage."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from evaluator.diagnose.stage_steps import stage_steps
from evaluator.fit.loss import FitSet
from evolve.calibrate.steps.figures import phases
from evolve.calibrate.steps.targets import OWN, Targets
from simulator.clock.bind import Bound
from simulator.schema import PREFILL_TOKENS, RAW_FIELDS
from simulator.serving.splits import TRAIN, VALID

EVERY = 5  # of the load stages without cycles, every fifth is for validation


@dataclass(frozen=True)
class Sample:
    """Measured times of one run, a row each, in the order in which they were measured.

    facts: of the deployment. raw: float64[batches, RAW]. first: int[times], the position of each time's first batch.
    share: float64[batches], of its time; a cycle has one batch, a load stage a mixture. observed_us, weight:
    float64[times]. split: str[times]. step: int[times], the step id of a cycle, -1 of a load stage.
    """

    experiment: str
    facts: Mapping[str, float]
    raw: np.ndarray
    first: np.ndarray
    share: np.ndarray
    observed_us: np.ndarray
    weight: np.ndarray
    split: np.ndarray
    step: np.ndarray

    def predicted_us(self, bound: Bound) -> np.ndarray:
        """float64[times]: the times by a program that is bound to this deployment."""
        means: np.ndarray = np.add.reduceat(self.share * bound.steps_us(self.raw), self.first)
        return means

    def where(self, keep: np.ndarray) -> Sample:
        """The times where `keep`, bool[times], is true."""
        lengths = np.diff(np.append(self.first, len(self.raw)))
        batches = np.repeat(keep, lengths)
        first = np.concatenate([[0], np.cumsum(lengths[keep])[:-1]]).astype(int) if keep.any() else self.first[:0]
        columns = {name: getattr(self, name)[keep] for name in ("observed_us", "weight", "split", "step")}
        return replace(self, raw=self.raw[batches], share=self.share[batches], first=first, **columns)

    @property
    def typical(self) -> np.ndarray:
        """float64[times, RAW]: the batch with the largest share of each time."""
        ends = np.append(self.first[1:], len(self.raw))
        largest = [a + int(np.argmax(self.share[a:z])) for a, z in zip(self.first, ends, strict=True)]
        rows: np.ndarray = self.raw[largest]
        return rows

    @property
    def prefill_tokens(self) -> np.ndarray:
        """float64[times]: mean new prompt tokens in the step."""
        return self.means(self.raw[:, [PREFILL_TOKENS]])[:, 0]

    @property
    def pure(self) -> np.ndarray:
        """bool[times]: steps of one phase. A load stage is mostly pure, and counts as such."""
        mixed: np.ndarray = self.means((phases(self.raw) == "mixed with prefill").astype(float)[:, None])[:, 0] > 0.5
        return ~mixed

    def means(self, columns: np.ndarray) -> np.ndarray:
        """float64[times, columns]: the means over the batches of each time of float64[batches, columns]."""
        means: np.ndarray = np.add.reduceat(self.share[:, None] * columns, self.first, axis=0)
        return means


def samples_of(data: FitSet, targets: Sequence[Targets]) -> list[Sample]:
    """The times of the experiments of `data`: the cycles of those that are in `targets`, else the load stages.

    A cycle against a neighbour's batch counts only if that batch has no prefill, because a prefill is in one step and
    not in the next. A run weighs as much as its load stages, however many cycles it has.
    """
    recorded = {t.run.experiment.id: t for t in targets}
    samples, stages_seen = list[Sample](), 0
    for e, rows in zip(data.experiments, data.stages_at(range(len(data.experiments))), strict=True):
        if e.id in recorded:
            samples.append(_cycles(recorded[e.id], len(rows)))
            continue
        seen = rows[~np.isnan(data.stages.observed_ms[rows, 2])]
        if len(seen):
            samples.append(_stages(data, e.id, e.facts, seen, stages_seen))
            stages_seen += len(seen)
    return samples


def _cycles(targets: Targets, stages: int) -> Sample:
    keep, e = (targets.batch == OWN) | (phases(targets.raw) == "pure decode"), targets.run.experiment
    n = int(keep.sum())
    batches = targets.raw[keep], np.arange(n), np.ones(n)
    weight = np.full(n, stages / max(n, 1))
    return Sample(e.id, e.facts, *batches, targets.observed_us[keep], weight, targets.split[keep], targets.step[keep])


def _stages(data: FitSet, name: str, facts: Mapping[str, float], rows: np.ndarray, seen: int) -> Sample:
    observed_us = data.stages.observed_ms[rows, 2] * 1e3
    raw, share, first = list[np.ndarray](), list[np.ndarray](), list[int]()
    for row, pace_us in zip(rows, observed_us, strict=True):
        steps = stage_steps(data.stages.table[row], float(pace_us), facts)
        first.append(sum(map(len, share)))
        raw.append(np.array([list(step.raw.values()) for step in steps.steps]).reshape(-1, RAW_FIELDS))
        share.append(steps.shares)
    n = len(rows)
    split = np.where((seen + np.arange(n)) % EVERY == EVERY - 1, VALID, TRAIN)
    batches = np.concatenate(raw), np.array(first), np.concatenate(share)
    return Sample(name, facts, *batches, observed_us, np.ones(n), split, np.full(n, -1))
