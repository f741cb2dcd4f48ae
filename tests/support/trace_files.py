"""Writes a run of the small engine as the folder of an experiment (trace-formats, sections 0 to 4), streaming."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TextIO

from trace_load import arrivals, offsets
from trace_records import (
    BLOCK,
    MODEL,
    ApiSpan,
    CoreSpan,
    KvBatch,
    Offsets,
    Options,
    Record,
    RequestTruth,
    Row,
    StepSpan,
    Truth,
)
from trace_reports import Rows, stage_reports
from trace_spans import line

from simulator.common.streams import stream

WORKERS, WORKER_BUFFER = 14, 9  # number of the stream; rows that a slow worker may be behind
BLOCK_BYTES = 4 * 2 * BLOCK * 2 * 64 * 2  # layers, K and V, tokens, KV heads, head dimension, bytes of a number


def write(truth: Truth, folder: Path) -> None:
    """The folder of a run. The same run gives the same bytes."""
    write_records(truth.options, truth.offsets, truth.records, folder)


def write_records(o: Options, clocks: Offsets, records: Iterable[Record], folder: Path) -> None:
    """As `write`, of records as they come: no more than a line of each file is held, and the numbers of the reports."""
    results = folder / "results"
    results.mkdir(parents=True, exist_ok=True)
    stages = [Rows() for _ in o.rates]
    with ExitStack() as opened:
        traces = opened.enter_context((folder / "traces.json").open("w"))
        events = opened.enter_context((folder / "kv_events.jsonl").open("w"))
        clients = opened.enter_context((results / "per_request_lifecycle_metrics.json").open("w"))
        rows = _Rows(o, clients)
        spans: list[StepSpan | CoreSpan | ApiSpan] = []
        for record in records:
            if isinstance(record, StepSpan | CoreSpan | ApiSpan):
                spans.append(record)
                if len(spans) >= o.spans_per_line:
                    traces.write(line(spans, o.seed, clocks))
                    spans.clear()
            elif isinstance(record, KvBatch):
                at = round((record.ns + clocks.epoch_minus_server_ns) / 1e9, 6)
                events.write(json.dumps([at, record.events, 0, None], separators=(",", ":")) + "\n")
            elif isinstance(record, RequestTruth):
                rows.add(record.row)
                stages[record.row.stage].add(record.row)
        if spans:
            traces.write(line(spans, o.seed, clocks))
        rows.close()
    for name, told in stage_reports(o, stages).items():
        (results / name).write_text(json.dumps(told, indent=2) + "\n")
    for name, text in configuration(o, folder.name):
        (folder / name).write_text(text)


class _Rows:
    """The array of rows, as the load generator's workers hand them in: nearly by end, never by start."""

    def __init__(self, o: Options, out: TextIO) -> None:
        self.out, self.held, self.rng, self.first = out, [], stream(o.seed, WORKERS), True

    def add(self, row: Row) -> None:
        self.held.append(row)
        if len(self.held) > WORKER_BUFFER:
            self._put(self.held.pop(int(self.rng.integers(0, len(self.held)))))

    def _put(self, row: Row) -> None:
        self.out.write("[\n" if self.first else ",\n")
        self.first = False
        self.out.write(row_text(row))

    def close(self) -> None:
        for row in self.held:
            self._put(row)
        self.out.write("[]\n" if self.first else "\n]\n")


def row_text(row: Row) -> str:
    """A row as json.dump with two blanks' indentation writes it."""
    asked = {"model": MODEL, "prompt": row.prompt, "max_tokens": row.max_tokens, "ignore_eos": True, "stream": True}
    times = ",\n        ".join(map(repr, row.times))
    listed = f"[\n        {times}\n      ]" if times else "[]"
    error = '{\n      "error_type": "TimeoutError",\n      "error_msg": ""\n    }' if row.failed else "null"
    return (
        f'  {{\n    "start_time": {row.start_time!r},\n    "end_time": {row.end_time!r},\n'
        f'    "request": {json.dumps(json.dumps(asked))},\n    "response": "",\n    "info": {{\n'
        f'      "input_tokens": {row.input_tokens},\n      "output_tokens": {row.output_tokens},\n'
        f'      "output_token_times": {listed}\n    }},\n    "error": {error}\n  }}'
    )


