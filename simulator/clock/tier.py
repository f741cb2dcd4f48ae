"""Host memory behind the KV cache: KV offload, as vLLM's OffloadingConnector does it (`--kv-offloading-size`).

The rules. "vLLM" is its vllm/v1/kv_offload and kv_connector/v1/offloading, "host" the host's sim/kv and the TierTime of
its latency kernel. A block is a full KV block, known by its content and all that stands before it.

1. Store. After a step, each request that got tokens in it stores its full blocks that were not stored yet, in order of
   the batch: those of its prompt, with `prompt_only` off those of its answer too (vLLM, host). Blocks that are there
   already are left. The others get places at once, all or none: where places lack, the blocks not used for longest are
   evicted, but neither those of this store nor those that a transfer holds. Without enough of these the request tries
   again with its next tokens (vLLM, `prepare_store`; the host stores block by block).
2. Use. A store and a look at a waiting request's prompt count as use of all of its blocks that are there, of the first
   block last (vLLM, `touch`; the host touches the blocks of the whole batch after every step).
3. Look. The blocks of a waiting request's prompt that the GPU lacks are looked up from the first missing one on, up to
   the first that is not there (vLLM, host). If a transfer holds one of those found, the request is set aside.
4. Load. Otherwise blocks of the GPU are claimed for what the GPU has and taken for what is loaded; if they do not
   suffice, the request and all behind it wait. The load begins as the step is composed, and the request is set aside
   (vLLM; the host's blocks come from CPU memory in no time, and only a disk behind it defers a request).
5. Set aside. Such a request uses neither tokens nor a place in the batch. Requests behind it are admitted. Every step
   looks at those set aside first, in the order in which that happened (vLLM). One whose load has ended is admitted with
   all blocks found as its cached ones, by the rules of any other; if they are the whole prompt, its last token is
   computed again (vLLM). The GPU's cache knows loaded blocks from then on.
6. Time. Transfers of one direction follow each other (vLLM, gpu_worker.py): one begins when the one before has ended,
   a load not before its step is composed, a store not before its step ends, and lasts max(latency, bytes / link). For
   equal transfers that begin together that is the host's bytes x queue depth / link. No transfer lengthens a step
   (vLLM, host). A block can be read, and evicted, when its transfer has ended.
7. Ahead. Where a step is composed as the one before begins (`Rules.ahead`), its requests are looked up, its loads begin
   and places for its stores are taken when it is composed, and its stores are copied from its end on (vLLM: only stores
   wait for the GPU's computation).
8. Idle. Without a running request, the next step begins when a transfer that a request waits for has ended, or a
   request is queued (vLLM's engine polls; no empty step is counted). If no transfer is in flight and requests that were
   loaded hold the blocks that the first one needs, the last of them gives its blocks back (ours: vLLM would stop).

Where the engine gives blocks away that it still copies, vLLM waits for the copy; that is left out, as is a client's
giving up during a load, where vLLM keeps the blocks until the load has ended. With `ahead` or drafts vLLM stores an
answer's block once the scheduler knows its tokens, some steps later; that is left out too.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from simulator.clock.batch import key_of, let_go, seat
from simulator.clock.blocks import FREE, HITS, KEY, MISSES, claim, name, take
from simulator.common.jit import inlined, njit
from simulator.serving.load import NEVER, TierLimits

NEXT, BEFORE = 0, 1  # columns of Tier.ring
GO, LATER, NO_ROOM = 0, 1, 2  # what becomes of a waiting request, see `consult`

# used: blocks in the tier; stamp: stores so far; load_us, store_us: when the last transfer of each direction ends;
# aside: requests set aside; loading: those of them that hold blocks; retry_us: when the first transfer ends of those
# for which a request was set aside in this step; wake_us: when the next step begins, if nothing runs and requests wait
# for transfers, else NEVER; loaded: blocks loaded so far
_STATE = "used stamp load_us store_us aside loading retry_us wake_us loaded"
STATE = np.dtype([(field, "i8") for field in _STATE.split()])


class Tier(NamedTuple):
    """The blocks in host memory and the requests that wait for them. Keys are those of blocks.py; times in us."""

    blocks: Any  # room, in blocks; 0: no tier, and all arrays but `state` are empty
    block_us: Any  # of a transfer, for each block
    least_us: Any  # of a transfer
    prompt_only: Any
    # int32[keys + 1, 2]: from each block to the one that was used next and before, -1 where it is not there; the last
    # row closes the ring
    ring: Any
    busy_us: Any  # per key: when its last transfer ends
    mark: Any  # per key: the last store that wanted it
    answer: Any  # per request: the first key of the blocks of its answer
    # per slot
    stored: Any  # the first block that is not stored yet
    done_us: Any  # when the load ends
    # per request
    slot: Any  # its slot while it is set aside and holds blocks, else -1
    aside: Any  # the requests set aside, in order
    state: Any


def new_tier(limits: TierLimits | None, keys: int, answer: np.ndarray, requests: int, slots: int) -> Tier:
    """An empty tier with room for `keys` keys; `answer`: the keys of answers. None: no tier."""
    state = np.zeros(1, STATE)
    state["wake_us"] = NEVER
    none, few = np.zeros(0, np.int64), np.zeros(0, np.int32)
    if limits is None or limits.blocks < 1:
        ring = np.zeros((0, 2), np.int32)
        return Tier(0, 0.0, 0, True, ring, none, none, none, none, none, few, none, state)
    ring = np.full((keys + 1, 2), -1, np.int32)
    ring[keys] = keys
    return Tier(
        limits.blocks,
        limits.block_us,
        limits.least_us,
        limits.prompt_only,
        ring,
        np.zeros(keys, np.int64),
        np.zeros(keys, np.int64),
        answer,
        np.zeros(slots, np.int64),
        np.zeros(slots, np.int64),
        np.full(requests, -1, np.int32),
        np.zeros(requests, np.int64),
        state,
    )


def tiers(tier: Tier, lanes: int) -> Tier:
    """One such tier for each lane, see ranks.py."""
    return tier._replace(**{name: np.stack([getattr(tier, name)] * lanes) for name in Tier._fields[4:]})


@inlined
def tier_of(t, d):  # type: ignore[no-untyped-def]
    """The tier of lane `d`."""
    return Tier(
        t.blocks,
        t.block_us,
        t.least_us,
        t.prompt_only,
        t.ring[d],
        t.busy_us[d],
        t.mark[d],
        t.answer[d],
        t.stored[d],
        t.done_us[d],
        t.slot[d],
        t.aside[d],
        t.state[d],
    )


@njit
def append(ring, key):  # type: ignore[no-untyped-def]
    """Make `key` the block that was used last; it is not in the ring."""
    end = ring.shape[0] - 1
    last = ring[end, BEFORE]
    ring[last, NEXT], ring[key, BEFORE] = key, last
    ring[key, NEXT], ring[end, BEFORE] = end, key


@njit
def unlink(ring, key):  # type: ignore[no-untyped-def]
    """Take `key` out of the ring."""
    before, after = ring[key, BEFORE], ring[key, NEXT]
    ring[before, NEXT], ring[after, BEFORE] = after, before
    ring[key, NEXT] = -1


@njit
def key_at(q, rules, w, t, r, b):  # type: ignore[no-untyped-def]
    """The key of block `b` of request `r`: of its prompt, then of its answer."""
    whole = np.int64(q.prompt_blocks[r])
    return key_of(q, rules, w, r, b) if b < q.text_blocks[r] else t.answer[r] + b - whole


@njit
def use(q, rules, w, t, r, count):  # type: ignore[no-untyped-def]
    """2: use of the first `count` blocks of request `r`."""
    for b in range(count - 1, -1, -1):
        key = key_at(q, rules, w, t, r, b)
        if t.ring[key, NEXT] >= 0:
            unlink(t.ring, key)
            append(t.ring, key)


@njit
def lasts(t, blocks):  # type: ignore[no-untyped-def]
    """6: the time of a transfer of so many blocks."""
    return max(t.least_us, np.int64(math.ceil(blocks * t.block_us)))


@njit
def evict(t, count, now):  # type: ignore[no-untyped-def]
    """1: evict `count` blocks but those of the current store, or none. Returns True if they were evicted."""
    s, end, found = t.state[0], t.ring.shape[0] - 1, 0
    for sweep in range(2):
        key = t.ring[end, NEXT]
        while key != end and (sweep == 1 or found < count):
            after = t.ring[key, NEXT]
            if t.busy_us[key] <= now and t.mark[key] != s.stamp:
                if sweep == 0:
                    found += 1
                else:
                    unlink(t.ring, key)
                    s.used -= 1
                    count -= 1
                    if count == 0:
                        return True
            key = after
        if found < count:
            return False
    return True


@njit
def store(q, rules, w, c, s, ahead, now, end_us):  # type: ignore[no-untyped-def]
    """1: store what was computed in the step from `now` to `end_us`, in which the first `ahead` places decoded."""
    t = c.tier
    ts = t.state[0]
    for j in range(s.running):
        i = w.order[j]
        r = w.who[i]
        whole, full = np.int64(q.prompt_blocks[r]), np.int64(w.progress[i]) // rules.block
        if t.prompt_only:
            full = min(full, whole)
        first = t.stored[i]
        if full <= first or (j >= ahead and w.granted[i] == 0):
            continue
        ts.stamp += 1
        missing = 0
        for b in range(first, full):
            key = key_at(q, rules, w, t, r, b)
            t.mark[key] = ts.stamp
            missing += t.ring[key, NEXT] < 0
        if missing > 0:
            over = ts.used + missing - t.blocks
            if over > 0 and not evict(t, over, now):
                continue
            ts.store_us = max(ts.store_us, end_us) + lasts(t, missing)
            for b in range(first, full):
                key = key_at(q, rules, w, t, r, b)
                if t.ring[key, NEXT] < 0:
                    append(t.ring, key)
                    t.busy_us[key] = ts.store_us
            ts.used += missing
            if over < missing:  # there is more than ever before: no standstill, see `stuck`
                s.alone = 0
            use(q, rules, w, t, r, max(full, whole))
        t.stored[i] = full


@njit
def consult(q, rules, w, c, s, r, cached, idle, now):  # type: ignore[no-untyped-def]
    """3 and 4: look for the prompt's blocks after the `cached` ones that the GPU has, `idle` of them held by nobody.

    GO: nothing is found. LATER: a load has begun, or a transfer holds what is found. NO_ROOM: no blocks to load into.
    """
    t, found, until = c.tier, np.int64(0), np.int64(0)
    whole = np.int64(q.prompt_blocks[r])
    while cached + found < whole:
        key = key_of(q, rules, w, r, cached + found)
        if t.ring[key, NEXT] < 0:
            break
        until = max(until, t.busy_us[key])
        found += 1
    use(q, rules, w, t, r, whole)
    if found == 0:
        return GO
    ts = t.state[0]
    if until > now:
        ts.retry_us = min(ts.retry_us, until)
        return LATER
    if found + idle > c.counts[FREE]:
        return NO_ROOM
    i = seat(w, s)
    ts.load_us = max(ts.load_us, now) + lasts(t, found)
    w.who[i], w.held[i], t.slot[r], t.done_us[i] = r, cached + found, i, ts.load_us
    row = w.table[i]
    for b in range(cached):
        row[b] = c.holder[key_of(q, rules, w, r, b)]
        claim(c.blocks, c.counts, row[b])
    for b in range(cached, cached + found):
        row[b] = take(c.blocks, c.holder, c.counts, np.int64(-1))
        t.busy_us[key_of(q, rules, w, r, b)] = ts.load_us
    c.counts[MISSES] -= found
    c.counts[HITS] += found
    ts.loaded += found
    ts.loading += 1
    ts.retry_us = min(ts.retry_us, ts.load_us)
    return LATER


@njit
def land(q, rules, w, c, i):  # type: ignore[no-untyped-def]
    """5: the load of slot `i` has ended, so the GPU's cache knows its blocks. Returns how many these are."""
    row = w.table[i]
    for b in range(w.held[i]):
        if c.blocks[row[b], KEY] < 0:
            name(c.blocks, c.holder, row[b], key_of(q, rules, w, w.who[i], b))
    return np.int64(w.held[i])


