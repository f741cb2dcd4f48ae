"""`make kernels`: write configs/kernels/*.parquet from the pinned wheels of measured kernels.

    python tools/kernel_tables.py CORE_WHEEL FURTHER_WHEEL [--out configs/kernels] [--only h100_sxm,...]

Nothing of the wheels is imported or run: they are read as zip archives, and of these the named tables alone. The rows
that a vLLM step needs are selected, milliseconds become microseconds, latencies are rounded to four digits and the rows
sorted. The same wheels give the same bytes.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import sys
import zipfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from simulator.kernels.tables import KEYS, SCHEMA


@dataclass(frozen=True, slots=True)
class Wheel:
    """A package of PyPI and its hash; `root` is the folder of its tables."""

    package: str
    version: str
    sha256: str
    root: str


CORE = Wheel(
    "aiconfigurator-core",
    "0.12.0",
    "aadc4aad0a00bf8a61c477c62bef43de479849c3aa0b1c3078068e08309eccc4",
    "aiconfigurator_core/systems/data",
)
FURTHER = Wheel(  # for what only it has
    "aisimulate",
    "0.13.0.dev202610270000000085",
    "17dcb3be6687ebc0b6cb76c59fcd3df46212fe9c7247f1169537245002dc76b1",
    "aisimulate_core/systems/data",
)
LICENSE = "Apache-2.0"
COPYRIGHT = "Copyright (c) 2025-2026 NVIDIA CORPORATION & AFFILIATES. All rights reserved."
CHANGES = (
    "rows selected and sorted, milliseconds to microseconds, latencies rounded to four digits, those beyond twice a "
    "sibling's, of latent attention 1.2 times, replaced by it"
)
DIGITS = 4  # significant digits of a latency: the measurements repeat to about a percent
VLLM = "vllm/0.24.0"
VLLM_LATER = "vllm/0.25.0"
TRTLLM = "trtllm/1.3.0rc20"


@dataclass(frozen=True, slots=True)
class System:
    """A folder of the wheels, and the versions of its tables that are used.

    vllm: of gemm, attention and moe. later: True if the further wheel has vLLM 0.25.0 with more shapes. allreduce: of
    the custom all-reduce. experts: of the MXFP4 experts with activations in 8 bits. latent, sparse, recurrent: True
    with tables of such layers.
    """

    folder: str
    allreduce: str
    nccl: str
    vllm: str = VLLM
    later: bool = False
    experts: str = ""
    latent: bool = True
    sparse: bool = False
    recurrent: bool = True


# Of the custom all-reduce the version nearest to vLLM 0.15, which the shipped runs used. On H200 0.14.0 is twice as
# slow at 8 GPUs as on H100 and as 0.19.0. On Blackwell vLLM's own kernel has steps that neither TensorRT-LLM's nor
# SGLang's has, and the engine fuses the all-reduce with the norm in TensorRT-LLM's kernel there.
SYSTEMS = {
    "h100_sxm": System("h100_sxm", "vllm/0.14.0", "2.27.3", later=True, sparse=True),
    "h200_sxm": System("h200_sxm", "vllm/0.19.0", "2.29.2", later=True, sparse=True),
    "a100_sxm": System("a100_sxm", "vllm/0.14.0", "2.27.3", vllm="vllm/0.14.0", latent=False, recurrent=False),
    "l40s": System("l40s", "vllm/0.14.0", "2.27.3"),
    "b200_sxm": System("b200_sxm", TRTLLM, "2.29.2", later=True, experts=TRTLLM, sparse=True),
    "b300_sxm": System("b300_sxm", TRTLLM, "2.29.2", later=True, experts=TRTLLM, sparse=True),
    "gb200": System("gb200", TRTLLM, "2.29.2", later=True, experts=TRTLLM, sparse=True),
    "gb300": System("gb300", TRTLLM, "2.29.2", later=True, experts=TRTLLM, sparse=True),
    "rtx_pro_6000": System("rtx_pro_6000_server", "vllm/0.24.0", "2.29.2"),
}
DTYPES = {
    "bfloat16": "bf16",
    "half": "bf16",
    "fp8": "fp8",
    "fp8_block": "fp8_block",
    "nvfp4": "nvfp4",
    "int4_wo": "int4",
    "w4a16_mxfp4": "mxfp4",
    "w4a8_mxfp4_mxfp8": "mxfp4",
}
HEAD_DIMS = [64, 128, 192, 256, 512]
HIDDEN = {"deepseek-ai/DeepSeek-V3": 7168, "deepseek-ai/DeepSeek-V3.2": 7168, "zai-org/GLM-5": 6144}


@dataclass(frozen=True, slots=True)
class Part:
    """A table of a wheel as rows of ours.

    names: our columns by theirs. only: the values that rows may have, by their columns. fixed: our columns with one
    value. cheapest: True to take of several kernels of a shape the fastest, as the engine chooses; summed: to add them.
    """

    operation: str
    path: str
    names: Mapping[str, str]
    only: Mapping[str, Iterable[object]]
    fixed: Mapping[str, object]
    wheel: Wheel = CORE
    cheapest: bool = False
    summed: bool = False
    keep: Callable[[pa.Table], pa.ChunkedArray] | None = None


def parts_of(system: System) -> list[Part]:
    """The tables of a GPU, the ones that are believed first: a shape of a later one is only taken if none has it."""
    at, vllm = system.folder, system.vllm
    gemm = {"dtype": "gemm_dtype", "kernel": "kernel_source", "tokens": "m", "n": "n", "k": "k"}
    heads = {"heads": "num_heads", "kv_heads": "num_key_value_heads", "head_dim": "head_dim"}
    attention = {"dtype": "attn_dtype", "kv": "kv_cache_dtype", "kernel": "kernel_source", "batch": "batch_size"}
    attention |= {"window": "window_size", **heads}
    moe = {"dtype": "moe_dtype", "kernel": "kernel_source", "routing": "distribution", "tokens": "num_tokens"}
    moe |= {"hidden": "hidden_size", "ffn": "inter_size", "experts": "num_experts", "active": "topk"}
    moe |= {"gpus": "moe_tp_size", "ep": "moe_ep_size"}
    latent = {"dtype": "gemm_type", "kv": "kv_cache_dtype", "kernel": "kernel_source", "hidden": "model"}
    latent |= {"heads": "num_heads", "batch": "batch_size"}
    gemms = f"{at}/gemm/{vllm}/gemm_perf"
    decode, prefill = "generation_attention_perf", "context_attention_perf"
    parts = [
        Part("gemm", gemms, gemm, {"gemm_dtype": ["bfloat16", "fp8", "nvfp4"]}, {}),
        Part("gemm", gemms, gemm, {"gemm_dtype": ["fp8_block"]}, {}, cheapest=True),
        Part("moe", f"{at}/moe/{vllm}/moe_perf", moe, {}, {}, cheapest=True, keep=_own_experts),
    ]
    for version, wheel in ((vllm, CORE), *(((VLLM_LATER, FURTHER),) if system.later else ())):
        length, only = ({"context": "step"}, {"head_dim": HEAD_DIMS})
        parts.append(
            Part("decode_attention", f"{at}/attention/{version}/{decode}", {**attention, **length}, only, {}, wheel)
        )
        length, only = {"context": "isl"}, {"head_dim": HEAD_DIMS, "batch_size": [1]}
        parts.append(
            Part("prefill_attention", f"{at}/attention/{version}/{prefill}", {**attention, **length}, only, {}, wheel)
        )
    if system.experts:  # TensorRT-LLM's own measurements of the kernel that vLLM calls too
        only = {"moe_dtype": ["w4a8_mxfp4_mxfp8"]}
        parts.insert(2, Part("moe", f"{at}/moe/{system.experts}/moe_perf", moe, only, {}, cheapest=True))
    if system.latent:
        mla = f"{at}/mla/{VLLM}/mla"
        parts += [
            Part("latent_decode", f"{mla}_generation_module_perf", {**latent, "context": "step"}, {}, {}),
            Part("latent_prefill", f"{mla}_context_module_perf", {**latent, "context": "isl"}, {"batch_size": [1]}, {}),
        ]
    if system.sparse:
        dsa, only = f"{at}/sparse_attention/{VLLM}/dsa", {"step": [0], "batch_size": [1]}
        parts += [
            Part("sparse_decode", f"{dsa}_generation_module_perf", {**latent, "context": "step"}, {}, {}),
            Part("sparse_prefill", f"{dsa}_context_module_perf", {**latent, "context": "isl"}, only, {}),
        ]
    if system.recurrent:
        gdn = {"heads": "num_v_heads", "kv_heads": "num_k_heads", "batch": "batch_size", "context": "seq_len"}
        gdn |= {"kernel": "kernel_source"}
        for operation, phase in (("recurrent_decode", "generation"), ("recurrent_prefill", "context")):
            only = {"phase": [phase], **({"batch_size": [1]} if phase == "context" else {})}
            of_gdn = f"{at}/linear_attention/{VLLM}/gdn_perf"
            parts.append(Part(operation, of_gdn, gdn, only, {"dtype": "gdn"}, summed=True))
    reduce = {"kernel": "backend", "gpus": "num_gpus", "bytes": "message_size"}
    if not system.allreduce.startswith("vllm"):
        reduce["kernel"] = "kernel_source"
    reduces = f"{at}/comm/{system.allreduce}/custom_allreduce_perf"
    parts.append(Part("allreduce", reduces, reduce, {}, {"dtype": "bf16"}))
    names = {"gpus": "num_gpus", "bytes": "message_size"}
    for operation, theirs in (
        ("allreduce", "all_reduce"),
        ("allgather", "all_gather"),
        ("reducescatter", "reduce_scatter"),
    ):
        only = {"op_name": [theirs], "nccl_dtype": ["half"]}
        nccl = f"{at}/comm/nccl/{system.nccl}/nccl_perf"
        parts.append(Part(operation, nccl, names, only, {"dtype": "bf16", "kernel": "nccl"}))
    return parts


def _own_experts(table: pa.Table) -> pa.ChunkedArray:
    """True for kernels of gated experts."""
    return pc.invert(pc.match_substring(table["kernel_source"], "nongated"))


def converted(part: Part, table: pa.Table) -> pa.Table:
    """The selected rows in the schema of our tables. Repeated measurements of one shape become their median."""
    for name, values in part.only.items():
        if name in table.column_names:
            table = table.filter(pc.is_in(table[name], value_set=pa.array(list(values), table.schema.field(name).type)))
    if part.keep:
        table = table.filter(part.keep(table))
    columns = {ours: table[theirs] for ours, theirs in part.names.items() if theirs in table.column_names}
    columns |= {ours: pa.repeat(value, table.num_rows) for ours, value in part.fixed.items()}
    for name, words in (("dtype", DTYPES), ("kv", DTYPES), ("hidden", HIDDEN)):
        if name in columns and name not in part.fixed:
            values = columns[name].to_pylist()
            columns[name] = pa.array([words[x] if isinstance(x, str) else x for x in values])
    table = pa.table({**columns, "latency_us": table["latency"]})
    keys = [name for name in table.column_names if name != "latency_us"]
    medians = table.group_by(keys).aggregate([("latency_us", "approximate_median")])
    us = medians["latency_us_approximate_median"].to_numpy() * 1e3
    rounded = np.array([float(f"{x:.{DIGITS}g}") for x in us], np.float32)
    full = {name: medians[name] for name in keys}
    full["operation"] = pa.repeat(part.operation, len(us))
    full["latency_us"] = pa.array(rounded)
    arrays = [full.get(f.name, pa.nulls(len(us), f.type)) for f in SCHEMA]
    whole = [a.combine_chunks() if isinstance(a, pa.ChunkedArray) else a for a in arrays]
    made = pa.Table.from_arrays([a.cast(f.type) for a, f in zip(whole, SCHEMA, strict=True)], schema=SCHEMA)
    if part.summed:
        return together(made)
    return fastest(made) if part.cheapest else made


def fastest(table: pa.Table) -> pa.Table:
    """Of the rows that differ in their kernel alone, the fastest."""
    order = table.sort_by([*((key, "ascending") for key in KEYS if key != "kernel"), ("latency_us", "ascending")])
    return order.filter(pa.array(_firsts(order, [key for key in KEYS if key != "kernel"])))


def together(table: pa.Table) -> pa.Table:
    """The rows that differ in their kernel alone as one: the sum of their times, under the name of the slowest."""
    keys = [key for key in KEYS if key != "kernel"]
    order = table.sort_by([*((key, "ascending") for key in keys), ("latency_us", "descending")])
    first = _firsts(order, keys)
    sums = np.add.reduceat(order["latency_us"].to_numpy().astype(float), np.flatnonzero(first))
    rounded = np.array([float(f"{x:.{DIGITS}g}") for x in sums], np.float32)
    kept = order.filter(pa.array(first))
    return kept.set_column(kept.column_names.index("latency_us"), SCHEMA.field("latency_us"), pa.array(rounded))


def _firsts(table: pa.Table, keys: Iterable[str]) -> np.ndarray:
    """True for rows that differ from the one before in any of the keys."""
    new = np.zeros(table.num_rows, bool)
    new[:1] = True
    for key in keys:
        column = pc.fill_null(table[key], "" if pa.types.is_string(table[key].type) else -1).to_pandas().to_numpy()
        new[1:] |= column[1:] != column[:-1]
    return new


# What a later table may add: shapes that no earlier one of the operation has.
SHAPES = {
    "moe": ("dtype", "hidden", "ffn", "experts", "active", "gpus", "ep"),
    "decode_attention": ("kv", "heads", "kv_heads", "head_dim", "window"),
    "prefill_attention": ("kv", "heads", "kv_heads", "head_dim", "window"),
}


def joined(tables: Iterable[pa.Table]) -> pa.Table:
    """All rows, but of a shape only those of the first table that has it."""
    seen: dict[str, set[tuple[object, ...]]] = {}
    kept = []
    for table in tables:
        operation = table["operation"][0].as_py() if table.num_rows else ""
        if keys := SHAPES.get(operation):
            rows = list(zip(*(table[key].to_pylist() for key in keys), strict=True))
            before = seen.setdefault(operation, set())
            table = table.filter(pa.array([row not in before for row in rows]))
            before |= set(rows)
        kept.append(table)
    return pa.concat_tables(kept)


def extract(archives: Mapping[Wheel, zipfile.ZipFile], name: str) -> pa.Table:
    """All selected rows of one GPU."""

    def read(part: Part) -> pa.Table:
        path = f"{part.wheel.root}/{part.path}.parquet"
        return pq.read_table(io.BytesIO(archives[part.wheel].read(path)))

    return joined(converted(part, read(part)) for part in parts_of(SYSTEMS[name]))


# GPUs of one generation, and how much longer a kernel may take on the first than on the second: by its bandwidth.
SIBLINGS = {
    "h100_sxm": {"h200_sxm": 4.8 / 3.35},
    "h200_sxm": {"h100_sxm": 1.0},
    "b200_sxm": {"b300_sxm": 7.75 / 7.7, "gb200": 8.0 / 7.7},
    "b300_sxm": {"b200_sxm": 1.0},
    "gb200": {"gb300": 1.0, "b200_sxm": 1.0},
    "gb300": {"gb200": 1.0, "b200_sxm": 1.0},
}
MOST = 2.0  # times as long as a sibling allows: a row beyond is not believed
# Modules of latent attention are dozens of launches: on B300, GB200 and GB300 the host took most of their 85 us, on B200
# they take 49. A step launches them together.
MOST_LATENT = 1.2
LATENT = ("latent_decode", "latent_prefill", "sparse_decode", "sparse_prefill")


def judged(name: str, tables: Mapping[str, pa.Table]) -> tuple[pa.Table, Mapping[str, int]]:
    """A GPU's rows, with its sibling's time in place of those that are not believed; how many these are, by operation.

    A row that two siblings replace counts twice. NCCL is left alone: its time depends on the machine.
    """
    own = tables[name].to_pandas()
    keys = [key for key in KEYS if key != "kernel"]

    def place(table: pd.DataFrame) -> pd.MultiIndex:
        return pd.MultiIndex.from_frame(table[keys].astype(object).where(table[keys].notna(), None))

    counts: dict[str, int] = {}
    for sibling, factor in SIBLINGS.get(name, {}).items():
        other = tables[sibling].to_pandas()
        other = other[other["kernel"] != "nccl"]
        fastest_us = other.groupby(place(other))["latency_us"].min() * factor
        allowed = fastest_us.reindex(place(own)).to_numpy()
        most = np.where(own["operation"].isin(LATENT), MOST_LATENT, MOST)
        bad = (own["latency_us"].to_numpy() > most * allowed) & (own["kernel"] != "nccl").to_numpy()
        own.loc[bad, "latency_us"] = [np.float32(f"{x:.{DIGITS}g}") for x in allowed[bad]]
        own.loc[bad, "kernel"] += f", as on {sibling}"
        for operation in own.loc[bad, "operation"]:
            counts[operation] = counts.get(operation, 0) + 1
    return pa.Table.from_pandas(own, schema=SCHEMA, preserve_index=False), counts


def packed(table: pa.Table, name: str, refused: Mapping[str, int]) -> bytes:
    """The table, sorted and with its sources and licence, as the bytes of a parquet file."""
    files = {part.path: f"{part.wheel.package} {part.wheel.version}" for part in parts_of(SYSTEMS[name])}
    table = table.sort_by([(key, "ascending") for key in KEYS])
    about = {
        "source": f"PyPI packages {CORE.package} {CORE.version} and {FURTHER.package} {FURTHER.version}",
        "sha256": f"{CORE.sha256} {FURTHER.sha256}",
        "license": LICENSE,
        "copyright": COPYRIGHT,
        "changes": CHANGES,
        "gpu": name,
        "refused": ", ".join(f"{operation} {n}" for operation, n in sorted(refused.items())) or "none",
        **{f"table:{path}": wheel for path, wheel in files.items()},
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
    """Write every table. Returns the exit status: 2 if a wheel is not the pinned one."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("core", type=Path)
    parser.add_argument("further", type=Path)
    parser.add_argument("--out", type=Path, default=Path("configs/kernels"))
    parser.add_argument("--only", default=",".join(SYSTEMS))
    given = parser.parse_args(arguments)
    archives = {}
    for path, wheel in ((given.core, CORE), (given.further, FURTHER)):
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        if digest != wheel.sha256:
            print(
                f"{path}: sha256 is {digest}, not {wheel.sha256}: download {wheel.package} {wheel.version}",
                file=sys.stderr,
            )
            return 2
        archives[wheel] = zipfile.ZipFile(path)
    tables = {name: extract(archives, name) for name in SYSTEMS}
    for name in given.only.split(","):
        table, refused = judged(name, tables)
        data = packed(table, name, refused)
        (given.out / f"{name}.parquet").write_bytes(data)
        digest = hashlib.sha256(data).hexdigest()[:16]
        print(f"{given.out / name}.parquet: {len(data):,} bytes, sha256 {digest}, {sum(refused.values())} rows refused")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
