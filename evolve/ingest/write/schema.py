"""The schema of the parquet tables: typed columns, each with its meaning and unit in the metadata of the file.

An empty cell means unknown. Times `*_ns` are on the server's monotonic clock; the client's are relative to the run's
first request or to the request's start. `request` numbers the rows of the requests table.
"""

from __future__ import annotations

from functools import cache, partial
from typing import Any

import pyarrow as pa

from evolve import __version__
from evolve.output.columns import FLAG, NUMBER, WHOLE, Column, flag, number, several, text, whole
from simulator.schema import FIELDS, RECORDED

ENTRY = {"request": pa.int32(), "prefill": pa.bool_()}
INTERVAL = {"prefill": pa.bool_(), "start_step": pa.int64(), "end_step": pa.int64(), "prefill_tokens": pa.int32()}
# Arrow types by the name that a column has for its own, or else by its kind
ARROW = {
    NUMBER: pa.float64(),
    WHOLE: pa.int64(),
    FLAG: pa.bool_(),
    "text": pa.string(),
    "name": pa.dictionary(pa.int16(), pa.string()),
    "int32": pa.int32(),
    "uint64": pa.uint64(),
    "hashes": pa.list_(pa.uint64()),
    "times": pa.list_(pa.int64()),
    "intervals": pa.list_(pa.struct(INTERVAL)),
    "batch": pa.list_(pa.struct(ENTRY | {"new_tokens": pa.int32(), "kv_before": pa.int32()})),
    "published": pa.list_(pa.struct(ENTRY | {"tokens": pa.int32(), "context": pa.int32()})),
}
name = partial(text, arrow="name")
count = partial(whole, arrow="int32")

