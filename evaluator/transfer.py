"""Transfer: how well a form predicts models that its constants were not fitted on.

Leave-one-model-out: for every model the constants are fitted again without its runs, which are then replayed. If all
runs are of one model, each run is left out in turn. In a fold the prior pulls constants that enter affinely towards
their low bounds, not towards their values from other fits: a fold must not know what its own runs do not show.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from evaluator.fit.loss import FitSet
from evaluator.fit.problem import Problem, forgetful, problem_of, unshown
from evaluator.fit.solvers import solve_parts
from evaluator.metrics import LATENCIES
from evaluator.score import Errors, ScoreSet, error_rows_of, summarise
from simulator.bind import settled
from simulator.experiment.experiment import Experiment
from simulator.language.complete import complete
from simulator.language.ir import Program

MOST_PCT = 20.0  # cap on an error: one queue that runs away must not hide the other errors


@dataclass(frozen=True)
class Fold:
    """One model's runs left out: their positions, the load stages that are fitted, bool[stages], and what is then
    predicted."""

    left_out: tuple[int, ...]
    fitted: np.ndarray
    score: ScoreSet


@dataclass(frozen=True)
class Folds:
    """All load stages, and the folds of a program that was fitted on them."""

    fit: FitSet
    folds: tuple[Fold, ...]

    @cached_property
    def none_of(self) -> list[Errors]:
        """No error in any left-out run, in the order of the folds: the least that those not replayed yet can add."""
        return [_none(e) for fold in self.folds for e in fold.score.experiments]


def folds_of(fit: FitSet, score: ScoreSet) -> Folds:
    """A fold for each model, or for each run if all are of one model; none for a single run."""
    groups = left_out([e.model for e in fit.experiments])
    if len(groups) < 2:
        groups = left_out([e.id for e in fit.experiments])
    if len(groups) < 2:
        return Folds(fit, ())
    return Folds(fit, tuple(_fold(group, fit, score) for group in groups))


def _fold(group: Sequence[int], fit: FitSet, score: ScoreSet) -> Fold:
    return Fold(tuple(group), ~np.isin(fit.experiment_of, group), score.subset(group))


def left_out(names: Sequence[str]) -> list[list[int]]:
    """The positions of each distinct name, in order of appearance."""
    return [[i for i, n in enumerate(names) if n == name] for name in dict.fromkeys(names)]


def transfer(program: Program, ratio: np.ndarray, data: Folds, most: float = math.inf) -> float | None:
    """The mean joint error in percent over the left-out runs, each error at most MOST_PCT. None without folds, or if it
    exceeds `most`, which may show before all folds are replayed.

    `program` was fitted on everything: the folds start from its constants and reuse `ratio`, replay over mean field of
    all stages. Raises HostileStep if a left-out run meets a step time out of range.
    """
    if not data.folds:
        return None
    problem, rows = fold_problem(complete(program), data), list[Errors]()
    for theta, fold in zip(refit(problem, ratio, data), data.folds, strict=True):
        bound = settled(problem.code, theta, problem.machine.base[list(fold.left_out)])
        rows += [capped(row) for row in error_rows_of(bound, fold.score)]
        if summarise([*rows, *data.none_of[len(rows) :]]).joint > most:
            return None
    return summarise(rows).joint


def fold_problem(program: Program, data: Folds) -> Problem:
    """What is fitted in each fold."""
    return forgetful(problem_of(without_bounds(program), data.fit))


def refit(problem: Problem, ratio: np.ndarray, data: Folds) -> np.ndarray:
    """float64[folds, theta]: the constants of the problem's program, which was fitted on everything, fitted again for
    each fold by the mean field times `ratio`."""
    if not problem.free.size:
        return np.tile(problem.start, (len(data.folds), 1))
    parts = [fold.fitted for fold in data.folds]
    scales = problem.scales_of(problem.start, parts)
    # The fit leaves a constant that a fold's runs do not show where it starts.
    unknown = unshown(problem)
    starts = np.stack([np.where(effect > 0.0, problem.start, unknown) for _, effect in scales])
    return solve_parts(problem, starts, ratio, scales, parts)


def without_bounds(program: Program) -> Program:
    """The program with the language's default bounds.

    A proposer's narrower bounds may encode what only the left-out runs show.
    """
    functions = (replace(f, constants=tuple(replace(c, bounds=None) for c in f.constants)) for f in program.functions)
    return replace(program, functions=tuple(functions))


def _none(experiment: Experiment) -> Errors:
    """An error of 0 in every latency that the experiment has observed."""
    summary = experiment.observed.summary if experiment.observed else None
    means = [getattr(summary, name).mean if summary else None for name in LATENCIES]
    return Errors(experiment.id, *(0.0 if mean else None for mean in means))


def capped(row: Errors) -> Errors:
    """The absolute errors, each at most MOST_PCT."""

    def cap(x: float | None) -> float | None:
        return None if x is None else min(abs(x), MOST_PCT)

    return Errors(row.experiment, cap(row.e2e), cap(row.ttft), cap(row.itl))
