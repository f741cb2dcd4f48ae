"""Experiments files: what is read, what is refused, and the figures that ship."""

from __future__ import annotations

import copy
import csv
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from loads import workload
from paths import ROOT, SHARED

from simulator.common.errors import InputError
from simulator.kernels.tables import names as kernel_tables
from simulator.serving.bundled import bundled_experiments, experiments_from_mapping, load_experiments, published_errors
from simulator.serving.digests import data_hash
from simulator.serving.distribution import constant
from simulator.serving.engine import SETTINGS, Engine
from simulator.serving.experiment import Experiment
from simulator.serving.facts import Facts
from simulator.serving.gpu import Mfu, hardware_table
from simulator.serving.model import model_table
from simulator.serving.observations import Observation, Statistic
from simulator.serving.workload import Arrival, Profile, Stage, Workload, gaps_of

MISSING = object()
MINIMAL: dict[str, Any] = yaml.safe_load("""
version: 1
experiments:
- id: x
  model: llama-2-7b
  hardware: H100
  workload:
    name: chat
    stages: [{rate: 2, duration_s: 30.0}]
    shared_prefix: {groups: 2, prompts_per_group: 3, system_prompt_len: 10, question_len: 90}
    output_len: 20
""")


def read(raw: object) -> list[Experiment]:
    return experiments_from_mapping(raw, "my.yaml")


def changed(path: str, value: object) -> dict[str, Any]:
    """MINIMAL with the value at a dotted path of the entry replaced, added or (MISSING) removed; numbers index lists."""
    raw = copy.deepcopy(MINIMAL)
    *steps, last = path.split(".")
    node: Any = raw["experiments"][0]
    for step in steps:
        node = node[int(step)] if step.isdigit() else node.setdefault(step, {})
    if value is MISSING:
        del node[last]
    else:
        node[last] = value
    return raw


def one(path: str, value: object) -> Experiment:
    (x,) = read(changed(path, value))
    return x


def complaint(raw: object) -> str:
    with pytest.raises(InputError) as caught:
        read(raw)
    message = str(caught.value)
    assert "\n" not in message and message.startswith("my.yaml: ")
    return message.removeprefix("my.yaml: ")


def profile_of(x: Experiment) -> Profile:
    assert isinstance(x.workload.source, Profile)
    return x.workload.source


def test_defaults() -> None:
    (x,) = read(MINIMAL)
    assert (x.id, x.model, x.hardware, x.quality) == ("x", "meta-llama/Llama-2-7b-hf", "H100-SXM-80GB", "clean")
    assert x.engine == Engine() and x.engine.given == frozenset()
    prompts = Profile(Arrival("poisson"), 2, 3, 10, constant(90), None, constant(20))
    assert x.workload == Workload("chat", (Stage(2.0, 30.0),), prompts, True, None)
    assert x.observed is None
    assert x.facts["max_model_len"] == 4096  # the model's own limit
    assert x.notes[0] == "prompt length taken as system_prompt_len + question_len"
    assert x.notes[1].startswith("assumed, as `engine` does not say: max_num_seqs 128, max_num_batched_tokens 2048 (")


