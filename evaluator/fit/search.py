"""CMA-ES (pycma) as this project uses it: in a box, from its own random stream, deterministic, silent.

pycma's `seed` would set numpy's global generator; here that stays untouched.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable

import numpy as np

from simulator.stream import stream

WORST = 1e30  # what a point is worth whose value is not finite


def minimise(
    value: Callable[[np.ndarray], float],
    start: np.ndarray,
    sigma: float,
    evaluations: int,
    seed: int,
    population: int = 0,
) -> tuple[np.ndarray, float]:
    """(x, value(x)), the best point of [0, 1]^n that CMA-ES finds from `start`, which is the first to be tried.

    `sigma`: its first step, as a share of the box. `population` 0: 4 + 3 log n. Stops after about `evaluations`.
    """
    with warnings.catch_warnings():  # that it cannot plot
        warnings.simplefilter("ignore")
        import cma

    n = start.size
    best, lowest = start, _finite(value(start))
    width = max(n, 2)  # pycma has no single dimension: a second one that changes nothing
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
            values = [_finite(value(np.asarray(x[:n]))) for x in points]
            strategy.tell(points, values)
            spent += len(points)
            i = int(np.argmin(values))
            if values[i] < lowest:
                best, lowest = np.array(points[i][:n]), values[i]
    return best, lowest


def _finite(value: float) -> float:
    return value if math.isfinite(value) else WORST