def configuration(o: Options, name: str) -> Iterator[tuple[str, str]]:
    """Path -> text of the small files. profile.yaml asks for other prompts than ran, as the published ones do."""
    _, server = offsets(o)
    seconds = arrivals(o, server).stage_seconds
    stages = [{"duration": s, "rate": r} for s, r in zip(seconds, o.rates, strict=True)]
    store = f"/workspace/data/{name}-1/results"
    yield (
        "exp-config.yaml",
        f"model: {MODEL}\ntensor_parallelism: 1\nmax_model_len: {o.max_model_len}\n"
        f"max_num_batched_tokens: {o.max_num_batched_tokens}\nmax_num_seqs: {o.max_num_seqs}\napp: inference-perf\n",
    )
    asked = {
        "api": {"streaming": True, "type": "completion"},
        "data": {
            "shared_prefix": {
                "enable_multi_turn_chat": True,
                "num_unique_system_prompts": o.groups + 1,
                "num_users_per_system_prompt": 1 + o.per_group // 2,
                "output_len": o.output_len,
                "question_len": o.question_len,
                "system_prompt_len": o.system_len,
            },
            "type": "random" if o.lognormal else "shared_prefix",
        },
        "load": {"stages": stages, "type": "constant"},
        "report": {"request_lifecycle": {"per_request": True, "per_stage": True, "summary": True}},
        "server": {"base_url": "http://192.0.2.10:8000", "ignore_eos": True, "model_name": MODEL, "type": "vllm"},
        "storage": {"local_storage": {"path": store}},
        "tokenizer": {"pretrained_model_name_or_path": MODEL},
    }
    yield "profile.yaml", json.dumps(asked, separators=(",", ":")) + "\n"
    yield "results/config.yaml", _resolved(o, stages, store)
    yield "vllm.log", _log(o)
    yield "vllm_logging.json", json.dumps(_logging(name), indent=2) + "\n"


def _resolved(o: Options, stages: list[dict[str, float]], store: str) -> str:
    listed = "".join(f"  - rate: {s['rate']!r}\n    duration: {s['duration']!r}\n" for s in stages)
    return f"""api:
  type: completion
  streaming: true
  headers: null
data:
  type: {"random" if o.lognormal else "shared_prefix"}
  path: null
  input_distribution: null
  output_distribution: null
  shared_prefix:
    num_groups: {o.groups}
    num_prompts_per_group: {o.per_group}
    system_prompt_len: {o.system_len}
    question_len: {o.question_len}
    output_len: {o.output_len}
load:
  type: constant
  interval: 1.0
  stages:
{listed}  sweep: null
  num_workers: 4
  worker_max_concurrency: 100
  worker_max_tcp_connections: 2500
  circuit_breakers: []
  request_timeout: null
metrics: null
report:
  request_lifecycle:
    summary: true
    per_stage: true
    per_request: true
  prometheus:
    summary: true
    per_stage: false
storage:
  local_storage:
    path: {store}
    report_file_prefix: null
  google_cloud_storage: null
  simple_storage_service: null
server:
  type: vllm
  model_name: {MODEL}
  base_url: http://192.0.2.10:8000
  ignore_eos: true
  api_key: null
tokenizer:
  pretrained_model_name_or_path: {MODEL}
  trust_remote_code: null
  token: null
circuit_breakers: null
"""


def _log(o: Options) -> str:
    tokens = o.blocks * BLOCK
    transfer = (
        ", kv_transfer_config=KVTransferConfig(kv_connector='OffloadingConnector', kv_role='kv_both', "
        f"kv_connector_extra_config={{'cpu_bytes_to_use': {float(o.cpu_blocks * BLOCK_BYTES)!r}}})"
    )
    said = [
        f"vllm.config.vllm: Asynchronous scheduling is {'enabled' if o.asynchronous else 'disabled'}.",
        f"vllm.v1.engine.core: Initializing a V1 LLM engine with config: model='{MODEL}', max_seq_len={o.max_model_len}, "
        "tensor_parallel_size=1, enable_prefix_caching=True, enable_chunked_prefill=True" + transfer * o.offload,
        f"vllm.v1.worker.gpu_worker: Available KV cache memory: {o.blocks * BLOCK_BYTES / 2**30:.6f} GiB",
        f"vllm.v1.core.kv_cache_utils: GPU KV cache size: {tokens:,} tokens",
        f"vllm.v1.core.kv_cache_utils: Maximum concurrency for {o.max_model_len:,} tokens per request: "
        f"{tokens / o.max_model_len:.2f}x",
    ]
    if o.offload:
        said.append(
            "vllm.v1.worker.kv_connector_model_runner_mixin: Allocating a cross layer KV cache of shape "
            f"({o.blocks}, 4, 2, 2, {BLOCK}, 64)"
        )
    return "".join(f"2025-12-31 23:59:{40 + k},{100 + k} INFO {text}\n" for k, text in enumerate(said))


def _logging(name: str) -> dict[str, object]:
    file = {"class": "logging.FileHandler", "filename": f"/mnt/exp/{name}-1/vllm.log", "level": "INFO"}
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "handlers": {"file": {**file, "formatter": "simple"}},
        "formatters": {"simple": {"format": "%(asctime)s %(levelname)s %(name)s: %(message)s"}},
        "loggers": {"vllm": {"handlers": ["file"], "level": "INFO", "propagate": False}},
    }
