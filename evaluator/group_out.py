"""Leave-group-out errors: those of a form on groups of runs that its constants were not fitted on.

Every model, every tensor-parallel degree, every architecture (dense, mixture of experts) and every GPU type is left out
in turn: the constants are fitted again without its runs, which are then predicted. The worst quarter of the runs that a
kind of fold leaves out counts: a mean over many easy runs hides the form that fails on one deployment.
In a fold the prior pulls constants that enter affinely towards their low bounds, not towards their values from other
fits: a fold must not know what its own runs do not show.

Predictions are those of the mean field, times the ratio of replay to mean field at the constants fitted to everything.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from archive.score import Errors
from evaluator.fit.fit import fit
from evaluator.fit.loss import FitSet
from evaluator.fit.methods import solve_parts
from evaluator.fit.problem import Problem, problem_of, unshown, with_prior_reset
from simulator.language.complete import complete
from simulator.language.ir import Program
from simulator.serving.experiment import Experiment

MOST_PCT = 20.0  # cap on an error: one queue that runs away must not hide the other errors
# By kind of fold, what the runs that it leaves out together have in common.
COMMON: dict[str, Callable[[Experiment], str]] = {
    "models": lambda e: e.model,
    "workloads": lambda e: e.workload.name,
    "tp": lambda e: str(e.engine.tensor_parallel),
    "architectures": lambda e: "MoE" if e.facts["is_moe"] else "dense",
    "hardware": lambda e: e.hardware,
}
KINDS = ("models", "tp", "architectures", "hardware")  # those of the leave-group-out error
TAIL = 0.25  # share of the runs that a kind of fold leaves out, whose errors count: those with the largest


@dataclass(frozen=True)
class LeftOut:
    """Runs left out together: their positions, and the load stages that are fitted, bool[stages]."""

    left_out: tuple[int, ...]
    fitted: np.ndarray


@dataclass(frozen=True)
class Folds:
    """All load stages, and for each kind of fold its folds; of the errors of a kind the share `tail` counts."""

    fit: FitSet
    kinds: tuple[tuple[LeftOut, ...], ...]
    tail: float = TAIL


def folds_of(fit: FitSet, kinds: Sequence[str] = KINDS, tail: float = TAIL) -> Folds:
    """The folds of every kind of which the experiments have several. If there is no such kind, each run is left out in
    turn, and none of a single run."""
    of_kinds = groups(fit.experiments, kinds)
    several = [list(of_kinds[kind].values()) for kind in kinds if kind in of_kinds]
    if not several and len(fit.experiments) > 1:
        several = [left_out([e.id for e in fit.experiments])]
    folds = (tuple(_fold(group, fit) for group in of_kind) for of_kind in several)
    return Folds(fit, tuple(folds), tail)


def groups(experiments: Sequence[Experiment], kinds: Sequence[str]) -> dict[str, dict[str, list[int]]]:
    """The positions of the runs that each fold leaves out together, by kind of fold and by the value that they share,
    both in order. A kind of which all experiments have the same value makes no fold."""
    of_kinds = dict[str, dict[str, list[int]]]()
    for kind in kinds:
        names = [COMMON[kind](e) for e in experiments]
        of_kinds[kind] = dict(zip(dict.fromkeys(names), left_out(names), strict=True))
    return {kind: of_kind for kind, of_kind in of_kinds.items() if len(of_kind) > 1}


def _fold(group: Sequence[int], fit: FitSet) -> LeftOut:
    return LeftOut(tuple(group), ~np.isin(fit.experiment_of, group))


def left_out(names: Sequence[str]) -> list[list[int]]:
    """The positions of each distinct name, in order of appearance."""
    return [[i for i, n in enumerate(names) if n == name] for name in dict.fromkeys(names)]


def group_out(program: Program, ratio: np.ndarray, data: Folds, most: float = math.inf) -> float | None:
    """The leave-group-out error in percent: over the kinds of folds, the mean of their tail errors.

    None without folds, or if it exceeds `most`, which may show before all kinds are fitted.

    The tail error of a kind is the mean over its worst left-out runs, each with the mean of its absolute errors of E2E,
    TTFT and ITL, none above MOST_PCT. `program` was fitted on everything: the folds start from its constants and reuse
    `ratio`, replay over mean field of all stages.
    """
    if not data.kinds:
        return None
    problem, error = fold_problem(complete(program), data.fit), 0.0
    for folds in data.kinds:
        error += tail_error(errors_left_out(problem, ratio, folds), data.tail) / len(data.kinds)
        if error > most:
            return None
    return error


def errors_left_out(problem: Problem, ratio: np.ndarray, folds: Sequence[LeftOut]) -> np.ndarray:
    """float64[experiments, 3]: signed errors in percent of each run's mean E2E, TTFT and ITL, predicted by constants
    that were fitted without its fold. NaN where nothing was observed.

    `problem`: see `fold_problem`. `ratio`: see `group_out`.
    """
    errors = np.full((len(problem.data.experiments), 3), np.nan)
    for theta, fold in zip(refit(problem, ratio, folds), folds, strict=True):
        # Where a fold's constants give no time at all, the error is as large as it can be.
        predicted_ms = np.nan_to_num(problem.predict(theta) * ratio, nan=np.inf)
        errors[list(fold.left_out)] = problem.data.errors_pct(predicted_ms)[list(fold.left_out)]
    return errors


def tail_error(errors_pct: np.ndarray, share: float) -> float:
    """The mean over the `share` of the runs (rounded up) with the largest errors, of errors_pct[runs, latencies]; a
    run's error is its mean absolute one, each latency at most MOST_PCT.

    NaN stands for a latency that was not observed.
    """
    sizes = np.minimum(np.abs(errors_pct), MOST_PCT)
    of_runs = np.array([row[~np.isnan(row)].mean() for row in sizes if not np.isnan(row).all()])
    worst = np.sort(of_runs)[::-1][: math.ceil(share * len(of_runs))]
    return float(worst.mean())


def fold_problem(program: Program, fit: FitSet) -> Problem:
    return with_prior_reset(problem_of(without_bounds(program), fit))


def refit(problem: Problem, ratio: np.ndarray, folds: Sequence[LeftOut]) -> np.ndarray:
    """float64[folds, theta]: the constants of the problem's program, which was fitted on everything, fitted again for
    each fold by the mean field times `ratio`."""
    if not problem.free.size:
        return np.tile(problem.start, (len(folds), 1))
    parts = [fold.fitted for fold in folds]
    scales = problem.scales_of(problem.start, parts)
    # The fit leaves a constant that a fold's runs do not show where it starts.
    unknown = unshown(problem)
    starts = np.stack([np.where(effect > 0.0, problem.start, unknown) for _, effect in scales])
    return solve_parts(problem, starts, ratio, scales, parts)


def fitted_without(program: Program, train: FitSet) -> Program:
    """The program fitted to `train` by replays, without a memory of other runs in its constants.

    The prior pulls to the low bounds, and a constant that no run of `train` shows is gone. Step times out of range are
    clamped.
    """
    fitted = fit(program, train, allow_hostile=True, reset_to_prior=True, irregular=0.0).program
    problem = with_prior_reset(problem_of(fitted, train))
    _, effect = problem.scales(problem.start)
    return fitted.with_theta(tuple(np.where(effect > 0.0, problem.start, unshown(problem))))


def without_bounds(program: Program) -> Program:
    """The program with the language's default bounds.

    A proposer's narrower bounds may encode what only the left-out runs show.
    """
    functions = (replace(f, constants=tuple(replace(c, bounds=None) for c in f.constants)) for f in program.functions)
    return replace(program, functions=tuple(functions))


def capped(row: Errors) -> Errors:
    """The absolute errors, each at most MOST_PCT."""

    def cap(x: float | None) -> float | None:
        return None if x is None else min(abs(x), MOST_PCT)

    return Errors(row.experiment, cap(row.e2e), cap(row.ttft), cap(row.itl))
