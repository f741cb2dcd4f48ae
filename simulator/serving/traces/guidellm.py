"""GuideLLM's benchmarks.json: one benchmark for each strategy of a profile, with figures and requests.

Two layouts: up to release 0.3 a benchmark has `args`, since then `config`. Its mean inter_token_latency_ms is weighted
by tokens, so it is no mean TPOT and is not read.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from simulator.common.errors import Section, shown
from simulator.common.json import JsonObject
from simulator.common.text import counted
from simulator.serving.observations import Observation, Statistic
from simulator.serving.traces.result import (
    SAVED_AGAIN,
    Pacing,
    Result,
    column,
    compared,
    count,
    figure,
    figures,
    paced,
    text,
    under,
)
from simulator.serving.traces.rows import Rows

ARRIVALS = {"constant": "even", "poisson": "poisson"}
LATENCIES = {"e2e_ms": ("request_latency", 1e3), "ttft_ms": ("time_to_first_token_ms", 1.0)}
STARTS = ("request_start_time", "start_time")


def read_guidellm(path: Path, where: str, value: JsonObject) -> list[Result]:
    """Every benchmark of a report. Raises InputError naming file, place and remedy."""
    top = Section(where, "", value)
    return [_benchmark(path, b, text(under(top, "args"), "model")) for b in top.sections("benchmarks", SAVED_AGAIN)]


def _benchmark(path: Path, b: Section, model: str) -> Result:
    settings = under(b, "config") or under(b, "args")
    if settings is None:
        raise b.error("config", "is missing", "save the report of a guidellm release from 0.2 on as JSON")
    model = text(under(settings, "backend"), "model") or text(under(b, "worker"), "backend_model") or model
    answered, errored, cut_off = (_requests(b, status) for status in ("successful", "errored", "incomplete"))
    totals = under(b, "metrics", "request_totals") or under(b, "total_count")
    done, failed = count(totals, "successful"), count(totals, "errored")
    if answered:
        done, failed = (len(answered) if done is None else done, len(errored) if failed is None else failed)
    sent = (done or 0) + (failed or 0)
    metrics = under(b, "metrics")
    e2e, ttft = (_statistic(under(metrics, name, "successful"), ms, b) for name, ms in LATENCIES.values())
    stated = Observation(e2e, ttft, Statistic(), done, failed)
    prompt, answer = (
        figure(under(metrics, f"{which}_token_count", "successful"), "mean") for which in ("prompt", "output")
    )
    pacing = _pacing(settings.section("strategy", SAVED_AGAIN), sent or None)
    result = Result("GuideLLM", pacing, None, stated, (prompt, answer), sent or None, model)
    if cut_off:
        many = counted(len(cut_off), "request")
        result = replace(result, about=(f"{many} of {path.name} cut off at the end of the benchmark: left out",))
    if not answered or (done is not None and len(answered) < done):
        return result
    rows = _rows(b, answered, errored, result.about, model)
    return compared(replace(result, rows=rows), path.name) if "arrival_s" in rows.columns else result


def _statistic(s: Section | None, ms: float, b: Section) -> Statistic:
    mean = figures(s, {"mean": "mean"}, ms)
    others = figures(under(s, "percentiles"), {p: p for p in ("p50", "p90", "p99")}, ms)
    return replace(others, mean=mean.mean if figure(s, "count") != 0 else None)


def _requests(b: Section, status: str) -> list[Any]:
    """The requests of a status, none if the report leaves them out."""
    requests = under(b, "requests")
    listed = requests.raw.get(status) if requests is not None else None
    if listed is not None and not (isinstance(listed, list) and all(isinstance(item, dict) for item in listed)):
        assert requests is not None
        raise requests.error(status, f"must be a list of requests, got {shown(listed)}", SAVED_AGAIN)
    return listed or []


def _rows(b: Section, answered: list[Any], errored: list[Any], about: tuple[str, ...], model: str) -> Rows:
    every = [*answered, *errored]

    def place(i: int) -> str:
        status, k = ("successful", i) if i < len(answered) else ("errored", i - len(answered))
        return f"{b.where}: {b.path}.requests.{status}[{k}]"

    failed = np.arange(len(every)) >= len(answered)
    starts = next((key for key in STARTS if any(key in item for item in every)), "")
    columns = {"arrival_s": column(every, starts, place)} if starts else {}
    columns |= {"input_len": column(every, "prompt_tokens", place)}
    columns |= {"output_len": np.where(failed, np.nan, column(every, "output_tokens", place))}
    columns |= {ours: ms * column(every, theirs, place) for ours, (theirs, ms) in LATENCIES.items()}
    return Rows(columns, place, about=about, model=model)


def _pacing(s: Section, requests: int | None) -> Pacing | None:
    """The pacing of a strategy: synchronous, concurrent, throughput, constant or poisson; None for another."""
    kind, cap = text(s, "type_"), count(s, "max_concurrency")
    if kind == "synchronous":
        return Pacing(concurrency=1)
    if kind == "concurrent":
        return Pacing(concurrency=s.whole("streams", SAVED_AGAIN, least=1))
    if kind == "throughput":
        return paced(None, cap, requests)
    if kind in ARRIVALS:
        return paced(s.number("rate", SAVED_AGAIN, above=0), cap, requests, ARRIVALS[kind])
    return None  # as trace replay: requests have their own times
