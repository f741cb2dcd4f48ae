"""`evolve show --diagnose`: the values that language models are shown, and the terms that planted errors ask for."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import tiny_world
from commands import Capsys, as_json, evolve, flat, refused
from laws import law

from evaluator.metrics import observe_all
from evolve.inspect.diagnose import Findings, diagnose, observed
from evolve.run.folder import open_run
from evolve.run.program import Source
from evolve.search.vocabulary import vocabulary
from simulator.clock.replay import replay
from simulator.common.errors import InputError
from simulator.language.ir import Program
from simulator.language.unparse import unparse
from simulator.serving.bundled import bundled_experiments, load_experiments
from simulator.serving.experiment import Experiment

STEP = """
def step_time(b, s, *, weights: one = 1.15, kv: one = 1.4, layer: us = 40.0):
    return weights * b.weight_read_us + kv * b.kv_read_us + layer * s.layers
"""
QUEUEING = """
def queueing_time(r, s, *, base: us = 8000.0):
    return base
"""
TRUTH = law(STEP, QUEUEING)
NO_LAYERS = law(STEP.replace(" + layer * s.layers", "").replace(", layer: us = 40.0", ""), QUEUEING)
WITH_REQUESTS = law(
    STEP.replace("layer * s.layers", "layer * s.layers + r * b.batch_size").replace("40.0", "40.0, r=1e-4"), QUEUEING
)
SOME = [e for e in bundled_experiments() if e.id.endswith("-codegen") and e.id.startswith(("llama", "mixtral", "code"))]


@pytest.fixture(scope="module")
def runs() -> list[Experiment]:
    return [replace(e, observed=observe_all(replay(e, TRUTH, 77))) for e in SOME]


def findings(program: Program, runs: list[Experiment]) -> Findings:
    return diagnose(Source("p", unparse(program), program), runs, (1,))


def test_the_term_that_was_left_out_is_the_one_to_add(runs: list[Experiment]) -> None:
    found = findings(NO_LAYERS, runs).add
    # contexts hardly differ between these runs, so the layers times a context explain as much
    assert all(a.method == "step_time" and a.term.startswith("s.layers") for a in found[:3])
    assert next(a for a in found if a.term == "s.layers").gain > 0.98


def test_a_true_law_asks_for_little_and_would_miss_all_of_its_terms(runs: list[Experiment]) -> None:
    found = findings(WITH_REQUESTS, runs)
    # r, which the truth has not, is what these runs miss least; the others are needed
    assert (found.drop[0].constant, found.drop[1].cost > 1.0) == ("r", True) and found.drop[0].cost < 0.1


def test_a_constant_that_these_runs_do_not_read_has_no_cost(capsys: Capsys) -> None:
    """The champion's factor of quantized experts, on a dense model with weights of 16 bits."""
    args = "show", "--diagnose", "champion", "--id", "llama-2-7b-tp1-general"
    found = as_json(capsys, *args)
    assert found["without_effect"] and {"step_time.kernel_moe_quantized"} <= {*found["without_effect"]}
    assert not {f"{r['method']}.{r['constant']}" for r in found["drop"]} & {*found["without_effect"]}
    out = flat(capsys, *args, "-v")
    assert f"without an effect on these runs, which say nothing of them: {', '.join(found['without_effect'])}" in out


def test_terms_that_do_the_same_on_these_runs_are_one(runs: list[Experiment]) -> None:
    same = findings(NO_LAYERS, runs[:1]).add  # of a single deployment the size of a layer is a constant
    batch = next(a for a in same if a.term == "b.graph_batch")
    assert "s.layers * b.graph_batch" in batch.alike
    assert not {a.term for a in same} & set(batch.alike)


@pytest.mark.parametrize("fields", ["all", "datasheet"])
@pytest.mark.parametrize("method", ["step_time", "queueing_time"])
def test_every_term_that_an_operator_may_draw_is_offered(fields: str, method: str) -> None:
    words = vocabulary(bundled_experiments(), fields)
    every = {tuple(term) for term in words.every(method)}
    assert len(every) == len(words.every(method))
    rng = np.random.default_rng(5)
    assert {tuple(words.basis(method, rng)) for _ in range(3000)} <= every


@pytest.mark.slow
def test_a_runs_program_gets_what_its_prompt_says(tiny_run: Path, capsys: Capsys) -> None:
    best = open_run(tiny_run).archive().members()[0].id
    asked = as_json(capsys, "llm", "prompt", tiny_run, best)["messages"][1]["content"]
    told = as_json(capsys, "show", "--diagnose", f"{tiny_run}:{best}")
    assert told["seeds"] == [1] and {e["fitted"] for e in told["experiments"]} == {True}
    for c in told["correlations"][:1]:
        assert f"{c['field']} " in asked and f"{c['r']:+.2f}" in asked
    assert told["stages"]
    for stage in told["stages"]:
        error = stage["e2e_error_pct"]
        assert f"{error:+.0f}" in asked if abs(error) >= 10 else f"{error:+.1f}" in asked


def test_data_that_changed_since_the_run_are_said(tmp_path: Path, capsys: Capsys) -> None:
    config = tiny_world.write(tmp_path)
    run = tiny_world.run(config, tmp_path / "run", "--budget", 4)
    data = tmp_path / "data.yaml"
    best = f"{run}:{open_run(run).archive().members()[0].id}"
    for changed in (False, True):
        capsys.readouterr()
        assert evolve("show", "--diagnose", best) == 0
        assert ("made on data" in capsys.readouterr().err) == changed
        data.write_text(data.read_text().replace("mean: 284.3", "mean: 310.0"))


def test_overloaded_runs_are_diagnosed_if_they_are_named(tiny: Path) -> None:
    runs = load_experiments(tiny.parent / "data.yaml")
    assert [e.id for e in observed(runs, named=False)] == ["dense-chat", "dense-code", "sparse-chat"]
    assert [e.id for e in observed(runs[3:], named=True)] == ["dense-overloaded"]
    with pytest.raises(InputError, match="no experiment has `observed` figures"):
        observed([replace(e, observed=None) for e in runs], named=True)


def test_diagnose_prints_errors_and_that_no_other_run_tested_its_terms(tiny: Path, capsys: Capsys) -> None:
    out = flat(capsys, "show", "champion", "--diagnose", "-v", "--explain", "--experiments", tiny.parent / "data.yaml")
    parts = "Errors of champion by run and load stage/dense-chat/ new /Correlations of the errors/no other run has tested them"
    for part in (*parts.split("/"), "The steps of the worst stages"):
        assert part in out
    assert "in sample: on the runs that the program was fitted on" not in out  # none of these


def test_diagnose_needs_measurements(tiny: Path, tmp_path: Path, capsys: Capsys) -> None:
    lines = (tiny.parent / "data.yaml").read_text().splitlines()
    (tmp_path / "plan.yaml").write_text("\n".join(line for line in lines[:7] if "observed" not in line))
    args = "show", "--diagnose", "champion", "--experiments", tmp_path / "plan.yaml"
    assert "nothing to fit: no experiment has `observed` figures" in refused(capsys, *args)
