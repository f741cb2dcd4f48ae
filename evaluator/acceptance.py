"""The share of drafted tokens that are accepted, by the latency that was measured with it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import scipy

from evaluator.score import predictions, score_set
from simulator.language.ir import Program
from simulator.serving.experiment import Experiment
from simulator.serving.observations import Observation
from simulator.serving.speculation import lacks_acceptance

EXACT = 1e-3  # of a share


def with_acceptance(program: Program, experiment: Experiment, seeds: Sequence[int]) -> Experiment:
    """The experiment with the acceptance at which the program's mean E2E (else ITL) is the measured one.

    The nearest share where none gives it; a note says which. The same experiment if its acceptance is given, or nothing
    is drafted.
    """
    if not lacks_acceptance(experiment.engine) or not experiment.observed or not experiment.observed.summary:
        return experiment
    summary = experiment.observed.summary
    name = "E2E" if summary.e2e_ms.mean else "ITL"

    def latency_ms(observation: Observation | None) -> float:
        if observation is None:
            return np.nan
        of = (observation.e2e_ms if name == "E2E" else observation.itl_ms).mean
        return np.nan if of is None else of

    measured = latency_ms(summary)

    def beyond(share: float) -> float:
        """The predicted less the measured latency: it falls with the share."""
        (found,) = predictions(program, score_set([_at(experiment, share)], seeds))
        return latency_ms(found.predicted.summary) - measured

    ends = beyond(0.0), beyond(1.0)
    if ends[0] <= 0.0:
        share, how = 0.0, f"even so the program is faster than the measured {name}: check the drafts and units"
    elif ends[1] >= 0.0:
        share, how = 1.0, f"even so the program is slower than the measured {name}: check the drafts and units"
    else:
        share = float(scipy.optimize.brentq(beyond, 0.0, 1.0, xtol=EXACT))
        how = f"taken from the measured {name}, whose error so says nothing"
    found = _at(experiment, round(share, 3))
    return replace(found, notes=(f"speculative_acceptance {share:.2f}, as none is given: {how}", *found.notes))


def _at(experiment: Experiment, share: float) -> Experiment:
    """The experiment with this acceptance."""
    return replace(experiment, engine=replace(experiment.engine, speculative_acceptance=share))
