"""Findings on a fitted program besides its residuals: errors on runs left out of the fit, and doubts.

A language model sees it of every program that it is to improve, and of those that it has just proposed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from archive.score import Errors
from evaluator.assess import AssessData, contradictions, errors_in_steps
from evaluator.cells import weighted_mean
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

    fitted: signed errors in percent of all runs at once, in their order. left_out: of the same runs by kind of fold (a
    key of evaluator.group_out.KINDS, or EVERY), each predicted by constants that were fitted without the runs that
    share it; empty for a single run. at_bounds: a sentence for each constant at a bound. undecided: constants without
    which the others would fit as well. contradictions: what datasheets and measured kernels say against the program.
    """

    fitted: tuple[Errors, ...]
    left_out: Mapping[str, tuple[Errors, ...]]
    at_bounds: tuple[str, ...]
    undecided: tuple[str, ...]
    contradictions: tuple[str, ...]

    @property
    def mean_left_out(self) -> tuple[Errors, ...]:
        """The errors left out, the mean over the kinds of folds; those fitted where none is left out."""
        every = self.left_out.values() or [self.fitted]
        return tuple(_mean(rows) for rows in zip(*every, strict=True))


def _mean(rows: Sequence[Errors]) -> Errors:
    columns = zip(*(row.figures for row in rows), strict=True)
    return Errors(rows[0].experiment, *(weighted_mean(column, [1.0] * len(rows)) for column in columns))


def examine(program: Program, data: AssessData) -> Examination:
    """The examination of a fitted program. Deterministic; replays clamp step times that are out of range."""
    program = complete(program)
    problem = problem_of(program, data.fit)
    ratio = ratio_of(problem, problem.start, problem.replay(problem.start, allow_hostile=True))
    in_steps = {run.experiment.id: run.errors for run in errors_in_steps(program, ratio, data.fit)}
    known = in_steps | {row.experiment: row for row in error_rows(program, data.score)}
    names = [c.name for f in program.functions for c in f.constants]
    idle = costs(problem) < UNDECIDED if names else np.zeros(0, bool)
    return Examination(
        fitted=tuple(known[e.id] for e in data.fit.experiments),
        left_out=_left_out(program, ratio, data.fit),
        at_bounds=tuple(at_bounds(brief(program)).values()),
        undecided=tuple(
            name for name, is_idle, value in zip(names, idle, program.theta, strict=True) if is_idle and value
        ),
        contradictions=tuple(contradictions(assemble(program), program.theta, data)),
    )


def _left_out(program: Program, ratio: np.ndarray, fit: FitSet) -> dict[str, tuple[Errors, ...]]:
    """The errors on runs left out, by kind of fold; none for a single run. `ratio`: of replay to mean field."""
    problem, found = fold_problem(program, fit), dict[str, tuple[Errors, ...]]()
    for kind in groups(fit.experiments, KINDS) or [EVERY]:
        for folds in folds_of(fit, () if kind == EVERY else (kind,)).kinds:
            rows = zip(fit.experiments, errors_left_out(problem, ratio, folds), strict=True)
            found[kind] = tuple(Errors(e.id, *(None if np.isnan(x) else float(x) for x in row)) for e, row in rows)
    return found
