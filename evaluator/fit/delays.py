"""The delays before and after a request's steps, fitted to the runs that observed them.

E2E, TTFT and ITL cannot tell a delay from a longer step. Journeys and stamps can: they say how long a request was in
steps with and without its prompt. What a client sees beyond them are the delays. Where these are known, they alone
decide the constants of queueing_time, output_token_time and completion_time that they show; E2E, TTFT and ITL decide
the others. A first token's way to the client counts as before its steps: the host has no other place for it.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import scipy

from evaluator.fit.loss import Delays
from evaluator.fit.problem import SMALL, Problem
from evaluator.metrics import components_ms
from simulator.clock.bind import BoundAll
from simulator.language.ir import OVERHEADS

DELAYS = ("queueing_time", *OVERHEADS)
SHOWN = 1e-6  # relative change of a delay by a constant's size, above which the delay decides it
PRIOR = 1e-4  # relative error that stands for a size away from the start: it decides what no delay tells apart
LEAST_MS = 0.1  # of a delay: errors of smaller ones count relative to it


def delays_ms(problem: Problem, phi: np.ndarray) -> dict[int, tuple[Delays, Delays]]:
    """The (predicted, observed) delays of every experiment that observed one, by its position. Replays these."""
    found = {}
    for i, observed in problem.data.delays.items():
        parts = components_ms(problem.replay_of(phi, i, allow_hostile=True))
        token = parts["per_token"] + parts["completion"]
        found[i] = Delays(parts["queueing"] + parts["waiting"], token), observed
    return found


def with_delays(problem: Problem, phi: np.ndarray) -> Problem:
    """The problem with the constants that observed delays show at the values that fit these best, and held there.

    phi: float64[phi], the other constants: a replay at these shows how long requests wait for a step.
    """
    if not problem.data.delays:  # most data observe none, and every candidate of a search comes by
        return problem
    names = np.array([f.name for f in problem.program.functions for _ in f.constants])
    free = problem.free[np.isin(names[problem.position[problem.free]], DELAYS)]
    if not free.size:
        return problem
    known = delays_ms(problem, phi)
    observed = np.array([of for _, of in known.values()])
    apart = np.array([of for of, _ in known.values()]) - _constant_parts(problem, phi, list(known))  # waits for a step
    low, high = problem.low[free], problem.high[free]
    start = np.clip(phi[free], low, high)
    size = np.maximum(np.abs(start), SMALL)
    there = ~np.isnan(observed)

    def errors(x: np.ndarray) -> np.ndarray:
        """Relative errors of the delays, and those of the prior."""
        moved = phi.copy()
        moved[free] = x
        off = (_constant_parts(problem, moved, list(known)) + apart - observed) / np.maximum(observed, LEAST_MS)
        return np.concatenate([off[there], PRIOR * (x - start) / size])

    inside = np.clip(start, np.nextafter(low, high), np.nextafter(high, low))
    found = scipy.optimize.least_squares(errors, inside, bounds=(low, high), x_scale=size)
    shown = np.abs(found.jac[: there.sum()] * size).max(axis=0) > SHOWN
    decided, value = free[shown], found.x[shown]

    def with_value(column: np.ndarray) -> np.ndarray:
        column = column.copy()
        column[decided] = value
        return column

    start, low, high, origin = map(with_value, (problem.start, problem.low, problem.high, problem.origin))
    return replace(problem, start=start, low=low, high=high, origin=origin, delayed=tuple(decided.tolist()))


def _constant_parts(problem: Problem, phi: np.ndarray, experiments: list[int]) -> np.ndarray:
    """float64[experiments, 2]: the mean time in ms of a request by queueing_time, and by the times at its end."""
    rows = []
    for i in experiments:
        bound, load = problem.bound_of(phi, i), problem.data.loads[i]
        lengths, which = load.lengths
        counts = np.bincount(which, minlength=len(lengths))
        (queueing_us,) = BoundAll(bound.code, bound.values[np.newaxis]).queueing_us(lengths)
        tokens = float(load.requests.output_len.mean())
        after_us = bound.output_token_us() * tokens + bound.completion_us()
        rows.append([counts @ queueing_us / counts.sum(), after_us])
    return np.array(rows) / 1e3
