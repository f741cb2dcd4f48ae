"""Journeys of requests from their events: phases, scheduler steps and waiting times.

The state machine and the durations are those published with this trace format. Intervals are inclusive ranges of
scheduler steps. An admission computes a request's tokens up to a point, after it was queued or preempted; journeys do
not tell the cached ones (see `cached`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from evolve.ingest.columns import NONE, Columns
from evolve.ingest.read.traces import JOURNEY, KINDS, STATUSES

QUEUED, SCHEDULED, FIRST_TOKEN, PREEMPTED, FINISHED = range(len(JOURNEY))
RESUME = KINDS.index("RESUME")
ENDED_NORMALLY = {STATUSES.index("stopped"), STATUSES.index("length")}

MOST_TOKENS = 10_000_000  # of one request: the longest contexts of any model
MOST_STEPS = 1_000_000  # of one request: hours, at milliseconds per step
MOST_PREFILL_STEPS = 20_000  # of one request: ten million tokens in chunks of 512
MOST_STEPS_IN_ALL = 100_000_000  # of all requests of a run: 400,000 answers of 250 tokens
IMPLAUSIBLE = "journeys with more steps than tokens, or than can be, left out of the batches"
TOO_MANY = f"journeys beyond {MOST_STEPS_IN_ALL:,} steps in all, left out of the batches"
REPEATED = "duplicate journey events, dropped"
OUT_OF_ORDER = "journeys whose times contradict their steps"
NO_RESUME = "journeys preempted without being resumed"
NO_PREEMPTION = "journeys resumed without being preempted"
NOT_ADDING_UP = "journeys whose steps and tokens do not add up"


@dataclass(frozen=True, slots=True)
class Interval:
    """Steps `start` to `end` in one phase, opened at `at_ns` and closed at `until_ns` on the server's clock.

    `tokens` are the prompt tokens covered in a prefill, cache hits included. Output tokens before a decode interval:
    `before` by counting its steps, `there` by the event that opened it (NONE if that does not say). `resumed`: it
    follows a preemption.
    """

    prefill: bool
    start: int
    end: int
    tokens: int
    before: int
    there: int
    resumed: bool
    at_ns: int
    until_ns: int

    @property
    def steps(self) -> int:
        return self.end - self.start + 1


@dataclass(slots=True)
class Journey:
    """The events of one request. Times in ns on the server's clock, None if the event is missing.

    `prompt` and `outputs` are tokens. `ordered` is false if times contradict the order of the events. The gaps are the
    times between preemptions and resumptions, before and after the first token.
    """

    request: int
    queued_ns: int | None = None
    scheduled_ns: int | None = None
    first_token_ns: int | None = None
    finished_ns: int | None = None
    status: int = NONE
    prompt: int = NONE
    outputs: int = NONE
    preemptions: int = 0
    first_step: int = NONE
    last_step: int = NONE
    ordered: bool = True
    prefill_gap_ns: int = 0
    decode_gap_ns: int = 0
    intervals: list[Interval] = field(default_factory=list)

    @property
    def complete(self) -> bool:
        """True if QUEUED, SCHEDULED, FIRST_TOKEN and FINISHED were recorded."""
        return None not in (self.queued_ns, self.scheduled_ns, self.first_token_ns, self.finished_ns)

    @property
    def usable(self) -> bool:
        """True if it has durations: complete, ended normally, and with times in the order of its events.

        An abort after the first token is complete, but did not end normally.
        """
        return self.complete and self.status in ENDED_NORMALLY and self.ordered

    @property
    def plausible(self) -> bool:
        """True if its tokens allow for its steps: at least one token per step, recomputation included.

        An abort may be one step over.
        """
        tokens = max(self.prompt, 0) + max(self.outputs, 0)
        most = (tokens + 1) * (self.preemptions + 1) + 1
        prefill = sum(i.steps for i in self.intervals if i.prefill)
        return tokens <= MOST_TOKENS and self.steps <= min(most, MOST_STEPS) and prefill <= MOST_PREFILL_STEPS

    @property
    def steps(self) -> int:
        return sum(i.steps for i in self.intervals)


def journeys_of(events: Columns, tally: Counter[str]) -> list[Journey]:
    """A journey for every request that has events, in order of request number; oddities are counted in `tally`."""
    order = np.lexsort((events["ts_ns"], events["step"], events["request"]))
    table = {name: column[order].tolist() for name, column in events.items()}
    requests = table["request"]
    journeys: list[Journey] = []
    begin = 0
    for end in range(1, len(requests) + 1):
        if end == len(requests) or requests[end] != requests[begin]:
            journeys.append(_journey(table, begin, end, tally))
            begin = end
    return journeys


def _journey(t: dict[str, list[int]], begin: int, end: int, tally: Counter[str]) -> Journey:
    """The journey of one request, from its events: rows `begin` to `end` of the sorted table."""
    journey = Journey(t["request"][begin])
    opened: tuple[bool, int, int, int, bool, int] | None = None  # prefill, start, base, there, resumed, at_ns
    decoded = 0  # steps of all decode intervals closed so far
    last: tuple[int, int, int] | None = None
    preempted_ns: int | None = None  # since when it has been waiting to be resumed
    late = False

    def close(step: int, done: int, at_ns: int) -> None:
        nonlocal opened, decoded
        if opened is not None and step >= opened[1]:
            prefill, start, base, there, resumed, since_ns = opened
            tokens = max(done - base, 0) if prefill else 0
            closed = Interval(prefill, start, step, tokens, 1 + decoded, there, resumed, since_ns, at_ns)
            journey.intervals.append(closed)
            decoded += 0 if prefill else closed.steps
        opened = None

    for i in range(begin, end):
        event, step, at_ns, done = t["event"][i], t["step"][i], t["ts_ns"][i], t["prefill_done"][i]
        if (event, step, at_ns) == last:
            tally[REPEATED] += 1
            continue
        last = (event, step, at_ns)
        # Only a preemption may follow FINISHED: the next batch is scheduled before the last output is handled.
        late |= journey.finished_ns is not None and event in (SCHEDULED, FIRST_TOKEN)
        if t["prefill_total"][i] > 0 and journey.prompt == NONE:
            journey.prompt = t["prefill_total"][i]
        journey.preemptions = max(journey.preemptions, t["preemptions"][i])
        if event == QUEUED and journey.queued_ns is None:
            journey.queued_ns = at_ns
        elif event == SCHEDULED:
            if journey.scheduled_ns is None:
                journey.scheduled_ns, journey.first_step = at_ns, step
            decoding = journey.first_token_ns is not None
            resumed = preempted_ns is not None or t["kind"][i] == RESUME
            tally[NO_PREEMPTION] += resumed and preempted_ns is None
            gap_ns = 0 if preempted_ns is None else at_ns - preempted_ns
            if decoding:
                journey.decode_gap_ns += gap_ns
            else:
                journey.prefill_gap_ns += gap_ns
            opened = (not decoding, step, max(done, 0), t["decode_done"][i], resumed, at_ns)
            preempted_ns = None
        elif event == FIRST_TOKEN and journey.first_token_ns is None:
            journey.first_token_ns = at_ns
            close(step, done, at_ns)
            opened = (False, step + 1, 0, 1, False, at_ns)
        elif event == PREEMPTED:
            close(step - 1, done, at_ns)
            preempted_ns = at_ns
        elif event == FINISHED:
            close(step, done, at_ns)
            journey.finished_ns, journey.status, journey.last_step = at_ns, t["status"][i], step
            journey.outputs = t["decode_done"][i]
    times = (journey.queued_ns, journey.scheduled_ns, journey.first_token_ns, journey.finished_ns)
    recorded = [ns for ns in times if ns is not None]
    journey.ordered = recorded == sorted(recorded) and not late
    tally[OUT_OF_ORDER] += not journey.ordered
    tally[IMPLAUSIBLE] += not journey.plausible
    tally[NO_RESUME] += preempted_ns is not None and journey.status in ENDED_NORMALLY
    if journey.usable and journey.outputs != NONE:
        # Steps may exceed tokens only after a preemption: a recomputation in several chunks has steps without a token.
        extra = 1 + decoded - journey.outputs
        tally[NOT_ADDING_UP] += extra != 0 and not (journey.preemptions and extra > 0)
    return journey


@dataclass(frozen=True, slots=True)
class Admission:
    """Steps `start` to `end`, which compute `target` tokens less the cached ones.

    `again`: a recomputation after the first token, of the prompt and the answer so far. `whole`: it ran to its end; if
    not, the request was preempted or aborted before. `at_ns` is the time of SCHEDULED, `until_ns` when the interval
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
        """True if it took one step."""
        return self.start == self.end


