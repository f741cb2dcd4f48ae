"""Files read within their limits; numbers in YAML: those of YAML 1.2, as in JSON, and texts that look like one."""

from __future__ import annotations

import json
import tracemalloc
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
import yaml
from commands import evolve, refused
from examples import daily
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.common.documents import parse_yaml, read_bytes, yaml_text
from simulator.common.errors import InputError
from simulator.serving.bundled import load_experiments

PRINTABLE = st.text(max_size=6).filter(str.isprintable)
PLAN = """version: 1
experiments:
- {{id: {id}, model: llama-3.1-8b, hardware: H100,
   workload: {{name: w, stages: [{{rate: {rate}, duration_s: 60}}], prompt_len: {prompt}, output_len: 9}}}}
"""


def value(text: str) -> Any:
    return parse_yaml(f"x: {text}".encode(), "f.yaml", "write it")["x"]


@given(st.floats(allow_nan=False, allow_infinity=False) | st.integers())
def test_numbers_of_json_are_numbers_of_yaml(number: float) -> None:
    read = value(json.dumps(number))
    assert read == number and type(read) is type(number)


@pytest.mark.parametrize(
    ("text", "read"),
    [
        *(("2e0", 2.0), ("1E+3", 1000.0), ("5e-05", 5e-5), ("-1.5e2", -150.0), (".5", 0.5), ("1.", 1.0)),
        *(("1_000", 1000), ("0x1F", 31), ("0b11", 3), ("-0", 0), (".inf", float("inf"))),
        *((text, text) for text in ("0144", "08", "1:40", "1:40.5", "1e3x", "1.2.3", "e3", "1e")),
    ],
)
def test_what_looks_like_a_number(text: str, read: object) -> None:
    assert value(text) == read and type(value(text)) is type(read)


@pytest.mark.parametrize("path", sorted(Path(str(resources.files("configs"))).glob("*.yaml")), ids=str)
def test_shipped_files_are_read_as_ever(path: Path) -> None:
    """As PyYAML reads them, which follows YAML 1.1."""
    assert parse_yaml(path.read_bytes(), path.name, "") == yaml.safe_load(path.read_bytes())


@settings(max_examples=daily(20))
@given(st.lists(st.from_regex(r"\A[-+]?[0-9.:_exXb]{1,6}\Z") | PRINTABLE | st.floats(allow_nan=False)))
def test_what_is_written_is_read_back(values: list[Any]) -> None:
    assert parse_yaml(yaml_text({"values": values}).encode(), "f.yaml", "") == {"values": values}


def plan(tmp_path: Path, ident: str = "a", rate: str = "2", prompt: str = "100") -> Path:
    path = tmp_path / "plan.yaml"
    path.write_text(PLAN.format(id=ident, rate=rate, prompt=prompt))
    return path


def test_an_id_that_is_a_number_is_to_be_quoted(tmp_path: Path) -> None:
    """A text before, a number now: it is refused, not renamed. What was a number before, 0144, is a text now."""
    with pytest.raises(InputError, match=r"id must be text, got 1000.0: give it as text, in quotes"):
        load_experiments(plan(tmp_path, ident="1e3"))
    with pytest.raises(InputError, match=r"id must be text, got datetime.date"):
        load_experiments(plan(tmp_path, ident="2026-01-01"))
    for ident in ("'1e3'", "0144"):
        assert load_experiments(plan(tmp_path, ident=ident))[0].id == ident.strip("'")


def test_a_trace_that_is_called_like_a_number_stays_what_it_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    ingest = "ingest", "--out", out, "--model", "llama-3.1-8b", "--hardware", "H100", "--trace"
    for name in ("1e3", "b"):
        (tmp_path / f"{name}.csv").write_text("arrival_s,input_len,output_len\n0,50,5\n")
        assert evolve(*ingest, tmp_path / f"{name}.csv") == 0
    assert [e.id for e in load_experiments(out / "traces.yaml")] == ["1e3", "b"]
    older = (out / "traces.yaml").read_text().replace("'1e3'", "1e3")  # as releases before wrote it
    (out / "traces.yaml").write_text(older)
    assert "is not what this release writes" in refused(capsys, *ingest, tmp_path / "b.csv")
    assert (out / "traces.yaml").read_text() == older


def test_a_small_file_takes_little_memory_whatever_its_limit(tmp_path: Path) -> None:
    """A limit of a gigabyte is no buffer of one, which `ulimit -v` may refuse."""
    path = tmp_path / "small"
    path.write_bytes(b"x" * 100)
    tracemalloc.start()
    try:
        assert read_bytes(path, 1 << 30) == b"x" * 100
        assert tracemalloc.get_traced_memory()[1] < 4 << 20  # a piece, its copy, and the opened file
    finally:
        tracemalloc.stop()
    path.write_bytes(b"x" * (3 << 20))
    assert len(read_bytes(path, 3 << 20)) == 3 << 20  # several pieces, and not a byte too many
    with pytest.raises(InputError, match="is larger than 3,145,727 bytes"):
        read_bytes(path, (3 << 20) - 1)
