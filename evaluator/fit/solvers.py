"""Solvers of a fit: Gauss-Newton for constants with a smooth effect, CMA-ES in a box, and a search that combines them.

CMA-ES is pycma's, run deterministically and silently from the project's own random stream: pycma's `seed` would set
numpy's global generator.
"""

from __future__ import annotations

import math
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from types import ModuleType

import numpy as np

from evaluator.fit import gauss_newton
from evaluator.fit.gauss_newton import Goal
from evaluator.fit.problem import KERNEL_TAIL, Problem, Scales
from simulator.common.streams import stream
from simulator.language.affine import affine
from simulator.language.ir import Compare, Const, Expr, Function, Let, Local, Node, Program, nodes, walk
from simulator.language.measure import conditionals

STEPS = 24  # of Gauss-Newton, at most
REACH = 27.0  # width of the box of an unbounded constant, in sizes of the constant
WORST = 1e30  # value of a point whose value is not finite
MOST_CONDITIONALS = 2  # up to which only constants in conditions count as not smooth
SCAN = 16  # points along the box of each constant, before the search: a threshold has plateaus on both sides
OUTER_EVALUATIONS = 30  # of the search, for each constant in it
INNER_STEPS = 4  # Gauss-Newton steps for the other constants, at each of these
OUTER_SEED = 21
_SIGMA = 0.15  # the first step, as a share of the box


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
    free = problem.free if only is None else only
    moved = phi.copy()
    workspace = gauss_newton.workspace(len(problem.machine.table), phi.size, free.size)
    reached = gauss_newton.gauss_newton(
        problem.machine, moved, free, problem.low, problem.high, size, goal, fixed_load, steps, workspace
    )
    return moved, float(reached)


def solve_parts(
    problem: Problem, starts: np.ndarray, ratio: np.ndarray, scales: Sequence[Scales], parts: Sequence[np.ndarray]
) -> np.ndarray:
    """float64[parts, phi]: `solve` on each part of the load stages alone, from starts[parts, phi]."""
    goals = [problem.goal(ratio, problem.prior(s), part) for s, part in zip(scales, parts, strict=True)]
    all_goals = Goal(
        np.stack([g.active for g in goals]), np.stack([g.units for g in goals]), np.stack([g.weights for g in goals]),
        np.stack([g.prior for g in goals]), problem.origin, problem.measured, KERNEL_TAIL,
    )  # fmt: skip
    moved = starts.copy()
    workspace = gauss_newton.workspace(len(problem.machine.table), starts.shape[1], problem.free.size)
    gauss_newton.each_goal(
        problem.machine, moved, problem.free, problem.low, problem.high, np.stack([size for size, _ in scales]),
        all_goals, False, STEPS, workspace,
    )  # fmt: skip
    return moved


class Box:
    """The entries `which` of phi as points of [0, 1]^n, for searches without slopes.

    An entry with a finite upper bound is spread evenly between its bounds. Any other one goes with the cube of its
    coordinate, which starts at a third: this resolves the low end finely and still reaches REACH sizes.
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
    """(x, value(x)) at the best point of [0, 1]^n that CMA-ES finds from `start`, which it evaluates first.

    `sigma`: the first step, as a share of the box. `population` 0: 4 + 3 log n. Stops after about `evaluations`.
    """
    cma, n = _pycma(), start.size
    best, lowest = start, finite_or_worst(value(start))
    width = max(n, 2)  # pycma cannot search one dimension: add a second one without effect
    rng = stream(seed, n)
    options = {
        "bounds": [0.0, 1.0], "seed": math.nan, "randn": lambda *shape: rng.standard_normal(shape), "verbose": -9,
        "tolfun": 1e-12, "tolfunhist": 1e-13, "tolx": 1e-8, **({"popsize": population} if population else {}),
    }  # fmt: skip
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        strategy = cma.CMAEvolutionStrategy(np.append(start, [0.5] * (width - n)), sigma, options)
        spent = 1
        while not strategy.stop() and spent + strategy.popsize <= evaluations:
            points = strategy.ask()
            values = [finite_or_worst(value(np.asarray(x[:n]))) for x in points]
            strategy.tell(points, values)
            spent += len(points)
            i = int(np.argmin(values))
            if values[i] < lowest:
                best, lowest = np.array(points[i][:n]), values[i]
    return best, lowest


@cache
def _pycma() -> ModuleType:
    """pycma without its plots and surrogate models, whose libraries take most of a second to load in every process."""
    absent = [name for name in ("matplotlib", "scipy.stats") if name not in sys.modules]
    for name in absent:
        sys.modules[name] = None  # type: ignore[assignment]  # as if it were not installed: pycma does without
    try:
        with warnings.catch_warnings():  # it warns that it cannot plot
            warnings.simplefilter("ignore")
            import cma
    finally:
        for name in absent:
            del sys.modules[name]
    module: ModuleType = cma
    return module


def finite_or_worst(value: float) -> float:
    return value if math.isfinite(value) else WORST


def not_smooth(program: Program) -> np.ndarray:
    """Positions in theta of the constants that are not affine and whose effect may not be smooth."""
    many = conditionals(program)
    flags = []
    for f in program.functions:
        outer = set(affine(f).outer) if many else set()
        flags += [c.name in outer and (many > MOST_CONDITIONALS or c.name in _in_conditions(f)) for c in f.constants]
    return np.flatnonzero(flags)


def _in_conditions(function: Function) -> set[str]:
    """Names of the constants in a function's conditions, directly or through local variables."""
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
    every point. Never worse than `phi`, where `goal` is `reached`.
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
    minimise(value, start, _SIGMA, OUTER_EVALUATIONS * outer.size, OUTER_SEED)
    return solve(problem, best, goal, scales[0])[0]
