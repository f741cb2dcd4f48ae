"""Ensembles of trees as step times: gradient-boosted trees on what the host knows of a batch, trained on single steps.

scikit-learn fits the trees to the logarithm of the time; optuna chooses their settings on the validation rows. Features
are formulas of the language, never the name of a model or a workload. Every tree is constrained: more work never takes
less time. A fit of logarithms predicts less than the mean, so each phase of a step has a smearing correction, the
logarithm of the mean of exp(residual) on the training rows (Duan 1983).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from evaluator.fit.steps import StepRun
from simulator.clock.bind import bind
from simulator.common.errors import InputError
from simulator.language.forest import LEAF, Corrections, Forest, Tree
from simulator.language.ir import Field, Function, Op, Program, with_step_times
from simulator.language.opcodes import assemble, feature
from simulator.language.parse import parse
from simulator.schema import DECODE_REQS, PREFILL_REQS, TREES
from simulator.serving.splits import SPLITS, TRAIN, VALID

INSTALL = (
    "cannot train trees: a library is missing. Install the extra: `make trees`, or pip install 'evolve-latency[trees]'."
)
TRIALS = 100
MOST_TREES = 300  # the validation rows choose how many of them stay
MOST_LEAVES = 31  # of a tree: with MOST_TREES at most 18,300 nodes, about 600 kB of Go
REPEATS = 5  # permutations of a feature for its importance
PROGRAM = """
def step_time(b, s, *, scale: us = 1.0):
    return scale * b.trees
