"""Ensembles of trees as step times: gradient-boosted trees on what the host knows of a batch, trained on single steps.

The trees are scikit-learn's, on the logarithm of the time; their settings are found by optuna on the validation rows.
Features are formulas of the language, never the name of a model or a workload. Work that grows never makes the time
fall: that is a constraint on every tree. The mean of logarithms is below the logarithm of the mean, so each phase of a
step has a smearing correction (Duan 1983), the logarithm of the mean of exp(residual) on the training rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from evaluator.fit.steps import StepRun
from evaluator.fit.tree_features import FEATURES, TreeFeature, feature_values
from simulator.clock.bind import bind
from simulator.common.errors import InputError
from simulator.language.forest import LEAF, Corrections, Forest, Tree
from simulator.language.ir import Field, Op, Program, with_step_times
from simulator.language.opcodes import assemble
from simulator.language.parse import parse
from simulator.schema import DECODE_REQS, PREFILL_REQS, TREES
from simulator.serving.splits import SPLITS, TRAIN, VALID

INSTALL = "trees: needs the extra: `make trees`, or pip install 'evolve-latency[trees]'"
TRIALS = 100
MOST_TREES = 300  # of which the validation rows keep the best number
MOST_LEAVES = 31  # of a tree: with MOST_TREES at most 18,300 nodes, about 600 kB of Go
REPEATS = 5  # permutations of a feature for its importance
PROGRAM = """
def step_time(b, s, *, scale: us = 1.0):
    return scale * b.trees
"""


class NoRows(InputError):
    """No row is in this split, so there is nothing to learn from, or to judge by."""

    def __init__(self, split: str) -> None:
        super().__init__(f"trees: no row is in the split '{split}': put some there")
        self.split = split


@dataclass(frozen=True)
class SplitRun:
    """Batches of one deployment with their times. split: of each, one of SPLITS."""

    steps: StepRun
    split: np.ndarray


@dataclass(frozen=True, slots=True)
class TreeSettings:
    """What optuna chose. trees: how many of at most MOST_TREES the validation rows keep."""

    learning_rate: float
    leaves: int
    depth: int
    least_rows: int
    l2: float
    trees: int = MOST_TREES


@dataclass(frozen=True, slots=True)
class Importance:
    """By how many percentage points the validation error grows if the feature's values are permuted."""

    name: str
    points: float


@dataclass(frozen=True)
class Trained:
    """An ensemble, and a program that reads it, whose constants a fit may still change.

    rows, error_pct: by split, how many there are and the mean absolute percentage error on them, None without rows.
    importances: the largest first.
    """

    program: Program
    forest: Forest
    settings: TreeSettings
    rows: Mapping[str, int]
    error_pct: Mapping[str, float | None]
    importances: tuple[Importance, ...]


def train(runs: Sequence[SplitRun], features: str = "own", *, trials: int = TRIALS, seed: int = 0) -> Trained:
    """The ensemble for the step times of `runs`; its program is `scale * b.trees`. `features`: one of FEATURES.

    Deterministic. Raises InputError without the libraries, and for rows that cannot be learned from.
    """
    return _trained(runs, [run.steps.observed_us for run in runs], parse(PROGRAM), features, trials, seed)


def train_ratio(runs: Sequence[SplitRun], base: Program, *, trials: int = TRIALS) -> Trained:
    """The ensemble of the features OWN for observed time over the step time of `base`; its program is that of `base`
    times b.trees.

    Batches may be load stages: a typical one of each, and its mean step time. These are few (about thirty); the result
    says on how many it rests.
    """
    code = assemble(base)
    every = [run.steps for run in runs]
    ratios = [steps.observed_us / bind(code, base.theta, steps.facts).steps_us(steps.raw) for steps in every]
    return _trained(runs, ratios, times_trees(base), "own", trials, seed=0)


