"""Whole runs of models that bring nothing: they only repeat themselves, are not there, or may not be asked."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest
from llm_plays import Story, resumed, set_up, whole_run
from llm_replies import Reply, Request, said
from llm_runs import entries, evolve, of_kind, search, verdicts
from llm_scripts import UNITS, program, whole
from llm_server import Server

PATIENCE = 3
CONFIG = f"""
budget: 1000
score: {{physics: false}}
search: {{prune_above: 0, islands: 1, finalists: 1}}
llm: {{notes_every: 0, rounds: 2, patience: {PATIENCE}}}
"""
WHY = "no new candidate in 3 generations in a row: all were refused or duplicates"
SAME = whole(*(program(Random(i)) for i in range(3))) + UNITS.replace("Proposal 1", "Proposal 4")


def the_same(request: Request) -> Reply:
    """Three programs and a fourth of wrong units, whatever is asked."""
    return said(SAME)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = set_up(tmp_path_factory.mktemp("patience"))
    (path / "same.yaml").write_text(CONFIG)
    return path


@pytest.fixture(scope="module")
def story(folder: Path) -> Iterator[Story]:
    yield whole_run(folder, "same", "same", script=the_same)


def generations(run: Path) -> set[int]:
    return {int(line["call"].split("/")[0]) for line in of_kind(run, "sent")}


def test_a_search_whose_models_repeat_themselves_ends(story: Story) -> None:
    assert story.ran.status == 0
    fitted = [e for e in entries(story.run) if e.get("key") and e["operator"].startswith("llm:")]
    assert {int(e["call"].split("/")[0]) for e in fitted} == {1}
    assert generations(story.run) == set(range(1, 2 + PATIENCE))  # the first one brought candidates
    calls = json.loads((story.run / "report.json").read_text())["llm"]
    assert calls["stopped"] == calls["ended"] == WHY
    assert f"Stopped before the budget of candidates: {WHY}" in " ".join(story.ran.out.split())
    assert f"- The search stopped before its end: {WHY}.\n" in (story.run / "RESEARCH.md").read_text()
    assert [e for e in entries(story.run) if e["operator"] == "polish"]  # as at any end


def test_it_has_ended_for_good(folder: Path, story: Story) -> None:
    """Neither the resumed run nor its replay asks for more, or finds anything else."""
    before, requests = verdicts(story.run), len(story.server.seen)
    assert evolve(folder, "resume", story.run, "--workers", 1, "--quiet").status == 0
    assert verdicts(story.run) == before and len(story.server.seen) == requests
    assert evolve(folder, "run", "--replay", story.run, "--out", "again", "--workers", 1, "--quiet").status == 0
    assert verdicts(folder / "again") == before
    assert json.loads((folder / "again" / "report.json").read_text())["llm"]["stopped"] == WHY


def test_a_kill_in_between_changes_nothing(folder: Path, story: Story) -> None:
    """The journal is cut in the second generation without anything new; what is left is asked for, and no more."""
    lines, run = (story.run / "journal.jsonl").read_bytes().splitlines(), folder / "cut"
    resumed(story.run, run, next(i for i, line in enumerate(lines) if b'"kind":"sent","call":"3/' in line), the_same)
    assert verdicts(run) == verdicts(story.run)
    assert generations(run) == generations(story.run)


@pytest.mark.slow
def test_progress_says_when_nothing_new_comes(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("evolve.output.progress.EVERY_S", 0.0)
    monkeypatch.setattr("evolve.output.progress.REWRITE_S", 0.0)
    with Server(the_same) as server:
        ran = evolve(folder, *search(server, folder / "same.yaml", "--out", "loud"))
    assert ", nothing new in 2 generations: all refused or duplicates" in ran.err
    assert "asking for proposals: 0 of 2 answered" in ran.err and "replaying" not in ran.err
    again = evolve(folder, "run", "--replay", "loud", "--out", "loud-again", "--workers", 1)
    assert "replaying proposals: 2 of 2 answered" in again.err and "replaying proposals, round 2: " in again.err
    assert "asking for" not in again.err


# models that are not asked


ASKED = ["run", "--experiments", "data.yaml", "--proposer", "llm", "--llm", "openai/a"]
ASKED += ["--workers", "1", "--quiet", "--config"]
NO_ONE = "http://127.0.0.1:1"


def test_a_run_whose_server_is_not_there_keeps_its_work_and_fails(folder: Path) -> None:
    (folder / "closed.yaml").write_text(CONFIG.replace("patience: 3", "patience: 3, attempts: 1"))
    ran = evolve(folder, *ASKED, "closed.yaml", "--api-base", NO_ONE, "--budget", 12, "--out", "closed")
    assert ran.status == 1 and "\nChampion" in ran.out and (folder / "closed" / "report.json").is_file()
    assert ran.err.startswith("evolve: closed: no language model answered (openai/a: ") and ran.err.count("\n") == 1
    assert json.loads((folder / "closed" / "report.json").read_text())["candidates"] == 12


def test_prices_and_limits_that_cannot_hold_are_refused(folder: Path) -> None:
    """By hand: an answer may take 8192 tokens of 2 USD a million, which alone is more than a cent."""
    args = (*ASKED, "same.yaml", "--api-base", NO_ONE, "--out", "never")
    ran = evolve(folder, *args, "--price", "openai/other=1,2")
    assert ran.status == 2 and "--price openai/other=1,2" in ran.err and ran.err.count("\n") == 1
    ran = evolve(folder, *args, "--price", "openai/a=1,2", "--max-usd", 0.01)
    assert ran.status == 2 and not (folder / "never").exists()
    assert re.search(r"--max-usd 0\.01: .* 0\.0100 USD, .* 0\.02\d\d\. Give 0\.03 or more", ran.err)
