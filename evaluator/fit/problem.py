"""The problem of a fit: residuals of the load stages plus a prior, over the constants of a program as one vector `phi`.

An entry of `phi` holds a constant for all experiments, or for one group of them. A constant whose bounds leave no room
is not searched. The prior decides what the data leave open: it pulls each constant faintly to its origin, more strongly
if the constant was fitted before or is a factor of a measured kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from evaluator.fit import gauss_newton
from evaluator.fit.gauss_newton import Goal
from evaluator.fit.loss import MODEL_ERROR, FitSet
from evaluator.fit.machine import Machine, machine
from evaluator.fit.meanfield import cold_slopes, predict, slopes
from evaluator.metrics import stage_means
from simulator.clock.bind import Bound, settle
from simulator.clock.replay import Replay, replay_bound
from simulator.language.affine import affine, thresholds
from simulator.language.bounds import (
    KERNEL_DEVIATION,
    LEAST_DIVISOR,
    LEAST_EFFICIENCY,
    bounds,
    kernel_adjustments,
    kernel_factors,
)
from simulator.language.ir import OVERHEADS, Function, Program
from simulator.language.opcodes import Code, assemble

PRIOR = 3e-3  # pull towards the start values, as a share of each constant's effect
# Runs with answers of about equal length cannot tell a time per token or per request from a time per step. The prior
# gives that time to the step, because a step takes the same time for answers of another length.
OVERHEAD_PRIOR = 1000.0  # times PRIOR, towards 0
# Standard deviation of the prior of a constant that was fitted before, as a share of its value (or of a value that
# makes a thousandth of a step), against residuals of MODEL_ERROR. One or two new runs leave most constants open;
# without this prior chance would decide near-ties between them.
BELIEVED = 0.3
# A sum of kernels misses about 2 % of a model, in all its stages and latencies alike: the sixty residuals of the
# shipped runs hold as much evidence as eight. So the prior counts sqrt(60 / 8) * 2 % / 1 % times as much as against
# sixty independent residuals of MODEL_ERROR. Errors on models left out are flat from 2 to 12.
KERNEL_EVIDENCE = 5.0
KERNEL_WEIGHT = KERNEL_EVIDENCE * MODEL_ERROR / KERNEL_DEVIATION  # of a unit away from the origin
KERNEL_TAIL = 2.0 * KERNEL_DEVIATION  # distance from the origin beyond which the prior grows linearly
DIGITS = 6  # significant digits of a fitted constant, rounded before the final scoring
SMALL = 1e-3  # least size of a constant
VANISHING = 1e30  # a divisor that leaves nothing of what it divides

Scales = tuple[np.ndarray, np.ndarray]  # (size, effect) of every entry of phi: see Problem.scales


@dataclass(frozen=True)
class ConstantGroup:
    """Experiments that share their constants, and the position in phi of every constant (index: int[theta])."""

    experiments: tuple[int, ...]
    index: np.ndarray


@dataclass(frozen=True)
class Problem:
    """A program to be fitted: start, low, high, origin, pull: float64[phi].

    The prior pulls towards the origin: the start value, or for a program that was not fitted before, 0 of an overhead
    and 1 of a factor of a measured kernel. measured: bool[phi], factors of measured kernels. trusted: bool[phi],
    constants from a fit to other runs. position: int[phi], the position of each entry in theta. machine: the program on
    the deployments. held: positions in theta that keep their value. delayed: entries of phi that observed delays
    decide, see fit/delays.py.
    """

    program: Program
    code: Code
    data: FitSet
    groups: tuple[ConstantGroup, ...]
    start: np.ndarray
    low: np.ndarray
    high: np.ndarray
    origin: np.ndarray
    pull: np.ndarray
    measured: np.ndarray
    trusted: np.ndarray
    position: np.ndarray
    machine: Machine = field(repr=False)
    held: tuple[int, ...] = ()
    delayed: tuple[int, ...] = ()

    @cached_property
    def free(self) -> np.ndarray:
        """The entries of phi that may move."""
        return np.flatnonzero(self.high > self.low)

    @cached_property
    def group_of(self) -> tuple[int | None, ...]:
        """The group that owns each entry of phi; None if groups share it."""
        users = [[g for g, group in enumerate(self.groups) if j in group.index] for j in range(self.start.size)]
        return tuple(u[0] if len(u) == 1 and len(self.groups) > 1 else None for u in users)

    def predict(self, phi: np.ndarray, fixed_load: bool = False) -> np.ndarray:
        """float64[stages, 3]: mean E2E, TTFT, ITL in ms by the mean field. `fixed_load`: under the observed load."""
        means_ms = np.empty_like(self.data.stages.observed_ms)
        predict(self.machine, phi, self._every, fixed_load, np.empty(len(means_ms)), means_ms)
        return means_ms

    @cached_property
    def _every(self) -> np.ndarray:
        """bool[stages]: all True."""
        return np.full(len(self.data.stages.table), True)

    def scales(self, phi: np.ndarray) -> Scales:
        """(size, effect) of every entry of phi.

        size: its value, or a value that makes a percent of a step if that is more. effect: the relative error that a
        unit of it makes in the stages, or in a step with a whole prompt (which stages hardly show), whichever is
        larger.
        """
        return self.scales_of(phi, [self._every])[0]

    def scales_of(self, phi: np.ndarray, parts: Sequence[np.ndarray]) -> list[Scales]:
        """`scales` by each of the `parts` of the load stages alone, bool[stages]."""
        free, observed = self.free, self.data.stages.observed_ms
        value, slopes_ms = with_slopes(self.machine, phi, True)
        slopes_ms = slopes_ms[free]
        cold = np.empty((len(observed), phi.size))
        cold_slopes(self.machine, phi, cold)
        with np.errstate(divide="ignore", invalid="ignore"):
            relative = np.nan_to_num(slopes_ms / observed, nan=0.0, posinf=0.0, neginf=0.0) * self.data.weights
        squares = np.square(relative).sum(axis=2)  # of each constant in each stage
        sums_ms, slope_sums = np.abs(value).sum(axis=1), np.abs(slopes_ms).sum(axis=2)
        scales = []
        for part in parts:
            step_us = observed[:, 2] * 1e3
            known = part & ~np.isnan(step_us)
            step_us = np.where(np.isnan(step_us), step_us[known].mean() if known.any() else 1e4, step_us)
            size, effect = np.maximum(np.abs(phi), SMALL), np.zeros(phi.size)
            with np.errstate(divide="ignore", invalid="ignore"):
                percent = 0.01 * (self._applies[free] @ (sums_ms * part)) / (slope_sums @ part)
            size[free] = np.maximum(np.abs(phi[free]), np.where(np.isfinite(percent), percent, SMALL))
            effect[free] = np.sqrt(squares @ part)
            in_cold = np.linalg.norm((cold / step_us[:, None])[part], axis=0)
            scales.append((size, np.maximum(effect, np.nan_to_num(in_cold, nan=0.0, posinf=0.0))))
        return scales

    @cached_property
    def _applies(self) -> np.ndarray:
        """float64[phi, stages]: 1 where the entry is one of the stage's constants."""
        applies = np.zeros((self.start.size, len(self._every)))
        for g in self.groups:
            rows = np.isin(self.data.experiment_of, list(g.experiments))
            applies[np.ix_(g.index, rows)] = 1.0
        return applies

    def prior(self, scales: Scales) -> np.ndarray:
        """float64[phi]: the weight of a unit away from the origin, in the units of a residual."""
        size, effect = scales
        weights: np.ndarray = np.maximum(self.pull * effect, self.measured * KERNEL_WEIGHT)
        return np.where(self.trusted, np.maximum(weights, believed_weight(self.origin, size)), weights)

    def goal(self, ratio: np.ndarray, prior: np.ndarray, part: np.ndarray | None = None) -> Goal:
        """The objective: the Huber losses of the mean field times `ratio`, plus the cost of the prior with these
        weights.

        part: bool[stages], the load stages that count (default all).
        """
        weights = self.data.weights if part is None else self.data.weights * part[:, None]
        with np.errstate(divide="ignore", invalid="ignore"):
            units = np.where(weights > 0.0, ratio / self.data.stages.observed_ms * weights, 0.0)
        active: np.ndarray = weights.max(axis=1) > 0.0
        return Goal(active, units, weights, prior, self.origin, self.measured, KERNEL_TAIL)

    def objective(self, phi: np.ndarray, goal: Goal, fixed_load: bool = False) -> float:
        """The value of `goal` at `phi`."""
        shape = self.data.stages.observed_ms.shape
        reached = gauss_newton.objective(self.machine, phi, goal, fixed_load, np.empty(shape[0]), np.empty(shape))
        return float(reached)

    def prior_cost(self, phi: np.ndarray, prior: np.ndarray) -> float:
        """The cost of the prior at `phi`, as in `objective`, in the units of a sum of squared residuals."""
        away = np.abs(phi - self.origin)
        costs = np.where(self.measured & (away > KERNEL_TAIL), KERNEL_TAIL * (2.0 * away - KERNEL_TAIL), away * away)
        return float((np.square(prior) * costs).sum())

    def tension(self, phi: np.ndarray) -> np.ndarray:
        """float64[phi]: the factor on the weight of the prior that gives a square the slope of the prior at `phi`."""
        away = np.maximum(np.abs(phi - self.origin), 1e-300)
        return np.where(self.measured & (away > KERNEL_TAIL), np.sqrt(KERNEL_TAIL / away), 1.0)

    def loss(self, phi: np.ndarray, ratio: np.ndarray) -> float:
        """Mean Huber loss of the mean field times `ratio`."""
        return self.data.loss(self.predict(phi) * ratio)

    def replay(self, phi: np.ndarray, allow_hostile: bool) -> np.ndarray:
        """float64[stages, 3]: stage means in ms of full replays, of runs in steps by the mean field times the ratio.

        Raises HostileStep unless `allow_hostile`.
        """
        means_ms: np.ndarray = self.predict(phi) * self.data.ratio  # stays for runs in steps
        for i, run in self._replays(phi, allow_hostile):
            (rows,) = self.data.stages_at([i])
            means_ms[rows] = stage_means(run, len(rows))
        return means_ms

    def replays(self, phi: np.ndarray, allow_hostile: bool = True) -> list[Replay]:
        """The full replay of each experiment. Raises HostileStep unless `allow_hostile`."""
        assert not self.data.in_steps.any(), "these are not replayed"
        runs = dict(self._replays(phi, allow_hostile))
        return [runs[i] for i in range(len(self.data.experiments))]

    def _replays(self, phi: np.ndarray, allow_hostile: bool) -> Iterator[tuple[int, Replay]]:
        for g in self.groups:
            for i in g.experiments:
                if not self.data.in_steps[i]:
                    yield i, self.replay_of(phi, i, allow_hostile)

    def replay_of(self, phi: np.ndarray, experiment: int, allow_hostile: bool) -> Replay:
        """The full replay of an experiment. Raises HostileStep unless `allow_hostile`."""
        bound = self.bound_of(phi, experiment)
        return replay_bound(self.data.loads[experiment], bound, stop_when_hostile=not allow_hostile)

    def bound_of(self, phi: np.ndarray, experiment: int) -> Bound:
        """The program on the deployment of an experiment."""
        c, values = self.code, self.machine.base[experiment].copy()
        theta = phi[next(g.index for g in self.groups if experiment in g.experiments)]
        settle(c.rows, c.static, c.step, c.raw, c.request, c.results[0], theta, values)
        return Bound(c, values)

    def rounded(self, phi: np.ndarray) -> np.ndarray:
        return rounded(phi, self.low, self.high)