def times_trees(program: Program) -> Program:
    """The program with every value that its step time returns multiplied by b.trees.

    >>> from simulator.language.unparse import unparse
    >>> print(unparse(times_trees(parse("def step_time(b, s): return s.weights_us + b.kv_read_us"))), end="")
    def step_time(b, s):
        return (s.weights_us + b.kv_read_us) * b.trees
    """
    return with_step_times(program, lambda time: Op("*", time, Field("b", TREES.name)))


@dataclass(frozen=True)
class _Split:
    """The rows of a split: features, target and phase (0 decodes alone, 1 mixed, 2 prefill alone)."""

    x: np.ndarray
    y: np.ndarray
    phase: np.ndarray


def _trained(
    runs: Sequence[SplitRun], targets: Sequence[np.ndarray], program: Program, features: str, trials: int, seed: int
) -> Trained:
    _require()
    from sklearn.inspection import permutation_importance
    from threadpoolctl import threadpool_limits

    chosen = FEATURES[features]
    splits = _splits(runs, targets, chosen)
    train, valid = splits[TRAIN], splits[VALID]
    with threadpool_limits(1):  # sums over threads would depend on how many there are
        settings = _tuned(train, valid, chosen, trials, seed)
        model = _model(settings, chosen, seed).fit(train.x, np.log(train.y))
        corrections = _smearing(model.predict(train.x), train)

        def error_pct(rows: _Split) -> float:
            return _error_pct(model.predict(rows.x), rows, corrections)

        def score(_: Any, x: np.ndarray, y: np.ndarray) -> float:
            return -error_pct(replace(valid, x=x))

        permuted = permutation_importance(model, valid.x, valid.y, scoring=score, n_repeats=REPEATS, random_state=seed)
        errors = {name: error_pct(split) if len(split.y) else None for name, split in splits.items()}
    forest = _forest(model, chosen, corrections)
    importances = [Importance(f.name, float(x)) for f, x in zip(chosen, permuted.importances_mean, strict=True)]
    return Trained(
        program=program.with_forest(forest),
        forest=forest,
        settings=settings,
        rows={name: len(split.y) for name, split in splits.items()},
        error_pct=errors,
        importances=tuple(sorted(importances, key=lambda i: -i.points)),
    )


def _require() -> None:
    """Raise InputError without the libraries of the extra."""
    try:
        # Optional libraries, which take a second to load.
        import optuna
        import sklearn  # noqa: F401
    except ImportError:
        raise InputError(INSTALL) from None
    optuna.logging.set_verbosity(optuna.logging.ERROR)  # a trial that is interrupted warns with a traceback


def _splits(
    runs: Sequence[SplitRun], targets: Sequence[np.ndarray], features: Sequence[TreeFeature]
) -> dict[str, _Split]:
    """The rows of all runs by split. Raises NoRows where there is nothing to learn from, or to judge by, and InputError
    for times that are not above 0."""
    x = np.concatenate([feature_values(features, run.steps) for run in runs] or [np.zeros((0, len(features)))])
    y = np.concatenate([*targets, np.zeros(0)])
    prefill, decode = (
        np.concatenate([*(run.steps.raw[:, column] > 0 for run in runs), np.zeros(0, bool)])
        for column in (PREFILL_REQS, DECODE_REQS)
    )
    phase = np.where(prefill, np.where(decode, 1, 2), 0)
    named = np.concatenate([*(run.split for run in runs), np.zeros(0, str)])
    if bad := np.flatnonzero(~(np.isfinite(y) & (y > 0))).tolist():
        raise InputError(f"trees: row {bad[0]}: its time must be finite and above 0, got {y[bad[0]]:g}: leave it out")
    for name in (TRAIN, VALID):
        if not (named == name).any():
            raise NoRows(name)
    return {name: _Split(x[named == name], y[named == name], phase[named == name]) for name in SPLITS}


