"""Public closed-loop runs against a program, with a table of our own and with that of ../shared where it is."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
from paths import SHARED

from evolve.run.program import load
from research.serving import errors_of, rows_of, table_of

CONFIG = {
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
    "torch_dtype": "bfloat16",
}
EMPTY = """n_gpus engine moe_tp moe_ep load lengths max_num_seqs max_num_batched_tokens block_size kv_cache_dtype
    gpu_memory_utilization cudagraph_capture_max cudagraph_mode async_scheduling allreduce_rms_fusion stream_interval
    settings measured doubt"""
ROW = dict.fromkeys(EMPTY.split(), "") | {
    "id": "a",
    "gpu": "H100-SXM-80GB",
    "model": "own",
    "weights": "bf16",
    "version": "0.15.1",
    "tp": "1",
    "attention_dp": "1",
    "concurrency": "4",
    "requests": "40",
    "warmup_requests": "8",
    "input_len": "1000",
    "output_len": "100",
    "prefix_caching": "off",
    "ttft_ms_mean": "60",
    "tpot_ms_mean": "7",
    "origin": "InferenceX, made up",
}


def test_rows_are_replayed_with_their_own_settings(tmp_path: Path) -> None:
    (tmp_path / "model_configs.json").write_text(json.dumps({"own": {"config.json": CONFIG}}))
    rows = [ROW, ROW | {"id": "b", "tp": "2", "attention_dp": "2"}, ROW | {"id": "c", "origin": "elsewhere"}]
    with (tmp_path / "open.csv").open("w") as file:
        writer = csv.DictWriter(file, list(ROW))
        writer.writeheader()
        writer.writerows(rows)
    found = rows_of(tmp_path)
    assert [(r.id, r.missing) for r in found] == [("a", ""), ("b", "")]
    e, on_ranks = (r.experiment for r in found)
    assert on_ranks and (on_ranks.engine.tensor_parallel, on_ranks.engine.data_parallel) == (1, 2)
    assert e is not None and not e.engine.prefix_caching and e.workload.stages[0].users == 4
    assert e.engine.max_num_batched_tokens == 8192  # vLLM's default of 0.15.1 on an H100
    errors = errors_of(load("champion").complete, found, 1)
    assert errors[0].tpot_pct is not None and abs(errors[0].tpot_pct) < 20.0 and errors[1].tpot_pct is not None
    every, row = table_of(errors, "champion").rows
    assert every.values[3:5] == row.values[3:5] == (2, 2)


def test_the_public_runs_are_replayed() -> None:
    """424 rows with known loads, of which 31 are of data-parallel attention (data/serving/README.md)."""
    folder = SHARED / "data" / "serving"
    if not folder.is_dir():
        pytest.skip("../shared absent: no public serving runs")
    found = rows_of(folder)
    assert len(found) == 424 and {r.missing for r in found} == {""}
    ranks = [r.experiment.engine for r in found if r.experiment and r.experiment.engine.data_parallel > 1]
    assert len(ranks) == 31 and {(e.gpus, e.expert_parallel) for e in ranks} == {(2, 2), (4, 4)}
