"""The exact clock's batch: running requests by slot, and how they leave it (blis-des-semantics 4.4 to 4.6).

The arguments are those of `exact_clock`: q the queue, w the batch (Exact), c the KV cache, cl the clients, s its state
(exact.STATE), t the program's step times; r is a request, i a slot, j a place in the batch.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from simulator import schema
from simulator.clock.blocks import FREE, KEY, name, release, take
from simulator.clock.clients import completed
from simulator.common.jit import inlined, njit
from simulator.serving.load import NEVER

UNFINISHED, COMPLETED, GAVE_UP = 0, 1, 2  # Exact.outcome
DROPPED = 4  # no room for a transferred prompt, see transferred.py; 3 is of ranks.py
FAR = 2**30  # more tokens, and more steps in one call, than any request has


class Exact(NamedTuple):
    """The state that the exact clock keeps between calls. Lengths in tokens, blocks are KV blocks."""

    # per request
    outcome: Any  # UNFINISHED, COMPLETED, GAVE_UP or DROPPED
    region: Any  # first key of a prompt that is sent once, -1 until its request is preempted
    # per group and per prompt
    group_key: Any  # first key of the group's blocks
    prompt_key: Any  # first key of the prompt's blocks
    # lists
    quitters: Any  # requests whose client may give up, by deadline
    stack: Any  # preempted requests, the next one to be admitted on top
    leaving: Any  # slots of requests whose last step has not ended, see `State.leaving`
    free_slots: Any
    order: Any  # slots of the running requests, in order of admission
    # per slot
    table: Any  # the request's blocks, in order
    who: Any  # its request
    progress: Any  # tokens computed before the step
    goal: Any  # progress at the end of the step, while in the prompt
    granted: Any  # new tokens in this step
    spare: Any  # room for tokens in the last block; FAR in a free slot
    held: Any  # number of blocks
    left: Any  # tokens to go, once the prompt is done; FAR in a free slot
    since: Any  # sum of step times when the prompt was done, plus the steps since in which it got no token, us
    born: Any  # first step after its prompt was done, NEVER before
    serial: Any  # number of its admission
    carry: Any  # float64: tokens that drafts owe it by their mean acceptance, below 1 unless the budget cut them


@njit
def lower(column, n):  # type: ignore[no-untyped-def]
    """Subtract 1 at the first `n` places and return the least of them. Compiled to vector instructions."""
    least = np.int32(2**31 - 1)
    for j in range(n):
        x = np.int32(column[j] - np.int32(1))
        column[j] = x
        least = min(least, x)
    return least


@njit
def lift(column, n):  # type: ignore[no-untyped-def]
    """Add 1 at the first `n` places."""
    for j in range(n):
        column[j] += np.int32(1)


@inlined
def piece_key(q, rules, r, i):  # type: ignore[no-untyped-def]
    """The key of block `i` of a prompt that is made of pieces: the piece that its last token is in, and which of the
    blocks that end in this piece it is."""
    j = ((i + 1) * rules.block - 1) // q.piece_len
    ends = q.piece_len // rules.block + 1  # the most blocks that end in a piece
    return np.int64(q.piece[q.piece_first[r] + j]) * ends + i - j * q.piece_len // rules.block


@inlined
def own_key(q, w, r):  # type: ignore[no-untyped-def]
    """The key of the first block of request `r`'s prompt after its shared prefix, or -1 if no request looks it up."""
    if q.prompt[r] >= 0:
        return np.int64(w.prompt_key[q.prompt[r]])
    return np.int64(w.region[r])


@inlined
def key_of(q, rules, w, r, i):  # type: ignore[no-untyped-def]
    """The key of block `i` of request `r`'s prompt, or of its answer, or -1 if no request looks it up."""
    if q.piece.size > 0:
        return piece_key(q, rules, r, i) if i < q.prompt_blocks[r] else np.int64(-1)
    shared = np.int64(q.shared_blocks[r])
    if i < shared:
        return np.int64(w.group_key[q.group[r]] + i)
    own = own_key(q, w, r)
    return own + i - shared if own >= 0 and i < q.text_blocks[r] else np.int64(-1)


