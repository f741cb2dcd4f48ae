"""`evolve show --ablate`: each part of a program dropped, the rest fitted again, in sample and held out."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny_world
from commands import Capsys, as_json, flat, refused

from archive.score import Errors
from evaluator.fit.fit import fit_set
from evaluator.group_out import fitted_without
from evaluator.metrics import LATENCIES
from evaluator.score import MEANS, error_rows, predictions, score_set
from evolve.inspect.ablation import (
    DOES_NOT,
    EARNS,
    NEEDED,
    NEGLIGIBLE,
    UNDECIDED,
    Ablation,
    ablate,
    runs_left_out,
    verdict,
)
from evolve.output.progress import Line
from evolve.run.folder import open_run
from evolve.run.program import Source
from evolve.search.pool.local import Here
from simulator.language.parse import parse
from simulator.serving.bundled import bundled_experiments, load_experiments
from simulator.serving.experiment import Experiment
from simulator.serving.observations import Observed

TRUTH = """
def step_time(b, s, *, weights: one = 1.3, context: us/token = 0.15):
    return weights * s.weights_us + context * b.kv_decode_sum
def queueing_time(r, s, *, wait: us = 9000.0): return wait
"""
# The same, and a term that the truth has not.
IDLE = TRUTH.replace("0.15)", "0.15, idle: us/request = 1.0)").replace("_sum\n", "_sum + idle * b.prefill_reqs\n")


def runs(noise_pct: float = 0.0) -> list[Experiment]:
    """Eight short runs of seven models as the truth has them, each off by a draw of so much noise."""
    chosen, rng = list[Experiment](), np.random.default_rng(7)
    for e in bundled_experiments():
        if e.workload.name == "codegen" or e.id == "llama-2-7b-tp1-roleplay":
            stages = tuple(replace(stage, duration_s=20.0) for stage in e.workload.stages)
            chosen.append(replace(e, workload=replace(e.workload, stages=stages)))
    seen = []
    for e, p in zip(chosen, predictions(parse(TRUTH), score_set(chosen, [77])), strict=True):
        off = np.exp(rng.normal(0.0, noise_pct / 100.0))
        assert p.predicted.summary

        def moved(o: Any, off: float = off) -> Any:
            of = {name: getattr(o, name) for name in LATENCIES}
            return replace(o, **{name: replace(of[name], mean=of[name].mean * off) for name in of})

        seen.append(replace(e, observed=Observed(moved(p.predicted.summary), tuple(map(moved, p.predicted.stages)))))
    return seen


@pytest.fixture(scope="module")
def result() -> Ablation:
    return ablate(Source("idle", IDLE, parse(IDLE)), runs(noise_pct=1.0), Here(Line(quiet=True)))


def test_the_terms_of_the_truth_earn_their_place(result: Ablation) -> None:
    verdicts = {part.text: part.verdict for part in result.parts}
    assert verdicts["weights * s.weights_us"] == verdicts["context * b.kv_decode_sum"] == verdicts["wait"] == EARNS
    assert verdicts["idle * b.prefill_reqs"] in (DOES_NOT, UNDECIDED)
    idle = next(part for part in result.parts if part.text == "idle * b.prefill_reqs")
    assert idle.difference_pct is not None and idle.difference_pct < 0.1
    assert idle.measured and idle.measured.constants <= result.full.constants
    assert result.seen is None and "not known with which runs" in result.hindsight


def test_held_out_errors_are_those_of_fits_that_never_saw_the_run(result: Ablation) -> None:
    """Repeated here for one fold: the form without its context, fitted to the other models, on the first model's."""
    data = runs(noise_pct=1.0)
    bare = IDLE.replace("context: us/token = 0.15, ", "").replace("context * b.kv_decode_sum + ", "")
    part = next(p for p in result.parts if p.text == "context * b.kv_decode_sum")
    held = [i for i, e in enumerate(data) if e.model == data[0].model]
    train = fit_set([e for i, e in enumerate(data) if i not in held])
    (complete,) = [Source("bare", bare, parse(bare)).complete]
    rows = error_rows(fitted_without(complete, train), score_set([data[i] for i in held]))
    assert part.measured
    for i, row in zip(held, rows, strict=True):
        ours = part.measured.held_out["models"][i]
        assert (ours.e2e, ours.ttft, ours.itl) == pytest.approx((row.e2e, row.ttft, row.itl), rel=1e-6)


