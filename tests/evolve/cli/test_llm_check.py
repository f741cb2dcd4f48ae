"""One question to one model: what is said of the answer, what it costs, and what is refused before anything is sent."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest
from llm_replies import Reply, hang, html, no_choices, no_usage, parts, said, status
from llm_runs import KEY, Ran, evolve
from llm_scripts import CUT, PROSE, UNITS, program, whole
from llm_server import Server

from archive.archive import Archive
from archive.elite import Elite
from evolve.run.config import Config
from evolve.search.llm import preview
from evolve.search.llm.calls import Messages
from simulator.serving.experiment import Experiment

BROKEN = "def step_time(b, s):\n    return (\n"
MIXED = whole(program(Random(1)), program(Random(2)), "def step_time(b, s):\n    return b.tokens\n", BROKEN)
NO_ONE = "http://127.0.0.1:1/v1"


@pytest.fixture(autouse=True, scope="module")
def one_question() -> Iterator[None]:
    """Every question is about the same shipped programs, which are fitted once for all tests here: it does not depend
    on the server's address nor on the price."""
    made: dict[str, tuple[Messages, Elite, Archive]] = {}

    def question(config: Config, fitted: Sequence[Experiment]) -> tuple[Messages, Elite, Archive]:
        config = replace(config, llm=replace(config.llm, api_base="", prices={}, max_usd=0.0))
        if repr(config) not in made:
            made[repr(config)] = original(config, fitted)
        return deepcopy(made[repr(config)])

    with pytest.MonkeyPatch.context() as patched:
        original = preview.first_question
        patched.setattr(preview, "first_question", question)
        yield


def check(
    folder: Path, reply: Reply, *more: object, model: str = "openai/mine", key: str | None = KEY
) -> tuple[Ran, Server]:
    """How `evolve llm check` ends if a server answers so."""
    with Server(lambda _: reply) as server:
        return evolve(folder, "llm", "check", model, "--api-base", server.url, *more, key=key), server


def as_json(folder: Path, reply: Reply, *more: object) -> tuple[int, dict[str, Any]]:
    ran, _ = check(folder, reply, "--json", *more)
    return ran.status, json.loads(ran.out)


def test_what_came_back_what_it_cost_and_what_is_wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    ran, server = check(tmp_path, said(MIXED, usage=(5000, 400)), "--price", "1,10")
    assert ran.status == 0 and not ran.err
    assert "openai/mine answered as mine-2026-01-01 in " in ran.out and "it may or may not call tools" in ran.out
    # by hand: 5000 x 1 and 400 x 10 millionths
    assert "5000 tokens in, 400 out: 0.0090 USD, at 1 USD per million tokens in and 10 out." in ran.out
    assert "4 of 4 proposals read: 3 parse, and a search would fit 2." in ran.out
    assert "multiply it by a constant of us/token" in ran.out
    assert len(server.seen) == 1 and not list(tmp_path.iterdir())  # one request, and nothing is kept


def test_the_question_is_one_of_a_run(tmp_path: Path) -> None:
    _, server = check(tmp_path, said(MIXED))
    system, user = (message["content"] for message in server.seen[0].messages)
    assert "\nweight_read_us: weights read once" in system
    assert "# Program A, to be improved" in user and "Proposal 4: " in user and "seed" not in user
    assert server.seen[0].body["max_tokens"] == 8192


def test_the_json_has_every_figure(tmp_path: Path) -> None:
    code, value = as_json(tmp_path, said(MIXED, usage=(5000, 400)), "--price", "1,10")
    assert code == 0
    assert (value["version"], value["tokens_in"], value["tokens_out"], value["finish"]) == (
        "mine-2026-01-01",
        5000,
        400,
        "stop",
    )
    assert value["usd"] == pytest.approx(0.009) and not value["uncounted"] and value["tools"] is None
    assert [value[name] for name in ("asked", "read", "parsed", "usable", "nothing")] == [4, 4, 3, 2, ""]
    assert [p["parses"] for p in value["proposals"]] == [True, True, True, False]
    assert [bool(p["complaint"]) for p in value["proposals"]] == [False, False, True, True]
    assert value["proposals"][0]["text"].startswith("def step_time(") and value["data"] and value["seeds"] == [1]


def test_an_answer_without_a_count_is_charged_at_the_most(tmp_path: Path) -> None:
    _, value = as_json(tmp_path, no_usage(MIXED), "--price", "1,10")
    assert value["uncounted"] and value["tokens_out"] == 8192 and value["usd"] == value["usd_at_most"]
    ran, _ = check(tmp_path, said(MIXED, usage=(10**9, 10**9)))
    assert "8192 out (no credible count: the most that the request can have taken)" in " ".join(ran.out.split())


@pytest.mark.parametrize(
    ("answer", "finish", "code", "why"),
    [
        (UNITS, "stop", 0, "units: "),  # it parses, though no search would fit it
        (whole(BROKEN), "stop", 1, ""),
        (CUT, "length", 1, "its program has no end: the answer was cut off"),
        (PROSE, "stop", 1, "no program in the answer"),
        ("", "stop", 1, "the answer is empty"),
    ],
)
def test_the_status_says_whether_a_proposal_parses(
    answer: str, finish: str, code: int, why: str, tmp_path: Path
) -> None:
    ended, value = as_json(tmp_path, said(answer, finish=finish))
    assert ended == code
    assert why in value["nothing"] + "".join(p["complaint"] for p in value["proposals"])
    assert bool(value["parsed"]) == (code == 0) and not value["usable"]


