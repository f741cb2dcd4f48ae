"""The shipped run of a language model replays to the same verdicts, without a server or a key."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from llm_runs import evolve
from paths import ROOT

from archive.proposal import is_outcome
from evolve.run.folder import open_run
from evolve.search.llm.calls import call_log

RECORDED = ROOT / "seeds" / "recorded"


@pytest.fixture(scope="module")
def again(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("recorded")
    args = ("run", "--replay", RECORDED, "--out", "again", "--workers", 1, "--quiet")
    assert evolve(folder, *args, key=None).status == 0
    return folder / "again"


def test_the_recorded_answers_lead_to_the_same_verdicts(again: Path) -> None:
    recorded = [line for line in open_run(RECORDED).each_line() if is_outcome(line)]
    # what a release writes besides, such as the motivation, is not in the recording
    names = ("id", "operator", "parents", "call", "verdict", "key", "elite", "stage")
    found = [line for line in open_run(again).each_line() if is_outcome(line)]
    assert len(found) == len(recorded) == 236
    for ours, theirs in zip(found, recorded, strict=True):
        assert [ours.get(name) for name in names] == [theirs.get(name) for name in names]


def test_the_figures_of_the_pages_are_those_of_the_recorded_run(again: Path) -> None:
    """docs/results.md states them."""
    report = json.loads((again / "report.json").read_text())
    log = call_log(open_run(RECORDED).lines())
    tokens_in, tokens_out = (
        sum(getattr(a, name) for a in log.answers.values()) for name in ("tokens_in", "tokens_out")
    )
    assert (report["candidates"], len(log.answers), tokens_in, tokens_out) == (227, 60, 356_539, 50_836)
    champion = report["champion"]
    assert (champion["operations"], champion["constants"]) == (26, 1)
    assert [round(champion[name], 2) for name in ("mean_error", "group_out")] == [5.83, 5.76]
    # the sealed runs: four cells that neither fit nor questions had
    unseen = [row for row in report["errors"] if row["experiment"] not in report["fitted"]]
    rows = [row for row in unseen if report["quality"][row["experiment"]] == "clean"]
    means = [round(sum(abs(row[name]) for row in rows) / len(rows), 1) for name in ("ttft", "itl")]
    assert (len(rows), means) == (93, [29.0, 11.1])
    text = (again / "RESEARCH.md").read_text()
    assert text.count("\n") <= 300 and "227 ideas: 26 hold, 3 do not." in text
    assert "## Recommendation" in text and "**Program 477**" in text
