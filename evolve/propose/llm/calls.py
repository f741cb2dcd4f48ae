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
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from evolve.propose.llm.client import Fault, Reply
from evolve.propose.llm.prices import Price

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


@dataclass(frozen=True, slots=True)
class Prompt:
    """A journal line: the messages that calls share, packed, under the name `prompt`."""

    prompt: str
    messages: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Sent:
    """A journal line: a request goes out, which may take so many tokens and cost so much at most."""

    call: str
    attempt: int
    model: str
    prompt: str
    sample: int
    tokens_at_most: int
    usd_at_most: float


@dataclass(frozen=True, slots=True)
class Answered:
    """A journal line: a request's answer, packed. `cached`: it is from a folder of answers and was not asked for.
    `uncounted`: the vendor's count of tokens was missing or impossible, and the worst case was charged."""

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
    """A journal line: a request failed. `unpaid`: it surely cost nothing."""

    call: str
    attempt: int
    model: str
    fault: str
    why: str
    unpaid: bool
    seconds: float


@dataclass(frozen=True, slots=True)
class GivenUp:
    """A journal line: a call that is not tried again. `limit`: a limit of the run would have been passed, so it is not
    the model's fault."""

    call: str
    model: str
    why: str
    limit: bool = False


CallLine = Prompt | Sent | Answered | Failed | GivenUp
_KINDS: dict[str, type[CallLine]] = {
    "prompt": Prompt, "sent": Sent, "answered": Answered, "failed": Failed, "given up": GivenUp,
}  # fmt: skip


def to_json(line: CallLine) -> dict[str, Any]:
    """The line as the journal keeps it, its `kind` first; flags that are not set are left out."""
    kind = next(name for name, known in _KINDS.items() if isinstance(line, known))
    values = {f.name: getattr(line, f.name) for f in fields(line)}
    return {"kind": kind} | {name: v for name, v in values.items() if v is not False or name in ("unpaid", "limit")}


def read_line(line: Mapping[str, Any]) -> CallLine | None:
    """The call line that a journal line holds; None for a line that is not about calls.

    Lines of older runs have `state` instead of `kind`, and a failure's `kind` is its fault.
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


@dataclass
class Book:
    """What the journal says about calls; `take` reads one more of its lines."""

    prompts: dict[str, Prompt] = field(default_factory=dict)
    sent: dict[tuple[str, int], Sent] = field(default_factory=dict)  # by call and attempt
    ended: dict[tuple[str, int], Answered | Failed] = field(default_factory=dict)
    answers: dict[str, Answered] = field(default_factory=dict)  # by call: the first that came
    given_up: dict[str, GivenUp] = field(default_factory=dict)
    spent: Spent = Spent()

    def take(self, lines: Iterable[CallLine]) -> None:
        for line in lines:
            match line:
                case Prompt():
                    self.prompts[line.prompt] = line
                case Sent():
                    self.sent[line.call, line.attempt] = line
                    self.spent += Spent(requests=1) + self._reserved(line)
                case Answered():
                    if line.call not in self.given_up:
                        self.answers.setdefault(line.call, line)
                    if (line.call, line.attempt) in self.sent:
                        self._end(line)
                        self.spent += Spent(tokens=line.tokens_in + line.tokens_out, usd=line.usd)
                case Failed():
                    self._end(line)
                    if not line.unpaid:
                        self.spent += self._reserved(line)
                case GivenUp():
                    if line.call not in self.answers:
                        self.given_up[line.call] = line

    def _end(self, line: Answered | Failed) -> None:
        """An attempt is over: what was reserved for it is free again. A late answer ends it a second time."""
        key = line.call, line.attempt
        before = self.ended.get(key)
        self.ended[key] = line
        if before is None or (isinstance(before, Failed) and not before.unpaid):
            self.spent += self._reserved(line, -1)

    def _reserved(self, line: Sent | Answered | Failed, sign: int = 1) -> Spent:
        sent = self.sent[line.call, line.attempt]
        return Spent(possibly_tokens=sign * sent.tokens_at_most, possibly_usd=sign * sent.usd_at_most)

    def settled(self, name: str) -> bool:
        """Whether nothing more is to be sent for this call."""
        return name in self.answers or name in self.given_up

    def text(self, name: str) -> str:
        """The answer to a call that has one."""
        return unpack(self.answers[name].answer)

    def under_way(self) -> list[str]:
        """Requests that were sent and that nothing more is known about, as `CALL attempt N`."""
        return [f"{call} attempt {attempt}" for call, attempt in self.sent if (call, attempt) not in self.ended]

    def attempts(self, name: str) -> int:
        """How many requests were sent for a call."""
        return sum(call == name for call, _ in self.sent)

    def samples(self, generation: int) -> Counter[tuple[str, str]]:
        """How often each (prompt, model) was asked before a generation."""
        lines: list[Sent | Answered] = [*self.sent.values(), *self.answers.values()]
        asked = {(line.call, line.prompt, line.model) for line in lines}
        return Counter((prompt, model) for call, prompt, model in asked if int(call.split("/")[0]) < generation)

    def of_generation(self, generation: int) -> list[str]:
        """The names of a generation's settled calls, in order."""
        names = {*self.answers, *self.given_up}
        return sorted((n for n in names if int(n.split("/")[0]) == generation), key=order)

    def messages(self, prompt: str) -> Messages:
        """The messages of that name."""
        return tuple((role, unpack(packed)) for role, packed in self.prompts[prompt].messages)


def order(name: str) -> tuple[int, str, int]:
    """The sort key of a call's name."""
    generation, purpose, number = name.split("/")
    return int(generation), purpose, int(number)


def prompt_line(call: Call) -> Prompt:
    """The line with a call's messages."""
    return Prompt(call.prompt, tuple((role, pack(text)) for role, text in call.messages))


def sent_line(call: Call, attempt: int, most: Spent) -> Sent:
    """The line before a request goes out, with the most that it may take."""
    return Sent(call.name, attempt, call.model, call.prompt, call.sample, most.possibly_tokens, most.possibly_usd)


def answered_line(call: Call, attempt: int, reply: Reply, price: Price, most: tuple[int, int]) -> Answered:
    """The line of an answer. If the reply's token count is missing or impossible, charge the worst case."""
    counted = 0 < reply.tokens_in < ABSURD and bool(reply.text) <= reply.tokens_out < ABSURD
    tokens_in, tokens_out = (reply.tokens_in, reply.tokens_out) if counted else most
    return Answered(
        call.name, attempt, call.model, reply.version, call.prompt, call.sample, tokens_in, tokens_out,
        price.usd(tokens_in, tokens_out), round(reply.seconds, 3), reply.finish, pack(reply.text),
        uncounted=not counted,
    )  # fmt: skip


def failed_line(call: Call, attempt: int, fault: Fault, seconds: float) -> Failed:
    """The line of a request that failed."""
    return Failed(call.name, attempt, call.model, fault.kind, fault.why, fault.unpaid, round(seconds, 3))


def calls_of(lines: Sequence[Mapping[str, Any]]) -> Book:
    """The book that a journal's lines hold."""
    book = Book()
    book.take([line for raw in lines if (line := read_line(raw))])
    return book
