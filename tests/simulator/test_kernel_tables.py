"""Measured kernels: how the tables are made from their source, what the shipped ones hold, and how curves are read."""

from __future__ import annotations

import hashlib
import math
import zipfile
from dataclasses import replace
from importlib import resources
from itertools import pairwise
from pathlib import Path

import kernel_tables
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kernel_tables import (
    CORE,
    FURTHER,
    SYSTEMS,
    Part,
    converted,
    fastest,
    joined,
    judged,
    packed,
    parts_of,
    together,
)
from kernel_wheel import shipped, sliced, write_wheels
from plain_curve import plain_curve, plain_knots

from simulator.common.errors import InputError
from simulator.common.knots import curve, knots
from simulator.kernels.attention import prefill_rows
from simulator.kernels.matrices import gemm_rows
from simulator.kernels.recurrent import rows as recurrent_rows
from simulator.kernels.tables import KEYS, SCHEMA, names, tables

MOST_BYTES = 2e6  # of a table, so that the package stays small

# How they are made

PRODUCTS = {"dtype": "gemm_dtype", "kernel": "kernel_source", "tokens": "m", "n": "n", "k": "k"}
PRODUCT = Part("gemm", "", PRODUCTS, {"gemm_dtype": ["bfloat16", "fp8", "fp8_block"]}, {})


def theirs(*rows: tuple[str, str, int, float]) -> pa.Table:
    """Matrix products of 64 x 32 in the source's form: type, kernel, tokens, milliseconds."""
    return pa.Table.from_pylist(
        [{"gemm_dtype": t, "kernel_source": name, "m": m, "n": 64, "k": 32, "latency": ms} for t, name, m, ms in rows]
    )


def said(table: pa.Table, *columns: str) -> list[tuple[object, ...]]:
    return sorted(zip(*(table[name].to_pylist() for name in columns), strict=True))


def test_repeats_are_their_median_in_microseconds() -> None:
    """Of four digits; a type that is not asked for is left out."""
    rows = [("bfloat16", "cublas", 8, ms) for ms in (0.009, 0.00512345, 0.001)]
    made = converted(PRODUCT, theirs(*rows, ("bfloat16", "cublas", 16, 0.25), ("int8", "cublas", 8, 0.001)))
    assert made.schema.equals(SCHEMA, check_metadata=False)
    assert said(made, "tokens", "latency_us") == [(8, np.float32(5.123)), (16, 250.0)]
    assert said(made, "operation", "dtype", "n", "k") == [("gemm", "bf16", 64, 32)] * 2
    assert made["heads"].null_count == 2


def test_of_several_kernels_the_fastest_is_taken() -> None:
    """Of each shape on its own, if the engine chooses so."""
    table = theirs(
        ("fp8_block", "triton", 8, 0.005),
        ("fp8_block", "deepgemm", 8, 0.004),
        ("fp8_block", "triton", 16, 0.006),
        ("fp8_block", "deepgemm", 16, 0.007),
    )
    every = converted(PRODUCT, table)
    assert every.num_rows == 4
    chosen = [(8, "deepgemm", 4.0), (16, "triton", 6.0)]
    for made in (converted(replace(PRODUCT, cheapest=True), table), fastest(every)):
        assert said(made, "tokens", "kernel", "latency_us") == chosen


NAMES = """
    bfloat16 bf16, half bf16, fp8 fp8, fp8_block fp8_block, nvfp4 nvfp4, int4_wo int4, w4a16_mxfp4 mxfp4,
    w4a8_mxfp4_mxfp8 mxfp4
"""


@pytest.mark.parametrize("pair", NAMES.strip().split(","))
def test_names_of_types(pair: str) -> None:
    source, ours = pair.split()
    made = converted(replace(PRODUCT, only={}), theirs((source, "any", 8, 0.005)))
    assert made["dtype"].to_pylist() == [ours]


def test_a_type_of_no_name_is_an_error() -> None:
    with pytest.raises(KeyError, match="int3"):
        converted(replace(PRODUCT, only={}), theirs(("int3", "any", 8, 0.005)))