def _tuned(train: _Split, valid: _Split, features: Sequence[TreeFeature], trials: int, seed: int) -> TreeSettings:
    """The settings with the smallest error on the validation rows, of so many trials."""
    import optuna

    best: list[tuple[float, TreeSettings]] = []
    most_rows = max(2, min(100, len(train.y) // 4))

    def objective(trial: Any) -> float:
        settings = TreeSettings(
            learning_rate=trial.suggest_float("learning_rate", 0.02, 0.3, log=True),
            leaves=trial.suggest_int("leaves", 4, MOST_LEAVES),
            depth=trial.suggest_int("depth", 2, 10),
            least_rows=trial.suggest_int("least_rows", 2, most_rows, log=True),
            l2=trial.suggest_float("l2", 1e-6, 10.0, log=True),
        )
        model = _model(settings, features, seed).fit(train.x, np.log(train.y))
        errors = list(_staged_pct(model, train, valid))
        kept = int(np.argmin(errors))
        if not best or errors[kept] < best[0][0]:
            best[:] = [(errors[kept], replace(settings, trees=kept + 1))]
        return errors[kept]

    sampler = optuna.samplers.TPESampler(seed=seed)
    optuna.create_study(sampler=sampler, direction="minimize").optimize(objective, n_trials=trials)
    return best[0][1]


def _staged_pct(model: Any, train: _Split, valid: _Split) -> Iterator[float]:
    """The error on the validation rows with one tree, with two, and so on."""
    for own, theirs in zip(model.staged_predict(train.x), model.staged_predict(valid.x), strict=True):
        yield _error_pct(theirs, valid, _smearing(own, train))


def _model(settings: TreeSettings, features: Sequence[TreeFeature], seed: int) -> Any:
    """scikit-learn's model with these settings, not yet fitted."""
    from sklearn.ensemble import HistGradientBoostingRegressor

    return HistGradientBoostingRegressor(
        learning_rate=settings.learning_rate,
        max_iter=settings.trees,
        max_leaf_nodes=settings.leaves,
        max_depth=settings.depth,
        min_samples_leaf=settings.least_rows,
        l2_regularization=settings.l2,
        monotonic_cst=[int(f.rises) for f in features],
        early_stopping=False,  # the validation rows stop it, by `_staged_pct`
        random_state=seed,
    )


def _smearing(predicted_log: np.ndarray, rows: _Split) -> np.ndarray:
    """float64[3]: log of the mean of exp(residual), by phase; that of all rows for a phase without any."""
    ratio = rows.y / np.exp(predicted_log)
    return np.log([ratio[rows.phase == p].mean() if (rows.phase == p).any() else ratio.mean() for p in range(3)])


def _error_pct(predicted_log: np.ndarray, rows: _Split, corrections: np.ndarray) -> float:
    """The mean absolute percentage error."""
    predicted = np.exp(predicted_log + corrections[rows.phase])
    return float(100.0 * np.mean(np.abs(predicted / rows.y - 1.0)))


def _forest(model: Any, features: Sequence[TreeFeature], corrections: np.ndarray) -> Forest:
    """The fitted model as an ensemble."""
    trees = []
    for (predictor,) in model._predictors:  # scikit-learn has no public way to the nodes; the tests compare the walks
        nodes = predictor.nodes
        leaf = nodes["is_leaf"].astype(bool)
        columns = (
            np.where(leaf, LEAF, nodes["feature_idx"].astype(int)),
            np.where(leaf, 0.0, nodes["num_threshold"]),
            np.where(leaf, 0, nodes["left"].astype(int)),
            np.where(leaf, 0, nodes["right"].astype(int)),
            np.where(leaf, nodes["value"], 0.0),
        )
        feature_, threshold, left, right, value = (tuple(column.tolist()) for column in columns)
        trees.append(Tree(feature_, threshold, left, right, value))
    baseline = float(np.ravel(model._baseline_prediction)[0])
    return Forest(tuple(f.formula for f in features), tuple(trees), baseline, Corrections(*corrections.tolist()))
