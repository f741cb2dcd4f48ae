"""`evolve ingest --trace` of results of load generators: requests become a trace, means an experiment of their own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from commands import evolve, refused
from results import (
    AIPERF,
    AIPERF_SUMMARY,
    GENAI_PERF,
    GUIDELLM,
    LLMPERF,
    MODEL,
    SGLANG,
    SGLANG_LISTS,
    VLLM,
    VLLM_DETAILED,
    lines,
)
from trace_tables import written

from evolve.ingest.options import Given
from evolve.ingest.trace import entry_of
from evolve.ingest.trace_source import of_files
from simulator.common.json import JsonObject
from simulator.serving.bundled import load_experiments

GIVEN = Given("H100")
LENGTHS = {"prompt_len": 600, "output_len": 3}
SUMMARY = {"e2e_ms": {"mean": 60.0, "p50": 60.0, "p99": 62.0}, "ttft_ms": {"mean": 40.0, "p50": 40.0, "p99": 42.0}}


def entries(*paths: Path) -> dict[str, JsonObject]:
    """What ingest writes of these files, by id."""
    sources = of_files(paths, MODEL, GIVEN)
    return {source.name: entry_of(source, MODEL, GIVEN) for source in sources}


def test_means_under_a_rate_and_of_a_burst_are_experiments(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Files that a rate describes are written, loaded, and written again beside others."""
    rate = written(tmp_path, "rate.json", VLLM)
    burst = written(tmp_path, "burst.json", VLLM | {"request_rate": "inf"})
    genai = written(tmp_path, "p_genai_perf.json", GENAI_PERF)
    out = tmp_path / "out"
    assert evolve("ingest", "--trace", rate, burst, "--out", out, "--hardware", "H100") == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "rate 4 - - 600 10 - - 4" in said and "--split" not in said  # means have no later part
    assert [path.name for path in out.iterdir()] == ["traces.yaml"]  # no table
    assert evolve("ingest", "--trace", genai, "--out", out, "--hardware", "H100", "--json") == 0
    [told] = json.loads(capsys.readouterr().out)["traces"]
    assert (told["experiment"], told["table"], told["requests"], told["measured"]) == ("p_genai_perf", None, 4, 4)
    runs = {e.id: e for e in load_experiments(out / "traces.yaml")}
    assert list(runs) == ["rate", "burst", "p_genai_perf"]
    assert [(s.rate, s.duration_s) for e in runs.values() for s in e.workload.stages] == [(2, 2), (4, 1), (5, 0.8)]
    o = runs["rate"].observed
    assert o is not None and o.summary is not None
    assert (o.summary.ttft_ms.p99, o.summary.e2e_ms.mean, o.summary.itl_ms.mean, o.summary.completed) == (
        44,
        135,
        10,
        4,
    )
    assert runs["rate"].model == MODEL and runs["rate"].quality == "clean"


def test_a_fixed_concurrency_is_written_beside_the_trace_or_the_means(tmp_path: Path) -> None:
    detailed = written(tmp_path, "detailed.jsonl", lines([SGLANG | SGLANG_LISTS]))
    means = written(tmp_path, "means.jsonl", lines([SGLANG]))
    perf = written(tmp_path, "m_summary.json", LLMPERF)
    found = entries(detailed, means, perf)
    assert found["detailed"]["workload"] == {"name": "detailed", "trace": "detailed.jsonl", "concurrency": 2}
    assert "observed" not in found["detailed"]  # it follows from the requests
    assert found["means"]["workload"] == {"name": "means", "concurrency": 2, "requests": 4, **LENGTHS}
    counts = {"completed": 4, "failed": 0}
    assert found["means"]["observed"] == {"summary": {**SUMMARY, "itl_mean_ms": 10.0, **counts}}
    assert found["m_summary"]["observed"] == {"summary": {**SUMMARY, **counts}}


def test_every_benchmark_of_a_report_is_an_experiment(tmp_path: Path) -> None:
    found = entries(written(tmp_path, "b.json", GUIDELLM))
    loads = {name: {k: v for k, v in e["workload"].items() if k not in ("name", "trace")} for name, e in found.items()}
    assert loads == {
        "b-c1": {"concurrency": 1},
        "b-c2": {"concurrency": 2},
        "b-burst": {},
        "b-r2": {},
        "b-r4": {"max_in_flight": 3},
    }


