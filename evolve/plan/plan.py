"""A deployment under one steady load, in the few words of a command line: an experiment without a file."""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Integral

import numpy as np

from simulator.common.errors import InputError, shown
from simulator.common.json import JsonObject
from simulator.serving.bundled import Written, as_planned, hardware_table, known_models
from simulator.serving.file import Reader, experiment_from_mapping
from simulator.serving.known import known_gpu, known_model
from simulator.serving.workload_entry import NO_FILES

DURATION_S = 600.0


@dataclass(frozen=True)
class Plan:
    """A known model on known GPUs under one steady load: Poisson arrivals at `rate_rps` requests/s for ten minutes.

    prompt_len, output_len: tokens of every prompt, no two of which are alike, and of every answer. tp: the
    tensor-parallel degree. The engine has the defaults of an experiments file. id: what it is called, by default as the
    model; plans that are predicted together need different ones. Raises InputError for what cannot be meant; what its
    engine cannot serve is said where it is predicted.

    >>> evolve.predict("champion", evolve.Plan("llama-3.1-8b", "H100", rate_rps=5, prompt_len=1000, output_len=300))[
    ...     ["experiment", "ttft_mean_ms", "ttft_mean_80_low_ms", "ttft_mean_80_high_ms"]].round(1)
         experiment  ttft_mean_ms  ttft_mean_80_low_ms  ttft_mean_80_high_ms
    0  llama-3.1-8b          44.4                 42.2                  46.8
    """

    model: str
    hardware: str
    rate_rps: float
    prompt_len: int
    output_len: int
    tp: int = 1
    id: str = ""

    def __post_init__(self) -> None:
        written(self, as_planned)

    @property
    def entry(self) -> JsonObject:
        """Its entry in an experiments file."""
        return {
            "id": self.id or self.model,
            "model": self.model,
            "hardware": self.hardware,
            "engine": {"tensor_parallel": _plain(self.tp)},
            "workload": {
                "name": "plan",
                "stages": [{"rate": _plain(self.rate_rps), "duration_s": DURATION_S}],
                "prompt_len": _plain(self.prompt_len),
                "output_len": _plain(self.output_len),
            },
        }


def written(plan: Plan, read: Reader = experiment_from_mapping) -> Written:
    """The plan as an experiment of a file, read by `read`. Raises InputError for what cannot be meant or served."""
    known_model(str(plan.model), f"model {plan.model}")
    known_gpu(str(plan.hardware), f"hardware {plan.hardware}")
    where = f"{plan.model} on {plan.hardware}, TP {plan.tp}"
    for name, value in (("prompt_len", plan.prompt_len), ("output_len", plan.output_len)):
        if isinstance(value, bool) or not isinstance(value, Integral):
            must = f"{name} must be a whole number of tokens, got {shown(value)}"
            raise InputError(f"{where}: {must}: give one, or a file of experiments for a distribution")
    experiment = read(plan.entry, where, known_models(), hardware_table(), NO_FILES)
    tokens, most = plan.prompt_len + plan.output_len, int(experiment.facts["max_model_len"])
    if tokens > most:
        raise InputError(f"{where}: prompt and answer have {tokens:,} tokens, at most {most:,} fit: give shorter ones")
    return Written(experiment, plan.entry, NO_FILES)


def _plain(value: object) -> object:
    """A number of numpy's as one of Python's, which files have."""
    return value.item() if isinstance(value, np.generic) else value
