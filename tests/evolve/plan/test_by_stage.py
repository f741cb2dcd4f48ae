"""`evolve predict --load` by stage: the fewest replicas are those that every number of replicas, tried one by one, shows."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest
import yaml
from commands import evolve
from test_replicas import plan, printed

import evolve.plan.sweep as sweep_module
from evaluator.intervals import LONGER, WAITING
from evaluator.score import Prediction, predictions, score_set
from evolve.plan.by_stage import StageRun, by_stage
from evolve.run.data import experiments_of
from evolve.run.program import load
from simulator.clock.replay import replay
from simulator.serving.experiment import Observation, Stage, Statistic

STAGES = ((30.0, 10.0), (200.0, 10.0), (70.0, 20.0))  # requests/s, s
LOAD = 92.5  # requests/s, the mean of these: one replica has the load as it is in the file
ITL = "itl_mean=6.5ms"  # the more requests/s a replica has, the longer
MOST = 12  # replicas that are tried one by one
SEEDS = (1, 2, 3)
NONE = Statistic(None, None, None, None)


def with_so_many(folder: Path, count: int, *stages: tuple[float, float]) -> Prediction:
    """What `floor` predicts of one of so many replicas, each of which is a file of its own."""
    file = plan(folder / f"{count}.yaml", *((rate / count, s) for rate, s in stages))
    [prediction] = predictions(load("floor").complete, score_set(experiments_of([str(file)]), SEEDS))
    return prediction


@pytest.fixture(scope="module")
def one_by_one(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Prediction]:
    folder = tmp_path_factory.mktemp("one")
    return {count: with_so_many(folder, count, *STAGES) for count in range(1, MOST + 1)}


def itl_ms(run: Observation | None) -> float:
    assert run and run.itl_ms.mean
    return run.itl_ms.mean


def asked(tmp_path: Path, slo: str = ITL, stages: tuple[tuple[float, float], ...] = STAGES) -> tuple[object, ...]:
    return "--experiments", plan(tmp_path / "own.yaml", *stages), "--load", LOAD, "--slo", slo


def out(capsys: pytest.CaptureFixture[str], *args: object, status: int = 0) -> str:
    """What `evolve predict floor` prints, its lines joined."""
    capsys.readouterr()
    assert evolve("predict", "floor", *args) == status
    return " ".join(capsys.readouterr().out.split())


def test_the_fewest_by_stage_are_those_of_brute_force(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], one_by_one: dict[int, Prediction]
) -> None:
    stages = {count: [itl_ms(s) for s in p.predicted.stages] for count, p in one_by_one.items()}
    fewest = [min(n for n, values in stages.items() if values[i] <= 6.5) for i in range(3)]
    assert all(values[i] > 6.5 for i in range(3) for n, values in stages.items() if n < fewest[i])  # monotone
    whole = min(n for n, p in one_by_one.items() if itl_ms(p.predicted.summary) <= 6.5)
    assert fewest[0] < fewest[2] < whole < fewest[1] < MOST

    result = printed(capsys, *asked(tmp_path), program="floor")
    assert [line["replicas"] for line in result["by_stage"]] == fewest
    assert [line["itl_ms"]["mean"] for line in result["by_stage"]] == [stages[n][i] for i, n in enumerate(fewest)]
    assert [line["rate_rps"] for line in result["by_stage"]] == pytest.approx([30.0, 200.0, 70.0])
    assert [(line["begins_s"], line["duration_s"]) for line in result["by_stage"]] == [(0, 10), (10, 10), (20, 20)]
    [knee] = result["knees"]
    assert (knee["replicas"], knee["replicas_every_stage"]) == (whole, max(fewest))
    assert knee["gpu_hours_every_stage"] == pytest.approx(max(fewest) * 40.0 / 3600.0)
    following_s = 10.0 * fewest[0] + 10.0 * fewest[1] + 20.0 * fewest[2]
    assert knee["gpu_hours_by_stage"] == pytest.approx(following_s / 3600.0)


def test_the_table_marks_what_holds_over_the_whole_run_only(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = printed(capsys, *asked(tmp_path), program="floor")
    [knee] = result["knees"]
    text = out(capsys, *asked(tmp_path))
    whole, every = knee["replicas"], knee["replicas_every_stage"]
    assert f" {whole} * {whole} {every} {every} Replicas share the load" in text
    assert (f"*: dense-chat: {whole} replicas are enough over the whole run, but not in every stage: that takes {every}, "
            f"{every} GPUs.") in text  # fmt: skip
    peak = result["by_stage"][1]
    assert f"2 0:00:10 200.00 {every} {every} {peak['itl_ms']['mean']:.4g}" in text
    assert (
        f"0.0111 h with {every} replicas: {knee['gpu_hours_every_stage']:.4g} GPU hours; following the stages: " in text
    )
    steady = out(capsys, *asked(tmp_path, ITL, ((92.5, 10.0), (92.5, 10.0), (92.5, 20.0))), "--seeds", 1)
    assert "What the stages of dense-chat need" in steady
    easy = out(capsys, *asked(tmp_path, "itl_mean=1s,ttft_p99=60s"))
    assert "*" not in easy and "but not in every stage" not in easy


def test_the_gpus_that_are_80_sure_are_called_those_of_the_whole_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every stage may need more; with one stage there is nothing to tell apart."""

    def text(*stages: tuple[float, float]) -> str:
        args = asked(tmp_path, "itl_mean=1s", stages)
        assert evolve("predict", "champion", *args, "--seeds", 1) == 0
        return " ".join(capsys.readouterr().out.split())

    several = text((70.0, 10.0), (80.0, 10.0))
    assert "every stage its GPUs GPUs 80 % sure, whole run" in several
    assert "80 % intervals, too, over the whole run: stages have no intervals" in several
    one = text((70.0, 10.0))
    assert "replicas GPUs GPUs 80 % sure" in one and "whole run" not in one


