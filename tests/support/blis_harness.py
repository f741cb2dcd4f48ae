"""The host's scorer declared again: it writes a point as files, runs a program on them as it runs `blis`, and takes
TPOT and TTFT from what that writes (sim/kernelmodel/harness of the host, in our own words)."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from paths import ROOT

from simulator.serving.experiment import Experiment
from simulator.serving.workload import Profile

BLIS = (sys.executable, "-c", "from evolve.__main__ import blis; blis()")  # as the console script runs it
HOST_NAMES = {  # of settings that the host's deployment has, by ours
    "max_num_seqs": "max_num_seqs",
    "max_num_batched_tokens": "max_num_batched_tokens",
    "max_model_len": "max_model_len",
    "block_size": "block_size",
    "gpu_memory_utilization": "gpu_memory_utilization",
    "prefix_caching": "enable_prefix_caching",
    "async_scheduling": "async_scheduling",
    "cudagraph_mode": "cudagraph_mode",
    "kv_cache_dtype": "cache_dtype",
}
ELSEWHERE = {"version", "tensor_parallel", "data_parallel", "expert_parallel", "pipeline_parallel", "quantization"}


@dataclass(frozen=True)
class Figures:
    """What the scorer takes from a point."""

    tpot_ms: float
    ttft_ms: float
    completed: int


def lost(e: Experiment) -> list[str]:
    """The settings of an experiment that no document of the host can state."""
    return [key for key in e.engine.to_entry() if key not in HOST_NAMES and key not in ELSEWHERE]


def catalog_name(e: Experiment) -> str:
    """The name of a model in the host's catalog."""
    return e.model.rsplit("/", 1)[-1].lower()


def write_catalog(folder: Path, e: Experiment) -> None:
    """The model's config.json, as its vendor would have it."""
    assert e.spec is not None
    terms = {key: x for key, x in e.spec.model.config.items() if key not in ("generation_config", "_name_or_path")}
    path = folder / "models" / catalog_name(e) / "config.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(terms))


def scenario_text(e: Experiment, name: str, engine: Mapping[str, Any] | None = None) -> str:
    """The scenario and the deployment of an experiment; `engine`: further settings of the deployment."""
    given = e.engine.to_entry()
    settings = {theirs: given[ours] for ours, theirs in HOST_NAMES.items() if ours in given}
    if "cudagraph_mode" in settings:
        settings["cudagraph_mode"] = settings["cudagraph_mode"].upper()
    scenario = {
        "kind": "Scenario",
        "name": name,
        "model": catalog_name(e),
        "coefficients": ["cost-model-primitives"],
        "engine_version": e.engine.version or "0.15.1",
        "cluster": {"hardware": e.hardware.split("-")[0].lower(), "nodes": 1, "gpus_per_node": 8},
    }
    parallel = {
        "tp": e.engine.tensor_parallel,
        "pp": 1,
        "dp": e.engine.data_parallel,
        "enable_expert_parallel": e.engine.expert_parallel > 1,
    }
    pool = {"role": "colocated", "nodes": 1, "parallel": parallel, "engine": {**settings, **(engine or {})}}
    deployment = {"kind": "Deployment", "name": name, "pools": [pool]}
    return yaml.safe_dump_all([scenario, deployment], sort_keys=False)


def labels(e: Experiment) -> tuple[int, int]:
    """The longest prompt and answer, by which a sweep is labelled."""
    assert isinstance(e.workload.source, Profile)
    return int(e.workload.source.question_len.most), int(e.workload.source.output_len.most)


def clients(e: Experiment) -> int:
    return e.workload.stages[0].users or 0


def lengths(label: int) -> dict[str, Any]:
    """A distribution as Go's YAML writes it: the weight of each length, from 0.8 of the label to the label."""
    low = int(0.8 * label)
    return {"type": "empirical", "params": {str(n): 1.0 / (label - low + 1) for n in range(low, label + 1)}}


