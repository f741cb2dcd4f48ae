"""Folders of load-generator reports as experiments: the 16 that ship come out equal, damaged ones get findings."""

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
from trace_records import MODEL, TINY

from evolve.ingest.derive.matching import join
from evolve.ingest.experiment import describe
from evolve.ingest.folder import Inputs, derive
from evolve.ingest.options import Given, check_hardware, parse_overrides
from evolve.ingest.output import experiments_yaml
from evolve.ingest.quality import Quality, judge
from evolve.ingest.read.log import LONGEST_LINE, EngineLog, read_log
from evolve.ingest.read.reports import read_reports
from evolve.ingest.read.settings import read_settings
from evolve.ingest.read.sources import SourceName, find, look, parse_name
from evolve.ingest.read.values import Finding, FolderFindings
from simulator.common import documents
from simulator.common.errors import InputError
from simulator.serving.bundled import bundled_file, load_experiments
from simulator.serving.gpu import hardware_table
from simulator.serving.model import model_table

RAW = SHARED / "data" / "raw" / "h100_vllm_0_15_1"
SAMPLE = SHARED / "samples" / "20260101-000000-tiny-llama-tp1-general"
shared = pytest.mark.skipif(not RAW.is_dir(), reason="the published folders are not on this machine")
PUBLISHED = sorted(RAW.iterdir()) if RAW.is_dir() else []
SHIPPED = Given("H100", parse_overrides(["version=0.15.1", "kv_cpu_offload=true"]))

NAME = "20300101-120000-llama-2-7b-hf-tp1-chat"
NUMBERED = "41-llama-2-7b-hf-tp1-chat-1"
LLAMA = "meta-llama/Llama-2-7b-hf"
Json = dict[str, Any]
EXP_CONFIG: Json = yaml.safe_load(f"""
model: {LLAMA}
tensor_parallelism: 1
max_model_len: 2048
max_num_batched_tokens: 2560
max_num_seqs: 32
app: inference-perf
""")
CONFIG: Json = yaml.safe_load(f"""
api: {{type: completion, streaming: true}}
data:
  type: shared_prefix
  shared_prefix: {{num_groups: 2, num_prompts_per_group: 5, system_prompt_len: 20, question_len: 80, output_len: 11}}
load:
  type: constant
  stages: [{{rate: 1.0, duration: 10}}, {{rate: 2.0, duration: 10}}]
  request_timeout: null
server: {{model_name: {LLAMA}, base_url: "http://192.0.2.7:8000", ignore_eos: true}}
storage: {{local_storage: {{path: /workspace/data/secret/results}}}}
""")
PROFILE: Json = CONFIG | yaml.safe_load("""
data:
  type: shared_prefix
  shared_prefix: {num_unique_system_prompts: 3, num_users_per_system_prompt: 4, system_prompt_len: 20,
                  question_len: 80, output_len: 11, enable_multi_turn_chat: true}
""")
LOG = """\
2030-01-01 12:00:00,000 INFO vllm.entrypoints: vLLM API server version 0.15.1
2030-01-01 12:00:01,000 INFO vllm.config.vllm: Asynchronous scheduling is enabled.
2030-01-01 12:00:02,000 INFO vllm.v1.engine.core: Initializing a V1 LLM engine (v0.15.2) with config: model='/mnt/m', \
dtype=torch.bfloat16, max_seq_len=2048, tensor_parallel_size=1, kv_cache_dtype=auto, enable_prefix_caching=True, \
enable_chunked_prefill=False, kv_connector='OffloadingConnector', {'cpu_bytes_to_use': 1048576.0}
2030-01-01 12:00:04,000 INFO vllm.v1.core.kv_cache_utils: GPU KV cache size: 16,416 tokens
2030-01-01 12:00:05,000 INFO vllm.v1.worker: Allocating a cross layer KV cache of shape (1026, 4, 2, 16, 2, 64)
2030-01-01 12:00:06,000 INFO vllm.v1.core.kv_cache_utils: GPU KV cache size: 99 tokens
"""
SETTINGS = ("exp-config.yaml", "profile.yaml", "vllm.log", "results/config.yaml")
FILES = (*SETTINGS, *(f"results/{key}_lifecycle_metrics.json" for key in ("summary", "stage_0", "stage_1")))
DUMPER: Any = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
PRIVATE = ("/workspace", "/mnt", "192.0.2", "localhost", "secret")


def dist(mean: float, **others: float) -> dict[str, float]:
    factors = {"min": 0.5, "p1": 0.6, "median": 0.9, "p90": 1.5, "p99": 2.0, "max": 2.5}
    return {"mean": mean, **{name: mean * f for name, f in factors.items()}, **others}


def report(completed: int, e2e: float, ttft: float, failed: int = 0, rate: float | None = None) -> Json:
    load: Json = {"count": completed + failed, "schedule_delay": dist(0.001)}
    if rate:
        load |= {"send_duration": 10.0, "requested_rate": rate, "achieved_rate": rate * 1.001}
    latency = {"request_latency": dist(e2e), "time_to_first_token": dist(ttft)}
    latency["inter_token_latency"] = dist((e2e - ttft) / 21)
    lengths = {"prompt_len": dist(104.3), "output_len": dist(11.5)}
    return {
        "load_summary": load,
        "successes": {"count": completed, "latency": latency, **lengths},
        "failures": {"count": failed, "request_latency": dist(3.0) if failed else None, "prompt_len": None},
    }


