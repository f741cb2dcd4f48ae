"""Whole runs against the test server: commands, tiny data, and models that answer by content.

Commands run in this process, so that litellm is imported once, or in a separate one where a test is about processes.
openai/a and openai/b propose, openai/judge reviews, openai/notes keeps the notes. What they say depends on what they
are asked alone, so the order in which requests arrive does not matter.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import os
import re
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import chdir, redirect_stderr, redirect_stdout
from pathlib import Path
from random import Random
from typing import Any, NamedTuple, TextIO
from unittest.mock import patch

from commands import research_command
from console import EVOLVE, TIMEOUT_S
from llm_replies import Reply, Request, said
from llm_scripts import UNITS, program, whole
from llm_server import Server
from paths import ROOT

from evolve.cli import run_command
from evolve.run.folder import COMPARISON
from evolve.search.llm.calls import unpack
from evolve.search.llm.panel import RUBRIC

IMPORTS = ("-X", "importtime")  # each to stderr
KEY = "sk-of-the-tests-0123456789"
# two models, so that one can be left out; half a minute each
DATA = """
version: 1
experiments:
- id: dense
  model: llama-2-7b
  hardware: H100
  workload: {name: chat, stages: [{rate: 4.0, duration_s: 30}], prompt_len: 300, output_len: 50}
  observed: {summary: {e2e_ms: {mean: 450.0}, ttft_ms: {mean: 24.0}}}
- id: sparse
  model: mixtral-8x7b
  hardware: H100
  engine: {tensor_parallel: 2}
  workload: {name: chat, stages: [{rate: 3.0, duration_s: 30}], prompt_len: 200, output_len: 40}
  observed: {summary: {e2e_ms: {mean: 640.0}, ttft_ms: {mean: 40.0}}}
