"""Traces of tests: small files in every format, and the experiments that name them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from simulator.common.errors import InputError
from simulator.serving.bundled import experiments_from_mapping
from simulator.serving.experiment import Experiment
from simulator.serving.trace import Requests, Trace
from simulator.serving.traces.read import files_beside, read_trace

HEAD = "arrival_s,input_len,output_len"
AZURE = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:17:03.9799600,4808,10
2023-11-16 18:17:04.0319600,3180,8
2023-11-16 18:17:04.0789600,110,27
"""
BURSTGPT = """Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type
5,ChatGPT,472,18,490,Conversation log
45,ChatGPT,1087,0,1087,API log
118,GPT-4,417,276,693,Conversation log
"""
MOONCAKE = [
    {"timestamp": 0, "input_length": 1300, "output_length": 5, "hash_ids": [0, 1, 2]},
    {"timestamp": 3000, "input_length": 1400, "output_length": 4, "hash_ids": [0, 1, 3]},
    {"timestamp": 6000, "input_length": 600, "output_length": 3, "hash_ids": [0, 4]},
]
BAILIAN = [
    {"chat_id": 1, "parent_chat_id": -1, "turn": 1, "timestamp": 0.0, "input_length": 20, "output_length": 5}
    | {"hash_ids": [0, 1]},
    {"chat_id": 2, "parent_chat_id": 1, "turn": 2, "timestamp": 1.5, "input_length": 33, "output_length": 4}
    | {"hash_ids": [0, 2, 3]},
]
BENCHMARK: dict[str, Any] = {
    **{"date": "20260101-000000", "backend": "vllm", "request_rate": "inf", "completed": 2},
    **{"input_lens": [512, 640, 30], "output_lens": [2, 3, 0], "ttfts": [0.041, 0.038, 0.0]},
    **{"itls": [[0.012], [0.012, 0.013], []], "start_times": [881.5, 881.9, 882.0]},
}


def lines(rows: Sequence[Mapping[str, Any]]) -> str:
    """JSON lines."""
    return "".join(json.dumps(row) + "\n" for row in rows)


def written(folder: Path, name: str, content: object) -> Path:
    """A file: of bytes or text as they are, of columns as parquet, of other values as JSON."""
    path = folder / name
    match content:
        case bytes():
            path.write_bytes(content)
        case str():
            path.write_text(content)
        case dict() if path.suffix == ".parquet":
            pq.write_table(pa.table(content), path)
        case _:
            path.write_text(json.dumps(content))
    return path


def trace_of(folder: Path, name: str, content: object, **windows: Any) -> Trace:
    """The trace in a file that is written for it."""
    return read_trace(written(folder, name, content), name, **windows)


def complaint(folder: Path, name: str, content: object) -> str:
    """What is wrong with a file, in one line, without the folder."""
    with pytest.raises(InputError) as caught:
        trace_of(folder, name, content)
    message = str(caught.value)
    assert "\n" not in message and message.startswith(str(folder / name)), message
    return message.removeprefix(f"{folder}/")


def columns(requests: Requests) -> dict[str, Any]:
    """The requests as the columns of a trace; prompts and prefixes by number."""
    r = requests
    table = {"arrival_s": r.arrival_us / 1e6, "input_len": r.input_len, "output_len": r.output_len}
    table |= {"prompt": r.prompt, "prefix_group": r.group, "prefix_len": r.shared_len, "stage": r.stage}
    if r.deadline_us.any():
        table["timeout_s"] = (r.deadline_us - r.arrival_us) / 1e6
    return table


def csv(table: Mapping[str, Any]) -> str:
    """Columns as CSV. Numbers are written so that they are read back as they are."""
    rows = zip(*(column.tolist() for column in table.values()), strict=True)
    return "\n".join([",".join(table), *(",".join(map(repr, row)) for row in rows), ""])


def experiment(folder: Path, workload: Mapping[str, Any], **more: Any) -> Experiment:
    """The experiment of an experiments file in `folder` with this load."""
    entry = {"id": "x", "model": "llama-2-7b", "hardware": "H100", "workload": {"name": "w", **workload}}
    entry |= {"engine": {"max_num_seqs": 128, "max_num_batched_tokens": 2048}, **more}
    raw = {"version": 1, "experiments": [entry]}
    (one,) = experiments_from_mapping(raw, "my.yaml", files_beside(folder / "my.yaml"))
    return one
