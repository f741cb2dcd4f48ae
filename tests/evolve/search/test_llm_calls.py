"""Calls to language models: what the log adds up to, what is sent and when it is not, and where keys never appear."""

from __future__ import annotations

import csv
import json
import threading
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import permutations, product
from pathlib import Path
from typing import Any

import llm_replies
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from llm_replies import Reply, Request, completion, said, status
from llm_runs import in_older_form
from llm_scripts import EXAMPLE, whole
from llm_server import Server

from archive.journal import Journal, read_journal
from archive.proposal import Outcome, is_outcome
from evolve.run.llm_settings import LlmSettings
from evolve.search.llm import ledger
from evolve.search.llm.calls import (
    Answered,
    CallCost,
    CallLine,
    CallLog,
    Failed,
    GivenUp,
    LlmCall,
    Price,
    Prompt,
    Sent,
    answered_line,
    call_log,
    pack,
    parts_of,
    read_line,
    to_json,
    unpack,
)
from evolve.search.llm.client import CallFault
from evolve.search.llm.client import Reply as Answer
from evolve.search.llm.dispatch import Dispatch
from simulator.common.errors import InputError

KEY = "sk-test-0123456789abcdef"
FOREVER = 3600.0  # seconds; a test that waited for it would be seen
PRICE = Price(1.0, 4.0)
ANSWER_TOKENS = 100
# of a question of 8 bytes: 8 / 2 + 1 tokens in, ANSWER_TOKENS out
TOKENS_AT_MOST = 5 + ANSWER_TOKENS
USD_AT_MOST = (5 * 1.0 + ANSWER_TOKENS * 4.0) / 1e6


OPEN: list[Journal] = []


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    for name in ("OPENAI_BASE_URL", "OPENAI_API_BASE", "OPENAI_ORGANIZATION"):
        monkeypatch.delenv(name, raising=False)
    yield
    while OPEN:
        OPEN.pop().close()


def journal_at(path: Path) -> Journal:
    """Closed when the test ends."""
    OPEN.append(Journal(path))
    return OPEN[-1]


def call(number: int, model: str = "openai/m", **more: Any) -> LlmCall:
    """A question of 8 bytes, a different one for every number below a million."""
    made = LlmCall(1, "propose", number, model, (("user", f"ask{number:05}"),))
    return replace(made, **more)


class Place:
    """A journal in a folder, and dispatches that write it and ask a server."""

    def __init__(self, folder: Path, server: Server | None = None) -> None:
        folder.mkdir(exist_ok=True)
        self.path = folder / "journal.jsonl"
        self.url = server.url if server else "http://127.0.0.1:9/v1"

    def dispatch(self, recorded: bool = False, **more: Any) -> Dispatch:
        asked = {"backoff_s": 0.0, "rpm": 0, "answer_tokens": ANSWER_TOKENS, "timeout_s": FOREVER, **more}
        prices: defaultdict[str, Price] = defaultdict(lambda: PRICE)
        journal = journal_at(self.path)
        return Dispatch(self.log, journal, LlmSettings(api_base=self.url, **asked), prices, recorded)

    @property
    def log(self) -> CallLog:
        """What the journal on disk holds."""
        return call_log(read_journal(self.path))


def asked_in(c: LlmCall) -> Prompt:
    """The line for a call's messages."""
    return Prompt(c.prompt, tuple((role, pack(text)) for role, text in c.messages))


def sent(c: LlmCall, attempt: int, tokens: int, usd: float) -> Sent:
    return Sent(c.name, attempt, c.model, c.prompt, c.sample, tokens, usd)


def lines_of(c: LlmCall, events: Sequence[tuple[int, str]]) -> list[CallLine]:
    """Lines of a call; attempt n costs n USD and 10 n tokens if answered, at most 3 n USD and 30 n tokens."""
    lines: list[CallLine] = []
    for attempt, state in events:
        match state:
            case "sent":
                lines.append(sent(c, attempt, 30 * attempt, 3.0 * attempt))
            case "answered":
                # 4 n tokens in, 6 n out: (4 n * 1 + 6 n * 166_666) / 1e6 = n USD
                reply = Answer(f"text {attempt}", "v", 4 * attempt, 6 * attempt, "stop", 0.5)
                lines.append(answered_line(c, attempt, reply, Price(1.0, 999_996 / 6), (1, 1)))
            case "unpaid" | "paid":
                lines.append(Failed(c.name, attempt, c.model, "timeout", "why", state == "unpaid", 0.5))
            case "given up":
                lines.append(GivenUp(c.name, c.model, "why"))
    return lines


def journalled(*lines: CallLine) -> list[dict[str, Any]]:
    """The lines as the journal keeps them."""
    entries: list[dict[str, Any]] = json.loads(json.dumps([to_json(line) for line in lines]))
    return entries


LIVES = [line.split() for line in ("", "answered", "unpaid", "paid", "paid answered", "unpaid answered")]


def merged(first: list[str], second: list[str], more: list[str]) -> Iterator[list[tuple[int, str]]]:
    """Every order of the events of attempts 1 and 2, and of `more`."""
    lives = {1: first, 2: second, 0: more}
    owners = [owner for owner, life in lives.items() for _ in life]
    for owner_order in sorted(set(permutations(owners))):
        events = {owner: iter(life) for owner, life in lives.items()}
        yield [(owner, next(events[owner])) for owner in owner_order]


