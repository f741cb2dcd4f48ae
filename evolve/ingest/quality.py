"""The quality of a run for calibration: clean, or overloaded for some reasons.

An overloaded engine's latencies are those of its queue and of the requests that got through; a model fitted to them
would learn the client's patience. Such runs stay in the experiments file, are left out of fits, and serve as a test.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from evolve.ingest.columns import NONE
from evolve.ingest.folder import Derived, Inputs
from evolve.ingest.read.reports import LoadReport, Reports
from evolve.ingest.read.settings import LoadSettings
from evolve.ingest.read.values import Finding, FolderFindings
from simulator.serving.observations import CLEAN, OVERLOADED

FAILED_SHARE = 0.10
"""Share of failed requests; the rule of those who published the data (three of their 16 runs: 33, 69 and 85 %)."""

TTFT_OF_E2E = 0.10
"""Requests wait if the mean TTFT is above this share of the mean E2E, and the next two rules hold.
The 20 published runs that kept up have at most 0.022 in any stage, the four that did not at least 0.65."""

TTFT_OF_QUICKEST = 10.0
"""... and above this many times the TTFT of the run's quickest request, which met no queue: short answers and long
prompts give TTFT a large share of E2E without any queue."""

TTFT_LEAST_S = 1.0
"""... and above this many seconds: below it, a cached prompt and an uncached one may differ tenfold."""

SENT_SHARE = 0.95
"""Share of the requested rate; below it, the engine saw another load than the stage's."""

WAITING_SHARE = 0.5
"""Share of sampled steps with requests waiting; above it, the engine did not keep up. The busiest of three published
clean runs with step records, at its limit of 128 requests for minutes, has 5 %."""

ROUND_TIMEOUT_S = 5.0  # clients' timeouts are multiples of this
TIMEOUT_SPREAD = 0.01
"""Largest distance of its failures above a timeout, as a share of it (300.0 to 301.0 s in the data)."""

UNKNOWN = "unknown"  # the label of a run without any report, row or journey


@dataclass(frozen=True, slots=True)
class Quality:
    """`label` is the experiment's `quality`: `clean`, `overloaded` for the `reasons`, or `unknown`. `timeout_s` is the
    client's limit on a request's life, if the failures or the settings show one. `unsent` are the
    reasons about requests that were not sent."""

    label: str
    reasons: tuple[str, ...]
    timeout_s: float | None
    findings: tuple[Finding, ...]
    unsent: tuple[str, ...] = ()

    @property
    def as_sent(self) -> Quality:
        """The quality of the sent load, without regard to the requested one."""
        reasons = tuple(reason for reason in self.reasons if reason not in self.unsent)
        return replace(self, reasons=reasons, label=self.label if reasons or not self.reasons else CLEAN)


def quality_of(inputs: Inputs, derived: Derived, reports: Reports) -> Quality:
    """The quality of a run, from reports (its own or made from client rows), step records and journeys."""
    further = []
    depth = derived.sampled.get("waiting_depth", np.zeros(0, np.int64))
    depth = depth[depth != NONE]
    if len(depth) and np.mean(depth > 0) > WAITING_SHARE:
        further.append(f"requests wait in {100 * np.mean(depth > 0):.0f} % of {len(depth):,} sampled steps")
    journeys = inputs.journeys
    bad = sum(not journey.usable for journey in journeys)
    if not reports.all and bad > FAILED_SHARE * len(journeys):
        share = f"{100 * bad / len(journeys):.2f} % of {len(journeys):,} journeys"
        further.append(f"{share} were aborted or are incomplete")
    quality = judge(reports, inputs.settings.load, further)
    if not reports.all and not quality.reasons and not journeys:
        return replace(quality, label=UNKNOWN)
    return quality


def judge(reports: Reports, load: LoadSettings | None, further: Sequence[str] = ()) -> Quality:
    """The quality of a run from its reports. `further` are reasons against it found elsewhere, such as in traces."""
    reasons = []
    failed = sum(r.failed or 0 for r in reports.of_run)
    total = sum((r.completed or 0) + (r.failed or 0) for r in reports.of_run)
    if total and failed / total > FAILED_SHARE:
        percent = math.floor(1e4 * failed / total + 0.5) / 100  # rounds halves up
        reasons.append(f"{percent:.2f} % of {total:,} requests failed")
    unsent = [
        f"stage {k}: only {r.achieved_rate:.4g} of {r.requested_rate:.4g} requested requests/s were sent"
        for k, r in reports.stages.items()
        if r.achieved_rate is not None and r.requested_rate and r.achieved_rate < SENT_SHARE * r.requested_rate
    ]
    closed = bool(load and load.stages and load.stages[0].users)  # a queue of so many clients is no overload
    reasons += [*([] if closed else _waiting(reports)), *unsent, *further]
    findings = FolderFindings()
    timeout_s = _timeout(reports, load, findings)
    _compare_with_load(reports, load, findings)
    return Quality(OVERLOADED if reasons else CLEAN, tuple(reasons), timeout_s, tuple(findings), tuple(unsent))


def _waiting(reports: Reports) -> list[str]:
    """Reasons stage by stage, because only the last one may be overloaded; else for the run as a whole."""
    reasons = [f"stage {k}: {why}" for k, report in reports.stages.items() if (why := _waits(report))]
    whole = _waits(reports.summary) if reports.summary and not (reasons and len(reports.stages) > 1) else None
    return [whole] if whole else reasons


def _waits(report: LoadReport) -> str | None:
    ttft, e2e = report.ttft_s.get("mean"), report.e2e_s.get("mean")
    if ttft is None or e2e is None or ttft <= TTFT_LEAST_S or ttft <= TTFT_OF_E2E * e2e:
        return None
    quickest = report.ttft_s.get("min")
    if quickest is not None and ttft <= TTFT_OF_QUICKEST * quickest:
        return None
    times = f", {ttft / quickest:,.0f} times that of the quickest request" if quickest else ""
    return f"requests wait for the engine: mean TTFT {ttft:.1f} s is {100 * ttft / e2e:.0f} % of mean E2E{times}"


def _timeout(reports: Reports, load: LoadSettings | None, findings: FolderFindings) -> float | None:
    """The limit if failures came at one round time and nothing succeeded beyond it; else that of the settings."""
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
        text = f"{failed:,} requests failed after different times: the timeout of the client is unknown"
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
    for k, r in reports.stages.items():
        if load is None or load.stages is None or k >= len(load.stages):
            continue
        rate, offered = load.stages[k].rate, load.stages[k].offered
        if rate and r.requested_rate is not None and abs(r.requested_rate - rate) > 0.01 * rate:
            text = f"requested {r.requested_rate:g} requests/s, {load.source} says {rate:g}: from another run?"
            findings.warn(r.source, text)
        elif r.requests is not None and abs(r.requests - offered) > max(1.0, (1 - SENT_SHARE) * offered):
            text = f"{r.requests:,} requests, {load.source} offers {offered:,.0f}: was the stage cut short?"
            findings.warn(r.source, text)