@pytest.mark.parametrize(
    ("reply", "code", "why"),
    [
        (status(500), 1, "server error"),
        (status(429), 1, "rate limit"),
        (status(401), 2, "key refused"),
        (status(404), 2, "no such model"),
        (hang(0.01), 1, "it may have been charged all the same"),
        # what it sent is quoted, and a remedy named
        (status(500), 1, '"the server says no"; nothing was charged. Read the log of the server'),
        (html(), 1, '"<!doctype html>\\n<html><body><h1>Sign in to continue</h1></body></html>\\n"; it may'),
        (parts(MIXED), 1, 'broken answer, "the answer\'s content is not text"; it may have been charged all the same'),
        (no_choices(), 1, 'broken answer, "the answer has no choices"; it may have been charged all the same'),
        (html(), 1, ". Give --api-base of an OpenAI-compatible server"),
        (status(400, "x" * 200), 1, f'"{"x" * 77}..."; nothing was charged. Check the limits of the server'),
    ],
)
def test_without_an_answer(reply: Reply, code: int, why: str, tmp_path: Path) -> None:
    ran, server = check(tmp_path, reply)
    assert ran.status == code and ran.err.count("\n") == 1 and not ran.out
    assert ran.err.startswith("evolve: cannot ask openai/mine: ") and why in ran.err and KEY not in ran.err
    assert len(server.seen) == 1  # it is not tried again


def test_an_answer_without_a_program_is_quoted(tmp_path: Path) -> None:
    ran, _ = check(tmp_path, said("<p>hello " * 30))
    assert ran.status == 1
    said_of = " ".join(ran.out.split())
    assert f'no program in the answer, which begins "{("<p>hello " * 30)[:77]}...". Name a model that ' in said_of


@pytest.mark.parametrize(
    ("body", "line"),
    [
        ("x = (1 + 0.5) * b.weight_read_us\n    return c * b.tokens + x", 2),
        ("x = b.weight_read_us\n    return c * b.tokens + x + 0.5 * x", 3),  # made of both lines, at the second
    ],
)
def test_a_number_that_a_formula_comes_to_is_found_by_its_line(body: str, line: int, tmp_path: Path) -> None:
    text = f"def step_time(b, s, *, c: us/token = 2.0):\n    {body}\n"
    _, value = as_json(tmp_path, said(whole(text)))
    complaint = value["proposals"][0]["complaint"]
    assert complaint.startswith(f"line {line}: the formulas come to the number 1.5, and only 0, 1, 2 and 0.5 may be")


def test_what_may_cost_more_than_allowed_is_not_sent(tmp_path: Path) -> None:
    _, value = as_json(tmp_path, said(MIXED), "--price", "10,50", "--max-usd", 1)
    most = value["usd_at_most"]
    assert 8192 * 50e-6 < most < 0.6
    ran, server = check(tmp_path, said(MIXED), "--price", "10,50", "--max-usd", most * 0.999)
    assert ran.status == 2 and not server.seen
    assert f"the question may cost {most:.4f} USD. Allow more, or name a cheaper model." in ran.err
    ran, server = check(tmp_path, said(MIXED), "--price", "10,50", "--max-usd", most)
    assert ran.status == 0 and len(server.seen) == 1
    ran, server = check(tmp_path, said(MIXED), "--price", "10,500")  # half a dollar by default
    assert ran.status == 2 and not server.seen and "--max-usd 0.5: " in ran.err


@pytest.mark.parametrize(
    ("args", "why"),
    [
        (["anthropic/claude-haiku-5-5"], "without its key. Set ANTHROPIC_API_KEY for anthropic/claude-haiku-5-5"),
        (["mine", "--api-base", NO_ONE], "'mine' is not a model: give provider/model"),
        (["nobody/m"], "nobody/m: litellm knows no such provider"),
        (
            ["openai/mine", "--api-base", "https://gpus.example.com/v1"],
            "openai/mine: its price is unknown. Give --price",
        ),
        (["openai/mine", "--api-base", "here"], "is not an address"),
        (["openai/mine", "--api-base", NO_ONE, "--price", "1"], "--price 1: give IN,OUT in USD per million tokens"),
        (["openai/mine", "--api-base", NO_ONE, "--price", "1,-2"], "must be [input, output] in USD per million tokens"),
    ],
)
def test_wrong_input_is_one_line(args: list[str], why: str, tmp_path: Path) -> None:
    ran = evolve(tmp_path, "llm", "check", *args, key=None)
    assert ran.status == 2 and ran.err.count("\n") == 1 and why in ran.err and not ran.out


def test_a_server_that_is_not_there(tmp_path: Path) -> None:
    ran = evolve(tmp_path, "llm", "check", "openai/mine", "--api-base", NO_ONE, key=None)
    assert ran.status == 1 and "no connection" in ran.err and "nothing was charged" in ran.err
