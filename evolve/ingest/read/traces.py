"""traces.json of the instrumented server: journeys of requests, batch summaries and snapshots of steps, as columns.

The file holds spans in OTLP JSON (https://opentelemetry.io/docs/specs/otlp/#json-protobuf-encoding), as the
OpenTelemetry collector's file exporter writes them, with 64-bit integers as decimal strings. Times `*_ns` are on the
server's monotonic clock, `epoch_ns` on the wall clock. Requests are numbered in the order in which their spans appear;
`Traces.core_ids` and `Traces.api_ids` have their names. An unknown number is `columns.NONE`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evolve.ingest.columns import NONE, Columns, Growing
from evolve.ingest.read.values import json_lines
from simulator.common.json import JsonObject

JOURNEY = ("QUEUED", "SCHEDULED", "FIRST_TOKEN", "PREEMPTED", "FINISHED")
API = ("ARRIVED", "HANDOFF_TO_CORE", "FIRST_RESPONSE_FROM_CORE", "DEPARTED", "ABORTED")
PHASES = ("WAITING", "PREFILL", "DECODE")
KINDS = ("FIRST", "RESUME")
STATUSES = ("stopped", "length", "aborted", "ignored", "error")


def _pairs(text: str) -> dict[str, str]:
    """The words of a text, in pairs of our column and the attribute that it holds."""
    words = text.split()
    return dict(zip(words[::2], words[1::2], strict=True))


_COUNTS = _pairs("""
    prefill_done  prefill.done_tokens    prefill_total  prefill.total_tokens
    decode_done   decode.done_tokens     decode_max     decode.max_tokens
    preemptions   num_preemptions
""")
SUMMARY = _pairs("""
    step_id                   step.id                   ts_start_ns             step.ts_start_ns
    ts_end_ns                 step.ts_end_ns            duration_us             step.duration_us
    running_depth             queue.running_depth       waiting_depth           queue.waiting_depth
    summary_prefill_reqs      batch.num_prefill_reqs    summary_decode_reqs     batch.num_decode_reqs
    summary_scheduled_tokens  batch.scheduled_tokens    summary_prefill_tokens  batch.prefill_tokens
    summary_decode_tokens     batch.decode_tokens       summary_finished        batch.num_finished
    summary_preempted         batch.num_preempted       kv_usage_ratio          kv.usage_gpu_ratio
    kv_blocks_total           kv.blocks_total_gpu       kv_blocks_free          kv.blocks_free_gpu
""")
"""Columns of the steps table, and the attributes of step.BATCH_SUMMARY that they hold."""

_SNAPSHOT = _pairs("""
    prompt     request.num_prompt_tokens    computed   request.num_computed_tokens
    outputs    request.num_output_tokens    scheduled  request.scheduled_tokens_this_step
    effective  request.effective_prompt_len
""")
ATTRIBUTES = frozenset((*_COUNTS.values(), *SUMMARY.values(), *_SNAPSHOT.values()))
"""The attributes of journeys, batch summaries and snapshots that are read as numbers."""

MALFORMED = "spans or events that are not valid OTLP, dropped"
UNKNOWN_KIND = "attributes of an unknown kind, dropped"
BAD_VALUE = "attributes whose value does not fit their kind, dropped"
NO_PLACE = "events without a step or time, dropped"
NO_REQUEST = "spans without a request id, dropped"
TWICE = "duplicate spans, dropped"
FOREIGN = "spans of other scopes, ignored"
OUT_OF_RANGE = "figures of the wrong type or out of range, treated as missing"
UNKNOWN_EVENT = "events with unknown names, ignored"
UNKNOWN_NAME = "unknown phases, kinds or statuses, treated as missing"
ONCE_MORE = "further spans of a request that has one already, dropped"
NO_ID = "spans without an id, kept: duplicates cannot be detected"

_INT64 = 2**63  # one more than the largest


@dataclass(frozen=True)
class Traces:
    """The contents of a trace file. `api_of[i]` is the API request of core request i, -1 if none was traced.

    `journey_events` has one event per row: request, event, step, ts_ns, epoch_ns, phase, prefill_done, prefill_total,
    decode_done, decode_max, preemptions, kind, status, where codes are indices into the tuples of this module.
    `api_events`: request, event, ts_ns, epoch_ns. `steps`: batch summaries, under their names in the steps table.
    `snapshots`: request, step_id, prompt, computed, outputs, scheduled, effective. `tally` counts skipped items.
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
    """Read a trace file of any size; memory grows with its events, not its bytes. `on_read` gets the bytes read."""
    collector = _Collector()
    for line in json_lines(path, collector.tally, on_read):
        collector.add_line(line)
    return collector.traces()


