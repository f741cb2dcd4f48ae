"""Findings on a fitted program besides its residuals: errors on runs left out of the fit, and doubts.

A language model sees it of every program that it is to improve, and of those that it has just proposed.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from archive.score import Errors
from evaluator.assess import AssessData, contradictions
from evaluator.diagnose.explain import costs
from evaluator.fit.fit import ratio_of
from evaluator.fit.loss import FitSet
from evaluator.fit.problem import problem_of
from evaluator.group_out import KINDS, errors_left_out, fold_problem, folds_of, groups
from evaluator.score import error_rows
from simulator.language.bounds import at_bounds
from simulator.language.complete import complete
from simulator.language.ir import Program
from simulator.language.opcodes import assemble
from simulator.language.simplify import brief

UNDECIDED = 1e-3  # share of the squared residuals by which dropping a constant must change them to count as decided
EVERY = "runs"  # the kind of folds where nothing tells the runs apart: each is left out alone


@dataclass(frozen=True, slots=True)
class Examination:
    """The findings of the runs on a program at its constants.

    fitted: signed errors in percent of all runs at once. left_out: of the same runs, each predicted by constants that
    were fitted without the runs that share its `kind` (a key of evaluator.group_out.COMMON, or EVERY); empty for a
    single run. at_bounds: a sentence for each constant at a bound. undecided: constants without which the others would
    fit as well. contradictions: what datasheets and measured kernels say against the program.
    """

    fitted: tuple[Errors, ...]
    kind: str
    left_out: tuple[Errors, ...]
    at_bounds: tuple[str, ...]
    undecided: tuple[str, ...]
    contradictions: tuple[str, ...]


def examine(program: Program, data: AssessData) -> Examination:
    """The examination of a fitted program. Deterministic; replays clamp step times that are out of range."""
    program = complete(program)
    kind = next(iter(groups(data.fit.experiments, KINDS)), EVERY)
    names = [c.name for f in program.functions for c in f.constants]
    idle = costs(problem_of(program, data.fit)) < UNDECIDED if names else np.zeros(0, bool)
    return Examination(
        fitted=tuple(error_rows(program, data.score)),
        kind=kind,
        left_out=_left_out(program, data.fit, kind),
        at_bounds=tuple(at_bounds(brief(program)).values()),
        undecided=tuple(
            name for name, is_idle, value in zip(names, idle, program.theta, strict=True) if is_idle and value
        ),
        contradictions=tuple(contradictions(assemble(program), program.theta, data)),
    )


def _left_out(program: Program, fit: FitSet, kind: str) -> tuple[Errors, ...]:
    """The errors on runs left out by this kind; none for a single run."""
    folds = folds_of(fit, () if kind == EVERY else (kind,)).kinds
    if not folds:
        return ()
    problem = problem_of(program, fit)
    ratio = ratio_of(problem, problem.start, problem.replay(problem.start, allow_hostile=True))
    rows = errors_left_out(fold_problem(program, fit), ratio, folds[0])
    return tuple(
        Errors(e.id, *(None if np.isnan(x) else float(x) for x in row))
        for e, row in zip(fit.experiments, rows, strict=True)
    )
