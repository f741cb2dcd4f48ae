"""The summaries of GenAI-Perf and of AIPerf, its successor, in one layout: a metric has a unit, `avg` and percentiles.

GenAI-Perf's profile_export.json has the texts and times of requests, but no token counts: those are in the summary.
Their inter_token_latency is each request's (E2E - TTFT)/(tokens - 1), so its mean is the mean TPOT.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from simulator.common.documents import read_json
from simulator.common.errors import InputError, Section
from simulator.common.json import JsonObject
from simulator.serving.observations import Observation, Statistic
from simulator.serving.traces.result import (
    AGREES,
    NO_RATE,
    SAVED_AGAIN,
    Pacing,
    Result,
    beside,
    count,
    figure,
    figures,
    paced,
    text,
    under,
)

NAMES = {"mean": "avg", "p50": "p50", "p90": "p90", "p99": "p99"}
MS = {"ms": 1.0, "s": 1e3, "sec": 1e3, "us": 1e-3, "ns": 1e-6}  # of a unit of time
SUMMARIES = ("_aiperf.json", "_genai_perf.json")  # what the name of a summary ends in, after that of the requests' file
STIMULUS = (("loadgen",), (), ("perf_analyzer", "stimulus"), ("perf_analyzer",))  # where a release keeps the load
MODELS = ((("endpoint",), "model_names"), ((), "model_names"), ((), "model"))


def read_summary(path: Path, where: str, value: JsonObject) -> list[Result]:
    """The means of a run. Raises InputError naming file, place and remedy."""
    s = Section(where, "", value)
    config = under(s, "input_config")
    completed, failed = (count(under(s, name), "avg") for name in ("request_count", "error_request_count"))
    sent = (completed or 0) + (failed or 0) or None
    e2e, ttft = (_statistic(s, name) for name in ("request_latency", "time_to_first_token"))
    itl = Statistic(mean=_statistic(s, "inter_token_latency").mean)
    prompt, answer = (figure(under(s, f"{which}_sequence_length"), "avg") for which in ("input", "output"))
    tool = "AIPerf" if "aiperf_version" in value or under(config, "loadgen") else "GenAI-Perf"
    stated = Observation(e2e, ttft, itl, completed, failed)
    pacing = _pacing(config, sent, tool == "AIPerf")
    return [Result(tool, pacing, None, stated, (prompt, answer), sent, _model(config))]


def read_requests(path: Path, where: str, value: JsonObject) -> list[Result]:
    """The runs of profile_export.json, whose lengths are those of the summary beside it."""
    summary = beside(path, f"{path.stem}{SUMMARIES[1]}")
    if summary is None:
        remedy = f"put {path.stem}{SUMMARIES[1]} beside it, or name that file"
        raise InputError(f"{where}: has the texts of GenAI-Perf's requests, but not their tokens: {remedy}")
    [means] = read_summary(summary, str(summary), read_json(summary, SAVED_AGAIN, foreign=True))
    runs = Section(where, "", value).sections("experiments", SAVED_AGAIN)
    if len(runs) > 1:
        raise InputError(
            f"{where}: has {len(runs)} experiments, the summary beside it has one: name each run's summary"
        )
    [run] = runs
    mode = run.section("experiment", SAVED_AGAIN)
    requests = run.sections("requests", SAVED_AGAIN)
    e2e_ms, ttft_ms = np.array([_times_ms(r) for r in requests]).T
    pacing = means.pacing
    if text(mode, "mode") == "concurrency":
        pacing = paced(None, mode.whole("value", SAVED_AGAIN, least=1), None)
    elif text(mode, "mode") == "request_rate":
        pacing = paced(mode.number("value", SAVED_AGAIN, above=0), None, None, "even")
    notes = [
        f"{summary.name} states a mean {what} of {said:,.4g} ms, the requests of {path.name} have {of.mean():,.4g} ms"
        for what, said, of in (("E2E", means.stated.e2e_ms.mean, e2e_ms), ("TTFT", means.stated.ttft_ms.mean, ttft_ms))
        if said and abs(of.mean() - said) > AGREES * said
    ]
    sent = means.requests or len(requests)
    return [replace(means, pacing=pacing, requests=sent, about=tuple(f"{note}: check both" for note in notes))]


def _times_ms(r: Section) -> tuple[float, float]:
    """(E2E, TTFT) of a request, whose times are in ns."""
    sent, answers = r.number("timestamp", SAVED_AGAIN), r.required("response_timestamps", SAVED_AGAIN)
    numbers = answers if isinstance(answers, list) and answers else [None]
    named = Section(r.where, r.at("response_timestamps"), {0: numbers[0], -1: numbers[-1]})
    first, last = (named.number(i, SAVED_AGAIN, least=sent) for i in (0, -1))  # type: ignore[arg-type]
    return (last - sent) / 1e6, (first - sent) / 1e6


def _statistic(s: Section, name: str) -> Statistic:
    metric = under(s, name)
    unit = text(metric, "unit")
    if metric is not None and unit not in MS:
        raise metric.error("unit", f"is {unit!r}", f"give {', '.join(MS)}")
    return figures(metric, NAMES, MS.get(unit, 1.0))


def _pacing(config: Section | None, requests: int | None, aiperf: bool) -> Pacing | None:
    """The load of the settings; one request at a time is the default of both."""
    if config is None or ((fixed := under(config, "input")) and fixed.raw.get("fixed_schedule")):
        return None
    places = [place for keys in STIMULUS if (place := under(config, *keys))]
    load = next((p for p in places if p.has("concurrency") or p.has("request_rate")), None)
    if load is None:
        return Pacing(concurrency=1)
    rate, cap = figure(load, "request_rate"), count(load, "concurrency")
    if rate in NO_RATE:
        return Pacing(concurrency=cap)
    if not aiperf:
        return paced(rate, cap, requests, "even")  # perf_analyzer's default
    pattern, shape = text(load, "arrival_pattern", "request_rate_mode"), figure(load, "arrival_smoothness")
    gamma = pattern == "gamma" and shape
    arrival = (
        {"gamma": {"cv": round(shape**-0.5, 6)}} if gamma and shape else "even" if pattern == "constant" else "poisson"
    )
    return paced(rate, cap, requests, arrival)


def _model(config: Section | None) -> str:
    for keys, name in MODELS:
        place = under(config, *keys)
        value = place.raw.get(name) if place is not None else None
        found = value[0] if isinstance(value, list) and value else value
        if isinstance(found, str):
            return found
    return ""
