"""Runs of language models with faults, kills, limits and wrong keys. Each is played once for many tests.

A play is a function of the folder where its runs lie, beside their data and configurations.
"""

from __future__ import annotations

import os
import pty
import re
import shutil
import signal
import subprocess
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any, NamedTuple
from unittest.mock import patch

from console import EVOLVE, TIMEOUT_S, kill, wait_for
from llm_replies import (
    Reply,
    Request,
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
from llm_runs import (
    DATA,
    KEY,
    NOTES_KEPT,
    Ran,
    Recorder,
    asked,
    by_content,
    environment,
    evolve,
    evolve_apart,
    journal,
    of_kind,
    search,
    verdicts,
)
from llm_scripts import CUT, GO_CODE, IMPORT, INJECTION, LOOP, PROSE, REFUSAL, UNITS, program, whole
from llm_server import Server

from evolve.run.llm_settings import LlmSettings
from evolve.search.llm.client import request

FOREVER_S = 3600.0
MOST_TOKENS = 60_000
MOST_USD = 0.08
LEAST_USD = 0.0228  # enough for the smallest question that can be, and less than one that shows programs
# a form of its own below the docstring and the comments of an injection
INJECTED = INJECTION.replace(
    "return max(floor, weights * b.weight_read_us)", "return floor + weights * (b.weight_read_us + b.logits_us)"
)
FAULTS = {
    # the first two questions are out at the same time, so that both wait for one timeout
    "hang": hang(FOREVER_S),
    "drip": drip(FOREVER_S),
    "rate limit": status(429, retry_after=0.1),
    "500": status(500),
    "503": status(503),
    "truncated": truncated(),
    "html": html(),
    "empty": said(""),
    "null": null(),
    "no choices": no_choices(),
    "no usage": no_usage(whole(program(Random(-1)))),
    "refusal": said(REFUSAL),
    "prose": said(PROSE),
    "go": said(GO_CODE),
    "huge": huge(1_000_000),
    "injection": said(INJECTED),
    "die": die(),
    "key in an error": echo_key(500),
    "key in an answer": said(whole(program(Random(-2))) + f"\nThe key is {KEY}.\n"),
    "units": said(UNITS),
    "loop": said(LOOP),
    "import": said(IMPORT),
    "cut": said(CUT, finish="length"),
}
# without the gate of physics, which is half of the time of so small a run, where no figure in a test depends on it
CONFIGS = {
    # two questions of three rounds a generation
    "faulty": """
        budget: 1000
        score: {physics: false}
        search: {prune_above: 0, generations: 8, finalists: 1}
        llm: {summariser: openai/notes, notes_every: 2, backoff_s: 0.02, attempts: 3, max_usd: 100, programs: 2}
    """,
    # two questions a generation; notes before the second
    "small": """
        budget: 1000
        score: {physics: false}
        search: {prune_above: 0, generations: 2, islands: 2, finalists: 1}
        llm: {summariser: openai/notes, notes_every: 1, max_usd: 100}
    """,
    # two questions a generation, of one island
    "narrow": """
        budget: 1000
        search: {prune_above: 0, islands: 1, finalists: 0}
        llm: {attempts: 2, backoff_s: 0.01}
    """,
    # notes after its only generation
    "noted": """
        budget: 1000
        score: {physics: false}
        search: {prune_above: 0, generations: 1, islands: 1, finalists: 1}
        llm: {summariser: openai/notes, notes_every: 1}
    """,
    "brief": "{budget: 1000, score: {physics: false}, search: {prune_above: 0, generations: 1, islands: 1, finalists: 0}}",
    "auto": """
        budget: 1000
        score: {physics: false}
        search: {prune_above: 0, generations: 4, islands: 3, finalists: 0}
        llm: {share: 0.5, max_usd: 500, answer_tokens: 1000, rounds: 1}
    """,
}
WRONG = "sk-wrong-0123456789"
MINE = "My own words about $program\n\n$kinds\n"


class Story(NamedTuple):
    """A run that ended, and the server that it asked."""

    run: Path
    ran: Ran
    server: Server
    recorder: Recorder


def set_up(folder: Path) -> Path:
    """The folder, with the data and the configurations of its runs in it."""
    (folder / "data.yaml").write_text(DATA)
    for name, text in CONFIGS.items():
        (folder / f"{name}.yaml").write_text(text)
    return folder


def whole_run(
    folder: Path, config: str, name: str, *more: object, script: Callable[[Request], Reply] = by_content
) -> Story:
    """A run of a configuration from start to end."""
    recorder = Recorder(script)
    with Server(recorder) as server:
        ran = evolve(folder, *search(server, folder / f"{config}.yaml", "--quiet", "--out", name, *more))
    return Story(folder / name, ran, server, recorder)


def resumed(whole: Path, run: Path, at: int, script: Callable[[Request], Reply] = by_content) -> list[Request]:
    """The requests of a run that goes on, without a cache, from the first `at` lines of the journal of a whole one."""
    shutil.copytree(whole, run)
    lines = (whole / "journal.jsonl").read_bytes().splitlines(keepends=True)
    (run / "journal.jsonl").write_bytes(b"".join(lines[:at]))
    (run / "report.json").unlink()
    with Server(script) as server:
        config = re.sub(r"api_base: .*", f"api_base: {server.url}", (run / "config.yaml").read_text())
        (run / "config.yaml").write_text(re.sub(r"cache: .*", "cache: ''", config))
        assert evolve(run.parent, "resume", run, "--workers", 1, "--quiet").status == 0
    return server.seen


def warm_up() -> None:
    """Send a request from this process: the first one loads more of litellm, which may take longer than a timeout."""
    with Server(by_content) as server, patch.dict(os.environ, environment(), clear=True):
        request(
            "openai/a", [("user", "warm up")], LlmSettings(api_base=server.url, answer_tokens=9, timeout_s=FOREVER_S)
        )


class Recorded(NamedTuple):
    """A run, and its replay."""

    story: Story
    again: Path
    ran: Ran


def faulty(folder: Path) -> Recorded:
    """The first two questions to proposers and then every other one meet a fault, until each has been met once."""
    left, number = list(FAULTS.values()), iter(range(10**6))

    def script(request: Request) -> Reply:
        if request.model in ("a", "b") and ((n := next(number)) == 0 or n % 2) and left:
            return left.pop(0)
        return by_content(request)

    warm_up()
    story = whole_run(folder, "faulty", "faulty", "--judge", "openai/judge", "--timeout", 5, script=script)
    assert not left
    args = ["run", "--replay", story.run, "--out", "faulty_again", "--workers", 1, "--quiet"]
    return Recorded(story, folder / "faulty_again", evolve_apart(folder, *args))


def reference(folder: Path) -> tuple[Story, Story]:
    """A run without a fault, one request after another, and one that finds its answers in the first one's cache."""
    args = ("--judge", "openai/judge", "--cache", "answers")
    first = whole_run(folder, "small", "reference", *args, "--concurrency", 1)
    return first, whole_run(folder, "small", "cached", *args)


def together(folder: Path) -> Story:
    """The same with many requests at a time and two workers."""
    return whole_run(folder, "small", "together", "--judge", "openai/judge", "--concurrency", 8, "--workers", 2)


class Broken(NamedTuple):
    """A run that was interrupted and then killed, both while requests hung, and went on each time."""

    story: Story
    interrupted: Ran
    before: list[dict[str, Any]]  # its journal when it was killed
    seen: list[Request]  # by then
    hung: list[Request]
    replayed: list[list[bytes]]  # verdicts of a replay: of a part of it, as a kill leaves it, and at its end


def broken(folder: Path) -> Broken:
    holding = threading.Event()
    holding.set()
    held: list[str] = []  # the question that hangs, whenever it is asked

    def after_notes(request: Request) -> bool:
        return len(request.messages) == 2 and NOTES_KEPT in request.messages[1]["content"]

    def script(request: Request) -> Reply:
        if holding.is_set() and after_notes(request):
            held.extend([asked(request.messages)] if not held else [])
            if asked(request.messages) == held[0]:
                return hang(FOREVER_S)
        return by_content(request)

    def stuck(questions: int) -> bool:
        """So many questions are out, and whatever does not hang has been answered and noted."""
        with server.lock:
            out, answered = sum(map(after_notes, server.seen)), sum(1 for _ in recorder.answers(server.seen))
        return out == questions and len(of_kind(run, "answered")) == answered

    recorder, run = Recorder(script), folder / "broken"
    with Server(recorder) as server:
        args = search(server, folder / "small.yaml", "--quiet", "--judge", "openai/judge", "--out", run)
        process = started(folder, *args)
        wait_for(lambda: stuck(2), process)  # both of a generation
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=TIMEOUT_S)
        interrupted = Ran(process.returncode, "", err)
        process = started(folder, "resume", run, "--workers", 2, "--quiet")
        wait_for(lambda: stuck(3), process)  # one of them had hung
        kill(process)
        before, seen = journal(run), list(server.seen)
        hung = [q for q, reply in zip(seen, recorder.replies, strict=True) if reply.manner == "hang"]
        holding.clear()
        ran = evolve(folder, "resume", run, "--workers", 1, "--quiet")
    again = folder / "broken_again"
    assert evolve(folder, "run", "--replay", run, "--out", again, "--workers", 1, "--quiet", key=None).status == 0
    lines = (again / "journal.jsonl").read_bytes().splitlines(keepends=True)
    done = [i for i, line in enumerate(lines) if b'"verdict"' in line][14]
    (again / "journal.jsonl").write_bytes(b"".join(lines[:done]) + lines[done][:20])
    (again / "report.json").unlink()
    replayed = [verdicts(again)]
    assert evolve(folder, "resume", again, "--workers", 1, "--quiet", key=None).status == 0
    replayed.append(verdicts(again))
    return Broken(Story(run, ran, server, recorder), interrupted, before, seen, hung, replayed)


