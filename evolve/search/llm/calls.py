"""Calls to language models, the journal's lines about them, and the log: what these lines add up to.

A call is one question to one model, named GENERATION/PURPOSE/NUMBER. An attempt is one request that was sent for it. A
line is on disk before its request is sent or its answer is used, so a process that dies loses no answer.
"""

from __future__ import annotations

import base64
import hashlib
import json
import lzma
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from evolve.run.folder import JOURNAL
from evolve.search.llm.client import Reply
from simulator.common.errors import LARGEST_NUMBER, LARGEST_WHOLE, shown
from simulator.common.json import JsonObject
from simulator.common.records import damaged, from_json, record_class, stored

Messages = tuple[tuple[str, str], ...]  # (role, text)
ABSURD = 10**9  # tokens; no call has as many
MOST_BYTES = 64 << 20  # of an unpacked text: a small packed one can stand for terabytes
_COUNT, _USD = (0, LARGEST_WHOLE), (0.0, LARGEST_NUMBER)
BYTES_PER_TOKEN = 2.0  # fewer than in any text that is sent, so that a prompt's cost is never underestimated


@dataclass(frozen=True, slots=True)
class Price:
    """USD per million tokens."""

    input_usd: float
    output_usd: float

    def usd(self, tokens_in: int, tokens_out: int) -> float:
        return (tokens_in * self.input_usd + tokens_out * self.output_usd) / 1e6


def numbered(purpose: str, time: int) -> str:
    """The purpose of a call that asks for the `time`-th time: `propose`, `propose-2`, `propose-3`."""
    return purpose if time == 1 else f"{purpose}-{time}"


def role(purpose: str) -> str:
    """The purpose without its number: propose, round, judge or notes."""
    return purpose.partition("-")[0]


def proposes(purpose: str) -> bool:
    """True if calls with this purpose ask for programs."""
    return role(purpose) in ("propose", "round")


def parts_of(name: str) -> tuple[int, str, int]:
    """The generation, purpose and number in a call's name, which also order calls."""
    generation, purpose, number = name.split("/")
    return int(generation), purpose, int(number)


def pack(text: str) -> str:
    """The text compressed with xz, in base64. Lone surrogates become question marks."""
    return base64.b64encode(lzma.compress(text.encode("utf-8", "replace"))).decode()


def unpack(packed: str) -> str:
    """The text that was packed. Raises DamagedRecord for another one, or one of more than MOST_BYTES."""
    try:
        data, reader = base64.b64decode(packed), lzma.LZMADecompressor()
        text = reader.decompress(data, MOST_BYTES).decode()
    except (ValueError, lzma.LZMAError, EOFError):
        reader, text = None, ""
    if reader is None or not reader.eof:
        raise damaged(JOURNAL, "", f"has a packed text that cannot be unpacked, {shown(packed)}")
    return text


def _name(raw: Any) -> str:
    """The name of a call. Raises ValueError for another text."""
    parts_of(raw)
    return str(raw)


@dataclass(frozen=True, slots=True)
class LlmCall:
    """A question to `model`; `sample` numbers repetitions of the same question, from 0."""

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
    """The cost of calls: requests, tokens in and out, USD. `possibly`: of requests without an answer, at most."""

    requests: int = 0
    tokens: int = 0
    usd: float = 0.0
    possibly_tokens: int = 0
    possibly_usd: float = 0.0

    def __add__(self, more: CallCost) -> CallCost:
        return CallCost(*(getattr(self, f.name) + getattr(more, f.name) for f in fields(self)))

    @property
    def most(self) -> tuple[float, int]:
        """USD and tokens, the possible ones included."""
        return self.usd + self.possibly_usd, self.tokens + self.possibly_tokens


@record_class
class Prompt:
    """A journal line: messages, packed, that calls refer to by the name `prompt`."""

    prompt: str
    messages: Messages


