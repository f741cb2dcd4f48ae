"""The book of calls: what was asked of models, what they answered, what it cost. It is the journal's lines about calls.

A call is one question to one model, named GENERATION/PURPOSE/NUMBER; an attempt is one request that was sent for it.
Prompts stand in the journal once, answers with the line that says they came; all packed (xz, base64). A line is on disk
before a request is sent and before an answer is used, so a process that dies loses no answer, and what was under way is
known.
"""

from __future__ import annotations

import base64
import hashlib
import json
import lzma
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from evolve.propose.llm.client import Fault, Reply
from evolve.propose.llm.prices import Price

Line = dict[str, Any]
Messages = tuple[tuple[str, str], ...]
ABSURD = 10**9  # tokens of one call
BYTES_A_TOKEN = 2.0  # fewer than in any text that is sent: what a prompt may cost at most is reckoned with it


def pack(text: str) -> str:
    return base64.b64encode(lzma.compress(text.encode("utf-8", "replace"))).decode()


def unpack(packed: str) -> str:
    return lzma.decompress(base64.b64decode(packed)).decode()


@dataclass(frozen=True, slots=True)
class Call:
    """A question: (role, text) messages to `model`. `sample` counts equal questions to it, the first is 0."""

    generation: int
    purpose: str
    number: int
    model: str
    messages: Messages
    sample: int = 0

    @property
    def name(self) -> str:
        return f"{self.generation}/{self.purpose}/{self.number}"

    @property
    def prompt(self) -> str:
        """A name for the messages: the first 16 hex digits of their SHA-256."""
        return prompt_hash(self.messages)

    def most(self, answer_tokens: int) -> tuple[int, int]:
        """Tokens in and out that a request of it may take at most."""
        size = sum(len(text.encode("utf-8", "replace")) for _, text in self.messages)
        return int(size / BYTES_A_TOKEN) + 1, answer_tokens


