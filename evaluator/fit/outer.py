"""Constants that Gauss-Newton cannot move, because their effect is not smooth: a search over those alone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from evaluator.fit.box import Box
from evaluator.fit.gauss_newton import solve
from evaluator.fit.problem import Problem, Scales
from evaluator.fit.search import minimise
from simulator.language.affine import affine
from simulator.language.ir import Compare, Const, Expr, Function, Let, Local, Node, Program, nodes, walk
from simulator.language.measure import conditionals

MOST_CONDITIONALS = 2  # up to which a program counts as smooth but for what stands in its conditions
SCAN = 16  # points along the box of each constant, before the search: a threshold has plateaus on both sides
OUTER_EVALUATIONS = 30  # of the search, for each constant in it
INNER_STEPS = 4  # Gauss-Newton steps for the other constants, at each of these
OUTER_SEED = 21
_SIGMA = 0.15  # the first step, as a share of the box


def rough(program: Program) -> np.ndarray:
    """Positions in theta of the constants that are not affine and whose effect may not be smooth."""
    many = conditionals(program)
    names = []
    for f in program.functions:
        outer = set(affine(f).outer) if many else set()
        names += [c.name in outer and (many > MOST_CONDITIONALS or c.name in _judged(f)) for c in f.constants]
    return np.flatnonzero(names)


def _judged(function: Function) -> set[str]:
    """Names of the constants in the conditions of a method, also by way of what was assigned before."""
    lets = {s.name: s.value for s in function.body if isinstance(s, Let)}

    def names(node: Node) -> Iterator[str]:
        for n in walk(node):
            if isinstance(n, Const):
                yield n.name
            elif isinstance(n, Local):
                yield from held[n.name]

    held: dict[str, set[str]] = {}
    for name, value in lets.items():  # each is assigned before it is read
        held[name] = set(names(value))
    sides: list[Expr] = [side for n in nodes(function) if isinstance(n, Compare) for side in (n.left, n.right)]
    return {name for side in sides for name in names(side)}


def search_outer(problem: Problem, phi: np.ndarray, goal: float, ratio: np.ndarray, scales: Scales) -> np.ndarray:
    """The rough constants one after the other along their boxes, then CMA-ES from the best, the others solved at each
    point; never worse than `phi`, whose value is `goal`."""
    positions = np.isin(problem.position, rough(problem.program))
    outer = problem.free[positions[problem.free]]
    if not outer.size:
        return phi
    inner = np.flatnonzero(~positions[problem.free])
    box, best = Box(problem, phi, scales, outer), _Best(phi, goal)

    def value(x: np.ndarray) -> float:
        trial = best.phi.copy()
        trial[outer] = box.phi(x)[outer]
        trial, reached = solve(problem, trial, ratio, scales, steps=INNER_STEPS, only=inner)
        if reached < best.value:
            best.phi, best.value = trial, reached
        return reached

    start = box.start.copy()
    for j in range(outer.size):
        line = np.repeat(start[None], SCAN, axis=0)
        line[:, j] = (np.arange(SCAN) + 0.5) / SCAN
        values = [value(x) for x in (start, *line)]
        start = (start, *line)[int(np.argmin(values))]
    minimise(value, start, _SIGMA, OUTER_EVALUATIONS * outer.size, OUTER_SEED)
    return solve(problem, best.phi, ratio, scales)[0]


@dataclass
class _Best:
    phi: np.ndarray
    value: float