def reports() -> Json:
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
    figures: Json | None = None,
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
class Ingested:
    """An entry of an experiments file, None where there is none, the findings and the quality."""

    entry: Json | None
    findings: list[Finding]
    quality: Quality

    @property
    def mapping(self) -> Json:
        assert self.entry is not None, self.text
        return self.entry

    @property
    def text(self) -> str:
        return "\n".join(f"{f.source}: {f.text}" for f in self.findings)


def ingest(path: Path, given: Given | None = None, blocks: int | None = None) -> Ingested:
    """Like `read`, and the text of the experiments file is checked."""
    found = read(path, given, blocks)
    if found.entry:
        text = experiments_yaml([found.entry])
        assert not any(word in text for word in PRIVATE)
        assert yaml.load(text, LOADER)["experiments"] == [found.entry]
    return found


def read(path: Path, given: Given | None = None, blocks: int | None = None) -> Ingested:
    """The folder without its traces and client rows; `blocks`: the KV blocks of a sampled step of them."""
    folder = look(path)
    findings = FolderFindings(folder.findings)
    settings, log = read_settings(folder, findings), read_log(folder.files.get("vllm.log"), findings)
    about = (folder, settings, log, read_reports(folder, findings))
    inputs = Inputs(*about, None, (), None, None, 0, joined=join(None, (), None), epoch=None, tally={})
    derived = derive(inputs, path, findings)
    if blocks is not None:
        derived = replace(derived, sampled={"kv_blocks_total": np.array([blocks])})
    spec, quality = describe(inputs, derived, path, given or Given("H100"), findings)
    for f in findings:
        assert f.count >= 1 and f.text == " ".join(f.text.split()) and "\n" not in f.source
        assert not any(word in f.text + f.source for word in PRIVATE), f
    return Ingested(spec.to_entry() if spec else None, findings, quality)


# ---- the published folders


@shared
@pytest.mark.parametrize("path", PUBLISHED, ids=lambda p: p.name)
def test_a_published_folder_gives_the_experiment_that_ships(path: Path) -> None:
    shipped: Any = documents.parse_yaml(
        resources.files("configs").joinpath("experiments_h100.yaml").read_bytes(), "", ""
    )
    expected = next(e for e in shipped["experiments"] if e["source_run"] == path.name)
    found = ingest(path, SHIPPED, expected["engine"].get("total_kv_blocks"))
    notes = found.mapping.pop("x_note", [])
    assert found.mapping == expected
    assert list(found.mapping) == list(expected) and list(found.mapping["engine"]) == list(expected["engine"])
    assert notes == list(found.quality.reasons) and bool(notes) == (expected["quality"] == "overloaded")
    assert "prompts_per_group" in found.text  # every profile asked for other prompts than ran


@shared
def test_the_published_folders_have_the_specified_quality() -> None:
    """84.75, 68.63 and 33.33 % failed; the fourth, 4 of 4,800, waits 120 s (trace-formats, 5.4)."""
    overloaded = {}
    for path in PUBLISHED:
        found = ingest(path)
        if found.quality.reasons:
            overloaded[path.name] = found.quality.reasons[0]
        assert (found.quality.timeout_s == 300.0) == bool(found.quality.reasons)
        assert ("failed at the client's timeout of 300 s" in found.text) == bool(found.quality.reasons)
    reasons = [reason[:18] for reason in overloaded.values()]
    assert reasons == ["84.75 % of 4,800 r", "33.33 % of 4,800 r", "68.63 % of 4,800 r", "requests wait for "]
    assert "mean TTFT 120.2 s" in overloaded["20260218-160939-codellama-34b-tp2-reasoning"]


@shared
def test_the_sample_folder_gives_the_blocks_of_its_expected_file() -> None:
    expected = json.loads((SAMPLE.parent / "expected.json").read_text())["kv"]
    log = read_log(SAMPLE / "vllm.log", FolderFindings())
    assert log.gpu_blocks == expected["gpu_blocks_from_log"] == 64
    assert log.usable_blocks == expected["gpu_blocks_from_trace"] == 63
    assert log.cpu_blocks(1) == expected["cpu_blocks"] == 40
    found = ingest(SAMPLE)
    assert found.entry is None and f"{MODEL} is not in the model table" in found.text
    assert found.quality.reasons == ("15.38 % of 13 requests failed",) and found.quality.timeout_s is None
    mapping = ingest(SAMPLE, Given("H100", models={MODEL: TINY})).mapping
    assert mapping["engine"]["total_kv_blocks"] == 63 and mapping["engine"]["kv_cpu_offload"] is True
    assert mapping["model_config"] == TINY


# ---- a folder of our own

EXPERIMENT = f"""
id: llama-2-7b-tp1-chat
source_run: {NAME}
model: {LLAMA}
hardware: H100-SXM-80GB
engine: {{name: vllm, version: 0.15.1, tensor_parallel: 1, max_num_seqs: 32, max_num_batched_tokens: 2560,
  max_model_len: 2048, block_size: 16, gpu_memory_utilization: 0.9, chunked_prefill: false, prefix_caching: true,
  kv_cpu_offload: true, total_kv_blocks: 1025, async_scheduling: true}}
workload:
  name: chat
  arrival: constant
  stages: [{{rate: 1.0, duration_s: 10.0}}, {{rate: 2.0, duration_s: 10.0}}]
  shared_prefix: {{groups: 2, prompts_per_group: 5, system_prompt_len: 20, question_len: 80}}
  prompt_len_mean: 104.3
  output_len: 11
  ignore_eos: true
"""


