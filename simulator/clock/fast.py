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

import numpy as np

from simulator import schema
from simulator.clock.calendar import (
    admit,
    end_decodes,
    end_prompts,
    last_blocks,
    next_chunks,
    oldest_left,
    release,
    sort_first,
    u,
)
from simulator.clock.clients import completed, next_us, send
from simulator.clock.queue import DONE, HOSTILE, MORE, UNPROVEN
from simulator.clock.steps import DIRECT, LINE, MARGIN, NO_CHUNKS, evaluate, piece_for, put, recall
from simulator.clock.vm import clamps, run, to_ticks
from simulator.common.jit import njit
from simulator.serving.load import NEVER

_STATE = """\
head newest decodes context squares oldest filling step place phase
clamped now chosen used due first last held"""
STATE = np.dtype([*((name, "i8") for name in _STATE.split()), ("offending", "f8")])


def build(blocks: bool, single: bool, formula=None):  # type: ignore[no-untyped-def]
    """The compiled clock, with or without what only some loads and programs need.

    `blocks`: counting of KV blocks. `single`: fields of single contexts, step times that cannot be remembered, and the
    log. `formula(values, prefills, decodes, tokens, pairs, context)`, compiled, gives step times in us instead of the
    opcodes: a reference for benchmarks.
    """
    opcodes = formula is None

    @njit
    def fast_clock(q, rules, t, w, cl, state, times, log, last_step):  # type: ignore[no-untyped-def]
        """Run until every request is done (DONE) or step `last_step` (MORE: call again)."""
        # Given: q the queue, rules the limits, t the program's step times, w the batch kept between calls, cl the
        # clients that fill the queue, if they do.
        # Times are in us, contexts (progress before the step) and lengths in tokens, blocks are KV blocks.
        #
        #   head, newest      next request to be admitted, and the last one that was
        #   decodes, fills    running decodes; running requests still in their prompt
        #   context, squares  sums over the decodes of their contexts and of the squares
        #   oldest            largest (input_len - born) of the decodes: the longest context is oldest + k - 1
        #   k, place, phase   this step's number; k modulo the calendar's size; k modulo the block size
        #   tall              the longest context of a decode in this step, 0 if the program does not read it
        #   now, dt           start of this step and its duration; -1 while that is not known
        #   chosen            when this step is composed
        #   held              requests that ended in the step before and hold places and blocks until the next one
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
        chosen, held, ahead = s.chosen, s.held, rules.ahead
        status = DONE
        if n > 0 and k == 0:
            now = next_us(cl) if cl.closed else queued_us[0]
            chosen = now
        while now != NEVER and (head < n or decodes + fills > 0):
            if k >= last_step:
                status = MORE
                break

            if cl.closed:
                send(cl, q, now)
            if decodes + fills == 0 and queued_us[u(head)] > chosen:  # nothing to compose
                if chosen == now:  # idle until the next arrival, else the step before still runs
                    now = min(queued_us[u(head)], next_us(cl)) if cl.closed else queued_us[u(head)]
                elif watch and held > 0:
                    last, used = release(q, rules, w, times, w.leaving, held, first, last, used)
                chosen, held = now, np.int64(0)
                continue

            # Tokens of this step: one for each decode, the rest for prompts, running ones before new ones.
            left = rules.budget - decodes
            if left < 0 or (watch and used > rules.blocks):
                status = UNPROVEN
                break
            chunks = NO_CHUNKS
            if fills > 0 or (head < n and queued_us[u(head)] <= chosen):
                proven, left, chunks, used, due = next_chunks(q, rules, w, watch, fills, newest, left, used, due)
                if proven:
                    proven, chunks, fills, head, newest, first, used, due = admit(
                        q,
                        rules,
                        w,
                        times,
                        watch,
                        chosen,
                        now,
                        chunks,
                        left,
                        decodes,
                        held,
                        fills,
                        head,
                        newest,
                        first,
                        used,
                        due,
                    )
                if not proven:
                    status = UNPROVEN
                    break
                if ahead and decodes + fills == 0 and chosen < now:  # no room before the step that runs ends
                    if watch and held > 0:
                        last, used = release(q, rules, w, times, w.leaving, held, first, last, used)
                    chosen, held = now, np.int64(0)
                    continue

            # Its duration, recalled where the step's composition is known and all chunks start at 0.
            tall = oldest + k - 1 if longest and decodes > 0 else np.int64(0)
            dt = np.int64(-1)
            if lines and ((chunks.context == 0 and chunks.count <= t.chunks) or not opcodes):
                i = np.int64(0)
                if opcodes:
                    i = piece_for(
                        t, longest, chunks.count, decodes, chunks.tokens, chunks.largest, chunks.pairs, context, tall
                    )
                kind = pieces[u(i)].kind if opcodes else LINE
                if fills == 0 and kind != DIRECT and held == 0:
                    # Nothing but decodes until the next arrival that finds room or the next completion. The loop runs
                    # all steps but the last of this stretch, which is left to the general way below.
                    stop_us = queued_us[u(head)] if head < n and decodes < max_seqs else NEVER
                    if cl.closed:  # also without room: what is sent meanwhile has to be in the queue when it ends
                        stop_us = min(stop_us, next_us(cl))
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
                        if calendar[u(place)] >= 0 or (now if ahead else now + dt) >= stop_us:
                            break
                        if logging:
                            log_us[k - logged], log_tokens[k - logged] = dt, decodes
                        chosen = now
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
                    if not ahead:
                        chosen = now
                    if dt < 0:
                        continue
                elif opcodes:
                    dt = recall(pieces, i, context, tall)
                else:
                    x = formula(v, chunks.count, decodes, chunks.tokens, chunks.pairs, context + chunks.context)
                    dt = np.int64(to_ticks(x, 1))

            if dt < 0:  # not recalled: run the opcodes
                total = context + chunks.context
                put(
                    v,
                    raw,
                    chunks.count,
                    decodes,
                    chunks.tokens,
                    chunks.largest,
                    chunks.pairs,
                    chunks.prompts,
                    total,
                    context,
                )
                if longest:
                    v[raw + schema.KV_MAX] = max(tall, chunks.longest)
                    v[raw + schema.KV_DECODE_MAX] = tall
                if spread:
                    size = decodes + chunks.count
                    squared = size * (squares + chunks.squares) - total * total
                    v[raw + schema.KV_VAR] = squared / (size * size) if size > 0 else 0.0
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
            ends, context, squares = end_decodes(q, w, times, watch, spread, place, now + dt, context, squares)
            decodes -= ends
            if longest and ends > 0:
                oldest = oldest_left(input_len, w.ending, ends, w.born, w.alive, w.slot, decodes, oldest)
            next_phase = phase + 1 if phase + 1 < block else np.int64(0)
            fills, ends, decodes, context, squares, oldest = end_prompts(
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
                now + dt,
                fills,
                ends,
                decodes,
                context,
                squares,
                oldest,
            )
            if ends > 0 and (watch or cl.closed):
                sort_first(w.ending, ends)  # the host goes in order of admission
                if cl.closed:
                    for j in range(ends):
                        completed(cl, q, w.ending[j], now + dt)
            if watch and ends > 0:
                proven, used, due = last_blocks(q, rules, w, next_phase, ends, used, due)
                if not proven:
                    status = UNPROVEN
                    break
            if ahead:
                if watch:
                    if held > 0:
                        last, used = release(q, rules, w, times, w.leaving, held, first, last, used)
                    for j in range(ends):
                        w.leaving[u(j)] = w.ending[u(j)]
                held = ends
            elif watch and ends > 0:
                last, used = release(q, rules, w, times, w.ending, ends, first, last, used)

            k += 1
            place = place + 1 if place + 1 < ring else 0
            if watch:  # the blocks that decodes need in the next step
                phase = next_phase
                used += phases[u(phase)]
                due += phases[u(phase)]
            if ahead:
                chosen = now
                now += dt
            elif decodes + fills > 0 or (head < n and queued_us[u(head)] <= now):
                now += dt
                chosen = now
            elif head < n:  # idle: the next arrival starts a step at once
                now = queued_us[u(head)]
                if cl.closed:
                    now = min(now, next_us(cl))
                chosen = now
        s.head, s.newest, s.decodes, s.context, s.squares = head, newest, decodes, context, squares
        s.oldest, s.filling, s.step, s.place, s.phase = oldest, fills, k, place, phase
        s.clamped, s.now, s.used, s.due, s.first, s.last = clamped, now, used, due, first, last
        s.chosen, s.held = chosen, held
        return status

    return fast_clock


# Replays take the smallest of these that does what they need.
CLOCKS = build(False, False), build(True, False), build(True, True)