def test_each_number_of_replicas_is_replayed_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of the search over the whole run, which alone have rows, and the few that stages need besides."""
    rates: list[float] = []

    def seen(record: Any, e: Any, *args: Any) -> Any:
        rates.append(e.workload.stages[0].rate)
        return figures(record, e, *args)

    figures = sweep_module.figures_of
    monkeypatch.setattr(sweep_module, "figures_of", seen)
    result = printed(capsys, *asked(tmp_path), program="floor")
    assert len(rates) == len(set(rates))
    rows = {round(30.0 / row["replicas"], 9) for row in result["rows"]}
    assert rows < {round(rate, 9) for rate in rates} and len(rates) <= len(rows) + 4


def test_a_load_of_one_stage_has_no_stages(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    args = asked(tmp_path, ITL, ((92.5, 20.0),))
    result = printed(capsys, *args, program="floor")
    assert result["by_stage"] == []
    [knee] = result["knees"]
    assert {knee[f"{of}_every_stage"] for of in ("replicas", "gpus", "gpu_hours")} == {None} and knee["replicas"]
    text = out(capsys, *args)
    assert "every stage" not in text and "GPU hours" not in text
    rates = "--experiments", plan(tmp_path / "own.yaml", *STAGES), "--sweep", "rate=10,20", "--slo", "itl_mean=1s"
    assert printed(capsys, *rates, program="floor")["by_stage"] == []


def test_a_stage_that_no_number_serves_is_none_and_the_whole_run_decides_the_status(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One request in forty has a long answer, so the p90 of all is that of the others."""
    stages = [{"rate": 40.0, "duration_s": 20.0}, {"rate": 1.0, "duration_s": 20.0, "output_len": 500}]
    file = plan(tmp_path / "own.yaml", (1.0, 1.0), stages=stages)
    args = "--experiments", file, "--load", 41, "--slo", "e2e_p90=1s"
    result = printed(capsys, *args, program="floor")
    easy, long = result["by_stage"]
    assert easy["replicas"] and long["replicas"] is None and long["gpus"] is None and long["e2e_ms"] is None
    [knee] = result["knees"]
    assert knee["replicas"] and knee["replicas_every_stage"] is None and knee["gpu_hours_by_stage"] is None
    text = out(capsys, *args)
    assert "over the whole run, but no number is in every stage (none in 2)." in text
    assert "GPU hours" not in text


def test_a_queue_that_grows_in_a_stage_is_too_much_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without a limit that shows it: counted request by request, in the replay of the whole run."""
    stages = ((10.0, 10.0), (500.0, 10.0), (10.0, 30.0))
    args = asked(tmp_path, "itl_mean=1s", stages)
    peak = printed(capsys, *args, program="floor")["by_stage"][1]
    load_rps = 5400.0 / 50.0

    def grows(count: int) -> bool:
        scale = LOAD / load_rps / count
        file = plan(tmp_path / f"{count}.yaml", *((rate * scale, s) for rate, s in stages))
        [e] = experiments_of([str(file)])
        first, second, waiting, e2e = [], [], 0, 0
        for seed in SEEDS:
            r = replay(e, load("floor").complete, seed)
            rows = [i for i in range(len(r.requests)) if r.requests.stage[i] == 1 and r.completed[i]]
            waits = [int(r.waiting_us[i]) for i in rows]
            half = (len(waits) + 1) // 2
            first, second = first + waits[:half], second + waits[half:]
            waiting, e2e = waiting + sum(waits), e2e + sum(int(r.e2e_us[i]) for i in rows)
        longer = sum(second) / len(second) > LONGER * sum(first) / len(first)
        return waiting > WAITING * e2e and longer

    assert peak["replicas"] > 1 and grows(peak["replicas"] - 1) and not grows(peak["replicas"])


def test_a_queue_from_the_stage_before_counts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Ten quiet seconds need one replica, and more after a peak that one does not serve."""
    peak, quiet = (500.0, 10.0), (20.0, 10.0)
    args = "--load", 260, "--slo", "ttft_p99=60ms", "--experiments"
    [_, after] = printed(capsys, *args, plan(tmp_path / "after.yaml", peak, quiet), program="floor")["by_stage"]
    [before, _] = printed(capsys, *args, plan(tmp_path / "before.yaml", quiet, peak), program="floor")["by_stage"]
    assert before["replicas"] == 1 < after["replicas"]


