"""`evolve predict --load`: the fewest replicas are those that single predictions find one by one, and the surer count
follows from the intervals of these."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import tiny_world
import yaml
from commands import evolve, refused

LOAD = 300  # requests/s; a replica of the tiny world's dense deployment serves about 100
SLO = "ttft_p99=60ms,itl_mean=15ms"
LIMITS_MS = (("ttft_ms", "p99", 60.0), ("itl_ms", "mean", 15.0))


def plan(path: Path, rate: float, ident: str = "dense-chat") -> Path:
    """A file with one deployment of the tiny world at one rate, for as long as its own load."""
    [entry] = [e for e in yaml.safe_load(tiny_world.DATA)["experiments"] if e["id"] == ident]
    entry = {key: value for key, value in entry.items() if key not in ("observed", "quality")}
    lasting_s = sum(stage["duration_s"] for stage in entry["workload"]["stages"])
    entry["workload"]["stages"] = [{"rate": rate, "duration_s": lasting_s}]
    path.write_text(yaml.safe_dump({"version": 1, "experiments": [entry]}))
    return path


def printed(capsys: pytest.CaptureFixture[str], *args: object, program: str = "champion") -> dict[str, Any]:
    """The JSON of `evolve predict PROGRAM ARGS`."""
    capsys.readouterr()
    assert evolve("predict", program, *args, "--json") == 0, capsys.readouterr().err
    value: dict[str, Any] = json.loads(capsys.readouterr().out)
    return value


def keeps(e: dict[str, Any], suffix: str = "") -> bool:
    """Whether a single prediction, or with a suffix the upper end of its interval, keeps the limits."""
    ends = [(e["predicted"][latency][quantity + suffix], most_ms) for latency, quantity, most_ms in LIMITS_MS]
    return all((end[1] if suffix else end) <= most_ms for end, most_ms in ends)


def test_the_fewest_are_those_of_single_predictions(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    args = "--experiments", plan(tmp_path / "own.yaml", 70.0), "--load", LOAD, "--slo", SLO
    result = printed(capsys, *args)
    singles = []
    for count in range(1, 12):
        one = plan(tmp_path / f"{count}.yaml", LOAD / count)
        [e] = printed(capsys, "--experiments", one)["experiments"]
        queue = e["components"]["waiting"] / e["predicted"]["e2e_ms"]["mean"] > 0.05
        singles.append((count, keeps(e) and not queue, keeps(e, "_80")))
    fewest = min(count for count, holds, _ in singles if holds)
    surer = min(count for count, holds, likely in singles if holds and likely)
    assert 1 < fewest < surer < 11
    [knee] = result["knees"]
    assert result["load_rps"] == LOAD and result["intervals"]
    assert (knee["replicas"], knee["holds_up_to_rps"]) == (fewest, LOAD / fewest)
    assert (knee["replicas_likely"], knee["likely_holds_up_to_rps"]) == (surer, LOAD / surer)
    rows = {row["replicas"]: row for row in result["rows"]}
    assert rows[fewest - 1]["fails"] and not rows[fewest]["fails"] and not rows[surer - 1]["likely"]
    assert [row["rate_rps"] for row in result["rows"]] == sorted(LOAD / count for count in rows)
    assert evolve("predict", "champion", *args) == 0
    lines = capsys.readouterr().out.splitlines()
    needed = lines[lines.index(f"What {LOAD} requests/s need") + 3].split()
    assert needed[-3:] == [str(fewest), str(fewest), str(surer)]  # of one GPU each


def test_replicas_of_several_gpus_are_counted_along_given_rates(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    args = "--experiments", plan(tmp_path / "own.yaml", 70.0), "--load", LOAD, "--slo", SLO
    args = *args, "--sweep", "rate=40,70,400", "--sweep", "tp=2"
    result = printed(capsys, *args)
    assert [row["rate_rps"] for row in result["rows"]] == [40.0, 70.0, 400.0]
    assert [row["replicas"] for row in result["rows"]] == [8, 5, 1]  # 300 / 40 = 7.5, 300 / 70 = 4.3
    [knee] = result["knees"]
    assert knee["holds_up_to_rps"] == 70.0 and knee["replicas"] == 5
    assert evolve("predict", "champion", *args) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "  5    10  " in lines[lines.index(f"What {LOAD} requests/s need") + 3]


def test_one_replica_may_be_enough(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = printed(capsys, "--experiments", plan(tmp_path / "own.yaml", 70.0), "--load", 7)
    assert [row["replicas"] for row in result["rows"]][-1] == result["knees"][0]["replicas"] == 1
    assert result["knees"][0]["rate_rps"] is None


def test_limits_that_no_rate_keeps_end_in_no_count(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    args = "--experiments", plan(tmp_path / "own.yaml", 70.0), "--load", LOAD, "--slo", "ttft_p99=1us"
    [knee] = printed(capsys, *args)["knees"]
    assert knee["holds_up_to_rps"] is None and knee["replicas"] is None and knee["replicas_likely"] is None
    assert evolve("predict", "champion", *args) == 0
    lines = capsys.readouterr().out.splitlines()
    needed = lines[lines.index(f"What {LOAD} requests/s need") + 3].split()
    assert needed == ["dense-chat", "1", "none", "-", "none", "none", "-", "-", "-"]


def test_a_program_without_intervals_has_no_surer_count(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    args = "--experiments", plan(tmp_path / "own.yaml", 70.0), "--load", LOAD
    result = printed(capsys, *args, program="floor")
    assert not result["intervals"] and {row["likely"] for row in result["rows"]} == {None}
    assert result["knees"][0]["replicas"] and result["knees"][0]["replicas_likely"] is None
    assert evolve("predict", "floor", *args) == 0
    assert "80 % sure" not in capsys.readouterr().out


def test_limits_alone_say_whether_they_hold_at_the_upper_ends(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = plan(tmp_path / "own.yaml", 70.0)
    [e] = printed(capsys, "--experiments", file)["experiments"]
    middle, top = e["predicted"]["ttft_ms"]["p99"], e["predicted"]["ttft_ms"]["p99_80"][1]
    for most_ms, word in ((1.001 * top, "holds"), ((middle + top) / 2.0, "may fail")):
        args = "--experiments", file, "--slo", f"ttft_p99={most_ms:.6f}ms"
        [row] = printed(capsys, *args)["rows"]
        assert not row["fails"] and row["likely"] == (word == "holds")
        assert evolve("predict", "champion", *args) == 0
        assert f"  {word}  " in capsys.readouterr().out


def test_bad_loads_are_refused_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    at = "predict", "champion", "--experiments", plan(tmp_path / "own.yaml", 70.0)
    assert "--load must be requests/s above 0" in refused(capsys, *at, "--load", "nan")
    assert "--load does not: give one of the two" in refused(capsys, *at, "--load", "7", "--part", "test")
    assert "--load does not: give one of the two" in refused(capsys, *at, "--load", "7", "--against", "floor")
