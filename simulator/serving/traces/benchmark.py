"""The result files of vLLM's serving benchmark (`vllm bench serve`) and of SGLang's (`bench_serving`), which began as a
copy of it. With --save-detailed or --output-details they have a list of each request, in seconds.

A request that failed has no output tokens, a TTFT of 0 and no ITLs; other tools write null.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from simulator.common.errors import InputError, Section, is_number, shown
from simulator.common.json import JsonObject
from simulator.serving.observations import Observation, Statistic
from simulator.serving.traces.result import NO_RATE, Pacing, Result, compared, count, figure, figures, paced, text
from simulator.serving.traces.rows import Rows

DETAILED = ("input_lens", "output_lens", "ttfts", "itls")
NOT_IN_S = 100.0  # times the file's own mean TTFT, above which ttfts are not in seconds
DETAILS = "save the result with --save-detailed (vLLM) or --output-details (SGLang)"
STATISTICS = {"mean": "mean", "p50": "median", "p90": "p90", "p99": "p99"}


def read_vllm(path: Path, where: str, value: JsonObject) -> list[Result]:
    """The result of `vllm bench serve`. Raises InputError naming file, place and remedy."""
    s = Section(where, "", value)
    return [_read(path, s, "vLLM's benchmark", "e2el", text(s, "model_id"), count(s, "num_prompts"))]


def read_sglang(path: Path, where: str, value: JsonObject) -> list[Result]:
    """The result of SGLang's bench_serving, which names neither the model nor the number of requests."""
    s = Section(where, "", value)
    return [_read(path, s, "SGLang's bench_serving", "e2e_latency", text(s, "model_id", "model"), None)]


def _read(path: Path, s: Section, tool: str, e2e: str, model: str, sent: int | None) -> Result:
    completed, failed = count(s, "completed"), count(s, "failed")
    detailed = "input_lens" in s.raw
    lists = _lists(s) if detailed else {}
    requests = sent or (len(lists["input_lens"]) if detailed else None) or completed
    pacing = _pacing(s, requests) if {"request_rate", "max_concurrency"} & s.raw.keys() else None
    stated = Observation(
        figures(s, {ours: f"{their}_{e2e}_ms" for ours, their in STATISTICS.items()}),
        figures(s, {ours: f"{their}_ttft_ms" for ours, their in STATISTICS.items()}),
        Statistic(mean=figure(s, "mean_tpot_ms")),  # mean_itl_ms is a mean over tokens, not over requests
        completed,
        failed if failed is not None or requests is None or completed is None else max(0, requests - completed),
    )
    result = Result(tool, pacing, None, stated, (_mean_len(s, "input"), _mean_len(s, "output")), requests, model)
    if not detailed:
        return result
    read = compared(replace(result, rows=_rows(path, s, lists, pacing, model)), path.name)
    if read.rows is None or read.timed or (pacing and pacing.concurrency):
        return read
    about = f"{path.name} does not say when requests were sent (start_times): their means are used"
    return replace(result, about=(*read.rows.about, about))


def _mean_len(s: Section, which: str) -> float | None:
    """The mean length of answered requests in tokens, else that of the random data that were asked for."""
    total, completed = figure(s, f"total_{which}_tokens"), count(s, "completed")
    return total / completed if total and completed else figure(s, f"random_{which}_len")


def _pacing(s: Section, requests: int | None) -> Pacing:
    rate = s.raw.get("request_rate")
    if rate not in NO_RATE:
        rate = s.number("request_rate", "give requests/s, or inf", above=0)
    if s.has("ramp_up_strategy") and "start_times" not in s.raw:
        raise s.error("ramp_up_strategy", "changes the rate during the run", DETAILS)
    burstiness = figure(s, "burstiness")
    even = burstiness in (None, 0.0, 1.0)
    arrival = "poisson" if even else {"gamma": {"cv": round(1 / math.sqrt(burstiness or 1.0), 6)}}
    return paced(rate, count(s, "max_concurrency"), requests, arrival)


