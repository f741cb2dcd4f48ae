"""How much the arrivals alone move each stage mean, and what the mean field leaves out of it: both per experiment.

The host's blackbox form, fitted to one experiment, stands for whatever program is right there: what queues form, and
how much a mean moves from one draw of arrivals to the next, hangs on the load and on how long steps take, not on how a
program explains them. One experiment's figures depend on no other's, so nothing leaks between folds.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from evaluator.fit.corrections import corrected
from evaluator.fit.loss import FitSet
from evaluator.fit.pose import problem_of
from evaluator.fit.routes import linear
from simulator.experiment.load import load_of
from simulator.language.complete import complete
from simulator.language.parse import parse

NOISE_SEEDS = (1001, 1002, 1003, 1004, 1005, 1006)  # arrival seeds: neither those of a fit nor of a score
BLACKBOX = """
def step_time(b, s, *, b0: us = 8000.0, b1: us/token = 10.0, b2: us/request = 30.0):
    return b0 + b1 * b.prefill_tokens + b2 * b.decode_reqs
"""


def measure(one: FitSet) -> tuple[np.ndarray, np.ndarray]:
    """(noise, ratio) of a single experiment, float64[stages, 3] each; 0 and 1 where no request of a stage completes."""
    problem = problem_of(complete(parse(BLACKBOX, "blackbox")), one)
    phi, _, ratio = corrected(problem, linear, 2, True)
    with np.errstate(invalid="ignore", divide="ignore"):
        drawn = [
            replace(problem, data=replace(one, loads=(load_of(one.experiments[0], s),))).replay(phi, True)
            for s in NOISE_SEEDS
        ]
        noise = np.std(drawn, axis=0, ddof=1) / np.mean(drawn, axis=0)
    return np.where(np.isfinite(noise), noise, 0.0), ratio
