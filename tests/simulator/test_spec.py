"""Specs: what is written is read again, what is varied follows the rules, and what cannot be meant is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from trace_tables import HEAD, written

from simulator.common.documents import shipped, yaml_text
from simulator.common.errors import InputError
from simulator.serving.bundled import BUNDLED, load_experiments, load_specs, specs_from_mapping
from simulator.serving.experiment import deploy
from simulator.serving.gpu import hardware_table
from simulator.serving.model import model_table
from simulator.serving.spec import Spec, read_spec
from simulator.serving.traces.read import files_beside
from simulator.serving.workload import at_rate, mean_rate

RUNS = {spec.id: spec for name in BUNDLED for spec in load_specs(name)}
MEASURED_BLOCKS = RUNS["llama-2-70b-tp4-general"]  # whose engine said its KV blocks
PLAN: dict[str, Any] = {"model": "llama-3.1-8b", "hardware": "H100", "rate": 5, "prompt_len": 1000, "output_len": 300}


@pytest.mark.parametrize("name", BUNDLED)
def test_every_shipped_entry_is_written_as_it_was_read(name: str) -> None:
    for spec, entry in zip(load_specs(name), shipped(name)["experiments"], strict=True):
        found = spec.to_entry()
        assert read_spec(found, "again") == spec
        assert found == entry | ({"x_note": [entry["x_note"]]} if "x_note" in entry else {})
        assert list(found) == list(entry)
        assert [*found["engine"]] == [*entry["engine"]] and [*found["workload"]] == [*entry["workload"]]


ENTRIES = """
- id: all
  source_run: r1
  published_page: 7
  model: me/mine
  model_config: {hidden_size: 4096, num_hidden_layers: 4, num_attention_heads: 32, intermediate_size: 11008,
    vocab_size: 32000, max_position_embeddings: 4096, x_mine: 1}
  hardware: {name: mine, bf16_tflops: 400, memory_tb_per_s: 2.5, memory_gb: 40, mfu_decode: 0.2, source: a page}
  engine: {tensor_parallel: 1, block_size: 16, chunked_prefill: false, x_flags: [a]}
  workload:
    name: w
    arrival: {gamma: {cv: 2.0}}
    stages: [{rate: 1.0, duration_s: 60.0, x_part: warm}, {rate: 2.0, duration_s: 60.0, arrival: {burst: {size: 3}},
      prompt_len: {uniform: {min: 1.0, max: 9.0}}, output_len: {empirical: lengths.csv}}]
    shared_prefix: {groups: 2, system_prompt_len: 10, question_len: {normal: {mean: 9.0, sd: 2.0, min: 1, max: 20.0}}}
    output_len: {lognormal: {mean: 9.0, sd: 2.0, min: 1, max: 50.0}}
    session: {turns: 3, think_time_s: 2.5}
    ignore_eos: false
    timeout_s: 9.5
  observed: {stages: [{completed: 60, e2e_ms: {mean: 3.0}}, {}]}
  quality: odd
  x_note: [a, b]
  x_components_ms: {waiting: 1.0, client: -2.0}
  x_components_requests: 5
- id: trace
  model: llama-2-7b
  hardware: H100-SXM-80GB
  engine: {}
  workload: {name: t, trace: t.csv, window_s: 5.0, window_requests: 1, timeout_s: 3.0}
