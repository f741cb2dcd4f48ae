"""`evolve plan` by stage: the fewest replicas are those that every number of replicas, tried one by one, shows."""

from __future__ import annotations

from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest
from commands import Capsys, flat
from test_replicas import plan, planned, watched, with_trace

from evaluator.metrics import LONGER, WAITING
from evaluator.score import Prediction, predictions, score_set
from evolve.run.data import experiments_of
from evolve.run.program import load
from simulator.clock.replay import replay
from simulator.serving.observations import Observation

STAGES = ((30.0, 10.0), (200.0, 10.0), (70.0, 20.0))  # requests/s, s
ITL = "itl_mean=6.5ms"  # the more requests/s a replica has, the longer
MOST = 12  # replicas that are tried one by one
SEEDS = (1, 2, 3)


def with_so_many(folder: Path, count: int, *stages: tuple[float, float]) -> Prediction:
    """The prediction of `floor` for one of so many replicas, from a file of its own."""
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
    return "--experiments", plan(tmp_path / "own.yaml", *stages), "--slo", slo


def of_floor(capsys: Capsys, *args: object) -> dict[str, Any]:
    """The JSON of `evolve plan floor`."""
    return planned(capsys, *args, program="floor")


def out(capsys: Capsys, *args: object) -> str:
    """The lines of `evolve plan floor`, joined."""
    return flat(capsys, "plan", "floor", *args)


def test_the_fewest_by_stage_are_brute_force_s(
    tmp_path: Path, capsys: Capsys, one_by_one: dict[int, Prediction]
) -> None:
    stages = {count: [itl_ms(s) for s in p.predicted.stages] for count, p in one_by_one.items()}
    fewest = [min(n for n, values in stages.items() if values[i] <= 6.5) for i in range(3)]
    assert all(values[i] > 6.5 for i in range(3) for n, values in stages.items() if n < fewest[i])  # monotone
    whole = min(n for n, p in one_by_one.items() if itl_ms(p.predicted.summary) <= 6.5)
    assert fewest[0] < fewest[2] < whole < fewest[1] < MOST

    result = of_floor(capsys, *asked(tmp_path))
    assert [line["replicas"] for line in result["by_stage"]] == fewest
    assert [line["itl_ms"]["mean"] for line in result["by_stage"]] == [stages[n][i] for i, n in enumerate(fewest)]
    assert [line["rate_rps"] for line in result["by_stage"]] == pytest.approx([30.0, 200.0, 70.0])
    assert [(line["begins_s"], line["duration_s"]) for line in result["by_stage"]] == [(0, 10), (10, 10), (20, 20)]
    assert result["rows"][0]["replicas"] == whole
    assert result["gpu_hours"] == pytest.approx(max(fewest) * 40.0 / 3600.0)
    following_s = 10.0 * fewest[0] + 10.0 * fewest[1] + 20.0 * fewest[2]
    assert result["gpu_hours_by_stage"] == pytest.approx(following_s / 3600.0)


def test_what_holds_over_the_whole_run_only_is_said(tmp_path: Path, capsys: Capsys) -> None:
    result = of_floor(capsys, *asked(tmp_path))
    whole, peak = result["rows"][0]["replicas"], result["by_stage"][1]
    text, every = out(capsys, *asked(tmp_path)), peak["replicas"]
    said = f"{whole} replicas keep the limits over the whole run, not in every stage"
    assert f"{said}: that takes {every}." in text
    assert f"2 0:00:10 200.00 {every} {every} {peak['itl_ms']['mean']:.4g}" in text
    assert f"0.0111 h with {every} replicas: {result['gpu_hours']:.4g} GPU hours" in text
    assert "over the whole run" not in out(capsys, *asked(tmp_path, "itl_mean=1s,ttft_p99=60s"))


