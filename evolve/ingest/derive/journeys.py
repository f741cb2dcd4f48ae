"""From journey events to lives: when a request was in which phase, in which scheduler steps, and how long it waited.

The state machine and the labels are those that the owners of this trace format publish for it. Intervals are inclusive
ranges of scheduler steps.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import numpy as np

from evolve.ingest.columns import NONE, Columns
from evolve.ingest.sources.traces import STATUSES

QUEUED, SCHEDULED, FIRST_TOKEN, PREEMPTED, FINISHED = range(5)
RESUME = 1
WHOLE = {STATUSES.index("stopped"), STATUSES.index("length")}

MOST_TOKENS = 10_000_000  # of one request: the longest contexts that models have
MOST_STEPS = 1_000_000  # of one request; a step is milliseconds, so this is hours
MOST_PREFILL_STEPS = 20_000  # of one request: ten million tokens in chunks of 512
MOST_STEPS_IN_ALL = 100_000_000  # of all requests of a run together: 400,000 answers of 250 tokens
UNSOUND = "journeys with more steps than tokens, or than can be, left out of the batches"
TOO_MANY = f"journeys beyond {MOST_STEPS_IN_ALL:,} steps of all of them, left out of the batches"
REPEATED = "journey events that were there before, dropped"
OUT_OF_ORDER = "journeys whose times contradict their steps"
NO_RESUME = "journeys preempted without being resumed"
NO_PREEMPTION = "journeys resumed without being preempted"
NOT_ADDING_UP = "journeys whose steps and tokens do not add up"


@dataclass(frozen=True, slots=True)
class Interval:
    """Steps `start` to `end` in one phase. `tokens`: prompt tokens covered in a prefill, cache hits included.

    `before`: output tokens there were when a decode interval opened, by its steps; `there`: by the event that opened
    it, NONE where that does not say. `resumed`: after a preemption. `at_ns` and `until_ns`: when it was opened and
    closed, on the server's clock.
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
class Life:
    """What the events of one request say. Times in ns on the server's clock, None where the event is missing."""

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
        """All four of QUEUED, SCHEDULED, FIRST_TOKEN and FINISHED were seen."""
        return None not in (self.queued_ns, self.scheduled_ns, self.first_token_ns, self.finished_ns)

    @property
    def usable(self) -> bool:
        """Complete, and it ended by itself: an abort after the first token has all four events, too. Not where times
        contradict the order of the events: no duration can be read off them."""
        return self.complete and self.status in WHOLE and self.ordered

    @property
    def sound(self) -> bool:
        """The steps it took part in are no more than its tokens allow: at least a token a step, recomputation included.
        An abort may be one over."""
        tokens = max(self.prompt, 0) + max(self.outputs, 0)
        most = (tokens + 1) * (self.preemptions + 1) + 1
        steps, prefill = self.steps(), self.steps(prefill=True)
        return tokens <= MOST_TOKENS and steps <= min(most, MOST_STEPS) and prefill <= MOST_PREFILL_STEPS

    def steps(self, prefill: bool = False) -> int:
        """How many steps it took part in, or of these only those of its prefills."""
        return sum(i.end - i.start + 1 for i in self.intervals if i.prefill or not prefill)


def lives(journeys: Columns, tally: Counter[str]) -> list[Life]:
    """A life for every request that has events, in order of request number; oddities are counted."""
    count = len(journeys["request"])
    order = np.lexsort((journeys["ts_ns"], journeys["step"], journeys["request"]))
    table = {name: column[order].tolist() for name, column in journeys.items()}
    out: list[Life] = []
    begin = 0
    for i in range(1, count + 1):
        if i == count or table["request"][i] != table["request"][begin]:
            if count:
                out.append(_life(table, begin, i, tally))
            begin = i
    return out


