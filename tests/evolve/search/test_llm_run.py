"""Whole runs with language models that propose: every fault, kills, replays, limits, and what it all cost."""

from __future__ import annotations

import json
import lzma
from collections import Counter
from collections.abc import Callable
from functools import cache
from pathlib import Path
from random import Random
from typing import Any, TypeVar

import llm_plays as plays
import pytest
from llm_replies import Reply, Request, said
from llm_runs import (
    DISLIKED,
    KEY,
    NOTES_KEPT,
    USD,
    answer_texts,
    asked,
    asked_in,
    entries,
    evolve,
    journal,
    ledger,
    of_kind,
    verdicts,
)
from llm_scripts import program, whole

from evolve import load_run

T = TypeVar("T")
Played = Callable[[Callable[[Path], T]], T]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of this file's runs, with their data and configurations."""
    return plays.set_up(tmp_path_factory.mktemp("llm"))


@pytest.fixture(scope="module")
def played(folder: Path) -> Played[Any]:
    """What a play came to; it is played when a test first asks for it."""

    @cache
    def result(play: Callable[[Path], Any]) -> Any:
        return play(folder)

    return result


def archive(run: Path) -> dict[str, Any]:
    ran = evolve(run.parent, "archive", run, "--json", key=None)
    assert ran.status == 0
    return json.loads(ran.out)


# every fault


@pytest.mark.slow
def test_a_run_survives_every_fault(played: Played) -> None:
    story, again, ran = played(plays.faulty)
    assert (story.ran.status, story.ran.err) == (0, "")
    proposals = entries(story.run)
    assert len(proposals) >= 60
    assert {e["stage"] for e in proposals if e["verdict"] == "rejected"} >= {"answer", "units", "judges"}
    assert json.loads((story.run / "report.json").read_text())["champion"]
    # a replay needs no key and no server
    assert ran.status == 0 and f"Replayed from {story.run}: nothing was sent" in ran.out
    assert "evolve.search.llm.proposer" in ran.err and "litellm" not in ran.err  # what was imported
    assert verdicts(again) == verdicts(story.run) and archive(again) == archive(story.run)


