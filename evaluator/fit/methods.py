"""Methods that fit the constants to the mean field. Corrections by replays follow each of them.

`linear` is Gauss-Newton on all constants at once. A scan and CMA-ES then search the constants whose effect is not
smooth, with the others solved inside: those in a condition, or all that are not affine if the program has more than two
conditionals. `lbfgsb`, `neldermead` and `cma` move all constants at once. `auto` is `linear`; with more than two
conditionals CMA-ES continues from there. Conditionals are `if`s and choices: `max` and `min` bend a line but do not
break it.

CMA-ES is pycma's, run silently from the project's own random stream: pycma's `seed` would set numpy's global generator.
"""

from __future__ import annotations

import math
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from types import ModuleType

import numpy as np
import scipy

from evaluator.fit import gauss_newton
from evaluator.fit.gauss_newton import HUBER, Goal
from evaluator.fit.problem import KERNEL_TAIL, Problem, Scales, with_slopes
from simulator.common.streams import stream
from simulator.language.affine import affine
from simulator.language.ir import Call, Compare, Const, Expr, Function, Let, Local, Node, Program, nodes, walk
from simulator.language.measure import conditionals

STEPS = 24  # of Gauss-Newton, at most
REACH = 27.0  # width of the box of an unbounded constant, in sizes of the constant
WORST = 1e30  # value of a point whose value is not finite
MOST_CONDITIONALS = 2  # up to which only constants in conditions count as not smooth
SCAN = 8  # points along the box of each constant, before the search: a threshold has plateaus on both sides
OUTER_EVALUATIONS = 12  # of the search, for each constant in it
INNER_STEPS = 2  # Gauss-Newton steps for the other constants, at each of these
SEED, OUTER_SEED = 20, 21
CMA_EVALUATIONS = 250  # for each constant
SIMPLEX_EVALUATIONS = 400  # for each constant
GRADIENT_STEPS = 200
_FIRST, _AGAIN = 0.15, 0.02  # first steps of the searches, as shares of the box: at first, and after a correction

# (problem, start, ratio of replay to mean field, scales, True for the first of the corrections) -> phi
Method = Callable[[Problem, np.ndarray, np.ndarray, Scales, bool], np.ndarray]


def solve(
    problem: Problem,
    phi: np.ndarray,
    goal: Goal,
    size: np.ndarray,
    *,
    fixed_load: bool = False,
    steps: int = STEPS,
    only: np.ndarray | None = None,
) -> tuple[np.ndarray, float]:
    """(phi, value of `goal`) after Gauss-Newton steps on the mean field from `phi`, within the bounds.

    `size`: of each constant, from `Problem.scales`. `only`: the entries of phi that may move (default all free ones).
    """
    free, moved, m = problem.free if only is None else only, phi.copy(), problem.machine
    room = gauss_newton.workspace(len(m.table), phi.size, free.size)
    low, high = problem.low, problem.high
    return moved, float(gauss_newton.gauss_newton(m, moved, free, low, high, size, goal, fixed_load, steps, room))


def refit_parts(
    problem: Problem,
    starts: np.ndarray,
    predicted_ms: np.ndarray,
    ratio: np.ndarray,
    scales: Sequence[Scales],
    parts: Sequence[np.ndarray],
) -> tuple[np.ndarray, np.ndarray]:
    """(constants, float64[parts, phi]; means in ms, float64[parts, stages, 3]) after a fit on each part of the load
    stages alone, from starts[parts, phi].

    The mean field is taken as linear about the constants of `problem`, whose replays are `predicted_ms`.
    """
    free, origin = problem.free, problem.start
    _, slopes_ms = with_slopes(problem.machine, origin)
    slopes_ms = slopes_ms * ratio
    with np.errstate(invalid="ignore", divide="ignore"):
        units = np.where(problem.data.weights > 0.0, problem.data.weights / problem.data.stages.observed_ms, 0.0)
    rows = units.ravel() > 0.0
    slopes = np.ascontiguousarray((slopes_ms * units).reshape(origin.size, -1)[np.ix_(free, rows)].T)
    residuals = ((predicted_ms * units) - problem.data.weights).ravel()[rows]
    moved = starts.copy()
    active = np.stack([np.repeat(part, 3)[rows] for part in parts])
    prior, size = np.stack([problem.prior(s) for s in scales]), np.stack([size for size, _ in scales])
    gauss_newton.linear_parts(
        *(slopes, residuals, active, origin, prior, problem.origin, problem.measured, KERNEL_TAIL),
        *(free, problem.low, problem.high, size, moved, np.empty(len(residuals))),
        gauss_newton.workspace(1, origin.size, free.size),
    )
    return moved, predicted_ms + np.tensordot(moved - origin, slopes_ms, axes=1)