def test_windows_of_a_trace_last_as_long_as_in_its_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """However fast it is played to one of several replicas."""
    gaps = [0.1] * 600 + [0.025] * 2400  # a minute of 10 requests/s, one of 40
    arrivals = accumulate(gaps[:-1], initial=0.0)
    (tmp_path / "t.csv").write_text("arrival_s,input_len,output_len\n" + "".join(f"{t:.3f},300,50\n" for t in arrivals))
    file = plan(tmp_path / "own.yaml", (10.0, 60.0))
    entry = yaml.safe_load(file.read_text())
    entry["experiments"][0]["workload"] = {"name": "trace", "trace": "t.csv", "window_s": 60}
    file.write_text(yaml.safe_dump(entry))
    result = printed(capsys, "--experiments", file, "--load", 100, "--slo", "itl_mean=6.4ms", program="floor")
    calm, busy = result["by_stage"]
    assert [line["duration_s"] for line in (calm, busy)] == pytest.approx([60.0, 60.0], rel=1e-3)
    assert [line["rate_rps"] for line in (calm, busy)] == pytest.approx([40.0, 160.0], rel=1e-3)
    assert 1 <= calm["replicas"] < busy["replicas"] == result["knees"][0]["replicas_every_stage"]


def test_tables_have_a_row_for_each_stage(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    args = *asked(tmp_path), "--sweep", "tp=1,2"
    result = printed(capsys, *args, program="floor")
    assert evolve("predict", "floor", *args, "--csv", "-", "--parquet", tmp_path / "t.parquet") == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    stages = [row for row in rows if row["stage"]]
    assert len(rows) == len(result["rows"]) + 6 and len(stages) == len(result["by_stage"]) == 6
    every = {knee["tp"]: knee["gpus_every_stage"] for knee in result["knees"]}
    for row, line in zip(stages, result["by_stage"], strict=True):
        assert (int(row["stage"]), int(row["tp"]), int(row["replicas"])) == (
            line["stage"],
            line["tp"],
            line["replicas"],
        )
        assert int(row["needed_gpus"]) == line["gpus"] == line["tp"] * line["replicas"]
        assert float(row["stage_rps"]) == line["rate_rps"]
        assert float(row["rate_rps"]) == pytest.approx(LOAD / line["replicas"])
        assert float(row["itl_mean_ms"]) == pytest.approx(line["itl_ms"]["mean"])
    assert {int(row["tp"]): int(row["needed_gpus_every_stage"]) for row in rows} == every


def test_of_several_deployments_the_one_with_the_fewest_gpu_hours_is_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    args = *asked(tmp_path), "--sweep", "tp=1,2"
    hours = {knee["tp"]: knee["gpu_hours_by_stage"] for knee in printed(capsys, *args, program="floor")["knees"]}
    text = out(capsys, *args)
    least = min(hours, key=lambda tp: hours[tp])
    assert text.count("What the stages of") == 1 and f"What the stages of dense-chat, tp {least} need" in text
    assert "Other deployments: --json or --csv." in text
    assert all(f"following the stages: {of_one:.4g}." in text for of_one in hours.values())


def test_percentiles_of_few_requests_of_a_stage_say_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    args = asked(tmp_path, "ttft_p99=60ms", ((5.0, 10.0), (100.0, 20.0)))
    assert "ttft_p99 depends on the slowest few requests in 1 of 2 stages." in out(capsys, *args)


def needing(*fewest: int) -> Callable[[int], list[StageRun]]:
    """Stages that hold with so many replicas or more."""
    run = Observation(NONE, NONE, NONE, completed=1, failed=0)
    return lambda count: [StageRun(run, () if count >= least else ("e2e_mean",)) for least in fewest]


@pytest.mark.parametrize("fewest", [(1, 1, 1), (1, 7, 3), (5, 4, 8), (2, 8, 8)])
def test_stages_are_searched_between_numbers_that_are_known(fewest: tuple[int, ...]) -> None:
    runs, tried = needing(*fewest), {2, 4, 8}
    looked_at: set[int] = set()

    def seen(count: int) -> list[StageRun]:
        looked_at.add(count)
        tried.add(count)
        return runs(count)

    def halved(holds: Callable[[int], bool], few: int, many: int) -> int | None:
        while many - few > 1:
            middle = (few + many) // 2
            few, many = (few, middle) if holds(middle) else (middle, many)
        return many

    stages = [Stage(rate, 10.0) for rate in (1.0, 3.0, 2.0)]
    found = by_stage(stages, 4.0, max(fewest), tried, seen, halved)
    assert tuple(need.replicas for need in found.needs) == fewest
    assert [need.rate_rps for need in found.needs] == [2.0, 6.0, 4.0]
    assert found.gpu_hours(2) == (2 * max(fewest) * 30 / 3600, pytest.approx(2 * sum(fewest) * 10 / 3600))
    assert looked_at - {2, 4, 8} <= {1, 3, 5, 6, 7}
