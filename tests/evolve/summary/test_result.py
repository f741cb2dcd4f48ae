"""A run's report as a value: what is written is read back to the same value, and to the same bytes."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from elites import elite

from archive.champion import Rule
from archive.score import Errors
from evolve.summary.result import Refusals, RunReport, errors_of, read_report
from evolve.summary.run import inconsistent, means_table, median_text, print_run
from evolve.summary.sentences import cascade_text
from simulator.common import documents
from simulator.common.errors import InputError

ROWS = (Errors("a", 1.5, -2.0, None), Errors("b", -0.5, 3.0, 0.25))
FULL = RunReport(
    **{"engine": "0.0", "data": "d", "run": "runs/0001", "seed": 3, "seeds": [1, 2, 3], "search_seeds": [1]},
    **{"rule": Rule("mean_error"), "fitted": ["a"], "candidates": 5, "proposals": 9, "accepted": 2, "polished": 0},
    champion=elite(4, group_out=2.5),
    best=[(float("inf"), None), (2.0, 2.5)],
    rejected=[Refusals("units", 3, "us + token")],
    **{"verdicts": {"scored": 5}, "cpu_s": {"fit": 1.25}, "ended": "the budget of 5 candidates is used up"},
    **{"errors": ROWS, "fitted_mean": {"e2e": 1.5, "worst3": None}, "predicted_mean": {"e2e": 0.5}},
    **{"best_seed": elite(0), "front": [elite(4)], "baselines": {"floor": ROWS}, "published": {"theirs": ROWS[:1]}},
    **{"quality": {"a": "clean", "b": "overloaded"}, "observed_ms": {"a": [1.0, 2.0, None]}, "calls": {"usd": 0.5}},
)


def test_a_report_is_read_back_as_it_was_written(tmp_path: Path) -> None:
    text, path = json.dumps(FULL.to_json(), allow_nan=False), tmp_path / "report.json"
    path.write_text(text)
    again = read_report(path)
    assert json.dumps(again.to_json()) == text
    assert again.champion == FULL.champion and again.best == FULL.best and list(again.errors) == list(ROWS)
    assert again.calls == {"usd": 0.5} and again.ended == FULL.ended
    assert errors_of(FULL.errors, FULL.fitted) == [ROWS[0]]
    raw = replace(FULL, champion=None, errors=(), baselines={}, calls={}).to_json()
    assert raw["champion"] is None and "errors" not in raw and "llm" not in raw
    path.write_text(json.dumps(raw))
    assert not read_report(path).front
    older = FULL.to_json() | {"rule": {"by": "joint"}, "rejected": [["hopeless", 3, "why"]]}
    older["champion"] = {OLD.get(name, name): value for name, value in older["champion"].items()}
    older["cascade"] = {"verdicts": {"hopeless": 3}, "cpu_s": {"transfer": 1.0}}
    path.write_text(json.dumps({"known" if name == "baselines" else name: value for name, value in older.items()}))
    again = read_report(path)
    assert again.champion == FULL.champion and dict(again.baselines) == {"floor": ROWS}
    assert (again.rule.by, dict(again.verdicts), dict(again.cpu_s)) == ("mean_error", {"pruned": 3}, {"group_out": 1.0})


@pytest.mark.parametrize(
    "wrong, said",
    [
        ({"seed": "x"}, "seed: must be a whole number"),
        ({"errors": [FULL.to_json()["errors"][0] | {"e2e": [1.5]}]}, r"errors\[0\]\.e2e: must be a number"),
        ({"errors": [FULL.to_json()["errors"][0] | {"experiment": 7}]}, r"errors\[0\]\.experiment: must be text"),
        ({"baselines": {"floor": [[1]]}}, "baselines: is not what this release writes"),
        ({"best": [[2.0, "x"]]}, r"best\[0\]\[1\]: must be a number"),
        ({"rejected": [["units", None, "why"]]}, r"rejected\[0\]\[1\]: must be a whole number"),
        (
            {"rule": {"by": "group_out", "within": "x", "worst_pct": 10, "nearer": 0.5}},
            r"rule\.within: must be a number",
        ),
        ({"cascade": {"verdicts": {"scored": 1.5}, "cpu_s": {}, "polished": 0}}, r"verdicts\.scored: must be a whole"),
        ({"cascade": {"verdicts": {}, "cpu_s": {"fit": []}, "polished": 0}}, r"cpu_s\.fit: must be a number"),
    ],
)
def test_a_wrong_value_in_a_report_is_named(wrong: dict[str, object], said: str, tmp_path: Path) -> None:
    (tmp_path / "report.json").write_text(json.dumps(FULL.to_json() | wrong))
    with pytest.raises(InputError, match=rf"report\.json, {said}"):
        read_report(tmp_path / "report.json")


OLD = {"mean_error": "joint", "group_out": "transfer", "consistent": "sound"}


def test_a_report_may_have_more_values_than_other_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "report.json"
    path.write_text(json.dumps(FULL.to_json()))
    monkeypatch.setattr(documents, "MOST_VALUES", 20)
    assert read_report(path).champion == FULL.champion
    with pytest.raises(InputError, match="more than 20 values"):
        documents.read_json(path, "")


def test_the_time_of_verdicts_from_the_journal_is_not_said_to_be_0() -> None:
    assert cascade_text(FULL).endswith("\nCPU time of assessments 1 s: fit 100 %.")  # 1.25 s, all of the fit
    polished = cascade_text(replace(FULL, verdicts={"scored": 31}, polished=2))
    assert " scored (2 polished finalists among them, not fitted again); refused: none" in polished
    assert "polished" not in cascade_text(FULL)
    assert ".\nEnded: the budget of 5 candidates is used up.\nCPU time" in cascade_text(FULL)
    assert "Ended" not in cascade_text(replace(FULL, ended=""))
    text = cascade_text(replace(FULL, cpu_s={}))
    assert text.endswith("\nCPU time of assessments: unknown, because every verdict was in the journal.")


def test_the_report_says_why_an_unsound_program_is_not_the_champion(capsys: pytest.CaptureFixture[str]) -> None:
    start = replace(elite(2, mean_error=1.0), consistent=False)
    best = replace(elite(4, mean_error=2.0), text="def step_time(b, s, *, base: us = 5000.0):\n    return base\n")
    report = replace(FULL, calls={}, run="my runs/[x]", champion=best, best_seed=start, front=[best])
    print_run(report)
    text = capsys.readouterr().out
    sentence = (
        f"Proposal 2 ({start.operator}) has a mean error of 1.00 %, but is not physically consistent, so it cannot be "
    )
    assert sentence in text.replace("\n", " ")
    assert "\n  evolve show 'my runs/[x]:2' --check --physics\n" in text
    assert "fitted, not physically consistent): mean error" in text
    assert not inconsistent(replace(report, best_seed=replace(start, consistent=True)), best)
    assert not inconsistent(replace(report, best_seed=elite(2, mean_error=3.0, consistent=False)), best)


def test_where_a_few_runs_make_a_mean_the_median_is_said() -> None:
    """Of 2, -4 and 90 the mean absolute error is 32, eight times the median of 4; of 2, -4 and 6 it is 4."""
    assert median_text([2.0, -4.0, None, 90.0]) == "; a few runs make the mean, the median E2E is 4.0"
    assert median_text([2.0, -4.0, 6.0]) == median_text([]) == median_text([0.0]) == ""
    host = [Errors(f"e{i}", e2e, 1.0, 1.0) for i, e2e in enumerate((2.0, -4.0, 90.0))]
    names = [r.experiment for r in host]
    report = replace(FULL, baselines={"trained physics published": host}, fitted=names)
    (cells,) = [r.values for r in means_table(report).rows if r.values[0] == "trained physics published"]
    assert str(cells[-1]).startswith(
        "none: published by the host, whose default backend it is; a few runs make the mean"
    )