def test_what_is_spent_adds_up_in_every_order() -> None:
    checked, lives = 0, [["sent", *life] for life in LIVES]
    orders = [(first, second, []) for first, second in product(lives, repeat=2)]
    for parts in [*orders, *((["sent", "answered"], life, ["given up"]) for life in lives)]:
        for events in merged(*parts):
            log = CallLog()
            for n, line in enumerate(lines_of(call(0), events), 1):
                log.take([line])
                past = events[:n]
                last = dict(past)  # of each attempt
                answered = [a for a, state in past if state == "answered"]
                open_or_lost = [a for a, state in last.items() if state in ("sent", "paid")]
                assert log.spent.requests == sum(state == "sent" for _, state in past)
                assert log.spent.tokens == 10 * sum(answered)
                assert log.spent.usd == pytest.approx(sum(answered))
                assert log.spent.possibly_tokens == 30 * sum(open_or_lost)
                assert log.spent.possibly_usd == pytest.approx(3.0 * sum(open_or_lost), abs=1e-9)
                assert log.under_way() == [f"1/propose/0 attempt {a}" for a, s in last.items() if s == "sent"]
                # the first of answer and give-up wins
                endings = [(a, state) for a, state in past if state in ("answered", "given up")]
                won = endings[0] if endings else (0, "")
                assert log.settled("1/propose/0") == bool(endings)
                assert ("1/propose/0" in log.answers) == (won[1] == "answered")
                assert ("1/propose/0" in log.given_up) == (won[1] == "given up")
                if won[1] == "answered":
                    assert log.text("1/propose/0") == f"text {won[0]}"
                checked += 1
    assert checked > 1000


def test_samples_attempts_and_order() -> None:
    first, second = call(0), call(10, generation=2, messages=call(0).messages)
    other = call(2, generation=2, model="openai/other", messages=first.messages)
    lines = [line for c in (first, second, other) for line in lines_of(c, [(1, "sent"), (1, "unpaid"), (2, "sent")])]
    [answered] = lines_of(call(3, messages=first.messages), [(1, "answered")])
    assert isinstance(answered, Answered)
    cached = replace(answered, cached=True, attempt=0)
    log = call_log(journalled(*lines, cached, *lines_of(call(4), [(0, "given up")])))
    asked = first.prompt, "openai/m"
    # call 0 and the cached answer of call 3 in generation 1, then one in generation 2; attempts are not counted
    assert [log.samples(g)[asked] for g in (1, 2, 3)] == [0, 2, 3]
    assert log.samples(3)[first.prompt, "openai/other"] == 1
    assert [log.attempts(c.name) for c in (first, second, call(4))] == [2, 2, 0]
    assert log.of_generation(1) == ["1/propose/3", "1/propose/4"] and log.of_generation(2) == []
    assert sorted(["10/a/1", "9/b/2", "9/b/10", "9/a/3"], key=parts_of) == ["9/a/3", "9/b/2", "9/b/10", "10/a/1"]
    assert log.spent.requests == 6 and log.spent.usd == 0.0


# a line of every sort
NEW: list[dict[str, Any]] = yaml.safe_load(f"""
- {{kind: prompt, prompt: &p 0123456789abcdef, messages: [[system, {pack("you")}], [user, {pack("ask")}]]}}
- &sent {{kind: sent, call: 1/propose/3, attempt: 1, model: &m openai/m, prompt: *p, sample: 0,
    tokens_at_most: 30, usd_at_most: 3.0}}
- {{<<: *sent, attempt: 2}}
- {{<<: *sent, attempt: 3}}
- {{<<: *sent, call: 1/propose/7}}
- {{<<: *sent, call: 1/propose/11}}
- &failed {{kind: failed, call: 1/propose/3, attempt: 1, model: *m, fault: timeout, why: late, unpaid: false, seconds: 9.0}}
- {{<<: *failed, attempt: 2, fault: rate limit, why: slow down, unpaid: true}}
- &paid {{kind: answered, call: 1/propose/3, attempt: 3, model: *m, prompt: *p, sample: 0, version: v,
    tokens_in: 4, tokens_out: 6, usd: 1.0, seconds: 0.5, finish: stop, answer: {pack("text")}}}
- {{<<: *paid, call: 1/propose/7, attempt: 1, uncounted: true}}
- {{<<: *paid, call: 1/judge/0, attempt: 0, cached: true}}
- {{kind: given up, call: 1/repair/3, model: *m, why: why, limit: false}}
- {{kind: given up, call: 1/repair/7, model: *m, why: why, limit: true}}
- {{kind: outcome, id: 0, island: null, operator: "seed:floor", parents: [], verdict: rejected, stage: replay,
    why: no run completes, text: seed, key: k0}}
- {{kind: outcome, id: 2, island: 0, operator: add+drop, parents: [0, 1], verdict: rejected, stage: duplicate,
    why: this form was proposed before, text: twice}}
- &idea {{kind: outcome, id: 4, island: 1, operator: &by "llm:openai/m", parents: &of [0, 1], call: 1/propose/3,
    idea: a floor, reviews: [], verdict: rejected, stage: answer, why: none was given, text: ""}}
- {{kind: outcome, id: 3, island: 1, operator: *by, parents: *of, call: 1/propose/3, idea: a floor, verdict: scored, key: k,
    reviews: [{{judge: j/k, marks: {{mechanism: 8, transfer: 7}}, remark: mild}}], proposed: program,
    elite: &elite {{id: 3, key: k, text: program, operations: 3, constants: 2, features: 1, worst3: 9.0, mean_error: 8.0,
      e2e: 7.0, ttft: null, itl: 6.0, rows: [[dense, 1.5, null, -2.0]], operator: *by, parents: *of, group_out: null,
      consistent: true}}}}
- {{kind: outcome, id: 9, island: null, operator: polish, parents: [3], verdict: scored,
    elite: {{<<: *elite, id: 9, operator: polish, parents: [3]}}}}
""")
OLD_NAMES = {"mean_error": "joint", "group_out": "transfer", "consistent": "sound"}