def test_each_count_of_replicas_is_replayed_once(
    tmp_path: Path, capsys: Capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of the search over the whole run, and the few that stages need besides."""
    replayed = watched(monkeypatch)
    of_floor(capsys, *asked(tmp_path))
    rates = [figures.offered_rps for figures in replayed]
    assert 3 < len(rates) == len(set(rates)) < MOST


def test_a_load_of_one_stage_has_no_stages(tmp_path: Path, capsys: Capsys) -> None:
    args = asked(tmp_path, ITL, ((92.5, 20.0),))
    result = of_floor(capsys, *args)
    assert result["rows"] and result["by_stage"] == []
    assert result["gpu_hours"] is None and result["gpu_hours_by_stage"] is None
    text = out(capsys, *args)
    assert "every stage" not in text and "GPU hours" not in text


def test_a_stage_that_no_number_serves_is_none(tmp_path: Path, capsys: Capsys) -> None:
    """One request in forty has a long answer, so the p90 of all is that of the others, and the status is 0."""
    stages = [{"rate": 40.0, "duration_s": 20.0}, {"rate": 1.0, "duration_s": 20.0, "output_len": 500}]
    args = "--experiments", plan(tmp_path / "own.yaml", (1.0, 1.0), stages=stages), "--slo", "e2e_p90=1s"
    result = of_floor(capsys, *args)
    easy, long = result["by_stage"]
    assert easy["replicas"] and long["replicas"] is None and long["gpus"] is None and long["e2e_ms"] is None
    assert result["rows"][0]["replicas"] and result["gpu_hours_by_stage"] is None
    text = out(capsys, *args)
    assert "not in every stage: no number does." in text and "GPU hours" not in text
    assert "2 0:00:20 1.00 none" in text


def test_a_queue_that_grows_in_a_stage_is_too_much_there(tmp_path: Path, capsys: Capsys) -> None:
    """Without a limit that shows it: counted request by request, in the replay of the whole run."""
    stages = ((10.0, 10.0), (500.0, 10.0), (10.0, 30.0))
    args = asked(tmp_path, "itl_mean=1s", stages)
    peak = of_floor(capsys, *args)["by_stage"][1]

    def grows(count: int) -> bool:
        file = plan(tmp_path / f"{count}.yaml", *((rate / count, s) for rate, s in stages))
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


def test_a_queue_from_the_stage_before_counts(tmp_path: Path, capsys: Capsys) -> None:
    """Ten quiet seconds need one replica, and more after a peak that one does not serve."""
    peak, quiet = (500.0, 10.0), (20.0, 10.0)
    args = "--slo", "ttft_p99=60ms", "--experiments"
    [_, after] = of_floor(capsys, *args, plan(tmp_path / "after.yaml", peak, quiet))["by_stage"]
    [before, _] = of_floor(capsys, *args, plan(tmp_path / "before.yaml", quiet, peak))["by_stage"]
    assert before["replicas"] == 1 < after["replicas"]


@pytest.mark.parametrize("first", [0, 1])
def test_a_stage_of_bursts_is_no_queue_that_grows_wherever_it_stands(
    first: int, tmp_path: Path, capsys: Capsys
) -> None:
    """Whole bursts of ten wait, the steady stage does not. By the halves of the run alone, and of a lone burst, the
    queue would grow at any rate if the bursts came last: 1,067 GPUs instead of 4."""
    calm, bursts = (rate * 20.0 * 420.0 / 1080.0 for rate in (2, 4))  # requests/s of a load of 20 on average
    stages = [
        f"{{rate: {calm}, duration_s: 300}}",
        f"{{rate: {bursts}, duration_s: 120, arrival: {{burst: {{size: 10}}}}}}",
    ]
    file = tmp_path / "bursts.yaml"
    file.write_text(
        "version: 1\nexperiments:\n- {id: b, model: llama-3.1-8b, hardware: H100, engine: {tensor_parallel: 1}, "
        "workload: {name: b, stages: "
        f"[{stages[first]}, {stages[1 - first]}], prompt_len: 4000, output_len: 100}}}}\n"
    )
    [row] = planned(capsys, "--experiments", file, "--slo", "ttft_p99=10s")["rows"]
    assert row["replicas"] == 4


def test_windows_of_a_trace_last_as_long_as_in_its_file(tmp_path: Path, capsys: Capsys) -> None:
    """However slowly it is played to one of several replicas."""
    gaps = [0.025] * 600 + [0.00625] * 2400  # 15 s of 40 requests/s, 15 s of 160
    rows = "".join(f"{t:.5f},300,50\n" for t in accumulate(gaps[:-1], initial=0.0))
    file = with_trace(plan(tmp_path / "own.yaml", (10.0, 60.0)), rows, window_s=15)
    result = of_floor(capsys, "--experiments", file, "--slo", "itl_mean=6.4ms")
    calm, busy = result["by_stage"]
    assert [line["duration_s"] for line in (calm, busy)] == pytest.approx([15.0, 15.0], rel=1e-3)
    assert [line["rate_rps"] for line in (calm, busy)] == pytest.approx([40.0, 160.0], rel=1e-3)
    assert 1 <= calm["replicas"] < busy["replicas"]
    assert result["gpu_hours"] == pytest.approx(busy["replicas"] * 30.0 / 3600.0, rel=1e-3)


def test_percentiles_of_few_requests_of_a_stage_say_so(tmp_path: Path, capsys: Capsys) -> None:
    args = asked(tmp_path, "ttft_p99=60ms", ((5.0, 10.0), (100.0, 20.0)))
    assert "requests in 1 of 2 stages" in out(capsys, *args)
