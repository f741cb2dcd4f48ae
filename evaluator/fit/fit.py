"""Constants from measurements: a mean-field fit on load stages, corrected by full replays.

The residuals are relative errors of stage means of E2E, TTFT and ITL under a Huber loss, weighted by how much arrivals
alone move them (`loss.py`). One of several methods fits the mean field (`methods.py`); full replays then show what the
mean field leaves out, as a ratio per stage and latency, and the fit repeats with the mean field scaled by it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from importlib import resources

import numpy as np

from evaluator.fit.delays import with_delays
from evaluator.fit.gauss_newton import NO_EFFECT
from evaluator.fit.loss import MODEL_ERROR, Cells, FitSet, cells_of, standard_errors_ms
from evaluator.fit.methods import METHODS, WORST, Method, linear, minimise, not_smooth
from evaluator.fit.problem import ConstantGroup, Problem, problem_of, with_prior_reset
from evaluator.fit.replayed import irregularity, refined
from evaluator.fit.stages import Stages, joined, stages_of
from evaluator.fit.uncertainty import linearised, residual_variance
from simulator.clock.run import HostileStep
from simulator.language.complete import complete
from simulator.language.ir import Program
from simulator.language.parse import parse
from simulator.serving.experiment import Experiment
from simulator.serving.facts import has_curves
from simulator.serving.load import Load, load_of
from simulator.serving.trace import Trace

FIT_SEED = 1000  # arrival seed of the correcting replays; reports use other seeds
NOISE_SEEDS = (1001, 1002, 1003, 1004, 1005, 1006)  # arrival seeds for the noise: not those of a fit or a score
BLACKBOX = resources.files("seeds").joinpath("linear.py").read_text("utf-8")
KERNELS = """
def step_time(b, s, *, kernels: one = 1.0, base: us = 500.0): return kernels * b.kernel_us + base
def queueing_time(r, s, *, base: us = 5000.0): return base
"""
REFERENCE = resources.files("seeds").joinpath("terms.py").read_text("utf-8")
CORRECTIONS = 3  # replays of all experiments, at most
NEGLIGIBLE = 1e-6  # relative error, of all stages together, below which a constant is left out
# Irregularity of loads (replayed.irregularity) above which a search fits them by replays alone, which takes ten times
# as long. The limit of `evolve fit` is 0.
IRREGULAR = 0.1
GAIN = 0.01  # share of the loss below which a correction, or a search of `polish`, gains nothing
KEPT = 0.9  # share of the loss that the mean field may promise to leave before a fit goes on with replays
# Settings of `polish`:
REGION = 0.2  # half-width of the trust region, in sizes of a constant
REACH = 3.0  # half-width of the box, in standard errors
SIGMA = 0.05  # the first step, as a share of the box
POLISH_SEED = 30


@dataclass(frozen=True)
class Fit:
    """A fitted program, and the mean Huber loss of its replay with the fit's own arrivals.

    ratio: float64[stages, 3], replay over mean field at its constants.
    """

    program: Program
    loss: float
    ratio: np.ndarray = field(compare=False, repr=False)


def fit_set(experiments: Sequence[Experiment], in_steps: bool = False) -> FitSet:
    """Experiments with observed stage means, prepared for any number of fits in about 20 ms each.

    in_steps: closed loads are not replayed in a fit (see FitSet).
    """
    loads, stages, noise, ratio, cells = zip(*map(_prepared, experiments), strict=True)
    steady = np.array([in_steps and _steady(e) for e in experiments])
    figures = np.concatenate(noise), np.concatenate(ratio), cells
    data = FitSet(tuple(experiments), joined(stages), loads, *figures, np.zeros_like(steady))
    return replace(data, ratio=_ratio_in_steps(data, steady), in_steps=steady) if steady.any() else data


def _ratio_in_steps(data: FitSet, steady: np.ndarray) -> np.ndarray:
    """The data's ratio, of steady runs with measured kernels by a replay of every kernel with its factor.

    The schedules of candidates are nearer to that of REFERENCE, fitted to all runs, than to that of a law for each run.
    """
    kept = [i for i in np.flatnonzero(steady).tolist() if has_curves(data.experiments[i].facts)]
    if not kept:
        return data.ratio
    some = data.subset(kept)
    problem = problem_of(complete(parse(REFERENCE)), some)
    phi = problem.rounded(linear(problem, problem.start, some.ratio, problem.scales(problem.start), True))
    ratio = data.ratio.copy()
    ratio[np.concatenate(data.stages_at(kept))] = ratio_of(problem, phi, problem.replay(phi, True))
    return ratio


def _steady(e: Experiment) -> bool:
    """True for a closed load of patient clients that do not think."""
    clients = e.workload.clients
    waits = clients is not None and (clients.think_time_s.fixed != 0.0 or clients.ramp_s > 0.0)
    return e.workload.closed and not waits and e.workload.timeout_s is None


def stand_in(experiment: Experiment) -> Program:
    """A simple law for any program on this experiment: its measured kernels, or the blackbox form of the host."""
    return complete(parse(KERNELS if has_curves(experiment.facts) else BLACKBOX))


# Every fold and every baseline is fitted to some of the same experiments.
@lru_cache(maxsize=1024)
def _prepared(experiment: Experiment) -> tuple[Load, Stages, np.ndarray, np.ndarray, Cells | None]:
    """(load, stages, noise, ratio, cells) of an experiment; noise 0 and ratio 1 where no request of a stage completes.

    They depend on the load and on how long steps take, hardly on the terms that explain the step time. So `stand_in`,
    fitted to this experiment alone, represents any program that is right here, and nothing leaks between folds. The
    ratio by the kernels is within 0.12 % (weighted mean) of those by fitted candidates, that by the blackbox within
    0.5 %.

    The noise is that of new draws of arrivals. A closed load has none, because requests come as others end. The
    arrivals of a trace are fixed: its noise is what the stand-in does not explain of single requests.
    """
    load = load_of(experiment, FIT_SEED)
    stages = stages_of(experiment, load)
    observed_ms = stages.observed_ms
    ones = np.ones_like(observed_ms)
    one = FitSet((experiment,), stages, (load,), 0.0 * ones, ones, (None,), np.array([False]))
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
        elif _steady(experiment):
            noise = np.zeros_like(observed_ms)  # requests come as others end
        else:
            means = [
                replace(problem, data=replace(one, loads=(load_of(experiment, seed),))).replay(phi, True)
                for seed in NOISE_SEEDS
            ]
            noise = np.std(means, axis=0, ddof=1) / np.mean(means, axis=0)
    return load, stages, np.where(np.isfinite(noise), noise, 0.0), ratio, cells


class Pruned(Exception):
    """The mean field's mean error shows that a program is not worth a replay."""

    def __init__(self, joint: float, most: float) -> None:
        super().__init__(f"{joint:.3g} % mean error by the mean field: above {most:.3g} % it is not replayed")


