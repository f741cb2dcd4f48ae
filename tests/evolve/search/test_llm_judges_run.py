"""A whole run with a judge: two forms that the data cannot tell apart, an answer without reviews, and what is shown."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest
from llm_plays import Story, set_up, whole_run
from llm_replies import Reply, Request, said
from llm_runs import PRAISE, asked_in, entries, evolve, ledger, of_kind
from llm_scripts import UNITS, whole

from evolve.search.llm.panel import RUBRIC

ONE = """
def step_time(b, s, *, gemm: one = 1.3, launch: us = 2000.0):
    return b.weight_read_us + gemm * b.prefill_gemm_us + launch
"""
SAME = ONE.replace("us = 2000.0", "us/token = 0.2").replace("+ launch", "+ launch * s.max_num_batched_tokens")
OTHER = ONE.replace("b.prefill_gemm_us", "b.decode_gemm_us")


def script(request: Request) -> Reply:
    """Four programs and no second round; the judge first forgets to give marks, and dislikes the number of tokens."""
    if request.model != "judge":
        rounds = len(request.messages) > 2
        return said("done" if rounds else whole(ONE, SAME, OTHER, UNITS.split("```python\n")[1].split("```")[0]))
    if len(request.messages) == 1:
        return said(PRAISE)
    marks = [6 if "max_num_batched_tokens" in text else 9 for text in candidates(request)]
    rows = [{"candidate": i, **dict.fromkeys(RUBRIC, m), "remark": f"mark {m}"} for i, m in enumerate(marks, 1)]
    return said(json.dumps(rows))


def candidates(request: Request) -> list[str]:
    return request.messages[0]["content"].split("# Candidates")[1].split("# Your review")[0].split("\nCandidate ")[1:]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return set_up(tmp_path_factory.mktemp("judges"))


@pytest.fixture(scope="module")
def story(folder: Path) -> Story:
    return whole_run(folder, "brief", "judged", "--judge", "openai/judge", script=script)


def of_models(story: Story) -> dict[str, dict[str, object]]:
    """What became of each text that a model proposed first, by what tells the texts apart."""
    found: dict[str, dict[str, object]] = {}
    for entry in entries(story.run):
        text = entry.get("text") or entry.get("elite", {}).get("text", "")
        if entry.get("call"):
            name = next(
                (n for n in ("max_num_batched_tokens", "decode_gemm_us", "prefill_gemm_us") if n in text), "units"
            )
            found.setdefault(name, entry)
    return found


def test_of_two_that_the_data_cannot_tell_apart_only_the_judges_choice_is_fitted(story: Story) -> None:
    assert story.ran.status == 0 and story.ran.err == ""
    found = of_models(story)
    kept, refused = (found["prefill_gemm_us"], found["decode_gemm_us"]), found["max_num_batched_tokens"]
    assert all(entry["verdict"] == "scored" for entry in kept)
    better = min(kept, key=lambda entry: entry["elite"]["mean_error"])  # type: ignore[index]
    assert refused["stage"] == "judges" and "key" not in refused
    assert f"the judges prefer proposal {better['id']}, 9.0 to 6.0 of 10" in refused["why"]
    assert "differ in s.max_num_batched_tokens" in refused["why"]


def test_judges_see_what_candidates_and_parents_reached(story: Story) -> None:
    first = next(q for q in story.server.seen if q.model == "judge")
    text = first.messages[0]["content"]
    assert len(candidates(first)) == 3  # what has inconsistent units is not sent to them
    parent = of_models(story)["prefill_gemm_us"]["parents"][0]  # type: ignore[index]
    elite = next(e["elite"] for e in entries(story.run) if e["id"] == parent)
    assert f"Parent, program {parent}: worst-3 E2E {elite['worst3']:.2f}, mean error {elite['mean_error']:.2f}," in text
    for shown in candidates(first):
        assert f"From program {parent}, fitted: worst-3 E2E " in shown and "\nLeft out" in shown
    assert "max_num_batched_tokens" in text and "kv_read_us" not in text.split("# The search so far")[0]


def test_an_answer_without_marks_is_asked_again_once_and_counted(folder: Path, story: Story) -> None:
    sent = Counter(line["call"].split("/")[1] for line in of_kind(story.run, "sent") if "judge" in line["call"])
    assert sent == {"judge": 1, "judge-2": 1}
    again = [text for text in asked_in(story.run).values() if "cannot be used: it has no JSON array" in text]
    assert len(again) == 1 and PRAISE in again[0]
    assert {row["call"].split("/")[1] for row in ledger(story.run) if row["model"] == "openai/judge"} == set(sent)
    reviews = json.loads((story.run / "report.json").read_text())["llm"]["reviews"]
    assert (reviews["given"], reviews["asked_again"], reviews["missing"]) == (3, 1, 0)
    assert reviews["rank_correlation"] is None  # of three programs at most
    assert "Reviews: 3 given, 1 question asked again, 0 missing." in (story.run / "summary.md").read_text()
    by = json.loads(evolve(folder, "archive", story.run, "--by", "proposer", "--json", key=None).out)["proposers"]
    assert "judge:openai/judge" in by and "judge-2:openai/judge" not in by


def test_a_refused_proposal_is_shown_with_its_reviews(folder: Path, story: Story) -> None:
    refused = of_models(story)["max_num_batched_tokens"]
    ran = evolve(folder, "show", f"{story.run}:{refused['id']}", key=None)
    flat = " ".join(ran.out.split())
    assert ran.status == 0 and "launch * s.max_num_batched_tokens" in flat
    assert f"refused at judges: {refused['why']}" in flat
    assert f"Proposed in call {refused['call']}: other terms" in flat
    assert "openai/judge" in flat and "mark 6" in flat
    value = json.loads(evolve(folder, "show", f"{story.run}:{refused['id']}", "--json", key=None).out)
    assert value["refused"] == {"stage": "judges", "why": refused["why"]}
    assert value["program"] == refused["text"] and value["reviews"] == refused["reviews"]
    units = of_models(story)["units"]
    assert "refused at units" in evolve(folder, "show", f"{story.run}:{units['id']}", key=None).out
    # nothing else takes it for a program
    checked = evolve(folder, "show", "--check", f"{story.run}:{refused['id']}", key=None)
    assert checked.status == 2 and "was rejected at judges" in checked.err