@njit
def tell(q, rules, w, c, i):  # type: ignore[no-untyped-def]
    """The block that slot `i` last began is full with its answer, `w` being as before: a later turn may find it.

    Not if the slot holds no block of its prompt, which was cached whole, or if the block before cannot be found.
    """
    r, b = w.who[i], np.int64(w.held[i]) - 1
    key = key_of(q, rules, w, r, b)
    if key < 0 or w.progress[i] + w.spare[i] != (b + 1) * rules.block:
        return
    if b == 0 or c.blocks[w.table[i, b - 1], KEY] == key_of(q, rules, w, r, b - 1):
        name(c.blocks, c.holder, w.table[i, b], key)


@inlined
def first_waiting(w, s):  # type: ignore[no-untyped-def]
    """The first waiting request whose client has not given up."""
    while s.stacked > 0:
        r = np.int64(w.stack[s.stacked - 1])
        if w.outcome[r] == UNFINISHED:
            return r
        s.stacked -= 1
    while w.outcome[s.head] != UNFINISHED:
        s.head += 1
    return s.head


@inlined
def pop(s):  # type: ignore[no-untyped-def]
    """Take the first request out of the queue: see `first_waiting`."""
    if s.stacked > 0:
        s.stacked -= 1
    else:
        s.head += 1


@inlined
def seat(w, s):  # type: ignore[no-untyped-def]
    """Take a free slot."""
    s.slots -= 1
    i = np.int64(w.free_slots[s.slots])
    s.top = max(s.top, i + 1)
    return i


@inlined
def join(w, s, i, r):  # type: ignore[no-untyped-def]
    """Put request `r`, which is out of the queue, into slot `i` and last into the batch."""
    s.waiting -= 1
    w.order[s.running] = i
    s.running += 1
    w.who[i], w.serial[i] = r, s.serial
    s.serial += 1


@inlined
def leave(w, c, s, j):  # type: ignore[no-untyped-def]
    """Remove the request at place `j` from the batch and free its blocks and slot. The others keep their order."""
    i = w.order[j]
    if w.born[i] == NEVER:
        s.filling -= 1
    else:
        s.context -= w.progress[i]
    let_go(w, c, s, i)
    for other in range(j, s.running - 1):
        w.order[other] = w.order[other + 1]
    s.running -= 1


@inlined
def let_go(w, c, s, i):  # type: ignore[no-untyped-def]
    """Free slot `i` and its blocks."""
    release(c.blocks, c.counts, w.table[i], w.held[i])
    w.free_slots[s.slots] = i
    s.slots += 1
    w.spare[i], w.left[i] = FAR, FAR


