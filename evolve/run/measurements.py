"""Faults of measurements: means that no GPU reaches, requests that never complete, runs that count twice."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace

from evaluator.baselines import datasheet
from evaluator.intervals import figure_of, waiting_share
from evaluator.score import ALL_GIVE_UP, ALL_REFUSED, MEANS, SCORE_SEEDS, Prediction, predictions, score_set
from evolve.run.config import DataSettings
from evolve.run.data import chosen
from evolve.run.records import Record
from evolve.run.use import known_before
from simulator.common.errors import InputError
from simulator.serving.digests import measurement_digest
from simulator.serving.experiment import Experiment
from simulator.serving.observations import CLEAN
from simulator.serving.workload import output_lengths

MOSTLY_WAITING = 0.5  # share of the mean E2E spent in the queue
# Shares of the datasheet's bound. An observed mean below the first is not in ms, or of another deployment; a mean below
# the second is so far off that nothing can be learned from it.
TOO_FAST, ABSURD = 0.5, 0.1
# Times the datasheet's bound, or the least that the host takes for a step if that is more: no clean run reaches 100.
MICROSECONDS = 300.0
HOST_STEP_MS = 1.0
MEASURED = "and the GPU, model and lengths that were measured"


def too_fast(experiment: Experiment, bound: Prediction, share: float = TOO_FAST) -> list[str]:
    """A line for each observed mean below this share of the datasheet's bound, as a mean in seconds is.

    If even the bound is mostly time in a queue, the rate is too high, as a rate per minute is.
    """
    remedy = f"give ms, not seconds, {MEASURED}"
    if waiting_share(bound) > MOSTLY_WAITING:
        remedy = f"even so fast an engine does not keep up: give requests/s, not per minute, {MEASURED}"
    return [
        f"the observed {name.upper()} of {mean:.4g} ms is below the datasheet's bound of {least:.4g} ms: {remedy}"
        for name, mean, least in _bounded(experiment, bound)
        if mean < share * least
    ]


def too_slow(experiment: Experiment, bound: Prediction) -> list[str]:
    """A line for each observed mean of a clean run that is as far above the datasheet's bound as one in microseconds.

    TTFT does not count, because a short prompt may take a hundred times the bound. Small models have a larger bound,
    because the host takes longer for a step than the GPU.
    """
    if experiment.quality != CLEAN:
        return []
    steps = {"e2e": float(output_lengths(experiment.workload).mean()), "itl": 1.0}
    return [
        f"the observed {name.upper()} of {mean:.4g} ms is {mean / least:,.0f} times the datasheet's bound: give ms, "
        f"not us, {MEASURED}"
        for name, mean, least in _bounded(experiment, bound)
        if name in steps and least and mean > MICROSECONDS * max(least, steps[name] * HOST_STEP_MS)
    ]


def _bounded(experiment: Experiment, bound: Prediction) -> Iterator[tuple[str, float, float]]:
    """(E2E, TTFT or ITL, its observed mean in ms, the datasheet's bound in ms) of each that has both."""
    observed = experiment.observed.summary if experiment.observed else None
    for name in MEANS:
        mean, least = figure_of(observed, name), figure_of(bound.predicted.summary, name)
        if mean is not None and least is not None:
            yield name, mean, least


def why_none_completes(prediction: Prediction) -> str:
    """The reason why no request of a run completes in its replay, in a few words; "" if one does."""
    if figure_of(prediction.predicted.summary, "e2e") is not None:
        return ""
    if not requests_of(prediction):
        return "none arrives"
    return ALL_REFUSED if prediction.refused >= prediction.gave_up else ALL_GIVE_UP


def refuse_absurd(experiments: Sequence[Experiment]) -> list[Prediction]:
    """The datasheet's bound for each experiment, under one arrival seed.

    Raises InputError if an observed mean is below a tenth of the bound, or so far above it that it must be in
    microseconds, and if no request would complete.
    """
    bounds = predictions(datasheet(), score_set(experiments, SCORE_SEEDS[:1]))
    for e, bound in zip(experiments, bounds, strict=True):
        if lines := (*_never(bound), *too_fast(e, bound, ABSURD), *too_slow(e, bound)):
            raise InputError(f"experiment {e.id!r}: {lines[0]}")
    return bounds


def _never(bound: Prediction) -> list[str]:
    """A line if no request completes at what the datasheet allows, although latencies were observed."""
    why = why_none_completes(bound)
    text = f"latencies were observed, but no request completes at what the datasheet allows ({why})"
    return [f"{text}: correct max_model_len, timeout_s or the load"] if why else []


def counted_twice(experiments: Sequence[Experiment]) -> dict[str, tuple[str, ...]]:
    """By id, a line for each experiment that has the measurements of an earlier one, as in a copied file."""
    first: dict[str, str] = {}
    lines: dict[str, tuple[str, ...]] = {}
    for e in experiments:
        digest = measurement_digest(e)
        if digest is not None and (other := first.setdefault(digest, e.id)) != e.id:
            lines[e.id] = (f"has the same measurements as {other}: they are counted twice: leave one of the two out",)
    return lines


def counted_before(
    record: Record | None, experiments: Sequence[Experiment], fitted: Collection[str]
) -> dict[str, tuple[str, ...]]:
    """By id, a line for each experiment on which, or on part of which, the program of this record was fitted before.

    There is none if all constants that are `fitted` now, by `method.name`, were held then.
    """
    held = {name for name, c in ((record and record.constants) or {}).items() if c.held}
    if held.issuperset(fitted):
        return {}
    line = "the program was fitted on it before, so it counts twice; standard errors are too small: fit new runs alone"
    return {e.id: (line,) for e in experiments if known_before(record, e)}


def requests_of(prediction: Prediction) -> int:
    """The number of requests that complete or fail."""
    summary = prediction.predicted.summary
    return (summary.completed or 0) + (summary.failed or 0) if summary else 0


def of_files(data: DataSettings, files: tuple[str, ...]) -> DataSettings:
    """The settings with the experiments of these files, if any. Raises InputError for measurements that cannot be."""
    if not files:
        return data
    own = replace(data, files=files, predict_files=())
    refuse_absurd(chosen(own)[0])
    return own
