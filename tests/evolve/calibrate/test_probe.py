"""`evolve probe`: which runs it offers, what it expects of them, and whether they narrow intervals on known truths."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from probe_truth import World, narrowed

from evaluator.intervals import WAITING, Residual, waiting_share
from evaluator.score import MEANS, predictions, score_set
from evolve.calibrate.prior import Prior, moved, sizes
from evolve.cli import run_command
from evolve.plan.loads import CANDIDATES, bases, grid, sustained
from evolve.plan.warnings import never_starts
from evolve.run.program import load
from simulator.common.errors import InputError
from simulator.serving.bundled import load_experiments
from simulator.serving.experiment import Stage
from simulator.serving.workload import offered_requests

PLAN = """
version: 1
experiments:
- id: plan
  model: llama-3.1-8b
  hardware: H100
  engine: {tensor_parallel: 1, max_num_seqs: 64, total_kv_blocks: 9000}
  workload: {name: chat, stages: [{rate: 4.0, duration_s: 60}], prompt_len: 700, output_len: 100}
"""
MODEL = ["--model", "llama-3.1-8b", "--hardware", "H100", "--tp", "1"]


def probed(capsys: pytest.CaptureFixture[str], *args: str) -> dict[str, Any]:
    assert run_command(["probe", *args, "--json"]) == 0, capsys.readouterr().err
    result: dict[str, Any] = json.loads(capsys.readouterr().out)
    return result


@pytest.mark.slow
def test_chosen_runs_narrow_intervals_more_than_random_ones_on_known_truths() -> None:
    """Targets on one GPU, by the mean; the medians of these eight truths are 8.2 and 4.5 points.

    `python tools/probe_truth.py` has more truths, and targets on two GPUs, for which it is not so.
    """
    n = narrowed(1, 8)
    assert n.chosen.mean() >= 2.0 * n.random.mean() > 0.0
    assert n.chosen.min() > 0.0


def test_the_widths_before_are_those_of_predict_and_fall_with_every_run() -> None:
    world = World(1)
    result = world.probe(3)
    assert result.width_pct[0] == pytest.approx(world.width(world.program, world.members))
    assert result.width_pct == sorted(result.width_pct, reverse=True) and result.helps
    assert world.probe(1).width_pct[0] == result.width_pct[0]


def test_constants_move_as_far_together_as_their_errors_and_correlations_say() -> None:
    champion = load("champion")
    shifted, missing = moved(champion)
    theta = np.array(champion.complete.theta)
    steps = np.array([np.array(p.theta) - theta for p in shifted])
    names = [f"{f.name}.{c.name}" for f in champion.complete.functions for c in f.constants]
    known = champion.record.constants if champion.record and champion.record.constants else {}
    for i, one in enumerate(names):
        for j, other in enumerate(names):
            errors = known[one].standard_error or 0.0, known[other].standard_error or 0.0
            # correlations are recorded to two or three digits, so the matrix need not be quite definite
            wanted = errors[0] * errors[1] * known[one].correlated.get(other, float(i == j))
            assert steps[:, i] @ steps[:, j] == pytest.approx(wanted, abs=0.02 * errors[0] * errors[1])
    assert missing == () or missing[0].startswith("standard errors of ")


def test_rates_are_shares_of_what_the_program_sustains_and_no_prompt_repeats() -> None:
    program = load("champion").complete
    runs = grid(program, {"model": "llama-3.1-8b", "hardware": "H100"}, (1,), CANDIDATES, "")
    assert len(runs) == 9 and all(run.experiment.workload.source.groups == 0 for run in runs)
    first = runs[0].experiment
    most = sustained(program, first)
    # arrivals depend on the id, and the id on the rate
    assert [run.rate for run in runs[:3]] == pytest.approx([share * most for share in CANDIDATES], rel=0.06)
    shares = []
    for rate in (most, 1.1 * most):
        load_ = replace(first.workload, stages=(Stage(rate, first.workload.stages[0].duration_s),))
        shares.append(waiting_share(predictions(program, score_set([replace(first, workload=load_)], [1]))[0]))
    assert shares[0] <= WAITING < shares[1]
    # long enough for a hundred requests
    assert {run.experiment.workload.stages[0].duration_s for run in runs if run.rate >= 1.0} == {120.0}
    assert all(offered_requests(run.experiment.workload) >= 100 for run in runs)
    prompts = runs[0].load_generator["data"]["shared_prefix"]
    assert prompts["num_prompts_per_group"] == round(runs[0].rate * 120) and prompts["question_len"] == 184
    with pytest.raises(InputError, match="leaves no room for KV cache"):  # 140 GB of weights
        grid(program, {"model": "llama-2-70b", "hardware": "H100"}, (1,), CANDIDATES, "")


def test_deployments_are_those_of_the_targets_each_once() -> None:
    a, b = {"model": "a", "hardware": "H100"}, {"model": "b", "hardware": {"name": "x"}}
    load_ = {"id": "1", "workload": {}, "observed": {}}
    assert bases([a | load_, b | load_, a | load_ | {"engine": {"tensor_parallel": 2}}]) == [a, b]


def test_the_sizes_of_the_parts_come_from_the_residuals() -> None:
    """Two folds whose two runs are off alike, by 0.1 and -0.1: everything is shared. TTFT alternates: nothing is."""
    rows = [
        Residual(f"models without {fold}", f"{fold}{i}", {"e2e": e2e, "itl": e2e, "ttft": ttft}, {})
        for fold, e2e in (("a", 0.1), ("b", -0.1))
        for i, ttft in enumerate((0.2, -0.2))
    ]
    shared, alone = (np.sqrt(np.diag(part)) for part in sizes(rows))
    assert shared == pytest.approx([0.1 / 0.6745, 0.0, 0.1 / 0.6745])
    assert alone == pytest.approx([0.0, 0.2 / 0.6745, 0.0], abs=1e-5)
    nothing = [np.zeros((n, 2 * len(MEANS))) for n in (1, 2, 0)]
    runs = [
        run.experiment
        for run in grid(
            load("champion").complete, bases([{"model": "llama-2-7b", "hardware": "H100"}])[0], (1,), (0.2,), ""
        )
    ][:2]
    prior = Prior.of(nothing, sizes(rows), runs, 1)
    # of one deployment: what is shared is learned by measuring the other run, whose noise is nothing
    assert prior.joint().posterior([0])[0] == pytest.approx(0.0, abs=1e-9)
    assert prior.joint().prior[0] == pytest.approx((0.1 / 0.6745) ** 2)
    assert prior.spread([0]).tolist() == [[0.0] * len(MEANS)]


@pytest.mark.slow
def test_the_command_writes_runs_that_predict_reads(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    plan, out = tmp_path / "plan.yaml", tmp_path / "next.yaml"
    plan.write_text(PLAN)
    result = probed(capsys, "--experiments", str(plan), "--tp", "1,2", "--budget-runs", "2", "--out", str(out))
    assert result["candidates"] == 18 and [t["id"] for t in result["targets"]] == ["plan"]
    assert result["helps"] is False  # held-out errors make these intervals wide, not what programs disagree on
    written = load_experiments(out)
    assert [e.id for e in written] == [run["id"] for run in result["runs"]]
    for e, run in zip(written, result["runs"], strict=True):
        assert e.engine.max_num_seqs == 64 and (e.engine.total_kv_blocks == 9000) == (run["tp"] == 1)
        assert run["gpu_minutes"] == run["tp"] * run["duration_s"] / 60.0
        assert run["duration_s"] == e.workload.stages[0].duration_s == max(120.0, 10.0 * math.ceil(10.0 / run["rate"]))
        assert math.isclose(e.workload.stages[0].rate, run["load_generator"]["load"]["stages"][0]["rate"])
    assert "observed" not in yaml.safe_load(out.read_text())["experiments"][0]
    assert run_command(["predict", "champion", "--experiments", str(out)]) == 0
    capsys.readouterr()
    assert run_command(["probe", *MODEL, "--budget-runs", "1"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "Nothing here would help" in shown and "Widths of 80 % intervals in percent of the prediction" in shown


def test_on_a_gpu_that_nobody_measured_the_first_advice_is_to_measure(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """And the intervals have the warning of predict. With H100 alone there is none (the test above)."""
    args = "--model", "llama-3.1-8b", "--hardware", "L40S", "--tp", "1", "--budget-runs", "2"
    out = tmp_path / "next.yaml"
    result = probed(capsys, *args, "--out", str(out))
    first, second = result["runs"]
    assert result["helps"] and result["measure_first"] == {"L40S-48GB": first["id"]} and first["id"] != second["id"]
    said = "no run on another GPU was held out, so the intervals on L40S-48GB are too narrow"
    assert all(target["narrow"] and said in target["warnings"] for target in result["targets"])
    assert run_command(["predict", "champion", "--experiments", str(out), "--json"]) == 0
    assert all(said in e["warnings"] for e in json.loads(capsys.readouterr().out)["experiments"])
    other = tmp_path / "other.yaml"
    assert run_command(["probe", *args, "--out", str(other)]) == 0
    lines = capsys.readouterr().out.splitlines()
    shown = " ".join(" ".join(lines).split())
    assert "Nothing here would help" not in shown
    assert f"First measure {first['id']}, fit the program on it, and probe again with the fitted program." in shown
    assert all(line.rstrip().endswith("?") for line in lines if line.startswith("target-"))
    assert f"- {said} (all)" in lines
    assert f"Written: {other}. Before it can be fitted, the measured means go under `observed` in it." in shown
    assert lines[-2:] == ["Next:", f"  evolve fit champion --experiments {other} --out mine.py"]


@pytest.mark.slow
def test_a_run_on_a_gpu_that_nobody_measured_comes_first(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Of two targets the one on an H100 needs none. Without a run on the other's GPU the remedy is to offer some."""
    plan = tmp_path / "plan.yaml"
    plan.write_text(PLAN + PLAN.partition("experiments:")[2].replace("id: plan", "id: far").replace("H100", "L40S"))
    args = "--experiments", str(plan), "--tp", "1", "--budget-runs", "1"
    result = probed(capsys, *args)
    assert (
        result["runs"][0]["hardware"] == "L40S-48GB" and result["measure_first"]["L40S-48GB"] == result["runs"][0]["id"]
    )
    assert [target["narrow"] for target in result["targets"]] == [False, True]
    result = probed(capsys, *args, "--hardware", "H100")
    assert result["measure_first"] == {"L40S-48GB": None} and {run["hardware"] for run in result["runs"]} == {
        "H100-SXM-80GB"
    }
    assert run_command(["probe", *args, "--hardware", "H100"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert (
        "Have a run on it chosen first: give --hardware L40S-48GB." in shown and "Nothing here would help" not in shown
    )


def test_model_or_gpu_alone_is_of_the_targets_otherwise(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    plan, out = tmp_path / "plan.yaml", tmp_path / "next.yaml"
    plan.write_text(PLAN)
    args = "--experiments", str(plan), "--tp", "1", "--budget-runs", "1"
    for given, model, gpu in (
        (["--hardware", "A100"], "llama-3.1-8b", "A100"),
        (["--model", "llama-2-7b"], "llama-2-7b", "H100"),
    ):
        probed(capsys, *args, *given, "--out", str(out))
        [entry] = yaml.safe_load(out.read_text())["experiments"]
        assert (entry["model"], entry["hardware"]) == (model, gpu)
        assert entry["engine"] == {"tensor_parallel": 1, "max_num_seqs": 64}  # the KV blocks were measured on its own
        out.unlink()


def test_vllm_starts_with_the_runs_that_are_offered() -> None:
    """Llama 3.1 70B on four L40S has room for 82,640 tokens, and a context of 131,072."""
    offered = grid(load("champion").complete, {"model": "llama-3.1-70b", "hardware": "L40S"}, (4,), (0.6,), "")
    assert [run.entry["engine"]["max_model_len"] for run in offered] == [81920] * 3
    assert [run.to_json()["max_model_len"] for run in offered] == [81920] * 3
    assert not any(never_starts(run.experiment.facts) for run in offered)
    [short] = [run for run in offered if run.shape == "long-prompts"]
    assert short.rate < 100 / 120 and offered_requests(short.experiment.workload) >= 100
    assert short.gpu_minutes == 4 * short.experiment.workload.stages[0].duration_s / 60 > 8.0


def test_a_target_of_which_no_request_completes_is_none(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    lost = (
        PLAN.partition("experiments:\n")[2]
        .replace("id: plan", "id: lost")
        .replace("{name: chat,", "{name: chat, timeout_s: 0.001,")
    )
    both, alone = tmp_path / "both.yaml", tmp_path / "lost.yaml"
    both.write_text(PLAN.rstrip() + "\n" + lost)
    alone.write_text("version: 1\nexperiments:\n" + lost)
    result = probed(capsys, "--experiments", str(both), "--tp", "1", "--budget-runs", "1")
    assert [t["id"] for t in result["targets"]] == ["plan"] and result["lost"] == {"lost": "every client gives up"}
    assert all(math.isfinite(width) for width in result["width_80_pct"]) and not result["saturated"]
    assert run_command(["probe", "--experiments", str(both), "--tp", "1", "--budget-runs", "1"]) == 0
    assert "lost: no request of it completes in the replay, every client gives up" in " ".join(
        capsys.readouterr().out.split()
    )
    assert run_command(["probe", "--experiments", str(alone), "--tp", "1", "--budget-runs", "1", "--json"]) == 2
    assert (
        "no request of any target completes in the replay, as of lost: every client gives up" in capsys.readouterr().err
    )


@pytest.mark.parametrize(
    ("args", "problem"),
    [
        (["floor", *MODEL], "floor: has no intervals that runs could narrow: give champion"),
        ([], "what to predict is missing: give --experiments FILE, or --model and --hardware"),
        (["--model", "llama-3.1-8b"], "--model and --hardware go together"),
        (["--hardware", "H100"], "--model and --hardware go together"),
        ([*MODEL[:4], "--tp", "1,x"], "--tp 1,x: must be whole numbers above 0"),
        (["--model", "no-such", "--hardware", "H100"], "--model no-such: is not a known model"),
        (
            ["--model", "llama-2-70b", "--hardware", "H100", "--tp", "1"],
            "leaves no room for KV cache, 128.5 GiB of weights",
        ),
        ([*MODEL[:4], "--tp", "3"], "engine.tensor_parallel must divide the model's 32 attention heads"),
        ([*MODEL, "--id", "x"], "--id names runs of a file"),
    ],
)
def test_what_is_wrong_is_a_line(capsys: pytest.CaptureFixture[str], args: list[str], problem: str) -> None:
    assert run_command(["probe", *args]) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1 and problem in err
