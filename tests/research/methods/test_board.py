"""The rows of the board: their figures, their order, and where their forms come from."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import board_page
import pytest
import tiny_world
from paths import ROOT

from evaluator import baselines
from evolve.calibrate.steps.figures import StepFigures
from evolve.cli import run_command
from evolve.run.data import experiments_of, fittable
from evolve.run.program import load, method_text
from research.methods.bench import Bench
from research.methods.board import BoardRow, Loads, board, loads_of, worth
from research.methods.entries import (
    HINDSIGHT,
    REFIT,
    added,
    baseline_entries,
    nested,
    origin,
)
from research.methods.result import IN_SAMPLE, Result, Task
from simulator.language.measure import Caps
from simulator.language.opcodes import assemble
from simulator.schema import RECORDED
from simulator.serving.bundled import FILES, bundled_experiments

RUNS = fittable(bundled_experiments())
IDS = tuple(e.id for e in RUNS)


def errors(e2e: float) -> dict[str, float | None]:
    return {"e2e": e2e, "ttft": 2.0 * e2e, "itl": e2e, "e2e_p99": None}


def test_the_champions_nested_errors_are_those_of_its_validation() -> None:
    line = json.loads((ROOT / "seeds" / "champion" / "validate.jsonl").read_text().splitlines()[-1])
    assert nested(load("champion"), RUNS) == {}  # it was found on others too
    every = fittable(experiments_of(FILES))
    found = nested(load("champion"), every)
    assert set(found) == set(line["kinds"])
    for kind, of_run in found.items():
        assert set(of_run) == {e.id for e in every}
        for name in ("e2e", "ttft", "itl"):
            errors = [abs(error) for row in of_run.values() if (error := row[name]) is not None]
            assert sum(errors) / len(errors) == pytest.approx(line["mean_abs_error_pct"][kind][name])


def test_a_form_is_of_hindsight_unless_its_record_names_other_runs_only(tmp_path: Path) -> None:
    shipped = load("champion")
    assert origin(shipped, RUNS) == HINDSIGHT
    assert origin(shipped, [replace(RUNS[0], id="renamed")]) == HINDSIGHT  # the same measurements
    (tmp_path / "data.yaml").write_text(tiny_world.DATA)
    source = added(str(_program(tmp_path)), Caps(), []).source
    assert source and source.record and source.record.fitted == tiny_world.FITTED
    assert added(str(tmp_path / "mine.py"), Caps(), RUNS).note == HINDSIGHT  # a refit of a program chosen before


def _program(folder: Path) -> Path:
    """A program that `evolve fit` fitted to the tiny world."""
    out = folder / "mine.py"
    assert run_command(["fit", "floor", "--experiments", str(folder / "data.yaml"), "--out", str(out)]) == 0
    return out


def test_figures_of_runs_by_hand() -> None:
    dense = [e for e in RUNS if not e.facts["is_moe"]][:2]
    sparse = next(e for e in RUNS if e.facts["is_moe"])
    loads = loads_of({dense[0].id: errors(-1.0), dense[1].id: errors(3.0), sparse.id: errors(8.0)}, RUNS)
    assert (loads.runs, loads.of, loads.e2e, loads.e2e_median, loads.e2e_worst) == (3, 20, 4.0, 3.0, 8.0)
    assert (loads.ttft, loads.dense, loads.moe, loads.e2e_p99) == (8.0, 2.0, 8.0, None)
    low, high = loads.interval_95 or (0.0, 0.0)
    assert 1.0 <= low < 4.0 < high <= 8.0


def test_runs_that_are_predicted_in_the_other_order_are_counted() -> None:
    observed = {e.id: e.observed.summary.e2e_ms.mean or 0.0 for e in RUNS if e.observed and e.observed.summary}
    exact = {name: errors(0.0) for name in observed}
    assert loads_of(exact, RUNS).inversions == 0
    first, second = sorted(observed, key=observed.__getitem__)[:2]
    swapped = 100.0 * (observed[second] / observed[first] - 1.0) + 1e-6
    assert loads_of(exact | {first: errors(swapped)}, RUNS).inversions == 1


def result(name: str, kind: str, fold: str, predicted: tuple[str, ...], e2e: float, **more: object) -> Result:
    task = Task(name, "ours", kind, fold, predicted)
    made = Result(task, 3, 0, 1.0, {i: errors(e2e) for i in predicted}, {}, {"": method_text("jams")})
    return replace(made, **more)  # type: ignore[arg-type]


def test_the_best_held_out_error_comes_first_and_what_is_skipped_last(tmp_path: Path) -> None:
    mape = {"test": StepFigures(5, mape_pct=99.0)}
    held = {"blackbox": 9.0, "overhead floor": 4.0}
    results = [
        *(result(name, IN_SAMPLE, "all", IDS, 1.0) for name in (*held, "naive mean")),
        *(result(name, "models", "one", IDS, e2e) for name, e2e in held.items()),
    ]
    results[2] = replace(results[2], errors={}, cycles=mape, skipped=True)
    entries = tuple(e for e in baseline_entries() if e.name in (*held, "naive mean"))
    bench = Bench(tmp_path, entries, (), ())
    made = board(_with_runs(bench), results, with_published=True)
    names = [row.name for row in made.rows]
    assert names[:2] == ["overhead floor", "blackbox"] and names[-1] == "naive mean" and len(names) == 3 + 4
    assert made.limit_pct == 30.0 and made.rows[-1].skipped.endswith("above 30.0 %")
    assert made.best and made.best.file == "overhead_floor-ours.py"  # overhead-floor-ours.py is of a method
    # The same without a short circuit: nothing is skipped.
    results[2] = result("naive mean", IN_SAMPLE, "all", IDS, 1.0, cycles=mape)
    long = board(_with_runs(replace(bench, short_circuit=False)), results, with_published=False)
    assert long.limit_pct is None and not any(row.skipped for row in long.rows)


def test_the_best_program_of_the_user_is_named_unless_the_best_comes_before_it(tmp_path: Path) -> None:
    def first(mine: float, other: float) -> str:
        """What is named when the held-out errors are these and those of `overhead floor` are 4 %."""
        errors = {"mine": mine, "other": other, "overhead floor": 4.0}
        yours = [
            replace(e, name=n, group="yours", protocols=(REFIT,))
            for n, e in zip(errors, baseline_entries(), strict=False)
        ]
        entries = (*yours[:2], *(e for e in baseline_entries() if e.name == "overhead floor"))
        results = [
            replace(r, task=replace(r.task, protocol=e.protocols[0]))
            for e in entries
            for r in (result(e.name, IN_SAMPLE, "all", IDS, 1.0), result(e.name, "models", "one", IDS, errors[e.name]))
        ]
        row = board(_with_runs(Bench(tmp_path, entries, (), ())), results, with_published=False).to_go_on_with
        assert row
        return row.name

    assert (first(3.0, 2.0), first(3.0, 9.0), first(5.0, 9.0)) == ("other", "mine", "overhead floor")


def _with_runs(bench: Bench) -> Bench:
    """The bench with the shipped runs."""
    return replace(bench, data=tuple(bundled_experiments()))


def test_every_baseline_that_recorded_steps_can_judge_is_on_the_board() -> None:
    unrecorded = {name for name in baselines.NAMES if assemble(baselines.form(name)).uses - {*RECORDED}}
    assert unrecorded == {"trained physics", "trained physics published"}
    assert {e.name for e in baseline_entries()} == set(baselines.NAMES) - unrecorded


@pytest.mark.parametrize(("own_e2e", "justified"), [(7.9, True), (8.1, False)])
def test_constants_of_its_own_pay_a_model_if_they_are_two_points_better(own_e2e: float, justified: bool) -> None:
    def row(name: str, e2e: float) -> BoardRow:
        loads = Loads(1, 1, e2e, *[None] * 9)  # type: ignore[arg-type]
        return BoardRow(name, "ours", "method", "", "", "", "", (), loads={"workloads": loads})

    (verdict,) = worth([row("components-9", 10.0), row("components-9-per-model", own_e2e)])
    assert verdict.justified is justified


def test_the_page_is_written_by_the_command_of_the_clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With its help in place of a board, which takes an hour."""
    page = tmp_path / "leaderboard.md"
    page.write_text("before\n<!-- board -->\nyesterday\n<!-- end of the board -->\n")
    monkeypatch.setattr(board_page, "PAGE", page)
    monkeypatch.setattr(board_page, "run_command", lambda args, *group: run_command([args[0], "--help"], *group))
    board_page.write("runs/leaderboard")
    assert "Compare latency models" in page.read_text() and "yesterday" not in page.read_text()
