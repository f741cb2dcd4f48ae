"""Folders of load-generator reports as experiments: the 16 that ship come out equal, damaged ones are said to be so."""

from __future__ import annotations

import copy
import json
import math
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from paths import SHARED

from evolve.ingest.derive.matching import join
from evolve.ingest.experiment import describe
from evolve.ingest.folder import Inputs, derive
from evolve.ingest.options import Given, check_hardware, parse_overrides
from evolve.ingest.output import experiments_yaml
from evolve.ingest.quality import Quality, judge
from evolve.ingest.read.files import MOST_JSON_BYTES, MOST_YAML_BYTES
from evolve.ingest.read.log import LONGEST_LINE, EngineLog, read_log
from evolve.ingest.read.reports import read_reports
from evolve.ingest.read.settings import read_settings
from evolve.ingest.read.sources import Folder, SourceName, find, look, parse_name
from evolve.ingest.read.values import Finding, FolderFindings
from simulator.common import documents
from simulator.common.errors import InputError
from simulator.serving.bundled import bundled_file, hardware_table, load_experiments, model_table

RAW = SHARED / "data" / "raw" / "h100_vllm_0_15_1"
SAMPLE = SHARED / "samples" / "20260101-000000-tiny-llama-tp1-general"
shared = pytest.mark.skipif(not RAW.is_dir(), reason="the published folders are not on this machine")

NAME = "20300101-120000-llama-2-7b-hf-tp1-chat"
EXP_CONFIG = {
    "model": "meta-llama/Llama-2-7b-hf",
    "tensor_parallelism": 1,
    "max_model_len": 2048,
    "max_num_batched_tokens": 2560,
    "max_num_seqs": 32,
    "app": "inference-perf",
}
CONFIG: dict[str, Any] = {
    "api": {"type": "completion", "streaming": True},
    "data": {
        "type": "shared_prefix",
        "shared_prefix": {
            "num_groups": 2, "num_prompts_per_group": 5, "system_prompt_len": 20, "question_len": 80, "output_len": 11,
        },
    },
    "load": {"type": "constant", "stages": [{"rate": 1.0, "duration": 10}, {"rate": 2.0, "duration": 10}],
             "request_timeout": None},
    "server": {"model_name": "meta-llama/Llama-2-7b-hf", "base_url": "http://192.0.2.7:8000", "ignore_eos": True},
    "storage": {"local_storage": {"path": "/workspace/data/secret/results"}},
}  # fmt: skip
PROFILE: dict[str, Any] = {
    **CONFIG,
    "data": {
        "type": "shared_prefix",
        "shared_prefix": {
            "num_unique_system_prompts": 3, "num_users_per_system_prompt": 4, "system_prompt_len": 20,
            "question_len": 80, "output_len": 11, "enable_multi_turn_chat": True,
        },
    },
}  # fmt: skip
LOG = """\
2030-01-01 12:00:00,000 INFO vllm.entrypoints: vLLM API server version 0.15.1
2030-01-01 12:00:01,000 INFO vllm.config.vllm: Asynchronous scheduling is enabled.
2030-01-01 12:00:02,000 INFO vllm.v1.engine.core: Initializing a V1 LLM engine (v0.15.2) with config: model='/mnt/m', \
dtype=torch.bfloat16, max_seq_len=2048, tensor_parallel_size=1, kv_cache_dtype=auto, enable_prefix_caching=True, \
enable_chunked_prefill=False, kv_connector='OffloadingConnector', {'cpu_bytes_to_use': 1048576.0}
2030-01-01 12:00:03,000 INFO vllm.v1.worker.gpu_worker: Available KV cache memory: 1.50 GiB
2030-01-01 12:00:04,000 INFO vllm.v1.core.kv_cache_utils: GPU KV cache size: 16,416 tokens
2030-01-01 12:00:05,000 INFO vllm.v1.worker: Allocating a cross layer KV cache of shape (1026, 4, 2, 16, 2, 64)
2030-01-01 12:00:06,000 INFO vllm.v1.core.kv_cache_utils: GPU KV cache size: 99 tokens
"""
FILES = (
    "exp-config.yaml",
    "profile.yaml",
    "vllm.log",
    "results/config.yaml",
    "results/summary_lifecycle_metrics.json",
    "results/stage_0_lifecycle_metrics.json",
    "results/stage_1_lifecycle_metrics.json",
)
DUMPER: Any = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
PRIVATE = ("/workspace", "/mnt", "192.0.2", "localhost", "secret")


def dist(mean: float) -> dict[str, float]:
    factors = {"min": 0.5, "p1": 0.6, "median": 0.9, "p90": 1.5, "p99": 2.0, "max": 2.5}
    return {"mean": mean, **{name: mean * f for name, f in factors.items()}}


def report(completed: int, e2e: float, ttft: float, failed: int = 0, rate: float | None = None) -> dict[str, Any]:
    load: dict[str, Any] = {"count": completed + failed, "schedule_delay": dist(0.001)}
    if rate:
        load |= {"send_duration": 10.0, "requested_rate": rate, "achieved_rate": rate * 1.001}
    return {
        "load_summary": load,
        "successes": {
            "count": completed,
            "latency": {
                "request_latency": dist(e2e),
                "time_to_first_token": dist(ttft),
                "inter_token_latency": dist((e2e - ttft) / 21),
            },
            "prompt_len": dist(104.3),
            "output_len": dist(11.5),
        },
        "failures": {"count": failed, "request_latency": dist(3.0) if failed else None, "prompt_len": None},
    }


def reports() -> dict[str, Any]:
    """10 requests of 1.0 s, 20 of 1.6 s: together 30 of 1.4 s."""
    return {
        "summary": report(30, 1.4, 0.07),
        "stage_0": report(10, 1.0, 0.05, rate=1.0),
        "stage_1": report(20, 1.6, 0.08, rate=2.0),
    }


def build(
    parent: Path,
    name: str = NAME,
    exp_config: Any = EXP_CONFIG,
    config: Any = CONFIG,
    profile: Any = PROFILE,
    log: str | None = LOG,
    figures: dict[str, Any] | None = None,
) -> Path:
    """A folder with figures of this file; None leaves a file out."""
    path = parent / name
    (path / "results").mkdir(parents=True)
    texts = {"exp-config.yaml": exp_config, "results/config.yaml": config, "profile.yaml": profile}
    for file, value in texts.items():
        if value is not None:
            (path / file).write_text(yaml.dump(value, Dumper=DUMPER))
    if log is not None:
        (path / "vllm.log").write_text(log)
    for key, value in (reports() if figures is None else figures).items():
        (path / "results" / f"{key}_lifecycle_metrics.json").write_text(json.dumps(value))
    return path


