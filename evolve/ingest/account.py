"""Fills in the quality report of a run: counts, clocks, sampling, exclusions, and contradictions between sources."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

import numpy as np
import scipy

from evolve import __version__
from evolve.ingest import report
from evolve.ingest.columns import NONE, Columns
from evolve.ingest.derive.cached import EXACT
from evolve.ingest.derive.journeys import ENDED_NORMALLY, IMPLAUSIBLE, NO_RESUME, NOT_ADDING_UP, OUT_OF_ORDER
from evolve.ingest.derive.steps import CONFLICTING
from evolve.ingest.folder import Derived, Inputs
from evolve.ingest.quality import Quality
from evolve.ingest.read.clients import OTHER
from evolve.ingest.read.sources import PER_REQUEST, SUMMARY
from evolve.ingest.read.traces import FOREIGN, STATUSES, Traces
from evolve.ingest.read.values import FolderFindings
from evolve.ingest.write.tables import CONTRADICTED

NARROWED = {
    "traces.json": ("traces.json", "no journeys, steps and cycles: only latencies as the client saw them"),
    "kv_events.jsonl": ("kv_events.jsonl", "cached prompt tokens are inferred from step records and repeated prompts"),
    PER_REQUEST: ("per-request report", "no token times, and no client figures for single requests"),
    "vllm.log": ("vllm.log", "KV blocks, async scheduling and CPU offload are unknown"),
    "config.yaml": ("results/config.yaml", "the load is taken from profile.yaml, if there is one"),
    "exp-config.yaml": ("exp-config.yaml", "engine limits are taken from other sources or are defaults"),
    SUMMARY: ("summary report", "the run's figures are combined from those of its stages"),
    "profile.yaml": ("profile.yaml", "the load that ran cannot be compared with the requested one"),
}
"""Sources as in `Folder.files`: their names, and the parts of the output that are missing without them."""

MOST_DRIFT_S = 0.05
"""Largest spread of wall clock minus server clock over a run; beyond it, a clock was set during the run."""

MOST_BAD = 0.01
"""Share of a run's requests that may fail a check of their journeys; the tolerance published with the trace format."""

CLIENT_MINUS_SERVER_IS = "median of start less api.ARRIVED, too small by the time a request takes to arrive"
_CHECKS = (OUT_OF_ORDER, NO_RESUME, NOT_ADDING_UP)


def account(
    inputs: Inputs, derived: Derived, quality: Quality, findings: FolderFindings, data: str, experiment: bool
) -> report.QualityReport:
    """The quality report of one run, with `findings` about its sources added to those made so far."""
    for source, tally in inputs.tally.items():
        for what, count in sorted(tally.items()):
            if what not in _CHECKS:
                findings.warn(source, what, count, "note" if what == FOREIGN else "warning")
    if inputs.traces is not None:
        _check_journeys(inputs, inputs.traces, findings)
    if inputs.epoch is not None and inputs.epoch[1] > MOST_DRIFT_S:
        apart = f"{1e3 * inputs.epoch[1]:.0f} ms"
        text = f"wall clock and server clock drift apart by {apart}: KV events cannot be placed in time"
        findings.warn("traces.json", text)
    if derived.batches is not None:
        text = "admissions without evidence of cached prompt tokens: treated as not cached"
        findings.warn("traces.json", text, derived.batches.cached.how.count("none"))
        text = "sampled steps whose reconstructed batch contradicts the engine's summary: no batch fields"
        findings.warn("traces.json", text, derived.steps.evidence[CONTRADICTED])
    _check_client(inputs, derived, findings)
    steps = derived.sampled["step_id"] if derived.sampled else np.zeros(0, np.int64)
    return report.QualityReport(
        engine=__version__,
        seeds=[],
        run=inputs.folder.name,
        model=inputs.settings.model,
        quality=quality.label,
        reasons=quality.reasons,
        missing={name: text for file, (name, text) in NARROWED.items() if file not in inputs.folder.files},
        requests=_requests(inputs, derived),
        excluded=_excluded(inputs, derived),
        sampling=_sampling(inputs, inputs.traces, steps) if inputs.traces and len(steps) else None,
        clocks=report.Clocks(inputs.joined.offset_s, CLIENT_MINUS_SERVER_IS, *(inputs.epoch or (None, None))),
        alpha_targets=_alpha(derived.requests.columns),
        batches=_batches(derived),
        cycles=_cycles(derived),
        kv=_kv(inputs, derived),
        tables=derived.rows,
        findings=findings,
        data=data,
        experiment=experiment,
    )


