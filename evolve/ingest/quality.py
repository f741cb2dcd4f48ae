"""Whether a run is fit for calibration, and where its sources contradict each other.

An overloaded engine's latencies are those of its queue and of the requests that got through; a model fitted to them
would learn the client's patience. Such runs stay in the experiments file, are left out of fits, and serve as a test.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from evolve.ingest.columns import NONE
from evolve.ingest.derive.journeys import ENDED_NORMALLY, NO_RESUME, NOT_ADDING_UP, OUT_OF_ORDER
from evolve.ingest.derive.steps import CONFLICTING
from evolve.ingest.folder import Derived, Inputs
from evolve.ingest.read.clients import OTHER
from evolve.ingest.read.reports import LoadReport, Reports
from evolve.ingest.read.settings import LoadSettings
from evolve.ingest.read.traces import FOREIGN
from evolve.ingest.read.values import Finding, FolderFindings
from evolve.ingest.write.steps import CONTRADICTED
from simulator.serving.experiment import CLEAN, OVERLOADED

FAILED_SHARE = 0.10
"""Of all requests; the rule of those who published the data (three of their 16 runs: 33, 69 and 85 %)."""

TTFT_OF_E2E = 0.10
"""A mean TTFT above this share of the mean E2E counts as waiting, if the next two rules hold as well. Of the 24
published runs, the 20 that kept up have at most 0.022 in any stage, the four that did not at least 0.65."""

TTFT_OF_QUICKEST = 10.0
"""... and above this many times the TTFT of the run's quickest request, which met no queue: short answers and long
prompts give TTFT a large share of E2E without any queue."""

TTFT_LEAST_S = 1.0
"""... and above this many seconds: below it, a cached prompt and an uncached one may differ tenfold."""

SENT_SHARE = 0.95
"""Of the requested rate: below it, the stage's rate is not the load that the engine saw."""

WAITING_SHARE = 0.5
"""Of the sampled steps: with requests waiting in more of them, the engine did not keep up. Of three published clean
runs with step records the busiest, at its limit of 128 requests for minutes, has 5 %."""

ROUND_TIMEOUT_S = 5.0
"""Clients' timeouts are multiples of this."""

TIMEOUT_SPREAD = 0.01
"""How far above a timeout, as a share of it, the failures that it caused may lie (300.0 to 301.0 s in the data)."""

MOST_DRIFT_S = 0.05
"""Spread of wall clock minus server clock over a run; beyond it, one of the clocks was set while the run lasted."""

MOST_BAD = 0.01
"""Of a run's requests may fail a check of their journeys; the tolerance published with the trace format."""

UNKNOWN = "unknown"  # the label of a run without any report, row or journey that shows how it went

_JUDGED = (OUT_OF_ORDER, NO_RESUME, NOT_ADDING_UP)


@dataclass(frozen=True, slots=True)
class Quality:
    """`label` is the experiment's `quality`: `clean`, `overloaded` for the `reasons`, or `unknown`. `timeout_s` is the
    client's limit on a request's life, if the failures or the settings show one. `unsent` are those of the reasons that
    say that fewer requests were sent than requested."""

    label: str
    reasons: tuple[str, ...]
    timeout_s: float | None
    findings: tuple[Finding, ...]
    unsent: tuple[str, ...] = ()

    @property
    def as_sent(self) -> Quality:
        """The quality of what was sent, whatever was requested."""
        reasons = tuple(reason for reason in self.reasons if reason not in self.unsent)
        return replace(self, reasons=reasons, label=self.label if reasons or not self.reasons else CLEAN)


def quality_of(inputs: Inputs, derived: Derived, reports: Reports) -> Quality:
    """The quality of a run, from reports (its own or made from client rows), step records and journeys."""
    further = _queued(derived) + (_aborted(inputs) if not reports.all else [])
    quality = judge(reports, inputs.settings.load, further)
    if not reports.all and not quality.reasons and not inputs.journeys:
        return replace(quality, label=UNKNOWN)
    return quality


def judge(reports: Reports, load: LoadSettings | None, further: Sequence[str] = ()) -> Quality:
    """The quality of a run from its reports. `further` are reasons against it found elsewhere, such as in traces."""
    unsent = _sending(reports)
    reasons = [*_failures(reports), *_waiting(reports), *unsent, *further]
    findings = FolderFindings()
    timeout_s = _timeout(reports, load, findings)
    _compare_with_load(reports, load, findings)
    label = OVERLOADED if reasons else CLEAN
    return Quality(label, tuple(reasons), timeout_s, tuple(findings), tuple(unsent))


