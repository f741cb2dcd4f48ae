"""How far a prediction may be off because of where its kernels come from, beyond what the fitted runs show.

A kernel that was timed at its shape is off by what a fit sees. One at the efficiency of the nearest shape or of another
type, or by the datasheet alone, may be off by more. A GPU, a type of weights or an architecture that no fitted run has
adds what public runs of such deployments showed with nothing fitted on them: `python -m research serving`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from simulator.clock.fields import Active, BatchFields
from simulator.kernels.curves import TOKENS, Kernels, kernels
from simulator.kernels.roofline import DATASHEET, INTERPOLATED, MEASURED, NEAREST
from simulator.serving.facts import Facts

# Standard deviation of the logarithm of a time. Fitted runs show the errors of measured and interpolated kernels.
DOUBT: Mapping[str, float] = {MEASURED: 0.0, INTERPOLATED: 0.0, NEAREST: 0.15, DATASHEET: 0.3}
COUNTED = frozenset(("elementwise", "small", "sampler"))  # fitted everywhere, and alike on all deployments
DECODES, CONTEXT = 32, 2048  # the step whose shares count
# The same of a mean by figure, on deployments of another GPU, precision or architecture than the fitted ones: root mean
# squares of the errors of 331 public runs, mixed with their model and GPU.
UNSEEN: Mapping[str, float] = {"itl": 0.11, "e2e": 0.13, "ttft": 0.35}


def kernel_doubt(facts: Mapping[str, float]) -> float:
    """The standard deviation of the logarithm of a decode step's time by the origin of its kernels; 0 without measured
    kernels, of which the program reads none."""
    deployed = facts.deployed if isinstance(facts, Facts) else None
    if deployed is None:
        return 0.0
    every = kernels(deployed)
    times = _times(every, facts)
    total = sum(times)
    squares = (
        (0.0 if o.curve in COUNTED else DOUBT[o.timing.kind] * us / total) ** 2
        for o, us in zip(every.operations, times, strict=True)
    )
    return math.sqrt(sum(squares))


def _times(every: Kernels, facts: Mapping[str, float]) -> list[float]:
    """us of all calls of each operation in a step of DECODES decodes."""
    fields = BatchFields((Active(1, CONTEXT, 1),) * DECODES, facts)
    quantities = {"decode_per_token": fields["b", "kv_decode_sum"], "window_per_token": fields["b", "kv_window_sum"]}
    at = int(np.searchsorted(TOKENS, DECODES))
    return [
        0.0 if o.curve == "prefill_per_pair" else o.calls * float(o.timing.us[at]) * quantities.get(o.curve, 1.0)
        for o in every.operations
    ]


def unseen(figure: str) -> float:
    """The standard deviation of the logarithm of a figure, on a deployment that no fitted run is like."""
    return UNSEEN[figure.partition("_")[0]]  # percentiles have that of the mean
