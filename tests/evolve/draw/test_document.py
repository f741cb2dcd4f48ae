"""The document says what the run's journal, report and experiments say, and what of them is missing or damaged."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import tiny_world
from elites import elite
from paths import ROOT
from seen import by_id, seen

from archive.elite import Elite
from archive.journal import Journal
from archive.proposal import TRIM, Outcome, Proposal
from archive.score import Errors
from evolve.cli import run_command
from evolve.inspect.lists import archive_json
from evolve.run.data import chosen
from evolve.run.folder import RunFolder, open_run
from evolve.run.lock import lock
from evolve.search.llm.calls import Answered, Failed, Sent, to_json
from evolve.summary.result import read_report
from evolve.summary.searched import Searched

SHIPPED = ROOT / "seeds" / "champion"


def agrees(run: RunFolder, shown: dict[str, Any]) -> None:
    """The document of a run has what `evolve archive --json` has, and every outcome of the journal."""
    rows, outcomes = by_id(shown), run.outcomes()
    kept = json.loads(json.dumps(archive_json(Searched(run, outcomes))))
    assert shown["front"] == [e["id"] for e in kept["front"]]
    for e in kept["front"] + kept["grid"]:
        row = rows[e["id"]]
        assert all(row[name] == e[name] for name in row if name in e and name != "cell")
        replayed = {of_run[0]: of_run[1:] for of_run in e["rows"]}  # runs in steps stand there by cell
        assert row["errors"] == [x for id in shown["fitted"] for x in replayed.get(id, [None] * 3)]
    assert all(rows[e["id"]]["cell"] == e["cell"] for e in kept["grid"])
    assert list(rows) == [outcome.proposal.id for outcome in outcomes]
    for outcome in outcomes:
        row, proposal = rows[outcome.proposal.id], outcome.proposal
        assert (row["text"], row["operator"], row["island"]) == (proposal.text, proposal.operator, proposal.island)
        assert row["parents"] == list(proposal.parents)
        stage, why = (outcome.rejection.stage, outcome.rejection.why) if outcome.rejection else ("scored", None)
        assert (row["stage"], row["why"]) == (stage, why)
    assert shown["totals"]["proposals"] == len(outcomes)
    assert shown["totals"]["scored"] == sum(outcome.elite is not None for outcome in outcomes)
    within = [outcome for outcome in outcomes if outcome.proposal.operator != TRIM]  # the budget
    assert shown["totals"]["fitted"] == sum(bool(outcome.key) for outcome in within)
    counts = {stage: of_stage["count"] for stage, of_stage in shown["totals"]["rejected"].items()}
    assert sum(counts.values()) + shown["totals"]["scored"] == len(outcomes)
    assert shown["best"][-1]["after"] == len(outcomes)


def test_a_finished_run_is_shown_as_its_files_have_it(tiny_run: Path) -> None:
    run, shown, report = open_run(tiny_run), seen(tiny_run), read_report(tiny_run / "report.json")
    agrees(run, shown)
    assert shown["name"] == str(tiny_run) and shown["state"] == "finished" and shown["notes"] == []
    assert report.champion and shown["champion"] == report.champion.id
    assert (shown["budget"], shown["seed"], shown["islands"]) == (30, 0, 4)
    assert shown["fitted"] == list(tiny_world.FITTED) == list(report.fitted)
    assert shown["data"] == json.loads((tiny_run / "run.json").read_text())["data"]
    assert shown["baselines"].keys() == {"champion", *report.baselines} and shown["cpu_s_by_stage"] == report.cpu_s
    assert shown["totals"]["proposals"] == report.proposals and shown["totals"]["fitted"] == report.candidates == 30
    assert shown["thinned"] is None and shown["validation"] is None and shown["ledger"] is None


def test_experiments_have_what_was_observed_and_the_numbers_of_load_and_deployment(tiny_run: Path) -> None:
    rows = {row["id"]: row for row in seen(tiny_run)["experiments"]}
    assert list(rows) == [*tiny_world.FITTED, "dense-overloaded"]
    chat = rows["dense-chat"]  # see tiny_world.DATA
    assert chat["use"] == "fitted" and rows["dense-overloaded"]["use"] == "predicted"
    itl = pytest.approx((330.2 - 26.1) / 49)
    assert chat["observed_ms"] == {"e2e": 330.2, "ttft": 26.1, "itl": itl, "e2e_p99": 352.0, "ttft_p99": 33.0}
    assert chat["fields"]["rate_rps"] == 7.5 and chat["fields"]["duration_s"] == 30
    assert (chat["fields"]["prompt_tokens"], chat["fields"]["output_tokens"]) == (300, 50)
    assert chat["fields"]["layers"] == 32 and chat["tp"] == 1 and not chat["moe"] and rows["sparse-chat"]["moe"]
    assert [stage["name"] for stage in chat["stages"]] == ["stage 1, 5 requests/s", "stage 2, 10 requests/s"]


@pytest.mark.slow
def test_the_shipped_run_is_shown_with_its_champion() -> None:
    shown = seen(SHIPPED)
    agrees(open_run(SHIPPED), shown)
    record = json.loads((ROOT / "seeds" / "champion.json").read_text())
    assert shown["champion"] == record["found"]["proposal"] and shown["state"] == "finished"
    assert shown["totals"]["fitted"] == 1000  # as docs/results.md says
    kinds = {kind["kind"]: kind["mean_abs_error_pct"]["e2e"] for kind in shown["validation"]["kinds"]}
    assert kinds["cells"] == pytest.approx(2.8, abs=0.05)  # docs/results.md


def test_a_run_whose_experiments_are_gone_or_changed_is_shown_by_ids(tiny_run: Path, tmp_path: Path) -> None:
    run = tiny_world.copy(tiny_run, tmp_path)
    config = run / "config.yaml"
    moved = tmp_path / "data.yaml"
    moved.write_text(tiny_world.DATA)
    home = str(Path(open_run(run).config.data.files[0]))
    config.write_text(config.read_text().replace(home, str(moved)))
    assert seen(run)["notes"] == []
    moved.write_text(tiny_world.DATA.replace("mean: 284.3", "mean: 284.4"))
    changed = seen(run)
    assert "the run was made on data " in changed["notes"][0]
    assert [row["id"] for row in changed["experiments"]] == list(tiny_world.FITTED)
    assert changed["experiments"][0]["observed_ms"] is None
    assert by_id(changed) == by_id(seen(tiny_run))
    moved.unlink()
    assert "cannot read the run's experiments" in seen(run)["notes"][0]


def test_a_damaged_report_is_named_and_the_rest_is_shown(tiny_run: Path, tmp_path: Path) -> None:
    run = tiny_world.copy(tiny_run, tmp_path)
    (run / "report.json").write_text('{"champion": [}')
    (run / "validate.json").write_text('{"summary": {"models": 3}}')
    shown = seen(run)
    damaged = [note.split(":")[0].removeprefix("cannot read ") for note in shown["notes"]]
    assert damaged == [str(run / "report.json"), str(run / "validate.json")]
    assert shown["state"] == "stopped" and shown["champion"] in by_id(shown) and shown["baselines"] == {}


def test_a_report_with_numbers_that_json_has_not_is_left_out(tiny_run: Path, tmp_path: Path) -> None:
    run = tiny_world.copy(tiny_run, tmp_path)
    report = json.loads((run / "report.json").read_text())
    report["cascade"]["cpu_s"] = {"fit": math.inf}
    (run / "report.json").write_text(json.dumps(report))
    (run / "cpu.csv").write_text("proposal,cpu_s\n1,0.5\n2,inf\n3,nan\n4,")
    shown = seen(run)
    assert shown["cpu_s_by_stage"] == {} and any("report.json" in note for note in shown["notes"])
    assert [by_id(shown)[i]["cpu_s"] for i in (1, 2, 3, 4)] == [0.5, None, None, None]


def test_a_report_of_another_length_of_the_journal_does_not_count(tiny_run: Path, tmp_path: Path) -> None:
    run = tiny_world.copy(tiny_run, tmp_path)
    journal = Journal(run / "journal.jsonl")
    better = elite(900, mean_error=0.1, worst3=0.1, group_out=0.1, rows=(Errors("dense-chat", 0.1, 0.1, 0.1),))
    journal.append([Outcome(Proposal(900, 0, "text", "add", ()), better, "k").to_json()])
    journal.close()
    shown = seen(run)
    assert shown["state"] == "stopped" and shown["champion"] == 900 and shown["baselines"] == {}
    assert by_id(shown)[900]["errors"] == [0.1, 0.1, 0.1] + [None] * 6  # by the experiments' ids
    with lock(run):
        assert seen(run)["state"] == "running"


def test_calls_to_language_models_are_shown_without_prompts_and_answers(tiny_run: Path, tmp_path: Path) -> None:
    run = tiny_world.copy(tiny_run, tmp_path)
    journal = Journal(run / "journal.jsonl")
    lines = [
        Sent("1/propose/8", 1, "m", "PROMPT", 0, 900, 0.5),
        Failed("1/propose/8", 1, "m", "timeout", "SECRET", False, 2.0),
        Sent("1/propose/8", 2, "m", "PROMPT", 0, 900, 0.5),
        Answered("1/propose/8", 2, "m", "m-1", "PROMPT", 0, 100, 20, 0.25, 1.5, "stop", "ANSWER"),
    ]
    scored: Elite = elite(901)
    proposal = Proposal(901, 0, "text", "llm:m", (), call="1/propose/8", idea="a launch a layer")
    journal.append([*map(to_json, lines), Outcome(proposal, scored, "k2").to_json()])
    journal.close()
    shown = seen(run)
    totals = {"requests": 2, "tokens_in": 100, "tokens_out": 20, "usd": 0.25, "possibly_usd": 0.5}
    assert shown["ledger"]["totals"] == totals
    assert shown["ledger"]["models"]["m"] == totals | {"outcomes": {"timeout": 1, "answered": 1}}
    outcomes = [(row["outcome"], row["verdict"]) for row in shown["ledger"]["rows"]]
    assert outcomes == [("timeout", ""), ("answered", "1 scored")]
    assert by_id(shown)[901]["idea"] == "a launch a layer" and by_id(shown)[901]["operator"] == "llm:m"
    assert not any(word in json.dumps(shown) for word in ("PROMPT", "ANSWER", "SECRET"))


def test_held_out_errors_are_shown_by_kind_and_fold(tiny_run: Path, tmp_path: Path) -> None:
    run = tiny_world.copy(tiny_run, tmp_path)
    means, row = {"e2e": 2.0, "ttft": 3.0, "itl": None}, {"e2e": -2.0, "ttft": 3.0, "itl": None, "e2e_p99": 9.0}
    champion = {"id": 7, "text": "t", "candidates": 9, "key": "k"}
    fold = {"kind": "models", "name": "m", "mean_abs_error_pct": means, "bias_pct": means, "champion": champion}
    coverage = {"runs": 3, "covered_80": 0.7, "covered_95": 1.0, "width_80_pct": 4.0, "width_95_pct": 8.0}
    held = {"kind": "models", "fold": "m", "experiment": "dense-chat", "baselines": {"blackbox": row}} | row
    written = {
        "call": 2,
        "summary": {"models": {"mean_abs_error_pct": means, "bias_pct": means}},
        "folds": [fold, fold | {"name": "n", "champion": None}],
        "rows": [held],
        "intervals": {"inside": {"e2e": coverage}},
    }
    (run / "validate.json").write_text(json.dumps(written))
    validation = seen(run)["validation"]
    (kind,) = validation["kinds"]
    assert validation["call"] == 2 and kind["kind"] == "models" and kind["mean_abs_error_pct"] == means
    one, other = kind["folds"]
    assert one["champion"] == {"id": 7, "text": "t", "candidates": 9}
    assert other["champion"] is None and not other["rows"]
    errors = {"e2e": -2.0, "ttft": 3.0, "itl": None}
    assert one["rows"] == [{"experiment": "dense-chat", **errors, "baselines": {"blackbox": errors}}]
    (covered,) = validation["coverage"]
    assert covered == {"class": "inside", "figure": "e2e", "runs": 3, "covered_80": 0.7, "covered_95": 1.0}


def test_the_forms_of_held_out_errors_are_said_if_recorded(tiny_run: Path, tmp_path: Path) -> None:
    run = tiny_world.copy(tiny_run, tmp_path)
    figures = {"call": 1, "summary": {}, "folds": [], "rows": []}
    (run / "validate-recorded.json").write_text(json.dumps(figures))
    assert seen(run)["validation"]["forms"].startswith("forms recorded from a search that saw all data")
    (run / "validate.json").write_text(json.dumps(figures | {"call": 2}))  # searched in the folds
    assert (seen(run)["validation"]["call"], seen(run)["validation"]["forms"]) == (2, "")


def test_a_real_validation_is_read(tiny_run: Path, tmp_path: Path) -> None:
    run = tiny_world.copy(tiny_run, tmp_path)
    fitted, _ = chosen(open_run(run).config.data)
    options = ["--folds", "workloads", "--budget", "9", "--workers", "1", "--quiet"]
    assert run_command(["validate", str(run), *options]) == 0
    shown = seen(run)
    written = json.loads((run / "validate.json").read_text())
    (kind,) = shown["validation"]["kinds"]
    assert kind["mean_abs_error_pct"]["e2e"] == written["summary"]["workloads"]["mean_abs_error_pct"]["e2e"]
    assert sorted(row["experiment"] for fold in kind["folds"] for row in fold["rows"]) == sorted(e.id for e in fitted)
    assert all(set(row["baselines"]) >= {"blackbox", "roofline"} for fold in kind["folds"] for row in fold["rows"])
    assert shown["state"] == "finished"