@dataclass(frozen=True)
class Entry:
    """An entry of an experiments file as a mapping, None where there is none."""

    mapping: dict[str, Any] | None


def ingest(path: Path, given: Given | None = None, blocks: int | None = None) -> tuple[Entry, list[Finding], Quality]:
    """Everything this part of the ingestion does with one folder, and all findings; the text is sound."""
    entry, said, quality = read(path, given, blocks)
    if entry.mapping:
        text = experiments_yaml([entry.mapping])
        assert not any(word in text for word in PRIVATE)
        assert yaml.load(text, LOADER)["experiments"] == [entry.mapping]
    return entry, said, quality


def read(path: Path, given: Given | None = None, blocks: int | None = None) -> tuple[Entry, list[Finding], Quality]:
    """The folder without its traces and client rows; `blocks`: the KV blocks that a sampled step of them says."""
    folder = look(path)
    settings, log, found = read_settings(folder), read_log(folder.log), read_reports(folder)
    said = FolderFindings([*folder.findings, *settings.findings, *log.findings, *found.findings])
    inputs = Inputs(
        folder, settings, log, found, traces=None, journeys=(), clients=None, chains=None, kv_events=0,
        joined=join(None, (), None), epoch=None, tally={},
    )  # fmt: skip
    derived = derive(inputs, path, said)
    if blocks is not None:
        derived = replace(derived, sampled={"kv_blocks_total": np.array([blocks])})
    entry, quality = describe(inputs, derived, path, given or Given("H100"), said)
    for f in said:
        assert f.count >= 1 and f.text == " ".join(f.text.split()) and "\n" not in f.source
        assert not any(word in f.text + f.source for word in PRIVATE), f
    return Entry(entry.to_json() if entry else None), said, quality


def texts(said: list[Finding]) -> str:
    return "\n".join(f"{f.source}: {f.text}" for f in said)


# ---- the published folders


def published() -> list[Path]:
    return sorted(RAW.iterdir()) if RAW.is_dir() else []


@shared
@pytest.mark.parametrize("path", published(), ids=lambda p: p.name)
def test_a_published_folder_gives_the_experiment_that_ships(path: Path) -> None:
    shipped = documents.parse_yaml(resources.files("configs").joinpath("experiments_h100.yaml").read_bytes(), "", "")
    expected = next(e for e in shipped["experiments"] if e["source_run"] == path.name)  # type: ignore[index,call-overload]
    given = Given("H100", parse_overrides(["version=0.15.1", "kv_cpu_offload=true"]))
    entry, said, quality = ingest(path, given, expected["engine"].get("total_kv_blocks"))
    assert entry.mapping is not None
    notes = entry.mapping.pop("x_note", [])
    assert entry.mapping == expected
    assert list(entry.mapping) == list(expected)
    assert list(entry.mapping["engine"]) == list(expected["engine"])
    assert notes == list(quality.reasons) and bool(notes) == (expected["quality"] == "overloaded")
    assert "prompts_per_group" in texts(said)  # every profile asked for other prompts than ran


@shared
def test_the_published_folders_as_a_file_are_read_back_as_the_experiments_that_ship(tmp_path: Path) -> None:
    folders, said = find([RAW])
    assert [(f.count, f.text) for f in said] == [(16, "contains 16 folders of experiments, which are read")]
    given = Given("H100", parse_overrides(["version=0.15.1", "kv_cpu_offload=true"]))
    entries = [e.mapping for f in folders if (e := ingest(f.path, given)[0]).mapping]
    file = tmp_path / "experiments.yaml"
    file.write_text(experiments_yaml(entries))
    read = {e.id: e for e in load_experiments(file)}
    shipped = {e.id: e for e in bundled_file("experiments_h100.yaml")}
    assert read.keys() == shipped.keys()
    for ident, experiment in shipped.items():
        blocks = replace(read[ident].engine, total_kv_blocks=experiment.engine.total_kv_blocks)
        assert read[ident].workload == experiment.workload and read[ident].observed == experiment.observed
        assert blocks == experiment.engine and read[ident].quality == experiment.quality


@shared
def test_the_figures_of_the_published_folders_are_those_of_the_specification() -> None:
    """84.75, 68.63 and 33.33 % failed; the fourth, 4 of 4,800, waits 120 s (trace-formats, 5.4)."""
    reasons = {}
    for path in published():
        _, said, quality = ingest(path)
        reasons[path.name] = quality.reasons
        assert (quality.timeout_s == 300.0) == bool(quality.reasons)
        assert ("failed at the client's timeout of 300 s" in texts(said)) == bool(quality.reasons)
    overloaded = {name: why for name, why in reasons.items() if why}
    assert [why[0][:18] for why in overloaded.values()] == [
        "84.75 % of 4,800 r", "33.33 % of 4,800 r", "68.63 % of 4,800 r", "requests wait for ",
    ]  # fmt: skip
    assert "mean TTFT 120.2 s" in overloaded["20260218-160939-codellama-34b-tp2-reasoning"][0]


@shared
def test_the_sample_folder_gives_the_blocks_of_its_expected_file() -> None:
    expected = json.loads((SAMPLE.parent / "expected.json").read_text())["kv"]
    log = read_log(look(SAMPLE).log)
    assert log.gpu_blocks == expected["gpu_blocks_from_log"] == 64
    assert log.usable_blocks == expected["gpu_blocks_from_trace"] == 63
    assert log.cpu_blocks(1) == expected["cpu_blocks"] == 40
    entry, said, quality = ingest(SAMPLE)
    assert entry.mapping is None and "example-org/tiny-llama-sim is not in the model table" in texts(said)
    assert quality.reasons == ("15.38 % of 13 requests failed",) and quality.timeout_s is None
    entry, said, quality = ingest(SAMPLE, Given("H100", models={"example-org/tiny-llama-sim": TINY}))
    assert entry.mapping is not None and entry.mapping["engine"]["total_kv_blocks"] == 63
    assert entry.mapping["engine"]["kv_cpu_offload"] is True
    assert entry.mapping["model_config"] == TINY


TINY = {"num_hidden_layers": 4, "hidden_size": 256, "num_attention_heads": 4, "num_key_value_heads": 2,
        "intermediate_size": 512, "vocab_size": 32000, "max_position_embeddings": 1024}  # fmt: skip


# ---- a folder of our own