def test_every_setting_is_read() -> None:
    raw = copy.deepcopy(MINIMAL)
    entry = raw["experiments"][0]
    engine: dict[str, Any] = yaml.safe_load("""{
        name: v, version: '1', tensor_parallel: 2, data_parallel: 2, expert_parallel: 1, pipeline_parallel: 1,
        max_num_seqs: 64, max_num_batched_tokens: 2000, max_model_len: 1024,
        block_size: 32, gpu_memory_utilization: 0.8, chunked_prefill: false, prefix_caching: false,
        long_prefill_token_threshold: 100, kv_cpu_offload: true, total_kv_blocks: 777, kv_cache_dtype: fp8_e5m2,
        quantization: fp8, expert_routing: uniform, prefill_schedule_interval: 2,
        cudagraph_capture_max: 64, cudagraph_mode: full_decode_only, enforce_eager: true, async_scheduling: false,
        stream_interval: 20, allreduce_rms_fusion: true, kv_offloading_size: 0, kv_offload_gb_per_s: 12.5,
        kv_offload_latency_us: 7, offload_prompt_only: false, speculative_method: draft_model,
        num_speculative_tokens: 3, speculative_acceptance: 0.5, draft_model: llama-2-7b}""")
    entry |= {"engine": engine, "quality": "overloaded", "x_note": ["a  b", "c"], "source_run": {"any": 1}}
    entry["workload"] |= {"arrival": "even", "ignore_eos": False, "timeout_s": 300, "prompt_len_mean": 99.5}
    entry["observed"] = {
        "summary": {"e2e_ms": {"mean": 5, "p90": 7.5}, "itl_mean_ms": 0.25, "completed": 60, "failed": 1},
        "stages": [{"ttft_ms": {"p50": 1.5, "p99": 2}, "harness_itl_mean_ms": "anything"}],
    }
    (x,) = read(raw)
    assert set(engine) == set(SETTINGS) and x.engine == Engine(**engine) and x.engine.to_entry() == engine
    assert (x.facts["kv_blocks"], x.facts["kv_cpu_offload"], x.facts["block_size"]) == (777, 1, 32)
    profile = profile_of(x)
    assert (profile.arrival, x.workload.timeout_s, profile.prompt_len_mean) == (Arrival("even"), 300.0, 99.5)
    none = Statistic()
    assert x.observed is not None
    assert x.observed.summary == Observation(Statistic(5.0, None, 7.5), none, Statistic(0.25), completed=60, failed=1)
    assert x.observed.stages == (Observation(none, Statistic(None, 1.5, None, 2.0), none),)
    drafts, ends, *own = x.notes
    assert drafts.startswith("draft_model, 3 drafted tokens a step: ") and own == ["a b", "c"]
    assert ends.startswith("ignore_eos: false is not replayed")


def test_without_chunked_prefill_a_step_has_room_for_the_longest_prompt() -> None:
    """vLLM's rule: at least max_model_len and 2048 tokens if nothing is given, and no less than max_model_len if it is."""

    def budget(**engine: Any) -> int:
        x = one("engine", {"chunked_prefill": False, **engine})
        assert x.facts["max_num_batched_tokens"] == x.engine.max_num_batched_tokens
        return x.engine.max_num_batched_tokens

    assert budget() == 4096  # the model's own limit
    assert (budget(max_model_len=3000), budget(max_model_len=1000)) == (3000, 2048)
    assert budget(max_model_len=1000, max_num_batched_tokens=1000) == 1000
    with pytest.raises(InputError, match=r"engine\.max_num_batched_tokens must be at least max_model_len, 4096"):
        budget(max_num_batched_tokens=4095)


MAY_BE_NULL = """engine.max_model_len engine.total_kv_blocks engine.version engine workload.timeout_s
    workload.prompt_len_mean observed model_config"""


@pytest.mark.parametrize("key", MAY_BE_NULL.split())
def test_null_means_left_out_where_that_is_allowed(key: str) -> None:
    assert read(changed(key, None)) == read(MINIMAL)


def test_inline_model_and_hardware() -> None:
    terms = dict(model_table()["llama-2-7b"]["config"])
    raw = changed("model_config", {**terms, "quantization": "fp8", "generation_config": {"repetition_penalty": 1.1}})
    gpu = {**hardware_table()["H100"], "name": "my-gpu", "memory_tb_per_s": 6.7}
    raw["experiments"][0] |= {"hardware": gpu, "model": "me/mine-FP8"}
    (x,) = read(raw)
    assert (x.model, x.hardware) == ("me/mine-FP8", "my-gpu")
    assert (x.facts["bytes_per_us"], x.facts["repetition_penalty"], x.facts["is_fp8"]) == (6.7e6, 1, 1)


