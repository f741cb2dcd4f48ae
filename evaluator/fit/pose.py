"""How a fit is posed: which constants are sought within which bounds, and what decides them where the data do not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from evaluator.fit.loss import FitSet
from evaluator.fit.meanfield import DEPLOYMENT, bases
from evaluator.fit.problem import Group, Problem
from simulator.language.affine import affine
from simulator.language.bounds import bounds, kernel_factors
from simulator.language.ir import Program
from simulator.language.opcodes import assemble

PRIOR = 3e-3  # pull towards the start values, as a share of each constant's effect: decides what data cannot
# Runs whose answers are about equally long cannot tell a time per token or per request from one per step: what they
# leave open goes to the step, where it also holds for answers of another length.
OVERHEADS = ("output_token_time", "completion_time")
OVERHEAD_PRIOR = 1000.0  # times PRIOR, towards 0


def problem_of(
    program: Program, data: FitSet, held: Sequence[int] = (), known: bool = False, believed: Sequence[int] = ()
) -> Problem:
    """One value of every constant for all experiments; those at `held`, positions in theta, keep theirs as it is.

    `known`: the constants come from a fit to other runs, and are not to be left without reason; `believed`: positions
    of those that do, where not all.
    """
    members, index = [tuple(range(len(data.experiments)))], np.arange(len(program.theta))[None]
    return make(program, data, members, index, held, known, believed)


def make(
    program: Program,
    data: FitSet,
    members: Sequence[Sequence[int]],
    index: np.ndarray,
    held: Sequence[int] = (),
    known: bool = False,
    believed: Sequence[int] = (),
) -> Problem:
    """A problem with the constants of group g, the experiments `members[g]`, at phi[index[g]] (int[groups, theta])."""
    code, theta = assemble(program), np.array(program.theta, dtype=float)
    low, high = np.array(bounds(program), dtype=float).reshape(-1, 2).T.copy()
    value = np.clip(theta, low, high)
    for j in held:
        low[j] = high[j] = value[j] = theta[j]
    overhead = np.array([f.name in OVERHEADS for f in program.functions for _ in f.constants], dtype=bool)
    measured = np.array(kernel_factors(program), dtype=bool)
    origin = np.clip(np.where(overhead & (not known), 0.0, np.where(measured, 1.0, value)), low, high)
    pull = PRIOR * np.where(overhead, OVERHEAD_PRIOR, 1.0)
    of = np.zeros(int(index.max()) + 1 if index.size else 0, dtype=int)  # position in theta of every entry of phi
    for row in index:
        of[row] = np.arange(theta.size)
    whose = data.stages.table[:, DEPLOYMENT].astype(int)
    groups = []
    for some, row in zip(members, index, strict=True):
        rows = np.flatnonzero(np.isin(whose, list(some)))
        groups.append(Group(tuple(some), rows, data.stages.table[rows], row))
    base = bases(code, data.stages)
    return Problem(
        program,
        code,
        data,
        tuple(groups),
        value[of],
        low[of],
        high[of],
        origin[of],
        pull[of],
        measured[of],
        of,
        base,
        base[0].copy(),
        tuple(held),
        known,
        tuple(believed),
    )


def forgetful(problem: Problem) -> Problem:
    """The same, with the prior's pull of the affine constants towards their low bounds. The others have no value that
    is nothing: 0 may be a divisor or a threshold. They stay drawn to where they start, and factors of measured kernels
    to 1: what was measured elsewhere is known in every fold."""
    linear = np.array([c.name in affine(f).linear for f in problem.program.functions for c in f.constants], dtype=bool)
    unknown = linear[problem.position] & ~problem.measured
    return replace(problem, origin=np.where(unknown, problem.low, problem.origin))