def test_a_folder_gives_an_experiment(tmp_path: Path) -> None:
    found = ingest(build(tmp_path))
    always = {"failed": 0, "prompt_len_mean": 104.3, "reported_output_len_mean": 11.5}
    observed = [
        # E2E and TTFT in ms, completed, the harness's ITL (E2E - TTFT) / 21, the true one (E2E - TTFT) / 10
        (1400.0, 70.0, 30, 63.3333, 133.0),
        (1000.0, 50.0, 10, 45.2381, 95.0),
        (1600.0, 80.0, 20, 72.381, 152.0),
    ]
    summary, *stages = (
        {
            "e2e_ms": {"mean": e2e, "p50": e2e * 0.9, "p90": e2e * 1.5, "p99": e2e * 2.0},
            "ttft_ms": {"mean": ttft, "p50": ttft * 0.9, "p90": ttft * 1.5, "p99": ttft * 2.0},
            **{"completed": completed, "harness_itl_mean_ms": harness, "itl_mean_ms": itl, **always},
        }
        for e2e, ttft, completed, harness, itl in observed
    )
    expected = yaml.safe_load(EXPERIMENT) | {"observed": {"summary": summary, "stages": stages}, "quality": "clean"}
    assert found.mapping == expected
    assert found.quality == Quality("clean", (), None, ())
    assert found.text == (
        "profile.yaml: requested groups 3, ran 2; prompts_per_group 4, ran 5; several turns, ran a single turn: "
        "using results/config.yaml, which describes the load that ran\n"
        "engine: assuming block_size 16, gpu_memory_utilization 0.9: no source gives them; "
        "use --engine KEY=VALUE if it was different"
    )


def put(node: Any, path: tuple[Any, ...], value: Any) -> Any:
    node = copy.deepcopy(node)
    at = node
    for step in path[:-1]:
        at = at[step]
    at[path[-1]] = value
    return node


def changed(raw: Json, path: str, value: Any) -> Json:
    """A copy of a tree with the value of a dotted path."""
    return put(raw, tuple(path.split(".")), value)


ONE_STAGE = changed(CONFIG, "load.stages", [{"rate": 3, "duration": 10}])


def test_only_the_profile_is_left_and_its_several_turns_are_noted(tmp_path: Path) -> None:
    found = ingest(build(tmp_path, config=None))
    assert found.mapping["workload"]["shared_prefix"]["groups"] == 3
    assert "profile.yaml: is the requested load, not necessarily the one that ran" in found.text
    requested, turns = found.mapping["x_note"]
    assert requested.startswith("the load is the requested one")
    assert turns == "a chat with several turns ran, replayed as single turns"
    assert "a chat with several turns ran: replayed as single turns" in found.text


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"load": {"type": "trace_replay"}}, "neither constant nor poisson nor concurrent"),
        ({"load": {"type": "concurrent", "stages": [{"rate": 1, "duration": 1}]}}, "no usable concurrency_level"),
        ({"load": {"type": "constant", "stages": []}}, "load.stages must be a list of stages"),
        ({"load": {"type": "constant", "stages": [{"rate": 1}]}}, "stage 0 has no usable rate and duration"),
        ({"data": None}, "does not give shared_prefix or prompt_len, output_len"),
    ],
)
def test_an_unreplayable_load_gives_no_experiment(tmp_path: Path, change: Any, text: str) -> None:
    found = ingest(build(tmp_path, config={**CONFIG, **change}, profile=None))
    assert found.entry is None
    assert text in found.text and f"{NAME}: no experiment is written: " in found.text


SKEWED = {"min": 5, "max": 300, "mean": 100, "std_dev": 20, "type": "skew_normal"}


@pytest.mark.parametrize(
    ("data", "prompt_len", "output_len"),
    [
        (
            {
                "input_distribution": {"min": 50, "max": 150, "mean": 100, "std_dev": 20},
                "output_distribution": {"min": 10, "max": 12, "mean": 11, "std_dev": 0},
            },
            {"normal": {"mean": 100.0, "sd": 20.0, "min": 50, "max": 150}},
            11,
        ),
        (
            {
                "input_distribution": {"min": 50, "max": 150, "mean": 100, "std_dev": 9, "type": "uniform"},
                "output_distribution": {
                    "min": 5,
                    "max": 20,
                    "mean": 11,
                    "std_dev": 0,
                    "variance": 4,
                    "type": "lognormal",
                },
            },
            {"uniform": {"min": 50, "max": 150}},
            {"lognormal": {"mean": 11.0, "sd": 2.0, "min": 5, "max": 20}},
        ),
        ({"input_distribution": SKEWED, "output_distribution": None}, 104, 12),
        ({"type": "shareGPT", "input_distribution": None}, 104, 12),  # the means of the reports
    ],
)
@pytest.mark.parametrize("kind", ["synthetic", "random"])
def test_data_of_other_types_have_lengths_of_their_own(
    tmp_path: Path, kind: str, data: Json, prompt_len: Any, output_len: Any
) -> None:
    found = ingest(build(tmp_path, config={**CONFIG, "data": {"type": kind, **data}}, profile=None))
    workload = found.mapping["workload"]
    assert (workload["prompt_len"], workload["output_len"]) == (prompt_len, output_len)
    assert "shared_prefix" not in workload and found.quality.label == "clean"
    summary = found.mapping["observed"]["summary"]
    assert ("itl_mean_ms" in summary) == isinstance(output_len, int)  # never the load generator's, which is halved
    taken = "gives no prompt_len and no output_len: the mean of the reports is taken, prompt_len 104, output_len 12"
    assert (taken in found.text) == (prompt_len == 104)