def test_a_folder_gives_an_experiment(tmp_path: Path) -> None:
    entry, said, quality = ingest(build(tmp_path))
    assert entry.mapping == {
        "id": "llama-2-7b-tp1-chat",
        "source_run": NAME,
        "model": "meta-llama/Llama-2-7b-hf",
        "hardware": "H100-SXM-80GB",
        "engine": {
            "name": "vllm", "version": "0.15.1", "tensor_parallel": 1, "max_num_seqs": 32,
            "max_num_batched_tokens": 2560, "max_model_len": 2048, "block_size": 16, "gpu_memory_utilization": 0.9,
            "chunked_prefill": False, "prefix_caching": True, "kv_cpu_offload": True, "total_kv_blocks": 1025,
        },
        "workload": {
            "name": "chat", "arrival": "constant",
            "stages": [{"rate": 1.0, "duration_s": 10.0}, {"rate": 2.0, "duration_s": 10.0}],
            "shared_prefix": {"groups": 2, "prompts_per_group": 5, "system_prompt_len": 20, "question_len": 80},
            "prompt_len_mean": 104.3, "output_len": 11, "ignore_eos": True,
        },
        "observed": {
            "summary": {
                "e2e_ms": {"mean": 1400.0, "p50": 1260.0, "p90": 2100.0, "p99": 2800.0},
                "ttft_ms": {"mean": 70.0, "p50": 63.0, "p90": 105.0, "p99": 140.0},
                "completed": 30, "failed": 0, "prompt_len_mean": 104.3, "reported_output_len_mean": 11.5,
                "harness_itl_mean_ms": 63.3333, "itl_mean_ms": 133.0,
            },
            "stages": [
                {
                    "e2e_ms": {"mean": 1000.0, "p50": 900.0, "p90": 1500.0, "p99": 2000.0},
                    "ttft_ms": {"mean": 50.0, "p50": 45.0, "p90": 75.0, "p99": 100.0},
                    "completed": 10, "failed": 0, "prompt_len_mean": 104.3, "reported_output_len_mean": 11.5,
                    "harness_itl_mean_ms": 45.2381, "itl_mean_ms": 95.0,
                },
                {
                    "e2e_ms": {"mean": 1600.0, "p50": 1440.0, "p90": 2400.0, "p99": 3200.0},
                    "ttft_ms": {"mean": 80.0, "p50": 72.0, "p90": 120.0, "p99": 160.0},
                    "completed": 20, "failed": 0, "prompt_len_mean": 104.3, "reported_output_len_mean": 11.5,
                    "harness_itl_mean_ms": 72.381, "itl_mean_ms": 152.0,
                },
            ],
        },
        "quality": "clean",
    }  # fmt: skip
    assert quality == Quality("clean", (), None, ())
    assert texts(said) == (
        "profile.yaml: requested groups 3, ran 2; prompts_per_group 4, ran 5; several turns, ran a single turn: "
        "results/config.yaml is what ran, and is used\n"
        "engine: assuming block_size 16, gpu_memory_utilization 0.9: no source gives them; "
        "use --engine KEY=VALUE if it was different"
    )


def test_only_the_profile_is_left(tmp_path: Path) -> None:
    entry, said, _ = ingest(build(tmp_path, config=None))
    assert entry.mapping is not None
    assert entry.mapping["workload"]["shared_prefix"]["groups"] == 3
    assert "profile.yaml: is what was requested, not necessarily what ran: results/config.yaml gives no load" in texts(
        said
    )
    assert entry.mapping["x_note"] == [
        "the load is what profile.yaml requested, not necessarily what ran: no config.yaml gives it",
        "a chat with several turns ran, replayed as single turns",
    ]


def test_a_chat_of_several_turns_that_ran_is_not_replayed_and_that_is_said(tmp_path: Path) -> None:
    config = copy.deepcopy(CONFIG)
    config["data"]["shared_prefix"]["enable_multi_turn_chat"] = True
    entry, said, _ = ingest(build(tmp_path, config=config))
    assert "results/config.yaml: a chat with several turns ran: replayed as single turns" in texts(said)
    assert entry.mapping and entry.mapping["x_note"] == ["a chat with several turns ran, replayed as single turns"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"load": {"type": "concurrent", "stages": [{"rate": 1, "duration": 1}]}}, "neither constant nor poisson"),
        ({"load": {"type": "constant", "stages": []}}, "load.stages must be a list of stages that is not empty"),
        ({"load": {"type": "constant", "stages": [{"rate": 1}]}}, "stage 0 has no usable rate and duration"),
        ({"data": {"type": "random"}}, "data.type is not shared_prefix"),
        ({"data": None}, "does not give shared_prefix, output_len"),
    ],
)
def test_a_load_that_cannot_be_replayed_gives_no_experiment(tmp_path: Path, change: Any, said: str) -> None:
    entry, findings, _ = ingest(build(tmp_path, config={**CONFIG, **change}, profile=None))
    assert entry.mapping is None
    assert said in texts(findings) and f"{NAME}: no experiment is written: " in texts(findings)


def test_without_exp_config_the_other_sources_stand_in(tmp_path: Path) -> None:
    entry, said, _ = ingest(build(tmp_path, exp_config=None))
    assert entry.mapping is not None
    assert entry.mapping["engine"]["max_num_seqs"] == 128 and entry.mapping["engine"]["max_model_len"] == 2048
    assert "gives no tensor_parallelism: using 1 from the folder's name" in texts(said)
    assert "results/config.yaml: names the model, exp-config.yaml does not" in texts(said)
    assert "engine: assuming max_num_seqs 128, max_num_batched_tokens 2048, block_size 16" in texts(said)


def test_sources_that_disagree_are_said(tmp_path: Path) -> None:
    path = build(tmp_path, NAME.replace("tp1", "tp4"), exp_config={**EXP_CONFIG, "tensor_parallelism": 2,
                 "model": "llama-2-70b", "data_parallelism": 2})  # fmt: skip
    entry, said, _ = ingest(path, blocks=900)
    assert entry.mapping is not None and entry.mapping["model"] == "meta-llama/Llama-2-70b-hf"
    assert entry.mapping["engine"]["total_kv_blocks"] == 900
    for text in (
        "tensor_parallelism is 2, the folder's name says 4: the file is used",
        "vllm.log: tensor_parallel is 1, exp-config.yaml or the folder's name says 2: that is used",
        "vllm.log: 1,025 KV blocks, the traces say 900: the traces are used",
        "served model meta-llama/Llama-2-7b-hf, exp-config.yaml says llama-2-70b: exp-config.yaml is used",
        "2 data-parallel replicas: replayed as one engine",
    ):
        assert text in texts(said)


