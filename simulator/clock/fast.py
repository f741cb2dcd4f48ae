"""The fast clock: one serving instance at a cost per step that does not grow with the batch.

Nothing loops over the batch. Every running decode gains one token a step, so sums over decodes move by their
count; a decode's last step is known when its prompt is done, so completions stand in a calendar by step number.
Steps of decodes alone run in an inner loop of a few instructions each, their times recalled (steps.py).

Nor does it keep single KV blocks. Blocks that are released together lie together in the host's list of free blocks, a
prompt's last ones foremost; so the list is kept as segments, and taking blocks from its head eats prompts from
behind, exactly as the host evicts them. How many blocks the decodes take follows from their counts by phase: each
needs one whenever its tokens fill the last.

Where a block could be missing, the same content come to stand in two places, or the order within a step matter, it
stops (`UNPROVEN`), and the exact clock runs the load instead.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from simulator.clock.queue import DONE, HOSTILE, MORE, UNPROVEN
from simulator.clock.segments import claim, eat, give
from simulator.clock.steps import CHUNKS, DIRECT, LINE, MARGIN, evaluate, piece_for, put, recall
from simulator.experiment.load import NEVER
from simulator.jit import njit
from simulator.schema import KV_DECODE_MAX, KV_MAX, KV_VAR
from simulator.vm import clamps, run, to_ticks

u = np.uintp  # an index that is not below 0, so that the compiled code need not look

STATE = np.dtype(
    [(name, "i8") for name in (
        "head", "newest", "decodes", "context", "squares", "oldest", "filling", "step", "place", "phase",
        "clamped", "now", "used", "due", "first", "last",
    )] + [("offending", "f8")]
)  # fmt: skip


class Work(NamedTuple):
    """What the fast clock keeps between calls.

    Owners of content are prompts, then groups: `present` whole blocks of it can be found (of a prompt those beyond its
    group's), `holders` running requests hold them; when nobody does they lie in segment `lies`, -1 for none.
    """

    prompts: int
    present: Any
    holders: Any
    lies: Any
    owner: Any  # of each segment of free blocks, -1 for content that nobody looks for
    count: Any  # its blocks
    phases: Any  # decodes by the step, modulo the block size, in which they need a block
    turn: Any  # per request: that step
    calendar: Any  # step number modulo its size -> first request that ends there
    after: Any  # the next request that ends in the same step
    ending: Any  # requests that end in this step
    filling: Any  # requests still in their prompt, in order of admission
    progress: Any
    chunk: Any
    born: Any  # step in which the prompt was done
    alive: Any
    slot: Any


@njit
def _sort(values, n):  # type: ignore[no-untyped-def]
    """The first `n`, in place; few."""
    for i in range(1, n):
        x, j = values[i], i
        while j > 0 and values[j - 1] > x:
            values[j] = values[j - 1]
            j -= 1
        values[j] = x


@njit
def _oldest_left(input_len, ending, ends, born, alive, slot, decodes, oldest):  # type: ignore[no-untyped-def]
    """Remove the `ends` requests from the decodes alive; the largest (input_len - born) of those left."""
    lost, size = False, decodes + ends
    for j in range(ends):
        r = ending[j]
        lost = lost or input_len[r] - born[r] == oldest
        size -= 1
        moved = alive[size]
        alive[slot[r]] = moved
        slot[moved] = slot[r]
    if lost:
        for i in range(decodes):
            age = input_len[alive[i]] - born[alive[i]]
            oldest = age if i == 0 else max(oldest, age)
    return oldest


def build(blocks: bool, single: bool, formula=None):  # type: ignore[no-untyped-def]
    """The clock, compiled with or without what only some loads and programs need: counting `blocks`; `single` contexts,
    steps that cannot be remembered and the log.

    `formula(values, prefills, decodes, tokens, pairs, context)`, compiled, gives step times in us instead of the
    opcodes: a yardstick for benchmarks.
    """
    opcodes = formula is None

    @njit
    def fast_clock(q, rules, t, w, state, times, log, last_step):  # type: ignore[no-untyped-def]
        """Run until every request is done (DONE) or step `last_step` (MORE: call again)."""
        # the tuples taken apart once
        queued_us, input_len, output_len, prompt, group = q.queued_us, q.input_len, q.output_len, q.prompt, q.group
        shared_blocks, prompt_blocks, all_blocks = q.shared_blocks, q.prompt_blocks, q.all_blocks
        max_seqs, budget, threshold, block = rules.max_seqs, rules.budget, rules.threshold, rules.block
        watch = blocks and rules.watch
        rows, first_row, last_row, v, raw, out = t.rows, t.first, t.last, t.values, t.raw, t.out
        pieces = t.pieces
        lines, spread, longest = not single or t.lines, single and t.spread, single and t.longest
        present, holders, lies, owner, count = w.present, w.holders, w.lies, w.owner, w.count
        phases, turn, calendar, after, ending = w.phases, w.turn, w.calendar, w.after, w.ending
        filling, progress, chunk, born, alive, slot = w.filling, w.progress, w.chunk, w.born, w.alive, w.slot
        start_us, first_us, decode_us, found = times.start_us, times.first_us, times.decode_us, times.cached
        log_us, log_tokens, logging, logged = log.us, log.tokens, single and log.us.size > 0, log.first[0]
        n, ring, groups_at = queued_us.size, calendar.size, w.prompts
        s = state[0]
        head, newest, decodes, s1, s2 = s.head, s.newest, s.decodes, s.context, s.squares
        oldest, fills, k, place, phase = s.oldest, s.filling, s.step, s.place, s.phase
        clamped, now, used, due, first, last = s.clamped, s.now, s.used, s.due, s.first, s.last
        status = DONE
        if n > 0 and k == 0:
            now = queued_us[0]
        while head < n or decodes + fills > 0:
            if k >= last_step:
                status = MORE
                break
            prefills, tokens, largest, pairs = np.int64(0), np.int64(0), np.int64(0), np.int64(0)
            fill_s1, fill_s2, fill_max = np.int64(0), np.int64(0), np.int64(0)
            left = budget - decodes
            if left < 0 or (watch and used > rules.blocks):
                status = UNPROVEN
                break
            if fills > 0 or (head < n and queued_us[u(head)] <= now):
                for j in range(fills):
                    r = filling[j]
                    done = progress[j]
                    want = input_len[u(r)] - done
                    if threshold > 0 and want > threshold:
                        want = threshold
                    take = min(want, left)
                    if take < want and (r != newest or take == 0):
                        status = UNPROVEN
                        break
                    left -= take
                    prefills += 1
                    tokens += take
                    largest = max(largest, take)
                    pairs += take * done + take * (take + 1) // 2
                    fill_s1 += done
                    fill_s2 += done * done
                    fill_max = max(fill_max, done)
                    chunk[j] = take
                    p, g, shared = np.int64(prompt[u(r)]), np.int64(group[u(r)]), np.int64(shared_blocks[u(r)])
                    reach = (done + take) // block
                    if rules.once:
                        held = done // block
                        if (g >= 0 and held < shared and present[u(groups_at + g)] > held) or (
                            p >= 0 and present[u(p)] > max(held - shared, 0)
                        ):
                            status = UNPROVEN  # the same content twice: evicting one copy hides the other
                            break
                    if watch:
                        need = (done + take + block - 1) // block - (done + block - 1) // block
                        used += need
                        due += need
                    if p >= 0:
                        present[u(p)] = max(present[u(p)], reach - shared)
                    if g >= 0:
                        present[u(groups_at + g)] = max(present[u(groups_at + g)], min(reach, shared))
                if status != DONE:
                    break
                running = decodes + fills
                while head < n and running < max_seqs and left > 0 and queued_us[u(head)] <= now:
                    r = head
                    p, g = np.int64(prompt[u(r)]), np.int64(group[u(r)])
                    whole, shared = np.int64(prompt_blocks[u(r)]), np.int64(shared_blocks[u(r)])
                    if due > 0:
                        if used > rules.blocks:
                            status = UNPROVEN
                            break
                        first = eat(owner, count, present, lies, first, due)
                        due = np.int64(0)
                    cached = min(present[u(groups_at + g)], shared) if g >= 0 else np.int64(0)
                    if p >= 0:
                        if cached == shared:
                            cached = min(shared + present[u(p)], whole)
                        elif present[u(p)] > 0:  # cut off from its beginning: it would be written a second time
                            status = UNPROVEN
                            break
                    want = input_len[u(r)] - cached * block
                    take = min(want, threshold) if threshold > 0 else want
                    take = min(take, left)
                    left -= take
                    reach = whole
                    if take == want:
                        need = whole - cached + (input_len[u(r)] > whole * block)
                    else:
                        reach = (cached * block + take) // block
                        need = (take + block - 1) // block
                    if watch and want > 0:  # a prompt found whole claims no block
                        if p >= 0:
                            used += claim(owner, count, lies, p)
                            holders[p] += 1
                        if g >= 0:
                            used += claim(owner, count, lies, groups_at + g)
                            holders[groups_at + g] += 1
                        used += need
                        due = need
                        if used > rules.blocks:
                            status = UNPROVEN
                            break
                    if p >= 0:
                        present[u(p)] = max(present[u(p)], reach - shared)
                    if g >= 0:
                        present[u(groups_at + g)] = max(present[u(groups_at + g)], min(reach, shared))
                    if take > 0:
                        prefills += 1
                        tokens += take
                        largest = max(largest, take)
                        pairs += take * (take + 1) // 2  # PI is still 0: the cached length is not visible
                    filling[u(fills)] = r
                    progress[u(fills)] = cached * block
                    chunk[u(fills)] = take
                    fills += 1
                    start_us[u(r)] = now
                    found[u(r)] = cached
                    newest = r
                    head += 1
                    running += 1
                if status != DONE:
                    break

            tall = oldest + k - 1 if longest and decodes > 0 else np.int64(0)
            dt = np.int64(-1)
            if lines and ((fill_s1 == 0 and prefills <= CHUNKS) or not opcodes):
                i = np.int64(0)
                if opcodes:
                    i = piece_for(t, longest, prefills, decodes, tokens, largest, pairs, s1, tall)
                kind = pieces[u(i)].kind if opcodes else LINE
                if fills == 0 and kind != DIRECT:
                    # nothing but decodes until the next arrival that finds room, or the next completion
                    stop_us = queued_us[u(head)] if head < n and decodes < max_seqs else NEVER
                    base, slope, tall_slope = pieces[u(i)].base, pieces[u(i)].slope, pieces[u(i)].tall_slope
                    high, tallest = pieces[u(i)].high, pieces[u(i)].tall_high
                    most = s1 + decodes * (last_step - k - 2)  # its last step is left to the general way
                    context, more = float(s1), float(decodes)
                    end = float(min(high, most) if opcodes else most)
                    dt, owed = np.int64(base), due
                    line = kind == LINE
                    while True:
                        if line:
                            if opcodes:
                                x = base + slope * context
                                if longest:
                                    x += tall_slope * tall
                            else:
                                x = formula(v, prefills, decodes, tokens, pairs, context)
                            dt = np.int64(x)
                            if opcodes and abs(x - dt - 0.5) > 0.5 - MARGIN:
                                x = evaluate(t, prefills, decodes, tokens, largest, pairs, context, tall)
                                dt = np.int64(to_ticks(x, 1))
                        if calendar[u(place)] >= 0 or now + dt >= stop_us:
                            break
                        if logging:
                            log_us[k - logged], log_tokens[k - logged] = dt, decodes
                        now += dt
                        context += more
                        k += 1
                        place = place + 1 if place + 1 < ring else 0
                        if longest:
                            tall += 1
                        if watch:
                            phase = phase + 1 if phase + 1 < block else 0
                            due += phases[u(phase)]
                        if context > end or (longest and tall > tallest):
                            dt = np.int64(-1)
                            break
                    s1 = np.int64(context)
                    used += due - owed
                    if dt < 0:
                        continue
                elif opcodes:
                    dt = recall(pieces, i, s1, tall)
                else:
                    dt = np.int64(to_ticks(formula(v, prefills, decodes, tokens, pairs, s1 + fill_s1), 1))

            if dt < 0:
                put(v, raw, prefills, decodes, tokens, largest, pairs, s1 + fill_s1, s1)
                if longest:
                    v[raw + KV_MAX] = max(tall, fill_max)
                    v[raw + KV_DECODE_MAX] = tall
                if spread:
                    size, total = decodes + prefills, s1 + fill_s1
                    v[raw + KV_VAR] = (size * (s2 + fill_s2) - total * total) / (size * size) if size > 0 else 0.0
                run(rows, first_row, last_row, v)
                x = v[out]
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

            if spread:
                s2 += 2 * s1 + decodes
            s1 += decodes
            ends = np.int64(0)
            r = np.int64(calendar[u(place)])
            calendar[u(place)] = -1
            while r >= 0:
                if blocks:
                    ending[u(ends)] = r
                ends += 1
                decode_us[u(r)] = now + dt - first_us[u(r)]  # steps follow each other while anything runs
                final = np.int64(input_len[u(r)]) + output_len[u(r)] - 1
                s1 -= final
                if spread:
                    s2 -= final * final
                if watch:
                    phases[turn[u(r)]] -= 1
                r = np.int64(after[u(r)])
            decodes -= ends
            if longest and ends > 0:
                oldest = _oldest_left(input_len, ending, ends, born, alive, slot, decodes, oldest)

            kept = np.int64(0)
            next_phase = phase + 1 if phase + 1 < block else np.int64(0)
            for j in range(fills):
                r = filling[j]
                reach = progress[j] + chunk[j]
                if reach < input_len[u(r)]:
                    filling[kept] = r
                    progress[kept] = reach
                    kept += 1
                    continue
                first_us[u(r)] = now + dt
                output = np.int64(output_len[u(r)])
                if watch:
                    beyond = (
                        input_len[u(r)] - np.int64(prompt_blocks[u(r)]) * block
                        if found[u(r)] * block < input_len[u(r)]
                        else 0
                    )
                    phase_of = next_phase + (block - beyond if beyond > 0 else 0)
                    turn[u(r)] = phase_of - block if phase_of >= block else phase_of
                if output <= 1:
                    decode_us[u(r)] = 0
                    if blocks:
                        ending[u(ends)] = r
                    ends += 1
                    continue
                if longest:
                    born[u(r)] = k
                    slot[u(r)] = decodes
                    alive[decodes] = r
                    age = input_len[u(r)] - k
                    oldest = age if decodes == 0 else max(oldest, age)
                if watch:
                    phases[turn[u(r)]] += 1
                decodes += 1
                s1 += input_len[u(r)]
                if spread:
                    s2 += np.int64(input_len[u(r)]) * input_len[u(r)]
                end = place + output - 1
                if end >= ring:
                    end -= ring
                after[u(r)] = calendar[u(end)]
                calendar[u(end)] = r
            fills = kept
            if watch and ends > 0:
                _sort(ending, ends)  # the host goes in order of admission
                for j in range(ends):
                    r = ending[j]
                    p, g = np.int64(prompt[u(r)]), np.int64(group[u(r)])
                    whole, shared, output = (
                        np.int64(prompt_blocks[u(r)]),
                        np.int64(shared_blocks[u(r)]),
                        np.int64(output_len[u(r)]),
                    )
                    if output > 0 and turn[u(r)] == next_phase:  # the last token needs a block
                        used += 1
                        due += 1
                        if used > rules.blocks:
                            status = UNPROVEN
                            break
                    if found[u(r)] * block == input_len[u(r)]:
                        last = give(owner, count, first, last, -1, -(-output // block))
                        used -= -(-output // block)
                        continue
                    private = all_blocks[u(r)] - (whole if p >= 0 else shared)
                    last = give(owner, count, first, last, -1, private)
                    used -= private
                    if p >= 0:
                        holders[p] -= 1
                        if holders[p] == 0 and whole > shared:
                            lies[p] = last
                            last = give(owner, count, first, last, p, present[u(p)])
                            used -= present[u(p)]
                    if g >= 0:
                        holders[groups_at + g] -= 1
                        if holders[groups_at + g] == 0 and shared > 0:
                            lies[groups_at + g] = last
                            last = give(owner, count, first, last, groups_at + g, present[u(groups_at + g)])
                            used -= present[u(groups_at + g)]
            if status != DONE:
                break
            k += 1
            place = place + 1 if place + 1 < ring else 0
            if watch:
                phase = next_phase
                used += phases[u(phase)]
                due += phases[u(phase)]
            if decodes + fills > 0 or (head < n and queued_us[u(head)] <= now):
                now += dt
            elif head < n:
                now = queued_us[u(head)]  # idle at once
        s.head, s.newest, s.decodes, s.context, s.squares = head, newest, decodes, s1, s2
        s.oldest, s.filling, s.step, s.place, s.phase = oldest, fills, k, place, phase
        s.clamped, s.now, s.used, s.due, s.first, s.last = clamped, now, used, due, first, last
        return status

    return fast_clock


# the smallest that will do is taken
CLOCKS = build(False, False), build(True, False), build(True, True)
