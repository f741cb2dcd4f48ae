"""The exact clock: every rule of the host's main branch, request by request and KV block by block, compiled.

Blocks, prefix hits, eviction of cached content, preemption of the last request, head-of-line blocking, prefill
threshold, horizon, clients that give up. Events in the host's order: (time, kind, order of pushing), kinds being
queued, step, time out. All effects of a step happen at its start. Section numbers are those of the host's semantics
(blis-des-semantics).
"""

from __future__ import annotations

import numpy as np

from simulator.clock.batch import (
    FAR,
    GAVE_UP,
    UNFINISHED,
    complete,
    first_waiting,
    forget,
    give_up,
    key_of,
    lift,
    lower,
    own_key,
    preempt,
    single_contexts,
)  # fmt: skip
from simulator.clock.blocks import FREE, REFERENCES, claim, name, take
from simulator.clock.queue import DONE, HOSTILE, MORE, ROOM, STUCK
from simulator.clock.steps import CHUNKS, piece_for, put, recall
from simulator.experiment.load import NEVER
from simulator.jit import njit
from simulator.vm import clamps, run, to_ticks

STATE = np.dtype(
    [(name_, "i8") for name_ in (
        "tail", "head", "waiting", "stacked", "running", "step_us", "pending", "step", "clamped", "preemptions",
        "failures", "quitter", "last_us", "keys", "serial", "slots", "lone", "alone", "filling", "context", "elapsed",
        "top",
    )] + [("offending", "f8")]
)  # fmt: skip