def workload_spec(users: int, isl: int, osl: int, seed: int) -> dict[str, Any]:
    """The scorer's load of a point, with the keys that Go writes although they were not set."""
    client = {
        **{"id": "closed-loop", "tenant_id": "", "slo_class": "", "rate_fraction": 0, "concurrency": users},
        **{"arrival": {"process": ""}, "input_distribution": lengths(isl), "output_distribution": lengths(osl)},
        "streaming": True,
    }
    about = {"version": "v1", "seed": seed, "category": "language", "clients": [client]}
    return {**about, "aggregate_rate": 0, "num_requests": 12 * users}


def command(folder: Path, catalog: Path, scenario: str, seed: int) -> list[str]:
    """The command line of a point, whose files are in `folder`."""
    files = ["--workload-spec", folder / "workload.yaml", "--seed", seed, "--metrics-path", folder / "metrics.json"]
    roots = ["--scenario", scenario, "--scenarios", folder, "--catalog", catalog, "--registry", folder / "registry"]
    return [*BLIS, "run", *map(str, (*roots, *files)), "--log", "error"]


def run(folder: Path, catalog: Path, scenario: str, spec: Mapping[str, Any], seed: int = 42) -> dict[str, Any]:
    """The metrics that the program writes for a point. Raises RuntimeError with its last lines if it fails."""
    (folder / "workload.yaml").write_text(yaml.safe_dump(dict(spec), sort_keys=False))
    line = command(folder, catalog, scenario, seed)
    ended = subprocess.run(line, capture_output=True, text=True, cwd=ROOT, check=False)
    if ended.returncode:
        raise RuntimeError("\n".join(ended.stderr.splitlines()[-10:]))
    found: dict[str, Any] = json.loads((folder / "metrics.json").read_text())
    check(found)
    return found


def check(found: Mapping[str, Any]) -> None:
    """Every request has ended, in one of three ways."""
    assert found["still_queued"] == found["still_running"] == 0
    ended = found["completed_requests"] + found["timed_out_requests"] + found["dropped_unservable"]
    assert found["injected_requests"] == ended == len(found["requests"])
    order = sorted(r["completion_index"] for r in found["requests"] if "completion_index" in r)
    assert order == list(range(1, found["completed_requests"] + 1))
    assert found["preemption_count"] >= 0


def summarise(requests: Sequence[Mapping[str, Any]], warmup: int) -> Figures:
    """TPOT without the first `warmup` completions, TTFT over all."""
    done = sorted((r for r in requests if r.get("completion_index")), key=lambda r: int(r["completion_index"]))
    measured = done[warmup:] if warmup < len(done) else done
    itl = [r["itl_ms"] for r in measured if r["itl_ms"] > 0]
    ttft = [r["ttft_ms"] for r in done if r["ttft_ms"] > 0]
    return Figures(sum(itl) / len(itl), sum(ttft) / len(ttft), len(done))


def score(folder: Path, e: Experiment, name: str) -> Figures:
    """The scorer's figures of an experiment's deployment at its concurrency and lengths."""
    write_catalog(folder / "catalog", e)
    (folder / f"{name}.yaml").write_text(scenario_text(e, name))
    found = run(folder, folder / "catalog", f"{name}.yaml", workload_spec(clients(e), *labels(e), 42))
    return summarise(found["requests"], 2 * clients(e))


def evaluation_text(runs: Sequence[Experiment], name: str) -> str:
    """What was measured in these runs of one deployment, as the host's EvaluationRun."""
    points = []
    for e in runs:
        assert e.observed and e.observed.summary
        isl, osl = (round((int(0.8 * label) + label) / 2 + 0.01) for label in labels(e))
        seen = e.observed.summary
        latencies = {"ttft_ms": seen.ttft_ms.mean, "itl_ms": seen.itl_ms.mean}
        points.append(
            {"concurrency": clients(e), "output_tokens_per_sec": 1.0, **latencies, "mean_isl": isl, "mean_osl": osl}
        )
    about = {"kind": "EvaluationRun", "name": name, "scenario": name, "harness": "inferencex"}
    return yaml.safe_dump({**about, "engine_version": runs[0].engine.version or "0.15.1", "points": points})