def corrected(
    problem: Problem,
    method: Method,
    corrections: int,
    allow_hostile: bool,
    most: float = math.inf,
    irregular: float = IRREGULAR,
) -> tuple[np.ndarray, float, np.ndarray]:
    """(phi, loss of its replay, ratio of replay to mean field) at the best of at most `corrections` replays.

    Gauss-Newton on replays follows if the irregularity of the loads is above `irregular`. Raises Pruned if the mean
    field's mean error exceeds `most` percent before any replay, and HostileStep if a replay near the optimum meets a
    step time outside [1, 10^10] us (unless `allow_hostile`).
    """
    given, data = problem, problem.data
    problem = with_delays(given, given.start)
    phi = problem.start
    if not problem.free.size:
        means_ms = problem.replay(phi, allow_hostile)
        return phi, data.loss(means_ms), ratio_of(problem, phi, means_ms)
    best, lowest, best_means_ms, first = phi, np.inf, data.stages.observed_ms, phi
    ratio, last = data.ratio, np.inf
    scales = problem.scales(phi)
    for i in range(corrections):
        if i > 0:
            problem = with_delays(given, phi)  # whose reference step is another now
            phi = np.clip(phi, problem.low, problem.high)
        phi = problem.rounded(method(problem, phi, ratio, scales, i == 0))
        if i == 0:
            first = phi
            if most < math.inf and (mean_error := data.mean_error(problem.predict(phi) * ratio)) > most:
                raise Pruned(mean_error, most)
        # Under this ratio the mean field's loss at the previous phi was the loss of the previous replay.
        if i > 0 and not last - problem.loss(phi, ratio) > GAIN * last:
            break
        try:
            means_ms = problem.replay(phi, allow_hostile)
        except HostileStep:  # some step takes no time at the optimum: stay a little on this side of it
            phi = problem.rounded(0.9 * phi + 0.1 * problem.origin)
            means_ms = problem.replay(phi, allow_hostile)
        last = data.loss(means_ms)
        improved = lowest - last
        if last < lowest:
            best, lowest, best_means_ms = phi, last, means_ms
        if not improved > GAIN * last:
            break
        ratio = ratio_of(problem, phi, means_ms)
    if irregularity(problem, ratio_of(problem, best, best_means_ms)) > irregular:
        # Where chance decides if two requests meet, ratios depend on the constants, and corrections lead astray.
        traced = any(data.cells)
        near = refined(problem, best if traced else first, scales, allow_hostile)
        means_ms = problem.replay(near, allow_hostile)
        if traced or data.loss(means_ms) < lowest:
            best, lowest, best_means_ms = near, data.loss(means_ms), means_ms
    if problem.delayed:
        problem = with_delays(given, best)
        best = problem.rounded(np.clip(best, problem.low, problem.high))
        best_means_ms = problem.replay(best, allow_hostile)
        lowest = data.loss(best_means_ms)
    best, lowest = without_idle(problem, best, lowest, allow_hostile)
    return best, lowest, ratio_of(problem, best, best_means_ms)