def test_the_difference_is_the_mean_over_runs_of_the_mean_over_kinds_of_folds(result: Ablation) -> None:
    """By hand from the errors themselves, each latency at most 30 %."""

    def size(row: Errors) -> float:
        return float(np.mean([min(abs(getattr(row, name)), 30.0) for name in MEANS]))

    def held_out(measured: Any) -> float:
        return float(np.mean([np.mean([size(r) for r in rows]) for rows in measured.held_out.values()]))

    assert set(result.full.held_out) == {"models", "tp", "architectures", "precisions", "workloads"}
    for part in result.parts:
        if part.measured:
            assert part.difference_pct == pytest.approx(held_out(part.measured) - held_out(result.full))


def test_a_verdict_needs_the_whole_interval() -> None:
    costs, full = np.array([0.5, 0.1]), 4.0
    assert verdict(costs, (0.2, 0.6), full) == EARNS
    assert verdict(costs, (-0.2, 0.6), full) == UNDECIDED
    assert verdict(costs, (0.01, NEGLIGIBLE * full), full) == DOES_NOT, "certain, but too little to matter"
    assert verdict(-costs, (-0.5, -0.1), full) == DOES_NOT
    assert verdict(costs, None, full) == UNDECIDED, "no interval"
    assert verdict(0.0 * costs, (0.0, 0.0), full) == UNDECIDED, "no run shows the part"


def test_runs_of_one_kind_are_left_out_one_by_one() -> None:
    alike = [e for e in bundled_experiments() if e.id == "llama-2-7b-tp1-roleplay"] * 3
    assert runs_left_out(alike) == {"runs": [[0], [1], [2]]}


@pytest.fixture
def data(tmp_path: Path) -> Path:
    (tmp_path / "data.yaml").write_text(tiny_world.DATA)
    return tmp_path / "data.yaml"


def test_workers_change_nothing_and_every_table_agrees(data: Path, tmp_path: Path, capsys: Capsys) -> None:
    args = ["show", "--ablate", "linear", "--experiments", data, "--csv", tmp_path / "parts.csv"]
    one, two = (as_json(capsys, *args, "--workers", workers) for workers in (1, 2))
    assert one == two
    lines = (tmp_path / "parts.csv").read_text().splitlines()
    assert [line.split(",")[0] for line in lines[1:]] == [part["text"] for part in one["parts"]]
    out = flat(capsys, "show", "linear", "--ablate", "--explain", "--experiments", data)
    assert "Verdict: does not" in out and "only its constants are held out" in out


def test_a_runs_program_is_ablated_on_what_its_run_fits(tmp_path: Path, capsys: Capsys) -> None:
    run = tiny_world.run(tiny_world.write(tmp_path, "models: [llama-2-7b]"), tmp_path / "run", "--budget", 12)
    champion = json.loads((run / "report.json").read_text())["champion"]["id"]
    assert as_json(capsys, "show", "--ablate", f"{run}:{champion}")["runs"] == list(open_run(run).about.fitted)


def test_a_step_without_any_term_is_no_form_and_says_so(data: Path) -> None:
    text = "def step_time(b, s, *, w: one = 1.2): return w * s.weights_us"
    found = ablate(Source("one", text, parse(text)), load_experiments(data), Here(Line(quiet=True)))
    assert [(p.text, p.verdict, p.measured) for p in found.parts] == [("w * s.weights_us", NEEDED, None)]


def test_a_single_run_is_refused_in_a_line(data: Path, capsys: Capsys) -> None:
    for ident, words in (("sparse-chat", "sparse-chat is the only run"), ("dense-overloaded", "quality: clean")):
        assert words in refused(capsys, "show", "--ablate", "floor", "--experiments", data, "--id", ident)
