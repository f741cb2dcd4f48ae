"""A plan in the options of `evolve predict`: the same figures as a file that says the same, and refusals."""

from __future__ import annotations

from pathlib import Path

import pytest
from commands import Capsys, as_json, refused

LENGTHS = ["--prompt-len", "300", "--output-len", "40"]
MODEL = ["--model", "llama-3.1-8b", "--hardware", "H100"]
DEPLOYMENT = [*MODEL, "--tp", "2"]
FILE = """
version: 1
experiments:
- id: llama-3.1-8b
  model: meta-llama/Llama-3.1-8B-Instruct
  hardware: H100-SXM-80GB
  engine: {tensor_parallel: 2}
  workload: {name: plan, stages: [{rate: 2, duration_s: 600}], prompt_len: 300, output_len: 40}
"""


@pytest.mark.parametrize("swept", ["", "--sweep rate=2,5", "--slo itl_mean=6ms"])
def test_options_predict_what_a_file_predicts(swept: str, tmp_path: Path, capsys: Capsys) -> None:
    file, more = tmp_path / "same.yaml", swept.split()
    file.write_text(FILE, "utf-8")
    described = as_json(capsys, "predict", "champion", *DEPLOYMENT, *LENGTHS, "--rate", "2", *more)
    assert described == as_json(capsys, "predict", "champion", "--experiments", file, *more)


def test_settings_of_the_engine_are_given_as_in_a_file(tmp_path: Path, capsys: Capsys) -> None:
    file = tmp_path / "same.yaml"
    file.write_text(
        FILE.replace("tensor_parallel: 2", "tensor_parallel: 2, max_num_seqs: 4, kv_cache_dtype: fp8"), "utf-8"
    )
    given = "--engine", "max_num_seqs=4", "--engine", "kv_cache_dtype=fp8"
    described = as_json(capsys, "predict", "champion", *DEPLOYMENT, *LENGTHS, "--rate", "2", *given)
    assert described == as_json(capsys, "predict", "champion", "--experiments", file)


def test_an_id_is_predicted_beside_what_no_engine_can_run(tmp_path: Path, capsys: Capsys) -> None:
    """70 billion parameters have no room on one H100."""
    file, big = tmp_path / "both.yaml", FILE.partition("experiments:\n")[2].replace("8b", "70b").replace("8B", "70B")
    file.write_text(FILE + big.replace("parallel: 2", "parallel: 1"), "utf-8")
    [alone] = as_json(capsys, "predict", "champion", "--experiments", file, "--id", "llama-3.1-8b")["experiments"]
    assert alone["id"] == "llama-3.1-8b"
    for ids in ([], ["--id", "llama-3.1-70b"]):
        assert "no room for KV cache" in refused(capsys, "predict", "champion", "--experiments", file, *ids)


def test_a_sweep_of_rates_needs_no_other_rate(capsys: Capsys) -> None:
    args = "predict", *DEPLOYMENT, *LENGTHS, "--sweep", "rate=2,5"
    assert as_json(capsys, *args, "--rate", "9")["rows"] == as_json(capsys, *args)["rows"]


def test_a_sweep_replaces_what_a_plan_lacks(capsys: Capsys) -> None:
    """70 billion parameters have no room on one H100, so such a plan stands only on several."""
    big = "predict", "--model", "llama-3.1-70b", "--rate", "1", *LENGTHS
    one, four = as_json(capsys, *big, "--sweep", "hardware=H100", "--sweep", "tp=1,4")["rows"]
    assert "no room for KV cache" in one["impossible"] and four["fails"] == []
    [alone] = as_json(capsys, *big, "--hardware", "H100", "--tp", "4")["experiments"]
    assert alone["predicted"]["e2e_ms"]["mean"] == four["e2e_ms"]["mean"]


def test_more_gpus_than_a_server_has_are_mentioned(capsys: Capsys) -> None:
    """An HGX board has eight GPUs."""
    asked = "predict", *MODEL, *LENGTHS, "--sweep", "rate=2", "--sweep", "tp=8,16", "--seeds", "1"
    for row in as_json(capsys, *asked)["rows"]:
        assert any("the slower link between servers" in text for text in row["warnings"]) == (row["tp"] == 16)


@pytest.mark.parametrize(
    ("args", "parts"),
    [
        ("DEPLOYMENT LENGTHS", ["lacks --rate"]),
        ("--rate 2", ["lacks --model, --hardware, --prompt-len, --output-len"]),
        ("--tp 2 --experiments x", ["--experiments and --id"]),
        ("DEPLOYMENT LENGTHS --rate 2 --id x", ["--experiments and --id"]),
        ("DEPLOYMENT LENGTHS --rate nan", ["llama-3.1-8b on H100, TP 2", "stages[0].rate must be finite"]),
        ("DEPLOYMENT LENGTHS --rate 1e5", ["'--rate': 100000.0"]),
        ("DEPLOYMENT --rate 2 --prompt-len 131000 --output-len 300", ["131,300 tokens", "131,072"]),
        ("MODEL --tp 3 --rate 2 LENGTHS", ["llama-3.1-8b on H100, TP 3: engine.tensor_parallel", "32 attention"]),
        ("--model llama-3.1-8 --hardware H100 --rate 2 LENGTHS", ["model llama-3.1-8:", "'llama-3.1-8b'?"]),
        ("--model llama-3.1-8b --hardware h100 --rate 2 LENGTHS", ["hardware h100:", "'H100'?"]),
    ],
)
def test_an_incomplete_or_impossible_plan_is_refused(args: str, parts: list[str], capsys: Capsys) -> None:
    names = {"DEPLOYMENT": DEPLOYMENT, "LENGTHS": LENGTHS, "MODEL": MODEL}
    line = refused(capsys, "predict", *(word for part in args.split() for word in names.get(part, [part])))
    assert all(part in line for part in parts), line
