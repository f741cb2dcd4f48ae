"""`evolve predict --against`: both programs' predictions are those of `evolve predict` alone, and the differences follow."""

from __future__ import annotations

import csv
import io
from itertools import pairwise
from pathlib import Path

import pytest
import tiny_world
from commands import Capsys, as_json, evolve, flat, refused

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


def test_both_predict_as_alone_and_each_use_is_averaged_apart(data: Path, mine: Path, capsys: Capsys) -> None:
    at = "--experiments", data
    alone = {name: as_json(capsys, "predict", name, *at) for name in ("champion", str(mine))}
    found = as_json(capsys, "predict", mine, *at, "--against", "champion")
    differences = found.pop("differences")
    assert found.pop("against") == alone["champion"] and found == alone[str(mine)]
    first_of, other_of = (
        {e["id"]: e["error_pct"] for e in alone[name]["experiments"] if e["error_pct"]}
        for name in (str(mine), "champion")
    )
    groups = {("fitted", "new"): ["dense-chat", "sparse-chat"], ("new", "new"): ["dense-code", "dense-overloaded"]}
    assert [(tuple(d["uses"]), d["latency"]) for d in differences] == [(uses, n) for uses in groups for n in MEANS]
    for d in differences:
        pairs = [
            tuple(abs(of[e][f"{d['latency']}_ms"]["mean"] or 0.0) for of in (first_of, other_of))
            for e in groups[tuple(d["uses"])]
            if first_of[e][f"{d['latency']}_ms"]["mean"] is not None
        ]
        first, other = (sum(column) / len(pairs) for column in zip(*pairs, strict=True))
        assert (d["first"], d["other"], d["points"]) == pytest.approx((first, other, other - first))
        assert (d["closer"], d["pairs"]) == (sum(a < b for a, b in pairs), len(pairs))
        changes = sorted(b - a for a, b in pairs)
        # with one pair both ends are its change, but for rounding
        reached = changes[0], d["interval"][0], d["points"], d["interval"][1], changes[-1]
        assert all(a <= b or a == pytest.approx(b) for a, b in pairwise(reached))


def test_the_table_marks_unfair_comparisons(data: Path, mine: Path, tmp_path: Path, capsys: Capsys) -> None:
    file = tmp_path / "p.csv"
    out = flat(capsys, "predict", mine, "--experiments", data, "--against", "champion", "--csv", file)
    assert f"of {mine} against champion, percent" in out and out.count("unfair") == 1
    rows = list(csv.DictReader(io.StringIO(file.read_text())))
    assert [row["experiment"] for row in rows] == ["dense-chat", "dense-code", "sparse-chat", "dense-overloaded"]
    assert {row["fitted"] for row in rows} == {"True", "False"}  # the first program's rows


def test_without_observations_only_predictions_are_compared(capsys: Capsys) -> None:
    load = ["--rate", "2", "--prompt-len", "300", "--output-len", "20", "--seeds", "1"]
    args = "predict", "champion", "--model", "llama-2-7b", "--hardware", "H100", *load, "--against", "kernels"
    assert as_json(capsys, *args)["differences"] == []
    out = flat(capsys, *args)
    assert "of champion against kernels" in out and "Errors of the means" not in out


def test_a_sweep_is_of_one_program(data: Path, capsys: Capsys) -> None:
    args = "predict", "champion", "--experiments", data, "--against"
    line = refused(capsys, *args, "floor", "--sweep", "tp=1,2")
    assert "--against" in line and "--sweep" in line
    assert "nothing.py" in refused(capsys, *args, "nothing.py")
