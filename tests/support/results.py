"""Result files of load generators, a small one of each form, as their documentation and source say they are written."""

from __future__ import annotations

import json
from typing import Any

MODEL = "meta-llama/Llama-3.1-8B-Instruct"
# vLLM's `vllm bench serve --save-result`: the summary, and the lists of --save-detailed.
VLLM: dict[str, Any] = {
    **{"date": "20260101-000000", "backend": "vllm", "model_id": MODEL, "num_prompts": 4, "request_rate": 2.0},
    **{"burstiness": 1.0, "max_concurrency": None, "duration": 4.0, "completed": 4, "failed": 0},
    **{"total_input_tokens": 2400, "total_output_tokens": 42, "request_throughput": 1.0, "request_goodput": None},
    **{"mean_ttft_ms": 40.0, "median_ttft_ms": 39.0, "p99_ttft_ms": 44.0, "mean_tpot_ms": 10.0, "mean_itl_ms": 12.0},
    **{"mean_e2el_ms": 135.0, "median_e2el_ms": 133.0, "p99_e2el_ms": 180.0},
}
VLLM_LISTS: dict[str, Any] = {
    **{"input_lens": [500, 600, 600, 700], "output_lens": [3, 3, 3, 3], "ttfts": [0.038, 0.04, 0.04, 0.042]},
    **{"itls": [[0.01, 0.01]] * 4, "start_times": [10.0, 10.4, 11.0, 11.6]},
}
# Figures of VLLM that the lists have.
VLLM_DETAILED = VLLM | VLLM_LISTS | {"total_output_tokens": 12, "mean_e2el_ms": 60.0}
# SGLang's bench_serving: one result a line, never the times of arrivals.
SGLANG: dict[str, Any] = {
    **{"backend": "sglang", "dataset_name": "random", "request_rate": float("inf"), "max_concurrency": 2},
    **{"random_input_len": 600, "random_output_len": 3, "duration": 0.3, "completed": 4},
    **{"total_input_tokens": 2400, "total_output_tokens": 12, "request_throughput": 14.0, "concurrency": 1.9},
    **{"mean_e2e_latency_ms": 60.0, "median_e2e_latency_ms": 60.0, "p99_e2e_latency_ms": 62.0},
    **{"mean_ttft_ms": 40.0, "median_ttft_ms": 40.0, "p99_ttft_ms": 42.0, "mean_tpot_ms": 10.0, "mean_itl_ms": 10.0},
}
SGLANG_LISTS = {name: VLLM_LISTS[name] for name in ("input_lens", "output_lens", "ttfts", "itls")} | {
    "errors": [""] * 4
}


def _of_status(mean: float, **percentiles: float) -> dict[str, Any]:
    empty = {"mean": 0.0, "count": 0, "percentiles": {"p50": 0.0, "p90": 0.0, "p99": 0.0}}
    return {"successful": {"mean": mean, "count": 4, "percentiles": percentiles}, "errored": empty, "incomplete": empty}


def guidellm_request(start: float, prompt: int, answer: int, e2e_s: float, ttft_ms: float) -> dict[str, Any]:
    """A request of a GuideLLM report."""
    times = {"request_start_time": start, "request_latency": e2e_s, "time_to_first_token_ms": ttft_ms}
    return {"type_": "generative_request_stats", "prompt_tokens": prompt, "output_tokens": answer, **times}


def guidellm_benchmark(strategy: dict[str, Any], requests: list[Any] | None = None) -> dict[str, Any]:
    """A benchmark of a GuideLLM report; without `requests`, its figures alone."""
    metrics: dict[str, Any] = {
        "request_totals": {"successful": 4, "errored": 0, "incomplete": 1, "total": 5},
        "request_latency": _of_status(0.06, p50=0.06, p90=0.061, p99=0.062),
        "time_to_first_token_ms": _of_status(40.0, p50=40.0, p90=41.0, p99=42.0),
        "inter_token_latency_ms": _of_status(9.0, p50=9.0, p90=9.0, p99=9.0),
        "prompt_token_count": _of_status(600.0),
        "output_token_count": _of_status(3.0),
    }
    cut = guidellm_request(103.0, 600, 1, 0.01, 5.0)
    kept = {"successful": requests, "errored": [], "incomplete": [cut] if requests else None, "total": None}
    config = {"strategy": strategy, "backend": {"type_": "openai_http", "model": MODEL}}
    return {"type_": "generative_benchmark", "config": config, "metrics": metrics, "requests": kept}


