"""Calls to language models, and the journal's lines about them (see call_log for what these add up to).

A call is one question to one model, named GENERATION/PURPOSE/NUMBER. An attempt is one request that was sent for it.
The journal holds every prompt once, and every answer in the line about its arrival; both are packed (xz, base64). A
line is on disk before its request is sent or its answer is used. So a process that dies loses no answer, and the
requests that were under way are known.
"""

from __future__ import annotations

import base64
import hashlib
import json
import lzma
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from evolve.search.llm.client import Reply
from evolve.search.llm.fault import CallFault
from evolve.search.llm.prices import Price
from simulator.common.json import JsonObject

Messages = tuple[tuple[str, str], ...]
ABSURD = 10**9  # tokens; no call has as many
BYTES_PER_TOKEN = 2.0  # fewer than in any text that is sent, so that a prompt's cost is never underestimated


def proposing(round_number: int) -> str:
    """The purpose of the calls that ask for programs in this round of a question, 1, 2, ..."""
    return "propose" if round_number == 1 else f"round-{round_number}"


def proposes(purpose: str) -> bool:
    """Whether calls with this purpose ask for programs."""
    return role(purpose) in ("propose", "round")


def reviewing(time: int) -> str:
    """The purpose of the calls that ask judges for reviews: for the first time, or again after an unusable answer."""
    return "judge" if time == 1 else f"judge-{time}"


def role(purpose: str) -> str:
    """The purpose without the number of its round: propose, round, judge or notes."""
    return purpose.partition("-")[0]


def pack(text: str) -> str:
    """The text compressed with xz, in base64. Lone surrogates become question marks."""
    return base64.b64encode(lzma.compress(text.encode("utf-8", "replace"))).decode()


def unpack(packed: str) -> str:
    """The text of `pack`."""
    return lzma.decompress(base64.b64decode(packed)).decode()


@dataclass(frozen=True, slots=True)
class LlmCall:
    """A question: (role, text) messages to `model`. `sample` numbers repetitions of the same question, from 0."""

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
        """The name of the messages: the first 16 hex digits of their SHA-256."""
        return hashlib.sha256(json.dumps(self.messages, separators=(",", ":")).encode()).hexdigest()[:16]

    def most(self, answer_tokens: int) -> tuple[int, int]:
        """The most tokens, in and out, that one request may take."""
        size = sum(len(text.encode("utf-8", "replace")) for _, text in self.messages)
        return int(size / BYTES_PER_TOKEN) + 1, answer_tokens


@dataclass(frozen=True, slots=True)
class CallCost:
    """What calls cost: requests sent, tokens (in and out) and USD.

    `possibly` are the requests that may have been charged although no answer came (timeouts, lost connections, a
    process that died). They count with the most that they can have cost.
    """

    requests: int = 0
    tokens: int = 0
    usd: float = 0.0
    possibly_tokens: int = 0
    possibly_usd: float = 0.0

    def __add__(self, more: CallCost) -> CallCost:
        return CallCost(*(getattr(self, f.name) + getattr(more, f.name) for f in fields(self)))


@dataclass(frozen=True, slots=True)
class Prompt:
    """A journal line: messages, packed, that calls refer to by the name `prompt`."""

    prompt: str
    messages: Messages


@dataclass(frozen=True, slots=True)
class Sent:
    """A journal line: a request is about to be sent, with the most tokens and USD that it can take."""

    call: str
    attempt: int
    model: str
    prompt: str
    sample: int
    tokens_at_most: int
    usd_at_most: float


@dataclass(frozen=True, slots=True)
class Answered:
    """A journal line: the packed answer to a request.

    `cached`: it came from a folder of answers, and nothing was sent. `uncounted`: the vendor's token count was missing
    or impossible, so the worst case was charged.
    """

    call: str
    attempt: int
    model: str
    version: str
    prompt: str
    sample: int
    tokens_in: int
    tokens_out: int
    usd: float
    seconds: float
    finish: str
    answer: str
    cached: bool = False
    uncounted: bool = False


@dataclass(frozen=True, slots=True)
class Failed:
    """A journal line: a request failed. `unpaid`: it certainly cost nothing."""

    call: str
    attempt: int
    model: str
    fault: str
    why: str
    unpaid: bool
    seconds: float


@dataclass(frozen=True, slots=True)
class GivenUp:
    """A journal line: a call is not tried again. `limit`: because of a limit of the run, not because of the model."""

    call: str
    model: str
    why: str
    limit: bool = False


CallLine = Prompt | Sent | Answered | Failed | GivenUp
_KINDS: dict[str, type[CallLine]] = {
    "prompt": Prompt, "sent": Sent, "answered": Answered, "failed": Failed, "given up": GivenUp,
}  # fmt: skip


def to_json(line: CallLine) -> JsonObject:
    """The journal's JSON object for a line, `kind` first. Flags that are not set are left out."""
    kind = next(name for name, line_class in _KINDS.items() if isinstance(line, line_class))
    values = {f.name: getattr(line, f.name) for f in fields(line)}
    return {"kind": kind} | {name: v for name, v in values.items() if v is not False or name in ("unpaid", "limit")}


def read_line(line: Mapping[str, Any]) -> CallLine | None:
    """The call line in a journal line; None if the line is not about calls.

    Lines of older runs have `state` instead of `kind`, and the `kind` of a failure is its fault.
    """
    values = dict(line)
    if "prompt_text" in line:
        values = {"prompt": line["prompt_text"], "messages": line["messages"]}
        kind = "prompt"
    elif "state" in line:
        kind = values.pop("state")
        if kind == "failed":
            values["fault"] = values.pop("kind")
    else:
        kind = values.pop("kind", "")
    if kind not in _KINDS:
        return None
    if kind == "prompt":
        values["messages"] = tuple((role, text) for role, text in values["messages"])
    return _KINDS[kind](**values)


def prompt_line(call: LlmCall) -> Prompt:
    """The line for a call's messages."""
    return Prompt(call.prompt, tuple((role, pack(text)) for role, text in call.messages))


def sent_line(call: LlmCall, attempt: int, most: CallCost) -> Sent:
    """The line for a request about to be sent, with the most that it can take."""
    return Sent(call.name, attempt, call.model, call.prompt, call.sample, most.possibly_tokens, most.possibly_usd)


def answered_line(call: LlmCall, attempt: int, reply: Reply, price: Price, most: tuple[int, int]) -> Answered:
    """The line for an answer. If the reply's token count is missing or impossible, it charges the worst case."""
    counted = 0 < reply.tokens_in < ABSURD and bool(reply.text) <= reply.tokens_out < ABSURD
    tokens_in, tokens_out = (reply.tokens_in, reply.tokens_out) if counted else most
    return Answered(
        call.name, attempt, call.model, reply.version, call.prompt, call.sample, tokens_in, tokens_out,
        price.usd(tokens_in, tokens_out), round(reply.seconds, 3), reply.finish, pack(reply.text),
        uncounted=not counted,
    )  # fmt: skip


def failed_line(call: LlmCall, attempt: int, fault: CallFault, seconds: float) -> Failed:
    """The line for a failed request."""
    return Failed(call.name, attempt, call.model, fault.kind, fault.why, fault.unpaid, round(seconds, 3))
