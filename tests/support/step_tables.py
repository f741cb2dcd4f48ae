"""Step tables of our own making, in both forms, and the experiments they belong to."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import yaml

from simulator.clock.fields import Active, raw_fields

PROGRAM = """
def step_time(b, s, *, base: us = 5000.0, each: us/request = 100.0):
    return base + each * b.decode_reqs
"""


def law_us(decodes: int) -> float:
    """PROGRAM's step time."""
    return 5000.0 + 100.0 * decodes


def experiment(ident: str = "plan", **more: Any) -> dict[str, Any]:
    """A prompt of 264 tokens, 64 of them shared in 3 groups of 2 prompts; answers of 120 tokens; blocks of 16."""
    return {
        "id": ident,
        "model": "meta-llama/Llama-2-7b-hf",
        "hardware": "H100",
        "workload": {
            "name": "chat",
            "stages": [{"rate": 2.0, "duration_s": 60.0}],
            "shared_prefix": {"groups": 3, "prompts_per_group": 2, "system_prompt_len": 64, "question_len": 200},
            "output_len": 120,
        },
        **more,
    }


def experiments_file(path: Path, *entries: dict[str, Any]) -> Path:
    path.write_text(yaml.safe_dump({"version": 1, "experiments": list(entries)}))
    return path


def decoding(n: int) -> list[Active]:
    return [Active(264, 264 + 3 * i, 1) for i in range(n)]


def ingested_rows(decodes: list[int], asynchronous: bool, ident: str = "plan", first: int = 0) -> list[dict[str, Any]]:
    """Steps of so many decodes each, all sampled, whose cycles are what law_us says: of the step before under async
    scheduling (of 3 decodes before the first), else of their own."""
    rows, start = [], 10**12
    for i, n in enumerate(decodes):
        rows.append(
            {
                "experiment": ident,
                "step_id": first + i,
                "sampled": True,
                "async_scheduling": asynchronous,
                "ts_start_ns": start,
                "ts_end_ns": start + 200_000,
                "duration_us": 200,
                "running_depth": n,
                "waiting_depth": 0,
                "summary_prefill_reqs": 0,
                "summary_decode_reqs": n,
                "summary_scheduled_tokens": n,
                "summary_prefill_tokens": 0,
                "summary_decode_tokens": n,
                "summary_finished": 0,
                "summary_preempted": 0,
                "kv_usage_ratio": 0.1,
                "kv_blocks_total": 1000,
                "kv_blocks_free": 1000 - 20 * n,
                "split": None,
                "evidence": "exact",
                "request_ids": ["a"],
                **raw_fields(decoding(n)),
            }
        )
        measured = (decodes[i - 1] if i else 3) if asynchronous else n
        start += round(1000 * law_us(measured))
    return rows


SUMMARY = {
    "step_id": "step.id",
    "ts_start_ns": "step.ts_start_ns",
    "ts_end_ns": "step.ts_end_ns",
    "duration_us": "step.duration_us",
    "running_depth": "queue.running_depth",
    "waiting_depth": "queue.waiting_depth",
    "summary_prefill_reqs": "batch.num_prefill_reqs",
    "summary_decode_reqs": "batch.num_decode_reqs",
    "summary_scheduled_tokens": "batch.scheduled_tokens",
    "summary_prefill_tokens": "batch.prefill_tokens",
    "summary_decode_tokens": "batch.decode_tokens",
    "summary_finished": "batch.num_finished",
    "summary_preempted": "batch.num_preempted",
    "kv_usage_ratio": "kv.usage_gpu_ratio",
    "kv_blocks_total": "kv.blocks_total_gpu",
    "kv_blocks_free": "kv.blocks_free_gpu",
    "experiment": "experiment_id",
}


def as_summaries(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The same sampled steps as vLLM's own attributes, without batches."""
    return [{new: row[old] for old, new in SUMMARY.items()} for row in rows if row["sampled"]]


def unsampled(row: dict[str, Any]) -> dict[str, Any]:
    """The step as a table has it that journeys alone tell of."""
    lost = [
        name for name in row if name.startswith(("ts_", "summary_", "kv_blocks", "kv_usage")) or name.endswith("depth")
    ]
    return row | dict.fromkeys([*lost, "duration_us", "split"]) | {"sampled": False}


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(rows), path)
    return path
