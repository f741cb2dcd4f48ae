"""The load generator's reports, computed from its rows by the formulas of trace-formats, section 4.1."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any

import numpy as np
from trace_records import Options, Row

PERCENTILES = (0.1, 1, 5, 10, 25, 50, 75, 90, 95, 99, 99.9)
NUMBERS = (
    *("delay", "sent", "start", "end", "input", "output", "latency", "ttft", "tpot", "normalized", "itl"),
    *("failed_latency", "failed_input"),
)


class Rows:
    """Numbers of rows gathered in passing: arrays of doubles, eight bytes for every interval between stamps."""

    def __init__(self) -> None:
        self.of = {name: array("d") for name in NUMBERS}

    def add(self, row: Row) -> None:
        of = self.of
        of["delay"].append(row.schedule_delay)
        of["sent"].append(row.start_time)
        if row.failed:
            of["failed_latency"].append(row.end_time - row.start_time)
            of["failed_input"].append(row.input_tokens)
            return
        of["start"].append(row.start_time)
        of["end"].append(row.end_time)
        of["input"].append(row.input_tokens)
        of["output"].append(row.output_tokens)
        latency = row.end_time - row.start_time
        of["latency"].append(latency)
        of["normalized"].append(latency / row.output_tokens if row.output_tokens else 0.0)
        t = row.times
        if len(t) > 1:
            of["ttft"].append(t[0] - row.start_time)
            of["tpot"].append((t[-1] - t[0]) / (len(t) - 1))
            of["itl"].frombytes(np.diff(np.array(t)).tobytes())

    def __getitem__(self, name: str) -> np.ndarray:
        return np.frombuffer(self.of[name])


def distribution(numbers: np.ndarray) -> dict[str, float] | None:
    """Mean, extremes and percentiles, linearly interpolated; `numbers` are left in another order."""
    if not len(numbers):
        return None
    mean, least, most = float(numbers.mean()), float(numbers.min()), float(numbers.max())
    at = np.percentile(numbers, PERCENTILES, overwrite_input=True)
    names = ["median" if p == 50 else f"p{p}" for p in PERCENTILES]
    return {"mean": mean, "min": least, **dict(zip(names, at.tolist(), strict=True)), "max": most}


def report(parts: Sequence[Rows], rate: float | None = None) -> dict[str, Any]:
    """The report on the rows of these parts; `rate` is a stage's requested one in 1/s, None for the whole."""

    def of(name: str) -> np.ndarray:
        return np.concatenate([part[name] for part in parts])

    done, failed = len(of("latency")), len(of("failed_latency"))
    load: dict[str, Any] = {"count": done + failed, "schedule_delay": distribution(of("delay"))}
    if rate is not None:
        sent = of("sent")
        duration = float(sent.max() - sent.min()) if len(sent) else 0.0
        achieved = len(sent) / duration if duration else 0.0
        load |= {"send_duration": duration, "requested_rate": rate, "achieved_rate": achieved}
    lasted = float(of("end").max() - of("start").min()) if done else 0.0
    totals = {"input": float(of("input").sum()), "output": float(of("output").sum())}
    totals |= {"total": totals["input"] + totals["output"]}
    throughput = {f"{name}_tokens_per_sec": total / lasted if lasted else 0.0 for name, total in totals.items()}
    return {
        "load_summary": load,
        "successes": {
            "count": done,
            "latency": {
                "request_latency": distribution(of("latency")),
                "normalized_time_per_output_token": distribution(of("normalized")),
                "time_per_output_token": distribution(of("tpot")),
                "time_to_first_token": distribution(of("ttft")),
                "inter_token_latency": distribution(of("itl")),
            },
            "throughput": {**throughput, "requests_per_sec": done / lasted if lasted else 0.0},
            "prompt_len": distribution(of("input")),
            "output_len": distribution(of("output")),
        },
        "failures": {
            "count": failed,
            "request_latency": distribution(of("failed_latency")),
            "prompt_len": distribution(of("failed_input")),
        },
    }


def stage_reports(o: Options, stages: Sequence[Rows]) -> dict[str, dict[str, Any]]:
    """File name -> report, of every stage and of the whole."""
    named = {f"stage_{k}": report([rows], o.rates[k]) for k, rows in enumerate(stages)}
    named["summary"] = report(stages)
    return {f"{name}_lifecycle_metrics.json": told for name, told in named.items()}
