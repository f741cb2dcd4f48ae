"""Digests that identify sets of experiments, and the measurements of one."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from functools import cache

from simulator.common.json import JsonObject
from simulator.schema import HOST
from simulator.serving.defaults import facts_of_engine
from simulator.serving.engine import STANDARD
from simulator.serving.experiment import Experiment
from simulator.serving.gpu import DEFAULT_MFU, gpu_names, measured_gpus
from simulator.serving.observations import Observation
from simulator.serving.spec import Spec
from simulator.serving.trace import Trace
from simulator.serving.workload import Arrival, Workload

LATER = (
    *("kv_cache_dtype", "quantization", "cudagraph_capture_max", "cudagraph_mode", "enforce_eager", "async_scheduling"),
    *("stream_interval", "allreduce_rms_fusion", "data_parallel", "expert_parallel", "pipeline_parallel"),
    *("expert_routing", "prefill_schedule_interval", "kv_offloading_size", "kv_offload_gb_per_s"),
    *("kv_offload_latency_us", "offload_prompt_only", "speculative_method", "num_speculative_tokens"),
    *("speculative_acceptance", "draft_model"),
)
"""Settings that earlier releases did not have."""
FOLLOW = ("window", "issue_us", "is_4bit", "is_widened", "is_blackwell")
"""Fields that earlier releases did not have, which follow from the model's config.json and the GPU."""


def data_hash(experiments: Sequence[Experiment | Spec]) -> str:
    """16 hex digits that change with any figure, setting or fact of the experiments, but not with their order.

    Specs are for what no engine runs as it was asked for, and has no facts.
    """
    every = [_values(e) if isinstance(e, Experiment) else _asked(e) for e in experiments]
    values = sorted(every, key=lambda e: str(e["id"]))
    text = json.dumps(values, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _values(e: Experiment) -> JsonObject:
    """All figures of an experiment. Later fields at their defaults are left out, so that hashes of earlier releases
    stay valid."""
    apart = ("workload", "weight_bits", "spec", "pools", "replicas")
    values = {f.name: getattr(e, f.name) for f in fields(e) if f.name not in apart}
    values |= {name: asdict(values[name]) for name in ("engine", "observed", "components", "mfu") if values[name]}
    engine = {name: value for name, value in values["engine"].items() if name != "given"}
    values["engine"] = {name: x for name, x in engine.items() if name not in LATER or x != getattr(STANDARD, name)}
    follow = facts_of_engine(e.engine)  # from the engine's settings and version
    values["facts"] = {
        name: x for name, x in e.facts.items() if ("s", name) not in HOST and name not in (*follow, *FOLLOW)
    }
    if e.components is None:
        del values["components"]
    if e.mfu == DEFAULT_MFU:
        del values["mfu"]
    if e.replicas > 1:
        values["replicas"] = e.replicas
    if e.pools:
        values["pools"] = {**e.pools.to_entry(), "prefill_facts": dict(e.facts.prefill or {})}
    if (kernels := _kernels(e)) is not None:
        values["kernels"] = kernels
    return {**values, "workload": _load(e.workload)}


def _asked(spec: Spec) -> JsonObject:
    terms = {key: value for key, value in spec.model.config.items() if key != "_name_or_path"}
    about: JsonObject = {"model": spec.model.name, "config": terms, "hardware": spec.gpu.figures()}
    if spec.replicas > 1:
        about["replicas"] = spec.replicas
    if spec.pools:
        about |= spec.pools.to_entry()
    return {"id": spec.id, **about, "engine": spec.engine.to_entry(), "workload": _load(spec.workload)}


def _load(workload: Workload) -> JsonObject:
    load: JsonObject = {name: getattr(workload, name) for name in ("name", "ignore_eos", "timeout_s")}
    load["stages"] = [_given(asdict(stage)) for stage in workload.stages]
    if workload.clients:
        load["clients"] = _given(asdict(workload.clients))
    if isinstance(workload.source, Trace):
        return load | {"trace": workload.source.digest}
    profile = workload.source
    load |= {"prompt_len_mean": None} | _given(asdict(profile))
    load["arrival"] = profile.arrival.kind if profile.arrival == Arrival(profile.arrival.kind) else load["arrival"]
    for name in ("question_len", "output_len"):
        fixed = getattr(profile, name).fixed
        load[name] = load[name] if fixed is None else int(fixed)
    return load


def _kernels(e: Experiment) -> str | None:
    """The tables that its kernels are from, "" without any; None where the GPU's name tells them."""
    tables = e.facts.deployed.gpu.tables if e.facts.deployed else ""
    return None if tables == _own_tables().get(e.hardware, "") else tables


@cache
def _own_tables() -> Mapping[str, str]:
    """The tables of each GPU that ships with its own, by every name."""
    return {name: gpu.kernels for gpu in measured_gpus() for name in (gpu.name, *gpu_names(gpu.name))}


def _given(values: JsonObject) -> JsonObject:
    """The values that are not None, without the names of files that distributions were read from."""
    kept = {name: value for name, value in values.items() if value is not None and name != "file"}
    return {name: _given(value) if isinstance(value, dict) else value for name, value in kept.items()}


def measurement_digest(e: Experiment) -> str | None:
    """16 hex digits that identify the measurements of an experiment; None without measurements."""
    if e.observed is None:
        return None
    parts = [o for o in (e.observed.summary, *e.observed.stages) if o is not None]
    figures = [[*_means(o), o.completed, o.failed] for o in parts]
    return hashlib.sha256(json.dumps(figures).encode()).hexdigest()[:16]


def _means(o: Observation) -> list[float | None]:
    """The observed mean E2E and TTFT in ms. That of ITL only where it is alone: so older digests remain valid."""
    means = [o.e2e_ms.mean, o.ttft_ms.mean]
    return [*means, o.itl_ms.mean] if means == [None, None] else means