def test_the_ledger_agrees_with_the_server(played: Played) -> None:
    story = played(plays.faulty).story
    rows = ledger(story.run)
    assert len(rows) == len(story.server.seen)
    assert Counter(row["model"] for row in rows) == Counter(f"openai/{q.model}" for q in story.server.seen)
    # an answer that does not say what it cost is charged the most it can have: two bytes a token in, all tokens out
    [uncounted] = [line for line in of_kind(story.run, "answered") if line.get("uncounted")]
    at = story.recorder.replies.index(plays.FAULTS["no usage"])
    size = sum(len(message["content"].encode()) for message in story.server.seen[at].messages)
    assert (uncounted["tokens_in"], uncounted["tokens_out"]) == (size // 2 + 1, 8192)
    for name, paid in story.server.by_model.items():
        own = [row for row in rows if row["model"] == f"openai/{name}" and row["outcome"] == "answered"]
        more = [uncounted] if uncounted["model"] == f"openai/{name}" else []
        tokens_in, tokens_out = (sum(int(row[x]) for row in own) for x in ("tokens_in", "tokens_out"))
        assert len(own) == paid.answered + len(more)
        assert tokens_in == paid.tokens_in + sum(line["tokens_in"] for line in more)
        assert tokens_out == paid.tokens_out + sum(line["tokens_out"] for line in more)
        usd = (tokens_in * USD[name][0] + tokens_out * USD[name][1]) / 1e6
        assert sum(float(row["usd"]) for row in own) == pytest.approx(usd, rel=1e-9)
    total = json.loads((story.run / "report.json").read_text())["llm"]
    assert total["usd"] == pytest.approx(sum(float(row["usd"]) for row in rows), rel=1e-9)
    assert f"In all {total['usd']:.4f} USD, possibly {total['possibly_usd']:.4f} more" in story.ran.out
    frame = load_run(story.run).ledger
    for name in ("usd", "possibly_usd", "tokens_in", "tokens_out"):
        assert frame[name].sum() == pytest.approx(total[name], rel=1e-9)


def test_every_whole_answer_is_in_the_journal_verbatim(played: Played) -> None:
    story = played(plays.faulty).story
    sent = [text.replace(KEY, "[key]") for _, text in story.recorder.answers(story.server.seen)]
    assert Counter(answer_texts(story.run)) == Counter(sent)
    assert len(max(sent, key=len)) == 1_000_000


def test_the_key_is_nowhere(played: Played) -> None:
    story = played(plays.faulty).story
    sent = zip(story.server.seen, story.recorder.replies, strict=True)
    assert sum(KEY in json.dumps(reply.content(request)) for request, reply in sent) == 2
    assert KEY not in story.ran.out + story.ran.err
    for path in story.run.rglob("*"):
        if path.is_file():
            raw = path.read_bytes()
            assert KEY.encode() not in (lzma.decompress(raw) if path.suffix == ".xz" else raw)
    assert not [text for text in (*answer_texts(story.run), *asked_in(story.run).values()) if KEY in text]
    assert not [q for q in story.server.seen if KEY in asked(q.messages)]


def test_nothing_that_an_injection_says_is_kept(played: Played) -> None:
    story = played(plays.faulty).story
    lines = of_kind(story.run, "answered")
    [call] = [line["call"] for line, text in zip(lines, answer_texts(story.run), strict=True) if text == plays.INJECTED]
    [entry] = [e for e in entries(story.run) if e.get("call") == call and e["verdict"] == "scored"]
    programs = [path.read_text() for path in (story.run / "programs").glob("*.py")]
    shown = [q.messages[1]["content"] for q in story.server.seen if len(q.messages) == 2]
    for text in (*programs, *shown, entry["elite"]["text"], (story.run / "report.json").read_text()):
        assert "previous instructions" not in text and "SYSTEM" not in text and "assistant:" not in text


# the same answers, however they come


@pytest.mark.slow
def test_workers_and_concurrency_change_nothing(played: Played) -> None:
    (first, _), story = played(plays.reference), played(plays.together)
    assert first.ran.status == story.ran.status == 0
    assert verdicts(story.run) == verdicts(first.run)
    assert archive(story.run) == archive(first.run)
    assert Counter(asked(q.messages) for q in story.server.seen) == Counter(
        asked(q.messages) for q in first.server.seen
    )


@pytest.mark.slow
def test_a_cache_answers_all_of_an_equal_run(played: Played) -> None:
    first, cached = played(plays.reference)
    assert first.server.seen and not cached.server.seen
    assert verdicts(cached.run) == verdicts(first.run)
    assert {row["outcome"] for row in ledger(cached.run)} == {"cached"}
    assert sum(float(row["usd"]) for row in ledger(cached.run)) == 0.0


@pytest.mark.slow
def test_a_run_that_was_interrupted_and_killed_ends_as_an_uninterrupted_one(played: Played) -> None:
    (run, *_), interrupted, *_, (killed, ended) = played(plays.broken)
    words = f"evolve: interrupted; nothing is lost: `evolve resume {run}` goes on"
    paid = ", and 1 request may be paid without an answer\n"  # the other one was answered
    assert (interrupted.status, interrupted.err) == (130, words + paid)
    whole = played(plays.reference)[0].run
    assert verdicts(run) == verdicts(whole) == ended and archive(run) == archive(whole)
    assert 9 < len(killed) < len(ended)  # of a replay


@pytest.mark.slow
def test_a_kill_loses_no_answer_and_no_request(played: Played) -> None:
    (run, ran, server, recorder), _, before, seen, hung, _ = played(plays.broken)
    assert ran.status == 0
    assert len(hung) == 2  # one of two questions, and the same again
    prompts = asked_in(run)
    sent = [line for line in before if line["kind"] == "sent"]
    assert Counter(prompts[line["prompt"]] for line in sent) == Counter(asked(q.messages) for q in seen)
    # of every (prompt, model) the server gave as many answers as there are samples of it
    lines = of_kind(run, "answered")
    given = Counter((asked(q.messages), f"openai/{q.model}") for q, _ in recorder.answers(server.seen))
    assert given == Counter((prompts[line["prompt"]], line["model"]) for line in lines)
    assert len({(line["prompt"], line["model"], line["sample"]) for line in lines}) == len(lines)
    assert len({line["call"] for line in lines}) == len(lines)


@pytest.mark.slow
def test_requests_that_hung_are_reported_as_possibly_paid(played: Played) -> None:
    (run, ran, *_), _, before, _, hung, _ = played(plays.broken)
    prompts = asked_in(run)
    ended = {(line["call"], line["attempt"]) for line in before if line["kind"] == "answered"}
    lost = [line for line in before if line["kind"] == "sent" and (line["call"], line["attempt"]) not in ended]
    assert Counter(prompts[line["prompt"]] for line in lost) == Counter(asked(q.messages) for q in hung)
    names = [f"{line['call']} attempt {line['attempt']}" for line in lost]
    assert f"Possibly paid, since the process ended before an answer came: {', '.join(names)}\n" in ran.out
    rows = [row for row in ledger(run) if row["outcome"] == "possibly paid"]
    assert [f"{row['call']} attempt {row['attempt']}" for row in rows] == names
    assert all(float(row["possibly_usd"]) > 0 for row in rows)
    assert json.loads((run / "report.json").read_text())["llm"]["under_way"] == names


@pytest.mark.slow
@pytest.mark.parametrize("purpose", ["round-3", "judge", "propose", "round-2"])
def test_a_run_that_died_between_rounds_ends_as_an_uninterrupted_one(
    folder: Path, played: Played, purpose: str
) -> None:
    """Its journal ends after the first answer to a call with this purpose in the second generation."""
    whole, run = played(plays.reference)[0].run, folder / f"died-{purpose}"
    lines = journal(whole)
    answers = (i for i, line in enumerate(lines) if line["kind"] == "answered")
    last = next(i for i in answers if lines[i]["call"].startswith(f"2/{purpose}/"))
    seen = plays.resumed(whole, run, last + 1)
    answered = {line["call"] for line in lines[: last + 1] if line["kind"] == "answered"}
    sent = [line["call"] for line in journal(run)[last + 1 :] if line["kind"] == "sent"]
    assert verdicts(run) == verdicts(whole)
    assert sent and len(seen) == len(sent) and not answered & set(sent)  # no answer is paid for twice


# limits


@pytest.mark.slow
def test_calls_and_tokens_end_at_their_limits_and_go_on_with_higher_ones(played: Played) -> None:
    run, (three, seven, last), recorded = played(plays.limited)
    assert [step.ran.status for step in (three, seven, last)] == [0, 0, 0]
    assert (three.requests, seven.requests) == (3, 7)
    assert f"max_calls 3 is reached; `evolve resume {run} --max-calls MORE` goes on." in three.ran.out
    assert "max_calls 7 is reached" in seven.ran.out and f"max_tokens {plays.MOST_TOKENS} leaves " in last.ran.out
    assert seven.verdicts[: len(three.verdicts)] == three.verdicts != seven.verdicts
    ids = [e["id"] for e in entries(run)]
    assert ids == sorted(set(ids))
    assert seven.tokens < last.tokens <= plays.MOST_TOKENS
    assert len(ledger(run)) == last.requests == len(recorded.story.server.seen)
    # a replay ends where the limit ended its recording
    assert recorded.ran.status == 0 and verdicts(recorded.again) == verdicts(run)
    assert "the recording ends here." in recorded.ran.out


@pytest.mark.slow
def test_notes_on_the_last_generation_are_taken_once_a_limit_allows_it(played: Played) -> None:
    story, requests = played(plays.unnoted)
    assert story.ran.status == 0
    assert [e["operator"] for e in entries(story.run)].count("polish") == 1  # it had come to its end
    assert [q.model for q in story.server.seen[requests:]] == ["notes"]
    assert NOTES_KEPT in (story.run / "NOTES.md").read_text()


def test_only_what_may_be_fitted_is_asked_for(folder: Path) -> None:
    def good(request: Request) -> Reply:
        return said(whole(*(program(Random(10 * request.number + i)) for i in range(4))))

    story = plays.whole_run(folder, "small", "last-places", "--budget", 12, "--notes-every", 0, script=good)
    assert story.ran.status == 0
    reached = sum("key" in e for e in entries(story.run) if e["operator"].startswith("seed:"))
    questions = [name for name in {row["call"] for row in ledger(story.run)} if name.startswith("1/propose/")]
    assert len(questions) == -(-(12 - reached) // 4)  # questions for four programs each, for the places that are left


def test_money_ends_at_its_limit(played: Played) -> None:
    none, requests, (run, some, server, _) = played(plays.poor)
    assert (none.status, requests) == (1, 0)
    why = f"max_usd {plays.LEAST_USD} leaves {plays.LEAST_USD:.4f} USD; a request may take "
    assert why in none.out and f"; `evolve resume {run} --max-usd MORE` goes on." in none.out
    assert none.err.startswith(f"evolve: {run}: no language model could be asked: {why}")
    assert none.err.endswith(f": `evolve resume {run} --max-usd MORE` goes on\n") and none.err.count("\n") == 1
    assert some.status == 0 and f"max_usd {plays.MOST_USD} leaves " in some.out
    usd = sum(USD[name][0] * p.tokens_in + USD[name][1] * p.tokens_out for name, p in server.by_model.items()) / 1e6
    assert 0 < usd <= plays.MOST_USD
    assert sum(float(row["usd"]) for row in ledger(run)) == pytest.approx(usd, rel=1e-9)


# models that do not answer


def test_operators_finish_the_budget_while_all_models_are_down(played: Played) -> None:
    run, code, shown = played(plays.down)
    assert code == 1
    assert f"evolve: {run}: no language model answered (openai/a: " in shown and "`evolve llm check MODEL`" in shown
    assert "all models are down: offline operators propose" in shown
    assert json.loads((run / "report.json").read_text())["candidates"] == 59
    assert not [e for e in entries(run) if e["operator"].startswith("llm:")]
    rows = ledger(run)
    assert {row["outcome"] for row in rows} == {"server error"}
    # two questions fail and it rests for a generation, four and it rests for 2 ** (4 - 2)
    assert Counter(row["call"].split("/")[0] for row in rows) == {"1": 4, "3": 4, "8": 4}


def test_a_wrong_key_is_one_line_and_the_run_goes_on_with_the_right_one(played: Played) -> None:
    first, story = played(plays.refused)
    assert first.status == 2 and first.err.count("\n") == 1
    assert "--llm openai/a: key refused" in first.err and "Correct the key" in first.err
    assert plays.WRONG not in first.out + first.err + (story.run / "journal.jsonl").read_text()
    assert story.ran.status == 0
    assert [e for e in entries(story.run) if e["operator"].startswith("llm:") and e["verdict"] == "scored"]
    # the user's own prompts reach the server
    texts = [q.messages[1]["content"] for q in story.server.seen]
    assert texts and all(text.startswith("My own words about ") for text in texts)
    assert all("def step_time(" in text and "- Proposal 1: " in text for text in texts)


# who is asked, and what for


@pytest.mark.slow
def test_a_dear_model_is_asked_less_often_than_a_cheap_one(played: Played) -> None:
    cheap, dear = played(plays.auto)
    for story in (cheap, dear):
        assert story.ran.status == 0 and "Stopped" not in story.ran.out
        by_model = [e["operator"] for e in entries(story.run) if e["operator"].startswith("llm:")]
        by_operators = [e["operator"] for e in entries(story.run) if e["island"] is not None and "call" not in e]
        assert by_model and by_operators
    assert 0 < len(dear.server.seen) < len(cheap.server.seen)


def test_who_found_what_sums_to_the_journal_and_the_ledger(folder: Path, played: Played) -> None:
    def proposers(run: Path) -> dict[str, dict[str, Any]]:
        return json.loads(evolve(folder, "archive", run, "--by", "proposer", "--json", key=None).out)["proposers"]

    run = played(plays.auto)[0].run
    found = proposers(run)
    # a proposal of two operators is one of each, of one operator twice it is one
    names = [e["operator"] if "call" in e else part for e in entries(run) for part in set(e["operator"].split("+"))]
    assert {name: row["proposals"] for name, row in found.items()} == Counter(names)
    usd = sum(row["usd"] for row in found.values() if row["usd"] is not None)
    assert usd == pytest.approx(sum(float(row["usd"]) for row in ledger(run)), rel=1e-9) and usd > 0
    run = played(plays.faulty).story.run
    found = proposers(run)
    for name in ("llm:openai/a", "llm:openai/b", "judge:openai/judge", "notes:openai/notes"):
        usd = sum(float(row["usd"]) for row in ledger(run) if row["model"] == name.partition(":")[2])
        assert found[name]["usd"] == pytest.approx(usd, rel=1e-9) and usd > 0
    total = json.loads((run / "report.json").read_text())["llm"]["possibly_usd"]
    assert sum(row["possibly_usd"] or 0.0 for row in found.values()) == pytest.approx(total, rel=1e-9) and total > 0
    shown = evolve(folder, "archive", run, "--by", "proposer", key=None).out
    assert "possibly" in shown and f"{found['llm:openai/a']['possibly_usd']:.4f}" in shown


def test_what_judges_dislike_is_never_fitted(played: Played) -> None:
    proposed = [e for e in entries(played(plays.reference)[0].run) if e.get("call")]
    reviewed = [e for e in proposed if e["reviews"]]
    for entry in reviewed:
        text = entry["text"] if entry["verdict"] == "rejected" else entry["elite"]["text"]
        [review] = entry["reviews"]
        assert review["marks"]["physics"] == (1 if DISLIKED in text else 8)
        assert (entry.get("stage") == "judges") == (DISLIKED in text)
        assert ("key" in entry) == (DISLIKED not in text)
    assert {DISLIKED in json.dumps(e) for e in reviewed} == {True, False}
    # a judge that only praises has said nothing: what it saw is fitted, whatever is in it
    unheard = [e for e in proposed if not e["reviews"] and "key" in e]
    assert [e for e in unheard if DISLIKED in json.dumps(e)]
    assert not [e for e in proposed if e.get("stage") == "judges" and not e["reviews"]]


def test_notes_are_kept_and_shown_as_data(played: Played) -> None:
    story = played(plays.reference)[0]
    assert NOTES_KEPT in (story.run / "NOTES.md").read_text()
    first = next(q.number for q in story.server.seen if q.model == "notes")
    for request in story.server.seen:
        if len(request.messages) == 2:
            notes = NOTES_KEPT if request.number > first else "None yet."
            assert f"```text\n{notes}\n```" in request.messages[1]["content"]


# what was asked can be read


@pytest.mark.parametrize("purpose", ["propose", "round-2", "round-3"])
def test_prompts_and_answers_are_printed_as_they_were(folder: Path, played: Played, purpose: str) -> None:
    story = played(plays.reference)[0]
    entry = next(e for e in entries(story.run) if f"/{purpose}/" in e.get("call", "") and e.get("stage") != "answer")
    args = ["llm", "prompt", story.run, entry["id"]]
    answer = json.loads(evolve(folder, *args, "--answer", "--json", key=None).out)["messages"][0]["content"]
    # two questions may have the same answer: the one that is printed must have been asked, with this answer
    asked = [q.messages for q, text in story.recorder.answers(story.server.seen) if text == answer]
    sent = json.loads(evolve(folder, *args, "--sent", "--json", key=None).out)
    assert sent["messages"] in asked and sent["call"] == entry["call"]
    shown = evolve(folder, *args, "--sent", key=None).out
    assert shown == "".join(f"---- {m['role']} ----\n{m['content'].rstrip()}\n" for m in sent["messages"])


def test_a_prompt_of_an_offline_run_can_be_read_and_one_of_nothing_is_one_line(folder: Path, played: Played) -> None:
    by_models, by_operators = played(plays.reference)[0].run, played(plays.offline)
    first = min((by_operators / "programs").glob("*.py"), key=lambda path: int(path.stem))
    ran = evolve(folder, "llm", "prompt", by_operators, first.stem, key=None)
    assert ran.status == 0
    formula = next(line.strip() for line in first.read_text().splitlines() if "b." in line and "b, s" not in line)
    assert formula in ran.out and "### Proposal N: " in ran.out and "# Notes" in ran.out
    wrong = [(by_operators, *words) for words in ((), ("abc",), ("-1",), ("1.5",), (99999,), (3, "--answer"))]
    for args in (*wrong, (by_models, 99999), (by_models, 0, "--sent")):
        ran = evolve(folder, "llm", "prompt", *args, key=None)
        assert ran.status == 2 and not ran.out and ran.err.startswith("evolve: ") and ran.err.count("\n") == 1


def test_a_refused_idea_has_no_prompt_but_what_was_sent_for_it(folder: Path, played: Played) -> None:
    run = played(plays.reference)[0].run
    refused = next(e for e in entries(run) if e["verdict"] == "rejected" and e.get("call"))
    args = ("llm", "prompt", run, refused["id"])
    ran = evolve(folder, *args, key=None)
    assert ran.status == 2 and f"`evolve llm prompt {run} {refused['id']} --sent`" in ran.err
    assert evolve(folder, *args, "--sent", key=None).status == evolve(folder, *args, "--answer", key=None).status == 0
    both = evolve(folder, *args, "--sent", "--answer", key=None)
    assert both.status == 2 and not both.out
