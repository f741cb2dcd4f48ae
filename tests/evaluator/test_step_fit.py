"""`evolve fit --steps`: constants of step_time from single steps, and what the fit on load stages makes of them then."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import Capsys, as_json, flat, printed, refused
from laws import law
from step_tables import experiment, experiments_file, ingested_rows, write

from evaluator.fit.steps import STRENGTHS, StepRun, fit_steps, step_positions
from evaluator.judge.sweep import decode_batch, table_of
from evolve.run.program import load
from simulator.clock.bind import bind
from simulator.clock.fields import raw_fields
from simulator.language.ir import Program
from simulator.language.opcodes import assemble
from simulator.serving.bundled import bundled_experiments

RUNS = {e.id: e for e in bundled_experiments()}
SEVEN = "llama-2-7b-tp1-codegen"
TRUTH = law(
    """
def step_time(b, s, *, weights: one = 1.2, kv: one = 1.5, layer: us = 40.0, sort: us = 3.0, most: one[0.0, 2.0] = 1.0):
    return weights * b.weight_read_us + kv * b.kv_read_us + layer * s.layers + sort * s.experts + most * b.logits_us
""",
    "def queueing_time(r, s, *, base: us = 8000.0): return base",
)


def measured(program: Program, counts: dict[str, int]) -> list[StepRun]:
    """Decode batches of each run with the time that the program gives them."""
    out = []
    for ident, n in counts.items():
        raw = table_of([decode_batch(1 + (7 * i) % 100, 300 + (37 * i) % 900) for i in range(n)])
        facts = RUNS[ident].facts
        out.append(StepRun(facts, raw, bind(assemble(program), program.theta, facts).steps_us(raw)))
    return out


def test_the_constants_of_a_law_are_found_from_its_steps() -> None:
    runs = measured(TRUTH, {SEVEN: 40, "llama-2-70b-tp4-general": 60, "codellama-34b-tp2-general": 50})
    assert step_positions(TRUTH) == (0, 1, 2, 3, 4)
    start = TRUTH.with_theta((2.0, 3.0, 5.0, 2.5, 0.2, 5000.0))
    found = fit_steps(start, runs).program.theta
    np.testing.assert_allclose(found[:3], TRUTH.theta[:3], rtol=0.02)
    assert found[3] == 2.5 and found[5] == 5000.0  # nothing bears on the sort of experts, nor on what is no step's
    held = fit_steps(start, runs, held=(0,)).program.theta
    assert held[0] == 2.0 and held[2] < 10.0 < found[2]  # what the weights take too much, the layers lack
    # a law beyond the bounds ends at them
    beyond = measured(TRUTH.with_theta((0.5, 1.5, 0.0, 0.0, 0.0, 0.0)), {SEVEN: 30, "llama-2-70b-tp4-general": 30})
    assert fit_steps(start, beyond).program.theta[0] == 1.0  # nothing beats the datasheet


def test_runs_weigh_the_same_however_many_steps_they_have() -> None:
    """Two runs of one deployment that disagree by 2 percent are met halfway, with 10 steps of one and 200 of the other."""
    low, high = measured(TRUTH, {SEVEN: 10})[0], measured(TRUTH, {SEVEN: 200})[0]
    runs = [StepRun(low.facts, low.raw, 0.99 * low.observed_us), StepRun(high.facts, high.raw, 1.01 * high.observed_us)]
    found = fit_steps(TRUTH, runs, held=(1, 2, 3, 4)).program
    predicted = [bind(assemble(found), found.theta, r.facts).steps_us(r.raw) for r in runs]
    errors = [float(np.mean(p / r.observed_us - 1)) for p, r in zip(predicted, runs, strict=True)]
    assert errors[0] == pytest.approx(0.01, abs=2e-3) and errors[1] == pytest.approx(-0.01, abs=2e-3)


def test_fitted_constants_stay_if_a_run_cannot_tell_them_apart() -> None:
    """In one run the weights' reading and the layers are one number, so steps 5 percent longer fit either."""
    (run,) = measured(TRUTH, {SEVEN: 100})
    runs = [StepRun(run.facts, run.raw, 1.05 * run.observed_us)]
    found = fit_steps(TRUTH, runs, fitted_before=True).program
    assert all(abs(a / b - 1) < 0.3 for a, b in zip(found.theta[:3], TRUTH.theta[:3], strict=True))
    predicted = bind(assemble(found), found.theta, run.facts).steps_us(run.raw)
    assert abs(np.mean(predicted / runs[0].observed_us - 1)) < 0.02


