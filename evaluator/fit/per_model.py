"""Fits in which some constants have a value for each model and the others are shared."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

import numpy as np

from evaluator.fit.corrections import CORRECTIONS, corrected, ratio_of
from evaluator.fit.loss import MODEL_ERROR, FitSet
from evaluator.fit.methods import METHODS
from evaluator.fit.problem import Problem, grouped_problem
from evaluator.fit.replayed import irregularity, refined
from simulator.clock.run import HostileStep
from simulator.language.ir import Program

KEPT = 0.9  # share of the loss that the mean field may promise to leave before a fit goes on with replays


@dataclass(frozen=True)
class ScopedFit:
    """`programs[g]`: the program of `models[g]`. phi: all constants of `problem`, the shared ones once."""

    models: tuple[str, ...]
    programs: tuple[Program, ...]
    problem: Problem
    phi: np.ndarray
    loss: float


def models_of(data: FitSet) -> tuple[str, ...]:
    """The models of the experiments, each once, in order of appearance."""
    return tuple(dict.fromkeys(e.model for e in data.experiments))


def scoped(
    program: Program, data: FitSet, own: Sequence[int], held: Sequence[int] = (), fitted_before: bool = False
) -> Problem:
    """The problem in which the constants at `own`, positions in theta, have a value for each model.

    phi holds the shared constants first, then those of each model in turn. `held`, `fitted_before`: see `Problem`.
    """
    models, n = models_of(data), len(program.theta)
    members = [tuple(i for i, e in enumerate(data.experiments) if e.model == m) for m in models]
    shared = [j for j in range(n) if j not in set(own)]
    index = np.zeros((len(models), n), dtype=int)
    index[:, shared] = np.arange(len(shared))
    for g in range(len(models)):
        index[g, list(own)] = len(shared) + g * len(own) + np.arange(len(own))
    return grouped_problem(program, data, members, index, held, fitted_before)


def fit_scoped(problem: Problem, method: str = "auto") -> ScopedFit:
    """The fit of a problem of `scoped` by `method`, a key of METHODS. Raises HostileStep like `fit.fit`.

    Never worse than the start. Far from saturation the mean field is close to a replay. Near it corrections may lead to
    and fro between a run that is saturated and one that is not: such a fit ends with Gauss-Newton on replays.
    """
    data = problem.data
    phi, loss, ratio = corrected(problem, METHODS[method], CORRECTIONS, False, irregular=0.0)
    with suppress(HostileStep):
        means_ms = problem.replay(problem.start, False)
        if data.loss(means_ms) < loss:
            phi, loss, ratio = problem.start, data.loss(means_ms), ratio_of(problem, problem.start, means_ms)
    # Below the error of the model replays would fit the noise of arrivals; irregular loads they have fitted already.
    if problem.free.size and loss > MODEL_ERROR**2 and irregularity(problem, ratio) == 0.0:
        scales = problem.scales(phi)
        promised = METHODS[method](problem, phi, ratio, scales, False)
        if problem.loss(promised, ratio) < KEPT * loss:
            near = refined(problem, phi, scales, False)
            with suppress(HostileStep):
                reached = data.loss(problem.replay(near, False))
                if reached < loss:
                    phi, loss = near, reached
    programs = tuple(problem.program.with_theta(tuple(phi[g.index])) for g in problem.groups)
    return ScopedFit(models_of(problem.data), programs, problem, phi, loss)
