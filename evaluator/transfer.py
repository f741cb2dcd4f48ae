"""Transfer: how well a form predicts models that its constants were not fitted on.

Leave-one-model-out: for every model the constants are fitted again without it, then its runs are replayed. Where all
runs are of one model, one run at a time is left out. In a fold a constant that enters affinely is pulled towards the
least it may be and not towards what other programs were fitted to: what the fold's runs do not show is not known.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from evaluator.fit.fit import stages_at, subset
from evaluator.fit.gauss_newton import solve
from evaluator.fit.loss import FitSet
from evaluator.fit.pose import forgetful, problem_of
from evaluator.score import Errors, ScoreSet, error_rows, summarise
from evaluator.score import subset as score_subset
from simulator.language.ir import Program

MOST_PCT = 20.0  # an error beyond this counts as this much: one queue that runs away must not hide the others


@dataclass(frozen=True)
class Fold:
    """One model's runs left out: what is fitted and what is then predicted; `rows` are the positions of the fitted load
    stages among all."""

    rows: np.ndarray
    fit: FitSet
    score: ScoreSet


def folds_of(fit: FitSet, score: ScoreSet) -> tuple[Fold, ...]:
    """A fold for each model; for each run if all are of one model; none for a single run."""
    groups = left_out([e.model for e in fit.experiments])
    if len(groups) < 2:
        groups = left_out([e.id for e in fit.experiments])
    if len(groups) < 2:
        return ()
    out = []
    for group in groups:
        kept = [i for i in range(len(fit.experiments)) if i not in group]
        out.append(Fold(np.concatenate(stages_at(fit, kept)), subset(fit, kept), score_subset(score, group)))
    return tuple(out)


def left_out(names: Sequence[str]) -> list[list[int]]:
    """The positions of each distinct name, in order of appearance."""
    return [[i for i, n in enumerate(names) if n == name] for name in dict.fromkeys(names)]


def transfer(program: Program, ratio: np.ndarray, folds: Sequence[Fold]) -> float | None:
    """The mean joint error in percent over the left-out runs, each at most MOST_PCT; None where nothing is left out.

    `program`: fitted on everything; the folds start there and reuse `ratio`, replay over mean field of all stages.
    Raises HostileStep if a left-out run meets a step time out of range.
    """
    if not folds:
        return None
    rows = [row for fold in folds for row in error_rows(refit(program, ratio[fold.rows], fold.fit), fold.score)]
    return summarise([_capped(row) for row in rows]).joint


def refit(program: Program, ratio: np.ndarray, data: FitSet) -> Program:
    """`program`, fitted on more than `data`, fitted again on `data` by the mean field times `ratio`."""
    problem = forgetful(problem_of(without_bounds(program), data))
    if not problem.free.size:
        return program
    scales = problem.scales(problem.start)
    start = np.where(scales[1] > 0.0, problem.start, problem.origin)
    return program.with_theta(tuple(solve(problem, start, ratio, scales)[0]))


def without_bounds(program: Program) -> Program:
    """The program with the language's default bounds: a proposer's narrower ones may encode what only the runs that are
    left out have shown."""
    functions = (replace(f, constants=tuple(replace(c, bounds=None) for c in f.constants)) for f in program.functions)
    return replace(program, functions=tuple(functions))


def _capped(row: Errors) -> Errors:
    def cap(x: float | None) -> float | None:
        return None if x is None else min(abs(x), MOST_PCT)

    return Errors(row.experiment, cap(row.e2e), cap(row.ttft), cap(row.itl))
