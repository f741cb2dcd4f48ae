"""Results of load generators: each is known by its content, and its load, requests and means are read."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from paths import ROOT
from results import (
    AIPERF,
    AIPERF_SUMMARY,
    GENAI_PERF,
    GENAI_PERF_NEW,
    GENAI_PERF_RAW,
    GUIDELLM,
    GUIDELLM_OLD,
    LLMPERF,
    LLMPERF_RESPONSES,
    MODEL,
    SGLANG,
    SGLANG_LISTS,
    STRATEGIES,
    VLLM,
    VLLM_DETAILED,
    aiperf_record,
    guidellm_benchmark,
    lines,
    metric,
)
from trace_tables import written

from simulator.common.errors import InputError
from simulator.serving.traces.formats import RESULTS, is_trace, read_results
from simulator.serving.traces.read import read_trace, trace_from
from simulator.serving.traces.result import Result

CASES = ROOT.parent / "shared" / "data" / "cases"
LENGTHS = {"prompt_len": 600, "output_len": 3}
LOOP = {"concurrency": 2}
# Of each form: files (the one that is read first), the tool, the load beside name and trace, and whether it has requests.
FORMS: dict[str, tuple[dict[str, Any], str, list[dict[str, Any]], bool]] = {
    "vllm": ({"r.json": VLLM_DETAILED}, "vLLM's benchmark", [{}], True),
    "vllm-loop": (
        {"r.json": VLLM_DETAILED | {"request_rate": "inf", "max_concurrency": 2}},
        "vLLM's benchmark",
        [LOOP],
        True,
    ),
    "vllm-old": (
        {
            "r.json": {k: v for k, v in VLLM_DETAILED.items() if k != "start_times"}
            | {"request_rate": "inf"}
            | {"max_concurrency": 2}
        },
        "vLLM's benchmark",
        [LOOP],
        True,
    ),
    "vllm-means": (
        {"r.json": VLLM | {"total_output_tokens": 12}},
        "vLLM's benchmark",
        [{"arrival": "poisson", "stages": [{"rate": 2.0, "duration_s": 2.0}], **LENGTHS}],
        False,
    ),
    "vllm-lines": (
        {
            "r.jsonl": lines(
                [VLLM | {"total_output_tokens": 12} | load for load in ({"request_rate": 4.0}, {"request_rate": "inf"})]
            )
        },
        "vLLM's benchmark",
        [
            {"arrival": "poisson", "stages": [{"rate": 4.0, "duration_s": 1.0}], **LENGTHS},
            {"arrival": {"burst": {"size": 4}}, "stages": [{"rate": 4, "duration_s": 1}], **LENGTHS},
        ],
        False,
    ),
    "sglang": ({"r.jsonl": lines([SGLANG | SGLANG_LISTS])}, "SGLang's bench_serving", [LOOP], True),
    "sglang-means": ({"r.jsonl": lines([SGLANG])}, "SGLang's bench_serving", [LOOP | {"requests": 4} | LENGTHS], False),
    "guidellm": (
        {"r.json": GUIDELLM},
        "GuideLLM",
        [{"concurrency": 1}, LOOP, {}, {}, {"max_in_flight": 3}],
        True,
    ),
    "guidellm-old": ({"r.json": GUIDELLM_OLD}, "GuideLLM", [LOOP], True),
    "guidellm-means": (
        {"r.json": {"benchmarks": [guidellm_benchmark(s) for s in STRATEGIES[1:]]}},
        "GuideLLM",
        [
            LOOP | {"requests": 4} | LENGTHS,
            {"arrival": {"burst": {"size": 4}}, "stages": [{"rate": 4, "duration_s": 1}], **LENGTHS},
            {"arrival": "even", "stages": [{"rate": 2.0, "duration_s": 2.0}], **LENGTHS},
            {"arrival": "poisson", "stages": [{"rate": 4.0, "duration_s": 1.0}], "max_in_flight": 3, **LENGTHS},
        ],
        False,
    ),
    "aiperf": ({"p.jsonl": lines(AIPERF), "p_aiperf.json": AIPERF_SUMMARY}, "AIPerf", [LOOP], True),
    "aiperf-alone": ({"p.jsonl": lines(AIPERF)}, "AIPerf", [{}], True),
    "aiperf-means": ({"p_aiperf.json": AIPERF_SUMMARY}, "AIPerf", [LOOP | {"requests": 4} | LENGTHS], False),
    "genai-perf": (
        {"p_genai_perf.json": GENAI_PERF},
        "GenAI-Perf",
        [{"arrival": "even", "stages": [{"rate": 5.0, "duration_s": 0.8}], **LENGTHS}],
        False,
    ),
    "genai-perf-new": ({"p_genai_perf.json": GENAI_PERF_NEW}, "GenAI-Perf", [LOOP | {"requests": 4} | LENGTHS], False),
    "genai-perf-raw": (
        {"p.json": GENAI_PERF_RAW, "p_genai_perf.json": GENAI_PERF},
        "GenAI-Perf",
        [LOOP | {"requests": 4} | LENGTHS],
        False,
    ),
    "llmperf": ({"m_summary.json": LLMPERF}, "LLMPerf", [LOOP | {"requests": 4} | LENGTHS], False),
    "llmperf-requests": (
        {"m_individual_responses.json": LLMPERF_RESPONSES, "m_summary.json": LLMPERF},
        "LLMPerf",
        [LOOP],
        True,
    ),
}


def results(folder: Path, files: dict[str, Any]) -> list[Result]:
    """The results in the first of these files."""
    first, *_ = [written(folder, name, content) for name, content in files.items()]
    return read_results(first)


@pytest.mark.parametrize("form", FORMS)
def test_a_form_is_read(form: str, tmp_path: Path) -> None:
    """Load, requests and figures; all forms tell of the same four requests."""
    files, tool, loads, detailed = FORMS[form]
    read = results(tmp_path, files)
    assert [r.load_entry("r") for r in read] == loads and {r.tool for r in read} == {tool}
    assert is_trace(tmp_path / next(iter(files)))
    for r in read:
        summary = r.observed_entry().get("summary", {})
        if form != "aiperf-alone":
            assert (summary["ttft_ms"]["mean"], summary["completed"], r.requests) == (40.0, 4, 4)
        assert summary.get("itl_mean_ms") in (None, 10.0)  # mean TPOT, never the 12 and 9 ms of all tokens
        assert r.model == (MODEL if "sglang" not in form and form != "aiperf-alone" else "")
        assert (r.rows is not None) == detailed
        if r.rows is None:
            continue
        assert not any("states a mean" in note for note in r.rows.about)
        assert r.rows.columns["input_len"].tolist() == [500, 600, 600, 700]
        assert r.rows.columns["ttft_ms"] == pytest.approx([38, 40, 40, 42])
        assert r.rows.columns["e2e_ms"].mean() == pytest.approx(60)
        trace = trace_from(r.rows, tmp_path / next(iter(files)), "r", timed=r.timed)
        assert trace.recorded is not None and len(trace.requests) == 4
        assert r.timed or not trace.requests.arrival_us.any()


@pytest.mark.parametrize(
    ("load", "entry"),
    [
        ({"request_rate": "inf", "max_concurrency": 3}, {"concurrency": 3, "requests": 4}),
        ({"request_rate": float("inf"), "max_concurrency": 3}, {"concurrency": 3, "requests": 4}),
        ({"request_rate": "inf", "max_concurrency": 4}, {"arrival": {"burst": {"size": 4}}}),
        ({"request_rate": "inf"}, {"arrival": {"burst": {"size": 4}}}),
        ({"request_rate": 2.0, "max_concurrency": 3}, {"arrival": "poisson", "max_in_flight": 3}),
        ({"request_rate": 2.0, "max_concurrency": 9}, {"arrival": "poisson"}),  # a cap that is never reached
        ({"request_rate": 2.0, "burstiness": 4.0}, {"arrival": {"gamma": {"cv": 0.5}}}),
    ],
)
def test_rate_and_concurrency_are_a_load(load: dict[str, Any], entry: dict[str, Any], tmp_path: Path) -> None:
    [r] = results(tmp_path, {"r.json": VLLM | load})
    found = r.load_entry("r")
    assert found | entry == found
    assert "concurrency" in entry or found["stages"][0]["rate"] in (2.0, 4)
    assert ("max_in_flight" in found) == ("max_in_flight" in entry)


def test_stated_means_that_the_requests_do_not_have_are_noted(tmp_path: Path) -> None:
    [r] = results(tmp_path, {"r.json": VLLM_DETAILED | {"mean_ttft_ms": 41.0, "mean_e2el_ms": 60.5}})
    assert r.rows and r.rows.about == ("r.json states a mean TTFT of 41 ms, its requests have 40 ms: check the file",)
    [r] = results(
        tmp_path, {"p.json": GENAI_PERF_RAW, "p_genai_perf.json": GENAI_PERF | {"request_latency": metric(70, "ms")}}
    )
    assert r.about == ("p_genai_perf.json states a mean E2E of 70 ms, the requests of p.json have 60 ms: check both",)


def test_requests_without_arrivals_and_concurrency_are_means(tmp_path: Path) -> None:
    [r] = results(tmp_path, {"r.jsonl": lines([SGLANG | SGLANG_LISTS | {"request_rate": 4.0}])})
    assert r.rows is None and "does not say when requests were sent" in r.about[-1]
    [burst] = results(tmp_path, {"r.jsonl": lines([SGLANG | SGLANG_LISTS | {"max_concurrency": 100}])})
    assert burst.timed and burst.load_entry("r") == {}  # all at once


def test_requests_that_failed_or_were_cut_off_are_left_out(tmp_path: Path) -> None:
    cancelled = aiperf_record(4, 600, 3, 40.0, was_cancelled=True)
    failed = {"metadata": aiperf_record(5, 1, 1, 1.0)["metadata"], "metrics": {}, "error": {"code": 500}}
    warm_up = aiperf_record(-1, 600, 3, 900.0, benchmark_phase="warmup")
    [r] = results(tmp_path, {"p.jsonl": lines([*AIPERF, cancelled, failed, warm_up])})
    assert r.rows is not None
    trace = trace_from(r.rows, tmp_path / "p.jsonl", "p")
    assert (len(trace.requests), trace.failed, trace.requests.stage.tolist()) == (5, 2, [-1, 0, 0, 0, 0])
    [turns] = results(tmp_path, {"t.jsonl": lines([*AIPERF, aiperf_record(4, 900, 3, 40.0, turn_index=1)])})
    assert turns.rows and "1 request of t.jsonl later in a conversation" in turns.rows.about[0]
    [*_, guide] = results(tmp_path, {"r.json": GUIDELLM})
    assert (
        guide.rows is not None
        and len(guide.rows) == 4
        and "1 request of r.json cut off at the end" in guide.rows.about[0]
    )
    error = LLMPERF_RESPONSES[0] | {
        "error_code": 429,
        "number_output_tokens": 0,
        "ttft_s": 0,
        "end_to_end_latency_s": 0,
    }
    files = {"m_individual_responses.json": [*LLMPERF_RESPONSES, error], "m_summary.json": LLMPERF}
    [perf] = results(tmp_path, files)
    assert perf.rows is not None and trace_from(perf.rows, tmp_path / "m_summary.json", "m", timed=False).failed == 1


def test_a_sample_of_the_requests_is_no_trace(tmp_path: Path) -> None:
    report = json.loads(json.dumps(GUIDELLM))
    report["benchmarks"][1]["metrics"]["request_totals"]["successful"] = 400
    sampled = results(tmp_path, {"r.json": report})[1]
    assert sampled.rows is None and sampled.load_entry("r")["requests"] == 400


DAMAGED: list[tuple[str, Any, str]] = [
    ("r.json", VLLM | {"request_rate": "fast"}, "r.json: request_rate must be a number, got 'fast': give requests/s, or inf"),
    ("r.json", VLLM | {"max_concurrency": 2.5}, "r.json: max_concurrency must be a whole number, got 2.5"),
    ("r.json", VLLM | {"mean_ttft_ms": "40"}, "r.json: mean_ttft_ms must be a number, got '40'"),
    ("r.json", VLLM | {"ramp_up_strategy": "linear"}, "r.json: ramp_up_strategy changes the rate during the run"),
    ("r.jsonl", lines([SGLANG]) + "{\n", "r.jsonl:2: line 1: not valid JSON"),
    ("r.jsonl", lines([SGLANG]) + "[]\n", "r.jsonl:2: must be a JSON object"),
    ("r.json", {"benchmarks": []}, "r.json: benchmarks must be a non-empty list"),
    ("r.json", {"benchmarks": [{"stats": {}}]}, "r.json: benchmarks[0].config is missing"),
    ("r.json", {"benchmarks": [{"config": {"strategy": {"type_": "concurrent"}}}]}, "r.json: benchmarks[0].config.strategy.streams"),
    ("r.json", {"benchmarks": [{"config": {"strategy": {}}, "requests": {"successful": [5]}}]}, "r.json: benchmarks[0].requests.successful"),
    ("p.jsonl", lines([{"metadata": {"request_start_ns": "x"}}]), "p.jsonl: metadata.request_start_ns must be a number, got 'x'"),
    ("p.jsonl", lines([*AIPERF, {"metadata": {}}]), "p.jsonl:5: metadata.request_start_ns is missing"),
    ("p.jsonl", lines([*AIPERF, aiperf_record(9, 1, 1, 1.0) | {"metrics": {"request_latency": {"value": 1, "unit": "min"}}}]), "p.jsonl:5: metrics.request_latency.unit is 'min'"),
    ("p_aiperf.json", AIPERF_SUMMARY | {"request_latency": {"unit": "h"}}, "p_aiperf.json: request_latency.unit is 'h'"),
    ("p.json", GENAI_PERF_RAW, "p.json: has the texts of GenAI-Perf's requests, but not their tokens: put p_genai_perf.json beside it"),
    ("m_individual_responses.json", LLMPERF_RESPONSES, "m_individual_responses.json: has LLMPerf's requests, but not how many were in flight: put"),
    ("m_summary.json", LLMPERF | {"num_concurrent_requests": 0}, "m_summary.json: num_concurrent_requests must be >= 1"),
    ("summary_lifecycle_metrics.json", {"load_summary": {}, "successes": {}}, "summary_lifecycle_metrics.json: is one file of an inference-perf run: name its folder"),
    ("r.json", "{\"model_id\": ", "r.json: line 1: not valid JSON"),
    ("r.txt", {"some": "thing"}, "r.txt: is JSON of no known format: a trace has arrival_s"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "content", "message"), DAMAGED, ids=[m[:60] for *_, m in DAMAGED])
def test_a_damaged_result_is_refused_in_one_line(name: str, content: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        results(tmp_path, {name: content})
    said = str(caught.value).removeprefix(f"{tmp_path}/")
    assert said.startswith(message) and "\n" not in said


@pytest.mark.parametrize("form", FORMS)
def test_values_changed_anywhere_are_read_or_refused_in_one_line(form: str, tmp_path: Path) -> None:
    rng = random.Random(form)
    files, *_ = FORMS[form]
    name, content = next(iter(files.items()))
    text = content if isinstance(content, str) else json.dumps(content)
    for other in list(files)[1:]:
        written(tmp_path, other, files[other])
    for _ in range(60):
        at = rng.randrange(len(text))
        changed = (
            text[:at]
            + rng.choice(['"', "-", "9", "null", "[", "}", ",", "e9", "x", ""])
            + text[at + rng.randrange(3) :]
        )
        written(tmp_path, name, changed)
        try:
            for r in read_results(tmp_path / name):
                r.load_entry("r")
                r.observed_entry()
        except InputError as e:
            assert ("\n" not in str(e) and str(tmp_path) in str(e)) or str(e).startswith("r: does not say")


def test_each_format_has_a_form_here() -> None:
    """But for inference-perf, whose folders are read as a whole."""
    tools = {tool for _, tool, _, _ in FORMS.values()} | {"inference-perf"}
    assert {f.name for f in RESULTS} == tools


@pytest.mark.parametrize("timed", [True, False])
def test_arrivals_are_needed_unless_clients_wait_for_answers(timed: bool, tmp_path: Path) -> None:
    path = written(tmp_path, "t.csv", "input_len,output_len,e2e_ms\n64,3,20\n80,2,30\n")
    if timed:
        with pytest.raises(InputError, match="arrival_s is missing"):
            read_trace(path, "t.csv", timed=timed)
    else:
        trace = read_trace(path, "t.csv", timed=timed)
        assert trace.requests.arrival_us.tolist() == [0, 0] and trace.requests.input_len.tolist() == [64, 80]


@pytest.mark.skipif(not CASES.is_dir(), reason="../shared/data/cases is not there")
@pytest.mark.parametrize(
    ("case", "tool", "load"),
    [
        ("aiperf-jsonl", "AIPerf", {}),
        (
            "sglang-jsonl",
            "SGLang's bench_serving",
            {"arrival": "poisson", "stages": [{"rate": 4.0, "duration_s": 0.5}]},
        ),
    ],
)
def test_a_case_from_the_field_is_read(case: str, tool: str, load: dict[str, Any]) -> None:
    [r] = read_results(CASES / case / "r.jsonl")
    assert r.tool == tool and r.load_entry(case) | load == r.load_entry(case)
    assert r.rows is None or not np.isnan(r.rows.columns["e2e_ms"]).any()