class _Collector:
    """Gathers the columns of `Traces` span by span."""

    def __init__(self) -> None:
        self.tally: Counter[str] = Counter()
        self.seen: set[int] = set()  # hashes of (trace id, span id): the ids themselves would take far more memory
        self.spans = 0
        self.core: dict[str, int] = {}  # number of each core request
        self.parents: dict[int, Any] = {}  # id of the parent of each core request that has a span
        self.api: dict[str, int] = {}  # number of each API request
        self.api_spans: dict[Any, int] = {}  # number of the API request with this span id
        self.journey_events = Growing(
            ("request", "event", "step", "ts_ns", "epoch_ns", "phase", *_COUNTS, "kind", "status")
        )
        self.api_events = Growing(("request", "event", "ts_ns", "epoch_ns"))
        self.steps = Growing(tuple(SUMMARY), ("kv_usage_ratio",))
        self.snapshots = Growing(("request", "step_id", *_SNAPSHOT))

    def add_line(self, line: Any) -> None:
        """Add every span of an exported line."""
        for resource in self._mappings(line, "resourceSpans"):
            for scoped in self._mappings(resource, "scopeSpans"):
                scope = scoped.get("scope")
                scope_name = scope.get("name") if isinstance(scope, dict) else None
                for span in self._mappings(scoped, "spans"):
                    if isinstance(scope_name, str) and isinstance(span.get("name"), str):
                        self._add(scope_name, span)
                    else:
                        self.tally[MALFORMED] += 1

    def _add(self, scope: str, span: JsonObject) -> None:
        name, ident = span["name"], span.get("spanId")
        steps = scope == "vllm.scheduler.step" and name.startswith("scheduler_steps")
        if not steps and (scope, name) not in (("vllm.scheduler", "llm_core"), ("vllm.api", "llm_request")):
            self.tally[FOREIGN] += 1
            return
        if isinstance(ident, str) and ident:
            key = hash((span.get("traceId") if isinstance(span.get("traceId"), str) else "", ident))
            if key in self.seen:
                self.tally[TWICE] += 1
                return
            self.seen.add(key)
        else:
            self.tally[NO_ID] += 1
        self.spans += 1
        if steps:
            self._steps(span)
            return
        request = attributes(span, self.tally).get("gen_ai.request.id")
        if not isinstance(request, str) or not request:
            self.tally[NO_REQUEST] += 1
        elif scope == "vllm.api":
            self._api(request, span)
        else:
            self._core(request, span)

    def _core(self, core_id: str, span: JsonObject) -> None:
        request = self.core.setdefault(core_id, len(self.core))
        if request in self.parents:
            self.tally[ONCE_MORE] += 1
            return
        parent = span.get("parentSpanId")
        self.parents[request] = parent if isinstance(parent, str) else None
        for name, epoch, a in self._events(span):
            event = _code(JOURNEY, name.removeprefix("journey."))
            step, at = self._whole(a, "scheduler.step"), _monotonic_ns(a)
            if event == NONE:
                self.tally[UNKNOWN_EVENT] += 1
            elif step == NONE or at is None:
                self.tally[NO_PLACE] += 1
            else:
                counts = [self._whole(a, key) for key in _COUNTS.values()]
                kind, status = self._named(KINDS, a.get("schedule.kind")), self._named(STATUSES, a.get("finish.status"))
                phase = self._named(PHASES, a.get("phase"))
                self.journey_events.append((request, event, step, at, epoch, phase, *counts, kind, status))

    def _api(self, api_id: str, span: JsonObject) -> None:
        if api_id in self.api:
            self.tally[ONCE_MORE] += 1
            return
        request = self.api[api_id] = len(self.api)
        if isinstance(span.get("spanId"), str):
            self.api_spans[span["spanId"]] = request
        for name, epoch, a in self._events(span):
            event, at = _code(API, name.removeprefix("api.")), _seconds_ns(a, "event.ts.monotonic")
            if event == NONE:
                self.tally[UNKNOWN_EVENT] += 1
            elif at is None:
                self.tally[NO_PLACE] += 1
            else:
                self.api_events.append((request, event, at, epoch))

    def _steps(self, span: JsonObject) -> None:
        for name, _, a in self._events(span):
            step, request = self._whole(a, "step.id"), a.get("request.id")
            if step == NONE:
                self.tally[NO_PLACE if name.startswith("step.") else UNKNOWN_EVENT] += 1
            elif name == "step.BATCH_SUMMARY":
                self.steps.append([self._figure(a, column, key) for column, key in SUMMARY.items()])
            elif name != "step.REQUEST_SNAPSHOT":
                self.tally[UNKNOWN_EVENT] += 1
            elif isinstance(request, str):
                counts = [self._whole(a, key) for key in _SNAPSHOT.values()]
                self.snapshots.append((self.core.setdefault(request, len(self.core)), step, *counts))
            else:
                self.tally[NO_REQUEST] += 1

    def _events(self, span: JsonObject) -> Iterator[tuple[str, int, JsonObject]]:
        """(name, epoch time in ns or 0 if missing, attributes) of every event of a span."""
        for event in self._mappings(span, "events") if span.get("events") is not None else ():
            name = event.get("name")
            if isinstance(name, str):
                yield name, _int64(event.get("timeUnixNano"), self.tally) or 0, attributes(event, self.tally)
            else:
                self.tally[MALFORMED] += 1

    def _mappings(self, of: Any, key: str) -> list[JsonObject]:
        """The mappings of the list under `key`; anything else is counted."""
        items = of.get(key) if isinstance(of, dict) else None
        if not isinstance(items, list):
            self.tally[MALFORMED] += 1
            return []
        mappings = [item for item in items if isinstance(item, dict)]
        self.tally[MALFORMED] += len(items) - len(mappings)
        return mappings

    def _whole(self, a: JsonObject, key: str, most: int = 2**31, least: int = 0) -> int:
        """A count or time >= `least` and < `most`; NONE if it is missing, of another type or out of range."""
        value = a.get(key)
        if type(value) is int and least <= value < most:
            return value
        if value is not None:
            self.tally[OUT_OF_RANGE] += 1
        return NONE

    def _figure(self, a: JsonObject, column: str, key: str) -> float:
        if column != "kv_usage_ratio":
            return self._whole(a, key, 2**62, least=1) if column.endswith("_ns") else self._whole(a, key)
        ratio = a.get(key)
        if isinstance(ratio, int | float) and 0 <= ratio <= 1:
            return float(ratio)
        self.tally[OUT_OF_RANGE] += ratio is not None
        return float("nan")

    def _named(self, names: tuple[str, ...], name: Any) -> int:
        code = _code(names, name)
        self.tally[UNKNOWN_NAME] += code == NONE and name is not None
        return code

    def traces(self) -> Traces:
        api_of = []
        for core_id, number in self.core.items():
            api = self.api_spans.get(self.parents.get(number), -1)
            if api < 0 and "-0-" in core_id:  # <API request>-<prompt index>-<suffix>, of the first prompt
                api = self.api.get(core_id[: core_id.rindex("-0-")], -1)
            api_of.append(api)
        events, api_events = self.journey_events.columns(), self.api_events.columns()
        ids, steps, snapshots = (tuple(self.core), tuple(self.api)), self.steps.columns(), self.snapshots.columns()
        return Traces(*ids, tuple(api_of), events, api_events, steps, snapshots, self.spans, +self.tally)