"""


def test_every_form_is_written_as_it_was_read(tmp_path: Path) -> None:
    written(tmp_path, "lengths.csv", "len\n7\n5\n7\n")
    written(tmp_path, "t.csv", HEAD + "\n0,10,3\n10,10,3\n")
    entries = yaml.safe_load(ENTRIES)
    files = files_beside(tmp_path / "my.yaml")
    specs = specs_from_mapping({"version": 1, "experiments": entries}, "my.yaml", files)
    for spec, entry in zip(specs, entries, strict=True):
        if "usable_gib" in (hardware := spec.to_entry()["hardware"]):
            entry["hardware"] |= {"usable_gib": hardware["usable_gib"], "mfu_prefill": 0.65}  # what followed is written
        assert spec.to_entry() == entry
    text = yaml_text({"version": 1, "experiments": [spec.to_entry() for spec in specs]})
    (tmp_path / "again.yaml").write_text(text)
    assert load_specs(str(tmp_path / "again.yaml")) == specs
    assert len(load_experiments(tmp_path / "again.yaml")) == 2


def test_measurements_belong_to_what_was_measured() -> None:
    spec = RUNS["llama-2-7b-tp1-reasoning"]
    varied = spec.vary()
    assert (spec.quality, varied.quality, varied.observed, varied.components) == ("overloaded", "clean", None, None)
    assert [*spec.free][-1][0] == "observed" and [*varied.free] == [("source_run",)]
    assert varied.engine == spec.engine and varied.workload == spec.workload and varied.notes == spec.notes


SAME: list[dict[str, Any]] = [{}, {"tp": 4}, {"max_num_seqs": 7}, {"hardware": "H100"}]
OTHER: list[dict[str, Any]] = [{"tp": 8}, {"tensor_parallel": 8}, {"hardware": "H200"}, {"model": "llama-3.1-70b"}]


@pytest.mark.parametrize("change", [*SAME, *OTHER])
def test_kv_blocks_stay_where_they_were_measured(change: dict[str, Any]) -> None:
    kept = change in SAME
    spec, own = MEASURED_BLOCKS.vary(**change), MEASURED_BLOCKS.engine.total_kv_blocks
    assert own and spec.engine.total_kv_blocks == (own if kept else None)
    note = [text for text in deploy(spec).notes if text.startswith("total_kv_blocks was measured with tp 4")]
    assert len(note) == (not kept)
    assert any("on H100-SXM-80GB" in text for text in note) == (change.get("hardware") == "H200")


def test_a_setting_can_be_varied_and_taken_back() -> None:
    spec = Spec.of(**PLAN).vary(max_num_seqs=7, max_model_len=2000, tp=2)
    assert spec.to_entry()["engine"] == {"tensor_parallel": 2, "max_num_seqs": 7, "max_model_len": 2000}
    assert deploy(spec).facts["max_model_len"] == 2000
    back = spec.vary(max_num_seqs=None, max_model_len=None)
    assert back.to_entry()["engine"] == {"tensor_parallel": 2} and back.engine.given == {"tensor_parallel"}
    assert "max_num_seqs 128, max_num_batched_tokens 2048" in deploy(back).notes[0]  # assumed again


def test_experts_stay_spread_over_all_gpus() -> None:
    spec = Spec.of(**{**PLAN, "model": "mixtral-8x7b"}, tp=2).vary(data_parallel=2, expert_parallel=4)
    assert (spec.engine.gpus, spec.vary(tp=4).engine.expert_parallel) == (4, 8)
    assert spec.vary(data_parallel=None).engine.expert_parallel == 2
    assert MEASURED_BLOCKS.vary(data_parallel=2).engine.total_kv_blocks is None


def test_a_rate_is_that_of_the_whole_load() -> None:
    spec = RUNS["llama-2-7b-tp1-codegen"]
    assert spec.vary(rate=3).workload == at_rate(spec.workload, 3.0) and mean_rate(spec.vary(rate=3).workload) == 3.0


def test_a_trace_at_another_rate_is_in_no_file(tmp_path: Path) -> None:
    written(tmp_path, "t.csv", HEAD + "\n0,10,3\n10,10,3\n")
    entry = {"id": "t", "model": "llama-2-7b", "hardware": "H100", "workload": {"name": "t", "trace": "t.csv"}}
    spec = read_spec(entry, "my.yaml", files_beside(tmp_path / "my.yaml"))
    with pytest.raises(InputError, match=r"no file has these requests of t\.csv"):
        spec.vary(rate=5.0).to_entry()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"max_num_seq": 1}, "engine.max_num_seq is not a known key: did you mean 'max_num_seqs'?"),
        ({"tp": 0}, "engine.tensor_parallel must be >= 1, got 0"),
        ({"tp": 1.5}, "engine.tensor_parallel must be a whole number"),
        ({"rate": -1}, "rate must be > 0, got -1"),
        ({"rate": 1e-9}, "workload.stages offer no request"),
        ({"hardware": "H1000"}, "hardware 'H1000' is not in the hardware table"),
        ({"model": "nomodel"}, "model 'nomodel' is not in the model table"),
    ],
)
def test_a_change_that_cannot_be_meant_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as caught:
        Spec.of(**PLAN).vary(**change)
    assert str(caught.value).startswith(f"llama-3.1-8b on H100, TP 1: {message}")


def test_no_room_is_an_error_of_the_deployment_only() -> None:
    """140 GB of weights on one H100, and three GPUs for 64 heads."""
    large = Spec.of(**PLAN | {"model": "llama-3.1-70b"})
    with pytest.raises(InputError, match="leaves no room for KV cache"):
        deploy(large)
    with pytest.raises(InputError, match="must divide the model's 64 attention heads"):
        deploy(large.vary(tp=3))
    assert deploy(large.vary(tp=4)).engine.tensor_parallel == 4


def test_a_model_of_a_table_equals_its_terms() -> None:
    entry = model_table()["llama-2-7b"]
    named = Spec.of(**PLAN | {"model": "llama-2-7b"})
    terms = entry["config"] | {"generation_config": entry["generation_config"]}
    given = read_spec(named.to_entry() | {"model_config": terms}, "x")
    assert replace(given.model, given=None) == named.model and given.model.sampling_known
    as_mapping = read_spec(named.to_entry() | {"hardware": dict(hardware_table()["H100"])}, "x")
    assert as_mapping.gpu == named.gpu and as_mapping.to_entry()["hardware"] == "H100-SXM-80GB"
