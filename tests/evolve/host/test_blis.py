"""The host's scorer on our programs: `evolve-blis` on its command line, and its documents in `evolve score`."""

from __future__ import annotations

import json
import subprocess
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import blis_harness as harness
import numpy as np
import pytest
import yaml
from commands import Capsys, as_json, refused
from paths import ROOT

from evaluator import host_scorer
from evaluator.host_scorer import closed_load, label_of, labelled
from evolve.cli.blis import blis, metrics
from evolve.cli.entry import run_command
from evolve.host.evaluation import MeasuredPoint, ScoredPoint, read_evaluation, sim_result
from evolve.host.scenario import experiment_of, point_id, read_load, read_scenario, replayed
from evolve.run.program import load
from simulator.clock.replay import replay
from simulator.common.errors import InputError
from simulator.serving.bundled import SERVING, bundled_file
from simulator.serving.experiment import Experiment, deploy
from simulator.serving.spec import read_spec
from simulator.serving.workload import Workload

RUNS = {e.id: e for e in bundled_file(SERVING)}
# All settings of these but stream_interval, which the champion does not read, are in the host's documents. The second
# one has ranks.
STATED = ("llama-3.1-70b-fp8-h100-tp4-1k-1k-c16", "minimax-m2.5-fp8-h200-tp8-ep8-1k-1k-c4")
RANKS = "minimax-m2.5-fp8-b200-tp1-dp4-ep4-1k-1k-c16"
SCENARIO = """
kind: Scenario
name: chat
model: llama-3.1-8b-instruct
coefficients: [cost-model-primitives]
engine_version: "0.29.0"
workload: {shape: chatbot}
cluster: {hardware: h100, nodes: 1, gpus_per_node: 8}
---
kind: Deployment
name: tp2
pools:
- role: colocated
  nodes: 1
  parallel: {tp: 2, pp: 1, dp: 1}
  engine: {block_size: 16, max_num_seqs: 256, max_num_batched_tokens: 8192, gpu_memory_utilization: 0.9}
"""
POINTS = [
    {"concurrency": 1, "output_tokens_per_sec": 157.3, "ttft_ms": 20.0, "itl_ms": 5.0, "mean_isl": 92, "mean_osl": 9},
    {"concurrency": 4, "output_tokens_per_sec": 600.0, "ttft_ms": 30.0, "itl_ms": 5.5},
]


def scorers_load(clients: int = 2, isl: int = 100, osl: int = 10) -> Workload:
    return closed_load(clients, 12 * clients, labelled(isl), labelled(osl))


def under_protocol(e: Experiment, name: str) -> host_scorer.PointFigures:
    """The scorer's figures of a shipped run with its own engine, without any document of the host."""
    assert e.spec is not None
    isl, osl, users = *harness.labels(e), harness.clients(e)
    ident = point_id(name, scorers_load(users, isl, osl))
    assert ident == f"{name}-{isl}-{osl}-c{users}"
    prompt, answer = ({"uniform": {"min": int(0.8 * label), "max": label}} for label in (isl, osl))
    entry = {key: x for key, x in e.spec.to_entry().items() if key != "observed"} | {"id": ident}
    entry["workload"] = {
        **{"name": "x", "concurrency": users, "requests": 12 * users, "timeout_s": 300.0, "release": "host"},
        **{"prompt_len": prompt, "output_len": answer},
    }
    return host_scorer.figures(replay(deploy(read_spec(entry, "test")), load("champion").complete, 42), users)


