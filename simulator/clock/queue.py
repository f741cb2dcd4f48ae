"""The input of the compiled clocks, their results by request, and the ways they end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

# How a clock ends.
DONE = 0  # everything has happened
MORE = 1  # it reached the step limit: call again
HOSTILE = 2  # a step time outside [1, 10^10] us, or NaN
UNPROVEN = 3  # the fast clock cannot prove that it equals the exact one
STUCK = 4  # a request can never finish
ROOM = 5  # the exact clock needs room for more block keys


class Queue(NamedTuple):
    """Requests in the order in which they are queued, one array per column (see experiment/load.py)."""

    queued_us: Any
    input_len: Any  # tokens
    output_len: Any  # tokens
    prompt: Any  # which prompt it sends, -1 for one that is sent once
    group: Any  # which requests share its prefix, -1 for none
    shared_blocks: Any  # whole KV blocks of that prefix
    prompt_blocks: Any  # whole KV blocks of the prompt
    text_blocks: Any  # whole KV blocks of prompt and answer that prompts of the same text may have
    all_blocks: Any  # KV blocks of prompt and output
    deadline_us: Any  # when the client gives up, 0 for never
    # what prompts are made of (experiment.trace.Chains); empty if prompt and group say it
    piece_first: Any  # where a request's pieces begin in `piece`
    piece: Any
    piece_len: Any  # tokens
    transferred: Any  # clock.transferred.Transferred: when the KV blocks of prompts that come computed are on their way


class Rules(NamedTuple):
    """The limits, and what is known about the load beforehand."""

    max_seqs: int  # requests in a batch
    budget: int  # tokens in a step
    threshold: int  # most prompt tokens of a request in a step, 0 for no limit
    chunked: bool  # a request is admitted with a part of these tokens where the budget has no room for all
    block: int  # tokens in a KV block
    blocks: int  # KV blocks
    horizon_us: int
    caching: bool  # prefix caching is on
    turns: bool  # answers are found in the cache too
    watch: bool  # cached content may be evicted, so the fast clock has to count blocks
    once: bool  # the fast clock must not let the same content be cached twice
    patient: bool  # no client gives up
    hostile_stops: bool  # stop at a step time outside [1, 10^10] us
    ahead: bool  # a step is composed as the one before begins
    width: int  # token positions of a decode in a step: with its drafts, which it verifies
    rate: float  # tokens that it emits in a step on average
    transferred: bool  # prompts come computed
    busy: bool  # see EngineLimits


class Times(NamedTuple):
    """The results of a clock, per request."""

    start_us: Any  # last admission
    begun_us: Any  # begin of the step that it was admitted to
    first_us: Any  # end of the prompt's last step
    decode_us: Any  # sum of its decode steps
    cached: Any  # KV blocks found at the last admission


class QueueLog(NamedTuple):
    """Per step from number `first[0]` on: its duration in us and the tokens it decoded. Empty arrays: no log."""

    us: Any
    tokens: Any
    first: Any


class Gaps:
    """A histogram of step durations weighted by tokens decoded, into which the log is folded from time to time.

    Its size does not grow with the length of the run.
    """

    def __init__(self, wanted: bool) -> None:
        self.wanted = wanted
        self.log = QueueLog(np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(1, np.int64))
        self.reach = np.zeros(0, np.int64)
        self.us, self.tokens = np.zeros(0, np.int64), np.zeros(0, np.int64)
        self.kept = 0  # steps in the log that are not folded in yet

    def room(self, steps: int) -> QueueLog:
        """The log, grown to have room for `steps` more."""
        size = self.kept + steps
        if self.wanted and len(self.log.us) < size:
            grown = [np.zeros(size, np.int64) for _ in range(3)]
            for new, old in zip(grown, (self.log.us, self.log.tokens, self.reach), strict=True):
                new[: self.kept] = old[: self.kept]
            self.log, self.reach = QueueLog(grown[0], grown[1], self.log.first), grown[2]
        return self.log

    def fold(self, until: int, step: int) -> None:
        """Fold in the logged steps before number `until`; `step` is the first that is not logged yet."""
        if not self.wanted:
            return
        done, end = until - int(self.log.first[0]), step - int(self.log.first[0])
        self.us, self.tokens = histogram_of([(self.us, self.tokens), (self.log.us[:done], self.log.tokens[:done])])
        for column in (self.log.us, self.log.tokens, self.reach):
            column[: end - done] = column[done:end].copy()
        self.log.first[0] = until
        self.kept = end - done


def histogram(logs: Sequence[Gaps]) -> tuple[np.ndarray, np.ndarray]:
    """Durations in us, and tokens decoded in steps of each, of all logs together."""
    return histogram_of([(log.us, log.tokens) for log in logs])


def histogram_of(gaps: Sequence[tuple[np.ndarray, np.ndarray]]) -> tuple[np.ndarray, np.ndarray]:
    """Such histograms, or steps with their tokens, as one histogram."""
    none = np.zeros(0, np.int64)
    us, tokens = (np.concatenate(columns) for columns in zip((none, none), *gaps, strict=True))
    us, place = np.unique(us[tokens > 0], return_inverse=True)
    return us, np.bincount(place, weights=tokens[tokens > 0], minlength=len(us)).astype(np.int64)
