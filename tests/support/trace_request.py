"""What the small engine knows of a request and of a step while they are on their way."""

from __future__ import annotations

from trace_load import Prompt, chain, output_tokens
from trace_records import BLOCK, Admission, Entry, Journey, Summary


class Request:
    """A request in the engine. `outputs` are processed tokens, `pending` those of steps in flight."""

    def __init__(self, index: int, identity: str, prompt: Prompt, limit: int) -> None:
        self.index, self.core_id, self.prompt, self.limit = index, identity, prompt, limit
        self.total = len(prompt.tokens)
        self.tokens = prompt.tokens  # copied when the answer's are appended
        self.digests = prompt.digests
        self.outputs = self.pending = self.computed = self.cached = self.high = self.preemptions = 0
        self.effective = self.trigger = 0
        self.blocks: list[int] = []
        self.steps: list[int] = []
        self.token_ns: list[int] = []
        self.admissions: list[Admission] = []
        self.events: list[Journey] = []
        self.running = self.done = False
        self.catching = True
        self.queued_ns = 0
        self.scheduled_ns: int | None = None
        self.first_ns: int | None = None

    def note(self, name: str, ns: int, step: int, detail: str | None = None) -> None:
        phase = "WAITING" if name == "QUEUED" else "DECODE" if self.outputs else "PREFILL"
        self.events.append(Journey(name, ns, step, phase, self.high, self.outputs, self.preemptions, detail))

    def full(self, tokens: int) -> list[bytes]:
        """Digests of the full blocks among at least the first `tokens` known tokens."""
        if tokens // BLOCK > len(self.digests):
            if self.digests is self.prompt.digests:
                self.tokens, self.digests = list(self.tokens), list(self.digests)
            known = len(self.tokens) - self.total
            self.tokens += output_tokens(self.index, known, self.outputs)
            chain(self.tokens, self.digests)
        return self.digests


class Step:
    """A scheduled batch on its way: (request, tokens, whether it yields a token), and what will be told of it."""

    batch: list[tuple[Request, int, bool]]
    entries: list[Entry]
    summary: Summary
    exec_ns: int
    started_ns: int
    ended_ns: int
    sampled: bool
    rich: bool