def test_answers_that_may_end_early_have_the_length_of_the_reports(tmp_path: Path) -> None:
    data = {
        "type": "random",
        "input_distribution": {"min": 9, "max": 9, "mean": 9},
        "output_distribution": {"min": 50, "max": 50, "mean": 50},
    }
    config = {**CONFIG, "data": data}
    found = ingest(build(tmp_path, config=changed(config, "server.ignore_eos", False), profile=None))
    assert (found.mapping["workload"]["prompt_len"], found.mapping["workload"]["output_len"]) == (9, 12)


def test_without_exp_config_the_other_sources_stand_in(tmp_path: Path) -> None:
    found = ingest(build(tmp_path, exp_config=None))
    assert found.mapping["engine"]["max_num_seqs"] == 128 and found.mapping["engine"]["max_model_len"] == 2048
    assert "gives no tensor_parallelism: using 1 from the folder's name" in found.text
    assert "results/config.yaml: names the model, exp-config.yaml does not" in found.text
    assert "engine: assuming max_num_seqs 128, max_num_batched_tokens 2048, block_size 16" in found.text


def test_sources_that_disagree_are_reported(tmp_path: Path) -> None:
    settings = {**EXP_CONFIG, "tensor_parallelism": 2, "model": "llama-2-70b", "data_parallelism": 2}
    found = ingest(build(tmp_path, NAME.replace("tp1", "tp4"), settings), blocks=900)
    assert found.mapping["model"] == "meta-llama/Llama-2-70b-hf"
    assert found.mapping["engine"]["total_kv_blocks"] == 900
    for text in (
        "tensor_parallelism is 2, the folder's name says 4",
        "vllm.log: tensor_parallel is 1, exp-config.yaml or the folder's name says 2",
        "vllm.log: 1,025 KV blocks, the traces say 900",
        f"served model {LLAMA}, exp-config.yaml says llama-2-70b",
        "2 data-parallel replicas",
    ):
        assert text in found.text


def test_only_the_last_part_of_a_models_path_is_kept(tmp_path: Path) -> None:
    config = changed(CONFIG, "server.model_name", "/mnt/secret/other")
    found = ingest(build(tmp_path, exp_config={**EXP_CONFIG, "model": "/mnt/secret/llama-2-7b/"}, config=config))
    assert found.mapping["model"] == LLAMA
    assert "model is not a Hugging Face id: using its last part, llama-2-7b" in found.text


def test_a_cache_too_small_for_a_request_gives_no_experiment(tmp_path: Path) -> None:
    found = ingest(build(tmp_path), blocks=3)
    assert found.entry is None
    assert "no experiment is written" in found.text and "holds 48 tokens, and one request needs 116" in found.text


# ---- reports


@pytest.mark.parametrize(
    ("kept", "config", "observed", "text"),
    [
        (("stage_0", "stage_1"), CONFIG, ["stages"], "results/: no readable summary report"),
        (("summary",), CONFIG, ["summary"], "reports: no stage has a report: the run can be predicted"),
        (("summary",), ONE_STAGE, ["summary", "stages"], "is used for the only stage as well"),
        (("summary", "stage_1"), CONFIG, ["summary", "stages"], "stage 0 of 2 has no report"),
    ],
)
def test_missing_reports_narrow_the_observed_figures(
    tmp_path: Path, kept: tuple[str, ...], config: Json, observed: list[str], text: str
) -> None:
    found = ingest(build(tmp_path, config=config, figures={key: reports()[key] for key in kept}))
    assert list(found.mapping["observed"]) == observed and text in found.text
    assert found.mapping["workload"]["prompt_len_mean"] == 104.3
    if config is ONE_STAGE:
        assert found.mapping["observed"]["stages"] == [found.mapping["observed"]["summary"]]
    elif "stage_1" in kept and "summary" in kept:
        first, second = found.mapping["observed"]["stages"]
        assert first == {} and second["e2e_ms"]["mean"] == 1600.0 and "results/: no report of stage 0" in found.text


def test_stages_are_sorted_and_surplus_ones_ignored(tmp_path: Path) -> None:
    config = changed(CONFIG, "load.stages", [{"rate": 1.0, "duration": 10}] * 11)
    figures = {f"stage_{k}": report(10, 1.0 + k, 0.05, rate=1.0) for k in range(12)}
    found = ingest(build(tmp_path, config=config, figures=figures))
    means = [s["e2e_ms"]["mean"] for s in found.mapping["observed"]["stages"]]
    assert means == [1000.0 * (1 + k) for k in range(11)]
    assert "reports: stage 11: results/config.yaml has 11 stages" in found.text


def test_counts_that_do_not_add_up_are_reported(tmp_path: Path) -> None:
    figures = changed(reports(), "summary.load_summary.count", 31)
    found = ingest(build(tmp_path, figures=changed(figures, "stage_1.successes.count", 19)))
    assert "31 requests were sent, but 30 succeeded and 0 failed" in found.text
    assert "completed: 30, but the stages add up to 29" in found.text


def test_a_run_without_successes(tmp_path: Path) -> None:
    figures = {key: report(0, 1.0, 0.1, failed=30) for key in ("summary", "stage_0")}
    for r in figures.values():
        r["successes"] |= {"latency": dict.fromkeys(r["successes"]["latency"]), "prompt_len": None, "output_len": None}
    found = ingest(build(tmp_path, figures=figures))
    assert found.mapping["observed"]["summary"] == {"completed": 0, "failed": 30}
    assert found.quality.reasons == ("100.00 % of 30 requests failed",)
    assert "prompt_len_mean" not in found.mapping["workload"]