def _check_journeys(inputs: Inputs, traces: Traces, findings: FolderFindings) -> None:
    journeys, clients, joined = inputs.journeys, inputs.clients, inputs.joined
    for what in _CHECKS:
        count = traces.tally[what]
        findings.warn("traces.json", what, count, "warning" if count > MOST_BAD * len(journeys) else "note")
    text = "several engines, or a restarted one, wrote into one file: figures by step cannot be trusted"
    findings.warn("traces.json", text, traces.tally[CONFLICTING])
    text = "journeys that lack one of QUEUED, SCHEDULED, FIRST_TOKEN, FINISHED: cut off, or events were lost"
    lacking = sum(not j.complete and (j.status in ENDED_NORMALLY or j.status == NONE) for j in journeys)
    findings.warn("traces.json", text, lacking)
    if traces.api_ids:
        lost = sum(traces.api_of[j.request] < 0 for j in journeys)
        findings.warn("traces.json", "core requests without their API span", lost)
    if clients is None:
        return
    has_row = joined.client >= 0
    if joined.offset_s is None:
        text = "client rows and traces could not be matched by time: each side is used without the other"
        findings.warn("traces.json", text, len(clients))
    else:
        text = "client's requests without a journey: not sampled, or spans were lost"
        findings.warn("traces.json", text, int((has_row & (joined.core < 0)).sum()))
    findings.warn("traces.json", "pairs of client row and journey that differ in max_tokens", joined.unlike)
    extra = int((~has_row & np.isin(joined.core, [j.request for j in journeys])).sum())
    findings.warn("traces.json", "journeys without a client row", extra)


def _check_client(inputs: Inputs, derived: Derived, findings: FolderFindings) -> None:
    if inputs.clients is None:
        return
    summary, rows = inputs.reports.summary, len(inputs.clients)
    if summary and summary.requests is not None:
        text = f"{summary.requests:,} requests, but the per-request file has {rows:,} of them"
        findings.warn(summary.source, text, abs(summary.requests - rows))
    text = "requests with neither 2n + 2 nor n + 1 stamps: only the time of their first token is known"
    findings.warn("requests", text, derived.requests.texts("stamps").count(OTHER))
    load = inputs.settings.load
    wanted = load.output_len if load and load.shared_prefix else None  # else the requests are replayed as they were
    columns = derived.requests.columns
    tokens = columns["output_tokens"][columns["completed"] & (columns["output_tokens"] != NONE)]
    if wanted and len(tokens):
        spread = f"{tokens.min()} to {tokens.max()} tokens, {tokens.mean():.4g} on average"
        text = f"answers have {spread}, not the output_len of {wanted} that the observed ITL is computed with"
        findings.warn("requests", text, int((tokens != wanted).sum()))


def _counts(names: Iterable[str]) -> dict[str, int]:
    return dict(sorted(Counter(names).items()))


def _requests(inputs: Inputs, derived: Derived) -> report.RequestCounts:
    reports, clients, journeys = inputs.reports.of_run, inputs.clients, inputs.journeys
    counts = report.RequestCounts(
        reported_completed=sum(r.completed or 0 for r in reports) if reports else None,
        reported_failed=sum(r.failed or 0 for r in reports) if reports else None,
    )
    if clients is not None:
        errors, stamps = _counts(error for error in clients.errors if error), _counts(derived.requests.texts("stamps"))
        counts = replace(counts, client_rows=len(clients), client_errors=errors, stamps=stamps)
    if inputs.traces is not None:
        counts = replace(
            counts,
            journeys=len(journeys),
            complete_journeys=sum(j.complete for j in journeys),
            usable_journeys=sum(j.usable for j in journeys),
            finish_status=_counts("not finished" if j.status == NONE else STATUSES[j.status] for j in journeys),
            preemptions=sum(j.preemptions for j in journeys),
            matched_with_client=int(((inputs.joined.client >= 0) & (inputs.joined.core >= 0)).sum()),
        )
    return counts


