"""Whole runs in which one model never answers and another is asked instead: what is journalled, paid and repeated."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest
from llm_plays import Story, resumed, set_up, whole_run
from llm_replies import Reply, Request, status
from llm_runs import USD, by_content, entries, evolve, journal, ledger, of_kind, search, verdicts
from llm_server import Server

pytestmark = pytest.mark.slow  # whole runs with a second model; test_llm_fallback goes from model to model call by call

ROUNDS = ("--budget", 40)
BOTH_TO_A = 6  # with this seed both of the first two questions are put to a
LITTLE = ("--budget", 20, "--start", "roofline", "--only-start", "--seed", BOTH_TO_A)


def a_is_down(request: Request) -> Reply:
    return status(500) if request.model == "a" else by_content(request)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return set_up(tmp_path_factory.mktemp("fallback"))


@pytest.fixture(scope="module")
def story(folder: Path) -> Story:
    return whole_run(folder, "narrow", "fallback", *ROUNDS, script=a_is_down)


@pytest.mark.slow
def test_what_one_model_did_not_answer_another_did(story: Story) -> None:
    assert story.ran.status == 0 and story.ran.err == ""
    moved = [line for line in of_kind(story.run, "answered") if "/propose-2/" in line["call"]]
    assert moved and {line["model"] for line in moved} == {"openai/b"}
    lost = {line["call"] for line in of_kind(story.run, "given up")}
    assert lost == {line["call"].replace("propose-2", "propose") for line in moved}
    # the same question, and its programs are those of the model that answered
    asked = {line["call"]: line["prompt"] for line in of_kind(story.run, "sent")}
    assert all(asked[call] == asked[call.replace("propose-2", "propose")] for call in asked if "propose-2" in call)
    assert {entry["operator"] for entry in entries(story.run) if entry.get("call")} == {"llm:openai/b"}
    assert all(e["operator"].startswith(("llm:", "seed")) for e in entries(story.run))  # no operator helps out


def test_every_request_is_journalled_before_it_is_sent_and_paid_as_the_server_counts(story: Story) -> None:
    rows = ledger(story.run)
    assert Counter(row["model"] for row in rows) == Counter(f"openai/{q.model}" for q in story.server.seen)
    paid = story.server.by_model
    assert set(paid) == {"b"}
    tokens_in, tokens_out = USD["b"]
    usd = (paid["b"].tokens_in * tokens_in + paid["b"].tokens_out * tokens_out) / 1e6
    total = json.loads((story.run / "report.json").read_text())["llm"]
    assert total["usd"] == pytest.approx(usd, rel=1e-9) and total["possibly_usd"] == 0.0


def test_a_model_that_was_replaced_twice_rests(story: Story) -> None:
    """After two calls in a row without an answer it is not asked in the next generation."""
    asked = [line for line in of_kind(story.run, "sent") if line["model"] == "openai/a"]
    given_up = [line["call"] for line in of_kind(story.run, "given up") if line["model"] == "openai/a"]
    assert len(asked) == 2 * len(given_up) >= 4  # two attempts a call
    second = int(given_up[1].split("/")[0])
    assert not [line for line in asked if int(line["call"].split("/")[0]) == second + 1]
    assert [line for line in of_kind(story.run, "sent") if int(line["call"].split("/")[0]) == second + 1]  # b is asked


def test_a_replay_asks_the_same_models_without_knowing_a_price(folder: Path, story: Story) -> None:
    ran = evolve(folder, "run", "--replay", story.run, "--out", "again", "--workers", 1, "--quiet", key=None)
    assert ran.status == 0 and verdicts(folder / "again") == verdicts(story.run)


@pytest.mark.parametrize("part", [pytest.param("given up", marks=pytest.mark.slow), "sent"])
def test_a_run_that_broke_off_in_between_goes_on_as_if_it_had_not(part: str, folder: Path, story: Story) -> None:
    """Cut after the first model was given up, and after the request to the second was journalled."""
    lines = [(i, line) for i, line in enumerate(journal(story.run)) if line["kind"] == part]
    at = next(i for i, line in lines if ("propose-2" in line["call"]) == (part == "sent"))
    run = folder / f"cut-{part.replace(' ', '-')}"
    assert resumed(story.run, run, at + 1, a_is_down)
    assert verdicts(run) == verdicts(story.run)


@pytest.mark.parametrize("most", [1, 4, 5, 6])
def test_the_limits_hold_for_the_second_model_too(folder: Path, most: int) -> None:
    """Both first questions are put to a, twice each. Reached with the first request, with the last one to a, and with
    the first ones to b."""
    run = whole_run(folder, "narrow", f"limited-{most}", *LITTLE, "--max-calls", most, script=a_is_down)
    answered = bool(of_kind(run.run, "answered"))
    assert run.ran.status == (0 if answered else 1) and len(run.server.seen) <= most
    assert answered or f" and max_calls {most} is reached: `evolve resume " in run.ran.err
    assert len(ledger(run.run)) == len(run.server.seen)


def test_a_dearer_model_is_not_asked_in_place_of_a_cheaper_one(folder: Path) -> None:
    alone = whole_run(folder, "narrow", "dearer", *LITTLE, "--price", "openai/b=30,40", script=a_is_down)
    assert alone.ran.status == 0  # b costs 26 times as much as a
    assert not [line for line in of_kind(alone.run, "sent") if "propose-2" in line["call"]]


# a key that is refused


def a_is_refused(request: Request) -> Reply:
    return status(401) if request.model == "a" else by_content(request)


@pytest.mark.slow
def test_a_refused_key_ends_no_run_whose_other_model_answers(folder: Path) -> None:
    run = whole_run(folder, "narrow", "refused", *LITTLE, script=a_is_refused)
    assert run.ran.status == 0 and run.ran.err == ""
    assert {line["model"] for line in of_kind(run.run, "answered")} == {"openai/b"}
    lost = [line for line in of_kind(run.run, "given up") if line["model"] == "openai/a"]
    assert all(line["why"].startswith("key refused") for line in lost)
    again = evolve(folder, "run", "--replay", run.run, "--out", "refused-again", "--workers", 1, "--quiet", key=None)
    assert again.status == 0 and verdicts(folder / "refused-again") == verdicts(run.run)
    # cut before and after the answer of the second model, when the refusal is not in the journal yet
    kinds = [line["kind"] for line in journal(run.run)]
    assert kinds.index("failed") < kinds.index("answered") < kinds.index("given up")
    for at in (kinds.index("failed") + 1, kinds.index("answered") + 1):
        assert resumed(run.run, folder / f"refused-cut-{at}", at, a_is_refused)
        assert verdicts(folder / f"refused-cut-{at}") == verdicts(run.run)


@pytest.mark.slow
def test_keys_that_are_all_refused_are_one_line_and_either_may_be_corrected(folder: Path) -> None:
    for name in ("a", "b"):
        run = folder / f"all-refused-{name}"

        def corrected(request: Request, name: str = name) -> Reply:
            return by_content(request) if request.model == name else status(401)

        with Server(lambda _: status(401)) as server:
            ran = evolve(folder, *search(server, folder / "narrow.yaml", "--quiet", "--out", run, *LITTLE))
            assert ran.status == 2 and ran.err.count("\n") == 1
            assert {q.model for q in server.seen} == {"a", "b"}
            assert all(f"--llm openai/{name}: key refused" in ran.err for name in ("a", "b"))
            assert not of_kind(run, "given up")
            server.script = corrected
            assert evolve(folder, "resume", run, "--workers", 1, "--quiet").status == 0
        assert {line["model"] for line in of_kind(run, "answered")} == {f"openai/{name}"}
