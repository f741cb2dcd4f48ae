"""What client rows and journeys say as an experiment's figures: load stages, latencies, and the parts of the E2E."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from evolve.ingest.columns import NONE
from evolve.ingest.sources.clients import Clients
from evolve.ingest.sources.reports import Report, Reports
from evolve.ingest.sources.settings import Settings


def stages_of(clients: Clients | None, settings: Settings) -> np.ndarray:
    """int64: the load stage of every client row, by start; NONE where the load's stages are not known.

    The load generator sends round(rate x duration) requests in a stage: by rank where that is the number of rows, else
    by time since the first start.
    """
    if clients is None:
        return np.zeros(0, dtype=np.int64)
    stages = settings.load.stages if settings.load else None
    if not stages:
        return np.full(len(clients), NONE)
    offered = [round(s["rate"] * s["duration_s"]) for s in stages]
    if sum(offered) == len(clients):
        return np.repeat(np.arange(len(stages)), offered)
    start = np.sort(clients.rows["start_s"])
    ends = np.cumsum([s["duration_s"] for s in stages])[:-1]
    out: np.ndarray = np.searchsorted(ends, start - start[0], side="right").astype(np.int64)
    return out


def reports_of(columns: Mapping[str, Any], source: str) -> Reports:
    """The same figures as the load generator's reports, from the requests table."""
    mine = columns["client_index"] != NONE
    stage = columns["stage"]
    numbers = sorted(set(stage[mine].tolist()) - {NONE})
    return Reports(_report(columns, mine, source), {k: _report(columns, mine & (stage == k), source) for k in numbers})


def _report(columns: Mapping[str, Any], rows: np.ndarray, source: str) -> Report:
    good, bad = rows & columns["completed"], rows & ~columns["completed"]
    counted = {
        name: columns[name][good & (columns[name] != NONE)].astype(float)
        for name in ("client_prompt_tokens", "client_output_tokens")
    }
    return Report(
        source=source,
        requests=int(rows.sum()),
        completed=int(good.sum()),
        failed=int(bad.sum()),
        e2e_s=_statistics(columns["e2e_ms"][good] / 1e3),
        ttft_s=_statistics(columns["ttft_ms"][good] / 1e3),
        harness_itl_s={},
        failed_after_s=_statistics(columns["e2e_ms"][bad] / 1e3),
        prompt_len=_statistics(counted["client_prompt_tokens"]),
        reported_output_len=_statistics(counted["client_output_tokens"]),
    )


def _statistics(values: np.ndarray) -> dict[str, float]:
    """As in a report: percentiles by linear interpolation; none of nothing."""
    values = values[~np.isnan(values)]
    if not len(values):
        return {}
    low, p50, p90, p99, high = np.percentile(values, (0, 50, 90, 99, 100)).tolist()
    return {"mean": float(values.mean()), "min": low, "median": p50, "p90": p90, "p99": p99, "max": high}


def components(columns: Mapping[str, Any]) -> tuple[dict[str, float], int] | None:
    """The mean E2E in its parts, in ms, and of how many requests: those whose journey is whole and which the client saw
    complete, or without client rows all of the first.

    arrival_to_queue, waiting (SCHEDULED - QUEUED; async scheduling stamps SCHEDULED one cycle early), prefill_steps,
    decode_steps (both without the gaps of preemptions, which count as waiting), after_finish, and client: what the
    client's E2E has beyond the server's.
    """
    us = {
        "arrival_to_queue": columns["arrival_to_queue_us"],
        "waiting": columns["server_e2e_us"] - columns["processing_us"],
        "prefill_steps": columns["prefill_processing_us"],
        "decode_steps": columns["decode_processing_us"],
        "after_finish": columns["finish_to_departure_us"],
    }
    if "e2e_ms" in columns:
        known = [part for part in us.values() if not np.isnan(part).all()]
        us["client"] = columns["e2e_ms"] * 1e3 - sum(known)
    parts = {name: part for name, part in us.items() if not np.isnan(part).all()}
    rows = columns["usable"] & columns["completed"] & ~np.isnan(sum(parts.values(), np.zeros(len(columns["usable"]))))
    if not rows.any():
        return None
    return {name: round(float(part[rows].mean()) / 1e3, 4) for name, part in parts.items()}, int(rows.sum())