@pytest.mark.parametrize("ident", [*STATED, RANKS])
def test_the_scorer_measures_what_score_does(ident: str, tmp_path: Path, capsys: Capsys) -> None:
    """Means are summed in another order, so they may differ in the last bits."""
    e = RUNS[ident]
    found = harness.score(tmp_path, e, "row")
    assert found.completed == 12 * harness.clients(e)
    (tmp_path / "run.yaml").write_text(harness.evaluation_text([e], "row"))
    [ours] = as_json(capsys, "score", "--evaluation", tmp_path / "run.yaml", "--catalog", tmp_path / "catalog")["runs"]
    assert e.observed and e.observed.summary
    seen = e.observed.summary
    for figure, error, measured in (
        (found.tpot_ms, ours["tpot_error_pct"], seen.itl_ms.mean),
        (found.ttft_ms, ours["ttft_error_pct"], seen.ttft_ms.mean),
    ):
        assert figure == pytest.approx(measured * (1.0 + error / 100.0), rel=1e-12)
    own = under_protocol(e, "row")
    assert own.tpot_ms and own.ttft_ms
    if ident in STATED:
        assert harness.lost(e) == ["stream_interval"]
        assert (found.tpot_ms, found.ttft_ms) == pytest.approx((own.tpot_ms.mean, own.ttft_ms.mean), rel=1e-12)
    else:  # the largest captured graph is not in the host's documents
        assert (found.tpot_ms, found.ttft_ms) == pytest.approx((own.tpot_ms.mean, own.ttft_ms.mean), rel=2e-3)


def test_the_console_script_is_declared() -> None:
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    assert scripts["evolve-blis"] == "evolve.__main__:blis"


def files(folder: Path, scenario: str = SCENARIO, **client: Any) -> list[str]:
    """A command line of `evolve-blis` without its name, and its files."""
    (folder / "chat.yaml").write_text(scenario)
    spec = harness.workload_spec(2, 100, 10, 42)
    spec["clients"][0] |= client
    (folder / "workload.yaml").write_text(yaml.safe_dump(spec))
    return harness.command(folder, folder, "chat.yaml", 42)[len(harness.BLIS) :]


def test_whatever_fails_is_status_one_and_one_line(tmp_path: Path) -> None:
    words = files(tmp_path, SCENARIO.replace("h100", "tpu"))
    ended = subprocess.run([*harness.BLIS, *words], capture_output=True, text=True, cwd=ROOT, check=False)
    assert ended.returncode == 1 and not ended.stdout
    assert ended.stderr.count("\n") == 1 and "cluster.hardware 'tpu' is not a known GPU" in ended.stderr
    assert not (tmp_path / "metrics.json").exists()


CHANGED = """
model: llama-3.1-8b-instruct => model: glm-9 => model 'glm-9' is not a known model
"0.29.0" => main => engine_version 'main' is no known release
hardware: h100 => hardware: h100-nvl => reads measured kernels
tp: 2 => tp: 16 => pools[0].parallel.tp and the others make 16 GPUs
dp: 1} => dp: 1, dcp: 2} => pools[0].parallel.dcp is 2
role: colocated => role: decode => pools[0].role is 'decode'
name: tp2 => offload: {tiers: []} => offload is not replayed
name: tp2 => lora: {adapter_capacity: 4} => lora is not replayed
block_size: 16 => block: 16 => pools[0].engine.block is not a known key
block_size: 16 => dbo: {enable_dbo: true} => pools[0].engine.dbo is
block_size: 16 => all2all_backend: deepep_v2 => pools[0].engine.all2all_backend is 'deepep_v2'
block_size: 16 => disable_custom_all_reduce: true => pools[0].engine.disable_custom_all_reduce is true
block_size: 16 => scheduling_policy: priority => pools[0].engine.scheduling_policy is 'priority'
block_size: 16 => cache_dtype: nvfp4 => kv_cache_dtype must be one of
block_size: 16 => quantization: awq => pools[0].engine.quantization 'awq' is not known
block_size: 16 => speculative: {method: eagle3, num_spec_tokens: 3} => give --speculative-acceptance-rate
kind: Deployment => kind: Evaluation => is not a scenario with its deployment
"""


@pytest.mark.parametrize("row", CHANGED.strip().splitlines())
def test_a_scenario_that_is_not_replayed_is_refused(row: str, tmp_path: Path, capsys: Capsys) -> None:
    old, new, expected = row.split(" => ")
    assert old in SCENARIO
    assert run_command(files(tmp_path, SCENARIO.replace(old, new, 1)), blis, "evolve-blis") == 2
    out, err = capsys.readouterr()
    assert not out and err.count("\n") == 1 and expected in err


