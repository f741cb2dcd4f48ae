"""Experiments without their last load stage: what a search may see when that stage is held out."""

from __future__ import annotations

from dataclasses import replace

from simulator.experiment.experiment import Experiment, Observed
from simulator.experiment.observations import together


def but_last(e: Experiment) -> Experiment:
    """`e` with the last of several stages cut from workload and observations; as it is if it has one, or none observed.

    The summary is then that of the stages that are left: of one, its own; of several, their means weighted by the
    requests offered, without percentiles. Nothing of the last stage can be computed from what is left.
    """
    if len(e.workload.stages) < 2 or e.observed is None or not e.observed.stages:
        return e
    workload, seen = replace(e.workload, stages=e.workload.stages[:-1]), e.observed.stages[:-1]
    summary = seen[0] if len(seen) == 1 else together(seen, workload)
    return replace(e, workload=workload, observed=Observed(summary, seen))
