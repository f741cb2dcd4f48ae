"""From journey events to journeys: when a request was in which phase, in which scheduler steps, and how long it waited.

The state machine and the durations are those published with this trace format. Intervals are inclusive ranges of
scheduler steps.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import NamedTuple

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
UNSOUND = "journeys with more steps than tokens, or than can be, left out of the batches"
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


@dataclass(slots=True)
class Journey:
    """What the events of one request say. Times in ns on the server's clock, None if the event is missing.

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
        """Whether all four of QUEUED, SCHEDULED, FIRST_TOKEN and FINISHED were recorded."""
        return None not in (self.queued_ns, self.scheduled_ns, self.first_token_ns, self.finished_ns)

    @property
    def usable(self) -> bool:
        """Whether durations can be read off it: complete, ended normally, and with times in the order of its events.

        An abort after the first token is complete, but did not end normally.
        """
        return self.complete and self.status in ENDED_NORMALLY and self.ordered

    @property
    def sound(self) -> bool:
        """Whether it ran in no more steps than its tokens allow: at least one token per step, recomputation included.

        An abort may be one step over.
        """
        tokens = max(self.prompt, 0) + max(self.outputs, 0)
        most = (tokens + 1) * (self.preemptions + 1) + 1
        steps, prefill = self.steps(), self.steps(prefill=True)
        return tokens <= MOST_TOKENS and steps <= min(most, MOST_STEPS) and prefill <= MOST_PREFILL_STEPS

    def steps(self, prefill: bool = False) -> int:
        """How many steps it ran in; with `prefill` only those of its prefills."""
        return sum(i.end - i.start + 1 for i in self.intervals if i.prefill or not prefill)


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
        if opened is None:
            return
        prefill, start, base, there, resumed, since_ns = opened
        opened = None
        if step < start:
            return
        tokens = max(done - base, 0) if prefill else 0
        journey.intervals.append(Interval(prefill, start, step, tokens, 1 + decoded, there, resumed, since_ns, at_ns))
        decoded += 0 if prefill else step - start + 1

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
            if preempted_ns is not None and decoding:
                journey.decode_gap_ns += at_ns - preempted_ns
            elif preempted_ns is not None:
                journey.prefill_gap_ns += at_ns - preempted_ns
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
    _judge(journey, decoded, preempted_ns is not None, late, tally)
    return journey


def _judge(journey: Journey, decoded: int, waiting: bool, late: bool, tally: Counter[str]) -> None:
    """Set `ordered`, and count in `tally` what is wrong with the journey."""
    times = (journey.queued_ns, journey.scheduled_ns, journey.first_token_ns, journey.finished_ns)
    recorded = [ns for ns in times if ns is not None]
    journey.ordered = recorded == sorted(recorded) and not late
    tally[OUT_OF_ORDER] += not journey.ordered
    tally[UNSOUND] += not journey.sound
    tally[NO_RESUME] += waiting and journey.status in ENDED_NORMALLY
    if journey.usable and journey.outputs != NONE:
        # Steps may exceed tokens only after a preemption: a recomputation in several chunks has steps without a token.
        extra = 1 + decoded - journey.outputs
        tally[NOT_ADDING_UP] += extra != 0 and not (journey.preemptions and extra > 0)


class Durations(NamedTuple):
    """Durations of a complete journey in us, on the server's clock: queueing until the first SCHEDULED, TTFT and E2E
    since QUEUED, prefill and decode processing without the gaps of preemptions. Named like their columns."""

    queueing_us: float
    server_ttft_us: float
    prefill_processing_us: float
    decode_processing_us: float
    processing_us: float
    server_e2e_us: float


def durations(journey: Journey) -> Durations | None:
    """None if one of the four events is missing."""
    queued, scheduled, first = journey.queued_ns, journey.scheduled_ns, journey.first_token_ns
    finished = journey.finished_ns
    if queued is None or scheduled is None or first is None or finished is None:
        return None
    prefill = first - scheduled - journey.prefill_gap_ns
    decode = finished - first - journey.decode_gap_ns
    times = (scheduled - queued, first - queued, prefill, decode, prefill + decode, finished - queued)
    return Durations(*(ns / 1e3 for ns in times))