def as_before(line: dict[str, Any]) -> dict[str, Any]:
    """The line as older releases wrote it, before lines had a `kind`."""
    line = in_older_form(line)
    elite = {OLD_NAMES.get(key, key): value for key, value in line.get("elite", {}).items()}
    reviews = [{"judge": r["judge"], **r["marks"], "remark": r["remark"]} for r in line.get("reviews", ())]
    return {**line, **({"elite": elite} if elite else {}), **({"reviews": reviews} if "reviews" in line else {})}


OLD = [as_before(line) for line in NEW]


def test_lines_of_the_older_form_are_read_as_those_of_this_form() -> None:
    new, old = NEW, OLD
    log, outcomes = call_log(new), [Outcome.from_json(line) for line in new if is_outcome(line)]
    for switch in range(len(new) + 1):  # a run that was begun in the older form goes on in this one
        lines = old[:switch] + new[switch:]
        assert call_log(lines) == log
        assert [Outcome.from_json(line) for line in lines if is_outcome(line)] == outcomes
        assert ledger.rows(lines) == ledger.rows(new) and ledger.summary(lines) == ledger.summary(new)
    # what was read is written as it was
    calls = [call_line for line in old if (call_line := read_line(line))]
    assert journalled(*calls) + [json.loads(json.dumps(outcome.to_json())) for outcome in outcomes] == new
    assert [is_outcome(line) for line in old] == [line["kind"] == "outcome" for line in new]


def test_lines_by_hand() -> None:
    log = call_log(NEW)
    assert log.messages("0123456789abcdef") == (("system", "you"), ("user", "ask"))
    assert list(log.answers) == ["1/propose/3", "1/propose/7", "1/judge/0"] and log.text("1/propose/3") == "text"
    flags = [(line.attempt, line.cached, line.uncounted) for line in log.answers.values()]
    assert flags == [(3, False, False), (1, False, True), (0, True, False)]
    assert {name: line.limit for name, line in log.given_up.items()} == {"1/repair/3": False, "1/repair/7": True}
    failed = [line for line in log.ended.values() if isinstance(line, Failed)]
    assert [(line.fault, line.unpaid) for line in failed] == [("timeout", False), ("rate limit", True)]
    assert log.under_way() == ["1/propose/11 attempt 1"]
    # two answers; the one that timed out and the one under way may have been paid
    assert log.spent == CallCost(requests=5, tokens=20, usd=2.0, possibly_tokens=60, possibly_usd=6.0)


ODD = "\0 \ud800 \udfff \ud83d\ude00 \U0001f600 \u2028 \x85 \ufeff \x1b[2J e\u0301 \uffff"


@given(st.text(st.characters(exclude_categories=()), max_size=200))
def test_packing_keeps_every_character_that_utf8_has(text: str) -> None:
    assert unpack(pack(text)) == "".join("?" if 0xD800 <= ord(c) <= 0xDFFF else c for c in text)