H100 = hardware_table()["H100"]
REFUSED: list[tuple[str, object, str]] = [
    ("id", MISSING, "experiments[0]: id is missing"),
    ("id", 7, "experiments[0]: id must be text, got 7"),
    ("quality", "cleen", "quality is 'cleen', which is not fitted: did you mean 'clean'?"),
    ("modle", 1, "modle is not a known key: did you mean 'model'?"),
    ("model", MISSING, "model is missing"),
    ("model", "llama-2-7", "model 'llama-2-7' is not in the model table"),
    ("model_config", [], "model_config must be a mapping, got []"),
    ("hardware", "H100-SMX", "hardware 'H100-SMX' is not in the hardware table"),
    ("hardware", {"name": "g", "tflops": 1}, "hardware.tflops is not a known key: known are aliases, bf16_tflops, "),
    ("hardware", {"name": "g"}, "hardware.bf16_tflops is missing"),
    ("hardware", {**H100, "mfu_prefill": 65}, "hardware.mfu_prefill must be <= 1, got 65"),
    ("hardware", {**H100, "memory_tb_per_s": 3350}, "hardware.memory_tb_per_s must be <= 100, got 3350"),
    ("engine.data_parallel_size", 2, "engine.data_parallel_size is not a known key: it is called data_parallel here"),
    ("engine.enable_expert_parallel", True, "here expert_parallel is the number of GPUs over which experts are spread"),
    ("engine.expert_parallel", 2, "engine.expert_parallel must be 1 or tensor_parallel x data_parallel, 1, got 2"),
    ("engine.pipeline_parallel", 999, "engine.pipeline_parallel is 999, and the model has 32 layers"),
    ("engine.enable_lora", True, "engine.enable_lora is not a known key: it is not modelled"),
    (
        "engine.kv_cache_dtype",
        "fp4",
        "engine.kv_cache_dtype must be one of auto, bfloat16, fp8, fp8_e4m3, fp8_e5m2, got",
    ),
    ("engine.cudagraph_mode", "all", "engine.cudagraph_mode must be one of none, piecewise, full, full_decode_only, "),
    ("engine.stream_interval", 0, "engine.stream_interval must be >= 1, got 0"),
    ("engine.tp", 2, "engine.tp is not a known key: it is called tensor_parallel here"),
    ("engine.max_num_seq", 1, "engine.max_num_seq is not a known key: did you mean 'max_num_seqs'?"),
    ("engine.max_num_seqs", True, "engine.max_num_seqs must be a whole number, got true"),
    ("engine.max_num_seqs", None, "engine.max_num_seqs must be a whole number, got null"),
    ("engine.block_size", 0, "engine.block_size must be >= 1, got 0"),
    ("engine.total_kv_blocks", 2**60, "engine.total_kv_blocks must be <= 100000000"),
    ("engine.gpu_memory_utilization", 1.2, "engine.gpu_memory_utilization must be <= 1, got 1.2"),
    ("engine.prefix_caching", "yes", "engine.prefix_caching must be true or false, got 'yes'"),
    ("engine.version", 0.15, "engine.version must be text, got 0.15"),
    ("engine.tensor_parallel", 3, "engine.tensor_parallel must divide the model's 32 attention heads"),
    ("workload", MISSING, "workload is missing"),
    ("workload.rate", 5, "workload.rate is not a known key: it belongs to a stage"),
    ("workload.max_num_seqs", 8, "workload.max_num_seqs is not a known key: write `engine: {max_num_seqs: ...}`"),
    ("window_s", 8, "window_s is not a known key: write `workload: {window_s: ...}`"),
    ("rate", 8, "rate is not a known key: write `workload: {stages: [{rate: ...}]}`"),
    ("version", 8, "write `engine: {version: ...}` or `version: ...` at the top of the file"),
    ("workload.stages", [], "workload.stages must be a non-empty list, got []"),
    ("workload.stages.0.duration_s", 0, "workload.stages[0].duration_s must be > 0, got 0"),
    ("workload.stages.0.duration_s", True, "workload.stages[0].duration_s must be a number, got true"),
    ("workload.stages.0.rate", -1.5, "workload.stages[0].rate must be > 0, got -1.5"),
    ("workload.stages.0.rate", "1e3", "workload.stages[0].rate must be a number, got '1e3'"),
    ("workload.stages.0.rate", math.nan, "workload.stages[0].rate must be finite, got nan"),
    ("workload.stages.0.rate", 10**400, f"workload.stages[0].rate must be finite, got 1{'0' * 56}..."),
    ("workload.stages.0.rates", 1, "workload.stages[0].rates is not a known key: did you mean 'rate'?"),
    ("workload.output_len", MISSING, "workload.output_len is missing"),
    ("workload.prompt_len", 5, "workload.shared_prefix and prompt_len exclude each other"),
    ("workload.shared_prefix", MISSING, "workload.shared_prefix is missing"),
    ("workload.shared_prefix.groups", 0, "workload.shared_prefix.groups must be >= 1, got 0"),
    ("observed.sumary", {}, "observed.sumary is not a known key: did you mean 'summary'?"),
    ("observed.e2e_ms", {}, "observed.e2e_ms is not a known key: write `observed: {summary: {e2e_ms: ...}}`"),
    ("observed.stages", [{}, {}], "observed.stages must be as many as workload.stages (1), got 2"),
    ("observed.stages", [{"ttft_ms": {"p95": 1}}], "observed.stages[0].ttft_ms.p95 is not a known key"),
    ("observed.summary", {"e2e_ms": {"mean": "5"}}, "observed.summary.e2e_ms.mean must be a number, got '5'"),
    ("observed.summary.e2e_ms", {"mean": 1, 850: None}, "e2e_ms.850 is not a known key"),
    ("observed.summary.e2e_ms", {"median": 1}, "e2e_ms.median is not a known key: it is called p50 here"),
    ("observed.summary", {"median_ttft_ms": 9.0}, "median_ttft_ms is not a known key: write `ttft_ms: {p50: ...}`"),
    ("observed.summary", {"mean_itl_ms": 9.0}, "mean_itl_ms is not a known key: it is a mean over tokens"),
    ("observed.summary", {"tpot_ms": 9.0}, "tpot_ms is not a known key: the mean of each request's (E2E - TTFT)/"),
    ("observed.summary", {"itl_mean_ms": math.nan}, "observed.summary.itl_mean_ms must be finite, got nan"),
    ("observed.summary", {"e2e_ms": {"mean": 6.0}, "ttft_ms": {"mean": 9.0}}, "ttft_ms mean 9 is above that of e2e_ms"),
    ("observed.summary", {"e2e_ms": {"p50": 9.0, "p90": 5.0}}, "observed.summary.e2e_ms.p90 5 is below p50, 9"),
    ("x_note", 5, "x_note must be text or a list of texts, got 5"),
]


