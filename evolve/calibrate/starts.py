"""Alternative start values for a fit: with a max, a min or a condition, descent may end in a local optimum."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from evaluator.fit.problem import Problem
from simulator.language.ir import Call, Choose, Function, Guard, roots, walk

FACTORS = (0.25, 4.0, 16.0)  # by which one constant is larger or smaller than in the program
METHOD = "linear"  # Gauss-Newton: the others are slow, or do not stop at a branch
GAIN = 0.01  # so much lower must a loss be to be taken instead, as a share


def other_starts(problem: Problem) -> Iterator[tuple[str, np.ndarray]]:
    """Starts (words, float64[phi]) with one constant larger or smaller by FACTORS, for every constant that is fitted in
    a method with a branch; none where no method has one."""
    names = [(f, c.name) for f in problem.program.functions for c in f.constants]
    free = set(problem.free)
    for j, (function, name) in enumerate(names):
        entries = [i for i in np.flatnonzero(problem.position == j) if i in free]  # one for each model, or one for all
        if not entries or not _branches(function):
            continue
        for factor in FACTORS:
            phi = problem.start.copy()
            phi[entries] = np.clip(factor * phi[entries], problem.low[entries], problem.high[entries])
            if (phi != problem.start).any():
                i = entries[0]
                yield f"{function.name}.{name} = {phi[i]:.4g} instead of {problem.start[i]:.4g}", phi


def _branches(function: Function) -> bool:
    """True if the formula of a method depends on its arguments: by max, min or a condition."""
    nodes = (node for root in roots(function) for node in walk(root))
    return any(isinstance(s, Guard) for s in function.body) or any(
        isinstance(node, Choose) or (isinstance(node, Call) and node.name in ("max", "min")) for node in nodes
    )