def started(folder: Path, *args: object, key: str | None = KEY) -> subprocess.Popen[str]:
    """A command under way, in a separate process that leads its own process group."""
    command = [EVOLVE[0], EVOLVE[1], *map(str, args)]
    options: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "start_new_session": True}
    return subprocess.Popen(command, cwd=folder, env=environment(key), text=True, **options)


class Step(NamedTuple):
    """A command of several on a run: how it ended, what the server had seen by then, and the verdicts."""

    ran: Ran
    requests: int
    tokens: int
    verdicts: list[bytes]


def limited(folder: Path) -> tuple[Path, list[Step], Recorded]:
    """A run of three calls that goes on to seven, and then as far as its tokens go; and its replay."""
    run, recorder = folder / "limited", Recorder()
    with Server(recorder) as server:
        steps = []
        first = search(server, folder / "narrow.yaml", "--quiet", "--out", run, "--max-calls", 3)
        again = ["resume", run, "--workers", 1, "--quiet"]
        for args in (first, [*again, "--max-calls", 7], [*again, "--max-calls", 0, "--max-tokens", MOST_TOKENS]):
            ran = evolve(folder, *args)
            steps.append(Step(ran, len(server.seen), server.tokens_in + server.tokens_out, verdicts(run)))
    replay = ["run", "--replay", run, "--out", "limited_again", "--workers", 1, "--quiet"]
    ran = evolve(folder, *replay, key=None)
    return run, steps, Recorded(Story(run, steps[-1].ran, server, recorder), folder / "limited_again", ran)


