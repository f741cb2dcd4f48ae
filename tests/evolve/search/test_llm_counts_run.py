"""Whole runs whose server counts more tokens than a request can take, or none, and whose limits are lowered."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from typing import Any

import pytest
from llm_plays import Story, set_up, whole_run
from llm_replies import Reply, Request, said
from llm_runs import by_content, entries, evolve, ledger, of_kind, search
from llm_scripts import program, whole
from llm_server import Server

from evolve.api.run import load_run

BUDGET = ("--budget", 60)


def counting(tokens_in: int, tokens_out: int) -> Any:
    """A script whose answers say that they took so many tokens."""

    def content(asked: Request) -> Any:
        body = by_content(asked).content(asked)
        assert isinstance(body, dict)
        return body | {"usage": {"prompt_tokens": tokens_in, "completion_tokens": tokens_out, "total_tokens": 1}}

    return lambda request: Reply(content)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = set_up(tmp_path_factory.mktemp("counts"))
    search = "{prune_above: 0, islands: 1, batch: 4, generations: 1, finalists: 0}"
    (folder / "once.yaml").write_text(f"{{search: {search}, llm: {{rounds: 1}}}}")  # one question
    return folder


def calls_of(story: Story) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((story.run / "report.json").read_text())["llm"]
    return found


def one_line(text: str) -> str:
    return " ".join(text.split())


# a server that counts more than can be


def test_a_limit_that_was_passed_is_reported_with_the_reason(folder: Path) -> None:
    args = (*BUDGET, "--max-usd", 0.1, "--price", "openai/a=1,2", "--price", "openai/b=1,2")
    story = whole_run(folder, "narrow", "over", *args, script=counting(20_000, 20_000))
    rows, calls = ledger(story.run), calls_of(story)
    spent = len(rows) * (20_000 + 2 * 20_000) / 1e6
    assert spent > 0.1 and calls["usd"] == pytest.approx(spent)
    more = 40_000 * len(rows) - sum(line["tokens_at_most"] for line in of_kind(story.run, "sent"))
    over = f"servers counted {more:,} tokens more than {len(rows)} requests can take"
    why = f"max_usd 0.1 is passed by {spent - 0.1:.4f} USD: {over}"
    assert calls["stopped"] == calls["passed"] == why
    out = one_line(story.ran.out)
    assert out.count(why) == 1 and "--max-usd MORE` goes on" in out and "leaves 0.0000" not in out


def test_a_limit_that_was_passed_by_the_last_answer_is_reported(folder: Path) -> None:
    story = whole_run(folder, "once", "over-at-end", "--max-tokens", 50_000, script=counting(30_000, 30_000))
    calls = calls_of(story)
    assert not calls["stopped"] and calls["passed"].startswith("max_tokens 50000 is passed by ")
    assert f"A limit did not hold: {calls['passed']}." in one_line(story.ran.out)


@pytest.mark.slow
def test_a_lowered_limit_says_what_was_sent_and_spent_already(folder: Path) -> None:
    run = folder / "lowered"
    with Server(by_content) as server:
        args = search(server, folder / "narrow.yaml", "--quiet", "--out", run, *BUDGET, "--max-calls", 5)
        assert evolve(folder, *args).status == 0
        usd = json.loads((run / "report.json").read_text())["llm"]["usd"]
        calls = evolve(folder, "resume", run, "--workers", 1, "--quiet", "--max-calls", 3)
        money = evolve(folder, "resume", run, "--workers", 1, "--quiet", "--max-usd", 0.001)
        assert len(server.seen) == 5
    assert "max_calls 3 is passed: 5 requests were sent already" in one_line(calls.out)
    assert f"max_usd 0.001 is passed: {usd:.4f} USD are spent already" in one_line(money.out)


# a server whose counts are not believed


@pytest.mark.parametrize("count", [0, -300, 10**9])
def test_counts_that_are_not_believed_are_reported_as_a_guess(folder: Path, count: int) -> None:
    story = whole_run(folder, "once", f"guess{count}", script=counting(count, count))
    [row], calls = ledger(story.run), calls_of(story)
    assert row["uncounted"] == "True" and row["tokens_out"] == "8192"
    [of_model] = calls["models"].values()
    for totals in (calls, of_model):
        assert totals["uncounted"] == 1 and totals["uncounted_usd"] == totals["usd"] == float(row["usd"])
    guess = f"Of this {calls['usd']:.4f} USD are a guess: 1 request had no credible count of tokens"
    assert guess in one_line(story.ran.out) and guess in one_line((story.run / "summary.md").read_text())
    assert load_run(story.run).ledger["uncounted"].tolist() == [True]


# answers that come when the budget is full


@pytest.mark.slow
def test_programs_beyond_the_budget_are_reported_with_their_cost(folder: Path) -> None:
    """Of an answer with four new programs the budget leaves room for one, and for none of the rounds that follow."""

    def script(request: Request) -> Reply:
        return said(whole(*(program(Random(10 * request.number + i)) for i in range(4))), usage=(1000, 1000))

    seeds = sum("key" in e for e in entries(whole_run(folder, "once", "seeds", script=script).run) if "call" not in e)
    prices = ("--price", "openai/a=1,2", "--price", "openai/b=1,2")
    for name, config, rounds in (("last", "once", 1), ("rounds", "narrow", 3)):
        story = whole_run(folder, config, name, "--budget", seeds + 1, *prices, script=script)
        used, rows, calls = [e for e in entries(story.run) if "call" in e], ledger(story.run), calls_of(story)
        assert len(rows) == rounds and len(used) == 1
        later = ["4 beyond the budget"] * (rounds - 1)
        assert [row["verdict"] for row in rows] == ["3 beyond the budget, 1 scored", *later]
        left = 4 * rounds - 1
        assert calls["beyond_budget"] == left and calls["beyond_budget_usd"] == pytest.approx(0.003 * left / 4)
        shown = one_line(story.ran.out)
        assert f"{left} programs came when" in shown and f"the cost is {0.003 * left / 4:.4f} USD." in shown
        assert load_run(story.run).ledger["verdict"].tolist() == [row["verdict"] for row in rows]
        ran = evolve(folder, "llm", "prompt", story.run, used[0]["id"] + 1, "--answer", key=None)
        assert ran.status == 2 and f"has no proposal {used[0]['id'] + 1} of a language model" in ran.err


def test_what_is_not_read_yet_is_not_beyond_the_budget(folder: Path) -> None:
    story = whole_run(folder, "narrow", "limited", *BUDGET, "--max-calls", 1)
    lines = (story.run / "journal.jsonl").read_bytes().splitlines(keepends=True)
    answered = max(i for i, line in enumerate(lines) if b'"answered"' in line)
    (story.run / "journal.jsonl").write_bytes(b"".join(lines[: answered + 1]))
    assert load_run(story.run).ledger["verdict"].tolist() == [""] and not calls_of(story)["beyond_budget"]
