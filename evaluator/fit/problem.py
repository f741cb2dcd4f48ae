"""What a fit minimises: residuals of the load stages and a prior, over the constants of a program as one vector `phi`.

An entry of `phi` holds a constant for all experiments, or for one group of them (`per_model.py`). A constant whose
bounds leave no room is not searched. The prior decides what the data leave open: it pulls each constant faintly to its
origin, more strongly if the constant was fitted before or is a factor of a measured kernel.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from evaluator.fit.loss import MODEL_ERROR, FitSet, huber
from evaluator.fit.meanfield import cold_effects, jacobian, predict
from evaluator.metrics import stage_means
from simulator.bind import Bound, base_values, settle
from simulator.language.affine import affine
from simulator.language.bounds import KERNEL_DEVIATION, bounds, kernel_factors
from simulator.language.ir import OVERHEADS, Program
from simulator.language.opcodes import Code, assemble
from simulator.replay import replay_bound

PRIOR = 3e-3  # pull towards the start values, as a share of each constant's effect
# Runs with answers of about equal length cannot tell a time per token or per request from a time per step. What they
# leave open goes to the step, because that also holds for answers of another length.
OVERHEAD_PRIOR = 1000.0  # times PRIOR, towards 0
# Constants that were fitted before are believed within this share of their value (or of what makes a thousandth of a
# step), against residuals of MODEL_ERROR, until the new runs say otherwise. One or two runs leave most constants open,
# and without this prior would settle near-ties between them by chance.
BELIEVED = 0.3
# A sum of kernels misses about 2 % of a model, and misses it in all stages and latencies of that model: the sixty
# residuals of the shipped runs hold as much evidence as eight. So the prior counts this many times what it would
# against sixty independent residuals of MODEL_ERROR: sqrt(60 / 8) * 2 % / 1 %. Errors on models left out are flat from
# 2 to 12.
KERNEL_EVIDENCE = 5.0
KERNEL_WEIGHT = KERNEL_EVIDENCE * MODEL_ERROR / KERNEL_DEVIATION  # of a unit away from the origin
KERNEL_TAIL = 2.0 * KERNEL_DEVIATION  # distance from the origin beyond which the prior grows linearly
DIGITS = 6  # significant digits of a fitted constant, rounded before the final scoring
SMALL = 1e-3  # least size of a constant for its finite difference

Scales = tuple[np.ndarray, np.ndarray]  # (size, effect) of every entry of phi: see Problem.scales


@dataclass(frozen=True)
class Group:
    """Experiments that share their constants: positions of their load stages (rows), those rows of the stage table,
    and the position in phi of every constant (index: int[theta])."""

    experiments: tuple[int, ...]
    rows: np.ndarray
    table: np.ndarray
    index: np.ndarray


@dataclass(frozen=True)
class Problem:
    """A program to be fitted. start, low, high, origin, pull: float64[phi]; the prior pulls towards origin: the start
    value, or for a program that was not fitted before, 0 of an overhead and 1 of a factor of a measured kernel.

    measured: bool[phi], factors of measured kernels. position: int[phi], each entry's position in theta. base:
    float64[experiments, slots], the value vector of each deployment; work: float64[slots], scratch space. held:
    positions in theta that keep their value. fitted_before: the constants come from a fit to other runs; believed:
    positions in theta of those that do, if not all do.
    """

    program: Program
    code: Code
    data: FitSet
    groups: tuple[Group, ...]
    start: np.ndarray
    low: np.ndarray
    high: np.ndarray
    origin: np.ndarray
    pull: np.ndarray
    measured: np.ndarray
    position: np.ndarray
    base: np.ndarray
    work: np.ndarray = field(repr=False)
    held: tuple[int, ...] = ()
    fitted_before: bool = False
    believed: tuple[int, ...] = ()

    @property
    def trusted(self) -> np.ndarray:
        """bool[phi]: which constants were fitted before."""
        trusted: np.ndarray = np.isin(self.position, self.believed) | self.fitted_before
        return trusted

    @property
    def free(self) -> np.ndarray:
        """Indices into phi of the entries that may move."""
        return np.flatnonzero(self.high > self.low)

    @cached_property
    def group_of(self) -> tuple[int | None, ...]:
        """The group that owns each entry of phi; None if groups share it."""
        users = [[g for g, group in enumerate(self.groups) if j in group.index] for j in range(self.start.size)]
        return tuple(u[0] if len(u) == 1 and len(self.groups) > 1 else None for u in users)

    @property
    def _compiled(self) -> tuple[Any, Any, Any, Any, Any, Any, Any, Any]:
        """The first arguments of the mean field's kernels: opcodes, slots, value vectors."""
        c = self.code
        return c.rows, c.static, c.step, c.raw, c.request, c.results, self.base, self.work

    def predict(self, phi: np.ndarray, fixed_load: bool = False) -> np.ndarray:
        """float64[stages, 3]: the mean field's E2E, TTFT, ITL in ms. `fixed_load`: under the observed load."""
        means_ms = np.empty_like(self.data.stages.observed_ms)
        for g in self.groups:
            part = means_ms if len(self.groups) == 1 else np.empty((len(g.rows), 3))
            predict(*self._compiled, g.table, phi[g.index], fixed_load, part)
            if part is not means_ms:
                means_ms[g.rows] = part
        return means_ms

    def jacobian(self, phi: np.ndarray, fixed_load: bool, size: np.ndarray, value: np.ndarray) -> np.ndarray:
        """float64[free, stages, 3]: forward differences of `predict`, `value` at `phi`, in every free entry of phi."""
        slopes = np.zeros((len(self.free), *value.shape))
        place = np.full(phi.size, -1)  # of each entry of phi among the free ones
        place[self.free] = np.arange(len(self.free))
        for g in self.groups:
            which = np.flatnonzero(place[g.index] >= 0)
            part = np.empty((len(which), len(g.rows), 3))
            jacobian(*self._compiled, g.table, phi[g.index], which, fixed_load, size[g.index], value[g.rows], part)
            slopes[np.ix_(place[g.index[which]], g.rows)] = part
        return slopes

    def scales(self, phi: np.ndarray) -> Scales:
        """(size, effect) of every entry of phi. size: its value, or what makes a percent of a step if that is more.

        effect: the relative error that a unit of it makes, in the stages or in a step with a whole prompt in it (which
        stages hardly show), whichever is larger.
        """
        free, observed = self.free, self.data.stages.observed_ms
        value = self.predict(phi, True)
        slopes = self.jacobian(phi, True, np.full(phi.size, SMALL), value)
        size, effect = np.maximum(np.abs(phi), SMALL), np.zeros(phi.size)
        with np.errstate(divide="ignore", invalid="ignore"):
            percent = 0.01 * (self._applies @ np.abs(value).sum(axis=1))[free] / np.abs(slopes).sum(axis=(1, 2))
            relative = np.nan_to_num(slopes / observed, nan=0.0, posinf=0.0, neginf=0.0) * self.data.weights
        size[free] = np.maximum(np.abs(phi[free]), np.where(np.isfinite(percent), percent, SMALL))
        step_us = observed[:, 2] * 1e3
        step_us = np.where(np.isnan(step_us), np.nanmean(step_us) if (step_us == step_us).any() else 1e4, step_us)
        cold = np.zeros((phi.size, len(step_us)))
        for g in self.groups:
            part = np.empty((len(g.index), len(g.rows)))
            cold_effects(*self._compiled, g.table, phi[g.index], part)
            cold[np.ix_(g.index, g.rows)] = part
        effect[free] = np.linalg.norm(relative.reshape(len(free), -1), axis=1)
        effect = np.maximum(effect, np.nan_to_num(np.linalg.norm(cold / step_us, axis=1), nan=0.0, posinf=0.0))
        return size, effect

    @cached_property
    def _applies(self) -> np.ndarray:
        """float64[phi, stages]: 1 where the entry is one of the stage's constants."""
        applies = np.zeros((self.start.size, len(self.data.stages.table)))
        for g in self.groups:
            applies[np.ix_(g.index, g.rows)] = 1.0
        return applies

    def prior(self, scales: Scales) -> np.ndarray:
        """float64[phi]: the weight of a unit away from the origin, in the units of a residual."""
        size, effect = scales
        weights: np.ndarray = np.maximum(self.pull * effect, self.measured * KERNEL_WEIGHT)
        return np.where(self.trusted, np.maximum(weights, believed_weight(self.origin, size)), weights)

    def objective(self, phi: np.ndarray, ratio: np.ndarray, prior: np.ndarray, fixed_load: bool = False) -> float:
        """Sum of the Huber losses of the mean field times `ratio`, plus the prior's cost (`prior`: its weights)."""
        r = self.data.residuals(self.predict(phi, fixed_load) * ratio)
        return float(huber(r).sum() + self._prior_cost(phi, prior).sum())

    def kernel_cost(self, phi: np.ndarray) -> float:
        """The cost of the prior of measured kernels at `phi`, in the units of a sum of squared residuals."""
        return float(self._prior_cost(phi, KERNEL_WEIGHT)[self.measured].sum())

    def _prior_cost(self, phi: np.ndarray, weight: np.ndarray | float) -> np.ndarray:
        """float64[phi]: the cost of every entry's distance from its origin, `weight` per unit.

        Quadratic, but beyond KERNEL_TAIL of a kernel's factor linear, like the loss of the data: a kernel that is
        different here must not bend the other constants.
        """
        away = np.abs(phi - self.origin)
        tail = KERNEL_TAIL * (2.0 * away - KERNEL_TAIL) / np.maximum(np.square(away), 1e-300)
        share = np.where(self.measured & (away > KERNEL_TAIL), tail, 1.0)
        cost: np.ndarray = np.square(weight * (phi - self.origin)) * share
        return cost

    def tension(self, phi: np.ndarray) -> np.ndarray:
        """float64[phi]: the factor on the prior's weight at which its square has the prior's slope at `phi`."""
        away = np.maximum(np.abs(phi - self.origin), 1e-300)
        return np.where(self.measured & (away > KERNEL_TAIL), np.sqrt(KERNEL_TAIL / away), 1.0)

    def loss(self, phi: np.ndarray, ratio: np.ndarray) -> float:
        """Mean Huber loss of the mean field times `ratio`."""
        return self.data.loss(self.predict(phi) * ratio)

    def replay(self, phi: np.ndarray, allow_hostile: bool) -> np.ndarray:
        """float64[stages, 3]: stage means in ms of full replays. Raises HostileStep unless `allow_hostile`."""
        means_ms = np.empty_like(self.data.stages.observed_ms)
        c, first = self.code, self.data.stages.first
        for g in self.groups:
            theta = phi[g.index]
            for i in g.experiments:
                values = self.base[i].copy()
                settle(c.rows, c.static, c.step, c.raw, c.request, c.results[0], theta, values)
                run = replay_bound(self.data.loads[i], Bound(c, values), stop_when_hostile=not allow_hostile)
                count = len(self.data.experiments[i].workload.stages)
                means_ms[first[i] : first[i] + count] = stage_means(run, count)
        return means_ms

    def rounded(self, phi: np.ndarray) -> np.ndarray:
        return rounded(phi, self.low, self.high)


