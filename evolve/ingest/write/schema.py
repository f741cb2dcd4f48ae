"""The schema of the parquet tables: typed columns, each with its meaning and unit in the metadata of the file.

An empty cell means unknown. Times `*_ns` are on the server's monotonic clock; the client's are relative to the run's
first request or to the request's start. `request` numbers the rows of the requests table.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import pyarrow as pa

from evolve import __version__
from simulator.schema import FIELDS, RECORDED

_INTERVAL = pa.list_(pa.struct([
    ("prefill", pa.bool_()), ("start_step", pa.int64()), ("end_step", pa.int64()), ("prefill_tokens", pa.int32()),
]))  # fmt: skip
_BATCH = pa.list_(pa.struct([
    ("request", pa.int32()), ("prefill", pa.bool_()), ("new_tokens", pa.int32()), ("kv_before", pa.int32()),
]))  # fmt: skip
_PUBLISHED = pa.list_(pa.struct([
    ("request", pa.int32()), ("prefill", pa.bool_()), ("tokens", pa.int32()), ("context", pa.int32()),
]))  # fmt: skip
_NAME = pa.dictionary(pa.int16(), pa.string())
_I, _L, _F, _B, _S = pa.int32(), pa.int64(), pa.float64(), pa.bool_(), pa.string()

_RAW = {name: (_F, f"{FIELDS['b', name].meaning} ({FIELDS['b', name].unit}); host's view, empty without journeys")
        for name in RECORDED}  # fmt: skip

COLUMNS: dict[str, dict[str, tuple[Any, str]]] = {
    "requests": {
        "experiment": (_NAME, "the run: source_run in experiments.yaml"),
        "request": (_I, "number of this row"),
        "client_index": (_I, "rank by start among the load generator's rows"),
        "request_id": (_S, "the engine core's id"),
        "api_id": (_S, "the API server's id"),
        "stage": (_I, "load stage, from 0"),
        "completed": (_B, "the client had the whole answer; without client rows: the server had"),
        "error": (_NAME, "type of the client's error"),
        "finish_status": (_NAME, "how the engine ended it: stopped, length, aborted, ignored, error"),
        "usable": (_B, "its journey is complete, in order of time, and ended by itself"),
        "prompt": (_I, "number of the prompt's text; equal texts have one number"),
        "prompt_tokens": (_I, "as the server counts them"),
        "output_tokens": (_I, "generated tokens, as the server counts them or max_tokens under ignore_eos"),
        "max_tokens": (_I, "limit asked for"),
        "client_prompt_tokens": (_I, "the client's re-tokenisation of the prompt, for information"),
        "client_output_tokens": (_I, "the client's re-tokenisation of the text; not the output length"),
        "cached_tokens": (_I, "prompt tokens found in the prefix cache at the first admission"),
        "computed_tokens": (_I, "prompt tokens computed at the first admission"),
        "cached_how": (_NAME, "evidence: snapshot, summary, kv_events, prompt, short, none (taken as not cached)"),
        "start_s": (_F, "client's start since the run's first, s"),
        "e2e_ms": (_F, "client's end less start"),
        "ttft_ms": (_F, "client's first token less start"),
        "itl_ms": (_F, "(e2e_ms - ttft_ms) / (output_tokens - 1)"),
        "stamps": (_NAME, "which reading of the client's stamps holds: 2n+2, n+1, other (first token only)"),
        "token_times_us": (pa.list_(_L), "arrival of each token since the client's start"),
        "arrived_ns": (_L, "api.ARRIVED"),
        "queued_ns": (_L, "journey.QUEUED"),
        "scheduled_ns": (_L, "first journey.SCHEDULED; one cycle early under async scheduling"),
        "first_token_ns": (_L, "journey.FIRST_TOKEN"),
        "finished_ns": (_L, "journey.FINISHED"),
        "departed_ns": (_L, "api.DEPARTED"),
        "arrival_to_queue_us": (_F, "alpha target: QUEUED - ARRIVED"),
        "queueing_us": (_F, "first SCHEDULED - QUEUED"),
        "server_ttft_us": (_F, "FIRST_TOKEN - QUEUED"),
        "prefill_processing_us": (_F, "FIRST_TOKEN - SCHEDULED - gaps of preemptions before it"),
        "decode_processing_us": (_F, "FINISHED - FIRST_TOKEN - later gaps"),
        "processing_us": (_F, "both together"),
        "server_e2e_us": (_F, "FINISHED - QUEUED"),
        "finish_to_departure_us": (_F, "alpha target: DEPARTED - FINISHED"),
        "preemptions": (_I, "how often it was preempted"),
        "first_step": (_L, "scheduler step of the first SCHEDULED"),
        "last_step": (_L, "scheduler step of FINISHED"),
        "intervals": (_INTERVAL, "phases as inclusive ranges of scheduler steps"),
    },
    "steps": {
        "experiment": (_NAME, "the run: source_run in experiments.yaml"),
        "step_id": (_L, "scheduler step"),
        "sampled": (_B, "the engine recorded a batch summary of it"),
        "async_scheduling": (_B, "two batches in flight; empty: not known"),
        "split": (_NAME, "temporal split of the sampled steps: train 60 %, valid 20 %, test 20 %"),
        "ts_start_ns": (_L, "schedule() entered"),
        "ts_end_ns": (_L, "summary emitted, near its end"),
        "duration_us": (_L, "CPU time of schedule(): not the step's cost"),
        "running_depth": (_I, "running requests after scheduling"),
        "waiting_depth": (_I, "waiting requests after scheduling"),
        "summary_prefill_reqs": (_I, "scheduled requests without a processed output token"),
        "summary_decode_reqs": (_I, "scheduled requests with one"),
        "summary_scheduled_tokens": (_I, "tokens scheduled"),
        "summary_prefill_tokens": (_I, "of the first group, after prefix-cache hits"),
        "summary_decode_tokens": (_I, "of the second group, recomputation included"),
        "summary_finished": (_I, "requests that finished since the previous schedule()"),
        "summary_preempted": (_I, "requests preempted during it"),
        "kv_usage_ratio": (_F, "share of KV blocks in use"),
        "kv_blocks_total": (_L, "usable KV blocks"),
        "kv_blocks_free": (_L, "free KV blocks after allocation"),
        **_RAW,
        "kv_read_tokens": (_F, "tokens in the KV cache of the batch before the step, prefix hits included"),
        "evidence": (_NAME, "the corrected batch is exact, inferred, assumed (a prompt without evidence), or "
                     "contradicted (by the step's summary)"),
        "batch": (_BATCH, "corrected: who ran, new tokens, tokens in its KV cache before the step"),
        "published": (_PUBLISHED, "as published: prompts never cached; context includes the token being processed"),
    },
    "journeys": {
        "experiment": (_NAME, "the run: source_run in experiments.yaml"),
        "request": (_I, "row of the requests table"),
        "event": (_NAME, "api.ARRIVED, journey.QUEUED, ..."),
        "ts_ns": (_L, "server clock"),
        "epoch_ns": (_L, "wall clock"),
        "step": (_L, "scheduler step of a journey event"),
        "phase": (_NAME, "WAITING, PREFILL, DECODE"),
        "prefill_done": (_I, "prompt tokens covered, cache hits included; never falls"),
        "prefill_total": (_I, "prompt tokens"),
        "decode_done": (_I, "output tokens processed"),
        "decode_max": (_I, "limit of output tokens"),
        "preemptions": (_I, "so far"),
        "kind": (_NAME, "of SCHEDULED: FIRST, RESUME"),
        "status": (_NAME, "of FINISHED"),
    },
    "kv_events": {
        "experiment": (_NAME, "the run: source_run in experiments.yaml"),
        "batch": (_L, "number of the published batch"),
        "ts_s": (_F, "wall clock when it was published, s"),
        "rank": (_I, "data-parallel rank"),
        "event": (_S, "BlockStored, BlockRemoved, CacheStoreCommitted, ..."),
        "request_id": (_S, "the engine core's id, where the event has one"),
        "step": (_L, "scheduler step; of a completed transfer that of its initiation"),
        "medium": (_S, "GPU, CPU, ...; the destination of a transfer"),
        "source": (_S, "where a transfer comes from"),
        "blocks": (_I, "how many blocks"),
        "tokens": (_I, "how many token ids were listed"),
        "block_size": (_I, "tokens of a block"),
        "hashes": (pa.list_(pa.uint64()), "low 64 bits of each block's hash"),
        "parent": (pa.uint64(), "low 64 bits of the hash of the block before the first"),
        "transfer": (_L, "id of a transfer"),
        "success": (_B, "of a completed transfer"),
        "reason": (_S, "of an eviction, or a transfer's connector"),
    },
    "cycles": {
        "experiment": (_NAME, "the run: source_run in experiments.yaml"),
        "step_id": (_L, "N of the consecutive sampled steps N, N+1"),
        "cycle_us": (_F, "start of N+1 less start of N"),
        "duration_us": (_F, "CPU time of schedule() in N"),
        "measures": (_L, "the step whose execution the cycle is: N-1 under async scheduling, else N"),
        "usable": (_B, "a steady cycle"),
        "why": (_NAME, "what speaks against it"),
        "split": (_NAME, "temporal split of step N"),
    },
}  # fmt: skip


@cache
def schema(table: str) -> Any:
    """The arrow schema of a table, with the meaning of each field and the version that wrote it as metadata."""
    fields = [pa.field(name, kind, metadata={"meaning": text}) for name, (kind, text) in COLUMNS[table].items()]
    return pa.schema(fields, metadata={"table": table, "engine": __version__})