def ratio_of(problem: Problem, phi: np.ndarray, means_ms: np.ndarray) -> np.ndarray:
    """Stage means of a replay over those of the mean field at `phi`, float64[stages, 3]; 1 where either has none."""
    with np.errstate(invalid="ignore", divide="ignore"):
        ratio = means_ms / problem.predict(phi)
    return np.where(np.isfinite(ratio) & (ratio > 0), ratio, 1.0)


def without_idle(problem: Problem, phi: np.ndarray, loss: float, allow_hostile: bool) -> tuple[np.ndarray, float]:
    """(phi, loss of its replay) with constants that change nothing in these runs at 0, if the replay is not worse.

    Such a constant belongs to a term or a branch that these runs never reach, or is too small to matter. Constants from
    a fit to other runs keep their values.
    """
    size, effect = problem.scales(phi)
    smooth = ~np.isin(problem.position, not_smooth(problem.program))
    unused = ((effect * size < NO_EFFECT) | (effect * phi < NEGLIGIBLE)) & smooth & ~problem.trusted
    idle = unused & (problem.low == 0.0) & (phi > 0.0) & (problem.high > 0.0)
    if not idle.any():
        return phi, loss
    plain = np.where(idle, 0.0, phi)
    try:
        plain_loss = problem.data.loss(problem.replay(plain, allow_hostile))
    except HostileStep:
        return phi, loss
    return (plain, plain_loss) if plain_loss <= loss * (1.0 + NEGLIGIBLE) else (phi, loss)


def fit(
    program: Program,
    data: FitSet,
    *,
    allow_hostile: bool = False,
    method: str = "auto",
    reset_to_prior: bool = False,
    fitted_before: bool = False,
    most: float = math.inf,
    irregular: float = IRREGULAR,
) -> Fit:
    """`program` with the constants that fit `data` best by `method` (a key of METHODS), starting from its own.

    Deterministic. A program without constants is only scored. reset_to_prior: constants that the data leave open go to
    their low bounds instead of staying near their start values, as held-out errors need if these were learned from
    the held-out runs. fitted_before: the start values come from a fit to other runs (see `problem_of`). irregular: see
    `corrected`. Raises Pruned if the mean field's mean error exceeds `most` percent before any replay, and
    HostileStep if a replay near the optimum meets a step time outside [1, 10^10] us (unless `allow_hostile`).
    """
    problem = problem_of(program, data, fitted_before=fitted_before)
    if reset_to_prior:
        problem = with_prior_reset(problem)
    phi, loss, ratio = corrected(problem, METHODS[method], CORRECTIONS, allow_hostile, most, irregular)
    return Fit(program.with_theta(tuple(phi)), loss, ratio)


@dataclass(frozen=True)
class ScopedFit:
    """A fit with a value of some constants for each model. `programs[g]`: the program of group g of `problem`.

    phi: all constants of `problem`, the shared ones once.
    """

    models: tuple[str, ...]
    programs: tuple[Program, ...]
    problem: Problem
    phi: np.ndarray
    loss: float


def models_of(data: FitSet) -> tuple[str, ...]:
    """The distinct models of the experiments, in order of appearance."""
    return tuple(dict.fromkeys(e.model for e in data.experiments))


def scoped(
    program: Program, data: FitSet, own: Sequence[int], held: Sequence[int] = (), fitted_before: bool = False
) -> Problem:
    """The problem in which the constants at `own`, positions in theta, have a value for each model.

    phi holds the shared constants first, then those of each model in turn. `held`, `fitted_before`: see `problem_of`.
    """
    n, own = len(program.theta), list(own)
    shared = [j for j in range(n) if j not in set(own)]
    groups = []
    for g, model in enumerate(models_of(data)):
        index = np.zeros(n, dtype=int)
        index[shared] = np.arange(len(shared))
        index[own] = len(shared) + g * len(own) + np.arange(len(own))
        groups.append(ConstantGroup(tuple(i for i, e in enumerate(data.experiments) if e.model == model), index))
    return problem_of(program, data, held, fitted_before, groups=groups)


