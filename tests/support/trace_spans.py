"""Spans of the small engine as OTLP JSON (trace-formats, sections 1.1 to 1.5), by templates: a span is 3 kB and more."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from trace_records import MODEL, ApiSpan, CoreSpan, Journey, Offsets, Snapshot, StepSpan, Summary

RESOURCE = (
    '{"resource":{"attributes":['
    '{"key":"telemetry.sdk.language","value":{"stringValue":"python"}},'
    '{"key":"telemetry.sdk.name","value":{"stringValue":"opentelemetry"}},'
    '{"key":"telemetry.sdk.version","value":{"stringValue":"1.39.0"}},'
    '{"key":"service.name","value":{"stringValue":"vllm-inference-perf"}}]},"scopeSpans":['
)
SCOPES = {StepSpan: "vllm.scheduler.step", CoreSpan: "vllm.scheduler", ApiSpan: "vllm.api"}


def _attributes(kinds: str) -> str:
    """A template of attributes: `key:kind` separated by blanks, kind one of i (int), s (string), d (double)."""
    value = {"i": '{"intValue":"%d"}', "s": '{"stringValue":"%s"}', "d": '{"doubleValue":%r}'}
    pairs = [pair.split(":") for pair in kinds.split()]
    return ",".join(f'{{"key":"{key}","value":{value[kind]}}}' for key, kind in pairs)


def _event(kinds: str) -> str:
    """A template of an event: its time, its name, its attributes."""
    return '{"timeUnixNano":"%d","name":"%s","attributes":[' + _attributes(kinds) + "]}"


def _span(kinds: str) -> str:
    """A template of a span: ids, name, kind, start, end, attributes, events."""
    head = '{"traceId":"%s","spanId":"%s",%s"flags":256,"name":"%s","kind":%d,"startTimeUnixNano":"%d","endTimeUnixNano":"%d",'
    return head + '"attributes":[' + _attributes(kinds) + '],"events":[%s],"status":{}}'


STEP = _span(
    "scheduler.span_sequence:i scheduler.step_range_start:i scheduler.closure_interval:i scheduler.step_range_end:i"
)
CORE = _span("gen_ai.request.id:s")
API = _span(
    "gen_ai.request.id:s http.route:s gen_ai.response.model:s gen_ai.usage.prompt_tokens:i gen_ai.request.temperature:d "
    "gen_ai.request.top_p:d gen_ai.request.max_tokens:i gen_ai.request.n:i"
)
SUMMARY = _event(
    "step.id:i step.ts_start_ns:i step.ts_end_ns:i step.duration_us:i queue.running_depth:i queue.waiting_depth:i "
    "batch.num_prefill_reqs:i batch.num_decode_reqs:i batch.scheduled_tokens:i batch.prefill_tokens:i "
    "batch.decode_tokens:i batch.num_finished:i batch.num_preempted:i kv.usage_gpu_ratio:d kv.blocks_total_gpu:i "
    "kv.blocks_free_gpu:i"
)
SNAPSHOT = _event(
    "step.id:i request.id:s request.phase:s request.num_prompt_tokens:i request.num_computed_tokens:i "
    "request.num_output_tokens:i request.num_preemptions:i request.scheduled_tokens_this_step:i "
    "kv.blocks_allocated_gpu:i kv.blocks_cached_gpu:i request.effective_prompt_len:i"
)
_JOURNEY = (
    "event.type:s ts.monotonic:d ts.monotonic_ns:i scheduler.step:i phase:s prefill.done_tokens:i "
    "prefill.total_tokens:i decode.done_tokens:i decode.max_tokens:i num_preemptions:i"
)
JOURNEY = _event(_JOURNEY)
JOURNEYS = {"SCHEDULED": _event(_JOURNEY + " schedule.kind:s"), "FINISHED": _event(_JOURNEY + " finish.status:s")}
API_EVENT = _event("event.ts.monotonic:d")
API_ABORTED = _event("event.ts.monotonic:d reason:s")


def epoch_ns(ns: int, clocks: Offsets) -> int:
    """A server time as the tracer stamps it: int(1e9 * a float64 of seconds) keeps 256 ns."""
    return (ns + clocks.epoch_minus_server_ns + 128) & ~255


def _hex(*what: object) -> str:
    return hashlib.md5(" ".join(map(str, what)).encode()).hexdigest()


def _summary(s: Summary, clocks: Offsets) -> list[str]:
    told = SUMMARY % (
        epoch_ns(s.end_ns, clocks),
        "step.BATCH_SUMMARY",
        s.step,
        s.start_ns,
        s.end_ns,
        (s.end_ns - s.start_ns) // 1000,
        s.running,
        s.waiting,
        s.prefill_requests,
        s.decode_requests,
        s.prefill_tokens + s.decode_tokens,
        s.prefill_tokens,
        s.decode_tokens,
        s.finished,
        s.preempted,
        1 - s.free_blocks / s.total_blocks,
        s.total_blocks,
        s.free_blocks,
    )
    return [told, *(_snapshot(s, snapshot, clocks) for snapshot in s.snapshots)]


def _snapshot(s: Summary, snapshot: Snapshot, clocks: Offsets) -> str:
    return SNAPSHOT % (epoch_ns(s.end_ns + 20_000, clocks), "step.REQUEST_SNAPSHOT", s.step, *snapshot)


def _journey(e: Journey, of: CoreSpan, clocks: Offsets) -> str:
    at = (epoch_ns(e.ns, clocks), "journey." + e.name, e.name, e.ns / 1e9, e.ns, e.step, e.phase)
    counts = (e.prefill_done, of.prompt, e.decode_done, of.max_tokens, e.preemptions)
    return JOURNEY % (*at, *counts) if e.detail is None else JOURNEYS[e.name] % (*at, *counts, e.detail)


def span_text(span: StepSpan | CoreSpan | ApiSpan, seed: int, clocks: Offsets) -> str:
    ends = (epoch_ns(span.start_ns, clocks), epoch_ns(span.end_ns, clocks))
    if isinstance(span, StepSpan):
        trace = _hex("step", seed, span.sequence)
        events = [told for s in span.summaries for told in _summary(s, clocks)]
        name = f"scheduler_steps_{span.sequence}"
        about = (span.sequence, span.first, span.interval, span.last)
        return STEP % (trace, trace[::-1][:16], "", name, 1, *ends, *about, ",".join(events))
    if isinstance(span, CoreSpan):
        trace = _hex("trace", seed, span.request_id.rsplit("-0-", 1)[0])
        parent = f'"parentSpanId":"{trace[::-1][:16]}",'
        events = [_journey(e, span, clocks) for e in span.events]
        return CORE % (trace, trace[8:24], parent, "llm_core", 1, *ends, span.request_id, ",".join(events))
    trace = _hex("trace", seed, span.request_id)
    arrived = API_EVENT % (epoch_ns(span.arrived_ns, clocks), "api.ARRIVED", span.arrived_ns / 1e9)
    left = (epoch_ns(span.left_ns, clocks), "api.ABORTED" if span.aborted else "api.DEPARTED", span.left_ns / 1e9)
    gone = API_ABORTED % (*left, "client_disconnect") if span.aborted else API_EVENT % left
    about = (span.request_id, "/v1/completions", MODEL, span.prompt, 0.0, 1.0, span.max_tokens, 1)
    return API % (trace, trace[::-1][:16], "", "llm_request", 2, *ends, *about, f"{arrived},{gone}")


def line(spans: Sequence[StepSpan | CoreSpan | ApiSpan], seed: int, clocks: Offsets) -> str:
    """One export: what the engine's process and the API's sent, by scope, in each scope in order of ending."""
    told = []
    for scopes in ((StepSpan, CoreSpan), (ApiSpan,)):
        of = [(kind, [span_text(s, seed, clocks) for s in spans if isinstance(s, kind)]) for kind in scopes]
        texts = [f'{{"scope":{{"name":"{SCOPES[kind]}"}},"spans":[{",".join(texts)}]}}' for kind, texts in of if texts]
        if texts:
            told.append(RESOURCE + ",".join(texts) + "]}")
    return '{"resourceSpans":[' + ",".join(told) + "]}\n"