def test_a_path_in_place_of_a_model_is_not_carried_along(tmp_path: Path) -> None:
    config = {**CONFIG, "server": {**CONFIG["server"], "model_name": "/mnt/secret/other"}}
    path = build(tmp_path, exp_config={**EXP_CONFIG, "model": "/mnt/secret/llama-2-7b/"}, config=config)
    entry, said, _ = ingest(path)
    assert entry.mapping is not None and entry.mapping["model"] == "meta-llama/Llama-2-7b-hf"
    assert "model is not a Hugging Face id: its last part, llama-2-7b, is used" in texts(said)


def test_a_cache_too_small_for_a_request_gives_no_experiment(tmp_path: Path) -> None:
    entry, said, _ = ingest(build(tmp_path), blocks=3)
    assert entry.mapping is None
    assert "no experiment is written" in texts(said) and "holds 48 tokens, and one request needs 116" in texts(said)


# ---- reports


def test_without_a_summary_the_stages_stand_for_the_run(tmp_path: Path) -> None:
    figures = reports()
    del figures["summary"]
    entry, said, _ = ingest(build(tmp_path, figures=figures))
    assert entry.mapping is not None and list(entry.mapping["observed"]) == ["stages"]
    assert entry.mapping["workload"]["prompt_len_mean"] == 104.3
    assert "results/: no readable summary report: the stages are used for the run" in texts(said)


def test_without_stages_a_run_is_known_as_a_whole(tmp_path: Path) -> None:
    entry, said, _ = ingest(build(tmp_path, figures={"summary": report(30, 1.4, 0.07)}))
    assert entry.mapping is not None and list(entry.mapping["observed"]) == ["summary"]
    assert "reports: no stage has a report: the run can be predicted, but not fitted" in texts(said)


def test_the_summary_stands_for_an_only_stage(tmp_path: Path) -> None:
    config = {**CONFIG, "load": {"type": "constant", "stages": [{"rate": 3, "duration": 10}]}}
    entry, said, _ = ingest(build(tmp_path, config=config, figures={"summary": report(30, 1.4, 0.07)}))
    assert entry.mapping is not None
    assert entry.mapping["observed"]["stages"] == [entry.mapping["observed"]["summary"]]
    assert "is used for the only stage as well" in texts(said)


def test_a_missing_stage_leaves_its_place_empty(tmp_path: Path) -> None:
    figures = reports()
    del figures["stage_0"]
    entry, said, _ = ingest(build(tmp_path, figures=figures))
    assert entry.mapping is not None
    first, second = entry.mapping["observed"]["stages"]
    assert first == {} and second["e2e_ms"]["mean"] == 1600.0
    assert "results/: no report of stage 0" in texts(said) and "stage 0 of 2 has no report" in texts(said)


def test_stages_are_sorted_by_number_and_those_beyond_the_load_left_out(tmp_path: Path) -> None:
    config = copy.deepcopy(CONFIG)
    config["load"]["stages"] = [{"rate": 1.0, "duration": 10}] * 11
    figures = {f"stage_{k}": report(10, 1.0 + k, 0.05, rate=1.0) for k in range(12)}
    entry, said, _ = ingest(build(tmp_path, config=config, figures=figures))
    assert entry.mapping is not None
    means = [s["e2e_ms"]["mean"] for s in entry.mapping["observed"]["stages"]]
    assert means == [1000.0 * (1 + k) for k in range(11)]
    assert "reports: stage 11: results/config.yaml has 11 stages: left out" in texts(said)


def test_counts_that_do_not_add_up_are_said(tmp_path: Path) -> None:
    figures = reports()
    figures["summary"]["load_summary"]["count"] = 31
    figures["stage_1"]["successes"]["count"] = 19
    _, said, _ = ingest(build(tmp_path, figures=figures))
    assert "31 requests were sent, but 30 succeeded and 0 failed: they do not add up" in texts(said)
    assert "completed: 30, but the stages add up to 29: not reports of one run" in texts(said)


def test_no_success_at_all(tmp_path: Path) -> None:
    figures = {"summary": report(0, 1.0, 0.1, failed=30), "stage_0": report(0, 1.0, 0.1, failed=30)}
    for r in figures.values():
        r["successes"] |= {"latency": dict.fromkeys(r["successes"]["latency"]), "prompt_len": None, "output_len": None}
    entry, _, quality = ingest(build(tmp_path, figures=figures))
    assert entry.mapping is not None
    assert entry.mapping["observed"]["summary"] == {"completed": 0, "failed": 30}
    assert quality.reasons == ("100.00 % of 30 requests failed",)
    assert "prompt_len_mean" not in entry.mapping["workload"]


@pytest.mark.parametrize(
    ("statistics", "said"),
    [
        ({"median": 9.0, "p90": 8.0}, "request_latency: median is above p90, which is impossible: left out"),
        ({"mean": 90.0}, "request_latency: the mean is not between min and max: left out"),
        (dict.fromkeys(dist(1), 0.001), "the mean TTFT is above the mean E2E, which is impossible: TTFT is left out"),
    ],
)
def test_statistics_that_contradict_each_other_are_left_out(tmp_path: Path, statistics: Any, said: str) -> None:
    figures = reports()
    figures["stage_0"]["successes"]["latency"]["request_latency"] |= statistics
    entry, findings, _ = ingest(build(tmp_path, figures=figures))
    assert entry.mapping is not None and "itl_mean_ms" not in entry.mapping["observed"]["stages"][0]
    assert said in texts(findings)


# ---- quality


def quality_of(tmp_path: Path, **stage_1: Any) -> Quality:
    figures = reports()
    for path, value in stage_1.items():
        node = figures["stage_1"]
        *steps, last = path.split("__")
        for step in steps:
            node = node[step]
        node[last] = value
    return ingest(build(tmp_path, figures=figures))[2]


def test_a_stage_that_waits_overloads_a_run_whose_mean_does_not(tmp_path: Path) -> None:
    waits = {"mean": 1.5, "min": 0.05, "median": 1.5, "p90": 2.0, "p99": 3.0, "max": 3.0}
    quality = quality_of(tmp_path, successes__latency__time_to_first_token=waits)
    assert quality.label == "overloaded"
    assert quality.reasons == (
        "stage 1: requests wait for the engine: mean TTFT 1.5 s is 94 % of mean E2E, 30 times that of the quickest request",
    )


@pytest.mark.parametrize(
    "ttft",
    [
        {"mean": 1.5, "min": 0.5, "median": 1.5, "p90": 2.0, "p99": 3.0, "max": 3.0},  # long prompts: all are slow
        {"mean": 0.9, "min": 0.01, "median": 0.9, "p90": 1.0, "p99": 1.0, "max": 1.0},  # cached and not
    ],
)
def test_slow_first_tokens_are_not_always_a_queue(tmp_path: Path, ttft: Any) -> None:
    assert quality_of(tmp_path, successes__latency__time_to_first_token=ttft).label == "clean"


