"""The load generator's reports, summary_ and stage_<k>_lifecycle_metrics.json, as an experiment's `observed`.

Reports are in seconds, `observed` is in milliseconds. TTFT and E2E can be trusted. The reported ITL cannot: it counts
blank lines of the stream as tokens and is half the true one (kept as harness_itl_mean_ms). ITL is therefore computed as
(mean E2E - mean TTFT) / (output_len - 1).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from evolve.ingest.read.sources import SUMMARY, Folder
from evolve.ingest.read.values import FolderFindings, Values
from simulator.common.json import JsonObject

SHOWN = {"mean": "mean", "median": "p50", "p90": "p90", "p99": "p99"}
"""The statistics that are carried into an experiments file, and their names there."""

STATISTICS = ("mean", "min", "median", "p90", "p99", "max")
LATENCY = "successes.latency"
RELATIVE_ROUNDING = 1e-9  # the mean of equal values may exceed their maximum by this


@dataclass(frozen=True, slots=True)
class LoadReport:
    """One report. Latencies map names of STATISTICS to seconds, lengths to tokens; missing or invalid ones are absent.

    `completed` and `failed` count requests, `requests` is the number sent; rates are requests/s.
    """

    source: str
    requests: int | None
    completed: int | None
    failed: int | None
    e2e_s: Mapping[str, float]
    ttft_s: Mapping[str, float]
    harness_itl_s: Mapping[str, float] = field(default_factory=dict)
    failed_after_s: Mapping[str, float] = field(default_factory=dict)
    prompt_len: Mapping[str, float] = field(default_factory=dict)
    reported_output_len: Mapping[str, float] = field(default_factory=dict)
    requested_rate: float | None = None
    achieved_rate: float | None = None


@dataclass(frozen=True, slots=True)
class Reports:
    """The reports of a run and of its stages, by stage number; missing and unusable ones are absent."""

    summary: LoadReport | None = None
    stages: Mapping[int, LoadReport] = field(default_factory=dict)

    @property
    def all(self) -> tuple[LoadReport, ...]:
        """Every report, the run's first."""
        return (*([self.summary] if self.summary else []), *self.stages.values())

    @property
    def of_run(self) -> tuple[LoadReport, ...]:
        """The reports that together cover the run: its own, or those of its stages if it has none."""
        return (self.summary,) if self.summary else tuple(self.stages.values())


def read_reports(folder: Folder, findings: FolderFindings) -> Reports:
    """The reports of a folder. Anything wrong, missing or inconsistent is added to `findings`."""
    summary = _report(folder.files.get(SUMMARY), f"{folder.results}/{SUMMARY}", findings)
    reports = {k: _report(path, f"{folder.results}/{path.name}", findings) for k, path in folder.stages}
    stages = {k: report for k, report in reports.items() if report}
    if not summary and not stages:
        findings.warn(f"{folder.results}/", "no readable report: the client's figures are unknown")
    elif not summary:
        findings.warn(f"{folder.results}/", "no readable summary report: the stages are used for the run")
    elif not stages:
        findings.warn(f"{folder.results}/", "no readable stage report: only the run as a whole is known")
    if summary and len(stages) == len(folder.stages):
        _check_sums(summary, stages, findings)
    return Reports(summary, stages)


def observed_json(report: LoadReport, output_len: int | None) -> JsonObject:
    """A report as a mapping of `observed`: ms to 3 decimals, ITL to 4, counts, mean lengths in tokens."""
    observed: JsonObject = {}
    for key, statistics in (("e2e_ms", report.e2e_s), ("ttft_ms", report.ttft_s)):
        if figures := {ours: round(1e3 * statistics[name], 3) for name, ours in SHOWN.items() if name in statistics}:
            observed[key] = figures
    e2e, ttft, itl = (s.get("mean") for s in (report.e2e_s, report.ttft_s, report.harness_itl_s))
    reported_len = report.reported_output_len.get("mean")
    observed |= {
        "completed": report.completed,
        "failed": report.failed,
        "prompt_len_mean": report.prompt_len.get("mean"),
        "reported_output_len_mean": None if reported_len is None else round(reported_len, 3),
        "harness_itl_mean_ms": None if itl is None else round(itl * 1e3, 4),
    }
    if e2e is not None and ttft is not None and output_len and output_len > 1:
        observed["itl_mean_ms"] = round((e2e - ttft) * 1e3 / (output_len - 1), 4)
    return {key: value for key, value in observed.items() if value is not None}


