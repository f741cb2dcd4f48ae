"""The bench: what a training sees and predicts, what is kept, and what the command prints."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest
from tiny_world import DATA, FITTED

from archive.journal import read_journal
from evaluator.experiments import bundled_experiments
from evaluator.fit.fit import fit_set
from evolve.cli import run_command
from evolve.methods import train
from evolve.methods.bench import PROGRAMS, RESULTS, Result
from evolve.methods.catalog import METHODS
from evolve.methods.samples import TRAIN, VALID, samples_of
from evolve.methods.summary import Summary, worth
from evolve.program.fit.result import alias
from evolve.run.data import fittable
from evolve.run.program import load
from simulator.language.key import key

QUICK = ("jams", "direct")


@pytest.fixture(scope="module")
def board(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a bench of two methods on the tiny world, with its data beside it."""
    folder = tmp_path_factory.mktemp("board")
    (folder / "data.yaml").write_text(DATA)
    assert run_command(["leaderboard", *options(folder)]) == 0
    return folder


def options(folder: Path, *methods: str) -> list[str]:
    return [*(methods or QUICK), "--experiments", str(folder / "data.yaml"), "--out", str(folder / "out"), "--workers",
            "1", "--quiet"]  # fmt: skip


def results(folder: Path) -> list[Result]:
    return [Result.from_json(line) for line in read_journal(folder / "out" / RESULTS)]