class Box:
    """The entries `which` of phi as points of [0, 1]^n, for searches without slopes.

    An entry with a finite upper bound is spread evenly between its bounds. Any other one is the cube of its coordinate,
    which starts at a third: this resolves the low end finely and still reaches REACH sizes.
    """

    def __init__(self, problem: Problem, phi: np.ndarray, scales: Scales, which: np.ndarray) -> None:
        self.base, self.which = phi, which
        self.low, high = problem.low[which], problem.high[which]
        self.even = np.isfinite(high)
        self.span = np.where(self.even, high - self.low, REACH * np.maximum(phi[which] - self.low, scales[0][which]))
        share = np.clip((phi[which] - self.low) / self.span, 0.0, 1.0)
        self.start: np.ndarray = np.where(self.even, share, np.cbrt(share))

    def phi(self, x: np.ndarray) -> np.ndarray:
        """phi with its entries `which` at the point `x`."""
        x = np.clip(x, 0.0, 1.0)
        phi: np.ndarray = self.base.copy()
        phi[self.which] = self.low + self.span * np.where(self.even, x, x**3)
        return phi


def minimise(
    value: Callable[[np.ndarray], float],
    start: np.ndarray,
    sigma: float,
    evaluations: int,
    seed: int,
    population: int = 0,
) -> tuple[np.ndarray, float]:
    """(x, value(x)) at the best point of [0, 1]^n that CMA-ES finds from `start` in about so many evaluations.

    `sigma`: the first step, as a share of the box. `population` 0: 4 + 3 log n.
    """
    cma, n = _pycma(), start.size
    best, lowest = start, _finite_or_worst(value(start))
    width = max(n, 2)  # pycma cannot search one dimension: add a second one without effect
    rng = stream(seed, n)
    options: dict[str, object] = {"bounds": [0.0, 1.0], "tolfun": 1e-12, "tolfunhist": 1e-13, "tolx": 1e-8}
    options |= {"seed": math.nan, "randn": lambda *shape: rng.standard_normal(shape), "verbose": -9}
    if population:
        options["popsize"] = population
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        strategy = cma.CMAEvolutionStrategy(np.append(start, [0.5] * (width - n)), sigma, options)
        spent = 1
        while not strategy.stop() and spent + strategy.popsize <= evaluations:
            points = strategy.ask()
            values = [_finite_or_worst(value(np.asarray(x[:n]))) for x in points]
            strategy.tell(points, values)
            spent += len(points)
            i = int(np.argmin(values))
            if values[i] < lowest:
                best, lowest = np.array(points[i][:n]), values[i]
    return best, lowest


@cache
def _pycma() -> ModuleType:
    """pycma without its plots and surrogate models, whose libraries take most of a second to load."""
    absent = [name for name in ("matplotlib", "scipy.stats") if name not in sys.modules]
    for name in absent:
        sys.modules[name] = None  # type: ignore[assignment]  # pycma does without a missing library
    try:
        with warnings.catch_warnings():  # it warns that it cannot plot
            warnings.simplefilter("ignore")
            import cma
    finally:
        for name in absent:
            del sys.modules[name]
    module: ModuleType = cma
    return module


def _finite_or_worst(value: float) -> float:
    return value if math.isfinite(value) else WORST


def not_smooth(program: Program) -> np.ndarray:
    """The positions in theta of the constants that are not affine and whose effect may not be smooth, or that bend it:
    thresholds and exponents."""
    many = conditionals(program)
    flags = []
    for f in program.functions:
        outer, bending = set(affine(f).outer), _in_conditions(f) | _exponents(f)
        flags += [c.name in outer and (many > MOST_CONDITIONALS or c.name in bending) for c in f.constants]
    return np.flatnonzero(flags)


def _exponents(function: Function) -> set[str]:
    """The names of the constants that are exponents."""
    powers = [n.args[1] for n in nodes(function) if isinstance(n, Call) and n.name == "pow"]
    return {power.name for power in powers if isinstance(power, Const)}


def _in_conditions(function: Function) -> set[str]:
    """The names of the constants in the conditions of a function, directly or through local variables."""
    constants_of: dict[str, set[str]] = {}  # of each local variable

    def names(node: Node) -> Iterator[str]:
        for n in walk(node):
            if isinstance(n, Const):
                yield n.name
            elif isinstance(n, Local):
                yield from constants_of[n.name]

    for name, value in {s.name: s.value for s in function.body if isinstance(s, Let)}.items():
        constants_of[name] = set(names(value))  # every local is assigned before it is read
    sides: list[Expr] = [side for n in nodes(function) if isinstance(n, Compare) for side in (n.left, n.right)]
    return {name for side in sides for name in names(side)}