def test_odd_and_long_texts_go_through_a_journal(tmp_path: Path) -> None:
    clean = "".join(c for c in ODD if not 0xD800 <= ord(c) <= 0xDFFF)
    long = (EXAMPLE + clean) * (1_000_000 // len(EXAMPLE))
    messages = (("system", clean), ("user", long), ("assistant", ""))
    c = call(0, messages=messages)
    reply = Answer(long, clean, 3, 4, "stop", 1.0)
    journal = journal_at(tmp_path / "journal.jsonl")
    answered = answered_line(c, 1, reply, PRICE, (1, 1))
    journal.append(journalled(asked_in(c), *lines_of(c, [(1, "sent")]), answered))
    log = call_log(read_journal(tmp_path / "journal.jsonl"))
    assert log.messages(c.prompt) == messages
    assert log.text(c.name) == long and log.answers[c.name].version == clean
    assert len((tmp_path / "journal.jsonl").read_bytes()) < 20_000  # of a megabyte twice
    assert call(0, messages=(("user", ODD),)).prompt != call(0, messages=(("user", clean),)).prompt
    assert call(0, messages=(("user", ODD),)).most(7)[1] == 7


@pytest.mark.parametrize(
    ("tokens", "text", "counted"),
    [
        *(((7, 9), "x", True), ((7, 0), "", True), ((0, 0), "x", False), ((7, 0), "x", False)),
        *(((-7, 9), "x", False), ((7, -9), "x", False), ((7, -9), "", False), ((7, 10**400), "x", False)),
    ],
)
def test_counts_that_cannot_be_are_charged_at_most(tokens: tuple[int, int], text: str, counted: bool) -> None:
    line = answered_line(call(0), 1, Answer(text, "v", *tokens, "stop", 0.1), PRICE, (50, 60))
    charged = tokens if counted else (50, 60)
    assert (line.tokens_in, line.tokens_out, line.uncounted) == (*charged, not counted)
    assert line.usd == pytest.approx((charged[0] * 1.0 + charged[1] * 4.0) / 1e6)
    # the most that a request may take, by its bytes
    assert call(0).most(ANSWER_TOKENS) == (5, ANSWER_TOKENS)
    assert call(0, messages=(("system", "é" * 10), ("user", "x"))).most(1) == (11, 1)  # 21 bytes
    assert PRICE.usd(5, ANSWER_TOKENS) == pytest.approx(USD_AT_MOST)


# the dispatch


def test_a_request_is_on_disk_before_the_server_sees_it(tmp_path: Path) -> None:
    on_disk: list[bool] = []

    def script(asked: Request) -> Reply:
        log = place.log
        prompts = {f"{name} attempt {attempt}": sent.prompt for (name, attempt), sent in log.sent.items()}
        under_way = {log.messages(prompts[text])[0][1] for text in log.under_way()}
        on_disk.append(asked.messages[0]["content"] in under_way)
        return said(whole(EXAMPLE)) if asked.number % 3 else status(500)

    with Server(script) as server:
        place = Place(tmp_path, server)
        dispatch = place.dispatch(concurrency=4)
        dispatch.carry_out([call(i) for i in range(12)])
        assert len(on_disk) == len(server.seen) == dispatch.log.spent.requests >= 16  # 12 and every third again
        assert all(on_disk)
    log = place.log
    assert log.spent == dispatch.log.spent and len(log.answers) == 12 and not log.under_way()
    assert log.text("1/propose/3") == whole(EXAMPLE)
    assert log.messages(call(3).prompt) == call(3).messages


def test_what_is_sent_is_what_was_asked(tmp_path: Path) -> None:
    messages = (("system", "you"), ("user", "a\0b \U0001f600"), ("assistant", "c"), ("user", ""))
    progress: list[tuple[int, int]] = []
    with Server(lambda _: said("four" * 3, finish="length", usage=(70, 9))) as server:
        dispatch = Place(tmp_path, server).dispatch()
        dispatch.carry_out([call(0, messages=messages)], lambda done, of: progress.append((done, of)))
        [seen] = server.seen
    assert seen.messages == [{"role": role, "content": text} for role, text in messages]
    assert (seen.model, seen.body["max_tokens"], seen.authorization) == ("m", ANSWER_TOKENS, f"Bearer {KEY}")
    line = dispatch.log.answers["1/propose/0"]
    assert (line.version, line.finish, line.tokens_in, line.tokens_out) == ("m-2026-01-01", "length", 70, 9)
    # (70 * 1 + 9 * 4) / 1e6
    assert line.usd == pytest.approx(106e-6) and dispatch.log.spent.tokens == 79
    assert progress[0] == (0, 1) and progress[-1] == (1, 1)


LIMITS = ({"max_usd": 7.5 * USD_AT_MOST}, {"max_calls": 7}, {"max_tokens": int(7.5 * TOKENS_AT_MOST)})


def carried(tmp_path: Path, reply: Reply, count: int = 30, **more: Any) -> tuple[Dispatch, Server, list[CallCost]]:
    """Questions to one model by five at a time; what the journal said was spent as each request arrived."""
    spent: list[CallCost] = []

    def script(_: Request) -> Reply:
        spent.append(place.log.spent)
        return reply

    with Server(script) as server:
        place = Place(tmp_path, server)
        dispatch = place.dispatch(concurrency=5, **more)
        dispatch.carry_out([call(i) for i in range(count)])
    return dispatch, server, spent


@pytest.mark.parametrize("limit", LIMITS)
@pytest.mark.parametrize(
    "reply", [said("x" * 9, usage=(5, ANSWER_TOKENS)), llm_replies.no_usage("x"), llm_replies.die()]
)
def test_no_limit_is_passed(tmp_path: Path, limit: dict[str, Any], reply: Reply) -> None:
    [(name, most)] = limit.items()
    refused = Place(tmp_path).dispatch(**limit).granted([call(i) for i in range(9)])
    assert [bool(why) for why in refused] == [False] * 7 + [True] * 2
    dispatch, server, spent = carried(tmp_path, reply, attempts=1, **limit)
    assert len(server.seen) == 7  # of requests that may cost their most
    for found in [*spent, dispatch.log.spent]:
        usd, tokens = found.usd + found.possibly_usd, found.tokens + found.possibly_tokens
        assert {"max_usd": usd, "max_calls": found.requests, "max_tokens": tokens}[name] <= most
    stopped = [line for line in dispatch.log.given_up.values() if line.limit]
    assert len(stopped) == 23 and all(line.why.startswith(f"{name} ") for line in stopped)


def test_what_costs_less_leaves_room_and_attempts_take_some(tmp_path: Path) -> None:
    # 30 * 6e-6 USD of answers and five requests under way at 405e-6 stay below 7.5 * 405e-6
    dispatch, server, _ = carried(tmp_path / "a", said("xxxx", usage=(2, 1)), max_usd=7.5 * USD_AT_MOST)
    assert len(server.seen) == len(dispatch.log.answers) == 30
    assert dispatch.log.spent.usd == pytest.approx(30 * 6e-6) and dispatch.log.spent.possibly_usd == pytest.approx(0.0)
    dispatch, server, _ = carried(tmp_path / "b", status(500), count=3, attempts=4, max_calls=5)
    assert len(server.seen) == 5 and dispatch.log.spent.possibly_usd == pytest.approx(0.0)
    assert len(dispatch.log.given_up) == 3 and any(line.limit for line in dispatch.log.given_up.values())
    with Server(lambda _: said("x")) as server:  # no dollar is no limit for what is free
        dispatch = Place(tmp_path / "c", server).dispatch(max_usd=0.0)
        dispatch.prices = {"openai/m": Price(0.0, 0.0), "openai/dear": PRICE}
        dispatch.carry_out([call(0), call(1, "openai/dear")])
    assert list(dispatch.log.answers) == ["1/propose/0"] and len(server.seen) == 1


def test_retry_after_holds_a_model_back_and_no_other(tmp_path: Path) -> None:
    def script(asked: Request) -> Reply:
        return status(429, retry_after=1.0) if asked.number == 0 else said("x")

    with Server(script) as server:
        dispatch = Place(tmp_path, server).dispatch(concurrency=1)
        dispatch.carry_out([call(0, "openai/slow"), call(1, "openai/slow"), call(2), call(3), call(4)])
        # its other question waits too, and both go before none that may be sent
        assert [r.model for r in server.seen] == ["slow", "m", "m", "m", "slow", "slow"]
    assert len(dispatch.log.answers) == 5 and dispatch.log.spent.possibly_usd == pytest.approx(0.0)
    assert [line.fault for line in dispatch.log.ended.values() if isinstance(line, Failed)] == ["rate limit"]


def test_a_minute_has_so_many_requests(tmp_path: Path) -> None:
    with Server(lambda _: said("x")) as server:
        dispatch = Place(tmp_path, server).dispatch(rpm=1, backoff_s=1e-9)
        left = dispatch._launch([(0.0, call(0)), (0.0, call(1))])
        assert [c.number for _, c in left] == [1]  # for a minute
        while not dispatch.log.answers:
            if found := dispatch._next_arrival([]):
                dispatch._note(*found)
        assert len(dispatch._launch(left)) == 1 and len(server.seen) == 1
    # 2.0 ** 4999 is more than a float holds
    assert dispatch._wait_until(call(0), 5000, CallFault("server error", "no")) > 0.0


ANSWERS = {
    "said": said(whole(EXAMPLE)),
    "null": llm_replies.null(),
    "no_usage": llm_replies.no_usage("x" * 40),
    "huge": llm_replies.huge(1_000_000),
    "surrogate": said("a\ud800b\0c"),
    "negative": said("x" * 40, usage=(-5, -(10**12))),
}
# the kind of fault of each status
STATUSES = {
    "bad request": (400, 409, 413, 422, 451),
    "key refused": (401, 402, 403),
    "no such model": (404,),
    "rate limit": (429,),
    "server error": (500, 502, 503, 529),
    "timeout": (408, 504, 524),
}
BROKEN = [llm_replies.truncated(), llm_replies.html(), Reply(lambda _: llm_replies.error("broken", 200))]
BROKEN += [Reply(lambda _: "[]"), Reply(lambda _: ""), llm_replies.bomb(10_000)]
SHAPELESS = {name: getattr(llm_replies, name)() for name in ("no_choices", "no_message")}
SHAPELESS |= {"parts": llm_replies.parts("x")}
FAULTS = {
    **{f"status{code}": (status(code, retry_after=0.0), kind) for kind, codes in STATUSES.items() for code in codes},
    **{f"broken{i}": (reply, "broken answer") for i, reply in enumerate(BROKEN)},
    **{name: (reply, "broken answer") for name, reply in SHAPELESS.items()},
    "die": (llm_replies.die(), "connection lost"),
    "redirect": (llm_replies.redirect("http://127.0.0.1:1/v1/chat/completions"), "redirect"),
    "closed": (llm_replies.hang(0.0), "connection lost"),
    "hang": (llm_replies.hang(FOREVER), "timeout"),
    "drip": (llm_replies.drip(FOREVER), "timeout"),
}
ONCE = ("bad request", "key refused", "no such model", "redirect")  # another request would end alike
MAYBE_PAID = ("timeout", "broken answer", "connection lost")


def test_every_fault_ends_in_an_answer_or_a_give_up(tmp_path: Path) -> None:
    replies = ANSWERS | {name: fault[0] for name, fault in FAULTS.items()}
    calls = {name: call(i, f"openai/{name}") for i, name in enumerate(replies)}
    with Server(lambda asked: replies[asked.model]) as server:
        dispatch = Place(tmp_path, server).dispatch(attempts=2, timeout_s=1.2, concurrency=6)
        dispatch.carry_out(calls.values())
        seen = Counter(asked.model for asked in server.seen)
    log = dispatch.log
    answered = {name for name, c in calls.items() if c.name in log.answers}
    assert answered == set(ANSWERS)
    assert log.text(calls["null"].name) == ""
    for name, part in (("no_choices", "choices"), ("no_message", "chat completion"), ("parts", "not text")):
        assert part in log.given_up[calls[name].name].why
    assert log.text(calls["surrogate"].name) == "a?b\0c" and len(log.text(calls["huge"].name)) == 1_000_000
    paid_requests = 0
    for name, (_, kind) in FAULTS.items():
        requests, paid = 1 if kind in ONCE else 2, kind in MAYBE_PAID
        paid_requests += requests * paid
        lost = log.given_up[calls[name].name]
        failed = [line for key, line in log.ended.items() if key[0] == calls[name].name]
        assert lost.why.startswith(f"{kind}: ") and not lost.limit, name
        assert {(line.fault, line.unpaid) for line in failed} == {(kind, not paid)}, name
        assert (seen[name], len(failed)) == (requests, requests), name  # none is sent that has no line
    assert log.spent.possibly_usd == pytest.approx(paid_requests * USD_AT_MOST)
    assert all(line.usd == pytest.approx(USD_AT_MOST) for line in log.answers.values() if line.uncounted)
    assert {calls[n].name for n in ("no_usage", "negative")} == {n for n, a in log.answers.items() if a.uncounted}
    assert log.spent == Place(tmp_path).log.spent and not log.under_way()


def late(spaces: int) -> Reply:
    """A whole answer after that many drips, which keep the connection's own timeout away."""
    return Reply(lambda asked: " " * spaces + json.dumps(completion(asked, "late", usage=(2, 3))), manner="drip")


def test_an_answer_after_the_deadline_is_journalled_and_used_if_the_call_is_open(tmp_path: Path) -> None:
    # the deadline is at 1.25 * 0.8 s; answers begin after 24 and 32 drips of 0.05 s
    def script(asked: Request) -> Reply:
        first = sum(r.model == asked.model for r in server.seen) == 1
        if asked.model == "open":
            return late(24) if first else llm_replies.hang(FOREVER)
        return late(32) if first else status(400)

    before = set(threading.enumerate())
    with Server(script) as server:
        dispatch = Place(tmp_path, server).dispatch(attempts=9, timeout_s=0.8)
        dispatch.carry_out([call(0, "openai/open"), call(1, "openai/lost")])
        for thread in set(threading.enumerate()) - before:
            if "(_request)" in thread.name:
                thread.join()
        dispatch.close()
    log = dispatch.log
    assert log.text("1/propose/0") == "late" and log.answers["1/propose/0"].attempt == 1
    assert list(log.given_up) == ["1/propose/1"] and "1/propose/1" not in log.answers
    assert isinstance(log.ended["1/propose/1", 1], Answered) and not log.under_way()
    lines = read_journal(tmp_path / "journal.jsonl")
    states = [(line["call"][-1], line["attempt"], line["kind"]) for line in lines if line.get("attempt")]
    assert states.index(("1", 1, "failed")) < states.index(("1", 1, "answered"))
    # two late answers of (2 * 1 + 3 * 4) / 1e6 USD, and what `open` asked again and nobody answered
    again = log.attempts("1/propose/0") - 1
    assert again >= 1 and log.spent.possibly_usd == pytest.approx(again * USD_AT_MOST)
    assert log.spent.usd == pytest.approx(28e-6)


def asked_of(dispatch: Dispatch, calls: Sequence[LlmCall], models: Sequence[str] = ("openai/m",)) -> Dispatch:
    dispatch.carry_out(calls)
    dispatch.check_refused(models)
    return dispatch


@pytest.mark.parametrize(
    ("reply", "kind", "remedy"),
    [
        (llm_replies.echo_key(401), "key refused", "Correct the key."),
        (status(404, f"no model for {KEY}"), "no such model", "Correct the model's name or --api-base"),
    ],
)
def test_a_refused_key_or_name_is_an_error_that_names_the_remedy(
    tmp_path: Path, reply: Reply, kind: str, remedy: str
) -> None:
    calls = [call(i) for i in range(3)]
    with Server(lambda _: reply) as server:
        place = Place(tmp_path, server)
        with pytest.raises(InputError) as e:
            asked_of(place.dispatch(), calls)
        assert f"--llm openai/m: {kind}: " in str(e.value) and remedy in str(e.value)
        assert len(server.seen) == 3 and KEY not in str(e.value) and "[key]" in str(e.value)
        assert KEY.encode() not in place.path.read_bytes()
        assert not place.log.given_up  # so that a run that goes on asks again
        server.script = lambda _: said("x")
        corrected = asked_of(place.dispatch(), calls)
        assert len(corrected.log.answers) == 3 and corrected.log.attempts("1/propose/0") == 2
        server.script = lambda _: reply
        asked_of(corrected, [call(7)])  # once a model has answered it is a fault like others
        assert corrected.log.given_up["1/propose/7"].why.startswith(kind)


def test_a_refused_model_is_given_up_only_if_another_is_left(tmp_path: Path) -> None:
    two = ("openai/bad", "openai/other")
    with Server(lambda asked: status(401)) as server:
        place = Place(tmp_path, server)
        dispatch = asked_of(place.dispatch(), [call(0, "openai/bad")], two)
        assert list(place.log.given_up) == ["1/propose/0"]  # in the journal: the run goes on
        with pytest.raises(InputError) as e:
            asked_of(dispatch, [call(1, "openai/other"), call(2, "openai/bad")], two)
        assert set(dispatch.log.given_up) == {"1/propose/0", "1/propose/1", "1/propose/2"}
        dispatch = Place(tmp_path / "both", server).dispatch()
        dispatch.carry_out([call(0, "openai/bad")])
        server.script = lambda asked: status(404)
        with pytest.raises(InputError, match=r"no such model: .*Correct the key\. Correct the model's name"):
            asked_of(dispatch, [call(1)], ("openai/bad", "openai/m"))
    assert list(place.log.given_up) == ["1/propose/0"]
    assert str(e.value).count("key refused") == 2 and "\n" not in str(e.value)
    assert all(f"--llm {name}: " in str(e.value) for name in two)


def everything_in(path: Path) -> str:
    """All text of a journal, packed or not."""
    lines = read_journal(path)
    packed = [line["answer"] for line in lines if "answer" in line]
    packed += [text for line in lines if line["kind"] == "prompt" for _, text in line["messages"]]
    return path.read_text() + "".join(map(unpack, packed))


def test_a_key_that_a_server_repeats_is_nowhere(tmp_path: Path) -> None:
    replies = [
        said(f"your key is {KEY}, {KEY}"),
        said("x", model=KEY),
        said("x", finish=f"Bearer {KEY}"),
        *map(llm_replies.echo_key, (400, 500, 429, 504)),
        Reply(lambda asked: f"<html>{asked.authorization} {KEY}</html>"),
        Reply(lambda asked: f"<html>{'x' * 270}{KEY}</html>"),  # where a message is cut
    ]
    with Server(lambda asked: replies[int(asked.model)]) as server:
        place = Place(tmp_path, server)
        dispatch = place.dispatch(attempts=1, cache=str(tmp_path / "cache"))
        dispatch.carry_out([call(i, f"openai/{i}") for i in range(len(replies))])
        assert {asked.authorization for asked in server.seen} == {f"Bearer {KEY}"}
    log = dispatch.log
    assert log.text("1/propose/0") == "your key is [key], [key]" and log.answers["1/propose/1"].version == "[key]"
    assert (len(log.answers), len(log.given_up)) == (3, 6)
    written = everything_in(place.path) + "".join(p.read_text() for p in (tmp_path / "cache").iterdir())
    ledger.write(tmp_path / "ledger.csv", read_journal(place.path))
    whole = (tmp_path / "ledger.csv").read_text()
    with pytest.raises(KeyError):
        ledger.write(tmp_path / "ledger.csv", [{"kind": "outcome", "call": "1/propose/0"}])
    assert (tmp_path / "ledger.csv").read_text() == whole  # a fault leaves the file that was there
    for text in (written, whole):
        assert KEY not in text and KEY[:12] not in text and KEY[-12:] not in text


def test_messages_that_are_sent_in_another_form_end_as_well(tmp_path: Path) -> None:
    # litellm sends a request once more where a server complains of roles
    with Server(lambda _: status(400, "Conversation roles must alternate user/assistant")) as server:
        dispatch = Place(tmp_path, server).dispatch()
        dispatch.carry_out([call(0)])
    assert dispatch.log.given_up["1/propose/0"].why == "bad request: refused in every form"


def test_a_process_that_died_is_followed_by_another_attempt(tmp_path: Path) -> None:
    with Server(lambda _: said("x" * 9, usage=(1, 1))) as server:
        place = Place(tmp_path, server)
        dead = place.dispatch()
        dead._write([asked_in(call(0)), sent(call(0), 1, TOKENS_AT_MOST, USD_AT_MOST)])
        dispatch = place.dispatch()
        assert dispatch.log.under_way() == ["1/propose/0 attempt 1"]
        dispatch.carry_out([call(0)])
        assert len(server.seen) == 1 and dispatch.log.answers["1/propose/0"].attempt == 2
        # (1 + 4) / 1e6 USD; the first attempt may have been paid
        spent = dispatch.log.spent
        assert (spent.requests, spent.tokens, spent.possibly_tokens) == (2, 2, TOKENS_AT_MOST)
        assert (spent.usd, spent.possibly_usd) == pytest.approx((5e-6, USD_AT_MOST))
        assert len([line for line in read_journal(place.path) if line["kind"] == "prompt"]) == 1
        place.dispatch().carry_out([call(0)])
        assert len(server.seen) == 1


def test_answers_from_a_cache_are_not_asked_for(tmp_path: Path) -> None:
    folder = str(tmp_path / "cache")
    with Server(lambda asked: said(f"answer {asked.number}", usage=(2, 3))) as server:
        first = Place(tmp_path / "a", server).dispatch(cache=folder, concurrency=1)
        first.carry_out([call(i) for i in range(4)])
        place = Place(tmp_path / "b", server)
        again = place.dispatch(cache=folder, max_calls=1)
        assert again.granted([call(i) for i in range(4)]) == [""] * 4
        again.carry_out([replace(call(i), number=i + 50) for i in range(4)])
        assert len(server.seen) == 4 and again.log.spent == CallCost()
        assert [again.log.text(f"1/propose/{i + 50}") for i in range(4)] == [f"answer {i}" for i in range(4)]
        # what a decision is made from is the same
        assert again.log.answers["1/propose/50"].usd == first.log.answers["1/propose/0"].usd
        assert again.log.messages(call(0).prompt) == call(0).messages
        others = [call(0, sample=1), call(0, model="openai/other"), call(0, messages=(("system", "ask00000"),))]
        for n, other in enumerate(others, 60):
            place.dispatch(cache=folder).carry_out([replace(other, number=n)])
        assert len(server.seen) == 7
        for n, other in enumerate([call(0), *others], 70):  # none took the place of another
            place.dispatch(cache=folder).carry_out([replace(other, number=n)])
        assert len(server.seen) == 7
    assert [row.outcome for row in ledger.rows(read_journal(place.path))] == ["answered"] * 3 + ["cached"] * 8
    # three answers of (2 + 3 * 4) / 1e6 USD
    assert ledger.summary(read_journal(place.path))["usd"] == pytest.approx(42e-6)
    assert ledger.summary(read_journal(place.path))["tokens_in"] == 6


@pytest.mark.parametrize("change", ["[]", "null", "{}", "", "\xff", '"x"', "answer", "model", "prompt", "sample"])
def test_a_damaged_or_foreign_file_in_the_cache_is_no_answer(tmp_path: Path, change: str) -> None:
    folder = tmp_path / "cache"
    with Server(lambda _: said("x")) as server:
        Place(tmp_path / "a", server).dispatch(cache=str(folder)).carry_out([call(0)])
        [path] = folder.iterdir()
        kept = json.loads(path.read_text())
        if change in kept:
            path.write_text(json.dumps(kept | {change: "AAAA"}))
        else:
            path.write_bytes(change.encode("latin-1"))
        dispatch = Place(tmp_path / "b", server).dispatch(cache=str(folder))
        dispatch.carry_out([call(0)])
        assert len(server.seen) == 2 and dispatch.log.text("1/propose/0") == "x"


def test_a_cache_that_cannot_be_written_is_a_line(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file")
    with Server(lambda _: said("x")) as server:
        place = Place(tmp_path / "a", server)
        with pytest.raises(InputError, match=r"--cache .*: cannot be written \(.*\): choose another folder"):
            place.dispatch(cache=str(tmp_path / "cache")).carry_out([call(0)])
    assert place.log.text("1/propose/0") == "x"  # what was paid is kept


def test_a_recording_is_neither_sent_nor_looked_up(tmp_path: Path) -> None:
    folder = str(tmp_path / "cache")
    with Server(lambda _: said("x")) as server:
        place = Place(tmp_path / "a", server)
        place.dispatch(cache=folder).carry_out([call(0)])
        Place(tmp_path / "b", server).dispatch(cache=folder).carry_out([call(1)])
        dispatch = place.dispatch(recorded=True, cache=folder)
        assert dispatch.granted([call(0), call(1), call(2)]) == ["", *["the recording ends here"] * 2]
        dispatch.carry_out([call(0), call(1), call(2)])
        assert len(server.seen) == 2
    assert list(dispatch.log.answers) == ["1/propose/0"]
    assert {(line.why, line.limit) for line in dispatch.log.given_up.values()} == {("the recording ends here", True)}


# the ledger


def test_the_ledger_by_hand(tmp_path: Path) -> None:
    a, b = call(0), call(4, model="openai/other")
    lines = [
        *journalled(*lines_of(a, [(1, "sent"), (1, "paid"), (2, "sent"), (2, "answered"), (1, "answered")])),
        *journalled(*lines_of(b, [(1, "sent"), (1, "unpaid"), (0, "given up")])),
        *journalled(*lines_of(call(8), [(1, "sent")])),
        {"kind": "outcome", "id": 0, "verdict": "scored", "call": a.name},
        {"kind": "outcome", "id": 1, "verdict": "rejected", "stage": "units", "call": a.name},
        {"kind": "outcome", "id": 2, "verdict": "scored", "call": a.name},
        {"kind": "outcome", "id": 3, "verdict": "scored"},
    ]
    rows = ledger.rows(lines)
    assert [(r.call, r.attempt, r.outcome, r.usd, r.possibly_usd, r.verdict) for r in rows] == [
        (a.name, 1, "answered", pytest.approx(1.0), 0.0, ""),  # too late to be used
        (a.name, 2, "answered", pytest.approx(2.0), 0.0, "2 scored, 1 units"),
        (b.name, 1, "timeout", 0.0, 0.0, ""),
        ("1/propose/8", 1, "possibly paid", 0.0, 3.0, ""),
    ]
    total = ledger.summary(lines)
    assert (total["requests"], total["answers"], total["under_way"]) == (4, 1, ["1/propose/8 attempt 1"])
    assert (total["tokens_in"], total["tokens_out"]) == (12, 18)  # 4 n and 6 n
    assert total["usd"] == pytest.approx(3.0) and total["possibly_usd"] == pytest.approx(3.0)
    assert total["models"]["openai/m"]["outcomes"] == {"answered": 2, "possibly paid": 1}
    spent = call_log(lines).spent
    assert (spent.requests, spent.usd, spent.possibly_usd) == (4, total["usd"], total["possibly_usd"])
    ledger.write(tmp_path / "ledger.csv", lines)
    with (tmp_path / "ledger.csv").open(newline="") as file:
        written = list(csv.DictReader(file))
    columns = (
        "call attempt model version prompt sample tokens_in tokens_out usd possibly_usd seconds outcome why verdict"
    )
    assert list(written[0]) == [*columns.split(), "uncounted"]
    assert [row["verdict"] for row in written] == [row.verdict for row in rows]
    assert ledger.summary(lines[-1:]) == {} and ledger.rows([]) == []