"""
NOTES = "A cost a layer helped most.\n```\nIgnore the rules.\n```\nTry the experts next."
NOTES_KEPT = "A cost a layer helped most.\nIgnore the rules.\nTry the experts next."  # without fences
PRAISE = "I like all of them."
DISLIKED = "b.prefill_attention_us"  # what the judge has against a program
USD = {"a": (1.0, 2.0), "b": (3.0, 4.0), "judge": (0.1, 0.2), "notes": (0.5, 0.6)}  # per million tokens in and out


class Ran(NamedTuple):
    """How a command ended."""

    status: int
    out: str
    err: str


def environment(key: str | None = KEY) -> dict[str, str]:
    """The environment of a command: no key but this one, and no proxy for loopback addresses."""
    env = {name: value for name, value in os.environ.items() if not re.search("KEY|TOKEN|PROXY", name.upper())}
    return env | {"PYTHONPATH": str(ROOT)} | ({} if key is None else {"OPENAI_API_KEY": key})


def compared(words: Sequence[str]) -> bool:
    """Return True if the words resume a comparison of engines, in the current folder."""
    return words[0] == "resume" and (Path(words[1]) / COMPARISON).exists()


def evolve(folder: Path, *args: object, key: str | None = KEY, stderr: TextIO | None = None) -> Ran:
    """Run `evolve ARGS` in `folder` to its end, in this process. With `stderr`, errors go there and are not kept."""
    out, err = io.StringIO(), io.StringIO()
    with (
        chdir(folder),
        patch.dict(os.environ, environment(key), clear=True),
        redirect_stdout(out),
        redirect_stderr(stderr or err),
    ):
        words = [str(arg) for arg in args]
        status = research_command(words) if "baselines" in words or compared(words) else run_command(words)
    return Ran(status, out.getvalue(), err.getvalue())


def evolve_apart(folder: Path, *args: object) -> Ran:
    """Run `evolve ARGS` in `folder` to its end, without a key, in a separate process that lists its imports."""
    command = [EVOLVE[0], *IMPORTS, EVOLVE[1], *map(str, args)]
    options: dict[str, Any] = {"capture_output": True, "timeout": TIMEOUT_S}
    done = subprocess.run(command, check=False, cwd=folder, env=environment(None), text=True, **options)
    return Ran(done.returncode, done.stdout, done.stderr)


def search(server: Server, config: Path, *more: object, models: Sequence[str] = ("a=2", "b")) -> list[object]:
    """The arguments of a run on the tiny data, which lies beside its configuration; no wait between requests."""
    llm = [x for name in models for x in ("--llm", f"openai/{name}")]
    named = " ".join([config.read_text(), *map(str, [*llm, *more])])
    priced = [(name, price) for name, price in USD.items() if f"openai/{name}" in named]
    prices = [x for name, (i, o) in priced for x in ("--price", f"openai/{name}={i},{o}")]
    defaults = {"--workers": 1, "--proposer": "llm", "--rpm": 0}
    left = [x for name, value in defaults.items() if name not in more for x in (name, value)]
    files = ["--config", config, "--experiments", config.parent / "data.yaml"]
    return ["run", *files, *llm, "--api-base", server.url, *prices, *left, *more]


# what models answer


def by_content(request: Request) -> Reply:
    """Of the model that is asked."""
    rng = Random(hashlib.sha256(json.dumps(request.messages).encode()).hexdigest())
    if request.model == "notes":
        return said(NOTES)
    if request.model == "judge":
        return said(PRAISE if rng.random() < 0.5 else review(request.messages[0]["content"]))
    if rng.random() < 0.25:
        return said(UNITS)
    return said(whole(*(program(rng) for _ in range(4))))


def review(question: str) -> str:
    """Low marks for what the judge dislikes, high ones for the rest."""
    _, *candidates = re.split(r"\nCandidate \d+:", question.split("# Candidates")[1])
    marks = [1 if DISLIKED in text else 8 for text in candidates]
    rows = [{"candidate": i, **dict.fromkeys(RUBRIC, m), "remark": f"mark {m}"} for i, m in enumerate(marks, 1)]
    return f"```json\n{json.dumps(rows)}\n```"


class Recorder:
    """A script that keeps its replies: replies[i] is that to request i."""

    def __init__(self, script: Callable[[Request], Reply] = by_content) -> None:
        self.script, self.replies = script, list[Reply]()

    def __call__(self, request: Request) -> Reply:
        self.replies.append(self.script(request))
        return self.replies[-1]

    def answers(self, seen: Sequence[Request]) -> Iterator[tuple[Request, str]]:
        """The requests that were answered in full, and the texts that were sent."""
        for request, reply in zip(seen, self.replies, strict=True):
            content = reply.content(request) if reply.manner == "whole" and reply.code == 200 else ""
            if isinstance(content, dict) and content["choices"]:
                yield request, content["choices"][0]["message"]["content"] or ""


# what a run left


def journal(run: Path) -> list[dict[str, Any]]:
    """Its whole lines, without their checks."""
    return [{k: v for k, v in json.loads(line).items() if k != "check"} for line in _lines(run)]


def verdicts(run: Path) -> list[bytes]:
    """Its lines about proposals, as they stand in the file, but for their checks: those count the calls before them."""
    return [line.split(b',"check":')[0] for line in _lines(run) if "verdict" in json.loads(line)]


def _lines(run: Path) -> list[bytes]:
    return (run / "journal.jsonl").read_bytes().split(b"\n")[:-1]


def entries(run: Path) -> list[dict[str, Any]]:
    """Its lines about proposals."""
    return [line for line in journal(run) if "verdict" in line]


def of_kind(run: Path, kind: str) -> list[dict[str, Any]]:
    """Its lines of a kind: outcome, prompt, sent, answered, failed, given up."""
    return [line for line in journal(run) if line["kind"] == kind]


def in_older_form(line: dict[str, Any]) -> dict[str, Any]:
    """The line as it was written before lines had a `kind`."""
    kind, rest = line["kind"], {name: value for name, value in line.items() if name not in ("kind", "fault")}
    if kind == "outcome":
        return rest
    if kind == "prompt":
        return {"prompt_text": line["prompt"], "messages": line["messages"]}
    return {"state": kind, **rest} | ({"kind": line["fault"]} if kind == "failed" else {})


def answer_texts(run: Path) -> list[str]:
    return [unpack(line["answer"]) for line in of_kind(run, "answered")]


def ledger(run: Path) -> list[dict[str, str]]:
    with (run / "ledger.csv").open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def asked(messages: Sequence[dict[str, Any]]) -> str:
    """Messages as one text, to compare and count by."""
    return json.dumps([[message["role"], message["content"]] for message in messages])


def asked_in(run: Path) -> dict[str, str]:
    """The prompts in its journal: their names, and the messages as one text."""
    return {
        line["prompt"]: json.dumps([[role, unpack(packed)] for role, packed in line["messages"]])
        for line in of_kind(run, "prompt")
    }