def search_outer(problem: Problem, phi: np.ndarray, reached: float, goal: Goal, scales: Scales) -> np.ndarray:
    """The best phi from a search over the constants that Gauss-Newton cannot move, because their effect is not smooth.

    Scans each of them along its box, then runs CMA-ES from the best point; Gauss-Newton solves the other constants at
    every point. `reached`: the value of `goal` at `phi`; the result is never worse.
    """
    is_outer = np.isin(problem.position, not_smooth(problem.program))
    outer, inner = problem.free[is_outer[problem.free]], problem.free[~is_outer[problem.free]]
    if not outer.size:
        return phi
    box, best, lowest = Box(problem, phi, scales, outer), phi, reached

    def value(x: np.ndarray) -> float:
        nonlocal best, lowest
        trial = best.copy()
        trial[outer] = box.phi(x)[outer]
        trial, reached = solve(problem, trial, goal, scales[0], steps=INNER_STEPS, only=inner)
        if reached < lowest:
            best, lowest = trial, reached
        return reached

    start = box.start.copy()
    for j in range(outer.size):
        line = np.repeat(start[None], SCAN, axis=0)
        line[:, j] = (np.arange(SCAN) + 0.5) / SCAN
        values = [value(x) for x in (start, *line)]
        start = (start, *line)[int(np.argmin(values))]
    minimise(value, start, _FIRST, OUTER_EVALUATIONS * outer.size, OUTER_SEED)
    return solve(problem, best, goal, scales[0])[0]


def linear(problem: Problem, phi: np.ndarray, ratio: np.ndarray, scales: Scales, first: bool) -> np.ndarray:
    """Gauss-Newton, and at first a search over the constants whose effect is not smooth.

    Gauss-Newton starts from `phi` and from the optimum under the observed load, because it may stop early at a kink of
    the mean field; the better end counts.
    """
    goal = problem.goal(ratio, problem.prior(scales))
    start, _ = solve(problem, phi, goal, scales[0], fixed_load=True)
    ends = [solve(problem, phi, goal, scales[0]), solve(problem, start, goal, scales[0])]
    phi, reached = min(ends, key=lambda end: end[1])
    return search_outer(problem, phi, reached, goal, scales) if first else phi


def _in_box(
    problem: Problem, phi: np.ndarray, ratio: np.ndarray, scales: Scales
) -> tuple[Box, Callable[[np.ndarray], float]]:
    """The box of all free constants, and the objective at its points."""
    box, goal = Box(problem, phi, scales, problem.free), problem.goal(ratio, problem.prior(scales))
    return box, lambda x: _finite_or_worst(problem.objective(box.phi(x), goal))


def cma(problem: Problem, phi: np.ndarray, ratio: np.ndarray, scales: Scales, first: bool) -> np.ndarray:
    box, value = _in_box(problem, phi, ratio, scales)
    step = _FIRST if first else _AGAIN
    return box.phi(minimise(value, box.start, step, CMA_EVALUATIONS * len(box.which), SEED)[0])


def neldermead(problem: Problem, phi: np.ndarray, ratio: np.ndarray, scales: Scales, first: bool) -> np.ndarray:
    """The downhill simplex of Nelder and Mead over all constants."""
    box, value = _in_box(problem, phi, ratio, scales)
    n, step = len(box.which), _FIRST if first else _AGAIN
    # the start, and a point a step away along each axis, to the side with room
    simplex = np.vstack([box.start, box.start + np.diag(np.where(box.start + step <= 1.0, step, -step))])
    limits = {"maxfev": SIMPLEX_EVALUATIONS * n, "xatol": 1e-7, "fatol": 1e-12}
    options = {"adaptive": True, "initial_simplex": simplex, **limits}
    bounds = [(0.0, 1.0)] * n
    return box.phi(scipy.optimize.minimize(value, box.start, method="Nelder-Mead", bounds=bounds, options=options).x)


def lbfgsb(problem: Problem, phi: np.ndarray, ratio: np.ndarray, scales: Scales, first: bool) -> np.ndarray:
    """L-BFGS-B over all constants, in units of the size of each, with its gradient."""
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
        return _finite_or_worst(problem.objective(p, goal)), slope * unit

    start, limits = phi[free] / unit, list(zip(problem.low[free] / unit, problem.high[free] / unit, strict=True))
    options = {"maxiter": GRADIENT_STEPS, "ftol": 1e-12, "gtol": 1e-9}
    found = scipy.optimize.minimize(value, start, jac=True, method="L-BFGS-B", bounds=limits, options=options)
    return at(found.x)


def auto(problem: Problem, phi: np.ndarray, ratio: np.ndarray, scales: Scales, first: bool) -> np.ndarray:
    """`linear`, then at first CMA-ES if the program has more than two conditionals."""
    phi = linear(problem, phi, ratio, scales, first)
    if first and conditionals(problem.program) > MOST_CONDITIONALS:
        return cma(problem, phi, ratio, scales, False)
    return phi


METHODS: dict[str, Method] = {"auto": auto, "linear": linear, "lbfgsb": lbfgsb, "neldermead": neldermead, "cma": cma}