GUIDELLM_REQUESTS = [
    guidellm_request(100.0 + 0.1 * i, n, 3, 0.06, ttft)
    for i, (n, ttft) in enumerate(zip((500, 600, 600, 700), (38.0, 40.0, 40.0, 42.0), strict=True))
]
STRATEGIES: list[dict[str, Any]] = [
    {"type_": "synchronous", "max_concurrency": 1},
    {"type_": "concurrent", "streams": 2, "max_concurrency": 2},
    {"type_": "throughput", "max_concurrency": 512},
    {"type_": "constant", "rate": 2.0, "max_concurrency": 512},
    {"type_": "poisson", "rate": 4.0, "max_concurrency": 3},
]
GUIDELLM = {
    "metadata": {"version": 1, "guidellm_version": "0.5.0"},
    "args": {"target": "http://localhost:8000", "model": MODEL},
    "benchmarks": [guidellm_benchmark(strategy, GUIDELLM_REQUESTS) for strategy in STRATEGIES],
}
# Up to release 0.3: `args` instead of `config`, and other names.
GUIDELLM_OLD = {
    "benchmarks": [
        {
            "type_": "generative_benchmark",
            "args": {"strategy": {"type_": "concurrent", "streams": 2}, "strategy_index": 1},
            "worker": {"backend_model": MODEL},
            "total_count": {"successful": 4, "incomplete": 0, "errored": 0},
            "metrics": guidellm_benchmark({})["metrics"],
            "requests": {
                "successful": [
                    {name.replace("request_start", "start"): x for name, x in request.items()}
                    for request in GUIDELLM_REQUESTS
                ]
            },
        }
    ]
}


def aiperf_record(i: int, prompt: int, answer: int, ttft_ms: float, **more: Any) -> dict[str, Any]:
    """A line of AIPerf's profile_export.jsonl."""
    start = 1_893_456_000_000_000_000 + i * 100_000_000
    metadata = {"session_num": i, "turn_index": 0, "request_start_ns": start, "benchmark_phase": "profiling"}
    metrics = {
        "input_sequence_length": {"value": prompt, "unit": "tokens"},
        "output_sequence_length": {"value": answer, "unit": "tokens"},
        "time_to_first_token": {"value": ttft_ms, "unit": "ms"},
        "request_latency": {"value": (ttft_ms + 10.0 * (answer - 1)) / 1e3, "unit": "s"},
    }
    return {"metadata": metadata | more, "metrics": metrics, "error": None}


AIPERF = [aiperf_record(i, n, 3, t) for i, (n, t) in enumerate(((500, 38.0), (600, 40.0), (600, 40.0), (700, 42.0)))]


def metric(avg: float, unit: str, **percentiles: float) -> dict[str, Any]:
    """A metric of AIPerf and GenAI-Perf."""
    return {"unit": unit, "avg": avg, **percentiles}


NVIDIA: dict[str, Any] = {
    "request_throughput": metric(9.0, "requests/sec"),
    "request_latency": metric(60.0, "ms", p50=60.0, p90=61.0, p99=62.0),
    "request_count": metric(4.0, "requests"),
    "time_to_first_token": metric(40.0, "ms", p50=40.0, p90=41.0, p99=42.0),
    "inter_token_latency": metric(10.0, "ms", p50=10.0),
    "output_sequence_length": metric(3.0, "tokens"),
    "input_sequence_length": metric(600.0, "tokens"),
}
AIPERF_SUMMARY = NVIDIA | {
    "aiperf_version": "0.4.0",
    "input_config": {"endpoint": {"model_names": [MODEL]}, "loadgen": {"concurrency": 2, "request_count": 4}},
}
GENAI_PERF = NVIDIA | {"input_config": {"model": [MODEL], "concurrency": None, "request_rate": 5.0}}
GENAI_PERF_NEW = NVIDIA | {"input_config": {"model_names": [MODEL], "perf_analyzer": {"stimulus": {"concurrency": 2}}}}
GENAI_PERF_RAW = {
    "service_kind": "openai",
    "endpoint": "v1/chat/completions",
    "experiments": [
        {
            "experiment": {"mode": "concurrency", "value": 2},
            "requests": [
                {"timestamp": 10**9 + k, "response_timestamps": [10**9 + 40_000_000 + k, 10**9 + 60_000_000 + k]}
                for k in range(4)
            ],
        }
    ],
}
LLMPERF = {
    **{"version": "2023-08-31", "name": "m_600_3_summary", "model": MODEL, "mean_input_tokens": 600},
    **{"stddev_input_tokens": 70, "mean_output_tokens": 3, "stddev_output_tokens": 0, "num_concurrent_requests": 2},
    **{"results_inter_token_latency_s_mean": 0.02, "results_ttft_s_mean": 0.04, "results_ttft_s_quantiles_p50": 0.04},
    **{"results_ttft_s_quantiles_p99": 0.042, "results_end_to_end_latency_s_mean": 0.06},
    **{"results_end_to_end_latency_s_quantiles_p50": 0.06, "results_end_to_end_latency_s_quantiles_p99": 0.062},
    **{"results_number_input_tokens_mean": 600.0, "results_number_output_tokens_mean": 3.0},
    **{"results_num_requests_started": 4, "results_number_errors": 0, "results_num_completed_requests": 4},
}
LLMPERF_RESPONSES = [
    {"error_code": None, "error_msg": "", "inter_token_latency_s": 0.02, "ttft_s": t, "end_to_end_latency_s": t + 0.02}
    | {"number_input_tokens": n, "number_output_tokens": 3}
    for n, t in ((500, 0.038), (600, 0.04), (600, 0.04), (700, 0.042))
]


def lines(rows: list[Any]) -> str:
    """JSON lines, as Python writes them, with NaN and Infinity."""
    return "".join(json.dumps(row) + "\n" for row in rows)
