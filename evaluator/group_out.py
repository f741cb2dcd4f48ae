"""Leave-group-out errors: those of a form on groups of runs that its constants were not fitted on.

Every model, GPU, type of weights, degree and kind of parallelism, version and source is left out in turn: the constants
are fitted again without its runs, which are then predicted. The score is a mean over cells (`evaluator.cells`), so that
two programs are compared by paired differences of cells, whose spread is the uncertainty of the comparison.
In a fold the prior pulls constants that enter affinely towards their low bounds, not towards their values from other
fits: a fold must not know what its own runs do not show.

Predictions are those of the mean field, times the ratio of replay to mean field at the constants fitted to everything;
they are taken as linear in the constants, as those of a closed load are.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from archive.score import CellErrors, Errors
from evaluator.cells import WEIGHTS, cell_of, precision_of
from evaluator.fit.fit import fit
from evaluator.fit.loss import FitSet
from evaluator.fit.methods import refit_parts
from evaluator.fit.problem import VANISHING, Problem, problem_of, unshown, with_prior_reset
from simulator.language.complete import complete
from simulator.language.ir import Program
from simulator.serving.experiment import Experiment

MOST_PCT = 30.0  # cap on an error: one queue that runs away must not hide the other errors
LEAST_CELLS = 5  # below which runs stand for cells


def parallelism_of(e: Experiment) -> str:
    """`TP`, `TP EP`, `DP EP`, ...: what is split, without degrees."""
    engine = e.engine
    degrees = {"PP": engine.pipeline_parallel, "DP": engine.data_parallel, "EP": engine.expert_parallel}
    split = [name for name, degree in degrees.items() if degree > 1]
    return " ".join([*(["TP"] if "DP" not in split else []), *split])


# By kind of fold, what the runs that it leaves out together have in common.
COMMON: dict[str, Callable[[Experiment], str]] = {
    "models": lambda e: e.model,
    "workloads": lambda e: e.workload.name,
    "tp": lambda e: str(e.engine.tensor_parallel),
    "architectures": lambda e: "MoE" if e.facts["is_moe"] else "dense",
    "hardware": lambda e: e.hardware,
    "precisions": precision_of,
    "parallelism": parallelism_of,
    "versions": lambda e: ".".join((e.engine.version or "unknown").split(".")[:2]),
    "sources": lambda e: "clients" if e.workload.closed else "rate",
    "cells": cell_of,
}
# Those of the leave-group-out error.
KINDS = ("models", "tp", "architectures", "hardware", "precisions", "parallelism", "versions", "sources")


@dataclass(frozen=True)
class LeftOut:
    """Runs left out together: their positions, and the load stages that are fitted, bool[stages]."""

    left_out: tuple[int, ...]
    fitted: np.ndarray


@dataclass(frozen=True)
class Folds:
    """All load stages, and for each kind of fold its folds."""

    fit: FitSet
    kinds: tuple[tuple[LeftOut, ...], ...]


def folds_of(fit: FitSet, kinds: Sequence[str] = KINDS) -> Folds:
    """The folds of every kind of which the experiments have several. If there is no such kind, each run is left out in
    turn, and none of a single run."""
    of_kinds = groups(fit.experiments, kinds)
    several = [list(of_kinds[kind].values()) for kind in kinds if kind in of_kinds]
    if not several and len(fit.experiments) > 1:
        several = [left_out([e.id for e in fit.experiments])]
    folds = (tuple(_fold(group, fit) for group in of_kind) for of_kind in several)
    return Folds(fit, tuple(folds))


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


def group_out(program: Program, ratio: np.ndarray, data: Folds) -> CellErrors | None:
    """The leave-group-out errors in percent; None without folds.

    A run's error is the mean over the kinds of folds of its `mean_errors` where it is left out; a cell's the mean over
    its runs. `program` was fitted on everything: the folds start from its constants and reuse `ratio`, replay over mean
    field of all stages.
    """
    if not data.kinds:
        return None
    problem = fold_problem(complete(program), data.fit)
    every = [fold for folds in data.kinds for fold in folds]
    _, predicted_ms = refit(problem, ratio, every)
    totals, counts = np.zeros(len(data.fit.experiments)), np.zeros(len(data.fit.experiments))
    for fold, means_ms in zip(every, predicted_ms, strict=True):
        runs = list(fold.left_out)
        totals[runs] += mean_errors(data.fit.errors_pct(means_ms)[runs])
        counts[runs] += 1.0
    with np.errstate(invalid="ignore"):
        return by_cell(data.fit.experiments, totals / counts)


def by_cell(experiments: Sequence[Experiment], errors: np.ndarray) -> CellErrors:
    """The errors of cells from those of runs, float64[experiments]; of few cells those of runs. NaN: not measured."""
    known = [i for i, error in enumerate(errors) if not math.isnan(error)]
    names = [cell_of(experiments[i]) for i in known]
    if len(set(names)) < LEAST_CELLS:
        names = [experiments[i].id for i in known]
    of_cells = {
        name: errors[[known[i] for i in at]].mean()
        for name, at in zip(dict.fromkeys(names), left_out(names), strict=True)
    }
    return CellErrors(tuple((name, float(error)) for name, error in of_cells.items()))


def mean_errors(errors_pct: np.ndarray) -> np.ndarray:
    """float64[runs]: each run's mean absolute error of E2E, TTFT and ITL by WEIGHTS, each at most MOST_PCT; NaN if
    nothing was observed. errors_pct: float64[runs, 3], NaN where not observed."""
    sizes, known = np.minimum(np.abs(errors_pct), MOST_PCT), ~np.isnan(errors_pct)
    weights = known * WEIGHTS
    with np.errstate(invalid="ignore"):
        means: np.ndarray = np.where(known, sizes * weights, 0.0).sum(axis=1) / weights.sum(axis=1)
    return means


def errors_left_out(problem: Problem, ratio: np.ndarray, folds: Sequence[LeftOut]) -> np.ndarray:
    """float64[experiments, 3]: signed errors in percent of each run's mean E2E, TTFT and ITL, predicted by constants
    that were fitted without its fold. NaN where nothing was observed.

    `problem`: see `fold_problem`. `ratio`: see `group_out`.
    """
    errors = np.full((len(problem.data.experiments), 3), np.nan)
    for means_ms, fold in zip(refit(problem, ratio, folds)[1], folds, strict=True):
        errors[list(fold.left_out)] = problem.data.errors_pct(means_ms)[list(fold.left_out)]
    return errors


def fold_problem(program: Program, fit: FitSet) -> Problem:
    return with_prior_reset(problem_of(without_bounds(program), fit))


def refit(problem: Problem, ratio: np.ndarray, folds: Sequence[LeftOut]) -> tuple[np.ndarray, np.ndarray]:
    """(float64[folds, theta], the constants of the problem's program, which was fitted on everything, fitted again for
    each fold; float64[folds, stages, 3], the means in ms that it predicts by these)."""
    predicted_ms = problem.predict(problem.start) * ratio
    if not problem.free.size:
        return np.tile(problem.start, (len(folds), 1)), np.tile(predicted_ms, (len(folds), 1, 1))
    parts = [fold.fitted for fold in folds]
    scales = problem.scales_of(problem.start, parts)
    # The fit leaves a constant that a fold's runs do not show where it starts.
    unknown = unshown(problem)
    unknown = np.where(np.abs(unknown) < VANISHING, unknown, problem.start)  # no line leads to a divisor without end
    starts = np.stack([np.where(effect > 0.0, problem.start, unknown) for _, effect in scales])
    theta, moved_ms = refit_parts(problem, starts, predicted_ms, ratio, scales, parts)
    # Where a fold's constants give no time at all, the error is as large as it can be.
    return theta, np.nan_to_num(moved_ms, nan=np.inf)


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
