"""`evolve probe`: which runs it offers, what it expects of them, and whether they narrow intervals on known truths."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import yaml
from commands import Capsys, as_json, flat, printed, refused
from probe_truth import World, narrowed

from evaluator.intervals import Residual, waiting_share
from evaluator.metrics import WAITING
from evaluator.score import MEANS, predictions, score_set
from evolve.calibrate.prior import Prior, moved, sizes
from evolve.plan.loads import CANDIDATES, deployments, grid, new_deployment, sustained
from evolve.plan.warnings import never_starts
from evolve.run.program import load
from simulator.common.errors import InputError
from simulator.serving.bundled import load_experiments
from simulator.serving.workload import Stage, offered_requests

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


@pytest.fixture
def plan(tmp_path: Path) -> Path:
    (tmp_path / "plan.yaml").write_text(PLAN)
    return tmp_path / "plan.yaml"


@pytest.mark.slow
def test_chosen_runs_narrow_intervals_more_than_random_ones() -> None:
    """Targets on one GPU, by the mean; the medians of these eight truths are 8.2 and 4.5 points.

    `python tools/probe_truth.py` has more truths, and targets on two GPUs, for which it is not so.
    """
    n = narrowed(1, 8)
    assert n.chosen.mean() >= 2.0 * n.random.mean() > 0.0
    assert n.chosen.min() > 0.0


@pytest.mark.slow
def test_widths_are_those_of_predict_and_fall() -> None:
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


def test_rates_are_shares_of_what_a_program_sustains() -> None:
    program = load("champion").complete
    runs = grid(program, new_deployment("llama-3.1-8b", "H100"), (1,), CANDIDATES, "")
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
        grid(program, new_deployment("llama-2-70b", "H100"), (1,), CANDIDATES, "")
    # deployments are those of the targets, each once
    a, b = new_deployment("llama-2-7b", "H100"), new_deployment("llama-2-7b", "A100-80")
    assert deployments([a, b, a.vary(tp=2)]) == [a, b]


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
    offered = grid(load("champion").complete, new_deployment("llama-2-7b", "H100"), (1,), (0.2,), "")
    prior = Prior.of(nothing, sizes(rows), [run.experiment for run in offered[:2]], 1)
    # of one deployment: what is shared is learned by measuring the other run, whose noise is nothing
    assert prior.joint().posterior([0])[0] == pytest.approx(0.0, abs=1e-9)
    assert prior.joint().prior[0] == pytest.approx((0.1 / 0.6745) ** 2)
    assert prior.spread([0]).tolist() == [[0.0] * len(MEANS)]


@pytest.mark.slow
def test_the_command_writes_runs_that_predict_reads(capsys: Capsys, plan: Path, tmp_path: Path) -> None:
    out = tmp_path / "next.yaml"
    result = as_json(capsys, "probe", "--experiments", plan, "--tp", "1,2", "--budget-runs", "2", "--out", out)
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
    printed(capsys, "predict", "champion", "--experiments", out)
    helps = as_json(capsys, "probe", *MODEL, "--budget-runs", "1")["helps"]
    assert ("Nothing here would help" in flat(capsys, "probe", *MODEL, "--budget-runs", "1")) == (not helps)


def test_on_an_unmeasured_gpu_the_advice_is_to_measure(capsys: Capsys, tmp_path: Path) -> None:
    """And the intervals have the warning of predict. With H100 alone there is none (the test above)."""
    out = tmp_path / "next.yaml"
    args = *MODEL[:3], "L40S", "--tp", "1", "--budget-runs", "2", "--out", out
    result = as_json(capsys, "probe", *args)
    first, second = result["runs"]
    assert result["helps"] and result["measure_first"] == {"L40S-48GB": first["id"]} and first["id"] != second["id"]
    said = "no fitted run has GPU L40S-48GB: the intervals are widened"
    forecast = as_json(capsys, "predict", "champion", "--experiments", out)["experiments"]
    for warned in (*result["targets"], *forecast):
        assert any(text.startswith(said) for text in warned["warnings"])
    assert all(target["narrow"] for target in result["targets"])
    out.unlink()
    lines = printed(capsys, "probe", *args).splitlines()
    shown = " ".join(" ".join(lines).split())
    assert "Nothing here would help" not in shown and f"First measure {first['id']}" in shown and str(out) in shown
    assert all(line.rstrip().endswith("?") for line in lines if line.startswith("target-"))
    assert any(line.startswith(f"- {said}") for line in lines)
    assert lines[-2:] == ["Next:", f"  evolve fit champion --experiments {out} --out mine.py"]


@pytest.mark.slow
def test_a_run_on_an_unmeasured_gpu_comes_first(capsys: Capsys, plan: Path) -> None:
    """The target on an H100 needs no run. Without a run on the other's GPU the remedy is to offer some."""
    plan.write_text(PLAN + PLAN.partition("experiments:")[2].replace("id: plan", "id: far").replace("H100", "L40S"))
    args = "--experiments", plan, "--tp", "1", "--budget-runs", "1"
    result = as_json(capsys, "probe", *args)
    [run] = result["runs"]
    assert run["hardware"] == "L40S-48GB" and result["measure_first"]["L40S-48GB"] == run["id"]
    assert [target["narrow"] for target in result["targets"]] == [False, True]
    result = as_json(capsys, "probe", *args, "--hardware", "H100")
    assert result["measure_first"] == {"L40S-48GB": None}
    assert {run["hardware"] for run in result["runs"]} == {"H100-SXM-80GB"}
    shown = flat(capsys, "probe", *args, "--hardware", "H100")
    assert "give --hardware L40S-48GB" in shown and "Nothing here would help" not in shown


