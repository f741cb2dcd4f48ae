"""Records: what a program was fitted on and what it reached there, kept beside its text as JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from hashlib import sha256
from typing import Any

from evaluator.experiments import data_hash
from evaluator.score import Errors, Prediction
from evolve import __version__
from evolve.run.folder import Run
from evolve.run.ranges import outside, ranges_of, read_ranges
from simulator.experiment.experiment import Experiment


def measured(e: Experiment) -> str | None:
    """16 hex digits of what was measured, whatever the experiment is called; None where nothing was."""
    if e.observed is None:
        return None
    parts = [o for o in (e.observed.summary, *e.observed.stages) if o is not None]
    figures = [[o.e2e_ms.mean, o.ttft_ms.mean, o.completed, o.failed] for o in parts]
    return sha256(json.dumps(figures).encode()).hexdigest()[:16]


def record(
    key: str, fitted: Sequence[Experiment], rows: Sequence[Errors], seeds: Sequence[int], date: str, **more: Any
) -> dict[str, Any]:
    """The record of a program fitted on `fitted`, with its signed errors in percent there, mean of arrival `seeds`.

    `more`: further keys; `constants` is what `constants.certain` makes of `evaluator.fit.uncertainty`.
    """
    return {
        "engine": __version__,
        "data": data_hash(fitted),
        "key": key,
        "date": date,
        "fitted": [e.id for e in fitted],
        "measured": {e.id: measured(e) for e in fitted},
        "ranges": asdict(ranges_of(fitted)),
        **_errors(rows, seeds),
        **more,
    }


def record_of(run: Run, elite: dict[str, Any]) -> dict[str, Any]:
    """The record of an elite of a run."""
    return {
        "engine": run.about.engine,
        "data": run.about.data,
        "key": elite["key"],
        "date": run.about.started,
        "fitted": list(run.about.fitted),
        "ranges": asdict(run.about.ranges),
        **_errors([Errors(*row) for row in elite["rows"]], run.config.score.arrival_seeds),
        "run": str(run.path),
        "id": elite["id"],
    }


def _errors(rows: Sequence[Errors], seeds: Sequence[int]) -> dict[str, Any]:
    signed = {r.experiment: {"e2e": r.e2e, "ttft": r.ttft, "itl": r.itl} for r in rows}
    return {"seeds": list(seeds), "errors_pct": signed}


def warnings(known: dict[str, Any] | None, experiment: Experiment, prediction: Prediction) -> list[str]:
    """What to know before believing a prediction: what the replay met or leaves out, and what lies outside the fit."""
    out = list(experiment.notes)
    if prediction.clamped:
        out.append(f"{prediction.clamped} times were outside [1, 1e10] us and clamped")
    summary = prediction.predicted.summary
    all_of_them = (summary.completed or 0) + (summary.failed or 0) if summary else 0
    if prediction.refused:
        out.append(f"{prediction.refused} of {all_of_them} requests are longer than max_model_len and were refused")
    if prediction.gave_up:
        out.append(f"{prediction.gave_up} of {all_of_them} requests were given up by their client after "
                   f"{experiment.workload.timeout_s:g} s: the latencies are those of the others")  # fmt: skip
    if prediction.preemptions:
        out.append(f"{prediction.preemptions} preemptions: {experiment.facts['kv_blocks']:.0f} KV blocks are too few "
                   "for this load")  # fmt: skip
    if experiment.engine.kv_cpu_offload and (prediction.preemptions or prediction.evicted):
        out.append(f"KV offload to CPU is not replayed: {prediction.evicted} evicted prompts and "
                   f"{prediction.preemptions} preemptions are prefilled again")  # fmt: skip
    mean = summary.e2e_ms.mean if summary else None
    if mean and prediction.components["waiting"] > 0.5 * mean:
        out.append("overloaded: requests wait longer than they are served, and the longer the load lasts")
    if experiment.quality != "clean":
        out.append(f"quality is {experiment.quality}")
    if known is None:
        return [*out, "no record of what this program was fitted on"]
    return [*out, *outside(read_ranges(known), experiment, prediction)]