def _queued(derived: Derived) -> list[str]:
    depth = derived.sampled.get("waiting_depth", np.zeros(0, np.int64))
    depth = depth[depth != NONE]
    if len(depth) and np.mean(depth > 0) > WAITING_SHARE:
        return [f"requests wait in {100 * np.mean(depth > 0):.0f} % of {len(depth):,} sampled steps"]
    return []


def _aborted(inputs: Inputs) -> list[str]:
    """Journeys that did not end by themselves, for a run without reports or client rows."""
    journeys = inputs.journeys
    bad = sum(not journey.usable for journey in journeys)
    if bad > FAILED_SHARE * len(journeys):
        return [f"{100 * bad / len(journeys):.2f} % of {len(journeys):,} journeys were aborted or are incomplete"]
    return []


def _failures(reports: Reports) -> list[str]:
    failed = sum(r.failed or 0 for r in reports.of_run)
    total = sum((r.completed or 0) + (r.failed or 0) for r in reports.of_run)
    if total and failed / total > FAILED_SHARE:
        percent = math.floor(1e4 * failed / total + 0.5) / 100  # rounds halves up
        return [f"{percent:.2f} % of {total:,} requests failed"]
    return []


def _waiting(reports: Reports) -> list[str]:
    """Stage by stage, because only the last one may be overloaded; the run as a whole if no stage shows it."""
    reasons = [f"stage {k}: {why}" for k, report in reports.stages.items() if (why := _waits(report))]
    if not reports.summary or (reasons and len(reports.stages) > 1):
        return reasons
    return [why] if (why := _waits(reports.summary)) else reasons


def _waits(report: LoadReport) -> str | None:
    ttft, e2e = report.ttft_s.get("mean"), report.e2e_s.get("mean")
    if ttft is None or e2e is None or ttft <= TTFT_LEAST_S or ttft <= TTFT_OF_E2E * e2e:
        return None
    quickest = report.ttft_s.get("min")
    if quickest is not None and ttft <= TTFT_OF_QUICKEST * quickest:
        return None
    times = f", {ttft / quickest:,.0f} times that of the quickest request" if quickest else ""
    return f"requests wait for the engine: mean TTFT {ttft:.1f} s is {100 * ttft / e2e:.0f} % of mean E2E{times}"


def _sending(reports: Reports) -> list[str]:
    return [
        f"stage {k}: only {r.achieved_rate:.4g} of {r.requested_rate:.4g} requested requests/s were sent"
        for k, r in reports.stages.items()
        if r.achieved_rate is not None and r.requested_rate and r.achieved_rate < SENT_SHARE * r.requested_rate
    ]


def _timeout(reports: Reports, load: LoadSettings | None, findings: FolderFindings) -> float | None:
    """The limit if failures came at one round time and nothing succeeded beyond it; else what the settings say."""
    with_failures = [r for r in reports.of_run if r.failed]
    limits = {_limit(r) for r in with_failures}
    limit = limits.pop() if len(limits) == 1 else None
    set_to = load.request_timeout_s if load else None
    failed = sum(r.failed or 0 for r in with_failures)
    if limit is not None:
        source = with_failures[0].source
        findings.note(source, f"{failed:,} requests failed at the client's timeout of {limit:g} s", failed)
        if set_to is not None and load and abs(set_to - limit) > TIMEOUT_SPREAD * limit:
            findings.warn(load.source, f"request_timeout is {set_to:g} s, failures came at {limit:g} s")
        return limit
    if failed:
        text = f"{failed:,} requests failed, but not at one round time: no timeout is inferred"
        findings.warn(with_failures[0].source, text, failed)
    return set_to


def _limit(report: LoadReport) -> float | None:
    """The round time at which requests failed, if they did so at one."""
    first, middle = report.failed_after_s.get("min"), report.failed_after_s.get("median")
    if first is None or middle is None:
        return None
    limit = ROUND_TIMEOUT_S * round(first / ROUND_TIMEOUT_S)
    latest, longest = limit * (1 + TIMEOUT_SPREAD), report.e2e_s.get("max", 0.0)
    if limit and limit * (1 - 1e-4) <= first <= middle <= latest and longest <= latest:
        return limit
    return None


def _compare_with_load(reports: Reports, load: LoadSettings | None, findings: FolderFindings) -> None:
    """Findings about stages whose report does not fit the stage that the settings describe."""
    for k, r in reports.stages.items():
        if load is None or load.stages is None or k >= len(load.stages):
            continue
        rate, offered = load.stages[k].rate, load.stages[k].rate * load.stages[k].duration_s
        if r.requested_rate is not None and abs(r.requested_rate - rate) > 0.01 * rate:
            text = f"requested {r.requested_rate:g} requests/s, {load.source} says {rate:g}: from another run?"
            findings.warn(r.source, text)
        elif r.requests is not None and abs(r.requests - offered) > max(1.0, (1 - SENT_SHARE) * offered):
            text = f"{r.requests:,} requests, {load.source} offers {offered:,.0f}: was the stage cut short?"
            findings.warn(r.source, text)


