"""`evolve fit --learning-curve`: the errors on runs left out of the fit, by how many runs are fitted."""

from __future__ import annotations

import json
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny_world

from evaluator.fit.fit import fit, fit_set
from evaluator.score import error_rows, score_set
from evolve.calibrate.fit import calibrate
from evolve.calibrate.learning import DRAWS, choices
from evolve.cli import run_command
from evolve.run.program import load
from simulator.language.complete import complete
from simulator.language.parse import parse
from simulator.serving.bundled import load_experiments

SEVEN = "llama-2-7b-tp1-codegen,llama-2-7b-tp1-roleplay,llama-2-7b-tp1-general"


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Two runs of a dense model and one of a mixture of experts, and an overloaded one, which is never fitted."""
    (tmp_path / "data.yaml").write_text(tiny_world.DATA)
    return tmp_path / "data.yaml"


def curve(capsys: pytest.CaptureFixture[str], *args: object) -> dict[str, Any]:
    status = run_command(["fit", *map(str, args), "--learning-curve", "--json"])
    out, err = capsys.readouterr()
    assert status == 0, err
    result: dict[str, Any] = json.loads(out)
    return result


def test_choices_are_different_and_the_same_whatever_else_is_drawn() -> None:
    drawn = choices([0, 2, 3, 5, 7, 8], 3, 1)
    assert len(drawn) == len(set(drawn)) == DRAWS == 3 and drawn == choices([0, 2, 3, 5, 7, 8], 3, 1)
    assert all(list(chosen) == sorted(chosen) and set(chosen) <= {0, 2, 3, 5, 7, 8} for chosen in drawn)
    assert drawn != choices([0, 2, 3, 5, 7, 8], 3, 2)
    assert choices([4, 6], 1, 0) == [(4,), (6,)] and choices([1, 4, 6], 2, 0) == list(combinations([1, 4, 6], 2))
    assert choices([1, 4, 6], 3, 0) == [(1, 4, 6)]


def test_each_model_is_predicted_by_fits_to_the_others(capsys: pytest.CaptureFixture[str], data: Path) -> None:
    """One dense run is the fewest that a fold leaves, so the only point is that of all of them: of the dense runs by a
    fit to the sparse one, of that by a fit to both dense ones, done again here."""
    result = curve(capsys, "floor", "--experiments", data)
    assert result["groups"] == {
        "meta-llama/Llama-2-7b-hf": ["dense-chat", "dense-code"],
        "mistralai/Mixtral-8x7B-v0.1": ["sparse-chat"],
    }
    assert (result["left_out"], result["least"], result["most"]) == ("model", 1, 2)
    (point,) = result["points"]
    assert (point["runs"], point["fits"], point["predictions"], point["without"]) == (None, 2, 3, 0)
    experiments = {e.id: e for e in load_experiments(data)}
    sizes = []
    for held in (["dense-chat", "dense-code"], ["sparse-chat"]):
        train = [experiments[name] for name in tiny_world.FITTED if name not in held]
        program = fit(load("floor").complete, fit_set(train), forget=True).program
        sizes += [abs(r.e2e or 0.0) for r in error_rows(program, score_set([experiments[name] for name in held]))]
    assert point["mean"]["e2e"] == pytest.approx(np.mean(sizes), rel=1e-6)
    assert point["median"]["e2e"] == pytest.approx(np.median(sizes), rel=1e-6)
    assert point["e2e_p90"] == pytest.approx(np.percentile(sizes, 90), rel=1e-6)


EXPERTS = """
def step_time(b, s, *, weights: one = {weights}, experts: one = {experts}, base: us = 2000.0):
    return weights * (b.weight_read_us - b.expert_read_us) + experts * b.expert_read_us + base
"""


def test_what_no_fitted_run_shows_is_not_remembered_from_the_start_values(
    capsys: pytest.CaptureFixture[str], data: Path, tmp_path: Path
) -> None:
    """A fit to dense runs does not show what experts take: the program may not keep thirty times the datasheet's."""
    points = []
    for experts in (1.0, 30.0):
        path = tmp_path / f"of-{experts:g}.py"
        path.write_text(EXPERTS.format(weights=1.5, experts=experts))
        points += curve(capsys, path, "--experiments", data)["points"]
    assert points[1]["mean"]["e2e"] == pytest.approx(points[0]["mean"]["e2e"], rel=0.01)