@record_class
class Sent:
    """A journal line: a request is about to be sent, with the most tokens and USD that it can take."""

    call: str = stored(read=_name)
    attempt: int = stored(limits=_COUNT)
    model: str
    prompt: str
    sample: int
    tokens_at_most: int = stored(limits=_COUNT)
    usd_at_most: float = stored(limits=_USD)


@record_class
class Answered:
    """A journal line: the packed answer to a request, or one from a folder of answers (`cached`).

    uncounted: the vendor's count was missing or impossible, so the worst case is charged.
    """

    call: str = stored(read=_name)
    attempt: int = stored(limits=_COUNT)
    model: str
    version: str
    prompt: str
    sample: int
    tokens_in: int = stored(limits=_COUNT)
    tokens_out: int = stored(limits=_COUNT)
    usd: float = stored(limits=_USD)
    seconds: float
    finish: str
    answer: str
    cached: bool = False
    uncounted: bool = False


@record_class
class Failed:
    """A journal line: a request failed. `unpaid`: it certainly cost nothing."""

    call: str = stored(read=_name)
    attempt: int = stored(limits=_COUNT)
    model: str
    fault: str
    why: str
    unpaid: bool
    seconds: float


@record_class
class GivenUp:
    """A journal line: a call is not tried again. `limit`: because of a limit of the run, not because of the model."""

    call: str = stored(read=_name)
    model: str
    why: str
    limit: bool = False


CallLine = Prompt | Sent | Answered | Failed | GivenUp
_KINDS: dict[str, type[CallLine]] = {"prompt": Prompt, "sent": Sent, "answered": Answered, "failed": Failed}
_KINDS["given up"] = GivenUp


def to_json(line: CallLine) -> JsonObject:
    """The journal's JSON object for a line, `kind` first. Most flags that are not set are left out."""
    kind = next(name for name, line_class in _KINDS.items() if isinstance(line, line_class))
    values = {f.name: getattr(line, f.name) for f in fields(line)}
    return {"kind": kind} | {name: v for name, v in values.items() if v is not False or name in ("unpaid", "limit")}


def read_line(line: Mapping[str, Any]) -> CallLine | None:
    """The call line in a journal line; None if the line is not about calls.

    Lines of older runs have `state` instead of `kind`, and the `kind` of a failure is its fault.
    """
    values = dict(line)
    if "prompt_text" in line:
        values = {"prompt": line["prompt_text"], "messages": line.get("messages")}
        kind = "prompt"
    elif "state" in line:
        kind = values.pop("state")
        if kind == "failed":
            values["fault"] = values.pop("kind", None)
    else:
        kind = values.pop("kind", "")
    if not isinstance(kind, str) or kind not in _KINDS:
        return None
    return from_json(_KINDS[kind], values, f"{JOURNAL}, {kind} {shown(values.get('call', ''))}")


def answered_line(call: LlmCall, attempt: int, reply: Reply, price: Price, most: tuple[int, int]) -> Answered:
    """The line for an answer. If the reply's token count is missing or impossible, it charges the worst case."""
    counted = 0 < reply.tokens_in < ABSURD and bool(reply.text) <= reply.tokens_out < ABSURD
    tokens_in, tokens_out = (reply.tokens_in, reply.tokens_out) if counted else most
    asked = (call.name, attempt, call.model, reply.version, call.prompt, call.sample)
    cost = (tokens_in, tokens_out, price.usd(tokens_in, tokens_out), round(reply.seconds, 3))
    return Answered(*asked, *cost, reply.finish, pack(reply.text), uncounted=not counted)