@njit
def preempt(q, rules, w, c, s, log, reach, k):  # type: ignore[no-untyped-def]
    """Send the last request of the batch back to the head of the queue, to start from scratch."""
    i = w.order[s.running - 1]
    r = w.who[i]
    forget(w, log, reach, i, k)
    ours = np.int64(q.prompt_blocks[r]) - q.shared_blocks[r]
    if rules.caching and q.piece.size == 0 and q.prompt[r] < 0 and w.region[r] < 0 and ours > 0:
        # From now on the request looks up its blocks itself, so those that are full get their keys.
        w.region[r] = s.keys
        s.keys += ours
        stored = w.held[i] * rules.block - w.spare[i]
        if stored >= w.progress[i]:  # else its prompt was cached whole, and it holds no block of it
            for b in range(q.shared_blocks[r], min(stored // rules.block, np.int64(q.prompt_blocks[r]))):
                name(c.blocks, c.holder, w.table[i, b], key_of(q, rules, w, r, b))
    if s.running == 1 and s.leaving == 0:  # it has the whole cache, but for what waiting ones loaded, and is too large
        s.alone = s.alone + 1 if s.lone == r or c.tier.blocks > 0 else 1
        s.lone = r
    leave(w, c, s, s.running - 1)
    w.stack[s.stacked] = r
    s.stacked += 1
    s.waiting += 1
    s.preemptions += 1


@inlined
def stuck(q, rules, c, s, leaving):  # type: ignore[no-untyped-def]
    """True if the last request that was preempted alone is preempted for ever. `leaving`: clients may give up.

    With a tier others take turns with it, and what each finds differs from turn to turn. So nobody must have completed,
    and nothing been added to what is stored, while each was preempted thirty times, which is no proof but long enough.
    """
    times = 3 if c.tier.blocks == 0 else 30 * (s.waiting + 1)
    if s.alone < times or rules.horizon_us != NEVER or q.deadline_us[s.lone] != 0:
        return False
    return c.tier.blocks == 0 or not leaving


@njit
def give_up(w, c, s, log, reach, r):  # type: ignore[no-untyped-def]
    """The client of request `r` gives up: remove it from the batch or the queue."""
    w.outcome[r] = GAVE_UP
    for j in range(s.running):
        if w.who[w.order[j]] == r:
            forget(w, log, reach, w.order[j], s.step)
            leave(w, c, s, j)
            return
    s.waiting -= 1


@njit
def forget(w, log, reach, i, k):  # type: ignore[no-untyped-def]
    """Take the tokens that slot `i` decoded before step `k` out of the log: only completed requests count."""
    if log.us.size > 0 and w.born[i] < k:
        for step in range(w.born[i] - log.first[0], k - log.first[0]):
            if w.serial[i] <= reach[step]:  # a step that ran out of tokens did not reach the later requests
                log.tokens[step] -= 1


@njit
def single_contexts(q, w, s, t, ahead):  # type: ignore[no-untyped-def]
    """Write variance and maxima of the step's contexts into the value vector (schema.RAW). Returns the longest decode.

    The progress of the first `ahead` places of the batch already includes their new token.
    """
    size, s1, s2, longest, longest_decode = np.int64(0), np.int64(0), np.int64(0), np.int64(0), np.int64(0)
    for j in range(s.running):
        i = w.order[j]
        if j < ahead or w.granted[i] > 0:
            done = np.int64(w.progress[i]) - (1 if j < ahead else 0)
            size += 1
            s1 += done
            s2 += done * done
            longest = max(longest, done)
            if done >= q.input_len[w.who[i]]:
                longest_decode = max(longest_decode, done)
    t.values[t.raw + schema.KV_MAX] = longest
    t.values[t.raw + schema.KV_VAR] = (size * s2 - s1 * s1) / (size * size) if size > 0 else 0.0
    t.values[t.raw + schema.KV_DECODE_MAX] = longest_decode
    return longest_decode


@inlined
def depart(w, c, s, now):  # type: ignore[no-untyped-def]
    """Free the slots and blocks of requests whose last step has ended `now`; of those composed ahead, all but the
    last one has."""
    if s.leaving > 0:
        gone = s.leaving if now >= s.free_us else s.outgoing
        for j in range(gone):
            let_go(w, c, s, w.leaving[j])
        for j in range(gone, s.leaving):
            w.leaving[j - gone] = w.leaving[j]
        s.leaving -= gone
        s.outgoing = s.leaving


@inlined
def complete(q, rules, w, c, cl, s, times, end_us):  # type: ignore[no-untyped-def]
    """Complete requests in order of the batch: the last token gets a block if it needs one, then all are released, at
    once or when the step has ended."""
    kept = np.int64(0)
    for j in range(s.running):
        i = w.order[j]
        if w.left[i] > 0 or w.born[i] == NEVER:  # stays
            w.order[kept] = i
            kept += 1
            continue
        r = w.who[i]
        s.context -= w.progress[i]
        if w.progress[i] < q.input_len[r] + q.output_len[r] and w.spare[i] == 0:
            if c.counts[FREE] == 0:  # the host counts a failed allocation and completes the request all the same
                s.failures += 1
            else:
                w.table[i, w.held[i]] = take(c.blocks, c.holder, c.counts, np.int64(-1))
                w.held[i] += 1
        elif rules.turns and w.progress[i] < q.input_len[r] + q.output_len[r] and w.spare[i] == 1:
            tell(q, rules, w, c, i)
        if rules.ahead:
            w.leaving[s.leaving] = i
            s.leaving += 1
            w.spare[i], w.left[i] = FAR, FAR
        else:
            let_go(w, c, s, i)
        w.outcome[r] = COMPLETED
        times.decode_us[r] = s.elapsed - w.since[i]
        if cl.closed:
            completed(cl, q, r, end_us)
    s.running = kept
