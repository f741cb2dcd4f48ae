"""traces.json of the instrumented server: journeys of requests, batch summaries and snapshots of steps, as columns.

Times `*_ns` are on the server's monotonic clock, `epoch_ns` on the wall clock. Requests are numbered in the order in
which their spans appear; `Traces.core_ids` and `Traces.api_ids` have their names. An unknown number is `columns.NONE`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evolve.ingest.columns import NONE, Columns, Growing
from evolve.ingest.read.files import json_lines
from evolve.ingest.read.otlp import Attributes, attributes, events, spans
from simulator.common.json import JsonObject

JOURNEY = ("QUEUED", "SCHEDULED", "FIRST_TOKEN", "PREEMPTED", "FINISHED")
API = ("ARRIVED", "HANDOFF_TO_CORE", "FIRST_RESPONSE_FROM_CORE", "DEPARTED", "ABORTED")
PHASES = ("WAITING", "PREFILL", "DECODE")
KINDS = ("FIRST", "RESUME")
STATUSES = ("stopped", "length", "aborted", "ignored", "error")

_COUNTS = {
    "prefill_done": "prefill.done_tokens", "prefill_total": "prefill.total_tokens",
    "decode_done": "decode.done_tokens", "decode_max": "decode.max_tokens", "preemptions": "num_preemptions",
}  # fmt: skip
SUMMARY = {
    "step_id": "step.id", "ts_start_ns": "step.ts_start_ns", "ts_end_ns": "step.ts_end_ns",
    "duration_us": "step.duration_us", "running_depth": "queue.running_depth", "waiting_depth": "queue.waiting_depth",
    "summary_prefill_reqs": "batch.num_prefill_reqs", "summary_decode_reqs": "batch.num_decode_reqs",
    "summary_scheduled_tokens": "batch.scheduled_tokens", "summary_prefill_tokens": "batch.prefill_tokens",
    "summary_decode_tokens": "batch.decode_tokens", "summary_finished": "batch.num_finished",
    "summary_preempted": "batch.num_preempted", "kv_usage_ratio": "kv.usage_gpu_ratio",
    "kv_blocks_total": "kv.blocks_total_gpu", "kv_blocks_free": "kv.blocks_free_gpu",
}  # fmt: skip
"""Columns of the steps table, and the attributes of step.BATCH_SUMMARY that they hold."""

_SNAPSHOT = {
    "prompt": "request.num_prompt_tokens", "computed": "request.num_computed_tokens",
    "outputs": "request.num_output_tokens", "scheduled": "request.scheduled_tokens_this_step",
    "effective": "request.effective_prompt_len",
}  # fmt: skip

ATTRIBUTES = frozenset((*_COUNTS.values(), *SUMMARY.values(), *_SNAPSHOT.values()))
"""The attributes of journeys, batch summaries and snapshots that are read as numbers."""

NO_PLACE = "events without a step or time, dropped"
NO_REQUEST = "spans without a request id, dropped"
TWICE = "duplicate spans, dropped"
FOREIGN = "spans of other scopes, ignored"
OUT_OF_RANGE = "figures of the wrong type or out of range, treated as missing"
UNKNOWN_EVENT = "events with unknown names, ignored"
UNKNOWN_NAME = "unknown phases, kinds or statuses, treated as missing"
ONCE_MORE = "further spans of a request that has one already, dropped"
NO_ID = "spans without an id, kept: duplicates cannot be detected"


@dataclass(frozen=True)
class Traces:
    """The contents of a trace file. `api_of[i]` is the API request of core request i, -1 if none was traced.

    `journey_events` has one event per row: request, event, step, ts_ns, epoch_ns, phase, prefill_done, prefill_total,
    decode_done, decode_max, preemptions, kind, status, where codes are indices into the tuples of this module.
    `api_events`: request, event, ts_ns, epoch_ns. `steps`: batch summaries, under their names in the steps table.
    `snapshots`: request, step_id, prompt, computed, outputs, scheduled, effective. `tally` counts what was skipped.
    """

    core_ids: tuple[str, ...]
    api_ids: tuple[str, ...]
    api_of: tuple[int, ...]
    journey_events: Columns
    api_events: Columns
    steps: Columns
    snapshots: Columns
    spans: int
    tally: Counter[str]


def read_traces(path: Path, on_read: Callable[[int], None]) -> Traces:
    """Stream a trace file of any size; memory grows with its events, not its bytes. `on_read` gets the bytes read.

    Raises OSError if the file cannot be read.
    """
    collector = _Collector()
    for line in json_lines(path, collector.tally, on_read):
        for scope, span in spans(line, collector.tally):
            collector.add(scope, span)
    return collector.traces()


class _Collector:
    """Gathers the columns of `Traces` span by span."""

    def __init__(self) -> None:
        self.tally: Counter[str] = Counter()
        self.seen: set[int] = set()  # hashes of (trace id, span id): the ids themselves would take far more memory
        self.spans = 0
        self.core: dict[str, int] = {}  # number of each core request
        self.parents: list[str] = []  # span id of each core request's parent, "" if unknown
        self.has_span: set[int] = set()  # core requests; others are only known from snapshots
        self.api: dict[str, int] = {}  # number of each API request
        self.api_spans: dict[str, int] = {}  # number of the API request with this span id
        self.journey_events = Growing(
            ("request", "event", "step", "ts_ns", "epoch_ns", "phase", *_COUNTS, "kind", "status")
        )
        self.api_events = Growing(("request", "event", "ts_ns", "epoch_ns"))
        self.steps = Growing(tuple(SUMMARY), ("kv_usage_ratio",))
        self.snapshots = Growing(("request", "step_id", *_SNAPSHOT))

    def add(self, scope: str, span: JsonObject) -> None:
        name = span["name"]
        if scope == "vllm.scheduler" and name == "llm_core":
            take = self._core
        elif scope == "vllm.api" and name == "llm_request":
            take = self._request
        elif scope == "vllm.scheduler.step" and name.startswith("scheduler_steps"):
            take = self._steps
        else:
            self.tally[FOREIGN] += 1
            return
        ident = span.get("spanId")
        if isinstance(ident, str) and ident:
            key = hash((span.get("traceId") if isinstance(span.get("traceId"), str) else "", ident))
            if key in self.seen:
                self.tally[TWICE] += 1
                return
            self.seen.add(key)
        else:
            self.tally[NO_ID] += 1
        self.spans += 1
        take(span)

    def _core(self, span: JsonObject) -> None:
        ident = self._ident(attributes(span.get("attributes"), self.tally))
        if ident is None:
            return
        request = self._number(ident)
        if request in self.has_span:
            self.tally[ONCE_MORE] += 1
            return
        self.has_span.add(request)
        parent = span.get("parentSpanId")
        if isinstance(parent, str) and parent:
            self.parents[request] = parent
        for name, epoch, a in events(span, self.tally):
            kind = _code(JOURNEY, name.removeprefix("journey."))
            step, at = _whole(a, "scheduler.step", self.tally), _monotonic_ns(a)
            if kind == NONE:
                self.tally[UNKNOWN_EVENT] += 1
            elif step == NONE or at is None:
                self.tally[NO_PLACE] += 1
            else:
                counts = (_whole(a, key, self.tally) for key in _COUNTS.values())
                codes = self._named(KINDS, a.get("schedule.kind")), self._named(STATUSES, a.get("finish.status"))
                phase = self._named(PHASES, a.get("phase"))
                self.journey_events.append((request, kind, step, at, epoch, phase, *counts, *codes))

    def _request(self, span: JsonObject) -> None:
        ident = self._ident(attributes(span.get("attributes"), self.tally))
        if ident is None:
            return
        if ident in self.api:
            self.tally[ONCE_MORE] += 1
            return
        number = self.api.setdefault(ident, len(self.api))
        if isinstance(span.get("spanId"), str):
            self.api_spans[span["spanId"]] = number
        for name, epoch, a in events(span, self.tally):
            kind, at = _code(API, name.removeprefix("api.")), _seconds_ns(a, "event.ts.monotonic")
            if kind == NONE:
                self.tally[UNKNOWN_EVENT] += 1
            elif at is None:
                self.tally[NO_PLACE] += 1
            else:
                self.api_events.append((number, kind, at, epoch))

    def _steps(self, span: JsonObject) -> None:
        for name, _, a in events(span, self.tally):
            step = _whole(a, "step.id", self.tally)
            if step == NONE:
                self.tally[NO_PLACE if name.startswith("step.") else UNKNOWN_EVENT] += 1
            elif name == "step.BATCH_SUMMARY":
                self.steps.append([self._figure(a, column, key) for column, key in SUMMARY.items()])
            elif name == "step.REQUEST_SNAPSHOT":
                ident = a.get("request.id")
                if isinstance(ident, str):
                    counts = (_whole(a, key, self.tally) for key in _SNAPSHOT.values())
                    self.snapshots.append((self._number(ident), step, *counts))
                else:
                    self.tally[NO_REQUEST] += 1
            else:
                self.tally[UNKNOWN_EVENT] += 1

    def _figure(self, a: Attributes, column: str, key: str) -> float:
        if column == "kv_usage_ratio":
            ratio = a.get(key)
            if isinstance(ratio, int | float) and 0 <= ratio <= 1:
                return float(ratio)
            self.tally[OUT_OF_RANGE] += ratio is not None
            return float("nan")
        if column.endswith("_ns"):
            return _whole(a, key, self.tally, 2**62, least=1)
        return _whole(a, key, self.tally)

    def _named(self, names: tuple[str, ...], name: Any) -> int:
        code = _code(names, name)
        self.tally[UNKNOWN_NAME] += code == NONE and name is not None
        return code

    def _ident(self, about: Attributes) -> str | None:
        ident = about.get("gen_ai.request.id")
        if isinstance(ident, str) and ident:
            return ident
        self.tally[NO_REQUEST] += 1
        return None

    def _number(self, core_id: str) -> int:
        number = self.core.setdefault(core_id, len(self.core))
        if number == len(self.parents):
            self.parents.append("")
        return number

    def traces(self) -> Traces:
        api_of = []
        for ident, parent in zip(self.core, self.parents, strict=True):
            number = self.api_spans.get(parent, -1)
            if number < 0 and "-0-" in ident:  # <API request>-<prompt index>-<suffix>, of the first prompt
                number = self.api.get(ident[: ident.rindex("-0-")], -1)
            api_of.append(number)
        return Traces(
            tuple(self.core), tuple(self.api), tuple(api_of), self.journey_events.columns(),
            self.api_events.columns(), self.steps.columns(), self.snapshots.columns(), self.spans,
            Counter({what: n for what, n in self.tally.items() if n}),
        )  # fmt: skip


def _monotonic_ns(a: Attributes) -> int | None:
    """`ts.monotonic_ns`; older captures lack it or have 0, and give `ts.monotonic` in seconds instead."""
    at = a.get("ts.monotonic_ns")
    if type(at) is int and 0 < at < 2**62:
        return at
    return _seconds_ns(a, "ts.monotonic")


def _seconds_ns(a: Attributes, key: str) -> int | None:
    seconds = a.get(key)
    return round(seconds * 1e9) if isinstance(seconds, int | float) and 0 < seconds < 1e9 else None


def _whole(a: Attributes, key: str, tally: Counter[str], most: int = 2**31, least: int = 0) -> int:
    """A count or time >= `least` and < `most`; NONE if it is missing, of another type or out of range."""
    value = a.get(key)
    if value is None:
        return NONE
    if type(value) is int and least <= value < most:
        return value
    tally[OUT_OF_RANGE] += 1
    return NONE


def _code(names: tuple[str, ...], name: Any) -> int:
    return names.index(name) if name in names else NONE
