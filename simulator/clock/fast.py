"""The fast clock: one serving instance at a cost per step that does not grow with the batch.

Nothing loops over the batch. Every running decode gains one token a step, so sums over decodes move by their count. The
last step of a decode is known when its prompt is done, so completions are kept in a calendar by step number. Steps of
decodes alone run in an inner loop of a few instructions each, with their times recalled (steps.py).

Single KV blocks are not tracked either. Blocks that are released together stay together in the host's list of free
blocks, the last ones of a prompt first. So the list is kept as segments (segments.py), and taking blocks from its head
shortens prompts from their end, exactly as the host evicts them. How many blocks the decodes take follows from their
counts by phase: a decode needs a block whenever its tokens fill the last one.

Where a block could be missing, where the same content could be in the cache twice, or where the order of requests
within a step matters, the clock stops with UNPROVEN, and the exact clock runs the load instead.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from simulator.clock.queue import DONE, HOSTILE, MORE, UNPROVEN
from simulator.clock.segments import claim, eat, found_blocks, give, store, stored_twice, unhold
from simulator.clock.steps import (
    CHUNKS,
    DIRECT,
    LINE,
    MARGIN,
    NO_CHUNKS,
    evaluate,
    piece_for,
    put,
    recall,
    with_chunk,
)
from simulator.experiment.load import NEVER
from simulator.jit import inlined, njit
from simulator.schema import KV_DECODE_MAX, KV_MAX, KV_VAR
from simulator.vm import clamps, run, to_ticks

u = np.uintp  # casts an index that is never negative, so that the compiled code skips the check for negative ones

STATE = np.dtype(
    [(name, "i8") for name in (
        "head", "newest", "decodes", "context", "squares", "oldest", "filling", "step", "place", "phase",
        "clamped", "now", "used", "due", "first", "last",
    )] + [("offending", "f8")]
)  # fmt: skip


class Work(NamedTuple):
    """What the fast clock keeps between calls."""

    free: Any  # Segments: the free KV blocks and the cached content
    phases: Any  # decodes by the step, modulo the block size, in which they need a block
    turn: Any  # per request: that step, modulo the block size
    calendar: Any  # step number modulo its size -> first request whose last step that is, or -1
    after: Any  # per request: the next one with the same last step, or -1
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

    Returns whether that is proven, the tokens left, the chunks, and the blocks used and due.
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
        chunks = with_chunk(chunks, take, done)
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
def admit(q, rules, w, times, watch, now, chunks, left, decodes, fills, head, newest, first, used, due):  # type: ignore[no-untyped-def]
    """Admit queued requests while there are tokens and places.

    Returns whether that is proven, the chunks, requests in their prompts, the next request, the newest one admitted,
    the first segment, and the blocks used and due.
    """
    proven = True
    while head < q.queued_us.size and decodes + fills < rules.max_seqs and left > 0 and q.queued_us[u(head)] <= now:
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
            chunks = with_chunk(chunks, take, np.int64(0))  # PI is still 0: the cached length is not visible
        w.filling[u(fills)] = r
        w.progress[u(fills)] = cached * rules.block
        w.chunk[u(fills)] = take
        fills += 1
        times.start_us[u(r)] = now
        times.cached[u(r)] = cached
        newest = r
        head += 1
    return proven, chunks, fills, head, newest, first, used, due


@inlined
def end_decodes(q, w, times, blocks, watch, spread, place, end_us, context, squares):  # type: ignore[no-untyped-def]
    """Take the decodes whose last step this is off the calendar.

    Returns how many, and the sums over the others of the contexts and their squares.
    """
    ends = np.int64(0)
    r = np.int64(w.calendar[u(place)])
    w.calendar[u(place)] = -1
    while r >= 0:
        if blocks:
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
    q, rules, w, times, blocks, watch, longest, spread, k, place, next_phase, end_us, fills, ends, decodes, context,
    squares, oldest
):  # fmt: skip
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
            if blocks:
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
def release(q, rules, w, times, next_phase, ends, first, last, used, due):  # type: ignore[no-untyped-def]
    """Free the blocks of the `ends` requests that end.

    Returns whether that is proven, the end of the segments, and the blocks used and due.
    """
    proven = True
    _sort(w.ending, ends)  # the host goes in order of admission
    for j in range(ends):
        r = w.ending[j]
        p, g = np.int64(q.prompt[u(r)]), np.int64(q.group[u(r)])
        whole, shared = np.int64(q.prompt_blocks[u(r)]), np.int64(q.shared_blocks[u(r)])
        output = np.int64(q.output_len[u(r)])
        if output > 0 and w.turn[u(r)] == next_phase:  # the last token needs a block
            used += 1
            due += 1
            if used > rules.blocks:
                proven = False
                break
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
    return proven, last, used, due


@njit
def _sort(values, n):  # type: ignore[no-untyped-def]
    """Sort the first `n` in place; they are few."""
    for i in range(1, n):
        x, j = values[i], i
        while j > 0 and values[j - 1] > x:
            values[j] = values[j - 1]
            j -= 1
        values[j] = x


@njit
def _oldest_left(input_len, ending, ends, born, alive, slot, decodes, oldest):  # type: ignore[no-untyped-def]
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


def build(blocks: bool, single: bool, formula=None):  # type: ignore[no-untyped-def]
    """The compiled clock, with or without what only some loads and programs need.

    `blocks`: counting of KV blocks. `single`: fields of single contexts, step times that cannot be remembered, and the
    log. `formula(values, prefills, decodes, tokens, pairs, context)`, compiled, gives step times in us instead of the
    opcodes: a yardstick for benchmarks.
    """
    opcodes = formula is None

    @njit
    def fast_clock(q, rules, t, w, state, times, log, last_step):  # type: ignore[no-untyped-def]
        """Run until every request is done (DONE) or step `last_step` (MORE: call again)."""
        # What is given: q the queue, rules the limits, t the program's step times, w the work kept between calls.
        # Times are in us, contexts (progress before the step) and lengths in tokens, blocks are KV blocks.
        #
        #   head, newest      next request to be admitted, and the last one that was
        #   decodes, fills    running decodes; running requests still in their prompt
        #   context, squares  sums over the decodes of their contexts and of the squares
        #   oldest            largest (input_len - born) of the decodes: the longest context is oldest + k - 1
        #   k, place, phase   this step's number; k modulo the calendar's size; k modulo the block size
        #   now, dt           start of this step and its duration; -1 while that is not known
        #   used, due         blocks not free; blocks of those that are still to be taken out of the segments
        #   first, last       the first segment of free blocks, and the one behind the last
        #   chunks, left      the prompt chunks of this step; tokens left in its budget
        #   ends              requests that end in this step
        #
        # They are local variables, so that the compiler keeps them in registers.
        queued_us, input_len, calendar, phases = q.queued_us, q.input_len, w.calendar, w.phases
        n, ring, max_seqs, block = queued_us.size, calendar.size, rules.max_seqs, rules.block
        v, raw, pieces = t.values, t.raw, t.pieces
        log_us, log_tokens, logged = log.us, log.tokens, log.first[0]
        watch, logging = blocks and rules.watch, single and log.us.size > 0
        lines, spread, longest = not single or t.lines, single and t.spread, single and t.longest
        s = state[0]
        head, newest, decodes, context, squares = s.head, s.newest, s.decodes, s.context, s.squares
        oldest, fills, k, place, phase = s.oldest, s.filling, s.step, s.place, s.phase
        clamped, now, used, due, first, last = s.clamped, s.now, s.used, s.due, s.first, s.last
        status = DONE
        if n > 0 and k == 0:
            now = queued_us[0]
        while head < n or decodes + fills > 0:
            if k >= last_step:
                status = MORE
                break

            # Tokens of this step: one for each decode, the rest for prompts, running ones before new ones.
            left = rules.budget - decodes
            if left < 0 or (watch and used > rules.blocks):
                status = UNPROVEN
                break
            chunks = NO_CHUNKS
            if fills > 0 or (head < n and queued_us[u(head)] <= now):
                proven, left, chunks, used, due = next_chunks(q, rules, w, watch, fills, newest, left, used, due)
                if proven:
                    proven, chunks, fills, head, newest, first, used, due = admit(
                        q, rules, w, times, watch, now, chunks, left, decodes, fills, head, newest, first, used, due
                    )
                if not proven:
                    status = UNPROVEN
                    break

            # Its duration, recalled where the step's composition is known and all chunks start at 0.
            tall = oldest + k - 1 if longest and decodes > 0 else np.int64(0)
            dt = np.int64(-1)
            if lines and ((chunks.context == 0 and chunks.count <= CHUNKS) or not opcodes):
                i = np.int64(0)
                if opcodes:
                    i = piece_for(
                        t, longest, chunks.count, decodes, chunks.tokens, chunks.largest, chunks.pairs, context, tall
                    )
                kind = pieces[u(i)].kind if opcodes else LINE
                if fills == 0 and kind != DIRECT:
                    # Nothing but decodes until the next arrival that finds room or the next completion. The loop runs
                    # all steps but the last of this stretch, which is left to the general way below.
                    stop_us = queued_us[u(head)] if head < n and decodes < max_seqs else NEVER
                    base, slope, tall_slope = pieces[u(i)].base, pieces[u(i)].slope, pieces[u(i)].tall_slope
                    high, tallest = pieces[u(i)].high, pieces[u(i)].tall_high
                    most = context + decodes * (last_step - k - 2)  # the context two steps before `last_step`
                    sum_now, more = float(context), float(decodes)  # float64 is exact here, and needs no conversion
                    end = float(min(high, most) if opcodes else most)
                    dt, owed = np.int64(base), due
                    line = kind == LINE
                    while True:
                        if line:
                            if opcodes:
                                x = base + slope * sum_now
                                if longest:
                                    x += tall_slope * tall
                            else:
                                x = formula(v, chunks.count, decodes, chunks.tokens, chunks.pairs, sum_now)
                            dt = np.int64(x)
                            # Too near a whole microsecond to trust the line's rounding: run the opcodes.
                            if opcodes and abs(x - dt - 0.5) > 0.5 - MARGIN:
                                x = evaluate(
                                    t, chunks.count, decodes, chunks.tokens, chunks.largest, chunks.pairs, sum_now, tall
                                )
                                dt = np.int64(to_ticks(x, 1))
                        if calendar[u(place)] >= 0 or now + dt >= stop_us:
                            break
                        if logging:
                            log_us[k - logged], log_tokens[k - logged] = dt, decodes
                        now += dt
                        sum_now += more
                        k += 1
                        place = place + 1 if place + 1 < ring else 0
                        if longest:
                            tall += 1
                        if watch:
                            phase = phase + 1 if phase + 1 < block else 0
                            due += phases[u(phase)]
                        if sum_now > end or (longest and tall > tallest):  # beyond what the piece covers
                            dt = np.int64(-1)
                            break
                    context = np.int64(sum_now)
                    used += due - owed
                    if dt < 0:
                        continue
                elif opcodes:
                    dt = recall(pieces, i, context, tall)
                else:
                    x = formula(v, chunks.count, decodes, chunks.tokens, chunks.pairs, context + chunks.context)
                    dt = np.int64(to_ticks(x, 1))

            if dt < 0:  # not recalled: run the opcodes
                total = context + chunks.context
                put(v, raw, chunks.count, decodes, chunks.tokens, chunks.largest, chunks.pairs, total, context)
                if longest:
                    v[raw + KV_MAX] = max(tall, chunks.longest)
                    v[raw + KV_DECODE_MAX] = tall
                if spread:
                    size = decodes + chunks.count
                    squared = size * (squares + chunks.squares) - total * total
                    v[raw + KV_VAR] = squared / (size * size) if size > 0 else 0.0
                run(t.rows, t.first, t.last, v)
                x = v[t.out]
                if clamps(x, 1):
                    clamped += 1
                    if rules.hostile_stops:
                        s.offending = x
                        status = HOSTILE
                        break
                dt = np.int64(to_ticks(x, 1))
            if logging:
                log_us[k - logged], log_tokens[k - logged] = dt, decodes
            if watch and used > rules.blocks:
                status = UNPROVEN
                break

            # Every decode has one token more; some are done, and prompts that are done join them.
            if spread:
                squares += 2 * context + decodes
            context += decodes
            ends, context, squares = end_decodes(
                q, w, times, blocks, watch, spread, place, now + dt, context, squares
            )  # fmt: skip
            decodes -= ends
            if longest and ends > 0:
                oldest = _oldest_left(input_len, w.ending, ends, w.born, w.alive, w.slot, decodes, oldest)
            next_phase = phase + 1 if phase + 1 < block else np.int64(0)
            fills, ends, decodes, context, squares, oldest = end_prompts(
                q, rules, w, times, blocks, watch, longest, spread, k, place, next_phase, now + dt, fills, ends,
                decodes, context, squares, oldest,
            )  # fmt: skip
            if watch and ends > 0:
                proven, last, used, due = release(q, rules, w, times, next_phase, ends, first, last, used, due)
                if not proven:
                    status = UNPROVEN
                    break

            k += 1
            place = place + 1 if place + 1 < ring else 0
            if watch:  # the blocks that decodes need in the next step
                phase = next_phase
                used += phases[u(phase)]
                due += phases[u(phase)]
            if decodes + fills > 0 or (head < n and queued_us[u(head)] <= now):
                now += dt
            elif head < n:
                now = queued_us[u(head)]  # idle: the next arrival starts a step at once
        s.head, s.newest, s.decodes, s.context, s.squares = head, newest, decodes, context, squares
        s.oldest, s.filling, s.step, s.place, s.phase = oldest, fills, k, place, phase
        s.clamped, s.now, s.used, s.due, s.first, s.last = clamped, now, used, due, first, last
        return status

    return fast_clock


# Replays take the smallest of these that does what they need.
CLOCKS = build(False, False), build(True, False), build(True, True)