def _lists(s: Section) -> dict[str, list[Any]]:
    """What is saved of each request. Raises InputError if some of it is missing or has another length."""
    for name, what in (("output_lens", "answer"), ("ttfts", "TTFT"), ("itls", "E2E")):
        if name not in s.raw:
            raise InputError(f"{s.where}: has no {name}, without which no request's {what} is known: {DETAILS}")
    lists: dict[str, list[Any]] = {}
    for name in (*DETAILED, *(["start_times"] if s.has("start_times") else [])):
        items, first = s.raw[name], s.raw["input_lens"]
        if not isinstance(items, list) or not isinstance(first, list) or len(items) != len(first):
            raise InputError(f"{s.where}: {name} must be a list with one entry a request: save the result again")
        lists[name] = items
    return lists


def _rows(path: Path, s: Section, lists: dict[str, list[Any]], pacing: Pacing | None, model: str) -> Rows:
    numbers = {name: _numbers(s.where, name, items) for name, items in lists.items() if name != "itls"}
    sums = np.array([_sum(s.where, i, gaps) for i, gaps in enumerate(lists["itls"])], dtype=float)
    answered = numbers["output_lens"] > 0  # a request that failed has neither tokens nor times
    timed = (numbers["ttfts"] > 0) & ~np.isnan(sums)
    ttft_s = np.where(answered & timed, numbers["ttfts"], np.nan)
    _check_unit(s, ttft_s, ttft_s + sums)
    columns = {
        "input_len": numbers["input_lens"],
        "output_len": numbers["output_lens"],
        "ttft_ms": 1e3 * ttft_s,
        "e2e_ms": 1e3 * (ttft_s + sums),
    }
    if "start_times" in numbers:
        columns = {"arrival_s": numbers["start_times"], **columns}
    elif pacing and pacing.burst:
        columns = {"arrival_s": np.zeros(len(sums)), **columns}
    about = _untimed(path, int((answered & ~timed).sum()), len(answered))
    return Rows(columns, lambda i: f"{s.where}: request {i}", about=about, model=model)


def _numbers(where: str, name: str, items: Sequence[Any]) -> np.ndarray:
    """float64 per request, NaN for null."""
    for i, item in enumerate(items):
        if item is not None and not is_number(item):
            remedy = "correct it, or write null if the request failed"
            raise InputError(f"{where}: {name}[{i}] must be a finite number, got {shown(item)}: {remedy}")
    return np.array(items, dtype=float)


def _sum(where: str, i: int, gaps: Any) -> float:
    """The seconds from the first token of request i to its last one, NaN for null or where a gap is null."""
    if gaps is None:
        return math.nan
    if not isinstance(gaps, list) or not all(gap is None or is_number(gap) for gap in gaps):
        remedy = "correct it, or write null if the request failed"
        raise InputError(f"{where}: itls[{i}] must be a list of seconds, got {shown(gaps)}: {remedy}")
    return math.nan if None in gaps else float(sum(gaps))


def _check_unit(s: Section, ttft_s: np.ndarray, e2e_s: np.ndarray) -> None:
    """Raises InputError for times that are not in seconds, as the benchmark's own length and mean TTFT show."""
    if np.isnan(ttft_s).all():
        return
    mean_s, lasted_s, mean_ttft_ms = float(np.nanmean(e2e_s)), figure(s, "duration"), figure(s, "mean_ttft_ms")
    if lasted_s and lasted_s < mean_s:
        problem = f"a request takes {mean_s:,.4g} s in the mean, but the benchmark {lasted_s:,.4g} s in all (duration)"
    elif mean_ttft_ms and NOT_IN_S * mean_ttft_ms < 1e3 * np.nanmean(ttft_s):
        problem = f"the mean of ttfts is {np.nanmean(ttft_s):,.4g} s, but mean_ttft_ms is {mean_ttft_ms:,.4g}"
    else:
        return
    raise InputError(f"{s.where}: {problem}: give ttfts and itls in seconds, as vLLM's benchmark saves them, not in ms")


def _untimed(path: Path, count: int, requests: int) -> tuple[str, ...]:
    """A note on requests with output tokens that have no times."""
    if not count:
        return ()
    text = "have output tokens, but no time to first token or no ITL (0 or null)"
    return (f"{count:,} of {requests:,} requests of {path.name} {text}: replayed, and counted as failed",)
