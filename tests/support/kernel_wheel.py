"""A pretend wheel of measured kernels: rows of a shipped table, put back into the form of the source they came from."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Mapping
from importlib import resources
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from kernel_tables import SYSTEMS, files_of

# Our columns under the source's names, per table of the source.
NAMES = {
    "gemm": {"dtype": "gemm_dtype", "kernel": "kernel_source", "tokens": "m", "n": "n", "k": "k"},
    "decode_attention": {
        "dtype": "attn_dtype",
        "kernel": "kernel_source",
        "batch": "batch_size",
        "context": "step",
        "heads": "num_heads",
        "kv_heads": "num_key_value_heads",
        "head_dim": "head_dim",
    },
    "prefill_attention": {
        "dtype": "attn_dtype",
        "kernel": "kernel_source",
        "batch": "batch_size",
        "context": "isl",
        "heads": "num_heads",
        "kv_heads": "num_key_value_heads",
        "head_dim": "head_dim",
    },
    "moe": {
        "dtype": "moe_dtype",
        "kernel": "kernel_source",
        "routing": "distribution",
        "tokens": "num_tokens",
        "hidden": "hidden_size",
        "ffn": "inter_size",
        "experts": "num_experts",
        "active": "topk",
        "gpus": "moe_tp_size",
    },
    "allreduce": {"dtype": "allreduce_dtype", "kernel": "backend", "gpus": "num_gpus", "bytes": "message_size"},
    "nccl": {"dtype": "nccl_dtype", "kernel": "kernel_source", "gpus": "num_gpus", "bytes": "message_size"},
}
DTYPES = {"bf16": "bfloat16", "fp8": "fp8", "fp8_block": "fp8_block"}
# What the source says of a row and our tables do not.
OTHERS: dict[str, dict[str, object]] = {
    "gemm": {},
    "decode_attention": {"kv_cache_dtype": "bfloat16", "window_size": 0},
    "prefill_attention": {"kv_cache_dtype": "bfloat16", "window_size": 0},
    "moe": {"moe_ep_size": 1},
    "allreduce": {},
    "nccl": {"op_name": "all_reduce"},
}
# Rows of the source that must be left out: what is changed of the first row of the table.
DROPPED: dict[str, list[dict[str, object]]] = {
    "gemm": [{"gemm_dtype": "fp8_block"}, {"gemm_dtype": "int8"}],
    "decode_attention": [{"kv_cache_dtype": "fp8"}, {"window_size": 128}, {"head_dim": 512}],
    "prefill_attention": [{"kv_cache_dtype": "fp8"}, {"window_size": 1024}, {"head_dim": 192}, {"batch_size": 2}],
    "moe": [{"moe_ep_size": 2}, {"moe_dtype": "int4_wo"}, {"moe_dtype": "fp8_block", "kernel_source": "other"}],
    "allreduce": [],
    "nccl": [{"op_name": "all_gather"}, {"nccl_dtype": "int8"}],
}


def shipped(name: str) -> pa.Table:
    """The table of a GPU as it lies in configs/kernels."""
    with resources.files("configs").joinpath("kernels", f"{name}.parquet").open("rb") as file:
        return pq.read_table(file)


def sliced(table: pa.Table, every: int) -> pa.Table:
    """Every so many rows, some of each operation and of NCCL."""
    return table.take(pa.array(range(0, table.num_rows, every)))


def write_wheel(path: Path, name: str, table: pa.Table) -> None:
    """The rows of a table of the GPU `name` as a wheel: shuffled, in ms, with rows that must be left out."""
    rng = np.random.default_rng(0)
    with zipfile.ZipFile(path, "w") as archive:
        for operation, file in files_of(SYSTEMS[name]).items():
            data = _source(operation, table)
            data = data.take(pa.array(rng.permutation(data.num_rows)))
            out = io.BytesIO()
            pq.write_table(data, out)
            archive.writestr(file, out.getvalue())


def _source(operation: str, table: pa.Table) -> pa.Table:
    nccl = pc.equal(table["kernel"], "nccl")
    mine = pc.equal(table["operation"], "allreduce" if operation == "nccl" else operation)
    mine = pc.and_(mine, nccl if operation == "nccl" else pc.invert(nccl))
    ours = table.filter(mine).to_pylist()
    assert ours, operation
    rows = [_row(operation, row) for row in ours]
    rows += [rows[0] | changed | {"latency": 1e6} for changed in DROPPED[operation]]
    # one shape is measured three times: its median is what the slice has
    rows += [rows[0] | {"latency": rows[0]["latency"] * factor} for factor in (0.5, 3.0)]  # type: ignore[operator]
    return pa.Table.from_pylist(rows)


def _row(operation: str, row: Mapping[str, object]) -> dict[str, object]:
    names = NAMES[operation]
    out = {theirs: row[ours] for ours, theirs in names.items()}
    dtype = str(row["dtype"])
    out[names["dtype"]] = "half" if operation == "nccl" else DTYPES[dtype]
    if operation == "nccl":
        out["kernel_source"] = "NCCL"
    return out | OTHERS[operation] | {"latency": float(str(row["latency_us"])) / 1e3}
