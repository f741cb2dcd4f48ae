"""Measured kernels: how the tables are made from their source, what the shipped ones hold, and how curves are read."""

from __future__ import annotations

import hashlib
import math
from importlib import resources
from itertools import pairwise
from pathlib import Path

import kernel_tables
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kernel_tables import SYSTEMS, files_of, packed
from kernel_wheel import shipped, sliced, write_wheel
from plain_curve import plain_curve, plain_knots

from simulator.common.errors import InputError
from simulator.common.knots import curve, knots
from simulator.kernels.tables import KEYS, SCHEMA, names, tables

MOST_BYTES = 8e6  # of all tables, so that the package stays small


@pytest.mark.parametrize(("name", "every"), [("h100_sxm", 59), ("b200_sxm", 53), ("a100_sxm", 53)])
def test_a_wheel_gives_back_the_rows_that_it_was_made_from(name: str, every: int, tmp_path: Path) -> None:
    """Shuffled, in milliseconds, under the source's names, with repeated measurements and rows that are left out."""
    part = sliced(shipped(name), every)
    wheel = tmp_path / "some.whl"
    write_wheel(wheel, name, part)
    made = kernel_tables.extract(wheel, name)
    assert made == packed(part, name, files_of(SYSTEMS[name]))
    assert made == kernel_tables.extract(wheel, name)
    assert made != packed(part.slice(1), name, files_of(SYSTEMS[name]))


OTHERS = [pytest.param(name, marks=pytest.mark.slow) for name in sorted(SYSTEMS) if name != "a100_sxm"]


@pytest.mark.parametrize("name", ["a100_sxm", *OTHERS])
def test_packing_a_shipped_table_again_changes_nothing(name: str) -> None:
    """So the files are those of this code and of the locked pyarrow, whoever writes them."""
    assert names() == sorted(SYSTEMS)
    file = resources.files("configs").joinpath("kernels", f"{name}.parquet").read_bytes()
    assert packed(shipped(name), name, files_of(SYSTEMS[name])) == file


def test_only_the_pinned_wheel_is_taken(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel, out = tmp_path / "some.whl", tmp_path / "out"
    out.mkdir()
    part = sliced(shipped("a100_sxm"), 53)
    write_wheel(wheel, "a100_sxm", part)
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    assert kernel_tables.main([str(wheel), "--out", str(out)]) == 2
    said = capsys.readouterr()
    assert said.out == "" and said.err.startswith(f"{wheel}: sha256 is {digest}, not {kernel_tables.SHA256}: download")
    assert list(out.iterdir()) == []
    monkeypatch.setattr(kernel_tables, "SHA256", digest)
    monkeypatch.setattr(kernel_tables, "SYSTEMS", {"a100_sxm": SYSTEMS["a100_sxm"]})
    assert kernel_tables.main([str(wheel), "--out", str(out)]) == 0
    data = (out / "a100_sxm.parquet").read_bytes()
    assert data == packed(part, "a100_sxm", files_of(SYSTEMS["a100_sxm"]))
    assert hashlib.sha256(data).hexdigest()[:16] in capsys.readouterr().out


@pytest.mark.parametrize("name", sorted(SYSTEMS))
def test_a_shipped_table(name: str) -> None:
    table, found = shipped(name), tables(name)
    assert table.schema.equals(SCHEMA, check_metadata=False)
    assert [f.metadata for f in table.schema] == [f.metadata for f in SCHEMA]
    about = found.about
    assert about["source"] == "PyPI package aiconfigurator-core 0.12.0" and about["gpu"] == name
    assert about["sha256"] == "aadc4aad0a00bf8a61c477c62bef43de479849c3aa0b1c3078068e08309eccc4"
    assert about["license"] == "Apache-2.0" and about["copyright"].startswith("Copyright (c) 2025-2026 NVIDIA")
    assert "milliseconds to microseconds" in about["changes"]
    assert all(f"/{SYSTEMS[name].folder}/" in about[f"table:{operation}"] for operation in files_of(SYSTEMS[name]))
    assert set(found.rows) == {"gemm", "decode_attention", "prefill_attention", "moe", "allreduce"}
    for rows in found.rows.values():
        assert np.isfinite(rows["latency_us"]).all() and (rows["latency_us"] > 0.0).all()
    assert table.equals(table.sort_by([(key, "ascending") for key in KEYS]))  # operations are one stretch
    assert table.group_by(list(KEYS)).aggregate([]).num_rows == table.num_rows  # no shape twice
    assert set(found.rows["gemm"]["dtype"]) == ({"bf16"} if name == "a100_sxm" else {"bf16", "fp8"})
    assert set(found.rows["allreduce"]["gpus"].tolist()) == {2, 4, 8}


def test_an_unknown_gpu_is_named() -> None:
    with pytest.raises(InputError, match="no measured kernels of 'h100_smx': did you mean 'h100_sxm'"):
        tables("h100_smx")


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
