"""`evolve predict --against`: both programs' predictions are those of `evolve predict` alone, and the differences follow."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest
import tiny_world
from commands import evolve, refused

from evaluator.score import MEANS


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("data") / "data.yaml"
    path.write_text(tiny_world.DATA)
    return path


@pytest.fixture(scope="module")
def mine(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A program that was fitted on two of the tiny world's three runs that can be fitted."""
    out = tmp_path_factory.mktemp("mine") / "mine.py"
    assert evolve("fit", "floor", "--experiments", data, "--id", "dense-chat,sparse-chat", "--out", out) == 0
    return out


def printed(capsys: pytest.CaptureFixture[str], *args: object) -> dict[str, Any]:
    capsys.readouterr()
    assert evolve("predict", *args, "--json") == 0, capsys.readouterr().err
    value: dict[str, Any] = json.loads(capsys.readouterr().out)
    return value


def test_both_predict_as_alone_and_runs_known_in_other_ways_are_averaged_apart(
    data: Path, mine: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    at = "--experiments", data
    alone = {name: printed(capsys, name, *at) for name in ("champion", str(mine))}
    found = printed(capsys, mine, *at, "--against", "champion")
    differences = found.pop("differences")
    assert found.pop("against") == alone["champion"] and found == alone[str(mine)]
    errors = [
        {e["id"]: e["error_pct"] for e in alone[name]["experiments"] if e["error_pct"]}
        for name in (str(mine), "champion")
    ]
    groups = {("fitted", "new"): ["dense-chat", "sparse-chat"], ("new", "new"): ["dense-code", "dense-overloaded"]}
    assert [(tuple(d["uses"]), d["latency"]) for d in differences] == [(uses, n) for uses in groups for n in MEANS]
    for d in differences:
        pairs = [
            tuple(abs(of[e][f"{d['latency']}_ms"]["mean"] or 0.0) for of in errors) for e in groups[tuple(d["uses"])]
            if errors[0][e][f"{d['latency']}_ms"]["mean"] is not None
        ]  # fmt: skip
        first, other = (sum(column) / len(pairs) for column in zip(*pairs, strict=True))
        assert (d["first"], d["other"], d["points"]) == pytest.approx((first, other, other - first))
        assert (d["closer"], d["pairs"]) == (sum(a < b for a, b in pairs), len(pairs))
        changes = sorted(b - a for a, b in pairs)
        assert changes[0] <= d["interval"][0] <= d["points"] <= d["interval"][1] <= changes[-1]


def test_a_table_has_both_and_the_lines_say_where_the_comparison_is_not_fair(
    data: Path, mine: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "p.csv"
    assert evolve("predict", mine, "--experiments", data, "--against", "champion", "--csv", file) == 0
    out = capsys.readouterr().out
    assert f"Predicted means of {mine} against champion in ms" in out.replace("\n", " ")
    assert f"Of use fitted by {mine} and new by champion, so that the comparison is not fair:" in out.replace("\n", " ")
    assert f"Of use new by {mine} and new by champion:" in out.replace("\n", " ")
    rows = list(csv.DictReader(io.StringIO(file.read_text())))
    assert [row["experiment"] for row in rows] == ["dense-chat", "dense-code", "sparse-chat", "dense-overloaded"]
    assert {row["fitted"] for row in rows} == {"True", "False"}  # the first program's rows


def test_without_observations_only_predictions_are_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan = tmp_path / "plan.yaml"
    plan.write_text(
        "version: 1\nexperiments:\n- {id: plan, model: llama-2-7b, hardware: H100, workload: {name: x, stages: [{rate: 2, "
        "duration_s: 20}], prompt_len: 300, output_len: 20}}\n"
    )
    assert printed(capsys, "champion", "--experiments", plan, "--against", "kernels")["differences"] == []
    assert evolve("predict", "champion", "--experiments", plan, "--against", "kernels") == 0
    out = capsys.readouterr().out
    assert "Predicted means of champion against kernels" in out and "Errors of the means" not in out


def test_a_sweep_is_of_one_program(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    args = "predict", "champion", "--experiments", data, "--against", "floor", "--sweep", "tp=1,2"
    assert "--against compares two programs on experiments as they are, --sweep predicts others: give" in refused(
        capsys, *args
    )
    assert "nothing.py" in refused(capsys, "predict", "champion", "--experiments", data, "--against", "nothing.py")
