"""A search of single ideas as one document: it grows with the search, and is the same after kills and in a replay."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from random import Random
from typing import NamedTuple

import pytest
from llm_replies import Reply, Request, said
from llm_runs import DATA, Ran, entries, evolve, search
from llm_scripts import program, whole
from llm_server import Server

from evolve.summary.research import FILE, HEAD

GENERATIONS = 4
CONFIG = f"""
budget: 100
score: {{physics: false}}
search: {{prune_above: 0, generations: {GENERATIONS}, islands: 1, batch: 1, finalists: 1, start: [roofline], only_start: true}}
llm: {{programs: 1, rounds: 1, notes_every: 1, summariser: openai/notes}}
"""
JUDGES = ("--judge", "openai/judge", "--judge", "openai/b")


class Story(NamedTuple):
    """A run of ideas, the questions to its creator, and its document when each was asked."""

    run: Path
    ran: Ran
    questions: list[str]
    documents: list[str]


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Story:
    folder = tmp_path_factory.mktemp("ideas")
    (folder / "data.yaml").write_text(DATA)
    (folder / "ideas.yaml").write_text(CONFIG)
    run, questions, documents = folder / "run", list[str](), list[str]()

    def script(request: Request) -> Reply:
        if request.model == "a":
            questions.append(request.messages[1]["content"])
            documents.append((run / FILE).read_text())
            number = len(questions)
            why = f"Because of {number}.\n\nRelated work: paper {number}\nIssue 1: answer {number}\n\n```python"
            return said(whole(program(Random(number))).replace("```python", why))
        if request.model == "notes":
            return said("Go on.")
        mark = 6 if request.model == "judge" else 5
        marks = dict.fromkeys(("mechanism", "transfer", "identifiable", "economy"), mark)
        review = {"candidate": 1, **marks, "remark": f"{request.model} objects to {len(questions)}"}
        return said(json.dumps([review]))

    with Server(script) as server:
        args = search(server, folder / "ideas.yaml", "--quiet", "--out", run, *JUDGES, models=["a"])
        ran = evolve(folder, *args)
    return Story(run, ran, questions, documents)


def text(run: Path) -> str:
    return (run / FILE).read_text()


def entry(document: str, number: int) -> str:
    """The entry of the idea of that number, from 1."""
    return re.split("\n## Idea ", document.split("\n# Conclusions")[0])[number]


def test_the_document_only_grows_during_the_search(story: Story) -> None:
    assert (story.ran.status, story.ran.err) == (0, "")
    # a generation has one question of one program
    assert len(story.questions) == len([e for e in entries(story.run) if e.get("call")]) == GENERATIONS
    assert f"The ideas and their outcomes: {story.run}/{FILE}" in story.ran.out
    document = text(story.run)
    assert story.documents[0] == HEAD
    for before, after in zip(story.documents, [*story.documents[1:], document], strict=True):
        assert after.startswith(before) and after.count("\n## Idea ") == before.count("\n## Idea ") + 1
    assert document.count("# Conclusions") == 1


def test_the_next_creator_is_told_the_issues_and_its_answers_are_kept(story: Story) -> None:
    ideas = [e for e in entries(story.run) if e.get("call")]
    assert "# Issues" not in story.questions[0] and sum(bool(e["reviews"]) for e in ideas) >= 2
    for number, question in enumerate(story.questions[1:], 1):
        # of the latest idea that was reviewed: judges are not asked about one that its trial refused
        last = max((n for n in range(1, number + 1) if ideas[n - 1]["reviews"]), default=0)
        if not last:
            assert "# Issues" not in question
            continue
        # the lower marks first
        about = f'on idea {ideas[last - 1]["id"]} ("other terms")'
        issues = [f"openai/{judge} {about}: {judge} objects to {last}" for judge in ("b", "judge")]
        assert f"\n\n1. {issues[0]}\n2. {issues[1]}\n\nAnswer every issue" in question
        answered = entry(text(story.run), number + 1)
        assert f"**Answers to the reviews.**\n\n- Issue 1, {issues[0]}\n  - answer {number + 1}\n" in answered
    first = entry(text(story.run), 1)
    assert "**Motivation.** Because of 1.\n\n**Related work.** paper 1\n\n**Features.**" in first
    assert "- openai/judge: mechanism 6, transfer 6, identifiable 6, economy 6 (mean 6.0): judge objects to 1" in first
    assert "Answers to" not in first


def test_the_issues_are_in_the_preview_of_the_next_question(story: Story) -> None:
    ran = evolve(story.run.parent, "llm", "prompt", story.run, "0", key=None)
    assert ran.status == 0 and f": b objects to {GENERATIONS}\n2. openai/judge on idea" in ran.out


@pytest.mark.slow
def test_a_replay_and_what_a_kill_left_of_it_come_to_the_same_document(story: Story) -> None:
    folder, again = story.run.parent, story.run.parent / "again"
    args = ("run", "--replay", story.run, "--out", again, "--workers", 1, "--quiet")
    assert evolve(folder, *args, key=None).status == 0
    expected = text(story.run).replace(str(story.run), str(again))
    assert text(again) == expected
    lines = (again / "journal.jsonl").read_bytes().splitlines(keepends=True)
    ideas = [i for i, line in enumerate(lines) if b'"verdict"' in line and b'"call"' in line]
    for kept in (0, 1, GENERATIONS - 1):  # killed while it wrote the outcome of a generation, its document one behind
        shutil.rmtree(again / "programs")
        (again / "report.json").unlink()
        (again / "journal.jsonl").write_bytes(b"".join(lines[: ideas[kept]]) + lines[ideas[kept]][:20])
        (again / FILE).write_text(story.documents[max(kept - 1, 0)])
        assert evolve(folder, "resume", again, "--workers", 1, "--quiet", key=None).status == 0
        assert text(again) == expected
