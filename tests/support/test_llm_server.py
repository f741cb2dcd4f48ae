"""The test server and the answers written for it do what their names say."""

from __future__ import annotations

import json
import re
import socket
import threading
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from http.client import HTTPException, IncompleteRead, RemoteDisconnected
from random import Random
from typing import Any
from urllib.error import HTTPError

import llm_scripts
import pytest
from llm_replies import (
    Reply,
    Request,
    completion,
    die,
    drip,
    echo_key,
    hang,
    html,
    huge,
    no_choices,
    no_usage,
    null,
    said,
    status,
    truncated,
)
from llm_server import Paid, Server

from archive.proposal import Rejected
from evaluator.assess import read
from simulator.language.key import key
from simulator.language.measure import Caps
from simulator.language.parse import parse

FOREVER = 3600.0  # seconds; a test that waited for it would be seen
DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def post(url: str, text: str = "12345678", model: str = "m") -> Any:
    """The open response to one question of two tokens."""
    body = json.dumps({"model": model, "messages": [{"role": "user", "content": text}]}).encode()
    head = {"Authorization": "Bearer sk-test", "Content-Type": "application/json"}
    return DIRECT.open(urllib.request.Request(f"{url}/chat/completions", body, head))


def ask(url: str, text: str = "12345678", model: str = "m") -> tuple[int, dict[str, str], str]:
    """Status, headers and body of an answer or an error."""
    try:
        with post(url, text, model) as response:
            return response.status, dict(response.headers), response.read().decode()
    except HTTPError as e:
        with e:
            return e.code, dict(e.headers), e.read().decode()


def answer(reply: Reply) -> tuple[int, dict[str, str], str, Paid]:
    """What a client got from a reply, and what was counted for it."""
    with Server(lambda _: reply) as server:
        return *ask(server.url), server.paid


def test_an_answer_and_what_it_cost() -> None:
    code, _, body, paid = answer(said("four" * 3, finish="length"))
    found = json.loads(body)
    assert (code, found["model"], found["choices"][0]["finish_reason"]) == (200, "m-2026-01-01", "length")
    assert found["choices"][0]["message"] == {"role": "assistant", "content": "four" * 3}
    # a quarter of the characters: 8 asked, 12 answered
    assert found["usage"] == {"prompt_tokens": 2, "completion_tokens": 3, "total_tokens": 5}
    assert paid == Paid(1, 2, 3)


def test_what_a_test_says_it_cost_and_who_answered() -> None:
    _, _, body, paid = answer(said("x", usage=(70, 9), model="other"))
    assert json.loads(body)["model"] == "other"
    assert paid == Paid(1, 70, 9)


def test_costs_are_kept_by_the_model_asked() -> None:
    with Server(lambda request: said("1234", usage=(request.number, 1))) as server:
        for model in ("a", "b", "a"):
            ask(server.url, model=model)
        assert server.by_model == {"a": Paid(2, 2, 2), "b": Paid(1, 1, 1)}
        assert (server.answered, server.tokens_in, server.tokens_out) == (3, 3, 3)


def test_whole_answers_that_say_too_little() -> None:
    assert json.loads(answer(null())[2])["choices"][0]["message"]["content"] is None
    assert json.loads(answer(no_choices())[2])["choices"] == []
    code, _, body, paid = answer(no_usage("x"))
    assert (code, "usage" in json.loads(body), paid) == (200, False, Paid())


def test_errors_in_the_form_of_the_interface() -> None:
    code, headers, body, paid = answer(status(429, "slow down", retry_after=1.5))
    assert (code, headers["Retry-After"], paid) == (429, "1.5", Paid())
    assert json.loads(body)["error"] == {
        "message": "slow down",
        "type": "requests",
        "param": None,
        "code": "rate_limit_exceeded",
    }
    code, headers, body, _ = answer(echo_key(401))
    assert (code, "Retry-After" in headers) == (401, False)
    assert "Bearer sk-test" in json.loads(body)["error"]["message"]
    assert answer(replace(said("x"), code=500))[3] == Paid()


def test_bodies_that_are_no_answer() -> None:
    code, headers, body, paid = answer(truncated())
    assert (code, headers["Content-Length"], paid) == (200, str(len(body)), Paid())
    with pytest.raises(json.JSONDecodeError):
        json.loads(body)
    code, headers, body, paid = answer(html())
    assert (code, headers["Content-Type"], body[:15], paid) == (200, "text/html", "<!doctype html>", Paid())
    code, _, body, paid = answer(drip(0.1))
    assert (code, body.strip(), len(body) > 1, paid) == (200, "", True, Paid())


def test_a_huge_answer_has_one_program() -> None:
    text = json.loads(answer(huge(100_001))[2])["choices"][0]["message"]["content"]
    assert len(text) == 100_001
    assert programs(text) == [llm_scripts.EXAMPLE]


@pytest.mark.parametrize(("reply", "error"), [(die(), IncompleteRead), (hang(0.0), RemoteDisconnected)])
def test_connections_that_end_too_early(reply: Reply, error: type[Exception]) -> None:
    with Server(lambda _: reply) as server:
        with pytest.raises(error):
            ask(server.url)
        assert server.paid == Paid()