def test_a_load_that_was_not_sent_is_a_reason(tmp_path: Path) -> None:
    quality = quality_of(tmp_path, load_summary__achieved_rate=1.8)
    assert quality.reasons == ("stage 1: only 1.8 of 2 requested requests/s were sent",)
    (tmp_path / "b").mkdir()
    assert quality_of(tmp_path / "b", load_summary__achieved_rate=1.95).label == "clean"


def test_a_tenth_of_failures_is_borne_and_more_is_not(tmp_path: Path) -> None:
    figures = {"summary": report(27, 1.4, 0.07, failed=3)}
    path = build(tmp_path / "a", figures=figures)
    assert ingest(path)[2].label == "clean"
    figures = {"summary": report(26, 1.4, 0.07, failed=3)}
    path = build(tmp_path / "b", figures=figures)
    assert ingest(path)[2].reasons == ("10.34 % of 29 requests failed",)


@pytest.mark.parametrize(
    ("failed", "timeout"),
    [
        ({"mean": 60.2, "min": 60.001, "median": 60.2, "max": 60.9}, 60.0),
        ({"mean": 40.0, "min": 0.2, "median": 60.0, "max": 60.9}, None),  # some failed otherwise
        ({"mean": 58.0, "min": 57.0, "median": 58.0, "max": 60.0}, None),  # at no round time
        ({"mean": 1.0, "min": 1.0, "median": 1.0, "max": 1.0}, None),
    ],
)
def test_the_timeout_is_taken_where_failures_show_it(tmp_path: Path, failed: Any, timeout: float | None) -> None:
    figures = {"summary": report(29, 1.4, 0.07, failed=1)}
    figures["summary"]["failures"]["request_latency"] = failed
    entry, said, quality = ingest(build(tmp_path, figures=figures))
    assert quality.timeout_s == timeout and entry.mapping is not None
    assert entry.mapping["workload"].get("timeout_s") == timeout
    assert ("no timeout is inferred" in texts(said)) == (timeout is None)


def test_a_timeout_of_the_settings_counts_without_failures(tmp_path: Path) -> None:
    config = copy.deepcopy(CONFIG)
    config["load"]["request_timeout"] = 45.0
    assert ingest(build(tmp_path, config=config))[2].timeout_s == 45.0


def test_reports_of_another_load_are_said(tmp_path: Path) -> None:
    figures = reports()
    figures["stage_0"]["load_summary"]["requested_rate"] = 4.0
    figures["stage_1"] = report(8, 1.6, 0.08, rate=2.0)
    _, said, _ = ingest(build(tmp_path, figures=figures))
    assert "requested 4 requests/s, results/config.yaml says 1: from another run?" in texts(said)
    assert "8 requests, results/config.yaml offers 20: was the stage cut short?" in texts(said)


def test_reasons_found_elsewhere_count(tmp_path: Path) -> None:
    folder = look(build(tmp_path))
    quality = judge(read_reports(folder), read_settings(folder).load, ["128 requests waited on average"])
    assert quality.label == "overloaded" and quality.reasons == ("128 requests waited on average",)


def test_none_of_the_runs_that_ship_as_clean_is_near_the_rule() -> None:
    """TTFT_OF_E2E's words: at most 0.022 in any stage of a clean run, at least 0.65 in an overloaded one."""
    for name in ("experiments_h100.yaml", "experiments_h100_further.yaml"):
        for e in bundled_file(name):
            assert e.observed is not None
            shares = [s.ttft_ms.mean / s.e2e_ms.mean for s in e.observed.stages if s.ttft_ms.mean and s.e2e_ms.mean]
            assert max(shares) <= 0.022 if e.quality == "clean" else min(shares) >= 0.65


# ---- the log


def test_the_first_line_counts(tmp_path: Path) -> None:
    log = read_log(look(build(tmp_path)).log)
    assert replace(log, findings=()) == EngineLog(
        kv_cache_tokens=16416,
        kv_cache_gib=1.5,
        cpu_bytes=1048576.0,
        shape=(1026, 4, 2, 16, 2, 64),
        async_scheduling=True,
        version="0.15.1",
        prefix_caching=True,
        chunked_prefill=False,
        tensor_parallel=1,
        max_model_len=2048,
        dtype="bfloat16",
        kv_cache_dtype="auto",
        connector="OffloadingConnector",
    )
    # 4 x 2 x 16 x 2 x 64 numbers of 2 bytes = 32768 bytes a block and rank
    assert log.cpu_blocks(1) == 32 and log.cpu_blocks(2) == 16
    assert replace(log, kv_cache_dtype="fp8").cpu_blocks(1) == 64
    assert replace(log, pipeline_parallel=2).cpu_blocks(2) == 8


@pytest.mark.parametrize(
    ("text", "offload"),
    [
        ("GPU KV cache size: 1,600 tokens\n", False),
        ("GPU KV cache size: 1,600 tokens kv_connector='LMCacheConnectorV1'\n", None),
        ("Available KV cache memory: 3.5 GiB\n", None),
        ("{'cpu_bytes_to_use': 8589934592.0}\n", True),
        ("{'cpu_bytes_to_use': 8.5e9}\n", True),
        ("{'cpu_bytes_to_use': 0}\n", False),
    ],
)
def test_whether_kv_went_to_the_cpu(tmp_path: Path, text: str, offload: bool | None) -> None:
    path = tmp_path / "vllm.log"
    path.write_text(text)
    assert read_log(path).kv_offload is offload


def test_a_log_of_noise_and_of_endless_lines(tmp_path: Path) -> None:
    path = tmp_path / "vllm.log"
    end = b"GPU KV cache size: 160 tokens"
    path.write_bytes(b"\xff\xfe\x00" * 99 + b"\n" + b"x" * 50_000_000 + b"\n" + b"y" * LONGEST_LINE + b"\n" + end)
    log = read_log(path)
    assert log.kv_cache_tokens == 160 and log.usable_blocks == 9
    assert [f.count for f in log.findings] == [2] and "2 lines longer than" in log.findings[0].text


@pytest.mark.parametrize(
    "line",
    [
        "GPU KV cache size: ,,, tokens",
        "cpu_bytes_to_use: 1.2.3",
        "GPU KV cache size: 0 tokens",
        "cpu_bytes_to_use: 1e999",
    ],
)
def test_a_figure_of_the_log_that_is_none_is_left_out(tmp_path: Path, line: str) -> None:
    path = tmp_path / "vllm.log"
    path.write_text(f"{line}\n" * 3)
    log = read_log(path)
    assert log.kv_cache_tokens is None and log.cpu_bytes is None
    assert log.findings[0].count == 3 and "not a number" in log.findings[0].text


