"""Constants from measurements: a mean-field fit on load stages, corrected by full replays.

The residuals are relative errors of stage means of E2E, TTFT and ITL under a Huber-like loss, weighted by how much the
arrivals alone move them (`loss.py`, `noise.py`). The mean field is fitted by one of several routes (`routes.py`); a
full replay then shows what it left out (`corrections.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from evaluator.fit.corrections import CORRECTIONS, corrected
from evaluator.fit.loss import FitSet
from evaluator.fit.meanfield import DEPLOYMENT, stages_of
from evaluator.fit.noise import measure
from evaluator.fit.pose import forgetful, problem_of
from evaluator.fit.routes import METHODS, ROUTES
from simulator.experiment.experiment import Experiment
from simulator.experiment.load import load_of
from simulator.language.ir import Program

__all__ = ["FIT_SEED", "METHODS", "Fit", "FitSet", "fit", "fit_set", "subset"]

FIT_SEED = 1000  # arrival seed of the correcting replays; reports use other ones


@dataclass(frozen=True)
class Fit:
    """A fitted program and its loss (mean Huber loss of the replay's residuals) with the fit's own arrivals.

    ratio: float64[stages, 3], replay over mean field at its constants.
    """

    program: Program
    loss: float
    ratio: np.ndarray = field(compare=False, repr=False)


def fit_set(experiments: Sequence[Experiment], seed: int = FIT_SEED) -> FitSet:
    """Prepare `experiments`, which need observed stage means, for any number of fits: about 20 ms each."""
    loads = tuple(load_of(e, seed) for e in experiments)
    stages = stages_of(experiments, loads)
    plain = np.ones_like(stages.observed_ms)
    data = FitSet(tuple(experiments), stages, loads, 0.0 * plain, plain)
    measured = [measure(subset(data, [i])) for i in range(len(experiments))]
    noise, ratio = (np.concatenate(parts) for parts in zip(*measured, strict=True))
    return replace(data, noise=noise, ratio=ratio)


def stages_at(data: FitSet, keep: Sequence[int]) -> list[np.ndarray]:
    """The positions of the load stages of each of the experiments `keep`."""
    ends = (*data.stages.first, len(data.stages.table))
    return [np.arange(ends[i], ends[i + 1]) for i in keep]


def subset(data: FitSet, keep: Sequence[int]) -> FitSet:
    """The experiments `keep`, positions in `data.experiments`: equal to a fresh `fit_set` of them, without the work."""
    stages = data.stages
    rows = stages_at(data, keep)
    every = np.concatenate(rows) if rows else np.arange(0)
    table = stages.table[every]
    table[:, DEPLOYMENT] = np.repeat(np.arange(len(rows)), [len(r) for r in rows])
    experiments = tuple(data.experiments[i] for i in keep)
    first = tuple(int(x) for x in np.cumsum([0, *(len(r) for r in rows)])[:-1])
    kept = replace(stages, table=table, observed_ms=stages.observed_ms[every], experiments=experiments, first=first)
    return FitSet(experiments, kept, tuple(data.loads[i] for i in keep), data.noise[every], data.ratio[every])


def fit(
    program: Program,
    data: FitSet,
    corrections: int = CORRECTIONS,
    *,
    allow_hostile: bool = False,
    method: str = "auto",
    forget: bool = False,
) -> Fit:
    """`program` with the constants that fit `data` best by `method`, one of METHODS, starting from those it came with.

    Without constants it is only scored. Deterministic: depends on the program and the data. `forget`: what the data
    leave open goes to the constants' low bounds instead of staying near the values they came with; for held-out errors,
    where those were learned from the runs held out. Raises HostileStep if a replay near the optimum meets a step time
    outside [1, 10^10] us (unless `allow_hostile`).
    """
    problem = problem_of(program, data)
    if forget:
        problem = forgetful(problem)
    phi, loss, ratio = corrected(problem, ROUTES[method], corrections, allow_hostile)
    return Fit(program.with_theta(tuple(phi)), loss, ratio)