def table(path: Path, factor: float) -> Path:
    """200 steps of a shipped run under async scheduling, whose time is `factor` times the shipped floor program's."""
    rows = ingested_rows([1] * 200, asynchronous=True, ident=SEVEN)
    start = 10**12
    batches = [decode_batch(1 + (7 * i) % 60, 300 + (37 * i) % 900) for i in range(len(rows))]
    floor = load("floor").complete
    time_us = factor * bind(assemble(floor), floor.theta, RUNS[SEVEN].facts).steps_us(table_of(batches))
    for i, row in enumerate(rows):
        row |= raw_fields(batches[i]) | {"ts_start_ns": start}
        start += round(1000 * time_us[max(i - 1, 0)])
    return write(path, rows)


def fitted(capsys: Capsys, *args: object) -> dict[str, Any]:
    found: dict[str, Any] = as_json(capsys, "fit", *args)
    return found


def test_a_fit_goes_over_the_steps_first_and_shows_every_stage(tmp_path: Path, capsys: Capsys) -> None:
    steps, out = table(tmp_path / "s.parquet", 1.3), tmp_path / "mine.py"
    args = "floor", "--id", f"{SEVEN},llama-2-7b-tp1-roleplay", "--steps", steps
    found = fitted(capsys, *args, "--out", out)
    per = found["steps"]["per_step"]
    assert per["before"]["train"]["bias_pct"] == pytest.approx(100 / 1.3 - 100, abs=0.01)
    for split, count in (("train", 120), ("test", 39)):
        assert [per[when][split]["steps"] for when in per] == [count] * 3
        assert per["after_steps"][split]["mape_pct"] < 0.5 < per["before"][split]["mape_pct"]
    (run,) = found["steps"]["runs"]
    assert (run["id"], run["file"], run["usable"], run["fitted"]) == (SEVEN, str(steps), 199, 120)
    by_name = {f"{c['method']}.{c['name']}": c for c in found["constants"]}
    assert by_name["queueing_time.alpha0"]["after_steps"] == by_name["queueing_time.alpha0"]["before"]
    assert by_name["step_time.weights"]["after_steps"] > by_name["step_time.weights"]["before"] == 1.0
    record = json.loads(out.with_suffix(".json").read_text())
    assert record["steps"]["split"] == "train" and list(record["steps"]["runs"]) == [SEVEN]
    other = table(tmp_path / "t.parquet", 1.4)  # another measurement of the run
    for scored, words in ((steps, f"Fitted on the train split of the steps of {SEVEN}"), (other, "Nothing was fitted")):
        assert words in printed(capsys, "fit", "--score-steps", out, "--steps", scored)
    assert f"{SEVEN} 120 of 199" in flat(capsys, "fit", *args, "-v")
    only = fitted(capsys, *args, "--only", "weights,alpha")
    step = [c for c in only["constants"] if c["method"] == "step_time" and c["name"] != "weights"]
    assert step and all(c["held"] and c["before"] == c["after_steps"] == c["after"] for c in step)