def test_endless_digits_are_no_figure(tmp_path: Path) -> None:
    path = tmp_path / "vllm.log"
    path.write_text(f"GPU KV cache size: {'9' * 60_000} tokens\ntensor_parallel_size={'9' * 60_000}\n")
    assert read_log(path).kv_cache_tokens is None and read_log(path).tensor_parallel is None


# ---- names, folders, the manifest


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("20260217-155451-llama-2-7b-tp1-codegen", SourceName("20260217-155451", None, "llama-2-7b", 1, "codegen")),
        ("48-llama-4-scout-17b-16e-tp2-reasoning-lite-2-1",
         SourceName(None, "48", "llama-4-scout-17b-16e", 2, "reasoning-lite", "2-1")),
        ("67-llama-2-7b-hf-tp1-reasoning-lite-1-1", SourceName(None, "67", "llama-2-7b-hf", 1, "reasoning-lite", "1-1")),
        ("my-tp2-model-tp16-chat", SourceName(None, None, "my-tp2-model", 16, "chat")),
        ("7-m-tp1-5", SourceName(None, "7", "m", 1, "5")),
        ("llama-tp2", SourceName()),
        ("", SourceName()),
    ],
)  # fmt: skip
def test_what_a_name_says(name: str, parts: SourceName) -> None:
    assert parse_name(name) == parts


def test_hf_is_no_part_of_a_models_group() -> None:
    assert parse_name("20260217-155451-llama-2-70b-hf-tp4-x").group == "llama-2-70b"


def test_ids_are_unique(tmp_path: Path) -> None:
    names = [NAME, "20300102-120000-llama-2-7b-tp1-chat", "20300102-120000-llama-2-7b-tp1-code"]
    entries = [ingest(build(tmp_path, name))[0].mapping for name in names]
    written = yaml.safe_load(experiments_yaml([e for e in entries if e]))["experiments"]
    assert [e["id"] for e in written] == [names[0], names[1], "llama-2-7b-tp1-code"]


def test_the_other_name_of_the_results_folder(tmp_path: Path) -> None:
    path = build(tmp_path)
    (path / "results").rename(path / "inference-perf-data")
    entry, said, _ = ingest(path)
    assert entry.mapping and entry.mapping["observed"] and "inference-perf-data/config.yaml is what ran" in texts(said)
    (path / "results").mkdir()
    (path / "results" / "config.yaml").write_text("{}")
    assert "inference-perf-data/: left out: results/ exists as well" in texts(list(look(path).findings))


def test_a_folder_of_folders_stands_for_them(tmp_path: Path) -> None:
    for name in ("b", "a"):
        build(tmp_path, name)
    (tmp_path / "notes").mkdir()
    folders, said = find([tmp_path, tmp_path / "a" / ".." / "b"])
    assert [f.name for f in folders] == ["a", "b"]
    assert [f.text for f in said] == [
        "contains 2 folders of experiments, which are read; not experiments, and left out: notes",
        "is given more than once: read once",
    ]


def test_a_folder_of_one_folder_stands_for_it(tmp_path: Path) -> None:
    build(tmp_path, "only")
    folders, said = find([tmp_path])
    assert [f.name for f in folders] == ["only"]
    assert [f.text for f in said] == ["contains a folder of an experiment, which is read"]


def test_a_link_to_a_folder_is_that_folder(tmp_path: Path) -> None:
    path = build(tmp_path / "real")
    (tmp_path / "link").symlink_to(path)
    folders, said = find([tmp_path / "link", path])
    assert [f.name for f in folders] == [NAME] and [f.count for f in said] == [1]


def refused(*paths: Path) -> str:
    with pytest.raises(InputError) as error:
        find(paths)
    assert "\n" not in str(error.value)
    return str(error.value)


def test_paths_that_are_no_folder_of_an_experiment(tmp_path: Path) -> None:
    path = build(tmp_path / "a")
    build(tmp_path / "b")
    (tmp_path / "empty").mkdir()
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    (tmp_path / "new\nline").mkdir()
    assert "no such folder" in refused(tmp_path / "absent")
    assert "is a file: name the folder that contains it" in refused(path / "vllm.log")
    assert "contains none of exp-config.yaml, profile.yaml" in refused(tmp_path / "empty")
    assert "contains none of" in refused(tmp_path / "new\nline")
    (tmp_path / "empty" / "bench.json").write_text("{}")
    assert refused(tmp_path / "empty").endswith(
        f"an experiment, or recorded requests with --trace {tmp_path}/empty/*.json"
    )
    assert "is a results folder: name the experiment's folder above it" in refused(path / "results")
    assert "cannot be read" in refused(tmp_path / "loop")
    assert "cannot be read" in refused(tmp_path / ("x" * 5000))
    assert "cannot be read" in refused(tmp_path / "nul\0")
    assert "outputs go by name: rename one" in refused(path, tmp_path / "b" / NAME)
    assert "no folder is given" in refused()


def test_a_name_of_any_bytes(tmp_path: Path) -> None:
    name = os.fsdecode(b"20300101-120000-llama\xff\x1b[2J\n-tp1-chat")
    try:
        path = build(tmp_path, name)
    except OSError:
        pytest.skip("this file system takes no such names")
    entry, said, _ = ingest(path)
    assert entry.mapping is not None and entry.mapping["source_run"].isprintable()
    experiments_yaml([entry.mapping]).encode()
    texts(said).encode()


LISTED = {
    "id": 41, "model": "meta-llama/Llama-2-7b-hf", "hw": "A100-80GB", "workload": "chat", "dp": None,
    "cpu_offload": False, "gpu_mem": 0.8, "precision": "FP16", "safe": "safe",
}  # fmt: skip


def test_the_manifest_gives_what_no_folder_says(tmp_path: Path) -> None:
    path = build(tmp_path, "41-llama-2-7b-hf-tp1-chat-1", log=None)
    (tmp_path / "experiments.json").write_text(json.dumps([{"id": 4}, LISTED]))
    entry, said, _ = ingest(path, Given())
    assert entry.mapping is not None and entry.mapping["id"] == "41-llama-2-7b-hf-tp1-chat-1"
    assert entry.mapping["hardware"] == "A100-SXM-80GB"
    assert entry.mapping["engine"]["gpu_memory_utilization"] == 0.8
    assert entry.mapping["engine"]["kv_cpu_offload"] is False
    assert "engine: version, total_kv_blocks: no source gives them, left out" in texts(said)


