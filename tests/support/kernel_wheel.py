"""Pretend wheels of measured kernels: rows of a shipped table, put back into the form of the source they came from."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Mapping
from importlib import resources
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from kernel_tables import CORE, FURTHER, SYSTEMS, Part, Wheel, parts_of

DTYPES = {"bf16": "bfloat16", "int4": "int4_wo", "mxfp4": "w4a16_mxfp4"}  # any other is spelt as ours
MODELS = {("latent", 7168): "deepseek-ai/DeepSeek-V3", ("sparse", 7168): "deepseek-ai/DeepSeek-V3.2"}
MODELS |= {("sparse", 6144): "zai-org/GLM-5"}
Row = dict[str, object]


def shipped(name: str) -> pa.Table:
    """The table of a GPU as it lies in configs/kernels."""
    with resources.files("configs").joinpath("kernels", f"{name}.parquet").open("rb") as file:
        return pq.read_table(file)


def sliced(table: pa.Table, every: int) -> pa.Table:
    """Every so many rows, and all that GPUs send each other."""
    sent = [name in ("allreduce", "allgather", "reducescatter") for name in table["operation"].to_pylist()]
    return table.take(pa.array([i for i, kept in enumerate(sent) if kept or i % every == 0]))


def write_wheels(folder: Path, name: str, table: pa.Table) -> dict[Wheel, Path]:
    """The rows of a table of the GPU `name` as wheels: shuffled, in ms, with rows that must be left out.

    A table that another one goes before has the other's rows too, at twice the time.
    """
    rng = np.random.default_rng(0)
    ours = table.to_pylist()
    rows: dict[tuple[Wheel, str], list[Row]] = {}
    seen: set[int] = set()
    for part in parts_of(SYSTEMS[name]):
        mine = [i for i, row in enumerate(ours) if _has(part, row)]
        again = seen & set(mine)
        seen |= set(mine)
        if mine:  # an A100 has no products in 8 bits
            some = [_row(part, ours[i], 2.0 if i in again else 1.0) for i in mine]
            rows.setdefault((part.wheel, part.path), []).extend([*some, *_left_out(part, some[0])])
    paths = {wheel: folder / f"{wheel.package}.whl" for wheel in (CORE, FURTHER)}
    archives = {wheel: zipfile.ZipFile(path, "w") for wheel, path in paths.items()}
    for (wheel, path), some in rows.items():
        out = io.BytesIO()
        pq.write_table(pa.Table.from_pylist([some[i] for i in rng.permutation(len(some))]), out)
        archives[wheel].writestr(f"{wheel.root}/{path}.parquet", out.getvalue())
    for archive in archives.values():
        archive.close()
    return paths


def _has(part: Part, row: Mapping[str, object]) -> bool:
    """True if a row of ours may come from this table."""
    if row["operation"] != part.operation or any(row[name] != value for name, value in part.fixed.items()):
        return False
    if part.operation == "allreduce" and "kernel" not in part.fixed and row["kernel"] == "nccl":
        return False
    dtype = part.names.get("dtype", "")
    return dtype not in part.only or _dtype(part, str(row["dtype"])) in part.only[dtype]


def _dtype(part: Part, ours: str) -> str:
    if ours == "mxfp4" and "moe_dtype" in part.only:  # TensorRT-LLM's, with activations in 8 bits
        return "w4a8_mxfp4_mxfp8"
    return DTYPES.get(ours, ours)


def _row(part: Part, row: Mapping[str, object], times: float) -> Row:
    kind = part.operation.partition("_")[0]
    out: Row = {theirs: next(iter(values)) for theirs, values in part.only.items()}
    for ours, theirs in part.names.items():
        value = row[ours]
        if ours in ("dtype", "kv"):
            value = _dtype(part, str(value))
        elif theirs == "model":
            value = MODELS[kind, value]  # type: ignore[index]
        if value is not None:
            out[theirs] = value
    return out | {"latency": float(str(row["latency_us"])) / 1e3 * times}


def _left_out(part: Part, row: Row) -> list[Row]:
    """Rows that change nothing: a shape measured three times, a slower kernel, and values that are not selected."""
    us = float(str(row["latency"]))
    rows: list[Row] = [row | {"latency": us * factor} for factor in (0.5, 3.0)]
    if part.cheapest:
        rows.append(row | {"latency": us * 1.5, "kernel_source": "a slower one"})
    if part.keep:
        rows.append(row | {"latency": us / 9, "kernel_source": "one of nongated experts"})
    for column, values in part.only.items():
        other = "int8" if isinstance(next(iter(values)), str) else 77
        rows.append(row | {column: other, "latency": 1e6})
    return rows