def with_slopes(machine: Machine, phi: np.ndarray, fixed_load: bool = False) -> tuple[np.ndarray, np.ndarray]:
    """(the means in ms of the mean field, float64[stages, 3]; their derivatives in phi, float64[phi, stages, 3])."""
    stages = len(machine.table)
    every, running = np.full(stages, True), np.empty(stages)
    means_ms, slopes_ms = np.empty((stages, 3)), np.empty((stages, 3, phi.size))
    predict(machine, phi, every, fixed_load, running, means_ms)
    slopes(machine, phi, every, fixed_load, running, slopes_ms)
    by_constant: np.ndarray = np.moveaxis(slopes_ms, -1, 0)
    return means_ms, by_constant


def problem_of(
    program: Program,
    data: FitSet,
    held: Sequence[int] = (),
    fitted_before: bool = False,
    believed: Sequence[int] = (),
    groups: Sequence[ConstantGroup] = (),
) -> Problem:
    """The problem of fitting `program` to `data`, with one value of every constant for all experiments without
    `groups`.

    Positions in theta: `held` constants keep their value, `believed` ones come from a fit to other runs, as all do if
    `fitted_before`.
    """
    code, theta = assemble(program), np.array(program.theta, dtype=float)
    low, high = limits(program)
    value = np.clip(theta, low, high)
    for j in held:
        low[j] = high[j] = value[j] = theta[j]
    overhead = np.array([f.name in OVERHEADS for f in program.functions for _ in f.constants], dtype=bool)
    factors, adjusts = (np.array(of(program), dtype=bool) for of in (kernel_factors, kernel_adjustments))
    measured, origin = factors | adjusts, value
    if not fitted_before:  # nothing is known of overheads; the measurement knows the factor of its kernel
        origin = np.clip(np.where(overhead | adjusts, 0.0, np.where(factors, 1.0, value)), low, high)
    pull = PRIOR * np.where(overhead, OVERHEAD_PRIOR, 1.0)
    trusted = np.isin(np.arange(theta.size), believed) | fitted_before
    groups = groups or [ConstantGroup(tuple(range(len(data.experiments))), np.arange(theta.size))]
    members, index = [g.experiments for g in groups], np.stack([g.index for g in groups])
    position = np.zeros(int(index.max()) + 1 if index.size else 0, dtype=int)
    for row in index:
        position[row] = np.arange(theta.size)
    of_phi: list[np.ndarray] = [x[position] for x in (value, low, high, origin, pull, measured, trusted)]
    start, low, high, origin, pull, measured, trusted = of_phi
    m = machine(code, data.stages.table, data.stages.bins, data.deployments, members, index)
    groups, held = tuple(groups), tuple(held)
    return Problem(program, code, data, groups, start, low, high, origin, pull, measured, trusted, position, m, held)