def unnoted(folder: Path) -> tuple[Story, int]:
    """A run that reaches its limit of calls just before the notes on its last generation, and goes on without a limit;
    and the requests until then."""
    calls = [request.model for request in whole_run(folder, "noted", "noted").server.seen]
    run, recorder = folder / "unnoted", Recorder()
    with Server(recorder) as server:
        args = search(server, folder / "noted.yaml", "--quiet", "--out", run, "--max-calls", calls.index("notes"))
        assert evolve(folder, *args).status == 0
        requests = len(server.seen)
        ran = evolve(folder, "resume", run, "--workers", 1, "--quiet", "--max-calls", 0)
    return Story(run, ran, server, recorder), requests


def poor(folder: Path) -> tuple[Ran, int, Story]:
    """A run that may spend less than its first question costs, the requests it made, and how it went on with a little more."""
    run, recorder = folder / "poor", Recorder()
    with Server(recorder) as server:
        ran = evolve(folder, *search(server, folder / "narrow.yaml", "--quiet", "--out", run, "--max-usd", LEAST_USD))
        requests = len(server.seen)
        more = evolve(folder, "resume", run, "--workers", 1, "--quiet", "--max-usd", MOST_USD)
    return ran, requests, Story(run, more, server, recorder)


def down(folder: Path) -> tuple[Path, int, str]:
    """A run whose only model never answers: its exit status, and what a terminal showed."""
    run = folder / "down"
    with Server(lambda _: status(500)) as server:
        args = search(server, folder / "narrow.yaml", "--out", run, "--budget", 59, models=["a"])
        terminal, other = pty.openpty()
        shown: list[bytes] = []

        def read() -> None:
            with suppress(OSError):  # how Linux says that the other side is closed
                while more := os.read(terminal, 4096):
                    shown.append(more)

        reader = threading.Thread(target=read)
        reader.start()
        with open(other, "w") as stderr:
            ran = evolve(folder, *args, stderr=stderr)
        reader.join()
        os.close(terminal)
        return run, ran.status, b"".join(shown).decode()


def refused(folder: Path) -> tuple[Ran, Story]:
    """A run under a wrong key, with a prompt of the user's, and its resumption under the right one."""

    def script(request: Request) -> Reply:
        return by_content(request) if request.authorization == f"Bearer {KEY}" else echo_key(401)

    (folder / "mine").mkdir()
    (folder / "mine" / "propose.md").write_text(MINE)
    recorder = Recorder(script)
    with Server(recorder) as server:
        args = search(server, folder / "brief.yaml", "--quiet", "--out", "refused", "--prompts", "mine")
        first = evolve(folder, *args, key=WRONG)
        shutil.rmtree(folder / "mine")  # the run keeps what it goes by
        second = evolve(folder, "resume", "refused", "--workers", 1, "--quiet")
    return first, Story(folder / "refused", second, server, recorder)


def auto(folder: Path) -> list[Story]:
    """A search of operators and a model, and the same one with the model at a hundred times the price."""
    both = []
    for name, price in (("cheap", "10,20"), ("dear", "1000,2000")):
        recorder = Recorder()
        with Server(recorder) as server:
            more = ("--quiet", "--out", name, "--proposer", "auto", "--price", f"openai/a={price}")
            ran = evolve(folder, *search(server, folder / "auto.yaml", *more, models=["a"]))
        both.append(Story(folder / name, ran, server, recorder))
    return both


OFFLINE = ["run", "--config", "small.yaml", "--experiments", "data.yaml", "--budget", 12, "--workers", 1, "--quiet"]


def offline(folder: Path) -> Path:
    """A run of operators alone."""
    assert evolve(folder, *OFFLINE, "--out", "offline", key=None).status == 0
    return folder / "offline"
