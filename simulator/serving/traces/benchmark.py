"""The result file of vLLM's serving benchmark (`vllm bench serve`), saved with --save-result --save-detailed.

Its times are seconds (vllm/benchmarks/serve.py). A request that failed has no output tokens, a TTFT of 0 and no ITLs;
other tools write null.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from simulator.common.documents import read_json
from simulator.common.errors import InputError, is_number, shown
from simulator.serving.traces.rows import Rows

NEEDED = "arrival_s, input_len, output_len"  # columns of a trace of ours
MOST_TIMES = 20  # what JSON files of people may hold: a result has a number for each token
BRIEF = ("model_id", "num_prompts", "request_throughput")  # what every result of vLLM's benchmark has
DETAILED = ("input_lens", "output_lens", "ttfts", "itls", "start_times")
NOT_IN_S = 100.0  # times the file's own mean TTFT, above which ttfts are not in seconds
DETAILS = "save the benchmark's result with --save-detailed"
MEANS = (
    "give its means as observed.summary of an experiment: mean_ttft_ms as ttft_ms.mean, mean_tpot_ms as itl_mean_ms "
    "(docs/ingest.md, Results without requests)"
)
SPLITTING = "import pathlib; [pathlib.Path(f'OUT-{i}.json').write_text(s) for i, s in enumerate(open('IN'))]"
NO_RATE = (math.inf, "inf", "Infinity")  # of request_rate: a request is sent as soon as a user is free


def read_benchmark(path: Path) -> Rows:
    """The requests of a result. Raises InputError naming file, place and remedy, and OSError."""
    value = _value(path)
    if not isinstance(value, dict) or not {*DETAILED, *BRIEF} & value.keys():
        known = f"a trace has {NEEDED}, as CSV or parquet"
        raise InputError(f"{path}: is no result of vLLM's serving benchmark, the one JSON that is read: {known}")
    _check_details(path, value)
    lists: dict[str, list[Any]] = {}
    for name in DETAILED:
        items, first = value.get(name), value["input_lens"]
        if not isinstance(items, list) or not isinstance(first, list) or len(items) != len(first):
            raise InputError(f"{path}: {name} must be a list with one entry a request: save the result again")
        lists[name] = items
    numbers = {name: _numbers(path, name, lists[name]) for name in DETAILED if name != "itls"}
    sums = np.array([_sum(path, i, gaps) for i, gaps in enumerate(lists["itls"])])
    answered = numbers["output_lens"] > 0  # a request that failed has neither tokens nor times
    timed = (numbers["ttfts"] > 0) & ~np.isnan(sums)
    ttft_s = np.where(answered & timed, numbers["ttfts"], np.nan)
    _check_unit(path, value, ttft_s, ttft_s + sums)
    columns = {
        "arrival_s": numbers["start_times"],
        "input_len": numbers["input_lens"],
        "output_len": numbers["output_lens"],
        "ttft_ms": 1e3 * ttft_s,
        "e2e_ms": 1e3 * (ttft_s + sums),
    }
    about = (*_untimed(path, int((answered & ~timed).sum()), len(answered)), *_closed_loop(path, value))
    model = value.get("model_id")
    named = model if isinstance(model, str) else ""
    return Rows(columns, lambda i: f"{path}: request {i}", about=about, model=named)


def _value(path: Path) -> Any:
    """The JSON value in a file. Raises InputError, which says so if the file has several results."""
    try:
        return read_json(path, "save the benchmark's result again", MOST_TIMES, foreign=True)
    except InputError:
        lines = [line.strip() for line in path.read_bytes().splitlines() if line.strip()]
        if len(lines) < 2 or not all(line.startswith(b"{") and line.endswith(b"}") for line in lines):
            raise
        problem = f"has {len(lines):,} results, one a line, as --append-result saves them"
        raise InputError(f"{path}: {problem}: save each in a file, in Python: `{SPLITTING}`") from None


def _check_details(path: Path, value: dict[str, Any]) -> None:
    """Raises InputError if the result lacks what is saved of each request."""
    if "input_lens" not in value:
        raise InputError(f"{path}: has no input_lens: {DETAILS}, or {MEANS}")
    if "start_times" not in value:
        text = "vLLM saves them since 0.11.1: benchmark again, or describe the load by its rate and lengths"
        raise InputError(f"{path}: has no start_times, so it is not known when requests arrived: {text}")
    for name, figure in (("output_lens", "answer"), ("ttfts", "TTFT"), ("itls", "E2E")):
        if name not in value:
            problem = f"has no {name}, without which no request's {figure} is known"
            raise InputError(f"{path}: {problem}: {DETAILS}")


def _numbers(path: Path, name: str, items: Sequence[Any]) -> np.ndarray:
    """float64 per request, NaN for null."""
    for i, item in enumerate(items):
        if item is not None and not is_number(item):
            remedy = "correct it, or write null if the request failed"
            raise InputError(f"{path}: {name}[{i}] must be a finite number, got {shown(item)}: {remedy}")
    return np.array(items, dtype=float)


def _sum(path: Path, i: int, gaps: Any) -> float:
    """The seconds from the first token of request i to its last one, NaN for null or where a gap is null."""
    if gaps is None:
        return math.nan
    if not isinstance(gaps, list) or not all(gap is None or is_number(gap) for gap in gaps):
        remedy = "correct it, or write null if the request failed"
        raise InputError(f"{path}: itls[{i}] must be a list of seconds, got {shown(gaps)}: {remedy}")
    return math.nan if None in gaps else float(sum(gaps))


def _check_unit(path: Path, value: dict[str, Any], ttft_s: np.ndarray, e2e_s: np.ndarray) -> None:
    """Raises InputError for times that are not in seconds, as the benchmark's own length and mean TTFT show."""
    if np.isnan(ttft_s).all():
        return
    mean_s, lasted_s, mean_ttft_ms = float(np.nanmean(e2e_s)), value.get("duration"), value.get("mean_ttft_ms")
    if is_number(lasted_s) and 0 < lasted_s < mean_s:
        problem = f"a request takes {mean_s:,.4g} s in the mean, but the benchmark {lasted_s:,.4g} s in all (duration)"
    elif is_number(mean_ttft_ms) and 0 < NOT_IN_S * mean_ttft_ms < 1e3 * np.nanmean(ttft_s):
        problem = f"the mean of ttfts is {np.nanmean(ttft_s):,.4g} s, but mean_ttft_ms is {mean_ttft_ms:,.4g}"
    else:
        return
    raise InputError(f"{path}: {problem}: give ttfts and itls in seconds, as vLLM's benchmark saves them, not in ms")


def _untimed(path: Path, count: int, requests: int) -> tuple[str, ...]:
    """A note on requests with output tokens that have no times."""
    if not count:
        return ()
    text = "have output tokens, but no time to first token or no ITL (0 or null)"
    return (f"{count:,} of {requests:,} requests of {path.name} {text}: replayed, and counted as failed",)


def _closed_loop(path: Path, value: dict[str, Any]) -> tuple[str, ...]:
    """A note on a load of a fixed number of users, each of whom sends a request when the last one is answered."""
    users = value.get("max_concurrency")
    if not is_number(users) or value.get("request_rate") not in NO_RATE:
        return ()
    loop = f"{path.name} is of {users:g} users in a closed loop (max_concurrency, no request_rate)"
    why = "the engine's own speed decided when requests came, and errors of a prediction cancel in part"
    return (f"{loop}: {why}: measure with `vllm bench serve --request-rate R`",)
