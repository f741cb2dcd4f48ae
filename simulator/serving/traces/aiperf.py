"""AIPerf's profile_export.jsonl: a record a request, whose figures have units. The load is in the summary beside it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from simulator.common.documents import read_json
from simulator.common.errors import InputError, Section, is_number, shown
from simulator.common.json import JsonObject
from simulator.common.text import counted
from simulator.serving.traces.genai_perf import MS, SUMMARIES, read_summary
from simulator.serving.traces.result import SAVED_AGAIN, Result, beside, compared
from simulator.serving.traces.rows import Rows

WARM_UP = -1  # in column `stage`: replayed, but part of no figure


def read_records(path: Path, records: Sequence[tuple[str, JsonObject]]) -> list[Result]:
    """The run whose requests these records are, each with its place. Raises InputError naming file, line and remedy."""
    sections = [Section(where, "", value) for where, value in records]
    starts = [_metadata(s).number("request_start_ns", SAVED_AGAIN, least=0) / 1e9 for s in sections]
    columns = {
        "arrival_s": np.array(starts),
        "input_len": np.array([_metric(s, "input_sequence_length") for s in sections]),
        "output_len": np.array([_metric(s, "output_sequence_length") for s in sections]),
        "ttft_ms": np.array([_metric(s, "time_to_first_token") for s in sections]),
        "e2e_ms": np.array([_metric(s, "request_latency") for s in sections]),
    }
    failed = np.array([s.has("error") or _metadata(s).raw.get("was_cancelled") is True for s in sections])
    columns["output_len"] = np.where(failed, np.nan, columns["output_len"])
    warm_up = np.array([_metadata(s).raw.get("benchmark_phase") == "warmup" for s in sections])
    if warm_up.any():
        columns["stage"] = np.where(warm_up, WARM_UP, np.nan)
    turns = sum(1 for s in sections if _metadata(s).raw.get("turn_index"))
    names = [path.name.replace(".jsonl", ending) for ending in SUMMARIES]
    summary = next((found for name in names if name != path.name and (found := beside(path, name))), None)
    about = []
    if turns:
        about.append(
            f"{counted(turns, 'request')} of {path.name} later in a conversation: replayed as if nothing is shared"
        )
    if summary is None:
        unknown = f"{names[0]} is not beside {path.name}, so a fixed concurrency is not known"
        about.append(f"{unknown}: requests are replayed when they were sent")
        result = Result("AIPerf")
    else:
        [result] = read_summary(summary, str(summary), read_json(summary, SAVED_AGAIN, foreign=True))
    rows = Rows(columns, lambda i: records[i][0], about=(*about, *result.about), model=result.model)
    return [compared(replace(result, rows=rows, requests=len(rows)), path.name)]


def _metadata(s: Section) -> Section:
    return s.section("metadata", SAVED_AGAIN)


def _metric(s: Section, name: str) -> float:
    """The value of a metric, in ms or tokens; NaN without it."""
    metrics: Any = s.raw.get("metrics") or {}
    metric = metrics.get(name) if isinstance(metrics, dict) else None
    if metric is None:
        return np.nan
    if not isinstance(metric, dict) or not is_number(metric.get("value")):
        raise InputError(f"{s.where}: metrics.{name} must be a value with a unit, got {shown(metric)}: {SAVED_AGAIN}")
    unit = metric.get("unit")
    if unit not in MS and unit not in ("tokens", "token"):
        raise InputError(f"{s.where}: metrics.{name}.unit is {shown(unit)}: give {', '.join(MS)} or tokens")
    return float(metric["value"]) * MS.get(unit, 1.0)
