"""How far measured runs are from their predictions: the split that explains it, told by hand-made residuals."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from commands import Capsys, as_json, flat, refused

from evolve.plan.deviation import LEAST_RUNS, Deviation, MeasuredStage, deviation
from simulator.serving.bundled import SERVING, bundled_file
from simulator.serving.experiment import Experiment

NOISE = (-0.01, 0.0, 0.01)  # of the logarithms, by run in turn
# 30 runs of one model at TP 2 and 4: three pairs of lengths under 4 to 64 clients.
RUNS = [e for e in bundled_file(SERVING) if e.id.startswith("llama-3.1-70b-fp8-h100-tp")]


def found(ratio: Callable[[Experiment], float], runs: list[Experiment] = RUNS, ttft: float = 1.0) -> Deviation:
    """The deviation of runs whose ITL is `ratio` times as long as predicted, and TTFT `ttft` times."""
    rows = [
        MeasuredStage(
            e, e.workload.stages[0].level, {"itl": math.log(ratio(e)) + NOISE[i % 3], "ttft": math.log(ttft)}, None
        )
        for i, e in enumerate(runs)
    ]
    result = deviation(rows)
    assert result
    return result


def clients(e: Experiment) -> int:
    return e.workload.stages[0].users or 0


def test_one_degree_that_is_slower_is_named() -> None:
    assert len(RUNS) == 30
    d = found(lambda e: 1.12 if e.engine.tensor_parallel == 4 else 1.0)
    assert d.rest and (d.group.where, d.rest.where, d.group.runs, d.rest.runs) == ("at TP 4", "at TP 2", 15, 15)
    # the noise of each 15 runs has mean 0
    assert d.group.slower_pct["itl"] == pytest.approx(12.0) and d.rest.slower_pct["itl"] == pytest.approx(0.0, abs=1e-9)
    between, within = 30 * (math.log(1.12) / 2) ** 2, 20 * 0.01**2  # sums of squares about the mean
    assert d.share == pytest.approx(between / (between + within))
    assert d.sentence.startswith(
        "At TP 4 your server's ITL is 12 % longer than predicted (15 runs, TTFT 0 % longer), at TP 2 0 %"
    )


def test_what_is_off_alike_everywhere_is_a_clock_and_only_ttft_a_queue() -> None:
    slower = found(lambda e: 1.11, ttft=1.11)
    assert (slower.latency, slower.rest, slower.group.runs) == ("itl", None, 30)
    assert "a clock" in slower.sentence and "`evolve fit`" in slower.sentence and "11 % longer" in slower.sentence
    first = found(lambda e: 1.0, ttft=0.7)
    assert first.latency == "ttft" and "TTFT is 30 % shorter" in first.sentence and "--only alpha" in first.sentence
    assert found(lambda e: 1.0).cause == ""


def test_a_threshold_of_the_load_or_of_the_lengths_is_named() -> None:
    d = found(lambda e: 1.3 if clients(e) >= 32 else 1.0)
    assert d.rest and (d.group.where, d.rest.where, d.group.runs) == ("from 32 clients on", "below", 12)
    assert "--diagnose" in d.sentence
    long = found(lambda e: 0.8 if "-8k-1k-" in e.id else 1.0)
    assert long.group.where == "from 7,372 prompt tokens on" and long.group.slower_pct["itl"] == pytest.approx(
        -20.0, abs=0.5
    )  # the noise of these has a mean


def test_splits_of_the_same_runs_are_named_together() -> None:
    confounded = [e for e in RUNS if ("tp4" in e.id and "-8k-1k-" in e.id) or ("tp2" in e.id and "-1k-1k-" in e.id)]
    d = found(lambda e: 1.2 if e.engine.tensor_parallel == 4 else 1.0, confounded)
    assert d.group.where == "at TP 4 and from 7,372 prompt tokens on"


def test_too_few_runs_say_nothing_of_the_cause() -> None:
    d = found(lambda e: 1.2, RUNS[: LEAST_RUNS - 1])
    assert d.rest is None and "too few runs" in d.cause and d.group.runs == 3
    assert "too few" not in found(lambda e: 1.2, RUNS[:LEAST_RUNS]).cause
    assert deviation([]) is None


def test_stages_of_a_run_are_one_observation_of_its_degree_and_many_of_the_load() -> None:
    """Ten stages each of a run at TP 2 and one at TP 4 are two observations of TP, so that nothing can be said."""
    two, four = (next(e for e in RUNS if e.engine.tensor_parallel == tp) for tp in (2, 4))

    def rows(of_four: float, busy: float) -> list[MeasuredStage]:
        shifts = [
            (e, n, (of_four if e is four else 0.0) + (busy if n > 5 else 0.0))
            for e in (two, four)
            for n in range(1, 11)
        ]
        return [MeasuredStage(e, float(n), {"itl": x + NOISE[n % 3]}, None) for e, n, x in shifts]

    slow = deviation(rows(0.2, 0.0))
    busy = deviation(rows(0.0, 0.2))
    assert slow and slow.rest is None and slow.group.runs == 2
    assert (
        busy
        and busy.group.where == "from 6 clients on"
        and busy.group.slower_pct["itl"] == pytest.approx(22.1, abs=0.5)
    )


@pytest.fixture
def slower(tmp_path: Path) -> Path:
    """Shipped runs, measured times 12 % longer at TP 4 and 0.3 % elsewhere, so that they are other measurements."""
    entries = []
    for e in yaml.safe_load((Path("configs") / "experiments_serving.yaml").read_text())["experiments"]:
        if e["id"].startswith("llama-3.1-70b-fp8-h100-tp") and "-1k-1k-" in e["id"]:
            factor, seen = 1.12 if e["engine"]["tensor_parallel"] == 4 else 1.003, e["observed"]["summary"]
            seen["ttft_ms"]["mean"] *= factor
            seen["itl_mean_ms"] *= factor
            entries.append({k: v for k, v in e.items() if k != "source_date"})
    path = tmp_path / "slower.yaml"
    path.write_text(yaml.safe_dump({"version": 1, "experiments": entries}))
    return path


def test_predict_says_it_of_runs_that_were_not_fitted(slower: Path, capsys: Capsys) -> None:
    at = "predict", "champion", "--experiments", slower, "--seeds", "1"
    result = as_json(capsys, *at)
    d = result["deviation"]
    assert (d["group"]["where"], d["rest"]["where"], d["group"]["runs"]) == ("at TP 4", "at TP 2", 5)
    errors = [e["error_pct"]["itl_ms"]["mean"] for e in result["experiments"] if e["tp"] == 4]
    by_hand = math.exp(sum(-math.log1p(x / 100.0) for x in errors) / 5.0) - 1.0
    assert d["group"]["slower_pct"]["itl"] == pytest.approx(100.0 * by_hand)
    assert d["text"] in flat(capsys, *at)
    kept = as_json(capsys, *at, "--exclude", ",".join(e["id"] for e in result["experiments"][2:]))
    assert [e["id"] for e in kept["experiments"]] == [e["id"] for e in result["experiments"][:2]]
    assert (kept["deviation"]["group"]["runs"], kept["deviation"]["rest"]) == (2, None)
    shipped = "predict", "champion", "--experiments", "configs/experiments_serving.yaml", "--seeds", "1"
    assert as_json(capsys, *shipped, "--id", result["experiments"][0]["id"])["deviation"] is None  # it was fitted


def test_names_that_exclude_nothing_or_everything_are_refused(slower: Path, capsys: Capsys) -> None:
    for command in ("predict", "fit"):
        at = command, "champion", "--experiments", slower
        error = refused(capsys, *at, "--exclude", "llama-3.1-70b-fp8-h100-tp4-1k-1k-c46")
        assert "--exclude" in error and "llama-3.1-70b-fp8-h100-tp4-1k-1k-c64" in error
        one = "llama-3.1-70b-fp8-h100-tp4-1k-1k-c64"
        assert "leaves no experiment" in refused(capsys, *at, "--id", one, "--exclude", one)