def test_of_runs_that_a_fitted_program_does_not_know_the_fits_are_those_of_evolve_fit(
    capsys: pytest.CaptureFixture[str], data: Path
) -> None:
    """The champion's constants cannot leak what it was not fitted on: the curve is that of leaving out by hand."""
    result = curve(capsys, "champion", "--experiments", data)
    assert (result["fitted_before"], result["start_values"]) == ([], "kept")
    experiments = {e.id: e for e in load_experiments(data)}
    sizes = []
    for held in result["groups"].values():
        train = [experiments[name] for name in tiny_world.FITTED if name not in held]
        program = complete(parse(calibrate(load("champion"), train, None).program or ""))
        sizes += [abs(r.e2e or 0.0) for r in error_rows(program, score_set([experiments[name] for name in held]))]
    assert result["points"][-1]["mean"]["e2e"] == pytest.approx(np.mean(sizes), rel=1e-9)
    assert run_command(["fit", "champion", "--experiments", str(data), "--learning-curve"]) == 0
    assert "The fits are those of `evolve fit`, and stay near the constants of champion" in capsys.readouterr().out


def test_of_runs_that_a_program_may_know_the_fits_forget_its_constants_and_say_why(
    capsys: pytest.CaptureFixture[str], data: Path, tmp_path: Path
) -> None:
    """It was fitted on one of them, as its record says, or nothing says what it was fitted on."""
    mine = tmp_path / "mine.py"
    assert run_command(["fit", "floor", "--experiments", str(data), "--id", "dense-chat", "--out", str(mine)]) == 0
    capsys.readouterr()
    for program, before in ((mine, ["dense-chat"]), ("floor", None)):
        result = curve(capsys, program, "--experiments", data)
        assert (result["fitted_before"], result["start_values"]) == (before, "forgotten")
    for args, why in (
        ((mine,), f"because {mine} was fitted on 1 of these 3 runs"),
        (("floor",), "because what floor was fitted on is not known"),
    ):
        assert run_command(["fit", *map(str, args), "--experiments", str(data), "--learning-curve"]) == 0
        assert why in " ".join(capsys.readouterr().out.split())


@pytest.mark.slow
def test_of_a_single_model_each_run_is_left_out_and_workers_change_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    """Three runs: each is left out, and predicted by fits to each of the other two, and to both."""
    one, two = (curve(capsys, "floor", "--id", SEVEN, "--workers", workers) for workers in (1, 2))
    assert one == two and one["left_out"] == "run" and (one["least"], one["most"]) == (2, 2)
    assert [(p["runs"], p["fits"], p["predictions"]) for p in one["points"]] == [(1, 6, 6), (None, 3, 3)]
    assert list(one["groups"].values()) == [[name] for name in one["groups"]]


def test_the_table_has_a_row_for_each_number_of_runs_and_says_what_was_not_seen(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run_command(["fit", "floor", "--id", SEVEN, "--learning-curve"]) == 0
    out = capsys.readouterr().out
    point = curve(capsys, "floor", "--id", SEVEN)["points"][-1]
    (line,) = (line for line in out.splitlines() if line.startswith("all (2) "))
    assert line.split()[2:5] == ["3", "3", f"{point['median']['e2e']:.2f}"]
    assert line.split()[-1] == f"{point['e2e_p90']:.2f}"
    assert "Every error is of a run that its fit had not seen." in out and "each run in turn" in out


def test_options_without_a_use_and_a_single_run_are_refused_in_a_line(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, data: Path
) -> None:
    out = tmp_path / "mine.py"
    for args, words in (
        (("--out", out), "leave out --out"),
        (("--split",), "leave out --split"),
        (("--steps", tmp_path), "leave out --steps"),
        (("--method", "all"), "leave out --method"),
        (("--scope", "per-model"), "leave out --scope"),
        (("--only", "alpha"), "leave out --only"),
        (("--loss", "log"), "leave out --loss"),
        (("--id", "sparse-chat"), "sparse-chat is the only run that can be fitted"),
        (("--id", "dense-overloaded"), "no experiment's quality is clean"),
    ):
        assert run_command(["fit", "floor", "--experiments", str(data), "--learning-curve", *map(str, args)]) == 2
        err = capsys.readouterr().err
        assert words in err and err.count("\n") == 1, err
    assert not out.exists()