def test_the_first_table_of_a_shape_wins() -> None:
    """Experts have their shape without tokens and routing: all their rows are of one table."""
    columns = {"dtype": "moe_dtype", "kernel": "kernel_source", "routing": "distribution", "tokens": "num_tokens"}
    columns |= {"hidden": "h", "ffn": "f", "experts": "e", "active": "a", "gpus": "tp", "ep": "ep"}

    def of(ffn: int, tokens: int, kernel: str) -> dict[str, object]:
        routed = {"moe_dtype": "fp8", "kernel_source": kernel, "distribution": "balanced", "num_tokens": tokens}
        return routed | {"h": 512, "f": ffn, "e": 8, "a": 2, "tp": 1, "ep": 1, "latency": 0.01}

    part = Part("moe", "", columns, {}, {})
    first = converted(part, pa.Table.from_pylist([of(64, 1, "first"), of(64, 2, "first")]))
    later = converted(part, pa.Table.from_pylist([of(64, 4, "later"), of(96, 4, "later")]))
    assert said(joined([first, later]), "ffn", "tokens", "kernel") == [
        (64, 1, "first"),
        (64, 2, "first"),
        (96, 4, "later"),
    ]
    product = converted(PRODUCT, theirs(("fp8", "any", 8, 0.005)))
    assert joined([product, first, product.slice(1), product]).num_rows == 4  # products have no such rule


def test_kernels_of_one_operation_are_added() -> None:
    """Under the name of the slowest, each shape on its own."""
    table = theirs(("fp8", "norm", 8, 0.002), ("fp8", "state", 8, 0.005), ("fp8", "norm", 16, 0.003))
    for made in (converted(replace(PRODUCT, summed=True), table), together(converted(PRODUCT, table))):
        assert said(made, "tokens", "kernel", "latency_us") == [(8, "state", 7.0), (16, "norm", 3.0)]
        assert made.schema.equals(SCHEMA, check_metadata=False)


def test_rows_beyond_twice_a_siblings_are_replaced_by_it() -> None:
    """A bound by bandwidth takes 4.8 / 3.35 times as long on an H100 as on an H200, so 14.33 us for 10."""
    sent = {"operation": "allreduce", "dtype": "bf16", "kernel": "nccl", "gpus": 8, "bytes": 1024}

    def of(nccl_us: float, *rows: tuple[str, str, int, float]) -> pa.Table:
        reduces = pa.Table.from_pylist([sent | {"latency_us": nccl_us}], schema=SCHEMA)
        return pa.concat_tables([converted(PRODUCT, theirs(*rows)), reduces])

    given = {
        "h100_sxm": of(90.0, ("fp8", "a", 8, 0.030), ("fp8", "a", 16, 0.028), ("fp8", "a", 32, 0.5)),
        "h200_sxm": of(10.0, ("fp8", "b", 8, 0.010), ("fp8", "c", 8, 0.040), ("fp8", "b", 16, 0.010)),
        "l40s": of(10.0, ("fp8", "a", 8, 9.0)),
    }
    made, counts = judged("h100_sxm", given)
    products = made.filter(pc.equal(made["operation"], "gemm"))
    other = "a, as on h200_sxm"
    assert said(products, "tokens", "kernel", "latency_us") == [
        (8, other, np.float32(14.33)),
        (16, "a", 28.0),
        (32, "a", 500.0),
    ]
    assert counts == {"gemm": 1} and made.num_rows == 4 and 90.0 in made["latency_us"].to_pylist()
    made, counts = judged("h200_sxm", given)  # the first is within twice 30 us
    assert counts == {} and made.equals(given["h200_sxm"])
    assert judged("l40s", given) == (given["l40s"], {})


def refused(name: str) -> dict[str, int]:
    """How many rows of an operation are a sibling's, as a shipped table says."""
    pairs = [pair.rsplit(" ", 1) for pair in tables(name).about["refused"].split(", ") if pair != "none"]
    return {operation: int(n) for operation, n in pairs}


