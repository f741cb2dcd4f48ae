"""The experiments of a run's data as the page shows them: observations, and the numbers of load and deployment."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from evaluator.intervals import figure_of
from evolve.run.folder import RunFolder
from simulator.common.errors import InputError
from simulator.common.json import JsonObject
from simulator.serving.digests import data_hash
from simulator.serving.experiment import Experiment
from simulator.serving.workload import Profile, duration_s, mean_rate, output_lengths, prompt_lengths

FIGURES = ("e2e", "ttft", "itl", "e2e_p99", "ttft_p99")


@dataclass(frozen=True)
class PageData:
    """The experiments that a run fits, and those that it only predicts.

    note: the reason if they are missing or differ from the run's data, else "".
    """

    fitted: tuple[Experiment, ...]
    predicted: tuple[Experiment, ...]
    note: str = ""

    @property
    def all(self) -> tuple[Experiment, ...]:
        return (*self.fitted, *self.predicted)


def data_of(run: RunFolder) -> PageData:
    """The experiments of a run's data as they are today; none if their files are gone or were changed."""
    try:
        fitted, predicted = run.experiments()
    except (InputError, OSError) as e:
        return PageData((), (), f"cannot read the run's experiments: {e}")
    if data_hash(fitted) != run.about.data:
        note = f"the run was made on data {run.about.data}; the experiments are now {data_hash(fitted)}"
        return PageData((), (), note)
    return PageData(tuple(fitted), tuple(predicted))


def experiments_json(data: PageData, ids: Sequence[str]) -> list[JsonObject]:
    """A row per experiment, fitted first; if there are none, rows of the fitted `ids` alone."""
    if not data.fitted:
        nothing = dict.fromkeys(("model", "hardware", "tp", "moe", "workload", "quality", "observed_ms"))
        return [{"id": id, **nothing, "use": "fitted", "fields": {}, "stages": []} for id in ids]
    fitted = [_row(e, "fitted") for e in data.fitted]
    return [*fitted, *(_row(e, "predicted") for e in data.predicted)]


def _row(e: Experiment, use: str) -> JsonObject:
    summary = e.observed.summary if e.observed else None
    return {
        "id": e.id,
        "model": e.model,
        "hardware": e.hardware,
        "tp": e.engine.tensor_parallel,
        "moe": bool(e.facts["is_moe"]),
        "workload": e.workload.name,
        "quality": e.quality,
        "use": use,
        "observed_ms": {name: figure_of(summary, name) for name in FIGURES} if summary else None,
        "fields": {**_load(e), **e.facts},
        "stages": [{"name": f"stage {i}, {stage.label}"} for i, stage in enumerate(e.workload.stages, 1)],
    }


def _load(e: Experiment) -> dict[str, float]:
    load, profile = e.workload, e.workload.source
    return {
        **({} if load.closed else {"rate_rps": mean_rate(load) or 0.0, "duration_s": duration_s(load)}),
        **({"concurrency": float(load.stages[0].users or 0)} if load.closed else {}),
        "prompt_tokens": float(prompt_lengths(load).mean()),
        "shared_prompt_tokens": float(profile.system_prompt_len) if isinstance(profile, Profile) else 0.0,
        "output_tokens": float(output_lengths(load).mean()),
    }
