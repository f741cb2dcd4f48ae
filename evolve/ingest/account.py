"""The quality report of a run, filled in: counts, clocks, sampling, and what was left out and why."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

import numpy as np
import scipy

from evolve import __version__
from evolve.ingest.columns import NONE, Columns
from evolve.ingest.derive.admissions import EXACT
from evolve.ingest.derive.journeys import UNSOUND
from evolve.ingest.folder import Derived, Inputs
from evolve.ingest.quality import Quality, check_sources
from evolve.ingest.read.traces import STATUSES
from evolve.ingest.read.values import FolderFindings
from evolve.ingest.report import (
    AlphaTargets,
    BatchCounts,
    Clocks,
    CycleCounts,
    KvBlocks,
    QualityReport,
    RequestCounts,
    StepSampling,
)
from evolve.ingest.write.steps import CONTRADICTED

NARROWED = {
    "traces": ("traces.json", "no journeys, steps and cycles: only latencies as the client saw them"),
    "kv_events": ("kv_events.jsonl", "cached prompt tokens are inferred from step records and repeated prompts alone"),
    "per_request": ("per-request report", "no token times, and no client figures of single requests"),
    "log": ("vllm.log", "the engine does not state KV blocks, async scheduling and CPU offload"),
    "config": ("results/config.yaml", "what ran is taken from profile.yaml, if there is one"),
    "exp_config": ("exp-config.yaml", "engine limits are taken from other sources or are defaults"),
    "summary": ("summary report", "the run's figures are combined from others"),
    "profile": ("profile.yaml", "nothing to compare with what ran"),
}
"""Sources as fields of `Folder`: their names, and how the output is narrowed without them."""


def account(
    inputs: Inputs, derived: Derived, quality: Quality, findings: FolderFindings, data: str, experiment: bool
) -> QualityReport:
    """The quality report of one run, with `findings` about its sources added to those made so far."""
    check_sources(inputs, derived, findings)
    return QualityReport(
        engine=__version__,
        seeds=[],
        run=inputs.folder.name,
        model=inputs.settings.model,
        quality=quality.label,
        reasons=quality.reasons,
        missing={name: text for field, (name, text) in NARROWED.items() if getattr(inputs.folder, field) is None},
        requests=_requests(inputs, derived),
        excluded=_excluded(inputs, derived),
        sampling=_sampling(inputs, derived),
        clocks=_clocks(inputs),
        alpha_targets=_alpha(derived.requests.columns),
        batches=_batches(derived),
        cycles=_cycles(derived),
        kv=_kv(inputs, derived),
        tables=derived.rows,
        findings=findings,
        data=data,
        experiment=experiment,
    )


def _counts(names: Iterable[str]) -> dict[str, int]:
    """How often each name occurs, by name."""
    return dict(sorted(Counter(names).items()))


def _requests(inputs: Inputs, derived: Derived) -> RequestCounts:
    reports, clients, journeys = inputs.reports.of_run, inputs.clients, inputs.journeys
    counts = RequestCounts(
        reported_completed=sum(r.completed or 0 for r in reports) if reports else None,
        reported_failed=sum(r.failed or 0 for r in reports) if reports else None,
    )
    if clients is not None:
        counts = replace(
            counts,
            client_rows=len(clients),
            client_errors=_counts(error for error in clients.errors if error),
            stamps=_counts(derived.requests.texts("stamps")),
        )
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
    """What the derived figures leave out, by reason."""
    counts: Counter[str] = Counter()
    for journey in inputs.journeys:
        if not journey.complete:
            counts["journeys without all of QUEUED, SCHEDULED, FIRST_TOKEN, FINISHED: no labels"] += 1
        elif not journey.usable:
            counts["journeys that were aborted: not among labels' means"] += 1
    counts[UNSOUND] = inputs.traces.tally[UNSOUND] if inputs.traces else 0
    failed = sum(map(bool, inputs.clients.errors)) if inputs.clients else 0
    counts["client rows with an error: not among latencies"] = failed
    contradicted = derived.steps.evidence[CONTRADICTED]
    counts["sampled steps whose batch is contradicted by the engine's summary: no batch fields"] = contradicted
    for why in derived.cycles.why.tolist() if derived.cycles else ():
        counts[f"cycles: {why}"] += bool(why)
    return {what: count for what, count in counts.items() if count}


def _sampling(inputs: Inputs, derived: Derived) -> StepSampling | None:
    if inputs.traces is None or not len(derived.sampled["step_id"]):
        return None
    steps = derived.sampled["step_id"]
    span = int(steps[-1] - steps[0] + 1)
    with_snapshots = len(np.unique(inputs.traces.snapshots["step_id"]))
    return StepSampling(
        sampled_steps=len(steps),
        of_steps=span,
        step_rate=len(steps) / span,
        steps_with_snapshots=with_snapshots,
        snapshot_rate=with_snapshots / len(steps),
        journey_rate=len(inputs.journeys) / len(inputs.clients) if inputs.clients else None,
    )


def _clocks(inputs: Inputs) -> Clocks:
    match, epoch = inputs.joined.match, inputs.epoch
    return Clocks(
        client_minus_server_s=match.offset_s if match else None,
        client_minus_server_is="median of start less api.ARRIVED, too small by the time a request takes to arrive",
        epoch_minus_server_s=epoch[0] if epoch else None,
        epoch_spread_s=epoch[1] if epoch else None,
    )


def _alpha(columns: Columns) -> AlphaTargets | None:
    before, after = columns["arrival_to_queue_us"], columns["finish_to_departure_us"]
    rows = columns["usable"] & ~np.isnan(before) & ~np.isnan(after) & (columns["output_tokens"] > 0)
    if not rows.any():
        return None
    before, after, tokens = before[rows], after[rows], columns["output_tokens"][rows].astype(float)

    def mean_and_sd(us: np.ndarray) -> dict[str, float]:
        return {"mean": float(us.mean()), "sd": float(us.std())}

    constant = per_token = None
    if tokens.min() < tokens.max():
        both, _ = scipy.optimize.nnls(np.stack([np.ones(len(tokens)), tokens], axis=1), after)
        constant, per_token = both.tolist()
    return AlphaTargets(
        requests=int(rows.sum()),
        arrival_to_queue_us=mean_and_sd(before),
        finish_to_departure_us={**mean_and_sd(after), "constant": constant, "per_output_token": per_token},
    )


def _batches(derived: Derived) -> BatchCounts | None:
    batches, steps = derived.batches, derived.steps
    if batches is None:
        return None
    prefills = [(a, n) for a, n in zip(batches.admissions, batches.cached.tokens, strict=True) if not a.again]
    return BatchCounts(
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


def _cycles(derived: Derived) -> CycleCounts | None:
    cycles = derived.cycles
    if cycles is None:
        return None
    usable = cycles.cycle_us[cycles.usable]
    durations = cycles.duration_us[cycles.usable & ~np.isnan(cycles.duration_us)]
    asynchronous = derived.asynchronous
    return CycleCounts(
        pairs=len(cycles.step),
        usable=len(usable),
        excluded=_counts(why for why in cycles.why.tolist() if why),
        mean_cycle_us=float(usable.mean()) if len(usable) else None,
        mean_duration_us=float(durations.mean()) if len(durations) else None,
        measures="the step before (async scheduling)" if asynchronous is not False else "the step itself",
        async_scheduling={True: "on", False: "off", None: "not known, taken as on"}[asynchronous],
    )


def _kv(inputs: Inputs, derived: Derived) -> KvBlocks:
    total = derived.sampled["kv_blocks_total"] if derived.sampled else np.zeros(0, np.int64)
    sizes = sorted(set(total[total != NONE].tolist()))
    return KvBlocks(
        gpu_blocks_from_log=inputs.log.gpu_blocks,
        gpu_blocks_from_trace=sizes[0] if len(sizes) == 1 else sizes or None,
        cpu_blocks=inputs.log.cpu_blocks(inputs.settings.engine.get("tensor_parallel", 1)),
        block_stored_without_parent=inputs.chains.orphans if inputs.chains else None,
    )
