"""What became of a folder: counts, clocks, sampling, what was excluded and why, and on how many steps figures rest."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
from scipy import optimize

from evolve import __version__
from evolve.ingest.checks import checks, skipped
from evolve.ingest.columns import NONE
from evolve.ingest.derive.journeys import UNSOUND
from evolve.ingest.derive.known import EXACT
from evolve.ingest.one import Derived, Sources
from evolve.ingest.quality import Quality
from evolve.ingest.sources.findings import Finding
from evolve.ingest.sources.traces import STATUSES
from evolve.ingest.step_table import CONTRADICTED

NARROWED = {
    "traces": ("traces.json", "no journeys, steps and cycles: latencies as the client saw them, nothing by step"),
    "kv_events": ("kv_events.jsonl", "cached prompt tokens follow from step records and repeated prompts alone"),
    "per_request": ("per-request report", "no token times, no figures of single requests at the client"),
    "log": ("vllm.log", "KV blocks, async scheduling and CPU offload are not said by the engine"),
    "config": ("results/config.yaml", "what ran is taken from profile.yaml, if that is there"),
    "exp_config": ("exp-config.yaml", "engine limits are taken from other sources or are defaults"),
    "summary": ("summary report", "the run's figures are put together from others"),
    "profile": ("profile.yaml", "nothing to compare with what ran"),
}


def account(s: Sources, d: Derived, quality: Quality, findings: Sequence[Finding]) -> dict[str, Any]:
    """The quality report of one run as plain values."""
    missing = {name: text for field, (name, text) in NARROWED.items() if getattr(s.folder, field) is None}
    return {
        "engine": __version__,
        "seeds": [],
        "run": s.folder.name,
        "model": s.settings.model,
        "quality": quality.label,
        "reasons": list(quality.reasons),
        "missing": missing,
        "requests": _requests(s, d),
        "excluded": _excluded(s, d),
        "sampling": _sampling(s, d),
        "clocks": _clocks(s),
        "alpha_targets": _alpha(d.columns),
        "batches": _batches(d),
        "cycles": _cycles(d),
        "kv": _kv(s, d),
        "tables": d.rows,
        "findings": [asdict(f) for f in (*findings, *skipped(s), *checks(s, d))],
    }


def _requests(s: Sources, d: Derived) -> dict[str, Any]:
    c = d.columns
    judged = [s.reports.summary] if s.reports.summary else list(s.reports.stages.values())
    out: dict[str, Any] = {"reported_completed": sum(r.completed or 0 for r in judged) if judged else None,
                           "reported_failed": sum(r.failed or 0 for r in judged) if judged else None}  # fmt: skip
    if s.clients is not None:
        errors: Counter[str] = Counter(e for e in s.clients.errors if e)
        out |= {"client_rows": len(s.clients), "client_errors": dict(sorted(errors.items()))}
        reading: Counter[str] = Counter(x for x in c["stamps"].to_pylist() if x)
        out |= {"stamps": dict(sorted(reading.items()))}
    if s.traces is not None:
        status: Counter[str] = Counter(
            STATUSES[x.status] if 0 <= x.status < len(STATUSES) else "not finished" for x in s.lives
        )
        out |= {
            "journeys": len(s.lives),
            "complete_journeys": sum(x.complete for x in s.lives),
            "usable_journeys": sum(x.usable for x in s.lives),
            "finish_status": dict(sorted(status.items())),
            "preemptions": sum(x.preemptions for x in s.lives),
            "matched_with_client": int(((s.joined.client >= 0) & (s.joined.core >= 0)).sum()),
        }
    return out


def _excluded(s: Sources, d: Derived) -> dict[str, int]:
    """What the derived figures leave out, by reason."""
    out: Counter[str] = Counter()
    for life in s.lives:
        if not life.complete:
            out["journeys without all of QUEUED, SCHEDULED, FIRST_TOKEN, FINISHED: no labels"] += 1
        elif not life.usable:
            out["journeys that were aborted: not among labels' means"] += 1
    out[UNSOUND] = s.traces.tally[UNSOUND] if s.traces else 0
    out["client rows with an error: not among latencies"] = sum(map(bool, s.clients.errors)) if s.clients else 0
    out["sampled steps whose batch is contradicted by the engine's summary: no batch fields"] = d.sure[CONTRADICTED]
    for why in d.cycles.why.tolist() if d.cycles else ():
        out[f"cycles: {why}"] += bool(why)
    return {what: n for what, n in out.items() if n}


def _sampling(s: Sources, d: Derived) -> dict[str, Any] | None:
    if s.traces is None or not len(d.sampled["step_id"]):
        return None
    steps = d.sampled["step_id"]
    span = int(steps[-1] - steps[0] + 1)
    rich = len(np.unique(s.traces.snapshots["step_id"]))
    requests = len(s.clients) if s.clients is not None else None
    return {
        "sampled_steps": len(steps), "of_steps": span, "step_rate": len(steps) / span,
        "steps_with_snapshots": rich, "snapshot_rate": rich / len(steps),
        "journey_rate": len(s.lives) / requests if requests else None,
    }  # fmt: skip


def _clocks(s: Sources) -> dict[str, Any]:
    return {
        "client_minus_server_s": s.joined.match.offset_s if s.joined.match else None,
        "client_minus_server_is": "median of start less api.ARRIVED, too small by the time a request takes to arrive",
        "epoch_minus_server_s": s.epoch[0] if s.epoch else None,
        "epoch_spread_s": s.epoch[1] if s.epoch else None,
    }


def _alpha(columns: Mapping[str, Any]) -> dict[str, Any] | None:
    """Arrival to queue; and finish to departure, its two parts by non-negative least squares: a constant, and one per
    output token. They are null where all answers have one length, since nothing tells them apart then."""
    before, after = columns["arrival_to_queue_us"], columns["finish_to_departure_us"]
    rows = columns["usable"] & ~np.isnan(before) & ~np.isnan(after) & (columns["output_tokens"] > 0)
    if not rows.any():
        return None
    tokens = columns["output_tokens"][rows].astype(float)
    constant = per_token = None
    if tokens.min() < tokens.max():
        both, _ = optimize.nnls(np.stack([np.ones(len(tokens)), tokens], axis=1), after[rows])
        constant, per_token = both.tolist()
    return {
        "requests": int(rows.sum()),
        "arrival_to_queue_us": {"mean": float(before[rows].mean()), "sd": float(before[rows].std())},
        "finish_to_departure_us": {"mean": float(after[rows].mean()), "sd": float(after[rows].std()),
                                   "constant": constant, "per_output_token": per_token},
    }  # fmt: skip


def _batches(d: Derived) -> dict[str, Any] | None:
    if d.batches is None:
        return None
    how: Counter[str] = Counter(d.batches.known.how)
    first = [(a, c) for a, c in zip(d.batches.admissions, d.batches.known.cached, strict=True) if not a.again]
    total = sum(a.target for a, _ in first)
    return {
        "asynchronous": d.batches.asynchronous,
        "steps": sum(d.sure.values()),
        "steps_by_evidence": dict(sorted(d.sure.items())),
        "admissions_by_evidence": dict(sorted(how.items())),
        "exact_admissions": sum(n for kind, n in how.items() if kind in EXACT),
        "prompt_tokens": total,
        "cached_prompt_tokens": sum(c for _, c in first),
        "summaries": d.agreement.sampled,
        "summaries_reproduced": d.agreement.corrected,
        "summaries_reproduced_as_published": d.agreement.published,
    }


def _cycles(d: Derived) -> dict[str, Any] | None:
    c = d.cycles
    if c is None:
        return None
    dropped: Counter[str] = Counter(w for w in c.why.tolist() if w)
    good = c.cycle_us[c.usable]
    durations = c.duration_us[c.usable & ~np.isnan(c.duration_us)]
    return {
        "pairs": len(c.step), "usable": int(c.usable.sum()), "excluded": dict(sorted(dropped.items())),
        "mean_cycle_us": float(good.mean()) if len(good) else None,
        "mean_duration_us": float(durations.mean()) if len(durations) else None,
        "measures": "the step before (async scheduling)" if d.asynchronous is not False else "the step itself",
        "async_scheduling": {True: "on", False: "off", None: "not known, taken as on"}[d.asynchronous],
    }  # fmt: skip


def _kv(s: Sources, d: Derived) -> dict[str, Any]:
    tp = s.settings.engine.get("tensor_parallel", 1)
    total = d.sampled["kv_blocks_total"] if len(d.sampled) else np.zeros(0, np.int64)
    known = sorted(set(total[total != NONE].tolist()))
    return {
        "gpu_blocks_from_log": s.log.gpu_blocks,
        "gpu_blocks_from_trace": known[0] if len(known) == 1 else known or None,
        "cpu_blocks": s.log.cpu_blocks(tp),
        "block_stored_without_parent": s.chains.orphans if s.chains else None,
    }
