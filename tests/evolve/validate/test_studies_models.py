"""Repeats and pilots of language models: one budget for all searches, shared equally, and gone on with exactly."""

from __future__ import annotations

import json
import re
import signal
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from console import kill, wait_for
from llm_plays import started
from llm_replies import Reply, Request, hang, status
from llm_runs import DATA, Ran, Recorder, by_content, entries, evolve, ledger, of_kind, search, verdicts
from llm_server import Server

from evolve.run.folder import open_run
from evolve.run.llm_settings import LlmSettings
from evolve.validate import shares
from evolve.validate.shares import check_spent, share
from simulator.common.errors import InputError

CONFIG = """
budget: 1000
score: {physics: false}
search: {prune_above: 0, generations: 2, islands: 1, finalists: 0}
llm: {rounds: 2, backoff_s: 0.01, attempts: 2, notes_every: 0, max_usd: 100}
"""
SEEDS = ("seed-0", "seed-1")
FOREVER_S = 3600.0


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "data.yaml").write_text(DATA)
    (tmp_path / "tiny.yaml").write_text(CONFIG)
    return tmp_path


class Holding:
    """Answers of a server that hang from one request on, until they are let go."""

    def __init__(self, first: int) -> None:
        self.first, self.hung, self.holding = first, 0, True

    def __call__(self, request: Request) -> Reply:
        if self.holding and request.number >= self.first:
            self.hung += 1
            return hang(FOREVER_S)
        return by_content(request)


def repeats(server: Server, folder: Path, *more: object) -> list[object]:
    return search(server, folder / "tiny.yaml", "--quiet", "--repeats", 2, *more)


def report(path: Path) -> Any:
    return json.loads((path / "report.json").read_text())


@pytest.mark.slow
def test_repeats_share_one_budget_and_go_on_with_a_higher_one(folder: Path) -> None:
    path = folder / "r"
    with Server(Recorder()) as server:
        ran = evolve(folder, *repeats(server, folder, "--out", "r", "--max-calls", 5))
        assert ran.status == 0, ran.err
        # 5 requests for two: 2 each
        assert [len(of_kind(path / seed, "sent")) for seed in SEEDS] == [2, 2] and len(server.seen) == 4
        calls = report(path)["llm"]
        assert calls["limits"] == {"max_usd": 100.0, "max_calls": 5, "max_tokens": 0}
        assert [row["stopped"] for row in calls["searches"]] == ["max_calls 2 is reached"] * 2
        assert "before the budget of candidates: seed-0, seed-1; " in ran.out
        before = [verdicts(path / seed) for seed in SEEDS]
        more = evolve(folder, "resume", path, "--max-calls", 1000, "--workers", 1, "--quiet")
        assert more.status == 0, more.err
        for seed, old in zip(SEEDS, before, strict=True):
            assert verdicts(path / seed)[: len(old)] == old and len(verdicts(path / seed)) > len(old)
    assert [row["stopped"] for row in report(path)["llm"]["searches"]] == ["", ""]


@pytest.mark.slow
@pytest.mark.parametrize(("limit", "value"), [("--max-usd", 0.04), ("--max-tokens", 20_000)])
def test_a_share_too_small_for_one_question_is_refused(folder: Path, limit: str, value: float) -> None:
    with Server(Recorder()) as server:
        ran = evolve(folder, *repeats(server, folder, "--out", "r", limit, value))
        assert ran.status == 2 and not server.seen and not (folder / "r").exists()
        assert ran.err.startswith(f"evolve: {limit} {value}: ") and ran.err.count("\n") == 1
        enough = re.search(r"Give ([\d.]+) or more", ran.err)
        assert enough
        more = evolve(folder, *repeats(server, folder, "--out", "r", limit, enough[1]))
        assert more.status == 0, more.err
        assert all(of_kind(folder / "r" / seed, "answered") for seed in SEEDS)