@njit
def drop(t, at):  # type: ignore[no-untyped-def]
    """Take the request at place `at` out of those set aside."""
    ts = t.state[0]
    ts.aside -= 1
    for other in range(at, ts.aside):
        t.aside[other] = t.aside[other + 1]


@njit
def give_back(w, c, s, r):  # type: ignore[no-untyped-def]
    """Free the blocks and the slot of request `r`, which is set aside."""
    let_go(w, c, s, c.tier.slot[r])
    c.tier.slot[r] = -1
    c.tier.state[0].loading -= 1


@njit
def forsake(w, c, s, r):  # type: ignore[no-untyped-def]
    """The client of request `r` gives up: it is no longer set aside, if it was."""
    t = c.tier
    for at in range(t.state[0].aside):
        if t.aside[at] == r:
            if t.slot[r] >= 0:
                give_back(w, c, s, r)
            drop(t, at)
            break
    if s.waiting == 0:
        t.state[0].wake_us = NEVER


@njit
def rest(w, c, s, now):  # type: ignore[no-untyped-def]
    """8: nothing runs and requests wait. Returns True if blocks were given back, so that one can be admitted."""
    t = c.tier
    ts, last = t.state[0], np.int64(-1)
    ts.wake_us = ts.retry_us
    for at in range(ts.aside):
        r = t.aside[at]
        if t.slot[r] >= 0:
            last = r
            if t.done_us[t.slot[r]] > now:
                ts.wake_us = min(ts.wake_us, t.done_us[t.slot[r]])
    if ts.wake_us < NEVER or last < 0:
        return False
    give_back(w, c, s, last)
    return True