@pytest.mark.parametrize(
    ("statistics", "text"),
    [
        ({"median": 9.0, "p90": 8.0}, "request_latency: median is above p90"),
        ({"mean": 90.0}, "request_latency: the mean is not between min and max"),
        (dict.fromkeys(dist(1), 0.001), "the mean TTFT is above the mean E2E"),
    ],
)
def test_contradicting_statistics_are_ignored(tmp_path: Path, statistics: Json, text: str) -> None:
    figures = reports()
    figures["stage_0"]["successes"]["latency"]["request_latency"] |= statistics
    found = ingest(build(tmp_path, figures=figures))
    assert "itl_mean_ms" not in found.mapping["observed"]["stages"][0] and text in found.text


# ---- quality

TTFT, RATE = "successes.latency.time_to_first_token", "load_summary.achieved_rate"
WAITS = dist(1.5, min=0.05, median=1.5, p90=2.0, p99=3.0, max=3.0)
QUEUE = (
    "stage 1: requests wait for the engine: mean TTFT 1.5 s is 94 % of mean E2E, 30 times that of the quickest request"
)


@pytest.mark.parametrize(
    ("place", "value", "reasons"),
    [
        (TTFT, WAITS, (QUEUE,)),
        (TTFT, dist(1.5, min=0.5, median=1.5, p90=2.0, p99=3.0, max=3.0), ()),  # long prompts: all are slow
        (TTFT, dist(0.9, min=0.01, median=0.9, p90=1.0, p99=1.0, max=1.0), ()),  # cached and not
        (RATE, 1.8, ("stage 1: only 1.8 of 2 requested requests/s were sent",)),
        (RATE, 1.95, ()),
    ],
)
def test_one_stage_can_overload_a_run(tmp_path: Path, place: str, value: Any, reasons: tuple[str, ...]) -> None:
    quality = ingest(build(tmp_path, figures=changed(reports(), f"stage_1.{place}", value))).quality
    assert (quality.label, quality.reasons) == ("overloaded" if reasons else "clean", reasons)


def test_more_than_a_tenth_of_failures_overloads_a_run(tmp_path: Path) -> None:
    for completed, reasons in ((27, ()), (26, ("10.34 % of 29 requests failed",))):
        path = build(tmp_path / str(completed), figures={"summary": report(completed, 1.4, 0.07, failed=3)})
        assert ingest(path).quality.reasons == reasons


@pytest.mark.parametrize(
    ("mean", "least", "median", "most", "timeout"),
    [
        (60.2, 60.001, 60.2, 60.9, 60.0),
        (40.0, 0.2, 60.0, 60.9, None),  # some failed otherwise
        (58.0, 57.0, 58.0, 60.0, None),  # at no round time
        (1.0, 1.0, 1.0, 1.0, None),
    ],
)
def test_failures_at_a_round_time_show_the_timeout(
    tmp_path: Path, mean: float, least: float, median: float, most: float, timeout: float | None
) -> None:
    figures = {"summary": report(29, 1.4, 0.07, failed=1)}
    figures["summary"]["failures"]["request_latency"] = {"mean": mean, "min": least, "median": median, "max": most}
    found = ingest(build(tmp_path, figures=figures))
    assert found.quality.timeout_s == found.mapping["workload"].get("timeout_s") == timeout
    assert ("the timeout of the client is unknown" in found.text) == (timeout is None)
    without = build(tmp_path / "set", config=changed(CONFIG, "load.request_timeout", 45.0))
    assert ingest(without).quality.timeout_s == 45.0  # the setting's, where nothing failed


def test_reports_of_another_load_are_noted(tmp_path: Path) -> None:
    figures = changed(reports(), "stage_0.load_summary.requested_rate", 4.0)
    found = ingest(build(tmp_path, figures=figures | {"stage_1": report(8, 1.6, 0.08, rate=2.0)}))
    assert "requested 4 requests/s, results/config.yaml says 1" in found.text
    assert "8 requests, results/config.yaml offers 20" in found.text


def test_reasons_found_elsewhere_count(tmp_path: Path) -> None:
    folder, findings = look(build(tmp_path)), FolderFindings()
    load = read_settings(folder, findings).load
    quality = judge(read_reports(folder, findings), load, ["128 requests waited on average"])
    assert (quality.label, quality.reasons) == ("overloaded", ("128 requests waited on average",))


def test_shipped_runs_are_far_from_the_limit_of_waiting() -> None:
    """TTFT_OF_E2E's words: at most 0.022 in any stage of a clean run, at least 0.65 in an overloaded one."""
    for name in ("experiments_h100.yaml", "experiments_h100_further.yaml"):
        for e in bundled_file(name):
            assert e.observed is not None
            shares = [s.ttft_ms.mean / s.e2e_ms.mean for s in e.observed.stages if s.ttft_ms.mean and s.e2e_ms.mean]
            assert max(shares) <= 0.022 if e.quality == "clean" else min(shares) >= 0.65


# ---- the log


def log_of(tmp_path: Path, data: str | bytes) -> tuple[EngineLog, FolderFindings]:
    path, findings = tmp_path / "vllm.log", FolderFindings()
    path.write_bytes(data.encode() if isinstance(data, str) else data)
    return read_log(path, findings), findings


