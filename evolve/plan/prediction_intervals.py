"""The intervals of a prediction: by the errors of its class of held-out runs, and by how much near-optimal programs
disagree."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from evaluator.intervals import Disagreement, Scale, bands, figure_of
from evaluator.provenance import kernel_doubt, unseen
from evaluator.score import Prediction
from evaluator.sensitivity import CONSTANT, ConstantError, Origin, Traffic, constant_errors, origins, traffic_of
from evolve.plan.forecast import Intervals
from evolve.plan.warnings import farther_than_held_out
from evolve.run.beyond import factors, outside
from evolve.run.ranges import weights
from evolve.run.records import Record
from evolve.run.trust import SATURATED, Trust
from simulator.common.text import listed
from simulator.language.ir import Program
from simulator.language.opcodes import assemble
from simulator.serving.experiment import Experiment
from simulator.serving.facts import has_latent_attention


def class_of(trust: Trust, record: Record, e: Experiment, prediction: Prediction, doubt: Disagreement) -> str:
    """The class of held-out runs whose errors count for this experiment."""
    beyond = record.ranges is None or bool(outside(record.all_ranges, e, prediction))
    return trust.class_of(beyond, doubt)


def widened(
    record: Record, e: Experiment, program: Program, prediction: Prediction, doubt: Disagreement
) -> Disagreement:
    """The disagreement, and by how much kernels and an unfitted kind of deployment add to it (evaluator.provenance)."""
    kernels = kernel_doubt(e.facts) if assemble(program).curves else 0.0
    new = unlike(record, e, prediction)

    def wider(figure: str, spread: float | None) -> float | None:
        return None if spread is None else math.hypot(spread, kernels, unseen(figure) if new else 0.0)

    return replace(doubt, spread={figure: wider(figure, spread) for figure, spread in doubt.spread.items()})


def unlike(record: Record, e: Experiment, prediction: Prediction) -> list[str]:
    """In what the deployment is of another kind than all fitted runs: its GPU, its type of weights, its layers."""
    fitted = record.all_ranges
    if not fitted or not outside(fitted, e, prediction):
        return []
    kinds = (
        (f"GPU {e.hardware}", all(e.hardware not in (ranges.hardware or ()) for ranges in fitted)),
        (f"{weights(e)} weights", all(weights(e) not in (ranges.weights or ()) for ranges in fitted)),
        ("latent attention", has_latent_attention(e.facts)),
        ("windows", bool(e.facts["window"])),
        ("separate pools", e.pools is not None),
        ("experts", all(bool(e.facts["is_moe"]) not in (r.mixture_of_experts or ()) for r in fitted)),
    )
    return [kind for kind, is_new in kinds if is_new]


def prediction_intervals(prediction: Prediction, doubt: Disagreement, scales: Mapping[str, Scale]) -> Intervals:
    """The intervals of every figure that an SLO can name (STATISTICS), in ms; of those that no request has, none."""
    run, intervals = prediction.predicted.summary, {}
    for name, scale in scales.items():
        value, spread = figure_of(run, name), doubt.spread[name]
        if value is not None and spread is not None:
            intervals[name] = bands(value, spread, scale)
    return intervals


def too_narrow(trust: Trust, record: Record, e: Experiment, prediction: Prediction, which: str) -> list[str]:
    """A line for every reason why the intervals of this experiment, by the errors of the class `which`, are too
    narrow: no run that was held out was so far from the fitted ones."""
    lines = []
    if kinds := unlike(record, e, prediction):
        lines.append(f"no fitted run has {listed(kinds, len(kinds))}: the intervals are widened by public runs' errors")
    far = trust.too_far(factors(record.all_ranges, e, prediction))
    if which == SATURATED:  # its errors are those of runs with a queue
        far.pop("requests_in_flight", None)
    return [*lines, *farther_than_held_out(far)]


def not_calibrated(intervals: Intervals, names: Sequence[str]) -> list[str]:
    """A line for each of these figures whose interval is not calibrated."""
    return [
        f"the interval of {name.replace('_', ' ')} is not calibrated: too few held-out runs of such loads measured it"
        for name in names
        if name in intervals and not intervals[name].calibrated
    ]


def errors_of_constants(program: Program, record: Record, traffic: Traffic) -> list[ConstantError]:
    """For each experiment how far the standard errors in the program's record let the mean E2E be off."""
    constants = (record.constants or {}).items()
    known = {name: (c.standard_error, c.correlated) for name, c in constants if c.standard_error is not None}
    return constant_errors(program, known, traffic)


def unsure_constants(
    program: Program, record: Record, e: Experiment, seed: int, scale: Scale, doubt: Disagreement
) -> list[str]:
    """As `exceeded`, of an experiment whose mean E2E has this scale, under an arrival seed."""
    [error] = errors_of_constants(program, record, traffic_of([e], seed))
    return exceeded(origins(scale, doubt, (), error))


def exceeded(causes: Sequence[Origin]) -> list[str]:
    """A line if the standard errors of the constants are larger than an interval that comes from these origins."""
    return [
        f"the intervals are too narrow, since the standard errors of constants, mostly {o.constant}, are larger. Look "
        "for fitted runs that contradict each other, or measure more"
        for o in causes
        if o.kind == CONSTANT and o.share > 1.0
    ]