COLUMNS: dict[str, tuple[Column, ...]] = {
    "requests": (
        name("experiment", "the run: source_run in experiments.yaml"),
        count("request", "number of this row"),
        count("client_index", "rank by start among the load generator's rows"),
        text("request_id", "the engine core's id"),
        text("api_id", "the API server's id"),
        count("stage", "load stage, from 0"),
        flag("completed", "the client had the whole answer; without client rows: the server had"),
        name("error", "type of the client's error"),
        name("finish_status", "the engine's reason for its end: stopped, length, aborted, ignored, error"),
        flag("usable", "its journey is complete, in order of time, and ended by itself"),
        count("prompt", "number of the prompt's text; equal texts have one number"),
        count("prompt_tokens", "as the server counts them"),
        count("output_tokens", "generated tokens, as the server counts them or max_tokens under ignore_eos"),
        count("max_tokens", "limit asked for"),
        count("client_prompt_tokens", "the client's re-tokenisation of the prompt, for information"),
        count("client_output_tokens", "the client's re-tokenisation of the text; not the output length"),
        count("cached_tokens", "prompt tokens found in the prefix cache at the first admission"),
        count("computed_tokens", "prompt tokens computed at the first admission"),
        name("cached_how", "evidence: snapshot, summary, kv_events, prompt, short, none (taken as not cached)"),
        number("start_s", "client's start since the run's first, s"),
        number("e2e_ms", "client's end less start"),
        number("ttft_ms", "client's first token less start"),
        number("itl_ms", "(e2e_ms - ttft_ms) / (output_tokens - 1)"),
        name("stamps", "the reading of the client's stamps: 2n+2, n+1, other (first token only)"),
        several("token_times_us", "arrival of each token since the client's start", arrow="times"),
        whole("arrived_ns", "api.ARRIVED"),
        whole("queued_ns", "journey.QUEUED"),
        whole("scheduled_ns", "first journey.SCHEDULED; one cycle early under async scheduling"),
        whole("first_token_ns", "journey.FIRST_TOKEN"),
        whole("finished_ns", "journey.FINISHED"),
        whole("departed_ns", "api.DEPARTED"),
        number("arrival_to_queue_us", "alpha target: QUEUED - ARRIVED"),
        number("queueing_us", "first SCHEDULED - QUEUED"),
        number("server_ttft_us", "FIRST_TOKEN - QUEUED"),
        number("prefill_processing_us", "FIRST_TOKEN - SCHEDULED - gaps of preemptions before it"),
        number("decode_processing_us", "FINISHED - FIRST_TOKEN - later gaps"),
        number("processing_us", "both together"),
        number("server_e2e_us", "FINISHED - QUEUED"),
        number("finish_to_departure_us", "alpha target: DEPARTED - FINISHED"),
        count("preemptions", "number of preemptions"),
        whole("first_step", "scheduler step of the first SCHEDULED"),
        whole("last_step", "scheduler step of FINISHED"),
        several("intervals", "phases as inclusive ranges of scheduler steps", arrow="intervals"),
    ),
    "steps": (
        name("experiment", "the run: source_run in experiments.yaml"),
        whole("step_id", "scheduler step"),
        flag("sampled", "the engine recorded a batch summary of it"),
        flag("async_scheduling", "two batches in flight; empty: not known"),
        name("split", "temporal split of the sampled steps: train 60 %, valid 20 %, test 20 %"),
        whole("ts_start_ns", "schedule() entered"),
        whole("ts_end_ns", "summary emitted, near its end"),
        whole("duration_us", "CPU time of schedule(): not the step's cost"),
        count("running_depth", "running requests after scheduling"),
        count("waiting_depth", "waiting requests after scheduling"),
        count("summary_prefill_reqs", "scheduled requests without a processed output token"),
        count("summary_decode_reqs", "scheduled requests with one"),
        count("summary_scheduled_tokens", "tokens scheduled"),
        count("summary_prefill_tokens", "of the first group, after prefix-cache hits"),
        count("summary_decode_tokens", "of the second group, recomputation included"),
        count("summary_finished", "requests that finished since the previous schedule()"),
        count("summary_preempted", "requests preempted during it"),
        number("kv_usage_ratio", "share of KV blocks in use"),
        whole("kv_blocks_total", "usable KV blocks"),
        whole("kv_blocks_free", "free KV blocks after allocation"),
        *(
            number(n, f"{FIELDS['b', n].meaning} ({FIELDS['b', n].unit}); host's view, empty without journeys")
            for n in RECORDED
        ),
        number("kv_read_tokens", "tokens in the KV cache of the batch before the step, prefix hits included"),
        name("evidence", "of the batch: exact, inferred, assumed (a prompt has none), contradicted (by the summary)"),
        several("batch", "corrected: who ran, new tokens, tokens in its KV cache before the step", arrow="batch"),
        several("published", "prompts never cached; context includes the processed token", arrow="published"),
    ),
    "journeys": (
        name("experiment", "the run: source_run in experiments.yaml"),
        count("request", "row of the requests table"),
        name("event", "api.ARRIVED, journey.QUEUED, ..."),
        whole("ts_ns", "server clock"),
        whole("epoch_ns", "wall clock"),
        whole("step", "scheduler step of a journey event"),
        name("phase", "WAITING, PREFILL, DECODE"),
        count("prefill_done", "prompt tokens covered, cache hits included; never falls"),
        count("prefill_total", "prompt tokens"),
        count("decode_done", "output tokens processed"),
        count("decode_max", "limit of output tokens"),
        count("preemptions", "so far"),
        name("kind", "of SCHEDULED: FIRST, RESUME"),
        name("status", "of FINISHED"),
    ),
    "kv_events": (
        name("experiment", "the run: source_run in experiments.yaml"),
        whole("batch", "number of the published batch"),
        number("ts_s", "wall clock when it was published, s"),
        count("rank", "data-parallel rank"),
        text("event", "BlockStored, BlockRemoved, CacheStoreCommitted, ..."),
        text("request_id", "the engine core's id, where the event has one"),
        whole("step", "scheduler step; of a completed transfer that of its initiation"),
        text("medium", "GPU, CPU, ...; the destination of a transfer"),
        text("source", "where a transfer comes from"),
        count("blocks", "number of blocks"),
        count("tokens", "number of listed token ids"),
        count("block_size", "tokens of a block"),
        several("hashes", "low 64 bits of each block's hash", arrow="hashes"),
        whole("parent", "low 64 bits of the hash of the block before the first", arrow="uint64"),
        whole("transfer", "id of a transfer"),
        flag("success", "of a completed transfer"),
        text("reason", "of an eviction, or a transfer's connector"),
    ),
    "cycles": (
        name("experiment", "the run: source_run in experiments.yaml"),
        whole("step_id", "N of the consecutive sampled steps N, N+1"),
        number("cycle_us", "start of N+1 less start of N"),
        number("duration_us", "CPU time of schedule() in N"),
        whole("measures", "the step whose execution the cycle is: N-1 under async scheduling, else N"),
        flag("usable", "a steady cycle"),
        name("why", "the reason against it"),
        name("split", "temporal split of step N"),
    ),
}


@cache
def schema(table: str) -> Any:
    """The arrow schema of a table, with the meaning of each field and the version that wrote it as metadata."""
    fields = []
    for c in COLUMNS[table]:
        about = {"meaning": c.meaning} | ({"unit": c.measured_in} if c.measured_in else {})
        fields.append(pa.field(c.name, ARROW[c.arrow or c.kind], metadata=about))
    return pa.schema(fields, metadata={"table": table, "engine": __version__})
