"""Prompts that arrive computed: an instance that only decodes, as the host's decode pool (sim/cluster/pd_events.go).

The KV blocks of a whole prompt are set aside when its transfer begins. Without room for them the host drops the
request. It is queued when the transfer ends, and admitted as a decode with a token and, where its last block is full, a
block; without one, all behind it wait. One that is preempted loses its blocks. It is admitted again with one token of
its prompt, computes the rest there, and has its first token then.

Prompts are never looked up here, so blocks are all alike: those set aside are only counted until the admission takes
them. The arguments are those of `exact_clock`; r is a request, i a slot.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from simulator.clock.batch import DROPPED, first_waiting, join, pop, seat
from simulator.clock.blocks import FREE, take
from simulator.clock.steps import with_chunk
from simulator.common.jit import njit
from simulator.serving.load import NEVER


class Transferred(NamedTuple):
    """The transfers of a queue, in its order; empty if prompts are computed here. `next_one` has one place."""

    begins_us: Any  # int64[requests]
    order: Any  # int64[requests]: the requests by the beginning of their transfers
    held: Any  # int64[requests]: blocks set aside now
    computed: Any  # bool[requests]: its first token is that of a decode; False: its prompt was computed here again
    next_one: Any  # int64[1]: place in `order`


def transfers(begins_us: np.ndarray) -> Transferred:
    """Transfers that begin at these times; of equal ones the first in the queue comes first."""
    n = len(begins_us)
    order = np.argsort(begins_us, kind="stable")
    return Transferred(begins_us, order, np.zeros(n, np.int64), np.zeros(n, bool), np.zeros(1, np.int64))


NO_TRANSFERS = transfers(np.zeros(0, np.int64))


@njit
def next_transfer_us(moved):  # type: ignore[no-untyped-def]
    """When the next transfer begins, NEVER if there is none."""
    at = moved.next_one[0]
    return moved.begins_us[moved.order[at]] if at < moved.order.size else NEVER


@njit
def reserve(q, rules, w, c):  # type: ignore[no-untyped-def]
    """Set the blocks of the next transfer's prompt aside, or drop the request."""
    moved = q.transferred
    r = moved.order[moved.next_one[0]]
    moved.next_one[0] += 1
    need = (np.int64(q.input_len[r]) + rules.block - 1) // rules.block
    if need > c.counts[FREE]:
        w.outcome[r] = DROPPED
        return
    c.counts[FREE] -= need
    moved.held[r] = need


@njit
def unreserve(q, c, r):  # type: ignore[no-untyped-def]
    """Give up what is set aside for request `r`."""
    c.counts[FREE] += q.transferred.held[r]
    q.transferred.held[r] = 0


@njit
def admit_transferred(q, rules, w, c, s, times, now, k, tokens_left, chunks, decodes, context):  # type: ignore[no-untyped-def]
    """Admissions from the head of the queue, until one finds no block. Returns chunks, decodes, and their contexts."""
    moved = q.transferred
    while s.running < rules.max_seqs and s.waiting > 0 and tokens_left > 0:
        r = first_waiting(w, s)
        size, held = np.int64(q.input_len[r]), moved.held[r]
        spare = held * rules.block - size if held > 0 else np.int64(0)
        if spare == 0 and c.counts[FREE] == 0:
            break
        pop(s)
        i = seat(w, s)
        join(w, s, i, r)
        unreserve(q, c, r)
        blocks = held + (1 if spare == 0 else 0)
        for b in range(blocks):
            w.table[i, b] = take(c.blocks, c.holder, c.counts, np.int64(-1))
        moved.computed[r] = held > 0
        done = size if held > 0 else np.int64(0)
        w.progress[i], w.granted[i], w.goal[i] = done, 1, done + 1
        w.held[i], w.spare[i] = blocks, blocks * rules.block - done - 1
        if held > 0:
            w.born[i], w.left[i] = k, max(q.output_len[r] - 1, 1)
            s.context += size
            decodes += 1
            context += size
        else:
            w.born[i] = NEVER
            s.filling += 1
            chunks = with_chunk(chunks, np.int64(1), np.int64(0), size)
        tokens_left -= 1
        times.start_us[r], times.begun_us[r], times.cached[r] = now, now, 0
    return chunks, decodes, context


@njit
def first_tokens(q, w, s, times, first, now, end_us):  # type: ignore[no-untyped-def]
    """The requests from place `first` on that were admitted `now` with their prompt have their first token at the end
    of the step; `decode_us` counts from there."""
    for j in range(first, s.running):
        i = w.order[j]
        r = w.who[i]
        if times.start_us[r] == now and w.progress[i] == q.input_len[r]:
            times.first_us[r], w.since[i] = end_us, s.elapsed