@pytest.mark.parametrize(("path", "value", "message"), REFUSED, ids=[f"{p}={v!r:.12}" for p, v, _ in REFUSED])
def test_a_wrong_entry_is_refused_with_place_and_reason(path: str, value: object, message: str) -> None:
    told = complaint(changed(path, value))
    assert message in told and told.startswith(("experiment 'x': ", "experiments[0]: ")) and told.count(": ") >= 2


@pytest.mark.parametrize(
    ("top", "message"),
    [
        ({"version": 2}, "version must be 1, got 2: write version: 1"),
        ({"version": True}, "version must be 1, got true: write version: 1"),
        ({"experiment": []}, "experiment is not a known key: did you mean 'experiments'?"),
        ({"model": "m"}, "model is not a known key: write `model: ...` in an entry of `experiments`"),
        ({"experiments": []}, "experiments must be a non-empty list, got []"),
        ({"experiments": ["x"]}, "experiments[0] must be a mapping, got 'x'"),
        ({"experiments": MINIMAL["experiments"] * 2}, "experiment 'x': id is used twice"),
    ],
)
def test_a_wrong_file_is_refused_in_one_line(top: dict[str, Any], message: str) -> None:
    assert complaint(MINIMAL | top).startswith(message)
    assert complaint({"experiments": []}).startswith("version is missing")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "is empty: begin with `version: 1` and `experiments:`"),
        (b"- 1\n", "must be a mapping, got [1]: begin with `version: 1` and `experiments:`"),
        (b"version: 1\nexperiments: caf\xe9\n", "line 2: not UTF-8 text: save the file as UTF-8"),
        (b"version: 1\nexperiments: [\n", "line 3: not valid YAML, "),
        (b"a: 1\nb: c: d\n", "line 2: not valid YAML, mapping values are not allowed in this context: correct"),
        (b"a: 1\n\x00\x01\n", "not valid YAML, "),
        (b"a: !!bool perhaps\n", "not valid YAML, a tag that its value does not match: correct the syntax"),
        (b"a: !!timestamp perhaps\n", "not valid YAML, a tag that its value does not match: correct the syntax"),
        (b"when: 2024-99-99\n", "not valid YAML, month must be in 1..12: correct the syntax"),
        (b"x: !!python/object/apply:os.getcwd []\n", "line 1: not valid YAML, could not determine a constructor"),
        (b"version: 1\nexperiments:\n- id: a\n  id: b\n", "line 4: not valid YAML, the key 'id' twice"),
    ],
)
def test_unreadable_files(tmp_path: Path, data: bytes, message: str) -> None:
    path = tmp_path / "f.yaml"
    path.write_bytes(data)
    with pytest.raises(InputError) as caught:
        load_experiments(path)
    found = str(caught.value)
    assert found.startswith(f"{path}: ") and message in found and "\n" not in found