def with_prior_reset(problem: Problem) -> Problem:
    """The problem with a prior that pulls affine constants towards the value nearest to 0 within their bounds.

    Other constants have no neutral value (0 may be a divisor or a threshold) and keep their origin. So do factors of
    measured kernels: the measurement says 1 in every fold.
    """
    unknown = _named(problem, lambda function: affine(function).linear) & ~problem.measured
    return replace(problem, origin=np.where(unknown, _least(problem), problem.origin))


def unshown(problem: Problem) -> np.ndarray:
    """float64[phi]: the value of each constant in a fold whose runs do not show it, without a memory of other runs.

    Its term vanishes: the constant is as small as its bounds allow, a divisor as large. Factors of measured kernels are
    1. A constant that occurs in conditions alone keeps its value, because no run shows it by a slope; so does one from
    a fit to other runs.
    """
    divides = np.isin(problem.low, (LEAST_DIVISOR, LEAST_EFFICIENCY))
    value = np.where(divides, np.minimum(problem.high, VANISHING), _least(problem))
    return np.where(problem.measured | problem.trusted | _named(problem, thresholds), problem.origin, value)


def _named(problem: Problem, names: Callable[[Function], Collection[str]]) -> np.ndarray:
    """bool[phi]: True where a constant is among these `names` of its function."""
    of_functions = [(f, names(f)) for f in problem.program.functions]
    named = [c.name in of_function for f, of_function in of_functions for c in f.constants]
    of_phi: np.ndarray = np.array(named, dtype=bool)[problem.position]
    return of_phi


def _least(problem: Problem) -> np.ndarray:
    """float64[phi]: the value nearest to 0 within the bounds of each constant."""
    nearest: np.ndarray = np.clip(0.0, problem.low, problem.high)
    return nearest


def limits(program: Program) -> tuple[np.ndarray, np.ndarray]:
    """(low, high) bounds of every constant, float64[theta] each."""
    low, high = np.array(bounds(program), dtype=float).reshape(-1, 2).T.copy()
    return low, high


def believed_weight(value: np.ndarray, size: np.ndarray) -> np.ndarray:
    """The weight of a unit away from the `value` of a constant that was fitted before; `size` as in `Scales`."""
    weight: np.ndarray = MODEL_ERROR / (BELIEVED * np.maximum(np.abs(value), 0.1 * size))
    return weight


def rounded(theta: np.ndarray, low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """`theta` to six significant digits, within the bounds, so that the printed text is what is scored."""
    return np.clip([float(f"{x:.{DIGITS}g}") for x in theta], low, high)