@pytest.mark.parametrize(("name", "every"), [("a100_sxm", 53), ("h100_sxm", 59), ("b200_sxm", 101)])
def test_wheels_give_back_the_rows_they_were_made_from(name: str, every: int, tmp_path: Path) -> None:
    """Shuffled, in milliseconds, under the source's names, with repeated measurements and rows that are left out."""
    part = sliced(shipped(name), every)
    archives = {wheel: zipfile.ZipFile(path) for wheel, path in write_wheels(tmp_path, name, part).items()}
    made = packed(kernel_tables.extract(archives, name), name, {})
    assert made == packed(part, name, {})
    assert made != packed(part.slice(1), name, {})


OTHERS = [pytest.param(name, marks=pytest.mark.slow) for name in sorted(SYSTEMS) if name != "a100_sxm"]


@pytest.mark.parametrize("name", ["a100_sxm", *OTHERS])
def test_packing_a_shipped_table_again_changes_nothing(name: str) -> None:
    """So the files are those of this code and of the locked pyarrow, whoever writes them."""
    assert names() == sorted(SYSTEMS)
    file = resources.files("configs").joinpath("kernels", f"{name}.parquet").read_bytes()
    assert packed(shipped(name), name, refused(name)) == file


def test_only_the_pinned_wheels_are_taken(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    out.mkdir()
    part = sliced(shipped("a100_sxm"), 53)
    wheels = write_wheels(tmp_path, "a100_sxm", part)
    given = [*map(str, wheels.values()), "--out", str(out), "--only", "a100_sxm"]
    digests = [hashlib.sha256(path.read_bytes()).hexdigest() for path in wheels.values()]
    assert kernel_tables.main(given) == 2
    printed = capsys.readouterr()
    refused = f"{given[0]}: sha256 is {digests[0]}, not {CORE.sha256}: download"
    assert printed.out == "" and printed.err.startswith(refused)
    assert list(out.iterdir()) == []
    for name, wheel, digest in zip(("CORE", "FURTHER"), (CORE, FURTHER), digests, strict=True):
        monkeypatch.setattr(kernel_tables, name, replace(wheel, sha256=digest))
    monkeypatch.setattr(kernel_tables, "extract", lambda archives, name: part)
    assert kernel_tables.main(given) == 0
    data = (out / "a100_sxm.parquet").read_bytes()
    assert hashlib.sha256(data).hexdigest()[:16] in capsys.readouterr().out


# What the shipped ones hold

OPERATIONS = ("gemm", "decode_attention", "prefill_attention", "moe", "allreduce", "allgather", "reducescatter")
RECURRENT = ("recurrent_decode", "recurrent_prefill")
LATENT, SPARSE = ("latent_decode", "latent_prefill"), ("sparse_decode", "sparse_prefill")
HOPPER, BLACKWELL = ("bf16", "fp8", "fp8_block"), ("bf16", "fp8", "fp8_block", "nvfp4")
LINEAR = {"a100_sxm": ("bf16",), "h100_sxm": HOPPER, "h200_sxm": HOPPER, "l40s": HOPPER}  # types of linear layers
NO_SPARSE = ("l40s", "rtx_pro_6000")


@pytest.mark.parametrize("name", sorted(SYSTEMS))
def test_a_shipped_table(name: str) -> None:
    table, found = shipped(name), tables(name)
    assert table.schema.equals(SCHEMA, check_metadata=False)
    assert [f.metadata for f in table.schema] == [f.metadata for f in SCHEMA]
    assert resources.files("configs").joinpath("kernels", f"{name}.parquet").stat().st_size <= MOST_BYTES  # type: ignore[attr-defined]
    about = found.about
    assert about["gpu"] == name and about["license"] == "Apache-2.0"
    assert about["source"].endswith("aiconfigurator-core 0.12.0 and aisimulate 0.13.0.dev202610270000000085")
    hashes = about["sha256"].split()
    assert hashes == [CORE.sha256, FURTHER.sha256] and all(len(bytes.fromhex(digest)) == 32 for digest in hashes)
    assert about["copyright"].startswith("Copyright (c) 2025-2026 NVIDIA")
    assert "milliseconds to microseconds" in about["changes"]
    parts = {part.path: f"{part.wheel.package} {part.wheel.version}" for part in parts_of(SYSTEMS[name])}
    assert {key.removeprefix("table:"): about[key] for key in about if key.startswith("table:")} == parts
    assert sum(refused(name).values()) == sum(kernel.count(", as on ") for kernel in table["kernel"].to_pylist())
    modules = (*RECURRENT, *LATENT, *(() if name in NO_SPARSE else SPARSE)) if name != "a100_sxm" else ()
    assert set(found.rows) == {*OPERATIONS, *modules}
    for rows in found.rows.values():
        assert np.isfinite(rows["latency_us"]).all() and (rows["latency_us"] > 0.0).all()
    assert table.equals(table.sort_by([(key, "ascending") for key in KEYS]))  # operations are one stretch
    assert table.group_by(list(KEYS)).aggregate([]).num_rows == table.num_rows  # no shape twice
    assert set(found.rows["gemm"]["dtype"]) == set(LINEAR.get(name, BLACKWELL))
    gpus = {2, 4} if name in ("gb200", "gb300") else {2, 4, 8}
    assert set(found.rows["allgather"]["gpus"].tolist()) == gpus


def test_an_unknown_gpu_is_named() -> None:
    with pytest.raises(InputError, match="no measured kernels of 'h100_smx': did you mean 'h100_sxm'"):
        tables("h100_smx")


@pytest.mark.parametrize("name", sorted(SYSTEMS))
def test_rows_of_a_shape_are_in_order_whatever_their_kernels(name: str) -> None:
    """As they are read: in the files, rows of several kernels are apart."""
    curves = [(columns[0], columns[1]) for columns, _ in prefill_rows(name).values()]
    for operation in ("recurrent_decode", "recurrent_prefill"):
        curves += [columns for columns, _ in (recurrent_rows(name, operation) if name != "a100_sxm" else {}).values()]
    curves += gemm_rows(name, "bf16")[0].values()
    assert len(curves) > 100 and all((np.diff(at) > 0.0).all() for at, _ in curves)


# How curves are read


def read(values: list[float], x: float) -> float:
    return float(curve(np.array([-1.0, float(len(values)), *values]), 1, x))


def test_knots_are_eight_to_an_octave() -> None:
    assert knots(2).tolist() == [1 + i / 8 for i in range(8)] + [2 + i / 4 for i in range(9)]
    assert knots(17).tolist() == plain_knots(17) and len(knots(14)) == 113


def test_a_curve_by_hand() -> None:
    values = [float(i * i) for i in range(17)]  # knots of two octaves, 1 to 4
    assert [read(values, x) for x in knots(2)] == values
    assert read(values, 2.125) == (64 + 81) / 2  # halfway between the knots 2 and 2.25
    assert read(values, 3.0625) == 144 + 0.25 * (169 - 144)
    assert [read(values, x) for x in (0.0, 0.99, -5.0, -math.inf)] == [0.0] * 4  # the first value
    assert read(values, 4.5) == 256 + 2 * (256 - 225)  # the last line has 31 for a quarter of a token
    assert read(values, 1e6) == 256 + (1e6 - 4) * 4 * 31
    assert math.isnan(read(values, math.nan))
    # too large for a count: a large number of the same sign, and never NaN, not on a flat line either
    assert 1e18 < read(values, 1e300) == read(values, math.inf) < math.inf
    assert read([7.0] * 17, math.inf) == 7.0


@given(
    st.integers(1, 4).flatmap(lambda n: st.lists(st.floats(0.0, 1e9), min_size=8 * n + 1, max_size=8 * n + 1)),
    st.one_of(st.integers(0, 40).map(float), st.floats(-10.0, 1e9), st.sampled_from([2.0**i for i in range(-3, 50)])),
)
def test_a_curve_equals_the_plain_one(values: list[float], x: float) -> None:
    assert read(values, x) == plain_curve(values, x)


@given(st.lists(st.floats(0.0, 1e6), min_size=113, max_size=113), st.lists(st.floats(0.0, 1e5), min_size=2, max_size=9))
def test_a_curve_through_rising_values_never_falls(values: list[float], at: list[float]) -> None:
    rising = sorted(values)
    found = [read(rising, x) for x in sorted(at)]
    assert all(a <= b * (1 + 1e-15) for a, b in pairwise(found))
