"""The frames of predictions have every figure of `evolve predict --json`, and those of load stages too."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import tiny_world

import evolve
from evolve.cli import run_command

LATENCIES = ("e2e", "ttft", "itl")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("data") / "data.yaml"
    path.write_text(tiny_world.DATA)
    return path


def predicted(program: str, data: Path, capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    """The objects that `evolve predict --json` prints, one for each experiment."""
    assert run_command(["predict", program, "--experiments", str(data), "--json"]) == 0
    experiments: list[dict[str, Any]] = json.loads(capsys.readouterr().out)["experiments"]
    return experiments


def figures(e: dict[str, Any]) -> dict[str, Any]:
    """The figures of a run or a load stage, by the names of their columns."""
    columns: dict[str, Any] = {}
    for latency in LATENCIES:
        for prefix, side in (("", "predicted"), ("observed_", "observed")):
            for q, value in ((e[side] or {}).get(f"{latency}_ms") or {}).items():
                if isinstance(value, list):
                    columns |= {f"{latency}_{q}_low_ms": value[0], f"{latency}_{q}_high_ms": value[1]}
                else:
                    columns[f"{prefix}{latency}_{q}_ms"] = value
        for q, value in ((e["error_pct"] or {}).get(f"{latency}_ms") or {}).items():
            columns[f"{latency}_error_pct" if q == "mean" else f"{latency}_{q}_error_pct"] = value
    for prefix, side in (("", "predicted"), ("observed_", "observed")):
        columns |= {f"{prefix}{name}": (e[side] or {}).get(name) for name in ("completed", "failed")}
    return columns


def is_same(row: Any, expected: dict[str, Any], given: int) -> None:
    """A row has these figures, at least so many of them given, and nothing in the columns of other figures."""
    for name, value in expected.items():
        assert row[name] == value if value is not None else pd.isna(row[name]), name
    assert sum(value is not None for value in expected.values()) >= given
    rest = set(row.index) - set(expected)
    assert all(pd.isna(row[name]) for name in rest if name.endswith(("_ms", "_pct"))), rest


@pytest.mark.parametrize("program, given", [("champion", 54), ("linear", 26)])
def test_predictions_are_those_of_the_json(
    program: str, given: int, data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The champion has intervals: seven figures with two of two bounds each. Of `dense-code` two means were observed."""
    expected = predicted(program, data, capsys)
    frame = evolve.predict(program, data)
    assert list(frame["experiment"]) == [e["id"] for e in expected]
    for (_, row), e in zip(frame.iterrows(), expected, strict=True):
        parts = {f"{name}_ms": value for name, value in e["components"].items()}
        is_same(row, figures(e) | parts, given if e["id"] != "dense-overloaded" else 26)
        assert row["warnings"] == tuple(e["warnings"])
        for column, name in (("fitted", "fitted"), ("intervals_of", "intervals_of"), ("saturated_share", "saturated")):
            assert row[column] == e[name] if e[name] is not None else pd.isna(row[column])


def test_stages_are_those_of_the_champion_s_predictions(tiny_run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = evolve.load_run(tiny_run)
    assert run.champion
    data = tiny_run.parent.parent / "tiny0" / "data.yaml"
    stages = run.stages
    for e in predicted(run.champion.name, data, capsys):
        of_run = stages[stages["experiment"] == e["id"]]
        assert list(of_run["stage"]) == list(range(1, len(e["stages"]) + 1))
        for (_, row), stage in zip(of_run.iterrows(), e["stages"], strict=True):
            loads = {"rate_rps": row["rate_rps"], "duration_s": row["duration_s"]}
            is_same(row, figures(stage) | loads, 10)
    assert list(stages["rate_rps"]) == [5.0, 10.0, 8.0, 3.0, 6.0, 80.0]  # of the tiny world