def check_sources(inputs: Inputs, derived: Derived, findings: FolderFindings) -> None:
    """Findings about what readers skipped, and about sources that contradict each other or are incomplete."""
    for source, tally in inputs.tally.items():
        for what, count in sorted(tally.items()):
            if count and what not in _JUDGED:
                findings.append(Finding(source, count, what, "note" if what == FOREIGN else "warning"))
    _check_journeys(inputs, findings)
    _check_both_sides(inputs, findings)
    if inputs.epoch is not None and inputs.epoch[1] > MOST_DRIFT_S:
        apart = f"{1e3 * inputs.epoch[1]:.0f} ms"
        text = f"wall clock and server clock drift apart by {apart}: KV events cannot be placed in time"
        findings.warn("traces.json", text)
    _check_batches(derived, findings)
    _check_client(inputs, derived, findings)


def _check_journeys(inputs: Inputs, findings: FolderFindings) -> None:
    traces, journeys = inputs.traces, inputs.journeys
    if traces is None:
        return
    for what in _JUDGED:
        if count := traces.tally[what]:
            severe = count > MOST_BAD * len(journeys)
            findings.append(Finding("traces.json", count, what, "warning" if severe else "note"))
    if traces.tally[CONFLICTING]:
        text = "several engines, or a restarted one, wrote into one file: figures by step cannot be trusted"
        findings.warn("traces.json", text, traces.tally[CONFLICTING])
    lacking = sum(not j.complete and (j.status in ENDED_NORMALLY or j.status == NONE) for j in journeys)
    if lacking:
        text = "journeys that lack one of QUEUED, SCHEDULED, FIRST_TOKEN, FINISHED: cut off, or events were lost"
        findings.warn("traces.json", text, lacking)
    lost = sum(traces.api_of[j.request] < 0 for j in journeys)
    if lost and traces.api_ids:
        findings.warn("traces.json", "core requests without their API span", lost)


def _check_both_sides(inputs: Inputs, findings: FolderFindings) -> None:
    joined = inputs.joined
    if inputs.clients is None or inputs.traces is None:
        return
    has_row = joined.client >= 0
    unseen = int((has_row & (joined.core < 0)).sum())
    if joined.match is None:
        text = "client rows and traces could not be matched by time: each side is used without the other"
        findings.warn("traces.json", text, len(inputs.clients))
    elif unseen:
        findings.warn("traces.json", "client's requests without a journey: not sampled, or spans were lost", unseen)
    if joined.unlike:
        findings.warn("traces.json", "pairs of client row and journey that differ in max_tokens", joined.unlike)
    if extra := int((~has_row & np.isin(joined.core, [j.request for j in inputs.journeys])).sum()):
        findings.warn("traces.json", "journeys without a client row", extra)


def _check_batches(derived: Derived, findings: FolderFindings) -> None:
    if derived.batches is None:
        return
    if unknown := derived.batches.cached.how.count("none"):
        text = "admissions without evidence of how much of their prompt was cached: treated as not cached"
        findings.warn("traces.json", text, unknown)
    if contradicted := derived.steps.evidence[CONTRADICTED]:
        text = "sampled steps whose reconstructed batch contradicts the engine's summary: no batch fields"
        findings.warn("traces.json", text, contradicted)


def _check_client(inputs: Inputs, derived: Derived, findings: FolderFindings) -> None:
    if inputs.clients is None:
        return
    summary, rows = inputs.reports.summary, len(inputs.clients)
    if summary and summary.requests is not None and summary.requests != rows:
        text = f"{summary.requests:,} requests, but the per-request file has {rows:,} of them"
        findings.warn(summary.source, text, abs(summary.requests - rows))
    if other := derived.requests.texts("stamps").count(OTHER):
        text = "requests with neither 2n + 2 nor n + 1 stamps: only the time of their first token is known"
        findings.warn("requests", text, other)
    load = inputs.settings.load
    wanted = load.output_len if load and load.shared_prefix else None  # else the requests are replayed as they were
    columns = derived.requests.columns
    tokens = columns["output_tokens"][columns["completed"] & (columns["output_tokens"] != NONE)]
    if wanted and len(tokens) and (tokens != wanted).any():
        spread = f"{tokens.min()} to {tokens.max()} tokens, {tokens.mean():.4g} on average"
        text = f"answers have {spread}, not the output_len of {wanted} that the observed ITL is computed with"
        findings.warn("requests", text, int((tokens != wanted).sum()))
