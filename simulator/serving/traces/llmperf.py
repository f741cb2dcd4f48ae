"""LLMPerf's two files of a run: NAME_summary.json with the load, and NAME_individual_responses.json with requests.

It keeps num_concurrent_requests in flight and does not say when each was sent. Its inter_token_latency_s is E2E over
all tokens, so it is no TPOT and is not read; requests are in seconds.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from simulator.common.documents import read_json
from simulator.common.errors import InputError, Section, shown
from simulator.common.json import JsonObject
from simulator.serving.observations import Observation, Statistic
from simulator.serving.traces.result import (
    SAVED_AGAIN,
    Pacing,
    Result,
    beside,
    column,
    compared,
    count,
    figure,
    figures,
    text,
)
from simulator.serving.traces.rows import Rows

SUMMARY, RESPONSES = "_summary.json", "_individual_responses.json"
QUANTITIES = {"mean": "mean", "p50": "quantiles_p50", "p90": "quantiles_p90", "p99": "quantiles_p99"}
E2E, TTFT = "end_to_end_latency_s", "ttft_s"
COUNTED_BY_LLAMA = "LLMPerf counts tokens with its own tokenizer, which may not be the model's"


def read_summary(path: Path, where: str, value: JsonObject) -> list[Result]:
    """The means of a run. Raises InputError naming file, place and remedy."""
    s = Section(where, "", value)
    e2e, ttft = (
        figures(s, {ours: f"results_{name}_{theirs}" for ours, theirs in QUANTITIES.items()}, 1e3)
        for name in (E2E, TTFT)
    )
    completed, failed = count(s, "results_num_completed_requests"), count(s, "results_number_errors")
    prompt, answer = (
        figure(s, f"results_number_{which}_tokens_mean") or figure(s, f"mean_{which}_tokens")
        for which in ("input", "output")
    )
    pacing = Pacing(concurrency=s.whole("num_concurrent_requests", SAVED_AGAIN, least=1))
    stated = Observation(e2e, ttft, Statistic(), completed, failed)
    sent = (completed or 0) + (failed or 0) or None
    return [Result("LLMPerf", pacing, None, stated, (prompt, answer), sent, text(s, "model"), (COUNTED_BY_LLAMA,))]


def read_responses(path: Path, where: str, value: list[Any]) -> list[Result]:
    """The requests of a run, with the load of the summary beside it. Raises InputError without that."""
    stem = path.name.removesuffix(RESPONSES)
    summary = beside(path, f"{stem}{SUMMARY}") if path.name.endswith(RESPONSES) else None
    if summary is None:
        remedy = f"put NAME{SUMMARY} beside NAME{RESPONSES}, or name that file"
        raise InputError(f"{where}: has LLMPerf's requests, but not how many were in flight: {remedy}")
    [means] = read_summary(summary, str(summary), read_json(summary, SAVED_AGAIN, foreign=True))
    wrong = next((i for i, item in enumerate(value) if not isinstance(item, dict)), None)
    if wrong is not None:
        raise InputError(f"{where}: request {wrong} must be a mapping, got {shown(value[wrong])}: {SAVED_AGAIN}")

    def place(i: int) -> str:
        return f"{where}: request {i}"

    failed = np.array([item.get("error_code") is not None for item in value])
    e2e, ttft = (np.where(failed, np.nan, 1e3 * column(value, name, place)) for name in (E2E, TTFT))
    columns = {
        "input_len": column(value, "number_input_tokens", place),
        "output_len": np.where(failed, 0.0, column(value, "number_output_tokens", place)),
        "ttft_ms": np.where(ttft > 0, ttft, np.nan),
        "e2e_ms": np.where(e2e > 0, e2e, np.nan),
    }
    rows = Rows(columns, place, about=means.about, model=means.model)
    return [compared(replace(means, rows=rows, requests=len(rows)), path.name)]
