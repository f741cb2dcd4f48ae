"""Loads on a deployment: what `evolve probe` can have measured, and what it aims at without a plan."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from evaluator.intervals import WAITING, waiting_share
from evaluator.score import predictions, score_set
from evolve.plan.warnings import kv_tokens
from simulator.common.errors import InputError
from simulator.common.json import JsonObject
from simulator.language.ir import Program
from simulator.serving.bundled import Written, hardware_table, known_models
from simulator.serving.experiment import Experiment, Stage
from simulator.serving.file import experiment_from_mapping
from simulator.serving.known import MEASURED_TPS
from simulator.serving.workload import duration_s, offered_requests

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

# Of an experiments file's entry: what describes the deployment. The load and what was measured are left out.
DEPLOYMENT = ("model", "model_config", "hardware", "engine")
# What says what was measured, under its own load on its own deployment.
MEASURED = ("observed", "quality", "x_components_ms", "x_components_requests")


@dataclass(frozen=True)
class Planned:
    """An experiment, and its entry in an experiments file."""

    experiment: Experiment
    entry: JsonObject
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
        return self.experiment.engine.tensor_parallel * seconds / 60.0

    @property
    def load_generator(self) -> JsonObject:
        """What the config.yaml of inference-perf says of this load. No prompt repeats."""
        w, (prompt, answer) = self.experiment.workload, self.lengths
        prompts = {
            "num_groups": 1, "num_prompts_per_group": round(offered_requests(w)),
            "system_prompt_len": COMMON, "question_len": prompt - COMMON, "output_len": answer,
        }  # fmt: skip
        return {
            "load": {
                "type": "poisson",
                "stages": [{"rate": s.rate, "duration": round(s.duration_s)} for s in w.stages],
            },
            "data": {"type": "shared_prefix", "shared_prefix": prompts},
            "api": {"type": "completion", "streaming": True},
            "server": {"type": "vllm", "model_name": self.experiment.model, "ignore_eos": True},
        }

    def to_json(self) -> JsonObject:
        e, w, (prompt, answer) = self.experiment, self.experiment.workload, self.lengths
        return {
            "id": e.id, "model": e.model, "hardware": e.hardware, "tp": e.engine.tensor_parallel, "workload": w.name,
            "rate": self.rate, "prompt_len": prompt, "output_len": answer,
            "duration_s": w.stages[0].duration_s, "gpu_minutes": self.gpu_minutes,
            "max_model_len": int(e.facts["max_model_len"]),
            "load_generator": self.load_generator,
        }  # fmt: skip


def bases(entries: Sequence[Mapping[str, Any]]) -> list[JsonObject]:
    """The distinct deployments of these entries, whatever their TP degree."""
    found: dict[str, JsonObject] = {}
    for entry in entries:
        base = {key: entry[key] for key in DEPLOYMENT if key in entry}
        found.setdefault(repr((base["model"], base["hardware"])), base)
    return list(found.values())


def on(entry: Mapping[str, Any], model: str | None, hardware: str | None) -> JsonObject:
    """An entry with another model, or on another GPU, if one is named, without what holds for its own alone."""
    changed = {**entry, **{key: name for key, name in (("model", model), ("hardware", hardware)) if name}}
    if model:
        changed.pop("model_config", None)
    if (model or hardware) and "engine" in entry:
        engine: Mapping[str, Any] = entry["engine"] or {}
        changed["engine"] = {name: value for name, value in engine.items() if name != "total_kv_blocks"}
    return changed


def grid(program: Program, base: JsonObject, tps: Sequence[int], shares: Sequence[float], name: str) -> list[Planned]:
    """Every shape of load at these shares of the rate that the program says the deployment sustains, for every TP
    degree that is possible. `name`: with what their ids begin. Raises InputError, with a reason, if none is."""
    ones, why = [], None
    for tp, shape in product(tps or MEASURED_TPS, SHAPES):
        try:
            ones.append((tp, shape, _planned(base, tp, shape, 1.0, name).experiment))
        except InputError as e:  # the weights or a request do not fit, or the heads cannot be split
            why = e
    if why and not ones:
        raise why
    planned = []
    for tp, shape, one in ones:
        most = sustained(program, one)
        rates = [float(f"{share * most:.2g}") for share in shares] if most else []
        planned += [_planned(base, tp, shape, rate, name) for rate in rates]
    return planned


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


def redeployed(
    written: Written, settings: Mapping[str, int | bool | None], where: str, hardware: str | None = None
) -> Experiment:
    """The experiment as if its file had these settings of the engine, and this GPU if one is named, without what was
    measured; None is left out.

    Raises InputError, a line that begins with `where`, for settings that are impossible.
    """
    own = written.experiment
    entry = {name: value for name, value in written.entry.items() if name not in MEASURED}
    entry["engine"] = engine_with(written.entry, settings)
    if hardware and hardware != own.hardware:
        entry["hardware"] = hardware
        entry["engine"].pop("total_kv_blocks", None)
    e = experiment_from_mapping(entry, where, known_models(), hardware_table(), written.files)
    if own.engine.total_kv_blocks is None or e.engine.total_kv_blocks is not None:
        return e
    there = f"tp {own.engine.tensor_parallel}" + f" on {own.hardware}" * (e.hardware != own.hardware)
    text = f"total_kv_blocks was measured with {there}: here it is computed from memory"
    return replace(e, notes=(*e.notes, text))


def engine_with(entry: Mapping[str, Any], settings: Mapping[str, int | bool | None]) -> JsonObject:
    """The engine of an entry with other settings. Where the TP degree is another, `total_kv_blocks` is left out: it was
    measured with the entry's own."""
    given = entry.get("engine") or {}
    engine = {**given, **settings}
    if engine.get("tensor_parallel", 1) != given.get("tensor_parallel", 1):
        engine.pop("total_kv_blocks", None)
    return engine


def _planned(base: JsonObject, tp: int, shape: str, rate: float, name: str) -> Planned:
    prompt, answer = SHAPES[shape]
    duration_s = max(DURATION_S, ROUND_S * math.ceil(REQUESTS / rate / ROUND_S))
    workload = {"name": shape, "arrival": "poisson", "stages": [{"rate": rate, "duration_s": duration_s}],
                "prompt_len": prompt, "output_len": answer}  # fmt: skip

    def planned(settings: Mapping[str, int | bool | None]) -> Planned:
        engine = engine_with(base, {"tensor_parallel": tp, **settings})
        entry = {"id": f"{name}tp{tp}-{shape}-{rate:g}", **base, "engine": engine, "workload": workload}
        experiment = experiment_from_mapping(entry, f"probe: {entry['id']}", known_models(), hardware_table())
        return Planned(experiment, entry, shape)

    run = planned({})
    tokens = int(kv_tokens(run.experiment.facts))
    if tokens >= run.experiment.facts["max_model_len"]:
        return run
    # vLLM does not start with a max_model_len that its KV cache cannot hold
    return planned({"max_model_len": tokens // ROUND_TOKENS * ROUND_TOKENS or tokens})


def names(deployments: Sequence[JsonObject]) -> Iterator[str]:
    """With what the ids of each deployment begin: nothing for a single one, else its model."""
    for base in deployments:
        short = re.sub(r"[^\w.-]+", "-", str(base["model"]).rsplit("/", 1)[-1])
        yield "" if len(deployments) == 1 else f"{short}-"