def attributes(of: JsonObject, tally: Counter[str]) -> JsonObject:
    """The attributes of a span or event by key; values are str, int (within 64 bits), float or bool."""
    values: JsonObject = {}
    pairs = of.get("attributes")
    if not isinstance(pairs, list):
        tally[MALFORMED] += pairs is not None
        return values
    for pair in pairs:
        try:
            ((kind, value),) = pair["value"].items()
            key = pair["key"]
            if kind == "intValue":
                # A fast path: there are millions of these, and nearly all are short runs of digits.
                short = type(value) is str and len(value) < 19 and value.isdecimal()
                value = int(value) if short else _int64(value, tally)
            elif kind == "doubleValue":
                value = float(value)
            elif kind == "stringValue":
                value = value if isinstance(value, str) else None
            elif kind == "boolValue":
                value = value if isinstance(value, bool) else None
            else:
                tally[UNKNOWN_KIND] += 1
                continue
            if value is not None:
                values[key] = value
            elif kind != "intValue":
                tally[BAD_VALUE] += 1
        except (TypeError, KeyError, ValueError, AttributeError, OverflowError):
            tally[BAD_VALUE] += 1
    return values


def _int64(value: Any, tally: Counter[str]) -> int | None:
    """A 64-bit whole number, written as a number or as decimal digits; anything else is counted and gives None."""
    try:
        number = int(value) if isinstance(value, str) else value
        if type(number) is float and number.is_integer():
            number = int(number)
        if type(number) is int and -_INT64 <= number < _INT64:
            return number
    except ValueError:
        pass
    tally[BAD_VALUE] += 1
    return None


def _monotonic_ns(a: JsonObject) -> int | None:
    """`ts.monotonic_ns`; older captures lack it or have 0, and give `ts.monotonic` in seconds instead."""
    at = a.get("ts.monotonic_ns")
    return at if type(at) is int and 0 < at < 2**62 else _seconds_ns(a, "ts.monotonic")


def _seconds_ns(a: JsonObject, key: str) -> int | None:
    seconds = a.get(key)
    return round(seconds * 1e9) if isinstance(seconds, int | float) and 0 < seconds < 1e9 else None


def _code(names: tuple[str, ...], name: Any) -> int:
    return names.index(name) if name in names else NONE
