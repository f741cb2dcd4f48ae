"""The JSON of `evolve predict`: what a program predicts for experiments, beside what was observed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from evaluator.experiments import data_hash
from evaluator.metrics import LATENCIES, error_pct
from evaluator.score import Prediction, errors, predictions, score_set, summarise
from evolve import __version__
from evolve.programs import Source
from evolve.records import warnings
from simulator.experiment import Experiment, Observation, Statistic
from simulator.language.key import key
from simulator.language.unparse import unparse

QUANTITIES = ("mean", "p50", "p90", "p99")


def predict(source: Source, experiments: Sequence[Experiment], seeds: Sequence[int]) -> dict[str, Any]:
    """Replay every experiment under every arrival seed; latencies in ms, averaged over seeds."""
    program = source.complete
    made = predictions(program, score_set(experiments, seeds))
    rows = [errors(p, e) for p, e in zip(made, experiments, strict=True)]
    total = summarise(rows)
    means = {"e2e": total.e2e, "ttft": total.ttft, "itl": total.itl}
    return {
        "engine": __version__,
        "data": data_hash(experiments),
        "seeds": list(seeds),
        "program": unparse(program),
        "key": key(program),
        "experiments": [_experiment(p, e, source.record) for p, e in zip(made, experiments, strict=True)],
        "mean_abs_error_pct": means,
    }


def _experiment(prediction: Prediction, experiment: Experiment, record: dict[str, Any] | None) -> dict[str, Any]:
    observed = experiment.observed
    stages = observed.stages if observed and observed.stages else (None,) * len(experiment.workload.stages)
    summary = observed.summary if observed else None
    return {
        "id": experiment.id,
        **_compare(prediction.predicted.summary, summary),
        "components": prediction.components,
        "stages": [_compare(p, o) for p, o in zip(prediction.predicted.stages, stages, strict=True)],
        "warnings": warnings(record, experiment, prediction),
    }


def _compare(predicted: Observation | None, observed: Observation | None) -> dict[str, Any]:
    return {
        "predicted": _observation(predicted),
        "observed": _observation(observed),
        "error_pct": {
            name: {
                q: error_pct(getattr(getattr(predicted, name), q), getattr(getattr(observed, name), q))
                for q in QUANTITIES
            }
            for name in LATENCIES
        }
        if predicted and observed
        else None,
    }


def _observation(o: Observation | None) -> dict[str, Any] | None:
    if o is None:
        return None
    latencies = {name: _statistic(getattr(o, name)) for name in LATENCIES}
    return {**latencies, "completed": o.completed, "failed": o.failed}


def _statistic(s: Statistic) -> dict[str, float | None]:
    return {q: getattr(s, q) for q in QUANTITIES}