def _life(t: dict[str, list[int]], begin: int, end: int, tally: Counter[str]) -> Life:
    life = Life(t["request"][begin])
    opened: tuple[bool, int, int, int, bool, int] | None = None  # prefill, start, base, there, resumed, at_ns
    decoded = 0
    last: tuple[int, int, int] | None = None
    gone_at: int | None = None
    late = False

    def close(step: int, done: int, at: int) -> None:
        nonlocal opened, decoded
        if opened is None:
            return
        prefill, start, base, there, resumed, since = opened
        opened = None
        if step < start:
            return
        tokens = max(done - base, 0) if prefill else 0
        life.intervals.append(Interval(prefill, start, step, tokens, 1 + decoded, there, resumed, since, at))
        decoded += 0 if prefill else step - start + 1

    for i in range(begin, end):
        event, step, at, done = t["event"][i], t["step"][i], t["ts_ns"][i], t["prefill_done"][i]
        if (event, step, at) == last:
            tally[REPEATED] += 1
            continue
        last = (event, step, at)
        # a preemption may follow: the next batch is scheduled before the output of the last one is handled
        late |= life.finished_ns is not None and event in (SCHEDULED, FIRST_TOKEN)
        if t["prefill_total"][i] > 0 and life.prompt == NONE:
            life.prompt = t["prefill_total"][i]
        life.preemptions = max(life.preemptions, t["preemptions"][i])
        if event == QUEUED and life.queued_ns is None:
            life.queued_ns = at
        elif event == SCHEDULED:
            if life.scheduled_ns is None:
                life.scheduled_ns, life.first_step = at, step
            tally[NO_PREEMPTION] += t["kind"][i] == RESUME and gone_at is None
            if gone_at is not None:
                if life.first_token_ns is None:
                    life.prefill_gap_ns += at - gone_at
                else:
                    life.decode_gap_ns += at - gone_at
            decoding = life.first_token_ns is not None
            resumed = gone_at is not None or t["kind"][i] == RESUME
            opened = (not decoding, step, max(done, 0), t["decode_done"][i], resumed, at)
            gone_at = None
        elif event == FIRST_TOKEN and life.first_token_ns is None:
            life.first_token_ns = at
            close(step, done, at)
            opened = (False, step + 1, 0, 1, False, at)
        elif event == PREEMPTED:
            close(step - 1, done, at)
            gone_at = at
        elif event == FINISHED:
            close(step, done, at)
            life.finished_ns, life.status, life.last_step = at, t["status"][i], step
            life.outputs = t["decode_done"][i]
    _judge(life, decoded, gone_at, late, tally)
    return life


def _judge(life: Life, decoded: int, gone_at: int | None, late: bool, tally: Counter[str]) -> None:
    marks = [x for x in (life.queued_ns, life.scheduled_ns, life.first_token_ns, life.finished_ns) if x is not None]
    life.ordered = marks == sorted(marks) and not late
    tally[OUT_OF_ORDER] += not life.ordered
    tally[UNSOUND] += not life.sound
    tally[NO_RESUME] += gone_at is not None and life.status in WHOLE
    if life.usable and life.outputs != NONE:
        # a recomputation in several chunks takes steps that give no token
        tally[NOT_ADDING_UP] += 1 + decoded != life.outputs and not (life.preemptions and 1 + decoded > life.outputs)


@dataclass(frozen=True, slots=True)
class Labels:
    """Durations of a complete life in us, on the server's clock: queueing to the first SCHEDULED, ttft and e2e from
    QUEUED; prefill and decode processing without the gaps of preemptions."""

    queueing_us: float
    ttft_us: float
    prefill_processing_us: float
    decode_processing_us: float
    processing_us: float
    e2e_us: float


def labels(life: Life) -> Labels | None:
    """None where one of the four events is missing."""
    q, s, f, d = life.queued_ns, life.scheduled_ns, life.first_token_ns, life.finished_ns
    if q is None or s is None or f is None or d is None:
        return None
    prefill, decode = f - s - life.prefill_gap_ns, d - f - life.decode_gap_ns
    times = (s - q, f - q, prefill, decode, prefill + decode, d - q)
    return Labels(*(ns / 1e3 for ns in times))
