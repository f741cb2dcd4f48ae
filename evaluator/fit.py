"""Constants from measurements: a mean-field fit on load stages, corrected by full replays.

The residuals are relative errors of stage means of E2E, TTFT and ITL under a Huber-like loss. Gauss-Newton steps,
each a non-negative least-squares problem within the bounds, first with the number of running decodes taken from the
observed ITL, then with Little's law. A full replay then shows what the mean field left out, as a ratio for every
stage and latency; the fit is repeated against the scaled figures as long as the replay's errors improve.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
from scipy.optimize import lsq_linear, nnls

from evaluator.meanfield import DEPLOYMENT, Stages, bases, cold_steps, jacobian, predict, stages_of
from evaluator.metrics import stage_means
from simulator.bind import bind
from simulator.clock.run import HostileStep
from simulator.experiment import Experiment
from simulator.language.affine import affine
from simulator.language.bounds import bounds
from simulator.language.ir import Program
from simulator.language.opcodes import Code, assemble
from simulator.load import Load, load_of
from simulator.replay import replay_bound

HUBER = 0.03  # relative error beyond which a residual counts linearly
WEIGHTS = np.array([1.0, 0.3, 1.0])  # of E2E, TTFT, ITL: what the arrival seed moves most counts least
FIT_SEED = 1000  # arrival seed of the correcting replays; reports use other ones
GAUSS_NEWTON_STEPS = 12
PRIOR = 3e-3  # pull towards the start values, as a share of each constant's effect: decides what data cannot
# Runs whose answers are about equally long cannot tell a time per token or per request from one per step: what they
# leave open goes to the step, where it also holds for answers of another length.
OVERHEADS = ("output_token_time", "completion_time")
OVERHEAD_PRIOR = 1000.0  # times PRIOR, towards 0
DIGITS = 6  # significant digits of a fitted constant, rounded before the final scoring


@dataclass(frozen=True)
class FitSet:
    """Experiments prepared for fitting: their load stages, and the loads of the correcting replays."""

    experiments: tuple[Experiment, ...]
    stages: Stages
    loads: tuple[Load, ...]


@dataclass(frozen=True)
class Fit:
    """A fitted program and its loss (mean Huber loss of the replay's residuals) with the fit's own arrivals."""

    program: Program
    loss: float
    ratio: np.ndarray


def rows_of(data: FitSet, keep: Sequence[int]) -> list[np.ndarray]:
    """The positions of the load stages of these experiments."""
    return [np.flatnonzero(data.stages.table[:, DEPLOYMENT] == i) for i in keep]


def subset(data: FitSet, keep: Sequence[int]) -> FitSet:
    """The experiments at these positions only."""
    rows = rows_of(data, keep)
    every = np.concatenate(rows)
    table = data.stages.table[every].copy()
    table[:, DEPLOYMENT] = np.repeat(np.arange(len(keep)), [len(r) for r in rows])
    first = tuple(int(x) for x in np.cumsum([0, *(len(r) for r in rows[:-1])]))
    experiments = tuple(data.experiments[i] for i in keep)
    stages = Stages(table, data.stages.observed_ms[every], experiments, first)
    return FitSet(experiments, stages, tuple(data.loads[i] for i in keep))


def refit(program: Program, ratio: np.ndarray, data: FitSet) -> Program:
    """`program`, fitted on more than `data`, fitted again on `data` by the mean field alone; `ratio` puts back what
    that leaves out, float64[stages, 3], replay over mean field. Constants start where they are."""
    if not program.theta:
        return program
    model = _MeanField(assemble(program), data.stages)
    low, high = np.array(bounds(program), dtype=float).reshape(-1, 2).T
    theta = np.clip(np.array(program.theta), low, high)
    origin, pull = _prior(program, theta, low, high)
    return program.with_theta(tuple(model.solve(theta, origin, pull, low, high, ratio, fixed_load=False)))


def replay_ratio(program: Program, data: FitSet) -> np.ndarray:
    """Replay over mean field of every load stage, float64[stages, 3]."""
    code, theta = assemble(program), np.array(program.theta)
    means = _replay_loss(code, theta, data, True)[1]
    return _MeanField(code, data.stages).ratio(means, theta)


def residual_matrix(program: Program, data: FitSet, ratio: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(derivative of every weighted residual in every constant, the residuals), Huber-weighted, of what is observed."""
    model = _MeanField(assemble(program), data.stages)
    theta, observed = np.array(program.theta), data.stages.observed_ms
    value = model.predict(theta, False)
    out = np.empty((theta.size, *observed.shape))
    jacobian(*model.head, data.stages.table, theta, False, model._sizes(theta), value, out)
    known = ~np.isnan(observed).ravel()
    r = residuals(value * ratio, observed).ravel()
    slope = (out * (ratio / observed * WEIGHTS)).reshape(theta.size, -1).T
    weight = np.sqrt(np.minimum(1.0, HUBER / np.maximum(np.abs(r), 1e-12)))[known]
    return slope[known] * weight[:, None], r[known] * weight


def _prior(
    program: Program, theta: np.ndarray, low: np.ndarray, high: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """(towards what, how strongly) constants are pulled where the data leave them open: affine ones towards the least
    they may be, the others towards where they start."""
    affinely = np.array([c.name in names for f, names in linear_of(program) for c in f.constants])
    overhead = np.array([f.name in OVERHEADS for f in program.functions for _ in f.constants])
    origin = np.clip(np.where(overhead, 0.0, np.where(affinely & np.isfinite(low), low, theta)), low, high)
    return origin, PRIOR * np.where(overhead, OVERHEAD_PRIOR, 1.0)


def linear_of(program):
    return [(f, set(affine(f).linear)) for f in program.functions]


def fit_set(experiments: Sequence[Experiment], seed: int = FIT_SEED) -> FitSet:
    """Prepare `experiments`, which need observed stage means, for any number of fits."""
    loads = tuple(load_of(e, seed) for e in experiments)
    return FitSet(tuple(experiments), stages_of(experiments, loads), loads)


def fit(program: Program, data: FitSet, corrections: int = 3, *, allow_hostile: bool = False) -> Fit:
    """`program` with the constants that fit `data` best, starting from those it came with.

    Raises HostileStep if a replay near the optimum meets a step time outside [1, 10^10] us (unless `allow_hostile`).
    """
    code = assemble(program)
    model = _MeanField(code, data.stages)
    low, high = np.array(bounds(program), dtype=float).reshape(-1, 2).T
    theta = np.array(program.theta)
    if not theta.size:
        loss, means = _replay_loss(code, theta, data, allow_hostile)
        return Fit(program, loss, model.ratio(means, theta))
    theta = np.clip(theta, low, high)
    origin, pull = _prior(program, theta, low, high)
    best_theta, best_loss, best_means = None, np.inf, None
    ratio = np.ones_like(data.stages.observed_ms)
    start = model.solve(theta, origin, pull, low, high, ratio, fixed_load=True)
    theta = min((theta, start), key=lambda t: model.loss(t, ratio, False))
    for _ in range(corrections):
        theta = rounded(model.solve(theta, origin, pull, low, high, ratio, fixed_load=False), low, high)
        try:
            loss, means = _replay_loss(code, theta, data, allow_hostile)
        except HostileStep:  # the optimum lies where some step takes no time: stay a little on this side of it
            theta = rounded(0.9 * theta + 0.1 * origin, low, high)
            loss, means = _replay_loss(code, theta, data, allow_hostile)
        improved = best_loss - loss
        if loss < best_loss:
            best_theta, best_loss, best_means = theta, loss, means
        if not improved > 0.01 * loss:
            break
        ratio = model.ratio(means, theta)
    assert best_theta is not None
    return Fit(program.with_theta(tuple(best_theta)), float(best_loss), model.ratio(best_means, best_theta))


def rounded(theta: np.ndarray, low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """Six significant digits, so that the text that is printed is what is scored; never outside the bounds."""
    return np.clip([float(f"{x:.{DIGITS}g}") for x in theta], low, high)


def huber(residuals: np.ndarray) -> np.ndarray:
    """Squared up to HUBER, linear beyond."""
    size = np.abs(residuals)
    loss: np.ndarray = np.where(size <= HUBER, size * size, HUBER * (2 * size - HUBER))
    return loss


def residuals(predicted_ms: np.ndarray, observed_ms: np.ndarray) -> np.ndarray:
    """Weighted relative errors, float64[stages, 3]; 0 where nothing was observed."""
    relative = (predicted_ms - observed_ms) / observed_ms
    return np.where(np.isnan(observed_ms), 0.0, np.nan_to_num(relative, nan=1e6, posinf=1e6) * WEIGHTS)


def _replay_loss(code: Code, theta: np.ndarray, data: FitSet, allow_hostile: bool) -> tuple[float, np.ndarray]:
    means = []
    for e, load in zip(data.experiments, data.loads, strict=True):
        bound = bind(code, tuple(theta), e.facts)
        replay = replay_bound(load, bound, stop_when_hostile=not allow_hostile)
        means.append(stage_means(replay, len(e.workload.stages)))
    stacked = np.concatenate(means)
    return float(huber(residuals(stacked, data.stages.observed_ms)).mean()), stacked


class _MeanField:
    """The mean-field prediction of one program as a function of its constants, and its Gauss-Newton solver."""

    def __init__(self, code: Code, stages: Stages) -> None:
        self.stages = stages
        base = bases(code, stages)
        self.head = (code.rows, code.static, code.step, code.raw, code.request, code.results, base, base[0].copy())

    def predict(self, theta: np.ndarray, fixed_load: bool) -> np.ndarray:
        out = np.empty_like(self.stages.observed_ms)
        predict(*self.head, self.stages.table, theta, fixed_load, out)
        return out

    def ratio(self, means_ms: np.ndarray, theta: np.ndarray) -> np.ndarray:
        """What a replay says over what the mean field says, 1 where it says nothing."""
        with np.errstate(invalid="ignore", divide="ignore"):
            ratio = means_ms / self.predict(theta, False)
        return np.where(np.isfinite(ratio) & (ratio > 0), ratio, 1.0)

    def loss(self, theta: np.ndarray, ratio: np.ndarray, fixed_load: bool) -> float:
        predicted = self.predict(theta, fixed_load) * ratio
        return float(huber(residuals(predicted, self.stages.observed_ms)).mean())

    def solve(
        self,
        theta: np.ndarray,
        origin: np.ndarray,
        pull: np.ndarray,
        low: np.ndarray,
        high: np.ndarray,
        ratio: np.ndarray,
        *,
        fixed_load: bool,
    ) -> np.ndarray:
        """Gauss-Newton steps from `theta` within the bounds, with a faint `pull` towards `origin`."""
        observed = self.stages.observed_ms
        known = ~np.isnan(observed).ravel()
        out = np.empty((theta.size, *observed.shape))
        size = self._sizes(theta)
        weights = pull * self._effects(theta)

        def objective(x: np.ndarray) -> float:
            r = residuals(self.predict(x, fixed_load) * ratio, observed)
            return float(huber(r).sum() + np.square(weights * (x - origin)).sum())

        goal, damping = objective(theta), 1e-4
        for _ in range(GAUSS_NEWTON_STEPS):
            value = self.predict(theta, fixed_load)
            jacobian(*self.head, self.stages.table, theta, fixed_load, size, value, out)
            r = residuals(value * ratio, observed).ravel()
            slope = (out * (ratio / observed * WEIGHTS)).reshape(theta.size, -1).T
            # iteratively reweighted: the Huber loss as a weighted square
            weight = np.sqrt(np.minimum(1.0, HUBER / np.maximum(np.abs(r), 1e-12)))[known]
            a = np.vstack([slope[known] * weight[:, None], np.diag(weights)])
            b = np.concatenate([-r[known] * weight, weights * (origin - theta)])
            if not (np.isfinite(a).all() and np.isfinite(b).all()):
                break
            moved, lower = theta, np.inf
            for _ in range(4):
                moved = _bounded_step(a, b, theta, low, high, damping)
                lower = objective(moved)
                if lower < goal:
                    break
                damping *= 30.0
            if not lower < goal:
                break
            gain, theta, goal = goal - lower, moved, lower
            damping = max(damping / 30.0, 1e-6)
            if gain <= 1e-4 * goal:
                break
        return theta

    def _sizes(self, theta: np.ndarray) -> np.ndarray:
        """How much of each constant is a percent of a step: the scale of its finite difference."""
        out = np.empty((theta.size, *self.stages.observed_ms.shape))
        value = self.predict(theta, True)
        jacobian(*self.head, self.stages.table, theta, True, np.full(theta.size, 1e-3), value, out)
        with np.errstate(divide="ignore", invalid="ignore"):
            percent = 0.01 * np.abs(value).mean() / np.abs(out).mean(axis=(1, 2))
        sizes: np.ndarray = np.maximum(np.abs(theta), np.where(np.isfinite(percent), percent, 1e-3))
        return sizes

    def _effects(self, theta: np.ndarray) -> np.ndarray:
        """What a unit of each constant does, in relative errors: to the stages, or to a step with a whole prompt in it
        (which stages hardly show), whichever is larger."""
        table, observed = self.stages.table, self.stages.observed_ms
        plain, moved = np.empty(len(table)), np.empty(len(table))
        cold_steps(*self.head, table, theta, plain)
        usual = observed[:, 2] * 1e3
        usual = np.where(np.isnan(usual), np.nanmean(usual) if (usual == usual).any() else 1e4, usual)
        value = self.predict(theta, True)
        step = np.maximum(np.abs(theta), 1e-3) * 1e-3
        effects = np.zeros(theta.size)
        for j in range(theta.size):
            shifted = theta.copy()
            shifted[j] += step[j]
            cold_steps(*self.head, table, shifted, moved)
            stages = residuals(self.predict(shifted, True), observed) - residuals(value, observed)
            effects[j] = max(np.linalg.norm((moved - plain) / usual), np.linalg.norm(stages)) / step[j]
        return np.nan_to_num(effects, nan=0.0, posinf=0.0)


def _bounded_step(
    a: np.ndarray, b: np.ndarray, theta: np.ndarray, low: np.ndarray, high: np.ndarray, damping: float
) -> np.ndarray:
    """The constants x within bounds that solve a (x - theta) = b best, damped in proportion to each column."""
    scale = np.linalg.norm(a, axis=0)
    scale = np.where(scale > 0, scale, 1.0)
    rows = np.vstack([a / scale, np.sqrt(damping) * np.eye(theta.size)])
    # unknowns y = (x - low) * scale >= 0
    target = np.concatenate([b, np.zeros(theta.size)]) + rows @ ((theta - low) * scale)
    y = None
    if not np.isfinite(high).any():
        with suppress(RuntimeError):  # its active set may cycle on columns that are nearly alike
            y = nnls(rows, target, maxiter=20 * theta.size)[0]
    if y is None:
        y = lsq_linear(rows, target, (0.0, np.where(high > low, (high - low) * scale, 1e-12))).x
    x: np.ndarray = np.clip(low + y / scale, low, high)
    return x
