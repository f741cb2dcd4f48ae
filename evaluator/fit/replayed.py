"""Gauss-Newton on full replays, for loads that are too irregular for the mean field: traces, and requests that hardly
meet.

Replays at other constants give the slopes. The residuals are those of the cells of a trace (`loss.Cells`), and of the
load stages of other experiments.
"""

from __future__ import annotations

import numpy as np
import scipy

from evaluator.fit.loss import FitSet, huber, huber_weights, replayed_ms, weights_of
from evaluator.fit.machine import OBSERVED_N, RATE
from evaluator.fit.problem import Problem, Scales
from evaluator.metrics import stage_means
from simulator.clock.run import HostileStep

STEPS = 12  # at most
TRIES = 4  # of a step, each damped more
DAMPING, LEAST_DAMPING, MORE_DAMPING = 1e-3, 1e-6, 30.0
CHANGE = 1.0  # of a constant's size, over which its first slopes are taken: replays jump
REACH = 3.0  # sizes of a constant, over which slopes are taken at most
EFFECT = 0.003  # of a change for slopes on a weighted residual, root mean square, at least
SETTLING = 10  # steps about the optimum
SLACK = 0.1  # share by which the objective may jump there
GAIN = 0.003  # share of the objective below which a step ends the search
NO_EFFECT = 1e-9  # relative error below which a change of a constant by its size does nothing
LOST = 10.0  # relative error of a cell of which no request completes


def refined(problem: Problem, phi: np.ndarray, scales: Scales, allow_hostile: bool) -> np.ndarray:
    """The constants near `phi` with the least losses of replays plus prior."""
    prior, best, slopes = problem.prior(scales), phi, None
    r = residuals(problem, best)
    reached, damping, poor = _objective(problem, r, best, prior), DAMPING, 0
    for _ in range(STEPS):
        size = problem.scales(best)[0]  # a constant may start far from its size
        slopes, lower = slopes_near(problem, best, r, size, slopes), np.inf
        for _ in range(TRIES):
            trial = problem.rounded(_step(problem, best, slopes, r, size, prior, damping))
            of_trial, lower = _tried(problem, trial, prior, allow_hostile)
            if lower < reached:
                break
            damping *= MORE_DAMPING
        poor = 0 if lower < (1.0 - GAIN) * reached else poor + 1
        if lower < reached:
            best, r, reached, damping = trial, of_trial, lower, max(damping / MORE_DAMPING, LEAST_DAMPING)
        else:
            damping = DAMPING
        if poor == 2:  # with two sets of axes
            break
    return _settled(problem, best, r, reached, prior, allow_hostile)


def _tried(problem: Problem, phi: np.ndarray, prior: np.ndarray, allow_hostile: bool) -> tuple[np.ndarray, float]:
    """(residuals, objective) at `phi`; (none, inf) where a step takes no time."""
    try:
        r = residuals(problem, phi, allow_hostile)
    except HostileStep:
        return np.zeros(0), np.inf
    return r, _objective(problem, r, phi, prior)


def _settled(
    problem: Problem, phi: np.ndarray, r: np.ndarray, reached: float, prior: np.ndarray, allow_hostile: bool
) -> np.ndarray:
    """The mean of some steps about the optimum, where the objective jumps by more than a step can gain.

    The mean is nearer to the optimum than any of the steps (Polyak and Juditsky 1992). `r`: the residuals at `phi`.
    """
    at, slopes, settled = phi, None, []
    for _ in range(SETTLING):
        size = problem.scales(at)[0]
        slopes = slopes_near(problem, at, r, size, slopes)
        trial = _step(problem, at, slopes, r, size, prior, LEAST_DAMPING)
        of_trial, objective = _tried(problem, trial, prior, allow_hostile)
        if not objective < (1.0 + SLACK) * reached:
            break
        at, r = trial, of_trial
        settled.append(at)
    if not settled:
        return phi
    mean = problem.rounded(np.mean(settled, axis=0))
    return mean if _tried(problem, mean, prior, allow_hostile)[1] < (1.0 + SLACK) * reached else phi


def axes_of(slopes: np.ndarray, r: np.ndarray) -> np.ndarray:
    """float64[axes, free]: changes of the constants, in sizes, that move the residuals about equally far.

    A replay jumps whenever two events change places, so slopes over a short way are mostly noise. Constants that can
    replace each other must move far, and against each other. A constant without any effect has an axis of its own: on a
    common axis, rounding would move the others, and the jumps would count as its slope.
    """
    idle = idle_of(slopes)
    weighted = slopes[:, ~idle] * np.sqrt(huber_weights(r))[:, None]
    _, effects, directions = np.linalg.svd(weighted, full_matrices=False)
    wanted = max(float(np.linalg.norm(r)), EFFECT * np.sqrt(len(r)))
    axes = np.zeros((len(directions), len(idle)))
    axes[:, ~idle] = directions * np.minimum(wanted / np.maximum(effects, 1e-12), REACH)[:, None]
    return np.vstack([axes, REACH * np.eye(len(idle))[idle]])


def idle_of(slopes: np.ndarray) -> np.ndarray:
    """bool[free]: True for constants without an effect on any residual."""
    none: np.ndarray = ~(np.linalg.norm(slopes, axis=0) > NO_EFFECT)
    return none


def irregularity(problem: Problem, ratio: np.ndarray) -> float:
    """The root mean square of log(replay / mean field) of E2E and ITL in irregular load stages; 0 without any.

    Windows of traces with single requests are irregular, and stages with less than one request at once: there chance
    decides if two requests meet.
    """
    table, e2e_us = problem.data.stages.table, problem.data.stages.observed_ms[:, 0] * 1e3
    traced = [i for i, cells in enumerate(problem.data.cells) if cells]
    irregular = np.fmin(table[:, RATE] * e2e_us, table[:, OBSERVED_N]) < 1.0  # either may be NaN: nothing observed
    for rows in problem.data.stages_at(traced):
        irregular[rows] = True
    if not irregular.any():
        return 0.0
    return float(np.sqrt(np.square(np.log(ratio[irregular][:, [0, 2]])).mean()))


