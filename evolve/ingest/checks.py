"""What a run's sources say of each other, and what readers skipped: the doubts of its quality report."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from evolve.ingest.columns import NONE
from evolve.ingest.derive.journeys import NO_RESUME, NOT_ADDING_UP, OUT_OF_ORDER, WHOLE
from evolve.ingest.derive.stamps import OTHER
from evolve.ingest.one import Derived, Sources
from evolve.ingest.sources.findings import Finding, warning
from evolve.ingest.step_table import CONFLICTING, CONTRADICTED

MOST_DRIFT_S = 0.05
"""Spread of wall clock less server clock over a run; beyond it one of the clocks was set while it ran."""

MOST_BAD = 0.01  # of a run's requests may fail a check of their journeys, as those who published the format allow

_JUDGED = (OUT_OF_ORDER, NO_RESUME, NOT_ADDING_UP)
_QUIET = ("spans of other scopes, left aside",)


def skipped(s: Sources) -> list[Finding]:
    """Everything that readers skipped or doubted, by source."""
    return [
        Finding(source, count, what, "note" if what in _QUIET else "warning")
        for source, tally in s.tally.items()
        for what, count in sorted(tally.items())
        if count and what not in _JUDGED
    ]


def checks(s: Sources, d: Derived) -> list[Finding]:
    """Where sources contradict each other, or do not go far enough."""
    return [*_journeys(s), *_both_sides(s), *_clocks(s), *_evidence(d), *_client(s, d)]


def _journeys(s: Sources) -> Iterator[Finding]:
    if s.traces is None:
        return
    tally = s.traces.tally
    for what in _JUDGED:
        if tally[what]:
            many = tally[what] > MOST_BAD * len(s.lives)
            yield Finding("traces.json", tally[what], what, "warning" if many else "note")
    if tally[CONFLICTING]:
        text = "several engines, or a restarted one, wrote into one file: figures by step cannot be trusted"
        yield warning("traces.json", text, tally[CONFLICTING])
    lacking = sum(not x.complete and (x.status in WHOLE or x.status == NONE) for x in s.lives)
    if lacking:
        text = "journeys that lack one of QUEUED, SCHEDULED, FIRST_TOKEN, FINISHED: cut off, or events lost"
        yield warning("traces.json", text, lacking)
    lost = sum(s.traces.api_of[life.request] < 0 for life in s.lives)
    if lost and s.traces.api_ids:
        yield warning("traces.json", "core requests without their API span", lost)


def _both_sides(s: Sources) -> Iterator[Finding]:
    if s.clients is None or s.traces is None:
        return
    mine = s.joined.client >= 0
    unseen = int((mine & (s.joined.core < 0)).sum())
    if s.joined.match is None:
        text = "client rows and traces could not be matched by time: nothing of one is said of the other"
        yield warning("traces.json", text, len(s.clients))
    elif unseen:
        yield warning("traces.json", "client's requests without a journey: spans lost, or not sampled", unseen)
    if s.joined.unlike:
        yield warning("traces.json", "pairs of client row and journey that differ in max_tokens", s.joined.unlike)
    if extra := int((~mine & np.isin(s.joined.core, [life.request for life in s.lives])).sum()):
        yield warning("traces.json", "journeys that no client row goes with", extra)


def _clocks(s: Sources) -> Iterator[Finding]:
    if s.epoch is not None and s.epoch[1] > MOST_DRIFT_S:
        apart = f"{1e3 * s.epoch[1]:.0f} ms"
        text = f"wall clock and server clock drift apart by {apart}: KV events cannot be placed in time"
        yield warning("traces.json", text)


def _evidence(d: Derived) -> Iterator[Finding]:
    if d.batches is None:
        return
    unknown = d.batches.known.how.count("none")
    if unknown:
        text = "admissions of which nothing tells how much of their prompt was cached: taken as none of it"
        yield warning("traces.json", text, unknown)
    if d.sure[CONTRADICTED]:
        text = "sampled steps whose batch is not what the engine recorded: without batch fields"
        yield warning("traces.json", text, d.sure[CONTRADICTED])


def _client(s: Sources, d: Derived) -> Iterator[Finding]:
    if s.clients is None:
        return
    summary = s.reports.summary
    if summary and summary.requests is not None and summary.requests != len(s.clients):
        text = f"{summary.requests:,} requests, but the per-request file has {len(s.clients):,} of them"
        yield warning(summary.source, text, abs(summary.requests - len(s.clients)))
    other = d.columns["stamps"].to_pylist().count(OTHER)
    if other:
        text = "requests whose stamps are neither 2n + 2 nor n + 1: only their first token's time is known"
        yield warning("requests", text, other)
    wanted = s.settings.load.output_len if s.settings.load else None
    tokens = d.columns["output_tokens"][d.columns["completed"] & (d.columns["output_tokens"] != NONE)]
    if wanted and len(tokens) and (tokens != wanted).any():
        spread = f"{tokens.min()} to {tokens.max()} tokens, {tokens.mean():.4g} on average"
        text = f"answers have {spread}, not the output_len of {wanted}, with which the observed ITL is taken"
        yield warning("requests", text, int((tokens != wanted).sum()))
