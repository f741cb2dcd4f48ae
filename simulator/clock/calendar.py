"""The fast clock's batch: requests in their prompts one by one, decodes only by the step in which they end.

The arguments are those of `fast_clock` and its variables: q the queue, w this batch (Work), times the results;
r is a request, p and g are its prompt and group (-1: none), j is a place in a list.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from simulator.clock.segments import claim, eat, found_blocks, give, store, stored_twice, unhold
from simulator.clock.steps import NO_CHUNKS, with_chunk
from simulator.common.jit import inlined, njit

u = np.uintp  # casts an index that is never negative, so that the compiled code skips the check for negative ones


class CalendarWork(NamedTuple):
    """The state that the fast clock keeps between calls."""

    free: Any  # Segments: the free KV blocks and the cached content
    phases: Any  # decodes by the step, modulo the block size, in which they need a block
    turn: Any  # per request: that step, modulo the block size
    calendar: Any  # step number modulo its size -> first request whose last step that is, or -1
    after: Any  # per request: the next one with the same last step, or -1
    leaving: Any  # requests that ended in the step before
    ending: Any  # requests that end in this step
    filling: Any  # requests still in their prompt, in order of admission
    progress: Any  # of those: prompt tokens computed before this step
    chunk: Any  # of those: prompt tokens of this step
    born: Any  # per request: the step in which its prompt was done
    alive: Any  # running decodes, in no order
    slot: Any  # per request: its place in `alive`


@inlined
def next_chunks(q, rules, w, watch, fills, newest, left, used, due):  # type: ignore[no-untyped-def]
    """Give the requests in their prompts their tokens of this step.

    Returns True if that is proven, the tokens left, the chunks, and the blocks used and due.
    """
    chunks, proven = NO_CHUNKS, True
    for j in range(fills):
        r = w.filling[j]
        done = w.progress[j]
        want = q.input_len[u(r)] - done
        if rules.threshold > 0 and want > rules.threshold:
            want = rules.threshold
        take = min(want, left)
        # The host serves prompts and decodes in order of admission, here the decodes come first. When tokens run
        # short that is the same only if the last admission alone goes short, and still gets some.
        if take < want and (r != newest or take == 0):
            proven = False
            break
        left -= take
        chunks = with_chunk(chunks, take, done, q.input_len[u(r)])
        w.chunk[j] = take
        p, g, shared = np.int64(q.prompt[u(r)]), np.int64(q.group[u(r)]), np.int64(q.shared_blocks[u(r)])
        # Another request has stored the same content meanwhile: of two copies, evicting one hides the other.
        if rules.once and stored_twice(w.free, p, g, shared, done // rules.block):
            proven = False
            break
        reach = done + take
        if watch:
            need = (reach + rules.block - 1) // rules.block - (done + rules.block - 1) // rules.block
            used += need
            due += need
        store(w.free, p, g, shared, reach // rules.block)
    return proven, left, chunks, used, due


@inlined
def admit(  # type: ignore[no-untyped-def]
    q, rules, w, times, watch, now, begin_us, chunks, left, decodes, held, fills, head, newest, first, used, due
):
    """Admit queued requests to a step composed `now`, while there are tokens and places, `held` of which are taken.

    Returns True if that is proven, the chunks, requests in their prompts, the next request, the newest one admitted,
    the first segment, and the blocks used and due.
    """
    proven = True
    taken = decodes + held
    while head < q.queued_us.size and taken + fills < rules.max_seqs and left > 0 and q.queued_us[u(head)] <= now:
        r = head
        p, g = np.int64(q.prompt[u(r)]), np.int64(q.group[u(r)])
        whole, shared = np.int64(q.prompt_blocks[u(r)]), np.int64(q.shared_blocks[u(r)])
        if due > 0:  # evict before looking the prompt up
            if used > rules.blocks:
                proven = False
                break
            first = eat(w.free, first, due)
            due = np.int64(0)
        cached = found_blocks(w.free, p, g, shared, whole)
        if cached < 0:
            proven = False
            break
        want = q.input_len[u(r)] - cached * rules.block
        take = min(want, rules.threshold) if rules.threshold > 0 else want
        if take > left and not rules.chunked:  # it waits, and all behind it
            break
        take = min(take, left)
        left -= take
        reach = whole
        if take == want:
            need = whole - cached + (q.input_len[u(r)] > whole * rules.block)
        else:
            reach = (cached * rules.block + take) // rules.block
            need = (take + rules.block - 1) // rules.block
        if watch and want > 0:  # the host claims no block for a prompt that is cached whole
            if p >= 0:
                used += claim(w.free, p)
            if g >= 0:
                used += claim(w.free, w.free.groups + g)
            used += need
            due = need
            if used > rules.blocks:
                proven = False
                break
        store(w.free, p, g, shared, reach)
        if take > 0:
            # PI is still 0: the cached length is not visible
            chunks = with_chunk(chunks, take, np.int64(0), q.input_len[u(r)])
        w.filling[u(fills)] = r
        w.progress[u(fills)] = cached * rules.block
        w.chunk[u(fills)] = take
        fills += 1
        times.start_us[u(r)], times.begun_us[u(r)] = now, begin_us
        times.cached[u(r)] = cached
        newest = r
        head += 1
    return proven, chunks, fills, head, newest, first, used, due


@inlined
def end_decodes(q, w, times, watch, spread, place, end_us, context, squares):  # type: ignore[no-untyped-def]
    """Take the decodes whose last step this is off the calendar.

    Returns how many, and the sums over the others of the contexts and their squares.
    """
    ends = np.int64(0)
    r = np.int64(w.calendar[u(place)])
    w.calendar[u(place)] = -1
    while r >= 0:
        w.ending[u(ends)] = r
        ends += 1
        times.decode_us[u(r)] = end_us - times.first_us[u(r)]  # without gaps: steps follow each other while any runs
        final = np.int64(q.input_len[u(r)]) + q.output_len[u(r)] - 1
        context -= final
        if spread:
            squares -= final * final
        if watch:
            w.phases[w.turn[u(r)]] -= 1
        r = np.int64(w.after[u(r)])
    return ends, context, squares


@inlined
def end_prompts(  # type: ignore[no-untyped-def]
    q,
    rules,
    w,
    times,
    watch,
    longest,
    spread,
    k,
    place,
    next_phase,
    end_us,
    fills,
    ends,
    decodes,
    context,
    squares,
    oldest,
):
    """Move the requests that finish their prompt in step `k` to the decodes, or to the end if they want no more.

    Returns requests still in their prompts, requests that end, decodes, sums of their contexts and of the squares, and
    `oldest`.
    """
    kept = np.int64(0)
    for j in range(fills):
        r = w.filling[j]
        reach = w.progress[j] + w.chunk[j]
        if reach < q.input_len[u(r)]:
            w.filling[kept] = r
            w.progress[kept] = reach
            kept += 1
            continue
        times.first_us[u(r)] = end_us
        output = np.int64(q.output_len[u(r)])
        if watch:
            # Tokens in the prompt's last, unfinished block. None for a prompt that was cached whole: it has no block.
            beyond = (
                q.input_len[u(r)] - np.int64(q.prompt_blocks[u(r)]) * rules.block
                if times.cached[u(r)] * rules.block < q.input_len[u(r)]
                else 0
            )
            turn = next_phase + (rules.block - beyond if beyond > 0 else 0)
            w.turn[u(r)] = turn - rules.block if turn >= rules.block else turn
        if output <= 1:
            times.decode_us[u(r)] = 0
            w.ending[u(ends)] = r
            ends += 1
            continue
        if longest:
            w.born[u(r)] = k
            w.slot[u(r)] = decodes
            w.alive[decodes] = r
            age = q.input_len[u(r)] - k
            oldest = age if decodes == 0 else max(oldest, age)
        if watch:
            w.phases[w.turn[u(r)]] += 1
        decodes += 1
        context += q.input_len[u(r)]
        if spread:
            squares += np.int64(q.input_len[u(r)]) * q.input_len[u(r)]
        end = place + output - 1
        if end >= w.calendar.size:
            end -= w.calendar.size
        w.after[u(r)] = w.calendar[u(end)]
        w.calendar[u(end)] = r
    return kept, ends, decodes, context, squares, oldest


@inlined
def last_blocks(q, rules, w, next_phase, ends, used, due):  # type: ignore[no-untyped-def]
    """The last tokens of the `ends` requests that end may need blocks. Returns True if they find them, and the blocks
    used and due."""
    for j in range(ends):
        r = w.ending[j]
        if q.output_len[u(r)] > 0 and w.turn[u(r)] == next_phase:
            used += 1
            due += 1
    return used <= rules.blocks, used, due


@inlined
def release(q, rules, w, times, gone, ends, first, last, used):  # type: ignore[no-untyped-def]
    """Free the blocks of the first `ends` requests of `gone`, in order of admission.

    Returns the end of the segments, and the blocks used.
    """
    for j in range(ends):
        r = gone[j]
        p, g = np.int64(q.prompt[u(r)]), np.int64(q.group[u(r)])
        whole, shared = np.int64(q.prompt_blocks[u(r)]), np.int64(q.shared_blocks[u(r)])
        output = np.int64(q.output_len[u(r)])
        if times.cached[u(r)] * rules.block == q.input_len[u(r)]:  # cached whole: only its answer has blocks
            private = -(-output // rules.block)
            last = give(w.free, first, last, -1, private)
            used -= private
            continue
        # A request's last blocks are freed first: those of the answer, then of the prompt, then of the group's prefix.
        private = q.all_blocks[u(r)] - (whole if p >= 0 else shared)
        last = give(w.free, first, last, -1, private)
        used -= private
        if p >= 0:
            last, freed = unhold(w.free, first, last, p)
            used -= freed
        if g >= 0:
            last, freed = unhold(w.free, first, last, w.free.groups + g)
            used -= freed
    return last, used


@njit
def sort_first(values, n):  # type: ignore[no-untyped-def]
    """Sort the first `n` values in place; they are few."""
    for i in range(1, n):
        x, j = values[i], i
        while j > 0 and values[j - 1] > x:
            values[j] = values[j - 1]
            j -= 1
        values[j] = x


@njit
def oldest_left(input_len, ending, ends, born, alive, slot, decodes, oldest):  # type: ignore[no-untyped-def]
    """Remove the `ends` requests from the decodes alive; returns the largest (input_len - born) of those left."""
    lost, size = False, decodes + ends
    for j in range(ends):
        r = ending[j]
        lost = lost or input_len[r] - born[r] == oldest
        size -= 1
        moved = alive[size]
        alive[slot[r]] = moved
        slot[moved] = slot[r]
    if lost:  # only then look at all the others
        for i in range(decodes):
            age = input_len[alive[i]] - born[alive[i]]
            oldest = age if i == 0 else max(oldest, age)
    return oldest
