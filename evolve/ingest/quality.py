"""Whether a run is fit for calibration: `clean`, or `overloaded` with the reasons.

An overloaded engine's latencies are those of its queue, and of the requests that got through: a model fitted to them
learns the client's patience. Such runs stay in the file, are left out of fits, and serve as a test.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from evolve.ingest.sources.findings import Finding, warning
from evolve.ingest.sources.reports import Report, Reports
from evolve.ingest.sources.settings import Load

FAILED_SHARE = 0.10
"""Of all requests; the rule of those who published the data (three of their 16 runs: 33, 69 and 85 %)."""

TTFT_OF_E2E = 0.10
"""A mean TTFT above this share of the mean E2E is waiting, where the two rules below hold as well. Of the 24 published
runs the 20 that kept up have at most 0.022 in any stage, the four that did not at least 0.65."""

TTFT_OF_QUICKEST = 10.0
"""... and above so many times that of the run's quickest request, which met no queue: short answers and long prompts
give TTFT a large share of E2E without any queue."""

TTFT_LEAST_S = 1.0
"""... and above so many seconds: a prompt found in the prefix cache and one that is not may differ tenfold below it."""

SENT_SHARE = 0.95
"""Of the requested rate: below it the stage's rate is not the load that the engine saw."""

ROUND_TIMEOUT_S = 5.0
"""Clients' timeouts are multiples of this."""

TIMEOUT_SPREAD = 0.01
"""How far above a timeout, as a share of it, the failures that it caused may lie (300.0 to 301.0 s in the data)."""


@dataclass(frozen=True, slots=True)
class Quality:
    """`label` is the experiment's `quality`; `reasons` are why it is not clean. `timeout_s` is the client's limit on a
    request's life where the failures, or the settings, show it."""

    label: str
    reasons: tuple[str, ...]
    timeout_s: float | None
    findings: tuple[Finding, ...]


def judge(reports: Reports, load: Load | None, further: Sequence[str] = ()) -> Quality:
    """The quality of a run. `further` are reasons against it found elsewhere, as in its traces."""
    reasons = [*_failures(reports), *_waiting(reports), *_sending(reports), *further]
    timeout_s, findings = _timeout(reports, load)
    findings += _offered(reports, load)
    return Quality("overloaded" if reasons else "clean", tuple(reasons), timeout_s, tuple(findings))


def _failures(reports: Reports) -> list[str]:
    judged = [reports.summary] if reports.summary else list(reports.stages.values())
    failed = sum(r.failed or 0 for r in judged)
    total = sum((r.completed or 0) + (r.failed or 0) for r in judged)
    if total and failed / total > FAILED_SHARE:
        percent = math.floor(1e4 * failed / total + 0.5) / 100  # halves go up
        return [f"{percent:.2f} % of {total:,} requests failed"]
    return []


def _waiting(reports: Reports) -> list[str]:
    """Stage by stage, since only a run's last one may be overloaded; the run as a whole where no stage shows it."""
    found = [f"stage {k}: {why}" for k, report in reports.stages.items() if (why := _waits(report))]
    if not reports.summary or (found and len(reports.stages) > 1):
        return found
    return [why] if (why := _waits(reports.summary)) else found


def _waits(report: Report) -> str | None:
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
        f"stage {k}: {r.achieved_rate:.4g} requests/s were sent of {r.requested_rate:.4g} asked for"
        for k, r in reports.stages.items()
        if r.achieved_rate is not None and r.requested_rate and r.achieved_rate < SENT_SHARE * r.requested_rate
    ]


def _timeout(reports: Reports, load: Load | None) -> tuple[float | None, list[Finding]]:
    """The limit if failures came at one round time, and nothing succeeded beyond it; else what the settings say."""
    judged = [r for r in (reports.all[:1] if reports.summary else reports.all) if r.failed]
    limits = {_limit(r) for r in judged}
    shown = limits.pop() if len(limits) == 1 else None
    set_to = load.request_timeout_s if load else None
    failed = sum(r.failed or 0 for r in judged)
    if shown is not None:
        source = judged[0].source
        found = [Finding(source, failed, f"{failed:,} requests failed at the client's timeout of {shown:g} s")]
        if set_to is not None and load and abs(set_to - shown) > TIMEOUT_SPREAD * shown:
            found.append(warning(load.source, f"request_timeout is {set_to:g} s, failures came at {shown:g} s"))
        return shown, found
    if failed:
        text = f"{failed:,} requests failed, not at one round time: no timeout is taken from them"
        return set_to, [warning(judged[0].source, text, failed)]
    return set_to, []


def _limit(report: Report) -> float | None:
    first, middle = report.failed_after_s.get("min"), report.failed_after_s.get("median")
    if first is None or middle is None:
        return None
    limit = ROUND_TIMEOUT_S * round(first / ROUND_TIMEOUT_S)
    latest, longest = limit * (1 + TIMEOUT_SPREAD), report.e2e_s.get("max", 0.0)
    if limit and limit * (1 - 1e-4) <= first <= middle <= latest and longest <= latest:
        return limit
    return None


def _offered(reports: Reports, load: Load | None) -> list[Finding]:
    """Where a stage's report is not of the stage that the settings describe."""
    found = []
    for k, r in reports.stages.items():
        if load is None or load.stages is None or k >= len(load.stages):
            continue
        rate, offered = load.stages[k]["rate"], load.stages[k]["rate"] * load.stages[k]["duration_s"]
        if r.requested_rate is not None and abs(r.requested_rate - rate) > 0.01 * rate:
            text = f"asked for {r.requested_rate:g} requests/s, {load.source} says {rate:g}: not of one run?"
            found.append(warning(r.source, text))
        elif r.requests is not None and abs(r.requests - offered) > max(1.0, (1 - SENT_SHARE) * offered):
            text = f"{r.requests:,} requests, {load.source} offers {offered:,.0f}: the stage was cut short?"
            found.append(warning(r.source, text))
    return found