def test_the_manifest_against_other_sources(tmp_path: Path) -> None:
    path = build(tmp_path, "41-llama-2-7b-hf-tp1-chat-1")
    changed = {**LISTED, "dp": 2, "safe": "unsafe", "precision": "FP8"}
    (tmp_path / "experiments.json").write_text(json.dumps([changed, LISTED]))
    entry, said, _ = ingest(path, Given("H100", {"gpu_memory_utilization": 0.7}))
    assert entry.mapping is not None and entry.mapping["hardware"] == "H100-SXM-80GB"
    for text in (
        "experiments.json: lists this experiment more than once: the first entry is used",
        "experiments.json: does not mark this experiment as safe",
        "experiments.json: 2 data-parallel replicas: replayed as one engine",
        "experiments.json: says GPU A100-80GB, --hardware H100-SXM-80GB: the option is used",
        "vllm.log: KV offload to CPU is true, experiments.json says false: the log is used",
        "--engine: gpu_memory_utilization is 0.7 as given, the folder says 0.8",
        "the weights are not FP16 or BF16, but meta-llama/Llama-2-7b-hf is not quantized",
    ):
        assert text in texts(said)


@pytest.mark.parametrize(
    ("manifest", "said"),
    [
        (b"", "is empty"),
        (b"[" * 200_000, "nested too deeply"),
        (b"{}", "is not a list of experiments"),
        (b"\xff\xfe[", "not UTF-8"),
        (b"[{}, 3, null, {\"id\": [1]}, {\"id\": " + b"9" * 400 + b"}]", "does not list this experiment"),
        (b"[{\"id\": " + b"9" * 5000 + b"}]", "a number of more than 400 characters"),
        (b'[{"id": 41, "gpu_mem": 1.5}]', "gpu_mem must be a fraction"),
        (b'[{"id": "41", "gpu_mem": NaN}]', "gpu_mem must be a finite number, got nan"),
        (b'[{"id": 41, "hw": "/mnt/secret", "cpu_offload": "yes", "dp": 0}]', "hw must be the name of a GPU, got text"),
    ],
)  # fmt: skip
def test_a_manifest_that_is_wrong_is_said(tmp_path: Path, manifest: bytes, said: str) -> None:
    path = build(tmp_path, "41-llama-2-7b-hf-tp1-chat-1")
    (tmp_path / "experiments.json").write_bytes(manifest)
    entry, findings, _ = ingest(path)
    assert entry.mapping is not None and said in texts(findings)


# ---- options


def test_the_gpu_must_be_named(tmp_path: Path) -> None:
    path = build(tmp_path)
    with pytest.raises(InputError, match="no file names the GPU: name it with --hardware"):
        ingest(path, Given())
    with pytest.raises(
        InputError, match=r"--hardware H10: is not in the hardware table: the closest are H100, H200, A100;"
    ):
        check_hardware("H10")
    check_hardware(None)
    check_hardware("H100")


def test_engine_settings_are_given(tmp_path: Path) -> None:
    overrides = parse_overrides(
        ["version=0.9", "max_num_seqs=64", "kv_cpu_offload=false", "gpu_memory_utilization=0.95"]
    )
    assert overrides == {
        "version": "0.9", "max_num_seqs": 64, "kv_cpu_offload": False, "gpu_memory_utilization": 0.95,
    }  # fmt: skip
    entry, said, _ = ingest(build(tmp_path), Given("H100", overrides))
    assert entry.mapping is not None and overrides.items() <= entry.mapping["engine"].items()
    assert "--engine: max_num_seqs is 64 as given, the folder says 32" in texts(said)


@pytest.mark.parametrize(
    ("pairs", "said"),
    [
        (["max_num_seqs"], "--engine max_num_seqs: is not KEY=VALUE: write it like --engine max_num_seqs=64"),
        (["=4"], "is not KEY=VALUE"),
        (["max_num_seqs=many"], "--engine: max_num_seqs must be a whole number, got 'many'"),
        (["max_num_seqs=1.5"], "--engine: max_num_seqs must be a whole number, got 1.5"),
        (["max_num_seqs=0"], "--engine: max_num_seqs must be >= 1"),
        (["gpu_memory_utilization=nan"], "--engine: gpu_memory_utilization must be finite"),
        (["gpu_memory_utilization=90"], "--engine: gpu_memory_utilization must be <= 1"),
        (["prefix_caching=1"], "--engine: prefix_caching must be true or false, got 1"),
        (
            ["max_num_sequences=4"],
            "--engine max_num_sequences: is not an engine setting: did you mean 'max_num_seqs'?",
        ),
        (["completed=5"], "--engine completed: is not an engine setting: known are "),
        (["block_size=16", "block_size=32"], "--engine block_size: is given twice"),
        (["version="], "--engine: version must be text"),
    ],
)
def test_engine_settings_that_are_none(pairs: list[str], said: str) -> None:
    with pytest.raises(InputError) as error:
        parse_overrides(pairs)
    assert said in str(error.value) and "\n" not in str(error.value)


# ---- damaged files: each is said, none stops the others


def replaced(data: bytes) -> Callable[[Path], None]:
    return lambda path: path.write_bytes(data) and None


def directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


def linked(path: Path) -> None:
    path.unlink()
    path.symlink_to(path.name)


def pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def cut(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])


LAUGHS = "a: &a [x, x]\n" + "".join(
    f"{chr(98 + i)}: &{chr(98 + i)} [{', '.join(['*' + chr(97 + i)] * 9)}]\n" for i in range(20)
)
MERGES = "a: &a {x: 1}\n" + "".join(
    f"{chr(98 + i)}: &{chr(98 + i)} {{<<: [{', '.join(['*' + chr(97 + i)] * 9)}]}}\n" for i in range(12)
)
DAMAGE: dict[str, Callable[[Path], None]] = {
    "empty": replaced(b""),
    "blank": replaced(b" \n\n"),
    "a list": replaced(b"[1, 2]"),
    "null": replaced(b"null"),
    "a number": replaced(b"12"),
    "text": replaced(b'"x"'),
    "an empty mapping": replaced(b"{}"),
    "bytes": replaced(bytes(range(256)) * 40),
    "not UTF-8": replaced(b'{"model": "\xff\xfe"}'),
    "UTF-16": replaced('{"model": "x"}'.encode("utf-16")),
    "lists in lists": replaced(b"[" * 200_000),
    "mappings in mappings": replaced(b'{"a":' * 40_000),
    "closed lists": replaced(b"[" * 60_000 + b"]" * 60_000),
    "blocks in blocks": replaced(b"".join(b" " * i + b"a:\n" for i in range(400))),
    "a line of 50 MB": replaced(b'{"a": "' + b"x" * 50_000_000 + b'"}'),
    "python/object": replaced(b"!!python/object/apply:os.system ['touch /tmp/secret']"),
    "a tag": replaced(b"model: !!bool perhaps"),
    "another tag": replaced(b"model: !!timestamp perhaps"),
    "billion laughs": replaced(LAUGHS.encode()),
    "merged laughs": replaced(MERGES.encode()),
    "an anchor to itself": replaced(b"a: &a [*a]"),
    "a key twice": replaced(b"model: x\nmodel: y"),
    "a list for a key": replaced(b"? [a, b]\n: c"),
    "a tab": replaced(b"model:\n\t- x"),
    "sixties": replaced(b"model: " + b"1:" + b"59:" * 60_000 + b"1"),
    "digits": replaced(b'{"model": ' + b"9" * 100_000 + b"}"),
    "hexadecimal": replaced(b"model: 0x" + b"f" * 100_000),
    "no date": replaced(b"model: 2030-99-99"),
    "two documents": replaced(b"model: x\n---\nmodel: y"),
    "a directory": directory,
    "a link to itself": linked,
    "a pipe": pipe,
    "cut": cut,
    "absent": Path.unlink,
}