"""


@dataclass(frozen=True, slots=True)
class TreeFeature:
    """A feature of a batch: a formula, whose units need not fit. rises: more of it never takes less time."""

    name: str
    formula: str
    rises: bool = False


OWN = (
    TreeFeature("prefill tokens", "b.prefill_tokens", True),
    TreeFeature("decode tokens", "b.decode_reqs", True),
    TreeFeature("tokens", "b.tokens", True),
    TreeFeature("prefill requests", "b.prefill_reqs"),
    TreeFeature("requests", "b.batch_size"),
    TreeFeature("mixed", "min(b.prefill_reqs, 1) * min(b.decode_reqs, 1)"),
    TreeFeature("largest chunk", "b.max_prefill_chunk", True),
    TreeFeature("KV sum", "b.kv_sum", True),
    TreeFeature("KV mean", "b.kv_mean", True),
    TreeFeature("KV max", "b.kv_max", True),
    TreeFeature("KV variance", "b.kv_var"),
    TreeFeature("KV mean of decodes", "b.kv_decode_mean", True),
    TreeFeature("KV max of decodes", "b.kv_decode_max", True),
    TreeFeature("FLOPs of prefill products", "b.prefill_gemm_us * s.flops_per_us", True),
    TreeFeature("FLOPs of decode products", "b.decode_gemm_us * s.flops_per_us", True),
    TreeFeature("FLOPs of attention", "b.attention_flops", True),
    TreeFeature("FLOPs", "b.total_flops", True),
    TreeFeature("arithmetic intensity", "b.total_flops / b.total_bytes"),
    TreeFeature("attention's share of FLOPs", "b.attention_flops / b.total_flops"),
    TreeFeature("weights' share of bytes", "b.weight_read_us * s.bytes_per_us / b.total_bytes"),
    TreeFeature("tokens per active parameter", "b.tokens / s.active_params_b"),
    TreeFeature("tensor parallelism", "s.tp"),
    TreeFeature("experts", "s.is_moe"),
    TreeFeature("active share of parameters", "s.active_params_b / s.model_params_b"),
    TreeFeature("parameters", "s.model_params_b"),
    TreeFeature("active parameters", "s.active_params_b"),
    TreeFeature("layers", "s.layers"),
    TreeFeature("KV bytes of a token", "s.kv_bytes_per_token"),
)
# The six analytic components: matrix products, attention and bytes of either phase.
COMPONENTS = tuple(
    TreeFeature(f"{phase} {what} us", f"b.{phase}_{what}_us", True)
    for phase in ("prefill", "decode")
    for what in ("gemm", "attention", "bytes")
)
FEATURES: Mapping[str, tuple[TreeFeature, ...]] = {"own": OWN, "with components": (*OWN, *COMPONENTS)}


def feature_values(features: Sequence[TreeFeature], steps: StepRun) -> np.ndarray:
    """float64[steps, features]: the features of every batch."""
    values = np.empty((len(steps.raw), len(features)))
    for i, f in enumerate(features):
        code = assemble(Program((Function("step_time", (), (), feature(f.formula)),)))
        values[:, i] = bind(code, (), steps.facts).steps_us(steps.raw)
    return values


class NoRows(InputError):
    """No row is in this split: an ensemble needs rows to learn from, and rows to be judged by."""

    def __init__(self, split: str) -> None:
        super().__init__(f"cannot train trees: no row is in the split '{split}'. Put some there.")
        self.split = split


@dataclass(frozen=True)
class SplitRun:
    """Batches of one deployment with their times; `split` holds one of SPLITS for each."""

    steps: StepRun
    split: np.ndarray


@dataclass(frozen=True)
class TreeSettings:
    """The settings of an ensemble by their names in scikit-learn. max_iter: the number of trees."""

    learning_rate: float
    max_leaf_nodes: int
    max_depth: int
    min_samples_leaf: int
    l2_regularization: float
    max_iter: int = MOST_TREES


@dataclass(frozen=True)
class Trained:
    """An ensemble, and a program that reads it, whose constants a fit may still change.

    By split: the number of rows, and the mean absolute error on them in percent, None without rows. importances: the
    percentage points by which permuting a feature raises the validation error, largest first.
    """

    program: Program
    forest: Forest
    settings: TreeSettings
    rows: Mapping[str, int]
    error_pct: Mapping[str, float | None]
    importances: Mapping[str, float]


def train(runs: Sequence[SplitRun], features: str = "own", *, trials: int = TRIALS, seed: int = 0) -> Trained:
    """The ensemble for the step times of `runs`; its program is `scale * b.trees`. `features`: a key of FEATURES.

    Deterministic. Raises InputError without the libraries, and for rows that teach nothing.
    """
    return _trained(runs, [run.steps.observed_us for run in runs], parse(PROGRAM), features, trials, seed)


def train_ratio(runs: Sequence[SplitRun], base: Program, *, trials: int = TRIALS) -> Trained:
    """The ensemble for observed time over the step time of `base`; its program is `base` times b.trees.

    The features are OWN. Batches may be load stages: a typical batch of each, and its mean step time.
    """
    code = assemble(base)
    every = [run.steps for run in runs]
    ratios = [steps.observed_us / bind(code, base.theta, steps.facts).steps_us(steps.raw) for steps in every]
    return _trained(runs, ratios, times_trees(base), "own", trials, seed=0)


def times_trees(program: Program) -> Program:
    """The program with every value that its step time returns multiplied by b.trees."""
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
    try:  # optional libraries, and slow to load
        import optuna
        from sklearn.inspection import permutation_importance
        from threadpoolctl import threadpool_limits
    except ImportError:
        raise InputError(INSTALL) from None
    optuna.logging.set_verbosity(optuna.logging.ERROR)  # an interrupted trial warns with a traceback

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
    importances = {f.name: float(x) for f, x in zip(chosen, permuted.importances_mean, strict=True)}
    return Trained(
        program=program.with_forest(forest),
        forest=forest,
        settings=settings,
        rows={name: len(split.y) for name, split in splits.items()},
        error_pct=errors,
        importances=dict(sorted(importances.items(), key=lambda i: -i[1])),
    )


def _splits(
    runs: Sequence[SplitRun], targets: Sequence[np.ndarray], features: Sequence[TreeFeature]
) -> dict[str, _Split]:
    """The rows of all runs by split. Raises NoRows without training or validation rows, InputError for times of 0."""
    x = np.concatenate([feature_values(features, run.steps) for run in runs] or [np.zeros((0, len(features)))])
    y = np.concatenate([*targets, np.zeros(0)])
    prefill, decode = (
        np.concatenate([*(run.steps.raw[:, column] > 0 for run in runs), np.zeros(0, bool)])
        for column in (PREFILL_REQS, DECODE_REQS)
    )
    phase = np.where(prefill, np.where(decode, 1, 2), 0)
    named = np.concatenate([*(run.split for run in runs), np.zeros(0, str)])
    if bad := np.flatnonzero(~(np.isfinite(y) & (y > 0))).tolist():
        raise InputError(
            f"cannot train trees, row {bad[0]}: its time must be finite and above 0, got {y[bad[0]]:g}. Leave it out."
        )
    for name in (TRAIN, VALID):
        if not (named == name).any():
            raise NoRows(name)
    return {name: _Split(x[named == name], y[named == name], phase[named == name]) for name in SPLITS}


def _tuned(train: _Split, valid: _Split, features: Sequence[TreeFeature], trials: int, seed: int) -> TreeSettings:
    """The settings with the smallest error on the validation rows, in so many trials."""
    import optuna

    best: list[tuple[float, TreeSettings]] = []
    most_rows = max(2, min(100, len(train.y) // 4))

    def objective(trial: Any) -> float:
        settings = TreeSettings(
            learning_rate=trial.suggest_float("learning_rate", 0.02, 0.3, log=True),
            max_leaf_nodes=trial.suggest_int("leaves", 4, MOST_LEAVES),
            max_depth=trial.suggest_int("depth", 2, 10),
            min_samples_leaf=trial.suggest_int("least_rows", 2, most_rows, log=True),
            l2_regularization=trial.suggest_float("l2", 1e-6, 10.0, log=True),
        )
        model = _model(settings, features, seed).fit(train.x, np.log(train.y))
        stages = zip(model.staged_predict(train.x), model.staged_predict(valid.x), strict=True)
        errors = [_error_pct(theirs, valid, _smearing(own, train)) for own, theirs in stages]  # with 1, 2, ... trees
        kept = int(np.argmin(errors))
        if not best or errors[kept] < best[0][0]:
            best[:] = [(errors[kept], replace(settings, max_iter=kept + 1))]
        return errors[kept]

    sampler = optuna.samplers.TPESampler(seed=seed)
    optuna.create_study(sampler=sampler, direction="minimize").optimize(objective, n_trials=trials)
    return best[0][1]


def _model(settings: TreeSettings, features: Sequence[TreeFeature], seed: int) -> Any:
    from sklearn.ensemble import HistGradientBoostingRegressor

    rises = [int(f.rises) for f in features]
    # The validation rows choose the number of trees, in `_tuned`.
    options = {**asdict(settings), "early_stopping": False, "monotonic_cst": rises, "random_state": seed}
    return HistGradientBoostingRegressor(**options)


def _smearing(predicted_log: np.ndarray, rows: _Split) -> np.ndarray:
    """float64[3]: log of the mean of exp(residual) by phase; of all rows for a phase without rows."""
    ratio = rows.y / np.exp(predicted_log)
    return np.log([ratio[rows.phase == p].mean() if (rows.phase == p).any() else ratio.mean() for p in range(3)])


def _error_pct(predicted_log: np.ndarray, rows: _Split, corrections: np.ndarray) -> float:
    """The mean absolute error in percent."""
    predicted = np.exp(predicted_log + corrections[rows.phase])
    return float(100.0 * np.mean(np.abs(predicted / rows.y - 1.0)))


def _forest(model: Any, features: Sequence[TreeFeature], corrections: np.ndarray) -> Forest:
    trees = []
    for (predictor,) in model._predictors:  # scikit-learn does not publish the nodes; tests compare the walks
        nodes = predictor.nodes
        leaf = nodes["is_leaf"].astype(bool)
        columns = (
            np.where(leaf, LEAF, nodes["feature_idx"].astype(int)),
            np.where(leaf, 0.0, nodes["num_threshold"]),
            np.where(leaf, 0, nodes["left"].astype(int)),
            np.where(leaf, 0, nodes["right"].astype(int)),
            np.where(leaf, nodes["value"], 0.0),
        )
        trees.append(Tree(*(tuple(column.tolist()) for column in columns)))
    baseline = float(np.ravel(model._baseline_prediction)[0])
    return Forest(tuple(f.formula for f in features), tuple(trees), baseline, Corrections(*corrections.tolist()))
