"""The plain clock: the host's event rules request by request, in the order in which they are written down.

Slow and obvious. It is the yardstick of the compiled clock, and what runs where that one cannot prove itself
equal. Batches are served in order of admission; cached blocks are a set of (owner, index).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

from simulator.fields import Active, BatchFields
from simulator.language.evaluate import evaluate
from simulator.language.ir import Program
from simulator.vm import clamps, to_ticks

Step = Callable[[list[Active]], float]


@dataclass
class Limits:
    """Engine limits. Tokens, but for `max_seqs` (requests) and `caching` (prefix caching on)."""

    max_seqs: int
    budget: int
    threshold: int = 0
    block: int = 16
    caching: bool = True


@dataclass
class _Request:
    row: int
    queued_us: int
    input_len: int
    output_len: int
    prompt: int
    group: int
    progress: int = 0
    new: int = 0
    target: int = 0  # progress at the end of the step's prompt chunk
    itl_us: list[int] = field(default_factory=list)


@dataclass
class Times:
    """int64 per request: admission, end of the step that finished the prompt, sum of decode steps; and counts."""

    start_us: np.ndarray
    first_us: np.ndarray
    decode_us: np.ndarray
    steps: int = 0
    clamped: int = 0


def no_times(n: int) -> Times:
    """Times of `n` requests, nothing known yet."""
    return Times(np.zeros(n, np.int64), np.zeros(n, np.int64), np.zeros(n, np.int64))


def step_function(program: Program, facts: Mapping[str, float]) -> Step:
    """`program`'s step time in microseconds as a plain function of the batch."""
    method = program.function("step_time")
    assert method is not None
    return lambda batch: evaluate(method, BatchFields(batch, facts))


class _Cache:
    """Prefix blocks seen so far; unlimited, so nothing is ever evicted."""

    def __init__(self, limits: Limits, shared_len: int) -> None:
        self.limits, self.shared_len = limits, shared_len
        self.blocks: set[tuple[str, int, int]] = set()

    def _key(self, r: _Request, index: int) -> tuple[str, int, int]:
        inside = (index + 1) * self.limits.block <= self.shared_len
        return ("group", r.group, index) if inside else ("prompt", r.prompt, index)

    def hit(self, r: _Request) -> int:
        """Cached tokens at the head of the prompt, whole blocks."""
        if not self.limits.caching:
            return 0
        count = 0
        while (count + 1) * self.limits.block <= r.input_len and self._key(r, count) in self.blocks:
            count += 1
        return count * self.limits.block

    def store(self, r: _Request, tokens: int) -> None:
        for index in range(tokens // self.limits.block):
            self.blocks.add(self._key(r, index))


def reference_clock(
    queued_us: np.ndarray,
    input_len: np.ndarray,
    output_len: np.ndarray,
    prompt: np.ndarray,
    group: np.ndarray,
    shared_len: int,
    limits: Limits,
    step: Step,
) -> Times:
    """Same meaning as `kernel.clock`: requests are rows in the order in which they are queued."""
    n = len(queued_us)
    out = no_times(n)
    columns = zip(*(a.tolist() for a in (queued_us, input_len, output_len, prompt, group)), strict=True)
    coming = [_Request(i, *row) for i, row in enumerate(columns)][::-1]
    waiting: list[_Request] = []
    running: list[_Request] = []
    cache = _Cache(limits, shared_len)
    now = 0
    while coming or waiting or running:
        if not waiting and not running:
            now = coming[-1].queued_us
        while coming and coming[-1].queued_us <= now:
            waiting.append(coming.pop())
        _form_batch(running, waiting, limits, cache, now, out)
        batch = [Active(r.input_len, r.progress, r.new) for r in running if r.new > 0]
        x = step(batch)
        out.clamped += bool(clamps(x, 1))
        out.steps += 1
        dt = int(to_ticks(x, 1))
        for r in running:
            if r.progress < r.input_len:
                r.progress = r.target
                if r.progress == r.input_len:
                    out.first_us[r.row] = now + dt
            elif r.new > 0:
                r.progress += 1
                r.itl_us.append(dt)
        for r in [r for r in running if r.progress >= r.input_len + max(r.output_len, 1) - 1]:
            running.remove(r)
            out.decode_us[r.row] = sum(r.itl_us)
        if running or waiting:
            now += dt  # else idle at once: the next arrival starts a step of its own
    return out


def _form_batch(
    running: list[_Request], waiting: list[_Request], limits: Limits, cache: _Cache, now: int, out: Times
) -> None:
    """Grant tokens to running requests in order, then admit from the head of the queue."""
    left = limits.budget
    for r in running:
        r.new = 0
    for r in running:
        if left <= 0:
            break
        if r.progress < r.input_len:
            r.new = _chunk(r.input_len - r.progress, left, limits)
            r.target = r.progress + r.new
            cache.store(r, r.target)
        else:
            r.new = 1
        left -= r.new
    while waiting and len(running) < limits.max_seqs and left > 0:
        r = waiting.pop(0)
        cached = cache.hit(r)
        r.new = _chunk(r.input_len - cached, left, limits)
        r.target = cached + r.new
        cache.store(r, r.target)
        left -= r.new
        out.start_us[r.row] = now
        running.append(r)


def _chunk(want: int, left: int, limits: Limits) -> int:
    if limits.threshold > 0:
        want = min(want, limits.threshold)
    return min(want, left)
