"""A run as an experiment, and how good it is."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from evolve.ingest.columns import NONE
from evolve.ingest.derive.observe import components, reports_of
from evolve.ingest.entry import Given, make_entry
from evolve.ingest.one import Derived, Sources
from evolve.ingest.quality import FAILED_SHARE, Quality, judge
from evolve.ingest.sources.findings import Finding
from evolve.ingest.sources.folder import PER_REQUEST

WAITING_SHARE = 0.5
"""Of the sampled steps: more of them with requests waiting, and the engine did not keep up. Of three published clean
runs with step records the busiest, at its limit of 128 requests for minutes, has 5 %."""

UNKNOWN = "unknown"  # the quality of a run of which no report, row or journey tells how it went
MOST_WITHOUT = 0.01  # of the client's requests may lack a journey before an experiment says on how many its parts rest


def describe(s: Sources, d: Derived, given: Given, findings: list[Finding]) -> tuple[dict[str, Any] | None, Quality]:
    """The experiment's mapping, None where the folder does not hold enough for one, and the run's quality."""
    reports = s.reports
    if not reports.all and s.clients is not None:
        reports = reports_of(d.columns, f"{s.folder.results}/{PER_REQUEST}")
        findings.append(Finding("reports", 1, "none: observed figures are taken from the client's rows"))
    further = _waiting(d) + (_aborted(s) if not reports.all else [])
    quality = judge(reports, s.settings.load, further)
    if not reports.all and not quality.reasons and not s.lives:
        quality = replace(quality, label=UNKNOWN)
    findings += quality.findings
    entry = make_entry(s.folder, s.settings, s.log, reports, quality, given, _kv_blocks(d), _prompt_len(d))
    findings += entry.findings
    mapping, parts = entry.mapping, components(d.columns)
    if mapping is not None and parts is not None:
        mapping["x_components_ms"], mapping["x_components_requests"] = parts
        rows = len(s.clients) if s.clients is not None else 0
        if len(s.lives) < (1 - MOST_WITHOUT) * rows:
            text = f"the traces have {len(s.lives):,} of {rows:,} requests: the parts of the E2E are of these"
            mapping["x_note"] = [*mapping.get("x_note", []), text]
    return mapping, quality


def _kv_blocks(d: Derived) -> int | None:
    """Usable KV blocks, as most sampled steps have it."""
    blocks = d.sampled.get("kv_blocks_total", np.zeros(0, np.int64))
    sizes, often = np.unique(blocks[blocks != NONE], return_counts=True)
    return int(sizes[often.argmax()]) if len(sizes) else None


def _prompt_len(d: Derived) -> float | None:
    """Mean prompt length in tokens as the server counts them; the reports have the client's count."""
    lengths = d.columns["prompt_tokens"][d.columns["usable"] & d.columns["completed"]]
    return float(lengths.mean()) if len(lengths) else None


def _waiting(d: Derived) -> list[str]:
    depth = d.sampled.get("waiting_depth", np.zeros(0, np.int64))
    depth = depth[depth != NONE]
    if len(depth) and np.mean(depth > 0) > WAITING_SHARE:
        return [f"requests wait in {100 * np.mean(depth > 0):.0f} % of {len(depth):,} sampled steps"]
    return []


def _aborted(s: Sources) -> list[str]:
    """Where no client tells: journeys that did not end by themselves."""
    bad = sum(not life.usable for life in s.lives)
    if bad > FAILED_SHARE * len(s.lives):
        return [f"{100 * bad / len(s.lives):.2f} % of {len(s.lives):,} journeys were aborted or are not complete"]
    return []