def test_a_missing_file_and_a_directory(tmp_path: Path) -> None:
    for path, why in ((tmp_path / "no.yaml", "No such file or directory"), (tmp_path, "Is a directory")):
        with pytest.raises(InputError) as caught:
            load_experiments(path)
        assert str(caught.value) == f"{path}: cannot be read ({why}): name a YAML file of experiments"


def test_bundled_figures_are_consistent() -> None:
    """ITL is (E2E - TTFT)/(output_len - 1) everywhere, and counts add up to what was offered."""
    for x in bundled_experiments():
        assert x.observed is not None and x.observed.summary is not None
        for o in (x.observed.summary, *x.observed.stages):
            assert o.e2e_ms.mean is not None and o.ttft_ms.mean is not None
            itl = (o.e2e_ms.mean - o.ttft_ms.mean) / gaps_of(x.workload)
            assert o.itl_ms.mean == pytest.approx(itl, abs=6e-5)
        for stage, o in zip(x.workload.stages, x.observed.stages, strict=True):
            if o.completed is not None and o.failed is not None:
                assert o.completed + o.failed == stage.rate * stage.duration_s


def test_tables_know_every_alias() -> None:
    models, gpus = model_table(), hardware_table()
    for table, key in ((models, "id"), (gpus, "name")):
        entries = {entry[key]: entry for entry in table.values()}.values()
        names = [name for entry in entries for name in (entry[key], *entry.get("aliases", ()))]
        assert sorted(names) == sorted(table)  # so none is used twice
    assert {entry["kernels"] for entry in gpus.values() if "kernels" in entry} == set(kernel_tables())
    assert "kernels" not in gpus["H100-NVL"]
    assert gpus["H100"] is gpus["H100-SXM"] is gpus["H100-SXM-80GB"]
    assert gpus["A100 80GB"]["fp8_tflops"] is None
    assert all(entry["source"] for entry in (*models.values(), *gpus.values()))


def test_data_hash_sees_every_figure_and_not_the_order() -> None:
    runs = bundled_experiments()
    first, known = runs[0], data_hash(runs)
    assert len(known) == 16 and data_hash(runs[::-1]) == known
    assert first.observed is not None and first.observed.summary is not None
    nudged = replace(first.observed, summary=replace(first.observed.summary, completed=1))
    for other in (
        replace(first, observed=nudged),
        replace(first, facts=Facts({**first.facts, "tp": 2.0}, first.facts.deployed)),
        replace(first, workload=workload(first.workload, output_len=1)),
        replace(first, quality="overloaded"),
    ):
        assert data_hash([other, *runs[1:]]) != known