def test_results_of_one_name_are_told_apart_by_their_folders(tmp_path: Path) -> None:
    paths = []
    for name, load in (("slow", {"concurrency": 2}), ("fast", {"request_rate": 30.0})):
        (tmp_path / name).mkdir()
        paths.append(written(tmp_path / name, "profile_export.jsonl", lines(AIPERF)))
        config = AIPERF_SUMMARY["input_config"] | {"loadgen": load}
        written(tmp_path / name, "profile_export_aiperf.json", AIPERF_SUMMARY | {"input_config": config})
    found = entries(*paths)
    assert list(found) == ["slow-profile_export", "fast-profile_export"]
    assert found["slow-profile_export"]["workload"]["concurrency"] == 2


def test_a_summary_beside_its_requests_is_noted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = AIPERF_SUMMARY["input_config"] | {"loadgen": {"request_rate": 30.0}}
    paths = [
        written(tmp_path, "p.jsonl", lines(AIPERF)),
        written(tmp_path, "p_aiperf.json", AIPERF_SUMMARY | {"input_config": config}),
        written(tmp_path, "other.json", VLLM),
    ]
    assert evolve("ingest", "--trace", *paths, "--out", tmp_path / "out", "--hardware", "H100", "--json") == 0
    told = {row["trace"]: row for row in json.loads(capsys.readouterr().out)["traces"]}
    noted = {name for name, row in told.items() if any("counts them twice" in note for note in row["notes"])}
    assert noted == {"p_aiperf.json"}


def test_the_requests_of_a_rate_are_a_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = written(tmp_path, "bench.json", VLLM_DETAILED)
    assert evolve("ingest", "--trace", path, "--out", tmp_path / "out", "--hardware", "H100") == 0
    table = pq.read_table(tmp_path / "out" / "bench.parquet").to_pydict()
    assert table["arrival_s"] == pytest.approx([0, 0.4, 1.0, 1.6]) and table["ttft_ms"] == pytest.approx(
        [38, 40, 40, 42]
    )
    (e,) = load_experiments(tmp_path / "out" / "traces.yaml")
    assert e.observed is not None and e.observed.summary is not None
    assert e.observed.summary.itl_ms.mean == pytest.approx(10)


@pytest.mark.parametrize(("cap", "noted"), [(2, True), (3, False)])
def test_a_cap_that_was_reached_is_noted(cap: int, noted: bool, tmp_path: Path) -> None:
    """Two of the four requests are in flight at a time."""
    slow = VLLM_DETAILED | {"itls": [[0.3, 0.2]] * 4, "max_concurrency": cap, "request_rate": 2.0}
    [source] = of_files([written(tmp_path, "b.json", slow)], MODEL, GIVEN)
    assert source.load == {"max_in_flight": cap}
    assert any("not when they were due" in note for note in source.notes) == noted


@pytest.mark.parametrize(
    ("load", "waits"),
    [
        ({"request_rate": 2.0}, True),
        ({"request_rate": "inf"}, False),
        ({"request_rate": "inf", "max_concurrency": 2}, False),
    ],
)
def test_only_the_queue_of_a_rate_is_an_overload(load: dict[str, Any], waits: bool, tmp_path: Path) -> None:
    slow = {"mean_ttft_ms": 2000.0, "median_ttft_ms": 2000.0, "p99_ttft_ms": 2000.0, "mean_e2el_ms": 3000.0}
    slow |= {"median_e2el_ms": 3000.0, "p99_e2el_ms": 3000.0}
    found = entries(written(tmp_path, "b.json", VLLM | slow | load))
    assert (found["b"].get("quality") == "overloaded") == waits
    failed = entries(written(tmp_path, "f.json", VLLM | load | {"completed": 3, "failed": 1}))
    assert found and failed["f"]["quality"] == "overloaded"


def test_what_no_experiment_can_be_made_of_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bare = written(tmp_path, "bare.json", {name: VLLM[name] for name in ("model_id", "mean_ttft_ms", "completed")})
    said = refused(capsys, "ingest", "--trace", bare, "--out", tmp_path / "out", "--hardware", "H100")
    assert (
        "bare.json: does not say how requests were sent, prompt lengths, answer lengths: write the experiment" in said
    )
    assert not (tmp_path / "out").exists()