def problem_of(
    program: Program,
    data: FitSet,
    held: Sequence[int] = (),
    fitted_before: bool = False,
    believed: Sequence[int] = (),
) -> Problem:
    """The problem with one value of every constant for all experiments; see `Problem` for the arguments."""
    members, index = [tuple(range(len(data.experiments)))], np.arange(len(program.theta))[None]
    return grouped_problem(program, data, members, index, held, fitted_before, believed)


def grouped_problem(
    program: Program,
    data: FitSet,
    members: Sequence[Sequence[int]],
    index: np.ndarray,
    held: Sequence[int] = (),
    fitted_before: bool = False,
    believed: Sequence[int] = (),
) -> Problem:
    """The problem in which group g, the experiments `members[g]`, has its constants at phi[index[g]].

    `index`: int[groups, theta].
    """
    code, theta = assemble(program), np.array(program.theta, dtype=float)
    low, high = limits(program)
    value = np.clip(theta, low, high)
    for j in held:
        low[j] = high[j] = value[j] = theta[j]
    overhead = np.array([f.name in OVERHEADS for f in program.functions for _ in f.constants], dtype=bool)
    measured = np.array(kernel_factors(program), dtype=bool)
    origin = value
    if not fitted_before:  # nothing is known yet of overheads, and of factors of measured kernels the measurement
        origin = np.clip(np.where(overhead, 0.0, np.where(measured, 1.0, value)), low, high)
    pull = PRIOR * np.where(overhead, OVERHEAD_PRIOR, 1.0)
    position = np.zeros(int(index.max()) + 1 if index.size else 0, dtype=int)
    for row in index:
        position[row] = np.arange(theta.size)
    groups = []
    for experiments, row in zip(members, index, strict=True):
        rows = np.flatnonzero(np.isin(data.experiment_of, list(experiments)))
        groups.append(Group(tuple(experiments), rows, data.stages.table[rows], row))
    base = np.stack([base_values(code, e.facts) for e in data.experiments])  # constants still 0
    return Problem(
        program, code, data, tuple(groups),
        start=value[position], low=low[position], high=high[position], origin=origin[position], pull=pull[position],
        measured=measured[position], position=position, base=base, work=base[0].copy(),
        held=tuple(held), fitted_before=fitted_before, believed=tuple(believed),
    )  # fmt: skip