def residuals(problem: Problem, phi: np.ndarray, allow_hostile: bool = True) -> np.ndarray:
    """Weighted relative errors of all observed means, by replays. Raises HostileStep unless `allow_hostile`."""
    parts, data = [], problem.data
    for i, (run, cells) in enumerate(zip(problem.replays(phi, allow_hostile), data.cells, strict=True)):
        observed_ms, weights = _observed(data, i)
        means_ms = replayed_ms(run, cells) if cells else stage_means(run, len(observed_ms))
        known = ~np.isnan(observed_ms)
        with np.errstate(invalid="ignore", divide="ignore"):
            relative = np.nan_to_num(means_ms / observed_ms - 1.0, nan=LOST, posinf=LOST)
        parts.append((relative * weights)[known])
    return np.concatenate(parts)


def clusters_of(data: FitSet, least: int) -> np.ndarray:
    """int per residual: the cluster of residuals that err together.

    Clusters are whole experiments; where these are fewer than `least`, windows; where these are fewer too, cells. E2E,
    TTFT and ITL of a cell are of the same requests. Without cells, a load stage stands for window and cell.
    """
    levels: list[list[np.ndarray]] = [[], [], []]
    for i, cells in enumerate(data.cells):
        known = ~np.isnan(_observed(data, i)[0])
        rows = np.arange(len(known))
        for level, members in zip(levels, (0 * rows, cells.window if cells else rows, rows), strict=True):
            before = int(level[-1].max(initial=-1)) + 1 if level else 0
            level.append(before + np.broadcast_to(members[:, None], known.shape)[known])
    for level in levels:
        clusters = np.concatenate(level)
        if len(np.unique(clusters)) >= least:
            break
    return clusters


def observations(data: FitSet) -> int:
    """The number of observed means, of cells and of load stages."""
    return sum(int((~np.isnan(_observed(data, i)[0])).sum()) for i in range(len(data.experiments)))


def independent(data: FitSet) -> int:
    """The number of independent observed means: at most two of a cell, because TTFT and ITL determine E2E."""
    known = (~np.isnan(_observed(data, i)[0]) for i in range(len(data.experiments)))
    return sum(int(np.minimum(of_cells.sum(axis=1), 2).sum()) for of_cells in known)


def _observed(data: FitSet, experiment: int) -> tuple[np.ndarray, np.ndarray]:
    """(means in ms, weights), float64[..., 3] each, of the cells of an experiment, without cells of its load stages."""
    cells = data.cells[experiment]
    if cells:
        return cells.observed_ms, weights_of(cells.noise, cells.observed_ms)
    (rows,) = data.stages_at([experiment])
    return data.stages.observed_ms[rows], data.weights[rows]


def slopes_near(
    problem: Problem, phi: np.ndarray, r: np.ndarray, size: np.ndarray, before: np.ndarray | None, far: float = 1.0
) -> np.ndarray:
    """float64[residuals, free]: the change of each residual, `r` at `phi`, by one `size` of every free constant.

    From replays at both ends of axes, within the bounds: those of the slopes `before`, `far` times as far; constant by
    constant without such slopes.
    """
    free = problem.free
    axes = CHANGE * np.eye(free.size) if before is None else far * axes_of(before, r)
    ways, moves = [], []
    for axis in (*axes, *-axes):
        moved = phi.copy()
        moved[free] = np.clip(phi[free] + axis * size[free], problem.low[free], problem.high[free])
        way = (moved - phi)[free] / size[free]
        if way.any():
            ways.append(way)
            moves.append(residuals(problem, moved) - r)
    if not ways:
        return np.zeros((len(r), free.size))
    found = np.linalg.lstsq(np.array(ways), np.array(moves), rcond=1e-9)[0]
    return np.asarray(found.T)


def _objective(problem: Problem, r: np.ndarray, phi: np.ndarray, prior: np.ndarray) -> float:
    return float(huber(r).sum()) + problem.prior_cost(phi, prior)


def _step(
    problem: Problem,
    phi: np.ndarray,
    slopes: np.ndarray,
    r: np.ndarray,
    size: np.ndarray,
    prior: np.ndarray,
    damping: float,
) -> np.ndarray:
    """The constants after a damped step, within their bounds.

    The prior alone moves those without an effect, which the solver would leave slightly off.
    """
    free, idle = problem.free, idle_of(slopes)
    root = np.sqrt(huber_weights(r))
    pull = (prior * problem.tension(phi) * size)[free]
    away = (phi - problem.origin)[free] / size[free]
    norms = np.sqrt(np.square(slopes * root[:, None]).sum(axis=0) + np.square(pull))
    norms = np.where(norms > 0.0, norms, 1.0)
    a = np.vstack([slopes * root[:, None], np.diag(pull), np.diag(np.sqrt(damping) * norms)])
    b = np.concatenate([-r * root, -pull * away, np.zeros(free.size)])
    low, high = ((bound[free] - phi[free]) / size[free] for bound in (problem.low, problem.high))
    moved, found = phi.copy(), np.where(pull > 0.0, -away / (1.0 + damping), 0.0)
    if not idle.all():
        ends = low[~idle] - 1e-12, high[~idle] + 1e-12
        found[~idle] = scipy.optimize.lsq_linear(a[:, ~idle], b, ends).x
    moved[free] = np.clip(phi[free] + found * size[free], problem.low[free], problem.high[free])
    return moved
