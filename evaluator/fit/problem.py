"""What a fit looks for: the constants of a program as one vector, and what the stages say under it.

The vector `phi` may hold a constant once, for all experiments, or once for every group of them (see `scope.py`). A
constant whose bounds leave no room is not searched.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from evaluator.fit.loss import MODEL_ERROR, FitSet, huber
from evaluator.fit.meanfield import DEPLOYMENT, cold_effects, jacobian, predict
from evaluator.metrics import stage_means
from simulator.bind import Bound, settle
from simulator.language.bounds import KERNEL_DEVIATION
from simulator.language.ir import Program
from simulator.language.opcodes import Code
from simulator.replay import replay_bound

# Constants that were fitted before are believed within this share of their value (or of what makes a thousandth of a
# step), beside residuals of MODEL_ERROR, until the new runs say otherwise: one or two runs leave most of them open, and
# near-ties between them to chance.
BELIEVED = 0.3
# What a sum of kernels misses of a model, about 2 %, it misses in all of its stages and latencies: the sixty residuals
# of the shipped runs hold as much evidence as eight. So the prior counts this many times what it would beside sixty
# independent residuals of MODEL_ERROR: sqrt(60 / 8) * 2 % / 1 %. Errors on models left out are flat from 2 to 12.
KERNEL_EVIDENCE = 5.0
KERNEL_WEIGHT = KERNEL_EVIDENCE * MODEL_ERROR / KERNEL_DEVIATION  # of a unit away from 1
KERNEL_TAIL = 2.0 * KERNEL_DEVIATION
DIGITS = 6  # significant digits of a fitted constant, rounded before the final scoring
_SMALL = 1e-3  # least size of a constant whose finite difference is taken

Scales = tuple[np.ndarray, np.ndarray]  # (size, effect) of every entry of phi: see Problem.scales


@dataclass(frozen=True)
class Group:
    """Experiments that share their constants: which of the stages, and where in phi each constant stands."""

    experiments: tuple[int, ...]
    rows: np.ndarray
    table: np.ndarray
    index: np.ndarray


@dataclass(frozen=True)
class Problem:
    """A program to be fitted. start, low, high, origin, pull: float64[phi]; origin is where the prior pulls to.

    held: positions in theta that keep their value. known: the constants were fitted before, on other runs; believed:
    positions in theta of those that were, where not all.
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
    measured: np.ndarray  # bool[phi]: factors of measured kernels
    position: np.ndarray  # int[phi]: of each entry in the program's theta
    base: np.ndarray
    work: np.ndarray = field(repr=False)
    held: tuple[int, ...] = ()
    known: bool = False
    believed: tuple[int, ...] = ()

    @property
    def sure(self) -> np.ndarray:
        """bool[phi]: which constants were fitted before."""
        out: np.ndarray = np.isin(self.position, self.believed) | self.known
        return out

    @property
    def free(self) -> np.ndarray:
        """Indices into phi of what may move."""
        return np.flatnonzero(self.high > self.low)

    @cached_property
    def group_of(self) -> tuple[int | None, ...]:
        """Of every entry of phi: the group whose own it is, None where groups share it."""
        users = [[g for g, group in enumerate(self.groups) if j in group.index] for j in range(self.start.size)]
        return tuple(u[0] if len(u) == 1 and len(self.groups) > 1 else None for u in users)

    @property
    def experiment_of(self) -> np.ndarray:
        """int[stages]: the experiment of each."""
        out: np.ndarray = self.data.stages.table[:, DEPLOYMENT].astype(int)
        return out

    @property
    def head(self) -> tuple[Any, Any, Any, Any, Any, Any, Any, Any]:
        c = self.code
        return c.rows, c.static, c.step, c.raw, c.request, c.results, self.base, self.work

    def predict(self, phi: np.ndarray, fixed_load: bool = False) -> np.ndarray:
        """float64[stages, 3]: the mean field's E2E, TTFT, ITL in ms. `fixed_load`: under the observed load."""
        out = np.empty_like(self.data.stages.observed_ms)
        for g in self.groups:
            part = out if len(self.groups) == 1 else np.empty((len(g.rows), 3))
            predict(*self.head, g.table, phi[g.index], fixed_load, part)
            if part is not out:
                out[g.rows] = part
        return out

    def jacobian(self, phi: np.ndarray, fixed_load: bool, size: np.ndarray, value: np.ndarray) -> np.ndarray:
        """float64[free, stages, 3]: forward differences of `predict`, `value` at `phi`, in every free entry of phi."""
        out = np.zeros((len(self.free), *value.shape))
        place = np.full(phi.size, -1)
        place[self.free] = np.arange(len(self.free))
        for g in self.groups:
            which = np.flatnonzero(place[g.index] >= 0)
            part = np.empty((len(which), len(g.rows), 3))
            jacobian(*self.head, g.table, phi[g.index], which, fixed_load, size[g.index], value[g.rows], part)
            out[np.ix_(place[g.index[which]], g.rows)] = part
        return out

    def scales(self, phi: np.ndarray) -> Scales:
        """(size, effect) of every entry of phi. size: its value, or what makes a percent of a step if that is more.

        effect: what a unit of it does, in relative errors: to the stages, or to a step with a whole prompt in it (which
        stages hardly show), whichever is larger.
        """
        free, observed = self.free, self.data.stages.observed_ms
        value = self.predict(phi, True)
        slopes = self.jacobian(phi, True, np.full(phi.size, _SMALL), value)
        size, effect = np.maximum(np.abs(phi), _SMALL), np.zeros(phi.size)
        with np.errstate(divide="ignore", invalid="ignore"):
            percent = 0.01 * (self._sees @ np.abs(value).sum(axis=1))[free] / np.abs(slopes).sum(axis=(1, 2))
            known = np.nan_to_num(slopes / observed, nan=0.0, posinf=0.0, neginf=0.0) * self.data.weights
        size[free] = np.maximum(np.abs(phi[free]), np.where(np.isfinite(percent), percent, _SMALL))
        usual = observed[:, 2] * 1e3
        usual = np.where(np.isnan(usual), np.nanmean(usual) if (usual == usual).any() else 1e4, usual)
        cold = np.zeros((phi.size, len(usual)))
        for g in self.groups:
            part = np.empty((len(g.index), len(g.rows)))
            cold_effects(*self.head, g.table, phi[g.index], part)
            cold[np.ix_(g.index, g.rows)] = part
        effect[free] = np.linalg.norm(known.reshape(len(free), -1), axis=1)
        effect = np.maximum(effect, np.nan_to_num(np.linalg.norm(cold / usual, axis=1), nan=0.0, posinf=0.0))
        return size, effect

    @cached_property
    def _sees(self) -> np.ndarray:
        """float64[phi, stages]: 1 where the entry is one of the stage's constants."""
        out = np.zeros((self.start.size, len(self.data.stages.table)))
        for g in self.groups:
            out[np.ix_(g.index, g.rows)] = 1.0
        return out

    def prior(self, scales: Scales) -> np.ndarray:
        """float64[phi]: the weight of a unit away from the origin, in the units of a residual."""
        size, effect = scales
        weights: np.ndarray = np.maximum(self.pull * effect, self.measured * KERNEL_WEIGHT)
        believed = MODEL_ERROR / (BELIEVED * np.maximum(np.abs(self.origin), 0.1 * size))
        return np.where(self.sure, np.maximum(weights, believed), weights)

    def objective(self, phi: np.ndarray, ratio: np.ndarray, prior: np.ndarray, fixed_load: bool = False) -> float:
        """Sum of the Huber losses of the mean field times `ratio`, and the pull of the prior (weights float64[phi])."""
        r = self.data.residuals(self.predict(phi, fixed_load) * ratio)
        return float(huber(r).sum() + self._away(phi, prior).sum())

    def _away(self, phi: np.ndarray, weight: np.ndarray | float) -> np.ndarray:
        """float64[phi]: what the prior costs of every entry, `weight` of a unit away from the origin."""
        cost: np.ndarray = np.square(weight * (phi - self.origin)) * self.believed_in(phi)
        return cost

    def believed_in(self, phi: np.ndarray) -> np.ndarray:
        """float64[phi]: the share of the prior's square that counts. Beyond KERNEL_TAIL of a kernel's factor the prior
        grows linearly, as the loss of the data does: a kernel that is another one here must not bend the others."""
        away = np.abs(phi - self.origin)
        tail = KERNEL_TAIL * (2.0 * away - KERNEL_TAIL) / np.maximum(np.square(away), 1e-300)
        return np.where(self.measured & (away > KERNEL_TAIL), tail, 1.0)

    def disbelief(self, phi: np.ndarray) -> float:
        """What the prior of measured kernels costs at `phi`, in the units of a sum of squared residuals."""
        return float(self._away(phi, KERNEL_WEIGHT)[self.measured].sum())

    def tension(self, phi: np.ndarray) -> np.ndarray:
        """float64[phi]: the factor on the prior's weight under which its square pulls as hard as the prior at `phi`."""
        away = np.maximum(np.abs(phi - self.origin), 1e-300)
        return np.where(self.measured & (away > KERNEL_TAIL), np.sqrt(KERNEL_TAIL / away), 1.0)

    def loss(self, phi: np.ndarray, ratio: np.ndarray) -> float:
        return self.data.loss(self.predict(phi) * ratio)

    def replay(self, phi: np.ndarray, allow_hostile: bool) -> np.ndarray:
        """float64[stages, 3]: stage means in ms of full replays. Raises HostileStep unless `allow_hostile`."""
        out = np.empty_like(self.data.stages.observed_ms)
        c, first = self.code, self.data.stages.first
        for g in self.groups:
            theta = phi[g.index]
            for i in g.experiments:
                values = self.base[i].copy()
                settle(c.rows, c.static, c.step, c.raw, c.request, c.results[0], theta, values)
                run = replay_bound(self.data.loads[i], Bound(c, values), stop_when_hostile=not allow_hostile)
                count = len(self.data.experiments[i].workload.stages)
                out[first[i] : first[i] + count] = stage_means(run, count)
        return out

    def rounded(self, phi: np.ndarray) -> np.ndarray:
        return rounded(phi, self.low, self.high)


def rounded(theta: np.ndarray, low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """Six significant digits, so that the text that is printed is what is scored; never outside the bounds."""
    return np.clip([float(f"{x:.{DIGITS}g}") for x in theta], low, high)
