"""The JSON of `evolve predict`: what a program predicts for experiments, beside what was observed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from evaluator.baselines import datasheet
from evaluator.experiments import data_hash
from evaluator.judge.gates import complaints, deployments_of
from evaluator.metrics import LATENCIES, error_pct
from evaluator.score import Prediction, errors, predictions, score_set, summarise
from evolve import __version__
from evolve.run.program import Source
from evolve.run.records import warnings
from simulator.experiment.experiment import Experiment, Observation, Statistic
from simulator.language.key import key
from simulator.language.unparse import unparse

QUANTITIES = ("mean", "p50", "p90", "p99")


def predict(source: Source, experiments: Sequence[Experiment], seeds: Sequence[int]) -> dict[str, Any]:
    """Replay every experiment under every arrival seed; latencies in ms, averaged over seeds."""
    program = source.complete
    made = predictions(program, score_set(experiments, seeds))
    bound = predictions(datasheet(), score_set(experiments, seeds[:1]))
    rows = [errors(p, e) for p, e in zip(made, experiments, strict=True)]
    total = summarise(rows)
    means = {"e2e": total.e2e, "ttft": total.ttft, "itl": total.itl}
    about = [*complaints(program, deployments_of(experiments)), *source.assumed]
    return {
        "engine": __version__,
        "data": data_hash(experiments),
        "seeds": list(seeds),
        "program": unparse(program),
        "key": key(program),
        "experiments": [_experiment(*row, source.record, about) for row in zip(made, bound, experiments, strict=True)],
        "mean_abs_error_pct": means,
    }


def _experiment(
    prediction: Prediction,
    bound: Prediction,
    experiment: Experiment,
    record: dict[str, Any] | None,
    about: Sequence[str],
) -> dict[str, Any]:
    observed = experiment.observed
    stages = observed.stages if observed and observed.stages else (None,) * len(experiment.workload.stages)
    summary = observed.summary if observed else None
    return {
        "id": experiment.id,
        **_compare(prediction.predicted.summary, summary),
        "components": prediction.components,
        "observed_components": asdict(experiment.components) if experiment.components else None,
        "stages": [_compare(p, o) for p, o in zip(prediction.predicted.stages, stages, strict=True)],
        "warnings": [*beaten(prediction, bound), *warnings(record, experiment, prediction), *about],
    }


def beaten(prediction: Prediction, bound: Prediction) -> list[str]:
    """Where the prediction is faster than the datasheet allows, by more than a fifth: do not plan with it."""

    def compare(what: str, ours: float | None, theirs: float | None) -> str | None:
        if ours is None or theirs is None or ours >= 0.8 * theirs:
            return None
        return f"{what} {ours:.1f} ms is below the datasheet's bound of {theirs:.1f} ms: outside what the program knows"

    e2e, limit = (p.predicted.summary.e2e_ms.mean if p.predicted.summary else None for p in (prediction, bound))
    parts = prediction.components, bound.components
    told = (compare("E2E", e2e, limit), compare("time in prefill steps", *(p["prefill_steps"] for p in parts)))
    return [text for text in told if text]


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