def shared(name: str) -> Path:
    path = SHARED / "data" / name
    if not path.exists():
        pytest.skip(f"../shared absent: {name} cannot be compared")
    return path


@pytest.mark.parametrize("pair", ["h100.yaml h100_vllm_0_15_1.yaml", "h100_further.yaml h100_trainval.yaml"])
def test_every_key_was_carried_over(pair: str) -> None:
    ours, theirs = (f"experiments_{name}" for name in pair.split())
    mine = yaml.safe_load((ROOT / "configs" / ours).read_text())
    for a, b in zip(mine["experiments"], yaml.safe_load(shared(theirs).read_text())["experiments"], strict=True):
        a.pop("x_note", None)
        a["workload"].pop("timeout_s", None)
        b.pop("model_config", None)
        assert a == b


def test_models_and_published_errors_were_carried_over() -> None:
    source = json.loads(shared("model_configs.json").read_text())
    del source["_note"]
    ours = {e["id"]: {**e["config"], "generation_config": e["generation_config"]} for e in model_table().values()}
    for config in ours.values():
        config.pop("extra_weights_gib", None)  # our own figure, its arithmetic beside it
    assert ours.keys() > source.keys() and {name: ours[name] for name in source} == source
    rows = list(csv.DictReader(shared("published_errors.csv").read_text().splitlines()))
    assert [(r.system, r.experiment, r.metric, r.abs_error_pct, r.source) for r in published_errors()] == [
        (r["system"], r["experiment"], r["metric"], float(r["abs_error_pct"]), r["source"]) for r in rows
    ]


DATASHEET = yaml.safe_load("""
name: H100 SXM
compute: {bf16_tensor_core: 1979.0, fp8_tensor_core: 3958.0, with_sparsity: true}
memory: {capacity_gb: 80, bandwidth_tb_s: 3.35}
interconnect: {nvlink_bandwidth_gb_s: 900.0}
""")
HOST = yaml.safe_load(
    "{TFlopsPeak: 989.5, TFlopsFP8: 1979.0, BwPeakTBs: 3.35, MemoryGiB: 80, mfuPrefill: 0.5, link_gb_per_s: 450.0}"
)


@pytest.mark.parametrize("gpu", [DATASHEET, HOST, dict(H100)])
def test_a_gpu_may_be_given_as_a_datasheet_or_as_the_hosts_table(gpu: dict[str, object]) -> None:
    """All spell the H100 SXM: 1979 TFLOP/s with sparsity = 989.5 dense, 900 GB/s both ways = 450 each."""
    plain = {key: value for key, value in gpu.items() if key != "mfuPrefill"}
    x = one("hardware", plain)
    facts = x.facts
    assert (facts["flops_per_us"], facts["bytes_per_us"], facts["link_bytes_per_us"]) == (989.5e6, 3.35e6, 450e3)
    assert x.mfu == Mfu(0.65, 0.12)
    y = one("hardware", {**plain, "mfu_prefill": 0.5, "mfu_decode": 1})
    assert y.mfu == Mfu(0.5, 1.0) and y.facts == x.facts
    assert data_hash([y]) != data_hash([x])  # the baselines of a run depend on it
    assert one("hardware", HOST).mfu == Mfu(0.5, 0.12)


def test_one_gpu_needs_no_link() -> None:
    facts = one("hardware", {"bf16_tflops": 989.5, "memory_tb_per_s": 3.35, "memory_gb": 80}).facts
    assert facts["allreduce_us_per_token"] == 0.0


def test_a_slip_in_a_model_key_does_not_become_a_default() -> None:
    config = {**dict(model_table()["llama-3.1-8b"]["config"]), "num_key_value_head": 8}
    del config["num_key_value_heads"]
    told = complaint(changed("model_config", config))
    assert "model_config.num_key_value_head is not a key" in told and "did you mean 'num_key_value_heads'?" in told


