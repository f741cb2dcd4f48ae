"""The log of calls: what a journal's lines about calls add up to, and what was spent."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from evolve.search.llm.calls import (
    Answered,
    CallCost,
    CallLine,
    Failed,
    GivenUp,
    Messages,
    Prompt,
    Sent,
    read_line,
    unpack,
)


@dataclass
class CallLog:
    """What the journal says about calls. If a call has both an answer and a give-up, only the first one counts."""

    prompts: dict[str, Prompt] = field(default_factory=dict)
    sent: dict[tuple[str, int], Sent] = field(default_factory=dict)  # by call and attempt
    ended: dict[tuple[str, int], Answered | Failed] = field(default_factory=dict)  # by call and attempt
    answers: dict[str, Answered] = field(default_factory=dict)  # by call: the first one that arrived
    given_up: dict[str, GivenUp] = field(default_factory=dict)
    spent: CallCost = field(default_factory=CallCost)

    def take(self, lines: Iterable[CallLine]) -> None:
        """Take in further lines, in the journal's order."""
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
        """Record the end of an attempt and free what was reserved for it. A late answer ends it a second time."""
        key = line.call, line.attempt
        before = self.ended.get(key)
        self.ended[key] = line
        if before is None or (isinstance(before, Failed) and not before.unpaid):
            self.spent += self._reserved(line, -1)

    def _reserved(self, line: Sent | Answered | Failed, sign: int = 1) -> CallCost:
        sent = self.sent[line.call, line.attempt]
        return CallCost(possibly_tokens=sign * sent.tokens_at_most, possibly_usd=sign * sent.usd_at_most)

    def settled(self, name: str) -> bool:
        """Whether a call is answered or given up, so that nothing more is sent for it."""
        return name in self.answers or name in self.given_up

    def model_of(self, name: str) -> str:
        """The model that a call asked; "" if the log does not know the call."""
        of_call = self.answers.get(name) or self.given_up.get(name) or self.sent.get((name, 1))
        return of_call.model if of_call else ""

    def text(self, name: str) -> str:
        """The text of a call's answer. Raises KeyError if it has none."""
        return unpack(self.answers[name].answer)

    def under_way(self) -> list[str]:
        """Requests that were sent but have neither an answer nor a failure, as `CALL attempt N`."""
        return [f"{call} attempt {attempt}" for call, attempt in self.sent if (call, attempt) not in self.ended]

    def overcounted(self) -> CallCost:
        """The answers for which the server counted more than their requests can take, and what it counted beyond."""
        over = CallCost()
        for key, line in self.ended.items():
            if isinstance(line, Answered):
                sent = self.sent[key]
                tokens = max(line.tokens_in + line.tokens_out - sent.tokens_at_most, 0)
                usd = max(line.usd - sent.usd_at_most, 0.0)
                over += CallCost(requests=int(bool(tokens or usd)), tokens=tokens, usd=usd)
        return over

    def attempts(self, name: str) -> int:
        """How many requests were sent for a call."""
        return sum(call == name for call, _ in self.sent)

    def samples(self, generation: int) -> Counter[tuple[str, str]]:
        """How many calls asked each (prompt, model) before a generation."""
        lines: list[Sent | Answered] = [*self.sent.values(), *self.answers.values()]
        asked = {(line.call, line.prompt, line.model) for line in lines}
        return Counter((prompt, model) for call, prompt, model in asked if int(call.split("/")[0]) < generation)

    def of_generation(self, generation: int) -> list[str]:
        """The names of a generation's settled calls, sorted."""
        names = {*self.answers, *self.given_up}
        return sorted((n for n in names if int(n.split("/")[0]) == generation), key=order)

    def messages(self, prompt: str) -> Messages:
        """The messages with this name."""
        return tuple((role, unpack(packed)) for role, packed in self.prompts[prompt].messages)


def order(name: str) -> tuple[int, str, int]:
    """The sort key of a call's name."""
    generation, purpose, number = name.split("/")
    return int(generation), purpose, int(number)


def call_log(lines: Sequence[Mapping[str, Any]]) -> CallLog:
    """The log of all calls in a journal's lines."""
    log = CallLog()
    log.take([line for raw in lines if (line := read_line(raw))])
    return log
