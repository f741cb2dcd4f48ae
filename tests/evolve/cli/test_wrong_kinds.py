"""Files of one kind in place of another: traces, results of a benchmark, experiments and configurations."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import pytest
from commands import Capsys, refused
from trace_tables import BENCHMARK, HEAD, written

from evolve.run.config import Config
from simulator.serving.bundled import CONFIGURATION, load_experiments

PLAN = """{"version": 1, "experiments": [{"id": "x", "model": "llama-2-7b", "hardware": "H100", "x_model": {"model_id": "m"},
"workload": {"name": "w", "stages": [{"rate": 1, "duration_s": 60}], "prompt_len": 100, "output_len": 10}}]}"""
BRIEF = {"date": "20261128", "model_id": "m", "num_prompts": 9, "mean_ttft_ms": 50.0}


@pytest.mark.parametrize("name", ["b.json", "brief.json", "t.csv", "huge.csv", "p.parquet", "m.jsonl"])
def test_a_trace_in_place_of_experiments_is_said_to_be_one(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capsys
) -> None:
    monkeypatch.chdir(tmp_path)
    content = {
        "b.json": BENCHMARK,
        "brief.json": BRIEF,
        "huge.csv": HEAD + "\n0,1,1" * 200_000,
        "p.parquet": {"arrival_s": [0]},
    }
    written(tmp_path, name, content.get(name, HEAD))
    for command in (("predict",), ("predict", "champion", "--sweep", "rate=1"), ("run", "--out", "out")):
        assert refused(capsys, *command, "--experiments", name) == (
            f"evolve: {name}: is a trace or a benchmark's result, not a file of experiments: "
            f"`evolve ingest --trace {name} --out OUT --model M --hardware GPU` makes one\n"
        )


def test_experiments_may_be_json(tmp_path: Path) -> None:
    assert [e.id for e in load_experiments(written(tmp_path, "plan.json", PLAN))] == ["x"]


def test_a_configuration_and_experiments_are_told_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capsys
) -> None:
    monkeypatch.chdir(tmp_path)
    written(tmp_path, "conf.yaml", "name: mine\nsearch: {patience: 5}\n")
    written(tmp_path, "plan.yaml", PLAN)
    assert refused(capsys, "run", "--experiments", "conf.yaml") == (
        "evolve: conf.yaml: is a configuration, not a file of experiments: it is for `evolve run --config conf.yaml`\n"
    )
    assert refused(capsys, "run", "--config", "plan.yaml") == (
        "evolve: plan.yaml: is a file of experiments, not a configuration: give it with --experiments plan.yaml\n"
    )


def test_a_configuration_is_known_by_every_key_but_its_name() -> None:
    assert set(CONFIGURATION) == {f.name for f in fields(Config)} - {"name"}