def test_the_scorers_file_is_its_load(tmp_path: Path) -> None:
    files(tmp_path)
    assert read_load(tmp_path / "workload.yaml") == (scorers_load(), 42)


def test_a_load_with_a_rate_is_refused(tmp_path: Path, capsys: Capsys) -> None:
    words = files(tmp_path, concurrency=0, rate_fraction=1.0, arrival={"process": "poisson"})
    spec = yaml.safe_load((tmp_path / "workload.yaml").read_text())
    (tmp_path / "workload.yaml").write_text(yaml.safe_dump(spec | {"aggregate_rate": 5}))
    assert run_command(words, blis, "evolve-blis") == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1 and "workload.yaml: aggregate_rate" in err and "give one client with concurrency" in err


def test_a_load_that_the_scorer_has_not_is_replayed(tmp_path: Path) -> None:
    """A time to think, a shared prefix, and lengths with gaps."""
    gaps = {"type": "empirical", "params": {"1": 0.5, "3": 0.5}}
    words = files(
        tmp_path, think_time_us=500_000, prefix_group="a", prefix_length=64, output_distribution=gaps, timeout=0
    )
    assert run_command(words, blis, "evolve-blis") == 0
    requests = json.loads((tmp_path / "metrics.json").read_text())["requests"]
    assert len(requests) == 24 and {r["num_decode_tokens"] for r in requests} == {1, 3}
    assert {64 + n for n in range(80, 101)} >= {r["num_prefill_tokens"] for r in requests}
    assert [r["arrived_at"] for r in requests[:2]] == [0.0, 0.25]  # the host's users begin over one time to think


def test_a_scenario_gives_the_engine_its_settings(tmp_path: Path) -> None:
    """Of expert parallelism the host's schemas say that it is over tp x dp GPUs; a release has its own defaults."""
    text = SCENARIO.replace("llama-3.1-8b-instruct", "qwen3-30b-a3b").replace(
        "dp: 1", "dp: 4, enable_expert_parallel: true"
    )
    settings = "max_num_seqs: 0, cudagraph_mode: PIECEWISE, enable_prefix_caching: false, cache_dtype: fp8"
    (tmp_path / "chat.yaml").write_text(text.replace("max_num_seqs: 256", settings))
    e = experiment_of(read_scenario(tmp_path / "chat.yaml", None), scorers_load())
    engine = e.engine
    assert (engine.tensor_parallel, engine.data_parallel, engine.expert_parallel) == (2, 4, 8)
    assert (engine.version, engine.max_num_seqs, engine.cudagraph_mode) == ("0.29.0", 1024, "piecewise")
    assert (engine.prefix_caching, engine.kv_cache_dtype, e.hardware) == (False, "fp8", "H100-SXM-80GB")


@pytest.mark.parametrize(
    ("model", "checkpoint", "served", "experts", "attention", "told"),
    [
        ("qwen3-30b-a3b", None, "fp8", "fp8", "fp8", False),
        (
            "qwen3-30b-a3b",
            {"quant_method": "fp8", "weight_block_size": [128, 128]},
            "fp8",
            "fp8_block",
            "fp8_block",
            False,
        ),
        ("gpt-oss-120b", None, "nvfp4", "mxfp4", "bf16", True),  # known as a checkpoint in mxfp4
        (
            "qwen3-30b-a3b",
            {"bits": 4, "group_size": 32, "ignore": ["re:.*self_attn.*"]},
            "nvfp4",
            "nvfp4",
            "bf16",
            True,
        ),
        ("qwen3-30b-a3b", {"quant_method": "awq", "bits": 4, "group_size": 128}, "awq", "int4", "int4", False),
    ],
)
def test_a_served_type_of_weights_replaces_the_checkpoints(
    model: str, checkpoint: dict[str, Any] | None, served: str, experts: str, attention: str, told: bool, tmp_path: Path
) -> None:
    """Where a checkpoint has 16 bits, they stay; and fp8 and fp4 have varieties, of which a checkpoint has its own."""
    text = SCENARIO.replace("llama-3.1-8b-instruct", model).replace("block_size: 16", f"quantization: {served}")
    (tmp_path / "chat.yaml").write_text(text.replace("h100", "b200"))
    if checkpoint:
        config = json.loads(json.dumps(dict(read_spec({**ENTRY, "model": model}, "test").model.config)))
        path = tmp_path / "models" / model / "config.json"
        path.parent.mkdir(parents=True)
        path.write_text(json.dumps({**config, "quantization_config": checkpoint}))
    e = experiment_of(read_scenario(tmp_path / "chat.yaml", tmp_path), scorers_load())
    assert e.facts.deployed
    formats = e.facts.deployed.architecture.formats
    assert any(note.startswith("quantization") for note in e.notes) == told
    assert (formats.experts.name, formats.attention.name) == (experts, attention)