@pytest.mark.slow
def test_repeats_without_an_answer_fail_and_keep_what_operators_found(folder: Path) -> None:
    with Server(lambda _: status(500)) as server:
        ran = evolve(folder, *repeats(server, folder, "--out", "r", "--budget", 20))
    assert ran.status == 1 and "Champions of the repeats" in ran.out
    assert re.match(r"evolve: r: none of \d+ requests was answered", ran.err)


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_repeats_go_on_exactly(folder: Path, how: signal.Signals) -> None:
    """Interrupted or killed while the requests of both repeats hang; an interrupt does not wait for them."""
    with Server(Recorder()) as server:
        assert evolve(folder, *repeats(server, folder, "--out", "whole", "--concurrency", 1)).status == 0
    answered = {json.dumps(q.messages) for q in server.seen}
    path, script = folder / "r", Holding(3)
    with Server(script) as server:
        args = [x if x != 1 else 2 for x in repeats(server, folder, "--out", path, "--timeout", 3000)]
        process = started(folder, *args)
        wait_for(lambda: script.hung >= 2 and all((path / s / "journal.jsonl").exists() for s in SEEDS), process)
        at = time.monotonic()
        if how is signal.SIGINT:
            process.send_signal(how)
            assert process.wait(60) == 130 and time.monotonic() - at < 30
            process.communicate()
        else:
            kill(process)
        before = {seed: of_kind(path / seed, "answered") for seed in SEEDS}
        held = sum(len(of_kind(path / seed, "sent")) for seed in SEEDS) - sum(map(len, before.values()))
        hung = script.hung
        assert held >= hung  # a request may be written down and not sent yet, or its answer not written down yet
        script.holding = False
        ran = evolve(folder, "resume", path, "--workers", 1, "--quiet")
        assert ran.status == 0, ran.err
    for seed in SEEDS:
        assert verdicts(path / seed) == verdicts(folder / "whole" / seed)
        assert of_kind(path / seed, "answered")[: len(before[seed])] == before[seed]
    assert {json.dumps(q.messages) for q in server.seen} == answered
    # no answer that was written down was asked for twice
    assert len(answered) + hung <= len(server.seen) <= len(answered) + held
    calls = report(path)["llm"]
    assert calls["requests"] == len(answered) + held == len(ledger(path))
    assert calls["possibly_usd"] > 0.0


def test_a_limit_that_leaves_a_search_nothing_is_refused() -> None:
    shared = share(LlmSettings(max_calls=7, max_tokens=0, max_usd=1.0, rpm=60, concurrency=8), 3)
    assert shared == LlmSettings(max_calls=2, max_tokens=0, max_usd=1.0 / 3, rpm=20, concurrency=2)
    with pytest.raises(InputError, match=r"--max-calls 2: .* give 3 or more"):
        share(LlmSettings(max_calls=2), 3)


def test_the_suggested_limit_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    """0.0149 USD of each of three searches are 0.0447 USD, which 0.04 would not be."""
    spent = SimpleNamespace(usd=0.0149, possibly_usd=0.0, requests=1, tokens=10, possibly_tokens=0)
    monkeypatch.setattr(shares, "call_log", lambda calls: SimpleNamespace(spent=spent))
    run: Any = SimpleNamespace(path="r", calls=lambda: [])
    with pytest.raises(InputError, match=r"max_usd 0\.0149\).* give --max-usd 0\.05 or more"):
        check_spent([run], 3, LlmSettings(max_usd=0.03))
    check_spent([run], 3, LlmSettings(max_usd=0.05))


def test_limits_for_a_study_without_models_are_refused(folder: Path) -> None:
    args = ["run", "--config", folder / "tiny.yaml", "--experiments", folder / "data.yaml", "--workers", 1, "--quiet"]
    assert evolve(folder, *args, "--budget", 12, "--repeats", 2, "--out", "off", key=None).status == 0
    ran: Ran = evolve(folder, "resume", "off", "--max-usd", 3, key=None)
    assert ran.status == 2 and "leave out --max-usd" in ran.err and "llm" not in report(folder / "off")