def test_the_first_line_with_a_fact_counts(tmp_path: Path) -> None:
    log, findings = log_of(tmp_path, LOG)
    assert not findings
    facts = {"kv_cache_tokens": 16416, "cpu_bytes": 1048576.0, "shape": (1026, 4, 2, 16, 2, 64), "version": "0.15.1"}
    flags = {"async_scheduling": True, "prefix_caching": True, "chunked_prefill": False, "tensor_parallel": 1}
    types = {"dtype": "bfloat16", "kv_cache_dtype": "auto", "connector": "OffloadingConnector"}
    assert log == EngineLog(**facts, **flags, **types, max_model_len=2048)  # type: ignore[arg-type]
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
def test_the_log_tells_of_kv_offload(tmp_path: Path, text: str, offload: bool | None) -> None:
    assert log_of(tmp_path, text)[0].kv_offload is offload


def test_a_log_of_noise_and_of_endless_lines(tmp_path: Path) -> None:
    lines = [b"\xff\xfe\x00" * 99, b"x" * 50_000_000, b"y" * LONGEST_LINE, b"GPU KV cache size: 160 tokens"]
    log, findings = log_of(tmp_path, b"\n".join(lines))
    assert log.kv_cache_tokens == 160 and log.usable_blocks == 9
    assert [f.count for f in findings] == [2] and "2 lines longer than" in findings[0].text


@pytest.mark.parametrize(
    "figure",
    ["KV cache size: ,,, tokens", "KV cache size: 0 tokens", "cpu_bytes_to_use: 1.2.3", "cpu_bytes_to_use: 1e999"],
)
def test_an_invalid_figure_of_the_log_is_ignored(tmp_path: Path, figure: str) -> None:
    log, findings = log_of(tmp_path, f"GPU {figure}\n" * 3 + f"GPU KV cache size: {'9' * 60_000} tokens\n")
    assert log.kv_cache_tokens is None and log.cpu_bytes is None
    assert findings[0].count == 3 and "not a number" in findings[0].text


# ---- names, folders, the manifest


@pytest.mark.parametrize(
    ("name", "parts", "group"),
    [
        ("20260217-155451-a-2-7b-tp1-code", ("20260217-155451", None, "a-2-7b", 1, "code"), "a-2-7b"),
        ("20260217-155451-a-hf-tp4-x", ("20260217-155451", None, "a-hf", 4, "x"), "a"),
        ("48-a-4-16e-tp2-reason-lite-2-1", (None, "48", "a-4-16e", 2, "reason-lite"), "a-4-16e"),
        ("67-a-hf-tp1-reason-lite-1-1", (None, "67", "a-hf", 1, "reason-lite"), "a"),
        ("my-tp2-model-tp16-chat", (None, None, "my-tp2-model", 16, "chat"), "my-tp2-model"),
        ("7-m-tp1-5", (None, "7", "m", 1, "5"), "m"),
        ("llama-tp2", (), None),
        ("", (), None),
    ],
)
def test_names_have_parts(name: str, parts: tuple[Any, ...], group: str | None) -> None:
    assert parse_name(name) == SourceName(*parts) and parse_name(name).group == group


def test_ids_are_unique(tmp_path: Path) -> None:
    names = [NAME, "20300102-120000-llama-2-7b-tp1-chat", "20300102-120000-llama-2-7b-tp1-code"]
    entries = [ingest(build(tmp_path, name)).mapping for name in names]
    written = yaml.safe_load(experiments_yaml(entries))["experiments"]
    assert [e["id"] for e in written] == [names[0], names[1], "llama-2-7b-tp1-code"]


def test_the_other_name_of_the_results_folder(tmp_path: Path) -> None:
    path = build(tmp_path)
    (path / "results").rename(path / "inference-perf-data")
    found = ingest(path)
    assert found.mapping["observed"] and "inference-perf-data/config.yaml" in found.text
    (path / "results").mkdir()
    (path / "results" / "config.yaml").write_text("{}")
    assert "inference-perf-data/: ignored: results/ exists as well" in read(path).text


def test_a_folder_of_folders_stands_for_them(tmp_path: Path) -> None:
    for name in ("b", "a"):
        build(tmp_path, name)
    (tmp_path / "notes").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "b")
    (tmp_path / "b" / "again").symlink_to(tmp_path / "b")
    build(tmp_path / "b", "inner")
    folders, findings = find([tmp_path, tmp_path / "a" / ".." / "b", tmp_path / "link"])
    assert [f.name for f in folders] == ["a", "b"]
    assert "(3); ignoring notes" in findings[0].text
    assert {f.text for f in findings[1:]} == {"is given more than once: read once"}


def refused(*paths: Path) -> str:
    with pytest.raises(InputError) as error:
        find(paths)
    assert "\n" not in str(error.value)
    return str(error.value)


def test_paths_that_are_no_folder_of_an_experiment(tmp_path: Path) -> None:
    path = build(tmp_path / "a")
    build(tmp_path / "b")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    for name in ("empty", "new\nline", "bench"):
        (tmp_path / name).mkdir()
    (tmp_path / "bench" / "bench.json").write_text("{}")
    assert "no such folder" in refused(tmp_path / "absent")
    assert "is a file: name the folder of the run" in refused(path / "vllm.log")
    assert "contains none of exp-config.yaml, profile.yaml" in refused(tmp_path / "empty")
    assert "contains none of" in refused(tmp_path / "new\nline")
    assert refused(tmp_path / "bench").endswith(f"recorded requests with --trace {tmp_path}/bench/*.json")
    assert "is a results folder: name the experiment's folder above it" in refused(path / "results")
    for name in ("loop", "x" * 5000, "nul\0"):
        assert "cannot be read" in refused(tmp_path / name)
    assert "rename one" in refused(path, tmp_path / "b" / NAME)
    assert "no folder is given" in refused()