@pytest.fixture(scope="module")
def undamaged(tmp_path_factory: pytest.TempPathFactory) -> tuple[Entry, list[Finding]]:
    entry, said, _ = ingest(build(tmp_path_factory.mktemp("undamaged")))
    return entry, said


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("file", FILES)
def test_a_damaged_file_is_said_and_the_others_are_read(
    tmp_path: Path, undamaged: tuple[Entry, list[Finding]], file: str, damage: str
) -> None:
    path = build(tmp_path)
    sound, before = undamaged
    assert sound.mapping is not None
    DAMAGE[damage](path / file)
    entry, said, _ = ingest(path)
    if damage == "absent" and file == "profile.yaml":
        assert entry.mapping == sound.mapping
        return
    about = [f for f in said if f not in before]
    if damage == "cut" and file.endswith((".yaml", ".log")):  # the first half of such a file may be sound by itself
        assert about or said != before or entry.mapping == sound.mapping
    else:
        assert about, "nothing is said"
    observed = entry.mapping["observed"] if entry.mapping else None
    if entry.mapping is None:
        assert any("no experiment is written" in f.text for f in said)
    elif "metrics" not in file:
        assert observed == sound.mapping["observed"]
    else:
        assert entry.mapping["engine"] == sound.mapping["engine"]
        assert entry.mapping["workload"]["stages"] == sound.mapping["workload"]["stages"]
        assert observed, "the other reports are still there"
    assert not Path("/tmp/secret").exists()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
@pytest.mark.parametrize("file", FILES)
def test_a_file_that_may_not_be_read_is_said(tmp_path: Path, file: str) -> None:
    path = build(tmp_path)
    (path / file).chmod(0)
    assert f"{file}: is not readable (permissions): left out" in texts(ingest(path)[1])


def test_all_files_damaged_is_refused(tmp_path: Path) -> None:
    path = build(tmp_path)
    for file in FILES:
        directory(path / file)
    assert "has no source that can be read (exp-config.yaml is not a file: left out; " in refused(path)


def test_limits_are_above_every_real_file() -> None:
    sizes = [(f.suffix, f.stat().st_size) for p in published() for f in (*p.glob("*.yaml"), *p.glob("results/*"))]
    assert all(size * 20 < (MOST_YAML_BYTES if suffix == ".yaml" else MOST_JSON_BYTES) for suffix, size in sizes)
    assert documents.DEEPEST > 20


# ---- one value wrong, anywhere: it is said, or changes nothing; what is written can be read back


def leaves(node: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if isinstance(node, dict | list) and node:
        for key, value in node.items() if isinstance(node, dict) else enumerate(node):
            yield from leaves(value, (*path, key))
        if path:
            yield path
    else:
        yield path


def put(node: Any, path: tuple[Any, ...], value: Any) -> Any:
    node = copy.deepcopy(node)
    at = node
    for step in path[:-1]:
        at = at[step]
    at[path[-1]] = value
    return node


WRONG = [
    *("text", "12", "", -1, -0.5, math.nan, math.inf, -math.inf, 1e308, 10**400, 2**70),
    *([], [[]], {}, {"mean": "x"}, [{"rate": 1}]),
]


def wrong(index: int) -> list[Any]:
    """A third of the values for one place, so that three places in turn see them all."""
    return WRONG[index % 3 :: 3]


def same_or_said(path: Path, sound: Entry, before: list[Finding], where: object) -> None:
    entry, said, _ = read(path)
    if entry.mapping == sound.mapping:
        return
    assert set(said) != set(before), where
    if entry.mapping and entry.mapping["model"] in model_table() and entry.mapping["hardware"] in hardware_table():
        file = path / "experiments.yaml"
        file.write_text(experiments_yaml([entry.mapping]))
        assert len(load_experiments(file)) == 1


@pytest.mark.parametrize("key", ["summary", pytest.param("stage_1", marks=pytest.mark.slow)])
def test_a_wrong_value_in_a_report_is_said_or_changes_nothing(tmp_path: Path, key: str) -> None:
    path = build(tmp_path)
    sound, before, _ = ingest(path)
    figures = reports()[key]
    for i, leaf in enumerate(leaves(figures)):
        for value in wrong(i):
            text = json.dumps(put(figures, leaf, value))
            (path / "results" / f"{key}_lifecycle_metrics.json").write_text(text)
            same_or_said(path, sound, before, (leaf, value))


@pytest.mark.parametrize(
    ("file", "settings"),
    [("exp-config.yaml", EXP_CONFIG), ("results/config.yaml", CONFIG), ("profile.yaml", PROFILE)],
)
def test_a_wrong_setting_is_said_or_changes_nothing(tmp_path: Path, file: str, settings: Any) -> None:
    path = build(tmp_path)
    sound, before, _ = ingest(path)
    for i, leaf in enumerate(leaves(settings)):
        for value in wrong(i):
            (path / file).write_text(yaml.dump(put(settings, leaf, value), Dumper=DUMPER))
            same_or_said(path, sound, before, (leaf, value))


def test_findings_and_text_are_the_same_each_time(tmp_path: Path) -> None:
    path = build(tmp_path)
    (first, said, _), (second, again, _) = ingest(path), ingest(path)
    assert said == again and first.mapping and second.mapping
    assert experiments_yaml([first.mapping]) == experiments_yaml([second.mapping])


def test_a_folder_is_a_value(tmp_path: Path) -> None:
    folder = look(build(tmp_path))
    assert isinstance(folder, Folder) and folder == look(folder.path)
    assert [k for k, _ in folder.stages] == [0, 1] and folder.traces is None and folder.per_request is None