ENTRY = {
    "id": "a",
    "hardware": "H100",
    "workload": {"name": "w", "concurrency": 1, "requests": 1, "prompt_len": 9, "output_len": 9},
}


def test_every_request_ends_in_one_way(tmp_path: Path) -> None:
    """Some are too long for the model, and some clients give up."""
    (tmp_path / "chat.yaml").write_text(SCENARIO.replace("block_size: 16", "max_model_len: 1950"))
    scenario = read_scenario(tmp_path / "chat.yaml", None)
    e = experiment_of(scenario, replace(scorers_load(8, 1024, 1024), timeout_s=4.3))
    source = load("champion")
    replay = replayed(e, source, 42)
    found = metrics(replay)
    harness.check(found)
    assert found["timed_out_requests"] and found["dropped_unservable"] and found["completed_requests"]
    assert found["injected_requests"] < 96  # clients that give up are gone
    point = ScoredPoint(MeasuredPoint(scenario, e), replay, host_scorer.figures(replay, 8))
    names = ("injected", "completed", "dropped", "timed_out", "preemptions")
    keys = ("injected_requests", "completed_requests", "dropped_unservable", "timed_out_requests", "preemption_count")
    ledger = {name: found[key] for name, key in zip(names, keys, strict=True)}
    assert sim_result(point, source)["conservation"] == ledger


def test_without_completions_after_the_warm_up_all_count(tmp_path: Path) -> None:
    (tmp_path / "chat.yaml").write_text(SCENARIO)
    scenario = read_scenario(tmp_path / "chat.yaml", None)
    found = replayed(experiment_of(scenario, closed_load(4, 8, labelled(100), labelled(10))), load("champion"), 42)
    figures = host_scorer.figures(found, 4)
    assert figures.tpot_ms and figures.tpot_ms.mean == pytest.approx(float(found.itl_us.mean()) / 1e3)
    order = host_scorer.in_completion_order(found)
    ends = found.requests.arrival_us + found.e2e_us
    assert sorted(order.tolist()) == list(range(8)) and (np.diff(ends[order]) >= 0).all()


@pytest.mark.parametrize("label", [1, 2, 7, 100, 128, 1000, 1024, 2048, 8192, 100_000])
def test_a_rounded_mean_tells_the_label(label: int) -> None:
    lengths = labelled(label)
    assert label_of(round((lengths.low + lengths.high) / 2 + 0.01)) == pytest.approx(label, abs=1)


def evaluation(folder: Path, points: list[dict[str, Any]] | None = None, **top: Any) -> Path:
    about = {
        "kind": "EvaluationRun",
        "name": "run",
        "scenario": "chat",
        "harness": "aiperf",
        "engine_version": "0.29.0",
    }
    (folder / "chat.yaml").write_text(SCENARIO)
    path = folder / "run.yaml"
    path.write_text(yaml.safe_dump({**about, "points": points or POINTS, **top}))
    return path