def test_a_name_of_any_bytes(tmp_path: Path) -> None:
    try:
        path = build(tmp_path, os.fsdecode(b"20300101-120000-llama\xff\x1b[2J\n-tp1-chat"))
    except OSError:
        pytest.skip("this file system takes no such names")
    found = ingest(path)
    assert found.mapping["source_run"].isprintable()
    (experiments_yaml([found.mapping]) + found.text).encode()


LISTED: Json = yaml.safe_load(f"""
{{id: 41, model: {LLAMA}, hw: A100-80GB, workload: chat, dp: null, cpu_offload: false, gpu_mem: 0.8, precision: FP16,
 safe: safe}}
""")


def test_the_manifest_completes_a_folder(tmp_path: Path) -> None:
    path = build(tmp_path, NUMBERED, log=None)
    (tmp_path / "experiments.json").write_text(json.dumps([{"id": 4}, LISTED]))
    found = ingest(path, Given())
    assert found.mapping["id"] == NUMBERED and found.mapping["hardware"] == "A100-SXM-80GB"
    assert found.mapping["engine"]["gpu_memory_utilization"] == 0.8
    assert found.mapping["engine"]["kv_cpu_offload"] is False
    assert "engine: version, total_kv_blocks: no source gives them, left out" in found.text


def test_a_manifest_that_disagrees_is_reported(tmp_path: Path) -> None:
    path = build(tmp_path, NUMBERED)
    listed = {**LISTED, "dp": 2, "safe": "unsafe", "precision": "FP8"}
    (tmp_path / "experiments.json").write_text(json.dumps([listed, LISTED]))
    found = ingest(path, Given("H100", {"gpu_memory_utilization": 0.7}))
    assert found.mapping["hardware"] == "H100-SXM-80GB"
    for text in (
        "experiments.json: lists this experiment more than once",
        "experiments.json: does not mark this experiment as safe",
        "experiments.json: 2 data-parallel replicas",
        "experiments.json: says GPU A100-80GB, --hardware H100-SXM-80GB",
        "vllm.log: KV offload to CPU is true, experiments.json says false",
        "--engine: gpu_memory_utilization is 0.7 as given, the folder says 0.8",
        f"the weights are not FP16 or BF16, but {LLAMA} is not quantized",
    ):
        assert text in found.text


@pytest.mark.parametrize(
    ("manifest", "text"),
    [
        (b"", "is empty"),
        (b"[" * 200_000, "nested too deeply"),
        (b"{}", "is not a list of experiments"),
        (b"\xff\xfe[", "not UTF-8"),
        (b'[{}, 3, null, {"id": [1]}, {"id": ' + b"9" * 400 + b"}]", "does not list this experiment"),
        (b'[{"id": ' + b"9" * 5000 + b"}]", "a number of more than 400 characters"),
        (b'[{"id": 41, "gpu_mem": 1.5}]', "gpu_mem must be a number <= 1"),
        (b'[{"id": "41", "gpu_mem": NaN}]', "gpu_mem must be a finite number, got nan"),
        (b'[{"id": 41, "hw": "/mnt/secret", "cpu_offload": "yes", "dp": 0}]', "hw must be the name of a GPU, got text"),
    ],
)
def test_a_wrong_manifest_is_reported(tmp_path: Path, manifest: bytes, text: str) -> None:
    path = build(tmp_path, NUMBERED)
    (tmp_path / "experiments.json").write_bytes(manifest)
    assert text in ingest(path).text and ingest(path).mapping


# ---- options


def test_the_gpu_must_be_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no file names the GPU: name it with --hardware"):
        ingest(build(tmp_path), Given())
    with pytest.raises(InputError, match=r"--hardware H10: .* the closest are H100, H200, A100"):
        check_hardware("H10")
    for name in (None, "H100"):
        check_hardware(name)


def test_engine_settings_are_given(tmp_path: Path) -> None:
    pairs = ["version=0.9", "max_num_seqs=64", "kv_cpu_offload=false", "gpu_memory_utilization=0.95"]
    overrides = parse_overrides(pairs)
    assert list(overrides.values()) == ["0.9", 64, False, 0.95]
    found = ingest(build(tmp_path), Given("H100", overrides))
    assert overrides.items() <= found.mapping["engine"].items()
    assert "--engine: max_num_seqs is 64 as given, the folder says 32" in found.text


@pytest.mark.parametrize(
    ("pairs", "text"),
    [
        ("max_num_seqs", "--engine max_num_seqs: is not KEY=VALUE"),
        ("=4", "is not KEY=VALUE"),
        ("max_num_seqs=many", "max_num_seqs must be a whole number, got 'many'"),
        ("max_num_seqs=1.5", "max_num_seqs must be a whole number, got 1.5"),
        ("max_num_seqs=0", "max_num_seqs must be >= 1"),
        ("gpu_memory_utilization=nan", "gpu_memory_utilization must be finite"),
        ("gpu_memory_utilization=90", "gpu_memory_utilization must be <= 1"),
        ("prefix_caching=1", "prefix_caching must be true or false, got 1"),
        ("max_num_sequences=4", "is not an engine setting: did you mean 'max_num_seqs'?"),
        ("completed=5", "--engine completed: is not an engine setting: known are "),
        ("block_size=16 block_size=32", "--engine block_size: is given twice"),
        ("version=", "version must be text"),
    ],
)
def test_wrong_engine_settings_are_refused(pairs: str, text: str) -> None:
    with pytest.raises(InputError) as error:
        parse_overrides(pairs.split())
    assert text in str(error.value) and "\n" not in str(error.value)