def _report(path: Path | None, source: str, findings: FolderFindings) -> LoadReport | None:
    v = Values.of(path, source, findings)
    if v is None:
        return None
    completed, failed = v.whole("successes.count"), v.whole("failures.count")
    sent = v.whole("load_summary.count")
    if completed is None and failed is None:
        findings.warn(source, "counts neither successes nor failures: ignored")
        return None
    for what, count in (("successes", completed), ("failures", failed), ("requests sent", sent)):
        if count is None:
            findings.warn(source, f"gives no count of {what}")
    if completed is not None and failed is not None and sent not in (None, completed + failed):
        text = f"{sent:,} requests were sent, but {completed:,} succeeded and {failed:,} failed: they do not add up"
        findings.warn(source, text)
    e2e, ttft = _statistics(v, f"{LATENCY}.request_latency"), _statistics(v, f"{LATENCY}.time_to_first_token")
    if "mean" in e2e and "mean" in ttft and ttft["mean"] > e2e["mean"]:
        findings.warn(source, "the mean TTFT is above the mean E2E, which is impossible: TTFT is ignored")
        ttft = {}
    for what, statistics in (("E2E latency", e2e), ("TTFT", ttft)):
        if completed and "mean" not in statistics:
            findings.warn(source, f"gives no mean {what} of its {completed:,} successes, so there is no ITL")
    return LoadReport(
        source=source,
        requests=sent,
        completed=completed,
        failed=failed,
        e2e_s=e2e,
        ttft_s=ttft,
        harness_itl_s=_statistics(v, f"{LATENCY}.inter_token_latency"),
        failed_after_s=_statistics(v, "failures.request_latency"),
        prompt_len=_statistics(v, "successes.prompt_len"),
        reported_output_len=_statistics(v, "successes.output_len"),
        requested_rate=v.number("load_summary.requested_rate", above=0),
        achieved_rate=v.number("load_summary.achieved_rate", least=0),
    )


def _statistics(v: Values, key: str) -> dict[str, float]:
    """A distribution's statistics; none of them if they contradict each other."""
    if v.get(key) is None:  # null: the distribution is empty
        return {}
    given = {name: v.number(f"{key}.{name}", least=0) for name in STATISTICS}
    statistics = {name: value for name, value in given.items() if value is not None}
    if not statistics:
        v.findings.warn(v.source, f"{key}: gives no statistics: ignored")
    rising = [(name, statistics[name]) for name in STATISTICS[1:] if name in statistics]
    for (low, a), (high, b) in pairwise(rising):
        if a > b:
            v.findings.warn(v.source, f"{key}: {low} is above {high}, which is impossible: ignored")
            return {}
    mean, slack = statistics.get("mean"), 1 + RELATIVE_ROUNDING
    if mean is not None and not statistics.get("min", 0) <= mean * slack <= statistics.get("max", mean) * slack * slack:
        v.findings.warn(v.source, f"{key}: the mean is not between min and max: ignored")
        return {}
    return statistics


def _check_sums(summary: LoadReport, stages: Mapping[int, LoadReport], findings: FolderFindings) -> None:
    for what in ("completed", "failed"):
        parts = [getattr(report, what) for report in stages.values()]
        whole = getattr(summary, what)
        if whole is not None and None not in parts and sum(parts) != whole:
            text = f"{what}: {whole:,}, but the stages add up to {sum(parts):,}: not reports of one run"
            findings.warn(summary.source, text)