@pytest.mark.parametrize(
    ("given", "model", "gpu"),
    [("--hardware A100", "llama-3.1-8b", "A100-SXM-80GB"), ("--model llama-2-7b", "llama-2-7b", "H100-SXM-80GB")],
)
def test_a_missing_model_or_gpu_is_that_of_the_targets(
    given: str, model: str, gpu: str, capsys: Capsys, plan: Path, tmp_path: Path
) -> None:
    out = tmp_path / "next.yaml"
    at = "--experiments", plan, "--tp", "1", "--budget-runs", "1", "--out", out
    as_json(capsys, "probe", *at, *given.split())
    [entry] = yaml.safe_load(out.read_text())["experiments"]
    assert (entry["model"], entry["hardware"]) == (model, gpu)
    assert entry["engine"] == {"tensor_parallel": 1, "max_num_seqs": 64}  # the KV blocks were measured on its own


def test_vllm_starts_with_the_runs_that_are_offered() -> None:
    """Llama 3.1 70B on four L40S has room for 82,640 tokens, and a context of 131,072."""
    offered = grid(load("champion").complete, new_deployment("llama-3.1-70b", "L40S"), (4,), (0.6,), "")
    assert [run.spec.engine.max_model_len for run in offered] == [81920] * 3
    assert [run.to_json()["max_model_len"] for run in offered] == [81920] * 3
    assert not any(never_starts(run.experiment.facts) for run in offered)
    [short] = [run for run in offered if run.shape == "long-prompts"]
    assert short.rate < 100 / 120 and offered_requests(short.experiment.workload) >= 100
    assert short.gpu_minutes == 4 * short.experiment.workload.stages[0].duration_s / 60 > 8.0


def test_a_target_without_a_completed_request_is_left_out(capsys: Capsys, plan: Path) -> None:
    lost = PLAN.partition("experiments:\n")[2].replace("id: plan", "id: lost")
    lost = lost.replace("{name: chat,", "{name: chat, timeout_s: 0.001,")
    plan.write_text(PLAN.rstrip() + "\n" + lost)
    args = "--experiments", plan, "--tp", "1", "--budget-runs", "1"
    result = as_json(capsys, "probe", *args)
    assert [t["id"] for t in result["targets"]] == ["plan"] and result["lost"] == {"lost": "every client gives up"}
    assert all(math.isfinite(width) for width in result["width_80_pct"]) and not result["saturated"]
    shown = flat(capsys, "probe", *args)
    assert "lost: " in shown and "every client gives up" in shown
    plan.write_text("version: 1\nexperiments:\n" + lost)
    assert "lost: every client gives up" in refused(capsys, "probe", *args)


@pytest.mark.parametrize(
    ("args", "problem"),
    [
        (["floor", *MODEL], "floor: has no intervals"),
        ([], "--experiments FILE, or --model and --hardware"),
        (MODEL[:2], "--model and --hardware go together"),
        (MODEL[2:4], "--model and --hardware go together"),
        ([*MODEL[:4], "--tp", "1,x"], "--tp 1,x: "),
        (["--model", "no-such", "--hardware", "H100"], "--model no-such: "),
        (["--model", "llama-2-70b", *MODEL[2:]], "128.5 GiB of weights"),
        ([*MODEL[:4], "--tp", "3"], "32 attention heads"),
        ([*MODEL, "--id", "x"], "--id names runs of a file"),
    ],
)
def test_impossible_probes_are_refused(capsys: Capsys, args: list[str], problem: str) -> None:
    assert problem in refused(capsys, "probe", *args)