def test_the_loss_of_the_steps_is_recorded(tmp_path: Path, capsys: Capsys) -> None:
    steps, out = table(tmp_path / "s.parquet", 1.3), tmp_path / "mine.py"
    args = ("floor", "--id", f"{SEVEN},llama-2-7b-tp1-roleplay", "--steps", str(steps))
    usual = fitted(capsys, *args)
    assert [usual["steps"][x] for x in ("loss", "quantile", "strength", "smearing")] == ["relative", None, None, None]

    ridge = fitted(capsys, *args, "--loss", "ridge")["steps"]
    assert ridge["strength"] in STRENGTHS and ridge["per_step"]["after_steps"]["test"]["mape_pct"] < 0.5

    log = fitted(capsys, *args, "--loss", "log", "--out", str(out))
    smearing = next(c for c in log["constants"] if c["name"] == "smearing")
    assert smearing["before"] == 1.0 and smearing["after_steps"] == pytest.approx(log["steps"]["smearing"], rel=1e-5)
    assert log["steps"]["operations"] == 1 and log["key"] != usual["key"]
    assert log["before"] == usual["before"]  # the larger form predicts what the program predicted
    record = json.loads(out.with_suffix(".json").read_text())["steps"]
    assert record["loss"] == "log" and record["smearing"] == log["steps"]["smearing"]
    again = fitted(capsys, str(out), *args[1:], "--loss", "log")
    assert again["steps"]["operations"] == 0 and again["key"] == log["key"]


def test_a_quantile_of_steps_stays_in_the_fit_on_stages(tmp_path: Path, capsys: Capsys) -> None:
    steps, out = table(tmp_path / "s.parquet", 1.3), tmp_path / "mine.py"
    args = ("champion", "--id", SEVEN, "--steps", str(steps), "--loss", "quantile", "--quantile", "0.9")
    result = fitted(capsys, *args, "--out", str(out))
    in_steps = [c for c in result["constants"] if c["method"] == "step_time"]
    assert in_steps and all(c["held"] and c["after"] == c["after_steps"] for c in in_steps)
    assert any(c["after"] != c["before"] for c in in_steps)
    assert any(not c["held"] for c in result["constants"])
    coverage = result["steps"]["coverage"]
    # the times are almost exact: errors are so small that the smoothed loss is no longer that of the quantile
    assert 0.75 < coverage["train"] < 1.0 and 0.0 < coverage["test"] <= 1.0
    record = json.loads(out.with_suffix(".json").read_text())
    assert record["steps"]["quantile"] == 0.9 and record["steps"]["coverage"] == coverage
    # what an earlier fit knew of a constant's error says nothing of its quantile, nor do intervals of means
    assert all(c["standard_error"] is None for name, c in record["constants"].items() if name.startswith("step_time."))
    assert result["ensemble"] is None and "a quantile" in result["no_intervals"]
    assert f"{coverage['train']:.1%}" in printed(capsys, "fit", *args, "-v")
    printed(capsys, "show", out)


REFUSED = """
--steps OF_RUN --scope per-model => one value for all models
--steps OF_RUN --per-model weights => one value for all models
--sync => --steps
--loss log => --steps
--steps OF_RUN --quantile 0.9 => --loss quantile
--steps OF_RUN --only alpha => --only
--steps OF_PLAN --experiments PLAN => observed
--steps OF_PLAN --experiments BOTH => no usable cycle
--steps OF_PLAN => 9 steps of no experiment
"""


def test_steps_that_cannot_be_fitted_are_refused(tmp_path: Path, capsys: Capsys) -> None:
    observed = {"summary": {"e2e_ms": {"mean": 900.0}, "ttft_ms": {"mean": 20.0}}}
    files = {
        "OF_RUN": table(tmp_path / "s.parquet", 1.0),
        "OF_PLAN": write(tmp_path / "plan.parquet", ingested_rows([3] * 9, asynchronous=True)),
        "PLAN": experiments_file(tmp_path / "plan.yaml", experiment()),
        "BOTH": experiments_file(tmp_path / "both.yaml", experiment(), experiment("seen", observed=observed)),
    }
    for row in REFUSED.strip().splitlines():
        args, _, words = row.partition(" => ")
        assert words in refused(capsys, "fit", "floor", *(files.get(word, word) for word in args.split())), row