def test_points_of_the_host_are_scored_and_written(tmp_path: Path, capsys: Capsys) -> None:
    """A shape is over the lowest concurrency: |(p4 / p1) / (m4 / m1) - 1|, here from the errors of both."""
    path = evaluation(tmp_path)
    found = as_json(capsys, "score", "kernels", "--evaluation", path, "--simresult", tmp_path / "out")
    every, (one, four) = found["rows"][0], found["runs"]
    assert (every["runs"], every["shape_runs"], found["seeds"]) == (2, 1, [42])
    for latency in ("tpot", "ttft"):
        low, high = (1.0 + run[f"{latency}_error_pct"] / 100.0 for run in (one, four))
        assert every[f"{latency}_shape_pct"] == pytest.approx(100.0 * abs(high / low - 1.0))
        assert every[f"{latency}_pct"] == pytest.approx(50.0 * (abs(low - 1.0) + abs(high - 1.0)))
    result = yaml.safe_load((tmp_path / "out" / f"{four['id']}.yaml").read_text())
    assert result["kind"] == "SimResult" and result["operating_point"] == {"concurrency": 4}
    assert result["summary"]["itl_ms"]["mean"] == pytest.approx(5.5 * (1.0 + four["tpot_error_pct"] / 100.0))
    for latency in ("ttft_ms", "itl_ms", "e2e_ms"):
        tails = [result["summary"][latency][p] for p in ("p90", "p95", "p99")]
        assert tails == sorted(tails) and tails[0] > 0
    ledger = result["conservation"]
    assert ledger["injected"] == 48 == ledger["completed"] + ledger["dropped"] + ledger["timed_out"]
    assert result["scenario"]["cluster"]["hardware"] == "h100"
    [pool] = result["deployment"]["pools"]
    assert pool["engine"]["max_num_batched_tokens"] == 8192 and pool["engine"]["max_model_len"] == 131072
    assert pool["engine"]["enable_prefix_caching"] and pool["parallel"]["tp"] == 2
    assert all(each["name"] for each in result["provenance"]["coefficients"])


WRONG: tuple[tuple[dict[str, Any], str], ...] = (
    ({"mean_isl": 0}, "mean_isl is missing"),
    ({"mean_osl": 1}, "mean_osl must be >= 1.5"),  # of lengths from 1 to 2
    ({"ttft_ms": 0, "itl_ms": 0}, "ttft_ms is missing"),
    ({"prefix_cache_hit_rate": 0.54}, "prefix_cache_hit_rate is 0.54"),
    ({"concurrency": 4}, "have a concurrency twice"),
    ({"tpot_ms": 5.0}, "points[0].tpot_ms is not a known key"),
)


@pytest.mark.parametrize(("changes", "expected"), WRONG)
def test_points_that_cannot_be_scored_are_refused(
    changes: dict[str, Any], expected: str, tmp_path: Path, capsys: Capsys
) -> None:
    path = evaluation(tmp_path, [POINTS[0] | changes, POINTS[1]])
    assert expected in refused(capsys, "score", "--evaluation", path)


def test_points_of_different_lengths_are_refused(tmp_path: Path) -> None:
    path = evaluation(tmp_path, [POINTS[0], POINTS[1] | {"mean_isl": 200}])
    with pytest.raises(InputError, match="mean_isl goes from 92 to 200"):
        read_evaluation(path, None, None)
    with pytest.raises(InputError, match=r"other\.yaml: cannot be read"):
        read_evaluation(evaluation(tmp_path, scenario="other"), None, None)


def test_options_of_points_need_points(tmp_path: Path, capsys: Capsys) -> None:
    assert "go with --evaluation" in refused(capsys, "score", "--simresult", tmp_path)
    path = evaluation(tmp_path)
    assert "leave out --experiments" in refused(capsys, "score", "--evaluation", path, "--id", "a")
    assert "twice" in refused(capsys, "score", "--evaluation", path, "--evaluation", path)


def test_a_load_of_which_nothing_completes_is_no_score(tmp_path: Path, capsys: Capsys) -> None:
    """The scorer would read latencies of 0."""
    long = {"type": "constant", "params": {"value": 200_000}}
    assert run_command(files(tmp_path, input_distribution=long), blis, "evolve-blis") == 2
    assert "workload.yaml: no request completes: the engine refuses 24" in capsys.readouterr().err