def test_a_held_out_run_is_predicted_and_not_trained_on(board: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every training sees the runs that its task does not hold out; in sample it sees all."""
    seen = list[tuple[str, ...]]()
    trained = train.trained

    def spy(method: Any, protocol: str, training: Any) -> Any:
        seen.append(tuple(e.id for e in training.data.experiments))
        assert {s.experiment for s in training.samples} <= set(seen[-1])
        return trained(method, protocol, training)

    monkeypatch.setattr("evolve.methods.bench.trained", spy)
    options_ = ["jams", "--experiments", str(board / "data.yaml"), "--out", str(board / "spied"), "--workers", "1"]
    assert run_command(["leaderboard", *options_, "--quiet"]) == 0
    by_task = [Result.from_json(line) for line in read_journal(board / "spied" / RESULTS)]
    assert len(by_task) == len(seen) == 2 * (1 + 2 + 2)  # protocols x (in sample, two models, two workloads)
    for result, fitted in zip(by_task, seen, strict=True):
        held = () if result.task.kind == "in sample" else result.task.predicted
        assert set(fitted) == set(FITTED) - set(held)
        assert set(result.errors) == set(held or FITTED)


def test_results_that_are_there_are_not_computed_again(board: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = (board / "out" / RESULTS).read_bytes()

    def never(*args: object) -> None:
        raise AssertionError("trained again")

    monkeypatch.setattr("evolve.methods.bench.trained", never)
    assert run_command(["leaderboard", *options(board)]) == 0
    assert (board / "out" / RESULTS).read_bytes() == before


def test_programs_have_the_record_of_what_they_were_trained_on(board: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (single,) = [r for r in results(board) if (r.task.method, r.task.protocol, r.task.kind) == ("jams", "ours", "in sample")]
    of_one = [r for r in results(board) if (r.task.method, r.task.protocol, r.task.kind) == ("direct", "own", "in sample")]
    programs = board / "out" / PROGRAMS
    shared = load(str(programs / "jams-ours.py"))
    assert shared.record and shared.record.fitted == FITTED and shared.record.key == key(shared.complete)
    assert [row.e2e for row in shared.record.errors] == [single.errors[name]["e2e"] for name in FITTED]
    fitted = [record.fitted for model in of_one[0].texts if (record := load(str(programs / f"direct-own-{alias(model)}.py")).record)]
    assert len(fitted) == 2 and {name for ids in fitted for name in ids} == set(FITTED)


def test_trees_without_rows_to_choose_by_fail_and_the_others_go_on(board: Path) -> None:
    """One run has fewer than five load stages, and every fifth chooses."""
    command = ["leaderboard", *options(board, "trees", "jams"), "--out", str(board / "trees"), "--id", FITTED[0]]
    assert run_command(command) == 0
    made = [Result.from_json(line) for line in read_journal(board / "trees" / RESULTS)]
    assert {(r.task.method, r.failure) for r in made} == {
        ("trees", "too few measured times: none is in the split 'valid'"), ("jams", ""),
    }  # fmt: skip


def test_an_interrupted_bench_says_how_to_go_on(
    board: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*args: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("evolve.cli.leaderboard.measure", interrupt)
    assert run_command(["leaderboard", *options(board), "--id", FITTED[0]]) == 130
    again = f"evolve leaderboard jams direct --experiments {board}/data.yaml --id {FITTED[0]} --out {board}/out"
    assert f"`{again}` goes on" in capsys.readouterr().err


@pytest.mark.parametrize(("names", "chosen"), [
    (("srfa",), ["srfa"]),
    (("lacm_additive", "SRFA-A"), ["lacm-additive", "srfa-all-steps", "srfa-additive"]),
])  # fmt: skip
def test_a_name_or_the_beginning_of_names(
    names: tuple[str, ...], chosen: list[str], board: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = list[str]()
    monkeypatch.setattr("evolve.cli.leaderboard.measure", lambda bench, pool: seen.extend(m.name for m in bench.methods) or [])
    assert run_command(["leaderboard", *options(board, *names), "--json"]) == 0
    assert seen == chosen


def test_a_bench_of_other_data_is_refused(board: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (board / "data.yaml").write_text(DATA.replace("mean: 330.2", "mean: 331.2"))
    try:
        assert run_command(["leaderboard", *options(board)]) == 2
    finally:
        (board / "data.yaml").write_text(DATA)
    assert "was made with other experiments: choose another --out" in capsys.readouterr().err


def test_a_damaged_journal_is_one_line(board: Path, capsys: pytest.CaptureFixture[str]) -> None:
    journal = board / "out" / RESULTS
    kept = journal.read_bytes()
    journal.write_text('{"task": 3}\n' * 2)
    try:
        assert run_command(["leaderboard", *options(board)]) == 2
    finally:
        journal.write_bytes(kept)
    assert capsys.readouterr().err == (
        f"evolve: {journal}:1: damaged line: remove it and all lines after it, and their trainings are done again\n"
    )


def test_without_the_extra_what_needs_it_is_left_out_and_said(
    board: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.setattr("evolve.cli.leaderboard.measure", lambda bench, pool: [])
    assert run_command(["leaderboard", *options(board)[2:], "--json"]) == 0
    assert "left out: bayesian" in capsys.readouterr().err
    assert run_command(["leaderboard", *options(board, "bayesian")]) == 2
    assert "bayesian: needs the extra: pip install 'evolve-latency[trees]'" in capsys.readouterr().err


def test_constants_of_each_model_alone_fail_where_the_model_is_held_out(board: Path) -> None:
    of_models = [r for r in results(board) if r.task.method == "direct" and r.task.kind == "models"]
    assert of_models and all(r.failure and not r.errors for r in of_models)
    of_workloads = [r for r in results(board) if r.task.method == "direct" and r.task.kind == "workloads"]
    assert all(r.errors for r in of_workloads if r.task.fold == "code")  # chat is all there is of the sparse model


def test_the_json_has_every_program_and_figure(board: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["leaderboard", *options(board), "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert {row["method"] for row in shown["methods"]} == {"jams", "direct"}
    mine = next(row for row in shown["methods"] if (row["method"], row["protocol"], row["kind"]) == ("jams", "ours", "in sample"))
    (single,) = [r for r in results(board) if (r.task.method, r.task.protocol, r.task.kind) == ("jams", "ours", "in sample")]
    errors = [abs(row["e2e"] or 0.0) for row in single.errors.values()]
    assert mine["e2e"] == pytest.approx(sum(errors) / 3)
    assert mine["e2e_worst"] == pytest.approx(max(errors))
    assert all("def step_time" in text for result in shown["results"] for text in result["texts"].values())


def test_the_csv_has_a_row_for_every_predicted_run(board: Path, tmp_path: Path) -> None:
    file = tmp_path / "errors.csv"
    assert run_command(["leaderboard", *options(board), "--csv", str(file)]) == 0
    rows = list(csv.DictReader(file.read_text().splitlines()))
    expected = sum(max(len(r.errors), 1) for r in results(board))
    assert len(rows) == expected
    failed = [row for row in rows if row["failure"]]
    assert failed and not any(row["experiment"] for row in failed)


def test_an_unknown_method_is_one_line(board: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["leaderboard", *options(board, "jamz")]) == 2
    assert capsys.readouterr().err.startswith("evolve: 'jamz': no such method: did you mean 'jams'?")


def test_runs_without_recorded_steps_train_on_their_load_stages() -> None:
    data = fit_set(fittable(bundled_experiments()))
    samples = samples_of(data, ())
    assert [s.experiment for s in samples] == [e.id for e in data.experiments]
    assert sum(len(s.observed_us) for s in samples) == len(data.stages.table) == 31
    splits = [split for s in samples for split in s.split]
    assert splits.count(VALID) == 6 and splits.count(TRAIN) == 25  # every fifth of 31


@pytest.mark.parametrize(("own_e2e", "justified"), [(7.9, True), (8.1, False)])
def test_constants_of_its_own_pay_a_model_if_they_are_two_points_better(own_e2e: float, justified: bool) -> None:
    def row(method: str, e2e: float) -> Summary:
        none = dict.fromkeys(("e2e_median", "e2e_worst", "ttft", "itl", "e2e_p99", "cycles_mape",
                              "cycles_r", "fitted_cycles_mape", "fitted_cycles_r"))  # fmt: skip
        return Summary(method, "", "ours", "workloads", 9, 0, 0.0, e2e=e2e, **none, runs=(1, 1), failures=())

    (verdict,) = worth([row("components-9", 10.0), row("components-9-per-model", own_e2e)])
    assert verdict.justified is justified


def test_every_method_has_a_name_of_its_own() -> None:
    assert len({m.name for m in METHODS}) == len(METHODS)