def prompt_hash(messages: Messages) -> str:
    return hashlib.sha256(json.dumps(messages, separators=(",", ":")).encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class Spent:
    """Requests sent, tokens in and out, and USD: of answers, and of requests that may have been paid though no answer
    came (timeouts, lost connections, a process that died): these count at the most they can have cost."""

    requests: int = 0
    tokens: int = 0
    usd: float = 0.0
    possibly_tokens: int = 0
    possibly_usd: float = 0.0

    def __add__(self, more: Spent) -> Spent:
        return Spent(*(getattr(self, f.name) + getattr(more, f.name) for f in fields(self)))


@dataclass
class Book:
    """What the journal says of calls; `take` reads one more of its lines."""

    prompts: dict[str, Line] = field(default_factory=dict)
    sent: dict[tuple[str, int], Line] = field(default_factory=dict)  # by call and attempt
    ended: dict[tuple[str, int], Line] = field(default_factory=dict)
    answers: dict[str, Line] = field(default_factory=dict)  # by call: the first that came
    given_up: dict[str, Line] = field(default_factory=dict)
    spent: Spent = Spent()

    def take(self, lines: Iterable[Line]) -> None:
        for line in lines:
            if "prompt_text" in line:
                self.prompts[line["prompt_text"]] = line
            elif "state" in line:
                self._take(line)

    def _take(self, line: Line) -> None:
        name, attempt = line["call"], line.get("attempt", 0)
        match line["state"]:
            case "sent":
                self.sent[name, attempt] = line
                self.spent += Spent(requests=1) + self._reserved(line)
            case "answered":
                if name not in self.given_up:
                    self.answers.setdefault(name, line)
                if (name, attempt) in self.sent:
                    self._end(line)
                    self.spent += Spent(tokens=line["tokens_in"] + line["tokens_out"], usd=line["usd"])
            case "failed":
                self._end(line)
                if not line["unpaid"]:
                    self.spent += self._reserved(line)
            case "given up":
                if name not in self.answers:
                    self.given_up[name] = line

    def _end(self, line: Line) -> None:
        """An attempt is over: what was reserved for it is free again. A late answer ends a second time."""
        key = line["call"], line["attempt"]
        before = self.ended.get(key)
        self.ended[key] = line
        if before is None or not before.get("unpaid", True):
            self.spent += self._reserved(line, -1)

    def _reserved(self, line: Line, sign: int = 1) -> Spent:
        sent = self.sent[line["call"], line["attempt"]]
        return Spent(possibly_tokens=sign * sent["tokens_at_most"], possibly_usd=sign * sent["usd_at_most"])

    def settled(self, name: str) -> bool:
        """Whether nothing more is to be sent for this call."""
        return name in self.answers or name in self.given_up

    def text(self, name: str) -> str:
        """The answer to a call that has one."""
        return unpack(self.answers[name]["answer"])

    def under_way(self) -> list[Line]:
        """Requests that were sent and of which nothing more is known."""
        return [line for key, line in self.sent.items() if key not in self.ended]

    def attempts(self, name: str) -> int:
        return sum(call == name for call, _ in self.sent)

    def samples(self, generation: int) -> Counter[tuple[str, str]]:
        """How often each (prompt, model) was asked before a generation."""
        asked = {(line["call"], line["prompt"], line["model"]) for line in self.sent.values()}
        asked |= {(line["call"], line["prompt"], line["model"]) for line in self.answers.values()}
        return Counter((prompt, model) for call, prompt, model in asked if int(call.split("/")[0]) < generation)

    def of_generation(self, generation: int) -> list[str]:
        """Names of its calls that were settled, in order."""
        names = {*self.answers, *self.given_up}
        return sorted((n for n in names if int(n.split("/")[0]) == generation), key=order)

    def messages(self, prompt: str) -> Messages:
        """The messages of that name."""
        line = self.prompts[prompt]
        return tuple((role, unpack(packed)) for role, packed in line["messages"])


def order(name: str) -> tuple[int, str, int]:
    """What calls are sorted by."""
    generation, purpose, number = name.split("/")
    return int(generation), purpose, int(number)


def prompt_line(call: Call) -> Line:
    return {"prompt_text": call.prompt, "messages": [[role, pack(text)] for role, text in call.messages]}


def sent_line(call: Call, attempt: int, most: Spent) -> Line:
    return {"call": call.name, "attempt": attempt, "state": "sent", "model": call.model, "prompt": call.prompt,
            "sample": call.sample, "tokens_at_most": most.possibly_tokens,
            "usd_at_most": most.possibly_usd}  # fmt: skip


def answered_line(call: Call, attempt: int, reply: Reply, price: Price, most: tuple[int, int]) -> Line:
    """A reply without a count of tokens, or with one that cannot be, is charged as much as it can have cost."""
    counted = 0 < reply.tokens_in < ABSURD and bool(reply.text) <= reply.tokens_out < ABSURD
    tokens_in, tokens_out = (reply.tokens_in, reply.tokens_out) if counted else most
    line = {"call": call.name, "attempt": attempt, "state": "answered", "model": call.model, "version": reply.version,
            "prompt": call.prompt, "sample": call.sample, "tokens_in": tokens_in, "tokens_out": tokens_out,
            "usd": price.usd(tokens_in, tokens_out), "seconds": round(reply.seconds, 3), "finish": reply.finish,
            "answer": pack(reply.text)}  # fmt: skip
    return line if counted else line | {"uncounted": True}


def failed_line(call: Call, attempt: int, fault: Fault, seconds: float) -> Line:
    return {"call": call.name, "attempt": attempt, "state": "failed", "model": call.model, "kind": fault.kind,
            "why": fault.why, "unpaid": fault.unpaid, "seconds": round(seconds, 3)}  # fmt: skip


def given_up_line(call: Call, why: str, limit: bool = False) -> Line:
    """`limit`: not the model's fault, a limit of the run would have been passed."""
    return {"call": call.name, "state": "given up", "model": call.model, "why": why, "limit": limit}


def calls_of(lines: Sequence[Line]) -> Book:
    """The book that a journal holds."""
    book = Book()
    book.take(lines)
    return book