@njit
def exact_clock(q, rules, t, w, c, state, times, log, reach, last_step):  # type: ignore[no-untyped-def]
    """Run until nothing is left to happen or the horizon (DONE), step `last_step` (MORE), or more keys (ROOM)."""
    queued_us, input_len, output_len, deadline_us = q.queued_us, q.input_len, q.output_len, q.deadline_us
    prompt_blocks, shared_blocks = q.prompt_blocks, q.shared_blocks
    max_seqs, threshold, block, horizon_us = rules.max_seqs, rules.threshold, rules.block, rules.horizon_us
    outcome, quitters, table, who, order = w.outcome, w.quitters, w.table, w.who, w.order
    progress, goal, granted, spare, held = w.progress, w.goal, w.granted, w.spare, w.held
    left, since, born, serial = w.left, w.since, w.born, w.serial
    blocks, holder, counts = c.blocks, c.holder, c.counts
    rows, first_row, last_row, v, raw, out = t.rows, t.first, t.last, t.values, t.raw, t.out
    pieces = t.pieces
    start_us, first_us, found = times.start_us, times.first_us, times.cached
    log_us, log_tokens, logging, logged = log.us, log.tokens, log.us.size > 0, log.first[0]
    n, widest = queued_us.size, table.shape[1]
    s = state[0]
    for i in range(s.slots):
        left[w.free_slots[i]], spare[w.free_slots[i]] = FAR, FAR
    while True:
        if s.step >= last_step:
            return MORE
        if s.keys + s.running * widest > holder.size:
            return ROOM
        arrival = queued_us[s.tail] if s.tail < n else NEVER
        step = s.step_us if s.pending else NEVER
        quit_us = deadline_us[quitters[s.quitter]] if s.quitter < quitters.size else NEVER
        now = min(arrival, step, quit_us)
        if now == NEVER or now > horizon_us:
            break
        s.last_us = max(s.last_us, now)
        if arrival == now:  # 3: queued
            r = s.tail
            s.tail += 1
            if not rules.patient and deadline_us[r] > 0 and deadline_us[r] <= now:
                outcome[r] = GAVE_UP
                continue
            s.waiting += 1
            if not s.pending:
                s.pending, s.step_us = 1, now
            continue
        if step != now:  # 4.6: a client gives up
            r = quitters[s.quitter]
            s.quitter += 1
            if outcome[r] == UNFINISHED:
                give_up(w, c, s, log, reach, r)
                if s.running == 0 and not s.pending and s.waiting > 0:
                    s.pending, s.step_us = 1, now
            continue
        if s.running == 0 and s.waiting == 0:
            s.pending = 0
            continue
        k = s.step
        prefills, decodes, tokens, largest = np.int64(0), np.int64(0), np.int64(0), np.int64(0)
        pairs, context, filled = np.int64(0), np.int64(0), np.int64(0)
        evicted, reached, finished = False, NEVER, np.int64(0)
        quiet = s.filling == 0 and s.running <= rules.budget and s.running <= counts[FREE]

        # 4.2: running requests in order of admission
        tokens_left = np.int64(rules.budget)
        if quiet:  # all decode, and there is a token and a block for each: whoever takes which
            decodes, context = s.running, s.context
            tokens_left -= decodes
            if lower(spare, s.top) < 0:
                for i in range(s.top):
                    if spare[i] < 0:
                        table[i, held[i]] = take(blocks, holder, counts, np.int64(-1))
                        held[i] += 1
                        spare[i] = block - 1
            lift(progress, s.top)
            finished += lower(left, s.top) == 0
            s.context += decodes
        else:
            at = np.int64(0)
            while at < s.running and tokens_left > 0:
                i = order[at]
                r, done = who[i], np.int64(progress[i])
                want = input_len[r] - done
                prompt = want > 0
                if prompt:
                    if threshold > 0 and want > threshold:
                        want = threshold
                    want = min(want, tokens_left)
                else:
                    want = np.int64(1)
                need = (want - spare[i] + block - 1) // block if want > spare[i] else np.int64(0)
                while need > counts[FREE] and s.running > at:  # 4.4: the last request makes room
                    evicted = True
                    preempt(q, rules, w, c, s, log, reach, k)
                if s.running <= at:
                    break
                if prompt:
                    row, own = table[i], held[i]
                    if 0 < spare[i] <= want:
                        key = key_of(q, w, r, own - 1)
                        if key >= 0:
                            name(blocks, holder, row[own - 1], key)
                    stored = own * block - spare[i] + want
                    for b in range(own, own + need):
                        key = key_of(q, w, r, b) if (b + 1) * block <= stored else np.int64(-1)
                        row[b] = take(blocks, holder, counts, key)
                    goal[i] += want
                    prefills += 1
                    tokens += want
                    largest = max(largest, want)
                    pairs += want * done + want * (want + 1) // 2
                    filled += done
                else:
                    if need > 0:
                        table[i, held[i]] = take(blocks, holder, counts, np.int64(-1))
                    decodes += 1
                    context += done
                spare[i] += need * block - want
                held[i] += need
                granted[i] = want
                tokens_left -= want
                at += 1
            if at < s.running:
                reached = serial[order[at]] - 1
                for j in range(at, s.running):
                    granted[order[j]] = 0

        # 4.3: admissions from the head of the queue
        before = s.running
        while s.running < max_seqs and s.waiting > 0 and tokens_left > 0 and not evicted:
            r = first_waiting(w, s)
            cached, idle, whole = np.int64(0), np.int64(0), np.int64(prompt_blocks[r])
            shared, common, own = np.int64(shared_blocks[r]), np.int64(0), own_key(q, w, r)
            if shared > 0:
                common = w.group_key[q.group[r]]
            while cached < whole:
                key = common + cached if cached < shared else own + cached - shared
                if (cached >= shared and own < 0) or holder[key] < 0:
                    break
                idle += blocks[holder[key], REFERENCES] == 0
                cached += 1
            want = input_len[r] - cached * block
            if threshold > 0 and want > threshold:
                want = threshold
            want = min(want, tokens_left)
            need = (want + block - 1) // block
            if need + idle > counts[FREE]:
                break
            if s.stacked > 0:
                s.stacked -= 1
            else:
                s.head += 1
            s.waiting -= 1
            s.slots -= 1
            i = w.free_slots[s.slots]
            s.top = max(s.top, i + 1)
            order[s.running] = i
            s.running += 1
            who[i], progress[i], goal[i], granted[i] = r, 0, cached * block + want, want
            spare[i], held[i], born[i], serial[i] = 0, 0, NEVER, s.serial
            s.serial += 1
            s.filling += 1
            if want > 0:  # a prompt found whole claims no block
                row = table[i]
                for b in range(cached):
                    row[b] = holder[common + b if b < shared else own + b - shared]
                    claim(blocks, counts, row[b])
                stored = cached * block + want
                for b in range(cached, cached + need):
                    key = key_of(q, w, r, b) if (b + 1) * block <= stored else np.int64(-1)
                    row[b] = take(blocks, holder, counts, key)
                spare[i], held[i] = (cached + need) * block - stored, cached + need
                prefills += 1
                tokens += want
                largest = max(largest, want)
                pairs += want * (want + 1) // 2  # PI is still 0: the cached length is not visible
            tokens_left -= want
            start_us[r] = now
            found[r] = cached

        # 4.5: duration
        dt, tall = np.int64(-1), np.int64(0)
        if t.longest or t.spread:
            tall = single_contexts(q, w, s, t, before if quiet else np.int64(0))
        if t.lines and filled == 0 and prefills <= CHUNKS:
            i = piece_for(t, t.longest, prefills, decodes, tokens, largest, pairs, context, tall)
            dt = np.int64(recall(pieces, i, context, tall))
        if dt < 0:
            put(v, raw, prefills, decodes, tokens, largest, pairs, context + filled, context)
            run(rows, first_row, last_row, v)
            x = v[out]
            if clamps(x, 1):
                s.clamped += 1
                if rules.hostile_stops:
                    s.offending = x
                    return HOSTILE
            dt = np.int64(to_ticks(x, 1))
        if logging:
            log_us[k - logged], log_tokens[k - logged], reach[k - logged] = dt, decodes, reached
        s.elapsed += dt

        # 4.5: progress and first tokens, then completions
        for j in range(before if quiet else 0, s.running):
            i = order[j]
            r = who[i]
            size = input_len[r]
            if progress[i] < size:
                progress[i] = goal[i]
                if progress[i] == size:
                    first_us[r] = now + dt
                    born[i], since[i] = k + 1, s.elapsed
                    left[i] = max(output_len[r] - 1, 0)
                    finished += left[i] == 0
                    s.filling -= 1
                    s.context += size
            elif granted[i] > 0:
                progress[i] += 1
                left[i] -= 1
                finished += left[i] == 0
                s.context += 1
            else:
                since[i] += dt
        if finished > 0:
            complete(q, rules, w, c, s, times)
            if now + dt <= horizon_us:
                s.last_us = max(s.last_us, now + dt)
        s.step += 1
        s.pending = 1 if s.running > 0 or s.waiting > 0 else 0
        s.step_us = now + dt
        if s.alone >= 3 and horizon_us == NEVER and deadline_us[s.lone] == 0:
            return STUCK
    if logging:
        for j in range(s.running):
            forget(w, log, reach, order[j], s.step)
    return DONE
