"""Admissions: every time a request's tokens were computed up to a point, after it was queued or preempted.

Journeys do not say how many of these tokens the prefix cache held; `evidence.py` works it out.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from evolve.ingest.columns import NONE, Columns
from evolve.ingest.derive.journeys import Interval, Journey

HOW = ("snapshot", "summary", "kv_events", "prompt", "short", "none")
"""How an admission's cached tokens are known; `evidence.py` explains each."""

EXACT = ("snapshot", "summary", "short")
"""Those of HOW that the engine recorded or that follow without doubt."""


@dataclass(frozen=True, slots=True)
class Admission:
    """Steps `start` to `end`, which compute `target` tokens less the cached ones.

    `again`: a recomputation after the first token, of the prompt and the answer so far. `whole`: it ran to its end; if
    not, the request was preempted or aborted on the way. `at_ns` is the time of SCHEDULED, `until_ns` when the interval
    closed, both on the server's clock.
    """

    request: int
    start: int
    end: int
    target: int
    again: bool
    whole: bool
    at_ns: int
    until_ns: int

    @property
    def single(self) -> bool:
        return self.start == self.end


@dataclass(slots=True)
class Cached:
    """Cached tokens of each admission, NONE while unknown, and how they are known (one of HOW)."""

    tokens: list[int]
    how: list[str]

    def settle(self, i: int, tokens: int, how: str) -> None:
        self.tokens[i], self.how[i] = tokens, how


@dataclass(frozen=True)
class Records:
    """What cached tokens can be worked out from.

    `core_ids`, `steps` and `snapshots` are those of `Traces`. `same_prompt[request]` is the number of the prompt's
    text, -1 if unknown; empty without client rows. `first_decode_steps` has the first decode step of every request.
    `epoch_offset_s` is wall clock minus server clock. `block` is the tokens of a KV block, `caching` whether the prefix
    cache is on, `asynchronous` whether scheduling is.
    """

    core_ids: Sequence[str]
    steps: Columns
    snapshots: Columns
    epoch_offset_s: float
    same_prompt: Sequence[int]
    first_decode_steps: np.ndarray
    block: int
    caching: bool
    asynchronous: bool


def admissions_of(journeys: Iterable[Journey], budget: int) -> tuple[list[Admission], list[tuple[int, int, int, int]]]:
    """The admissions of sound journeys by first step, and the stretches of decoding.

    A stretch is (request, start, end, tokens in the KV cache before step `start`). `budget`, the tokens per step,
    bounds the chunks of a recomputation if the journey does not show them.
    """
    admissions, stretches = [], []
    for journey in journeys:
        request = journey.request
        prefill = [i for i in journey.intervals if i.prefill]
        for i in prefill:
            whole = i is prefill[-1] and journey.first_token_ns is not None
            admissions.append(Admission(request, i.start, i.end, journey.prompt, False, whole, i.at_ns, i.until_ns))
        decode = [i for i in journey.intervals if not i.prefill]
        outputs = 1
        for k, i in enumerate(decode):
            start, held = i.start, journey.prompt + outputs - 1
            if i.resumed:
                following = (decode[n] for n in range(k + 1, len(decode)))
                end = start + _recomputing_steps(i, following, journey, outputs, budget) - 1
                held += 1
                admissions.append(Admission(request, start, end, held, True, True, i.at_ns, i.until_ns))
                start = end + 1
                outputs += 1
            stretches.append((request, start, i.end, held))
            outputs += i.end - start + 1
    return sorted(admissions, key=lambda a: (a.start, a.at_ns, a.request)), stretches


def _recomputing_steps(
    interval: Interval, following: Iterable[Interval], journey: Journey, outputs: int, budget: int
) -> int:
    """How many steps a resumed request was recomputed in: those of the interval that gave no token, and one.

    The interval's tokens follow from the count when the next interval opened: a token in flight at the preemption has
    arrived by then.
    """
    steps = interval.end - interval.start + 1
    at_the_end = journey.outputs if journey.usable else NONE
    after = next((i.there for i in following if i.start > interval.end), at_the_end)
    if after != NONE:
        return min(max(steps - (after - outputs) + 1, 1), steps)
    return min(max(-(-(journey.prompt + outputs) // max(budget, 1)), 1), steps)