def _excluded(inputs: Inputs, derived: Derived) -> dict[str, int]:
    """The number of items that the derived figures leave out, by reason."""
    incomplete = sum(not j.complete for j in inputs.journeys)
    cycles = Counter(derived.cycles.why.tolist() if derived.cycles else ())
    failed = sum(map(bool, inputs.clients.errors)) if inputs.clients else 0
    contradicted = derived.steps.evidence[CONTRADICTED]
    counts = {
        "journeys without all of QUEUED, SCHEDULED, FIRST_TOKEN, FINISHED: no labels": incomplete,
        "journeys that were aborted: not among labels' means": sum(not j.usable for j in inputs.journeys) - incomplete,
        IMPLAUSIBLE: inputs.traces.tally[IMPLAUSIBLE] if inputs.traces else 0,
        "client rows with an error: not among latencies": failed,
        "sampled steps whose batch is contradicted by the engine's summary: no batch fields": contradicted,
        **{f"cycles: {why}": count for why, count in cycles.items() if why},
    }
    return {what: count for what, count in counts.items() if count}


def _sampling(inputs: Inputs, traces: Traces, steps: np.ndarray) -> report.StepSampling:
    span = int(steps[-1] - steps[0] + 1)
    with_snapshots = len(np.unique(traces.snapshots["step_id"]))
    return report.StepSampling(
        sampled_steps=len(steps),
        of_steps=span,
        step_rate=len(steps) / span,
        steps_with_snapshots=with_snapshots,
        snapshot_rate=with_snapshots / len(steps),
        journey_rate=len(inputs.journeys) / len(inputs.clients) if inputs.clients else None,
    )


def _alpha(columns: Columns) -> report.AlphaTargets | None:
    before, after = columns["arrival_to_queue_us"], columns["finish_to_departure_us"]
    rows = columns["usable"] & ~np.isnan(before) & ~np.isnan(after) & (columns["output_tokens"] > 0)
    if not rows.any():
        return None
    before, after, tokens = before[rows], after[rows], columns["output_tokens"][rows].astype(float)
    constant = per_token = None
    if tokens.min() < tokens.max():
        both, _ = scipy.optimize.nnls(np.stack([np.ones(len(tokens)), tokens], axis=1), after)
        constant, per_token = both.tolist()
    earlier, later = ({"mean": float(us.mean()), "sd": float(us.std())} for us in (before, after))
    return report.AlphaTargets(
        requests=int(rows.sum()),
        arrival_to_queue_us=earlier,
        finish_to_departure_us={**later, "constant": constant, "per_output_token": per_token},
    )


def _batches(derived: Derived) -> report.BatchCounts | None:
    batches, steps = derived.batches, derived.steps
    if batches is None:
        return None
    prefills = [(a, n) for a, n in zip(batches.admissions, batches.cached.tokens, strict=True) if not a.again]
    return report.BatchCounts(
        asynchronous=batches.asynchronous,
        steps=sum(steps.evidence.values()),
        steps_by_evidence=dict(sorted(steps.evidence.items())),
        admissions_by_evidence=_counts(batches.cached.how),
        exact_admissions=sum(how in EXACT for how in batches.cached.how),
        prompt_tokens=sum(a.target for a, _ in prefills),
        cached_prompt_tokens=sum(n for _, n in prefills),
        summaries=steps.sampled,
        summaries_reproduced=steps.corrected,
        summaries_reproduced_as_published=steps.published,
    )


def _cycles(derived: Derived) -> report.CycleCounts | None:
    cycles = derived.cycles
    if cycles is None:
        return None
    usable = cycles.cycle_us[cycles.usable]
    durations = cycles.duration_us[cycles.usable & ~np.isnan(cycles.duration_us)]
    asynchronous = derived.asynchronous
    return report.CycleCounts(
        pairs=len(cycles.step),
        usable=len(usable),
        excluded=_counts(why for why in cycles.why.tolist() if why),
        mean_cycle_us=float(usable.mean()) if len(usable) else None,
        mean_duration_us=float(durations.mean()) if len(durations) else None,
        measures="the step before (async scheduling)" if asynchronous is not False else "the step itself",
        async_scheduling={True: "on", False: "off", None: "unknown, taken as on"}[asynchronous],
    )


def _kv(inputs: Inputs, derived: Derived) -> report.KvBlocks:
    total = derived.sampled["kv_blocks_total"] if derived.sampled else np.zeros(0, np.int64)
    sizes = sorted(set(total[total != NONE].tolist()))
    return report.KvBlocks(
        gpu_blocks_from_log=inputs.log.gpu_blocks,
        gpu_blocks_from_trace=sizes[0] if len(sizes) == 1 else sizes or None,
        cpu_blocks=inputs.log.cpu_blocks(inputs.settings.engine.get("tensor_parallel", 1)),
        block_stored_without_parent=inputs.chains.orphans if inputs.chains else None,
    )
