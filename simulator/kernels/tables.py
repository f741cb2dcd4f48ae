"""Measured latencies of single kernels on one GPU, read from configs/kernels/NAME.parquet.

The files are written by tools/kernel_tables.py, which names the source of the measurements. Every file has its
source, version, hash, licence and copyright lines in its schema.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from simulator.common.errors import InputError, nearest

_TEXTS = {
    "operation": "gemm, decode_attention, prefill_attention, moe, allreduce, latent_decode, latent_prefill, "
    "sparse_decode, sparse_prefill, recurrent_decode, recurrent_prefill, allgather or reducescatter",
    "dtype": "of the weights (gemm, moe, latent, sparse) or the data: bf16, fp8 (one scale a tensor or channel), "
    "fp8_block, nvfp4, mxfp4, int4; the kind of recurrent layer",
    "kv": "attention: type of the KV cache, bf16 or fp8",
    "kernel": "the kernel that was timed, as the source names it",
    "routing": "moe: how tokens are spread over the experts (balanced, power_law_1.01, power_law_1.2)",
}
_NUMBERS = dict(
    line.split(": ", 1)
    for line in """\
gpus: GPUs that take part (allreduce, allgather, reducescatter) or share the experts' width (moe)
ep: moe: GPUs that share the experts
n: gemm: width of the output
k: gemm: width of the input
heads: attention heads of one GPU; value heads of recurrent layers
kv_heads: key/value heads of one GPU; key heads of recurrent layers
head_dim: width of a head
window: attention: tokens of a sliding window, 0 without
hidden: moe, latent, sparse: model width
ffn: moe: width of one expert, over all GPUs
experts: moe: routed experts, over all GPUs
active: moe: experts a token uses
batch: attention and recurrent layers: requests
tokens: gemm, moe: tokens in the batch, of all GPUs that share experts
context: attention: tokens in the KV cache of each request (decode) or in its prompt (prefill)
bytes: allreduce, allgather, reducescatter: bytes of the message""".splitlines()
)
SCHEMA = pa.schema(
    [
        *(pa.field(name, pa.string(), metadata={"meaning": text}) for name, text in _TEXTS.items()),
        *(pa.field(name, pa.int32(), metadata={"meaning": text}) for name, text in _NUMBERS.items()),
        pa.field("latency_us", pa.float32(), metadata={"meaning": "time of one call, microseconds"}),
    ]
)
KEYS = (*_TEXTS, *_NUMBERS)  # the columns that rows are sorted by


@dataclass(frozen=True)
class KernelTables:
    """The kernels of one GPU: operation -> column -> array, with rows in the order of KEYS; `about` is the source."""

    name: str
    rows: Mapping[str, Mapping[str, np.ndarray]]
    about: Mapping[str, str]


def names() -> list[str]:
    """The GPUs with tables."""
    files = resources.files("configs").joinpath("kernels").iterdir()
    return sorted(f.name.removesuffix(".parquet") for f in files if f.name.endswith(".parquet"))


@cache
def tables(name: str) -> KernelTables:
    """The tables of the GPU `name`, one of `names()`. Raises InputError for any other."""
    if name not in names():
        raise InputError(f"kernels: no measured kernels of {name!r}: {nearest(name, names())}")
    with resources.files("configs").joinpath("kernels", f"{name}.parquet").open("rb") as file:
        table = pq.ParquetFile(file).read()  # read_table would import pandas, as in _values
    about = {key.decode(): value.decode() for key, value in (table.schema.metadata or {}).items()}
    operations = _values(table["operation"])
    starts = np.flatnonzero(np.r_[True, operations[1:] != operations[:-1]])  # rows are sorted by operation
    rows = {}
    for begin, end in zip(starts, [*starts[1:], len(operations)], strict=True):
        part = table.slice(begin, end - begin)
        used = [f.name for f in table.schema if part[f.name].null_count < part.num_rows]
        rows[str(operations[begin])] = {c: _values(part[c]) for c in used}
    return KernelTables(name, rows, about)


def _values(column: pa.ChunkedArray) -> np.ndarray:
    """The values of a column without gaps. Arrow's own conversion would import pandas, which takes longer than this."""
    whole = column.combine_chunks()
    if pa.types.is_string(column.type):
        encoded = whole.dictionary_encode()  # thousands of rows have a handful of texts
        of_row: np.ndarray = np.array(encoded.dictionary.to_pylist(), dtype=object)[np.from_dlpack(encoded.indices)]
        return of_row
    return np.from_dlpack(whole)
