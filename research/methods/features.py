"""The information of a form's features on single steps: a ridge on them against a ridge on raw counts, run by run (h1).

`configs/leaderboard.yaml` has the protocol.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from evaluator.fit.problem import limits
from evaluator.fit.steps import StepRun, slopes_by_differences, step_positions
from evaluator.fit.trees import TreeFeature, feature_values
from research.methods.samples import Sample
from simulator.clock.bind import bind
from simulator.language.ir import Program
from simulator.language.opcodes import assemble
from simulator.serving.splits import TEST, TRAIN, VALID

Basis = Callable[[Sample], np.ndarray]  # float64[times, features] of a run's times


def slopes(form: Program) -> Basis:
    """The slopes of the form's step time by each of its free constants, at the form's own values; its step time itself
    if it has none.

    For a form that is linear in its constants these are what the constants multiply, whatever their values.
    """
    code, theta = assemble(form), np.array(form.theta, dtype=float)
    low, high = limits(form)
    free = [j for j in step_positions(form) if high[j] > low[j]]

    def basis(sample: Sample) -> np.ndarray:
        def times_us(x: np.ndarray) -> np.ndarray:
            moved = theta.copy()
            moved[free] = x
            return sample.predicted_us(bind(code, tuple(moved), sample.facts))

        if not free:
            return times_us(theta[free])[:, None]
        return slopes_by_differences(times_us, theta[free])

    return basis


def of_trees(features: Sequence[TreeFeature]) -> Basis:
    """The features of an ensemble: means over the batches of each time."""

    def basis(sample: Sample) -> np.ndarray:
        run = StepRun(sample.facts, sample.raw, np.ones(len(sample.raw)))
        return sample.means(feature_values(features, run))

    return basis


def raw_counts(sample: Sample) -> np.ndarray:
    """float64[times, RAW]: the sums of the batch that the host keeps; means over the batches of each time."""
    return sample.means(sample.raw)


def mape_by_run(basis: Basis, samples: Sequence[Sample], strengths: Sequence[float]) -> dict[str, float]:
    """The mean absolute percentage error of each run under a ridge on the basis, by id.

    A run with test times (cycles) is predicted there, by a ridge on the train times of all runs. Any other run is
    predicted at all of its times, by a ridge on the other runs. A run without others to train on is left out.
    """
    tables = {sample.experiment: _table(basis(sample), sample) for sample in samples}
    errors = dict[str, float]()
    for name, table in tables.items():
        timed = table.has(TEST)
        others = [t for other, t in tables.items() if timed or other != name]
        train = [t.of(TRAIN) for t in others if t.has(TRAIN)]
        if train:
            valid = [t.of(VALID) for t in others if t.has(VALID)] or train
            errors[name] = _mape(_chosen(train, valid, strengths), table.of(TEST) if timed else table)
    return errors


@dataclass(frozen=True)
class _Table:
    """Features, times in us, and splits of one run."""

    x: np.ndarray
    y: np.ndarray
    split: np.ndarray

    def has(self, split: str) -> bool:
        return bool((self.split == split).any())

    def of(self, split: str) -> _Table:
        keep = self.split == split
        return _Table(self.x[keep], self.y[keep], self.split[keep])


def _table(x: np.ndarray, sample: Sample) -> _Table:
    return _Table(np.nan_to_num(x, posinf=0.0, neginf=0.0), sample.observed_us, sample.split)


@dataclass(frozen=True)
class _Ridge:
    """y = constants[0] + constants[1:] of (x - centre) / spread."""

    centre: np.ndarray
    spread: np.ndarray
    constants: np.ndarray

    def predicted_us(self, x: np.ndarray) -> np.ndarray:
        times: np.ndarray = _design(x, self.centre, self.spread) @ self.constants
        return times


def _design(x: np.ndarray, centre: np.ndarray, spread: np.ndarray) -> np.ndarray:
    # A feature that does not vary where the ridge is trained says nothing elsewhere.
    units = np.divide(x - centre, spread, out=np.zeros_like(x), where=spread > 0.0)
    return np.column_stack([np.ones(len(x)), units])


def _chosen(train: Sequence[_Table], valid: Sequence[_Table], strengths: Sequence[float]) -> _Ridge:
    """The ridge of the strength with the lowest mean error over the runs of `valid`."""
    ridges = _ridges(train, strengths)
    errors = [np.mean([_mape(ridge, table) for table in valid]) for ridge in ridges]
    return ridges[int(np.argmin(errors))]


def _ridges(train: Sequence[_Table], strengths: Sequence[float]) -> list[_Ridge]:
    """A ridge of each strength. Rows are divided by their times, so that residuals are relative errors."""
    x, y = np.concatenate([t.x for t in train]), np.concatenate([t.y for t in train])
    weight = np.concatenate([np.full(len(t.y), 1.0 / len(t.y)) for t in train])
    centre = np.average(x, axis=0, weights=weight)
    spread = np.sqrt(np.average(np.square(x - centre), axis=0, weights=weight))
    spread = np.where(spread > 1e-9 * np.abs(centre), spread, 0.0)
    size = np.sqrt(weight) / y
    rows = _design(x, centre, spread) * size[:, None]
    # A feature in units of its spread weighs as much as the intercept does.
    unit = np.full(rows.shape[1], np.square(size).sum())
    unit[0] = 0.0
    target = rows.T @ np.sqrt(weight)
    return [_Ridge(centre, spread, _solved(rows.T @ rows + np.diag(s * unit), target)) for s in strengths]


def _solved(matrix: np.ndarray, target: np.ndarray) -> np.ndarray:
    solution: np.ndarray = np.linalg.lstsq(matrix, target, rcond=None)[0]
    return solution


def _mape(ridge: _Ridge, table: _Table) -> float:
    errors = ridge.predicted_us(table.x) / table.y - 1.0
    return float(100.0 * np.abs(errors).mean())


def paired(of_features: Mapping[str, float], of_counts: Mapping[str, float]) -> dict[str, tuple[float, float]]:
    """(error on features, error on raw counts) of each run that has both, in percent."""
    return {name: (error, of_counts[name]) for name, error in of_features.items() if name in of_counts}
