"""Constants from measurements: a mean-field fit on load stages, corrected by full replays.

The residuals are relative errors of stage means of E2E, TTFT and ITL under a Huber loss, weighted by how much arrivals
alone move them (`loss.py`). One of several methods fits the mean field (`methods.py`); a full replay then shows what
the mean field leaves out (`corrections.py`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from importlib import resources

import numpy as np

from evaluator.fit.cells import Cells, cells_of, standard_errors_ms
from evaluator.fit.corrections import CORRECTIONS, IRREGULAR, corrected
from evaluator.fit.loss import FitSet
from evaluator.fit.methods import METHODS, linear
from evaluator.fit.problem import forgetful, problem_of
from evaluator.fit.stages import stages_of
from simulator.language.complete import complete
from simulator.language.ir import Program
from simulator.language.parse import parse
from simulator.serving.experiment import Experiment
from simulator.serving.facts import has_curves
from simulator.serving.load import load_of
from simulator.serving.trace import Trace

FIT_SEED = 1000  # arrival seed of the correcting replays; reports use other seeds
NOISE_SEEDS = (1001, 1002, 1003, 1004, 1005, 1006)  # arrival seeds for the noise: not those of a fit or a score
BLACKBOX = resources.files("seeds").joinpath("linear.py").read_text("utf-8")
KERNELS = """
def step_time(b, s, *, kernels: one = 1.0, base: us = 500.0): return kernels * b.kernel_us + base
def queueing_time(r, s, *, base: us = 5000.0): return base
"""


@dataclass(frozen=True)
class Fit:
    """A fitted program and its loss (mean Huber loss of the replay's residuals) with the fit's own arrivals.

    ratio: float64[stages, 3], replay over mean field at the program's constants.
    """

    program: Program
    loss: float
    ratio: np.ndarray = field(compare=False, repr=False)


def fit_set(experiments: Sequence[Experiment]) -> FitSet:
    """`experiments`, which need observed stage means, prepared for any number of fits: about 20 ms each."""
    loads = tuple(load_of(e, FIT_SEED) for e in experiments)
    stages = stages_of(experiments, loads)
    noise, ratio, cells = zip(*map(_prepared, experiments), strict=True)
    return FitSet(tuple(experiments), stages, loads, np.concatenate(noise), np.concatenate(ratio), cells)


def stand_in(experiment: Experiment) -> Program:
    """The law that stands in for any program on this experiment: its measured kernels, or the host's blackbox form."""
    return complete(parse(KERNELS if has_curves(experiment.facts) else BLACKBOX))


# Every fold and every known answer is fitted to some of the same experiments.
@lru_cache(maxsize=128)
def _prepared(experiment: Experiment) -> tuple[np.ndarray, np.ndarray, Cells | None]:
    """An experiment's noise and ratio, 0 and 1 where no request of a stage completes, and its cells.

    All depend on the load and on how long steps take, hardly on the terms that explain the step time. So the sum of the
    measured kernels, or without them the host's blackbox form, fitted to this experiment, can stand in for any program
    that is right here. No other experiment enters, so nothing leaks between folds. The ratio by the kernels is within
    0.12 % (weighted mean) of those by fitted candidates, that by the blackbox within 0.5 %.

    Drawn arrivals are drawn again for the noise. Those of a trace are what they were: its noise is what the stand-in
    does not explain of the requests themselves.
    """
    load = load_of(experiment, FIT_SEED)
    stages = stages_of((experiment,), (load,))
    observed_ms = stages.observed_ms
    ones = np.ones_like(observed_ms)
    one = FitSet((experiment,), stages, (load,), 0.0 * ones, ones, (None,))
    problem = problem_of(stand_in(experiment), one)
    phi, _, ratio = corrected(problem, linear, 2, True, irregular=math.inf)
    source, cells = experiment.workload.source, None
    with np.errstate(invalid="ignore", divide="ignore"):
        if isinstance(source, Trace):
            noise = np.zeros_like(observed_ms)
            if source.recorded:
                (run,) = problem.replays(phi)
                cells = cells_of(run, source.recorded)
                noise = standard_errors_ms(run, source.recorded, run.requests.stage, len(observed_ms)) / observed_ms
        else:
            means = [
                replace(problem, data=replace(one, loads=(load_of(experiment, seed),))).replay(phi, True)
                for seed in NOISE_SEEDS
            ]
            noise = np.std(means, axis=0, ddof=1) / np.mean(means, axis=0)
    return np.where(np.isfinite(noise), noise, 0.0), ratio, cells


def fit(
    program: Program,
    data: FitSet,
    *,
    allow_hostile: bool = False,
    method: str = "auto",
    forget: bool = False,
    fitted_before: bool = False,
    most: float = math.inf,
    irregular: float = IRREGULAR,
) -> Fit:
    """`program` with the constants that fit `data` best by `method` (a key of METHODS), starting from its own.

    A program without constants is only scored. Deterministic: the result depends on the program and the data alone.
    `forget`: constants that the data leave open go to their low bounds instead of staying near their start values. Use
    it for held-out errors where the start values were learned from the held-out runs. `fitted_before`: the start values
    come from a fit to other runs, and are believed until these say otherwise (see `Problem`). `irregular`: how
    irregular loads have to be for a fit by replays alone (corrections.py). Raises Hopeless if the mean field's joint
    error exceeds `most` percent before any replay, and HostileStep if a replay near the optimum meets a step time
    outside [1, 10^10] us (unless `allow_hostile`).
    """
    problem = problem_of(program, data, fitted_before=fitted_before)
    if forget:
        problem = forgetful(problem)
    phi, loss, ratio = corrected(problem, METHODS[method], CORRECTIONS, allow_hostile, most, irregular)
    return Fit(program.with_theta(tuple(phi)), loss, ratio)
