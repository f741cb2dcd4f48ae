"""A tiny world for whole runs: half a minute of two models, which takes milliseconds to fit and to replay.

Three experiments are fitted, two of them of two load stages; the overloaded one is only predicted. The figures are those
of the shipped champion, moved by some percent, so that no program explains them fully.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from evolve.cli import run_command

DATA = """
version: 1
experiments:
- id: dense-chat
  model: llama-2-7b
  hardware: H100
  workload: {name: chat, stages: [{rate: 5.0, duration_s: 15}, {rate: 10.0, duration_s: 15}], prompt_len: 300, output_len: 50}
  observed:
    summary: {e2e_ms: {mean: 330.2, p90: 345.0, p99: 352.0}, ttft_ms: {mean: 26.1, p90: 29.0, p99: 33.0}}
    stages:
    - {e2e_ms: {mean: 321.4, p90: 336.0, p99: 342.0}, ttft_ms: {mean: 25.5, p90: 28.0, p99: 32.0}}
    - {e2e_ms: {mean: 334.6, p90: 346.0, p99: 352.0}, ttft_ms: {mean: 26.4, p90: 29.0, p99: 33.0}}
- id: dense-code
  model: llama-2-7b
  hardware: H100
  workload: {name: code, stages: [{rate: 8.0, duration_s: 30}], prompt_len: 600, output_len: 40}
  observed: {summary: {e2e_ms: {mean: 284.3}, ttft_ms: {mean: 32.9}}}
- id: sparse-chat
  model: mixtral-8x7b
  hardware: H100
  engine: {tensor_parallel: 2}
  workload: {name: chat, stages: [{rate: 3.0, duration_s: 15}, {rate: 6.0, duration_s: 15}], prompt_len: 300, output_len: 50}
  observed:
    summary: {e2e_ms: {mean: 697.7}, ttft_ms: {mean: 60.2}}
    stages:
    - {e2e_ms: {mean: 589.1}, ttft_ms: {mean: 58.0}}
    - {e2e_ms: {mean: 752.0}, ttft_ms: {mean: 61.3}}
- id: dense-overloaded
  model: llama-2-7b
  hardware: H100
  engine: {max_num_seqs: 16}
  workload: {name: chat, stages: [{rate: 80.0, duration_s: 10}], prompt_len: 300, output_len: 50, timeout_s: 5}
  observed: {summary: {e2e_ms: {mean: 2900.0}, ttft_ms: {mean: 2500.0}, completed: 570, failed: 230}}
  quality: overloaded
"""
FITTED = ("dense-chat", "dense-code", "sparse-chat")
ONE = "models: [llama-2-7b], workloads: [chat]"  # to fit one experiment only
BRIEF = {"score": "{physics: false}"}  # for `write`: without the gate that is half of the time of so small a run


def write(folder: Path, data: str = "", **settings: str) -> Path:
    """The world's configuration, with its data beside it; `data` and `settings` are lines of YAML to be added."""
    (folder / "data.yaml").write_text(DATA)
    lines = [f"data: {{files: [{folder / 'data.yaml'}], predict_files: [], {data}}}"]
    settings = {"search": "{finalists: 0}"} | settings
    path = folder / "tiny.yaml"
    path.write_text("\n".join([*lines, *(f"{name}: {value}" for name, value in settings.items()), ""]))
    return path


def run(config: Path, out: Path, *more: object) -> Path:
    """The folder of a run of this configuration by one worker, to its end."""
    args = ["run", "--config", config, "--workers", 1, "--quiet", "--out", out, *more]
    assert run_command([str(arg) for arg in args]) == 0
    return out


def copy(run: Path, folder: Path) -> Path:
    """A copy of a run that a test may change."""
    return Path(shutil.copytree(run, folder / "run"))


def written(run: Path) -> int:
    """The number of complete lines in the journal of a run, 0 before there is one."""
    path = run / "journal.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0


def lines(run: Path) -> list[dict[str, Any]]:
    """The journal of a run."""
    return [json.loads(line) for line in (run / "journal.jsonl").read_text().splitlines()]
