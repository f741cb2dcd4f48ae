"""A deployment under one steady load, in the few words of a command line: an experiment without a file."""

from __future__ import annotations

from dataclasses import dataclass

from evaluator.deployments import known_gpu, known_model
from evaluator.experiments import Written, hardware_table, known_models
from simulator.experiment.file import experiment_from_mapping
from simulator.experiment.workload_entry import NO_FILES
from simulator.json import JsonObject

DURATION_S = 600.0


@dataclass(frozen=True)
class Plan:
    """A known model on known GPUs under one steady load: Poisson arrivals at `rate_rps` requests/s for ten minutes.

    prompt_len, output_len: tokens of every prompt, no two of which are alike, and of every answer. tp: the
    tensor-parallel degree. The engine has the defaults of an experiments file.

    >>> evolve.predict("champion", evolve.Plan("llama-3.1-8b", "H100", rate_rps=5, prompt_len=1000, output_len=300))[
    ...     ["experiment", "ttft_mean_ms", "ttft_mean_80_low_ms", "ttft_mean_80_high_ms"]].round(1)
             experiment  ttft_mean_ms  ttft_mean_80_low_ms  ttft_mean_80_high_ms
    0  llama-3.1-8b-tp1          44.5                 42.3                  46.8
    """

    model: str
    hardware: str
    rate_rps: float
    prompt_len: int
    output_len: int
    tp: int = 1

    @property
    def entry(self) -> JsonObject:
        """Its entry in an experiments file."""
        return {
            "id": f"{self.model}-tp{self.tp}",
            "model": self.model,
            "hardware": self.hardware,
            "engine": {"tensor_parallel": self.tp},
            "workload": {
                "name": "plan",
                "stages": [{"rate": self.rate_rps, "duration_s": DURATION_S}],
                "prompt_len": self.prompt_len,
                "output_len": self.output_len,
            },
        }


def written(plan: Plan) -> Written:
    """The plan as an experiment of a file. Raises InputError for an unknown name, and for what cannot be served."""
    known_model(str(plan.model), f"--model {plan.model}")
    known_gpu(str(plan.hardware), f"--hardware {plan.hardware}")
    where = f"--model {plan.model} --hardware {plan.hardware} --tp {plan.tp}"
    experiment = experiment_from_mapping(plan.entry, where, known_models(), hardware_table())
    return Written(experiment, plan.entry, NO_FILES)