def test_a_pilot_of_models_ends_with_a_verdict_and_its_cost(folder: Path) -> None:
    with Server(Recorder()) as server:
        _, *args = search(server, folder / "tiny.yaml", "--quiet", "--out", "p", "--proposer", "auto")
        ran = evolve(folder, "pilot", *args, "--model", "mixtral-8x7b", "--generations", 2, "--repeats", 2)
        requests = len(server.seen)
    assert ran.status == 0, ran.err
    found = report(folder / "p")
    words = "".join(ran.out.split())  # as in lines of the terminal's width
    assert words.startswith("".join(f"Worth a full run: {found['pilot']['verdict']}, because ".split()))
    assert "".join(found["pilot"]["reason"].split()) in words and "cost by search" in ran.out
    usd, candidates = found["llm"]["usd"], sum(row["candidates"] for row in found["repeats"])
    # at this rate: of the 1000 candidates of a full run, no request being without an answer
    assert found["pilot"]["full_run_usd"] == pytest.approx(1000 * usd / candidates) and usd > 0
    assert found["pilot"]["beyond_operators_pct"] >= 0 and found["llm"]["requests"] == requests > 0
    operators = {line["operator"].split(":")[0] for seed in SEEDS for line in entries(folder / "p" / seed)}
    assert {"llm", "seed"} < operators  # and some of ours


def comparison(server: Server, folder: Path, *more: object) -> list[object]:
    args = search(server, folder / "tiny.yaml", "--quiet", "--proposer", "auto")
    at = args.index("--experiments")
    data = f"data: {{files: [{folder / 'data.yaml'}], predict_files: []}}\n"
    config = CONFIG.replace("generations: 2", "generations: 3").replace("llm: {", "llm: {share: 0.9, ")
    (folder / "tiny.yaml").write_text(config + data)
    engines = ("--only", "evolution,random,no-models", "--seeds", 2, "--budget", 24)
    return ["baselines", *args[1:at], *args[at + 2 :], *engines, *more]


@pytest.mark.slow
def test_engines_that_ask_models_are_compared_under_one_budget(folder: Path) -> None:
    with Server(Recorder()) as server:
        args = comparison(server, folder, "--max-usd", 8, "--out", "b")
        ran = evolve(folder, *args)
        assert ran.status == 0, ran.err
        requests, path = len(server.seen), folder / "b"
        again = evolve(folder, "resume", path, "--workers", 1, "--quiet", "--json")
        assert again.status == 0 and len(server.seen) == requests  # finished: nothing is asked again
        assert json.loads(again.out) == report(path)
    found = report(path)
    asked = ["evolution-0", "evolution-1"]
    assert [row["search"] for row in found["llm"]["searches"]] == asked
    assert found["llm"]["requests"] == requests == len(ledger(path)) > 0
    assert found["llm"]["limits"]["max_usd"] == 8.0
    assert "cost by search, of 8 USD for all of them together" in ran.out
    for name in asked:
        assert open_run(path / name).config.llm.max_usd == 4.0
        lines = entries(path / name)
        assert any(line["operator"].startswith("llm:") for line in lines)
        done = json.loads((path / name / "done.json").read_text())
        assert done["proposals"] == len(lines) and done["candidates"] == sum(bool(line.get("key")) for line in lines)
        curve = [json.loads(line) for line in (path / name / "curve.jsonl").read_text().splitlines()]
        assert [row["candidate"] for row in curve] == list(range(1, done["candidates"] + 1))
        mean_errors = [line["elite"]["mean_error"] for line in lines if "elite" in line]
        assert curve[-1]["mean_error"] == min(mean_errors)
        assert [row["cpu_s"] for row in curve] == sorted(row["cpu_s"] for row in curve) and curve[-1]["cpu_s"] > 0
    for name in ("random-0", "no-models-1"):
        assert not any(line["operator"].startswith("llm:") for line in entries(path / name))
        assert not (path / name / "run.json").exists()


def test_no_models_without_models_is_refused(folder: Path) -> None:
    ran = evolve(folder, "baselines", "--only", "no-models", key=None)
    assert ran.status == 2 and ran.err.startswith("evolve: --only no-models: ")