def test_missing_figures_follow_from_the_others() -> None:
    halved = {"summary": {"e2e_ms": {"mean": 200.0}, "ttft_ms": {"mean": 10.0}, "itl_mean_ms": 5.0}}
    x = one("observed", halved)  # (200 - 10)/19 = 10
    assert any("itl_mean_ms is 5, but (E2E - TTFT)/(output_len - 1) is 10" in note for note in x.notes)
    assert x.observed is not None and x.observed.summary is not None and x.observed.summary.itl_ms.mean == 10.0
    x = one("observed", {"stages": [{"e2e_ms": {"mean": 200.0}, "ttft_ms": {"mean": 10.0}}]})
    assert x.observed is not None and x.observed.summary is not None
    assert x.observed.summary.e2e_ms.mean == 200.0 and x.observed.summary.itl_ms.mean == 10.0


@pytest.mark.parametrize(("itl", "left_out"), [(5.0, True), (9.0, False), (12.0, False)])
def test_a_halved_itl_of_answers_of_many_lengths_is_left_out(itl: float, left_out: bool) -> None:
    """Their mean length tells that it is halved, but not what it is: (200 - 10)/19 = 10."""
    load = {"name": "w", "prompt_len": 9, "output_len": {"uniform": {"min": 10, "max": 30}}}
    raw = changed("workload", load | {"stages": [{"rate": 1.0, "duration_s": 60.0}]})
    raw["experiments"][0]["observed"] = {
        "summary": {"e2e_ms": {"mean": 200.0}, "ttft_ms": {"mean": 10.0}, "itl_mean_ms": itl}
    }
    (x,) = read(raw)
    assert x.observed is not None and x.observed.summary is not None
    assert x.observed.summary.itl_ms.mean == (None if left_out else itl)
    assert any("halved it, so it is left out" in note for note in x.notes) == left_out


def test_figures_that_contradict_each_other_are_doubted() -> None:
    """Percentiles of TTFT above those of E2E, which no requests have, and a mean outside those of the stages."""
    stages = [{"e2e_ms": {"mean": 100.0}}, {"e2e_ms": {"mean": 120.0}}]
    load = {"name": "w", "prompt_len": 9, "output_len": 5, "stages": [{"rate": 1.0, "duration_s": 60.0}] * 2}

    def notes(summary: Any) -> str:
        raw = changed("workload", load)
        raw["experiments"][0]["observed"] = {"summary": summary, "stages": stages}
        (x,) = read(raw)
        return " ".join(x.notes)

    assert "check the figures" not in notes({"e2e_ms": {"mean": 121.0, "p50": 110.0}, "ttft_ms": {"p50": 90.0}})
    assert "of the run, 130 ms, is not among those of its stages, 100 to 120 ms" in notes({"e2e_ms": {"mean": 130.0}})
    later = notes({"e2e_ms": {"p90": 90.0}, "ttft_ms": {"p90": 95.0}})
    assert "the observed p90 of TTFT, 95 ms, is above that of E2E, 90 ms" in later
    stages[1]["e2e_ms"]["p99"] = 119.0
    above = notes({"e2e_ms": {"mean": 110.0}})
    assert above.count("above its p99") == 1 and "mean E2E in stage 2, 120 ms, is above its p99, 119 ms" in above
    for rate, mean, said in ((1.0, 60.0, False), (2.0, 91.0, False), (2.0, 89.0, True), (0.5, 89.0, False)):
        load["stages"] = [{"rate": 1.0, "duration_s": 60.0}, {"rate": rate, "duration_s": 60.0}]
        stages[1] = {"e2e_ms": {"mean": mean}}
        falls = "mean E2E falls from 100 ms at 1 requests/s to 89 ms at 2"
        assert (falls in notes({"e2e_ms": {"mean": 95.0}})) == said