@dataclass
class CallLog:
    """The calls in a journal's lines. Of an answer and a give-up of the same call, only the first one counts."""

    prompts: dict[str, Prompt] = field(default_factory=dict)
    sent: dict[tuple[str, int], Sent] = field(default_factory=dict)  # by call and attempt
    ended: dict[tuple[str, int], Answered | Failed] = field(default_factory=dict)  # by call and attempt
    answers: dict[str, Answered] = field(default_factory=dict)  # by call: the first one that arrived
    given_up: dict[str, GivenUp] = field(default_factory=dict)
    spent: CallCost = field(default_factory=CallCost)

    def take(self, lines: Iterable[CallLine]) -> None:
        for line in lines:
            match line:
                case Prompt():
                    self.prompts[line.prompt] = line
                case Sent():
                    self.sent[line.call, line.attempt] = line
                    self.spent += CallCost(requests=1) + self._reserved(line)
                case Answered():
                    if line.call not in self.given_up:
                        self.answers.setdefault(line.call, line)
                    if (line.call, line.attempt) in self.sent:
                        self._end(line)
                        self.spent += CallCost(tokens=line.tokens_in + line.tokens_out, usd=line.usd)
                case Failed():
                    self._end(line)
                    if not line.unpaid:
                        self.spent += self._reserved(line)
                case GivenUp():
                    if line.call not in self.answers:
                        self.given_up[line.call] = line

    def _end(self, line: Answered | Failed) -> None:
        """Record the end of an attempt and free its reservation. A late answer ends it a second time."""
        key = line.call, line.attempt
        before = self.ended.get(key)
        self.ended[key] = line
        if before is None or (isinstance(before, Failed) and not before.unpaid):
            self.spent += self._reserved(line, -1)

    def _reserved(self, line: Sent | Answered | Failed, sign: int = 1) -> CallCost:
        sent = self.sent.get((line.call, line.attempt))
        if sent is None:
            raise damaged(JOURNAL, f"failed {line.call}", f"is of attempt {line.attempt}, which was not sent")
        return CallCost(possibly_tokens=sign * sent.tokens_at_most, possibly_usd=sign * sent.usd_at_most)

    def settled(self, name: str) -> bool:
        """True if a call is answered or given up, so that nothing more is sent for it."""
        return name in self.answers or name in self.given_up

    def model_of(self, name: str) -> str:
        """The model that a call asked; "" if the log does not know the call."""
        of_call = self.answers.get(name) or self.given_up.get(name) or self.sent.get((name, 1))
        return of_call.model if of_call else ""

    def text(self, name: str) -> str:
        """The text of a call's answer. Raises KeyError if it has none, and like `unpack`."""
        return unpack(self.answers[name].answer)

    def messages(self, prompt: str) -> Messages:
        if prompt not in self.prompts:
            raise damaged(JOURNAL, "", f"lacks the prompt {shown(prompt)}")
        return tuple((role, unpack(packed)) for role, packed in self.prompts[prompt].messages)

    def attempts(self, name: str) -> int:
        return sum(call == name for call, _ in self.sent)

    def under_way(self) -> list[str]:
        """Requests that were sent but have neither an answer nor a failure, as `CALL attempt N`."""
        return [f"{call} attempt {attempt}" for call, attempt in self.sent if (call, attempt) not in self.ended]

    def overcounted(self) -> CallCost:
        """The answers for which the server counted more than their requests can take, and the excess."""
        over = CallCost()
        for key, line in self.ended.items():
            if isinstance(line, Answered):
                sent = self.sent[key]
                tokens = max(line.tokens_in + line.tokens_out - sent.tokens_at_most, 0)
                usd = max(line.usd - sent.usd_at_most, 0.0)
                over += CallCost(requests=int(bool(tokens or usd)), tokens=tokens, usd=usd)
        return over

    def samples(self, generation: int) -> Counter[tuple[str, str]]:
        """The number of calls that asked each (prompt, model) before a generation."""
        lines: list[Sent | Answered] = [*self.sent.values(), *self.answers.values()]
        asked = {(line.call, line.prompt, line.model) for line in lines}
        return Counter((prompt, model) for call, prompt, model in asked if parts_of(call)[0] < generation)

    def of_generation(self, generation: int) -> list[str]:
        """The names of a generation's settled calls, sorted."""
        names = {*self.answers, *self.given_up}
        return sorted((name for name in names if parts_of(name)[0] == generation), key=parts_of)


def call_log(lines: Iterable[Mapping[str, Any]]) -> CallLog:
    log = CallLog()
    log.take(line for raw in lines if (line := read_line(raw)))
    return log