def admissions_of(journeys: Iterable[Journey], budget: int) -> tuple[list[Admission], list[tuple[int, int, int, int]]]:
    """The admissions of plausible journeys by first step, and the intervals of decoding.

    An interval is (request, start, end, tokens in the KV cache before step `start`). `budget`, the tokens per step,
    bounds the chunks of a recomputation if the journey does not show them.
    """
    admissions, decoding = [], []
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
                held += 1
                end = start + _recomputing_steps(i, decode[k + 1 :], journey, outputs, budget) - 1
                admissions.append(Admission(request, start, end, held, True, True, i.at_ns, i.until_ns))
                start = end + 1
                outputs += 1
            decoding.append((request, start, i.end, held))
            outputs += i.end - start + 1
    return sorted(admissions, key=lambda a: (a.start, a.at_ns, a.request)), decoding


def _recomputing_steps(i: Interval, following: Sequence[Interval], journey: Journey, outputs: int, budget: int) -> int:
    """The number of steps that recompute a resumed request: those of the interval that gave no token, and one.

    The interval's tokens follow from the count when the next interval opened: a token in flight at the preemption has
    arrived by then.
    """
    after = next((f.there for f in following if f.start > i.end), journey.outputs if journey.usable else NONE)
    recomputing = -(-(journey.prompt + outputs) // max(budget, 1))
    if after != NONE:
        recomputing = i.steps - (after - outputs) + 1
    return min(max(recomputing, 1), i.steps)
