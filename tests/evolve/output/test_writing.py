"""Rows as CSV, Parquet and LaTeX: nothing is lost, and text from files steers no terminal and no spreadsheet."""

from __future__ import annotations

import csv
import os
from pathlib import Path

import pandas as pd
import pyarrow.parquet as pq
import pytest
from commands import Capsys

from evolve.output import writing
from evolve.output.columns import flag, number, several, text, whole
from evolve.output.frames import frame, write_parquet
from simulator.common.errors import InputError

COLUMNS = (
    text("name", "", paper=True),
    number("share", "of all", paper=True),
    whole("n", ""),
    flag("ok", ""),
    several("l", ""),
)
ROWS = [
    {"name": 'a,"b"\nc', "share": -0.1, "n": 3, "ok": True, "l": (1, 2)},
    {"name": "-\x1b[31m\u202e", "share": 1e-17, "l": ()},
    {"name": "\ud800"},  # a lone surrogate, as JSON may have it
]


def test_csv_keeps_every_figure_and_every_line_of_text(tmp_path: Path) -> None:
    writing.write(writing.csv_text(COLUMNS, ROWS), str(tmp_path / "a.csv"), "--csv")
    with (tmp_path / "a.csv").open(newline="") as file:
        first, second, third = csv.DictReader(file)
    assert first == {"name": 'a,"b"\nc', "share": "-0.1", "n": "3", "ok": "True", "l": "1; 2"}
    assert second == {"name": "'-\x1b[31m\u202e", "share": "1e-17", "n": "", "ok": "", "l": ""}
    assert third["name"] == r"\ud800"


def test_control_characters_are_visible_on_standard_output(capsys: Capsys) -> None:
    for rendered in (writing.csv_text, writing.latex_text):
        writing.write(rendered(COLUMNS, ROWS), "-", "")
        out = capsys.readouterr().out
        assert "\x1b" not in out and "\u202e" not in out and "x1b" in out and out.endswith("\n")


def test_parquet_keeps_types_lists_and_text(tmp_path: Path) -> None:
    made = frame(COLUMNS, ROWS)
    write_parquet(COLUMNS, ROWS, str(tmp_path / "a.parquet"))
    read = pd.read_parquet(tmp_path / "a.parquet")
    assert list(read["name"]) == [ROWS[0]["name"], ROWS[1]["name"], r"\ud800"]
    assert list(read["share"][:2]) == [-0.1, 1e-17] and read["share"].isna()[2]
    assert [str(read[name].dtype) for name in ("n", "ok")] == ["Int64", "boolean"]
    assert [list(ids) for ids in read["l"][:2]] == [[1, 2], []]
    assert made["name"][2] == "\ud800"  # a frame keeps text as it is
    schema = pq.read_schema(tmp_path / "a.parquet")
    assert schema.field("share").metadata == {b"meaning": b"of all", b"unit": b""}


def test_latex_has_the_columns_of_a_paper_and_no_markup_of_others() -> None:
    made = writing.latex_text(COLUMNS, [{"name": r"50 % & \input{x} _$", "share": 1234.5678}])
    rows = [line for line in made.splitlines() if line.endswith(r"\\")]
    assert rows == [r"name & share \\", r"50 \% \& \textbackslash input\{x\} \_\$ & 1235 \\"]


def test_a_file_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    file = tmp_path / "no" / "a"
    with pytest.raises(InputError, match=f"{file}: cannot be written .*choose another --latex"):
        writing.write("", str(file), "--latex")
    with pytest.raises(InputError, match=f"{file}: cannot be written .*choose another --parquet"):
        write_parquet(COLUMNS, ROWS, str(file))


def test_a_table_replaces_a_file_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the new one cannot be finished, the old one stays."""
    file = tmp_path / "a.parquet"
    write_parquet(COLUMNS, ROWS, str(file))
    before = file.read_bytes()
    monkeypatch.setattr(os, "replace", lambda *paths: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    with pytest.raises(InputError, match="No space left on device"):
        write_parquet(COLUMNS, ROWS, str(file))
    assert file.read_bytes() == before and list(tmp_path.iterdir()) == [file]
