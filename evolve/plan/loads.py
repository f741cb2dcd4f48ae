"""Loads on a deployment: the runs that `evolve probe` can choose, and its targets without a file."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from evaluator.intervals import waiting_share
from evaluator.metrics import WAITING
from evaluator.score import predictions, score_set
from evolve.plan.warnings import kv_tokens
from simulator.common.errors import InputError
from simulator.common.json import JsonObject
from simulator.language.ir import Program
from simulator.serving.experiment import Experiment, deploy
from simulator.serving.gpu import Gpu
from simulator.serving.known import MEASURED_TPS
from simulator.serving.spec import Spec
from simulator.serving.workload import Stage, duration_s, offered_requests, steady

SHAPES = {"short": (200, 200), "long-prompts": (2000, 200), "long-answers": (500, 800)}  # tokens of prompt and answer
# Shares of the rate that a deployment sustains. Nearer to it fits are unreliable: the mean field leaves out how a burst
# of long prompts slows everything down.
CANDIDATES = (0.2, 0.4, 0.6)
TARGETS = (0.35, 0.65)
DURATION_S = 120.0  # of a run at least
REQUESTS = 100  # that a run has at least: the mean of a few depends on how they happen to arrive
ROUND_S, ROUND_TOKENS = 10.0, 1024  # to multiples of which durations and max_model_len are rounded
COMMON = 16  # tokens with which the load generator begins all prompts of a group
SLOWEST, FASTEST = 0.05, 1000.0  # requests/s between which the sustained rate is looked for
HALVINGS = 6  # of that interval, once it is a factor of two wide
SEED = 1  # of the arrivals


@dataclass(frozen=True)
class ProbeRun:
    """A run that can be measured: what it asks for, and the experiment that this is."""

    spec: Spec
    experiment: Experiment
    shape: str

    @property
    def lengths(self) -> tuple[int, int]:
        """Tokens of every prompt and of every answer."""
        return SHAPES[self.shape]

    @property
    def rate(self) -> float:
        return self.experiment.workload.stages[0].rate

    @property
    def gpu_minutes(self) -> float:
        seconds = duration_s(self.experiment.workload)
        return self.experiment.engine.gpus * seconds / 60.0

    @property
    def load_generator(self) -> JsonObject:
        """The config.yaml of inference-perf for this load. No prompt repeats."""
        w, (prompt, answer) = self.experiment.workload, self.lengths
        prompts = {
            "num_groups": 1,
            "num_prompts_per_group": round(offered_requests(w)),
            "system_prompt_len": COMMON,
            "question_len": prompt - COMMON,
            "output_len": answer,
        }
        stages = [{"rate": s.rate, "duration": round(s.duration_s)} for s in w.stages]
        return {
            "load": {"type": "poisson", "stages": stages},
            "data": {"type": "shared_prefix", "shared_prefix": prompts},
            "api": {"type": "completion", "streaming": True},
            "server": {"type": "vllm", "model_name": self.experiment.model, "ignore_eos": True},
        }

    def to_json(self) -> JsonObject:
        e, w, (prompt, answer) = self.experiment, self.experiment.workload, self.lengths
        return {
            "id": e.id,
            "model": e.model,
            "hardware": e.hardware,
            "tp": e.engine.tensor_parallel,
            "workload": w.name,
            "rate": self.rate,
            "prompt_len": prompt,
            "output_len": answer,
            "duration_s": w.stages[0].duration_s,
            "gpu_minutes": self.gpu_minutes,
            "max_model_len": int(e.facts["max_model_len"]),
            "load_generator": self.load_generator,
        }


def deployments(specs: Sequence[Spec], model: str | None = None, hardware: str | None = None) -> list[Spec]:
    """The distinct deployments of these specs, one replica of each, whatever their TP degree; with another model, or on
    another GPU, if one is named."""
    varied = [replace(spec.vary(model=model, hardware=hardware), replicas=1, notes=(), free={}) for spec in specs]
    distinct: dict[tuple[str, Gpu], Spec] = {}
    for spec in varied:
        distinct.setdefault((spec.model.name, spec.gpu), spec)
    return list(distinct.values())


def new_deployment(model: str, hardware: str, **settings: Any) -> Spec:
    """A known model on known GPUs, with these settings of the engine."""
    return Spec.of(model, hardware, 1.0, *SHAPES["short"]).vary(**settings)


def grid(program: Program, base: Spec, tps: Sequence[int], shares: Sequence[float], prefix: str) -> list[ProbeRun]:
    """Every shape of load at these shares of the rate that the deployment sustains by the program, for every possible
    TP degree. `prefix`: of their ids. Raises InputError, with the reason, if no TP degree is possible."""
    ones, why = [], None
    for tp, shape in product(tps or MEASURED_TPS, SHAPES):
        try:
            ones.append((tp, shape, _run(base, tp, shape, 1.0, prefix).experiment))
        except InputError as e:  # the weights or a request do not fit, or the heads cannot be split
            why = e
    if why and not ones:
        raise why
    runs = []
    for tp, shape, one in ones:
        most = sustained(program, one)
        rates = [float(f"{share * most:.2g}") for share in shares] if most else []
        runs += [_run(base, tp, shape, rate, prefix) for rate in rates]
    return runs


def sustained(program: Program, experiment: Experiment) -> float:
    """The highest rate in requests/s at which the program sees no queue grow, within 2 %; 0 if there is none."""

    def calm(rate: float) -> bool:
        load = replace(experiment.workload, stages=(Stage(rate, DURATION_S),))
        prediction = predictions(program, score_set([replace(experiment, workload=load)], [SEED]))[0]
        return not prediction.refused and waiting_share(prediction) <= WAITING

    low = SLOWEST
    if not calm(low):
        return 0.0
    while low < FASTEST and calm(2.0 * low):
        low *= 2.0
    high = 2.0 * low
    for _ in range(HALVINGS):
        middle = (low + high) / 2.0
        low, high = (middle, high) if calm(middle) else (low, middle)
    return low


def _run(base: Spec, tp: int, shape: str, rate: float, prefix: str) -> ProbeRun:
    lasting_s = max(DURATION_S, ROUND_S * math.ceil(REQUESTS / rate / ROUND_S))
    load = steady(shape, rate, lasting_s, *SHAPES[shape])
    ident = f"{prefix}tp{tp}-{shape}-{rate:g}"
    spec = replace(base.vary(tp=tp, workload=load), id=ident, notes=(), where=f"probe: {ident}")
    facts = deploy(spec).facts
    tokens = int(kv_tokens(facts))
    if tokens < facts["max_model_len"]:  # vLLM does not start with a max_model_len that its KV cache cannot hold
        spec = spec.vary(max_model_len=tokens // ROUND_TOKENS * ROUND_TOKENS or tokens)
    return ProbeRun(spec, deploy(spec), shape)


def prefixes(deployments: Sequence[Spec]) -> Iterator[str]:
    """The prefix of the ids of each deployment: none for a single one, else its model."""
    for spec in deployments:
        short = re.sub(r"[^\w.-]+", "-", spec.model.called.rsplit("/", 1)[-1])
        yield "" if len(deployments) == 1 else f"{short}-"
