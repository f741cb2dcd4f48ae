"""Admissions: every time a request's tokens were computed up to a point, after it was queued or preempted.

How many of them the prefix cache held is not in the journeys; `evidence.py` finds it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from evolve.ingest.columns import NONE
from evolve.ingest.derive.journeys import Interval, Life


@dataclass(frozen=True, slots=True)
class Admission:
    """Steps `start` to `end` compute `target` tokens less those that were cached.

    `again`: a recomputation after the first token, prompt and answer so far. `whole`: it got to its end; otherwise it
    was preempted or aborted on the way. Times in ns on the server's clock: of SCHEDULED, and when the interval closed.
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


def admissions(lives: Iterable[Life], budget: int) -> tuple[list[Admission], list[tuple[int, int, int, int]]]:
    """The admissions of sound journeys in order of their first step, and the stretches that only decode: (request,
    start, end, tokens in the KV cache before step `start`). `budget`: tokens of a step; it bounds a recomputation's
    chunks where the journey does not tell."""
    found, stretches = [], []
    for life in lives:
        prefill = [i for i in life.intervals if i.prefill]
        for i in prefill:
            whole = i is prefill[-1] and life.first_token_ns is not None
            found.append(Admission(life.request, i.start, i.end, life.prompt, False, whole, i.at_ns, i.until_ns))
        decode = [i for i in life.intervals if not i.prefill]
        there = 1  # output tokens
        for i in decode:
            start, held = i.start, life.prompt + there - 1
            if i.resumed:
                chunks = _chunks(i, decode, life, there, budget)
                held += 1
                found.append(Admission(life.request, start, start + chunks - 1, held, True, True, i.at_ns, i.until_ns))
                start += chunks
                there += 1
            stretches.append((life.request, start, i.end, held))
            there += i.end - start + 1
    return sorted(found, key=lambda a: (a.start, a.at_ns, a.request)), stretches


def _chunks(interval: Interval, decode: Sequence[Interval], life: Life, there: int, budget: int) -> int:
    """In how many steps a resumed request was recomputed: those of the interval that gave no token, and one. The tokens
    that it gave follow from those there were when the next one opened: a token under way when the request was preempted
    has come by then."""
    steps = interval.end - interval.start + 1
    later = [i.there for i in decode if i.start > interval.end]
    after = later[0] if later else life.outputs if life.usable else NONE
    if after != NONE:
        return min(max(steps - (after - there) + 1, 1), steps)
    return min(max(-(-(life.prompt + there) // max(budget, 1)), 1), steps)