def test_requests_are_seen_in_the_order_of_their_numbers() -> None:
    with Server(lambda request: said(request.messages[0]["content"])) as server, ThreadPoolExecutor(8) as pool:
        bodies = [json.loads(body) for _, _, body in pool.map(lambda i: ask(server.url, f"{i:04}"), range(40))]
        assert [b["choices"][0]["message"]["content"] for b in bodies] == [f"{i:04}" for i in range(40)]
        assert [request.number for request in server.seen] == list(range(40))
        assert {request.messages[0]["content"] for request in server.seen} == {f"{i:04}" for i in range(40)}
        assert {(r.model, r.authorization, r.body["model"]) for r in server.seen} == {("m", "Bearer sk-test", "m")}
        assert server.paid == Paid(40, 40, 40)


def test_a_later_request_may_be_answered_first() -> None:
    arrived, over = threading.Event(), threading.Event()

    def first(request: Request) -> dict[str, Any]:
        arrived.set()
        over.wait()
        return completion(request, "first")

    with Server(lambda request: said("x") if request.number else Reply(first)) as server, ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(ask, server.url)
        arrived.wait()
        ask(server.url)
        assert (len(server.seen), server.answered) == (2, 1)
        over.set()
        assert "first" in waiting.result()[2]


def test_other_paths_are_not_found() -> None:
    with Server(lambda _: said("x")) as server:
        assert ask(server.url + "/v2")[0] == 404
        assert server.seen == []


@pytest.mark.parametrize("reply", [hang(FOREVER), drip(FOREVER)])
def test_closing_ends_what_is_under_way(reply: Reply, capfd: pytest.CaptureFixture[str]) -> None:
    before = set(threading.enumerate())
    asked = threading.Semaphore(0)

    def script(_: object) -> Reply:
        asked.release()
        return reply

    with ThreadPoolExecutor(4) as pool, Server(script) as server:
        clients = [pool.submit(ask, server.url) for _ in range(4)]
        for _ in clients:
            asked.acquire()
        server.close()
        for client in clients:
            assert isinstance(client.exception(), HTTPException | OSError)
        assert server.paid == Paid()
    assert set(threading.enumerate()) == before
    assert capfd.readouterr().err == ""


def test_closing_ends_connections_that_ask_nothing_more() -> None:
    with Server(lambda _: said("x")) as server, socket.create_connection(server.socket.getsockname()) as idle:
        body = b'{"model": "m", "messages": []}'
        idle.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        assert idle.recv(12) == b"HTTP/1.1 200"
        server.close()
        while idle.recv(4096):
            pass


@pytest.mark.parametrize("reply", [huge(20_000_000), drip(FOREVER)])  # the first is more than sockets buffer
def test_a_client_that_leaves_costs_nothing_and_makes_no_noise(reply: Reply, capfd: pytest.CaptureFixture[str]) -> None:
    with Server(lambda _: reply) as server:
        with post(server.url) as response:
            response.read(1)
        server.close()
        assert server.paid == Paid()
    assert capfd.readouterr().err == ""


def programs(text: str) -> list[str]:
    """The insides of the fenced blocks, the last of which may be open."""
    return re.findall(r"^```\w*\n(.*?)(?:^```$|\Z)", text, re.DOTALL | re.MULTILINE)


def test_random_programs_are_admitted_and_of_many_forms() -> None:
    rng = Random(0)
    texts = [llm_scripts.program(rng) for _ in range(100)]
    assert [refused for text in texts if isinstance(refused := read(text, Caps()), Rejected)] == []
    assert len({key(parse(text)) for text in texts}) >= 60
    assert llm_scripts.program(Random(0)) == texts[0]


def test_an_answer_of_programs_and_one_of_changes() -> None:
    texts = [llm_scripts.program(Random(i)) for i in range(3)]
    assert programs(llm_scripts.whole(*texts)) == texts
    first, second = programs(llm_scripts.diff(("a\nb", "c"), ("d", "")))
    assert first == "<<<<<<< SEARCH\na\nb\n=======\nc\n>>>>>>> REPLACE\n"
    assert second == "<<<<<<< SEARCH\nd\n=======\n>>>>>>> REPLACE\n"


@pytest.mark.parametrize(
    ("text", "stage", "why"),
    [
        (llm_scripts.GO_CODE, "parse", "not valid syntax"),
        (llm_scripts.UNITS, "units", "b.tokens (token)"),
        (llm_scripts.LOOP, "parse", "a loop"),
        (llm_scripts.IMPORT, "parse", "an import"),
        (llm_scripts.CUT, "parse", "was never closed"),
    ],
)
def test_bad_programs_are_refused_for_what_is_bad_about_them(text: str, stage: str, why: str) -> None:
    [program] = programs(text)
    refused = read(program, Caps())
    assert isinstance(refused, Rejected)
    assert refused.stage == stage
    assert why in refused.why


@pytest.mark.parametrize("text", [llm_scripts.REFUSAL, llm_scripts.PROSE])
def test_answers_without_a_program(text: str) -> None:
    assert programs(text) == []
    assert isinstance(read(text, Caps()), Rejected)


def test_the_injection_is_a_sound_program_with_words_in_it() -> None:
    [program] = programs(llm_scripts.INJECTION)
    assert not isinstance(read(program, Caps()), Rejected)
    assert parse(program).doc.startswith("Ignore all previous instructions")