# ---- damaged files: each has a finding, none stops the others


def replaced(data: bytes) -> Callable[[Path], None]:
    return lambda path: path.write_bytes(data) and None


def instead(make: Callable[[Path], object]) -> Callable[[Path], None]:
    def damage(path: Path) -> None:
        path.unlink()
        make(path)

    return damage


def cut(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])


def laughs(first: str, item: str, levels: int) -> bytes:
    """Anchors that each refer nine times to the one before; `item` takes these references."""
    rows = [f"{chr(98 + i)}: &{chr(98 + i)} {item % ', '.join(['*' + chr(97 + i)] * 9)}\n" for i in range(levels)]
    return (first + "".join(rows)).encode()


directory = instead(Path.mkdir)
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
    "billion laughs": replaced(laughs("a: &a [x, x]\n", "[%s]", 20)),
    "merged laughs": replaced(laughs("a: &a {x: 1}\n", "{<<: [%s]}", 12)),
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
    "a link to itself": instead(lambda path: path.symlink_to(path.name)),
    "a pipe": instead(os.mkfifo),
    "cut": cut,
    "absent": Path.unlink,
}


@pytest.fixture(scope="module")
def undamaged(tmp_path_factory: pytest.TempPathFactory) -> Ingested:
    return ingest(build(tmp_path_factory.mktemp("undamaged")))


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("file", FILES)
def test_a_damaged_file_is_reported_and_the_others_are_read(
    tmp_path: Path, undamaged: Ingested, file: str, damage: str
) -> None:
    path = build(tmp_path)
    DAMAGE[damage](path / file)
    found, before = ingest(path), undamaged.mapping
    if damage == "absent" and file == "profile.yaml":
        assert found.entry == before
        return
    new = [f for f in found.findings if f not in undamaged.findings]
    if damage == "cut" and file.endswith((".yaml", ".log")):  # the first half of such a file may be valid by itself
        assert new or found.findings != undamaged.findings or found.entry == before
    else:
        assert new, "no finding"
    if found.entry is None:
        assert "no experiment is written" in found.text
    elif file in SETTINGS:
        assert found.entry["observed"] == before["observed"]
    else:
        assert found.entry["engine"] == before["engine"]
        assert found.entry["workload"]["stages"] == before["workload"]["stages"]
        assert found.entry["observed"], "the other reports are still there"
    assert not Path("/tmp/secret").exists()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
@pytest.mark.parametrize("file", FILES)
def test_an_unreadable_file_is_reported(tmp_path: Path, file: str) -> None:
    path = build(tmp_path)
    (path / file).chmod(0)
    assert f"{file}: is not readable (permissions)" in ingest(path).text


def test_a_folder_without_a_readable_file_is_refused(tmp_path: Path) -> None:
    path = build(tmp_path)
    for file in FILES:
        directory(path / file)
    assert "has no readable source (exp-config.yaml is not a file" in refused(path)


# ---- one value wrong, anywhere: it has a finding, or changes nothing; the written text can be read


def leaves(node: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if isinstance(node, dict | list) and node:
        for key, value in node.items() if isinstance(node, dict) else enumerate(node):
            yield from leaves(value, (*path, key))
        if path:
            yield path
    else:
        yield path


WRONG = [
    *("text", "12", "", -1, -0.5, math.nan, math.inf, -math.inf, 1e308, 10**400, 2**70),
    *([], [[]], {}, {"mean": "x"}, [{"rate": 1}]),
]


@pytest.mark.parametrize(
    ("file", "values"),
    [
        ("results/summary_lifecycle_metrics.json", reports()["summary"]),
        pytest.param("results/stage_1_lifecycle_metrics.json", reports()["stage_1"], marks=pytest.mark.slow),
        ("exp-config.yaml", EXP_CONFIG),
        ("results/config.yaml", CONFIG),
        ("profile.yaml", PROFILE),
    ],
)
def test_a_wrong_value_is_reported_or_changes_nothing(
    tmp_path: Path, undamaged: Ingested, file: str, values: Json
) -> None:
    path = build(tmp_path)
    for i, leaf in enumerate(leaves(values)):
        for value in WRONG[i % 6 :: 6]:  # six places in turn see all values
            new = put(values, leaf, value)
            (path / file).write_text(json.dumps(new) if file.endswith("json") else yaml.dump(new, Dumper=DUMPER))
            found = read(path)
            if found.entry == undamaged.mapping:
                continue
            assert set(found.findings) != set(undamaged.findings), (leaf, value)
            entry = found.entry
            if entry and entry["model"] in model_table() and entry["hardware"] in hardware_table():
                (path / "experiments.yaml").write_text(experiments_yaml([entry]))
                assert len(load_experiments(path / "experiments.yaml")) == 1


def test_findings_and_text_are_the_same_each_time(tmp_path: Path) -> None:
    path = build(tmp_path)
    first, second = ingest(path), ingest(path)
    assert first.findings == second.findings and look(path) == look(path)
    assert experiments_yaml([first.mapping]) == experiments_yaml([second.mapping])