def fit_scoped(problem: Problem, method: str = "auto") -> ScopedFit:
    """The fit of a problem by `method`, a key of METHODS; never worse than its start. Raises HostileStep as `fit` does.

    Corrections may alternate between a run that is saturated and one that is not, because the mean field is far from a
    replay there: such a fit ends with Gauss-Newton on replays.
    """
    data = problem.data
    phi, loss, ratio = corrected(problem, METHODS[method], CORRECTIONS, False, irregular=0.0)
    problem = with_delays(problem, phi)
    with suppress(HostileStep):
        means_ms = problem.replay(problem.start, False)
        if data.loss(means_ms) < loss:
            phi, loss, ratio = problem.start, data.loss(means_ms), ratio_of(problem, problem.start, means_ms)
    # Below MODEL_ERROR replays would fit the noise of arrivals; irregular loads have been fitted by replays already.
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


def polish(program: Program, data: FitSet, evaluations: int = 300) -> Fit:
    """`program` with constants near its own that minimise the loss of the replays plus the prior of a search's fit.

    CMA-ES on the replays, for the last percent of finalists; takes seconds and never ends worse than it starts. Without
    the prior, constants that the data leave open would follow the noise of one draw of arrivals. For the same reason a
    constant at 0 stays there. evaluations: replays of all experiments, for each of at most two searches. Raises
    HostileStep if no constants tried, its own included, keep every step within [1, 10^10] us.
    """
    own = np.array(program.theta, dtype=float)
    problem = with_delays(with_prior_reset(problem_of(program, data, held=np.flatnonzero(own == 0.0).tolist())), own)
    free = problem.free
    if not free.size:
        means_ms = problem.replay(own, False)
        return Fit(program, data.loss(means_ms), ratio_of(problem, own, means_ms))
    start, scales = problem.start[free], problem.scales(problem.start)
    size, prior = scales[0], problem.prior(scales)
    low = np.maximum(start - REGION * size[free], problem.low[free])
    high = np.minimum(start + REGION * size[free], problem.high[free])
    axes = _axes(problem, size, prior, free)
    best, lowest, refused = own, WORST, None
    count = data.stages.observed_ms.size  # the loss is a mean over this many residuals

    def loss(phi: np.ndarray) -> float:
        nonlocal best, lowest, refused
        try:
            reached = data.loss(problem.replay(phi, False)) + problem.prior_cost(phi, prior) / count
        except HostileStep as e:
            refused = e
            return WORST
        if reached < lowest:
            best, lowest = phi, reached
        return reached

    def value(middle: np.ndarray, x: np.ndarray) -> float:
        """The loss at x, in the unit cube around the constants `middle`."""
        phi = problem.start.copy()
        phi[free] = np.clip(middle + axes @ (REACH * (2.0 * x - 1.0)), low, high)
        return loss(problem.rounded(phi))

    first = loss(own)
    center = np.full(free.size, 0.5)
    minimise(partial(value, start), center, SIGMA, evaluations, POLISH_SEED)
    if first - lowest > GAIN * first:
        population = 2 * (4 + int(3 * np.log(max(free.size, 2))))
        minimise(partial(value, best[free]), center, SIGMA, evaluations, POLISH_SEED + 1, population)
    if lowest >= WORST and refused is not None:
        raise refused
    means_ms = problem.replay(best, True)
    reached = data.loss(means_ms)
    if best is not own:
        best, reached = without_idle(problem, best, reached, False)
    return Fit(program.with_theta(tuple(best)), reached, ratio_of(problem, best, means_ms))


def _axes(problem: Problem, size: np.ndarray, prior: np.ndarray, free: np.ndarray) -> np.ndarray:
    """float64[free, free]: axes one standard error long, but no longer than the trust region.

    Data and prior determine the constants about equally well along all of them, so constants that can replace each
    other move together.
    """
    a, r, w, _ = linearised(problem, problem.start, size, free)
    known = (a.T * w) @ a + np.diag(np.square(prior * size)[free])
    information = known / residual_variance(r, w, len(w) - free.size) + np.eye(free.size) / REGION**2
    root: np.ndarray = size[free][:, None] * np.linalg.cholesky(np.linalg.inv(information))
    return root
