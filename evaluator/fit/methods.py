"""Methods that fit the constants to the mean field. Each is followed by the same replay corrections.

`linear` is variable projection: the constants that enter affinely come from bounded least squares, the others move
around them. All take part in one joint Gauss-Newton. A scan and CMA-ES then search the constants whose effect is not
smooth, with the others solved inside: those in a condition, or all that are not affine if the program has more than two
conditionals. `lbfgsb`, `neldermead` and `cma` move all constants at once. `auto` is `linear`; with more than two
conditionals CMA-ES continues from there. Conditionals are `if`s and choices: `max` and `min` bend a line but do not
break it, so they do not count.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import scipy

from evaluator.fit.gauss_newton import HUBER
from evaluator.fit.problem import Problem, Scales, with_slopes
from evaluator.fit.solvers import MOST_CONDITIONALS, Box, finite_or_worst, minimise, search_outer, solve
from simulator.language.measure import conditionals

SEED = 20
CMA_EVALUATIONS = 250  # for each constant
SIMPLEX_EVALUATIONS = 400  # for each constant
GRADIENT_STEPS = 200
_FIRST, _AGAIN = 0.15, 0.02  # first steps of the searches, as shares of the box: at first, and after a correction

# (problem, start, ratio of replay to mean field, scales, whether this is the first of the corrections) -> phi
Method = Callable[[Problem, np.ndarray, np.ndarray, Scales, bool], np.ndarray]


def linear(problem: Problem, phi: np.ndarray, ratio: np.ndarray, scales: Scales, first: bool) -> np.ndarray:
    """Gauss-Newton, and at first a search over the constants whose effect is not smooth.

    Gauss-Newton starts from `phi` and from the optimum under the observed load, because at a kink of the mean field it
    may stop early; the better end counts.
    """
    goal = problem.goal(ratio, problem.prior(scales))
    start, _ = solve(problem, phi, goal, scales[0], fixed_load=True)
    ends = [solve(problem, phi, goal, scales[0]), solve(problem, start, goal, scales[0])]
    phi, reached = min(ends, key=lambda end: end[1])
    return search_outer(problem, phi, reached, goal, scales) if first else phi


def cma(problem: Problem, phi: np.ndarray, ratio: np.ndarray, scales: Scales, first: bool) -> np.ndarray:
    """CMA-ES over all constants."""
    box, goal = Box(problem, phi, scales, problem.free), problem.goal(ratio, problem.prior(scales))
    x, _ = minimise(
        lambda x: problem.objective(box.phi(x), goal),
        box.start, _FIRST if first else _AGAIN, CMA_EVALUATIONS * len(box.which), SEED,
    )  # fmt: skip
    return box.phi(x)


def neldermead(problem: Problem, phi: np.ndarray, ratio: np.ndarray, scales: Scales, first: bool) -> np.ndarray:
    """The downhill simplex of Nelder and Mead over all constants."""
    box, goal = Box(problem, phi, scales, problem.free), problem.goal(ratio, problem.prior(scales))
    most = SIMPLEX_EVALUATIONS * len(box.which)
    result = scipy.optimize.minimize(
        lambda x: finite_or_worst(problem.objective(box.phi(x), goal)),
        box.start, method="Nelder-Mead", bounds=[(0.0, 1.0)] * len(box.which),
        options={"maxfev": most, "xatol": 1e-7, "fatol": 1e-12, "adaptive": True,
                 "initial_simplex": _simplex(box.start, _FIRST if first else _AGAIN)},
    )  # fmt: skip
    return box.phi(result.x)


def lbfgsb(problem: Problem, phi: np.ndarray, ratio: np.ndarray, scales: Scales, first: bool) -> np.ndarray:
    """L-BFGS-B over all constants, in units of each constant's size, with its gradient."""
    size, effect = scales
    prior, free = problem.prior(scales), problem.free
    goal = problem.goal(ratio, prior)
    unit = np.divide(1.0, effect[free], out=size[free].copy(), where=effect[free] > 0)

    def at(x: np.ndarray) -> np.ndarray:
        moved = phi.copy()
        moved[free] = np.clip(x * unit, problem.low[free], problem.high[free])
        return moved

    def value(x: np.ndarray) -> tuple[float, np.ndarray]:
        p = at(x)
        predicted, slopes = with_slopes(problem.machine, p)
        with np.errstate(invalid="ignore"):
            slopes = slopes[free] * (ratio / problem.data.stages.observed_ms * problem.data.weights)
        r = problem.data.residuals(predicted * ratio)
        slopes = np.nan_to_num(slopes, nan=0.0, posinf=0.0, neginf=0.0)
        pulled = prior * np.square(problem.tension(p)) * (p - problem.origin)
        slope = 2.0 * (slopes * np.clip(r, -HUBER, HUBER)).sum(axis=(1, 2)) + 2.0 * (prior * pulled)[free]
        return finite_or_worst(problem.objective(p, goal)), slope * unit

    limits = list(zip(problem.low[free] / unit, problem.high[free] / unit, strict=True))
    result = scipy.optimize.minimize(
        value, phi[free] / unit, jac=True, method="L-BFGS-B", bounds=limits,
        options={"maxiter": GRADIENT_STEPS, "ftol": 1e-12, "gtol": 1e-9},
    )  # fmt: skip
    return at(result.x)


def auto(problem: Problem, phi: np.ndarray, ratio: np.ndarray, scales: Scales, first: bool) -> np.ndarray:
    """`linear`, then CMA-ES at first if the program has more than two conditionals."""
    phi = linear(problem, phi, ratio, scales, first)
    if first and conditionals(problem.program) > MOST_CONDITIONALS:
        return cma(problem, phi, ratio, scales, False)
    return phi


METHODS: dict[str, Method] = {
    "auto": auto, "linear": linear, "lbfgsb": lbfgsb, "neldermead": neldermead, "cma": cma,
}  # fmt: skip


def _simplex(start: np.ndarray, step: float) -> np.ndarray:
    """`start`, and a point a step away along each axis, to the side with room."""
    corners = start + np.diag(np.where(start + step <= 1.0, step, -step))
    return np.vstack([start, corners])
