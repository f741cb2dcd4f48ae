"""Results of a fixed concurrency, from the file of the load generator to the prediction."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from commands import evolve
from results import AIPERF, AIPERF_SUMMARY, GUIDELLM, LLMPERF, MODEL, SGLANG, SGLANG_LISTS, VLLM, aiperf_record, lines
from trace_tables import written

from evolve.ingest.read.settings import _load
from evolve.ingest.read.values import FolderFindings, Values
from simulator.serving.bundled import load_experiments
from simulator.serving.trace import Trace


def test_a_fixed_concurrency_is_ingested_and_predicted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Requests with and without times, means, a report of several benchmarks, and a cap beside a rate."""
    warm_up = aiperf_record(-1, 600, 3, 900.0, benchmark_phase="warmup")
    written(tmp_path, "p_aiperf.json", AIPERF_SUMMARY)
    paths = [
        written(tmp_path, "sgl.jsonl", lines([SGLANG | SGLANG_LISTS])),
        written(tmp_path, "means.jsonl", lines([SGLANG])),
        written(tmp_path, "p.jsonl", lines([warm_up, *AIPERF])),
        written(tmp_path, "m_summary.json", LLMPERF),
        written(tmp_path, "b.json", GUIDELLM),
        written(tmp_path, "cap.json", VLLM | {"max_concurrency": 3}),
    ]
    out = tmp_path / "out"
    where = "--model", MODEL, "--hardware", "H100"
    assert evolve("ingest", "--trace", *paths, "--out", out, *where) == 0
    capsys.readouterr()
    runs = {e.id: e for e in load_experiments(out / "traces.yaml")}
    closed = {name: e.workload.stages[0].users for name, e in runs.items() if e.workload.closed}
    assert closed == {"sgl": 2, "means": 2, "p": 2, "m_summary": 2, "b-c1": 1, "b-c2": 2}
    trace = runs["p"].workload.source
    assert isinstance(trace, Trace) and trace.requests.stage.tolist() == [-1, 0, 0, 0, 0]
    assert evolve("predict", "champion", "--experiments", out / "traces.yaml", "--json") == 0
    told = {e["id"]: e for e in json.loads(capsys.readouterr().out)["experiments"]}
    assert told.keys() == runs.keys()


def test_inference_perfs_stages_of_a_concurrency_follow_each_other() -> None:
    """load.type concurrent: concurrency_level and num_requests in place of rate and duration."""
    config = {
        "load": {"type": "concurrent", "stages": [{"concurrency_level": 4, "num_requests": 60}]},
        "data": {"type": "synthetic"},
    }
    findings = FolderFindings()
    load = _load(Values("config.yaml", config, findings))
    assert load is not None and load.stages is not None
    assert [(s.users, s.requests) for s in load.stages] == [(4, 60)]
    config["load"]["stages"] = [{"rate": 1, "duration": 60}]  # type: ignore[index]
    load = _load(Values("config.yaml", config, findings))
    assert load is not None and load.stages is None
    assert any("no usable concurrency_level and num_requests" in str(f) for f in findings)