def forgetful(problem: Problem) -> Problem:
    """The same problem, with the prior pulling the affine constants towards their low bounds.

    Other constants have no neutral value: 0 may be a divisor or a threshold. They are still pulled to their start
    values, and factors of measured kernels to 1, because those were measured elsewhere and are known in every fold.
    """
    linear = np.array([c.name in affine(f).linear for f in problem.program.functions for c in f.constants], dtype=bool)
    unknown = linear[problem.position] & ~problem.measured
    return replace(problem, origin=np.where(unknown, problem.low, problem.origin))


def limits(program: Program) -> tuple[np.ndarray, np.ndarray]:
    """(low, high) bounds of every constant, float64[theta] each."""
    low, high = np.array(bounds(program), dtype=float).reshape(-1, 2).T.copy()
    return low, high


def believed_weight(value: np.ndarray, size: np.ndarray) -> np.ndarray:
    """The prior's weight of a unit away from the `value` of a constant that was fitted before; `size` as in scales."""
    weight: np.ndarray = MODEL_ERROR / (BELIEVED * np.maximum(np.abs(value), 0.1 * size))
    return weight


def rounded(theta: np.ndarray, low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """`theta` to six significant digits, so that the printed text is what is scored; never outside the bounds."""
    return np.clip([float(f"{x:.{DIGITS}g}") for x in theta], low, high)
