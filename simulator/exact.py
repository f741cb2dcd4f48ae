"""The exact clock: every rule of the host's main branch, request by request and KV block by block, compiled.

Blocks, prefix hits, eviction of cached content, preemption of the last request, head-of-line blocking, prefill
threshold, horizon, clients that give up. Events in the host's order: (time, kind, order of pushing), kinds being
queued, step, time out. All effects of a step happen at its start. Section numbers are those of the host's semantics
(blis-des-semantics).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from simulator.blocks import FREE, REFERENCES, claim, name, release, take
from simulator.fast import DONE, HOSTILE, MORE
from simulator.jit import inlined, njit
from simulator.steps import CHUNKS, find, look, put, recall
from simulator.vm import clamps, run, to_ticks

STUCK, ROOM = 4, 5  # a request that can never finish; more keys are needed
NEVER = np.iinfo(np.int64).max
UNFINISHED, COMPLETED, GAVE_UP = 0, 1, 2  # Exact.outcome
FAR = 2**30  # more tokens, and more steps in one call, than there are

STATE = np.dtype(
    [(name_, "i8") for name_ in (
        "tail", "head", "waiting", "stacked", "running", "step_us", "pending", "step", "clamped", "preemptions",
        "failures", "quitter", "last_us", "keys", "serial", "slots", "lone", "alone", "filling", "context", "elapsed",
        "top",
    )] + [("offending", "f8")]
)  # fmt: skip


class Exact(NamedTuple):
    """What the exact clock keeps between calls: running requests by slot, and their slots in order of admission."""

    outcome: Any  # per request
    region: Any  # per request: first key of a prompt of its own, -1 until preempted
    group_key: Any  # first key of each group's blocks
    prompt_key: Any  # first key of each prompt's blocks
    quitters: Any  # requests whose client may give up, by deadline
    stack: Any  # preempted requests, the next one to be admitted on top
    free_slots: Any
    order: Any  # slots in order of admission
    table: Any  # blocks of each slot's request, in order
    who: Any
    progress: Any
    goal: Any  # progress at the end of the step, while in the prompt
    granted: Any  # new tokens in this step
    spare: Any  # room for tokens in the last block
    held: Any  # number of blocks
    left: Any  # decode steps to go, once the prompt is done; spare and left of free slots are FAR
    since: Any  # decode time of the instance when the prompt was done, plus steps that passed the request by
    born: Any  # first step after its prompt was done
    serial: Any  # order of admission


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
                _give_up(w, c, s, log, reach, r)
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
            if _less(spare, s.top) < 0:
                for i in range(s.top):
                    if spare[i] < 0:
                        table[i, held[i]] = take(blocks, holder, counts, np.int64(-1))
                        held[i] += 1
                        spare[i] = block - 1
            _more(progress, s.top)
            finished += _less(left, s.top) == 0
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
                    _preempt(q, rules, w, c, s, log, reach, k)
                if s.running <= at:
                    break
                if prompt:
                    row, own = table[i], held[i]
                    if 0 < spare[i] <= want:
                        key = _key(q, w, r, own - 1)
                        if key >= 0:
                            name(blocks, holder, row[own - 1], key)
                    stored = own * block - spare[i] + want
                    for b in range(own, own + need):
                        key = _key(q, w, r, b) if (b + 1) * block <= stored else np.int64(-1)
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
            r = _head(w, s)
            cached, idle, whole = np.int64(0), np.int64(0), np.int64(prompt_blocks[r])
            shared, common, own = np.int64(shared_blocks[r]), np.int64(0), _own_key(q, w, r)
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
                    key = _key(q, w, r, b) if (b + 1) * block <= stored else np.int64(-1)
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
        dt = np.int64(-1)
        if t.lines and filled == 0 and prefills <= CHUNKS:
            i = find(pieces, prefills, decodes, tokens, largest, context)
            if i < 0:
                i = -1 - i
                look(rows, first_row, last_row, v, raw, out, t.slope, t.error, pieces, i,
                     prefills, decodes, tokens, largest, pairs, context)  # fmt: skip
            dt = recall(pieces, i, context)
        if dt < 0:
            put(v, raw, prefills, decodes, tokens, largest, pairs, context + filled, context)
            if t.longest or t.spread:
                _single_contexts(q, w, s, t, before if quiet else np.int64(0))
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
            _complete(q, rules, w, c, s, times)
            if now + dt <= horizon_us:
                s.last_us = max(s.last_us, now + dt)
        s.step += 1
        s.pending = 1 if s.running > 0 or s.waiting > 0 else 0
        s.step_us = now + dt
        if s.alone >= 3 and horizon_us == NEVER and deadline_us[s.lone] == 0:
            return STUCK
    if logging:
        for j in range(s.running):
            _forget(w, log, reach, order[j], s.step)
    return DONE


@njit
def _less(column, n):  # type: ignore[no-untyped-def]
    """One less at each of the first `n` places; the least that is now there. Compiled to vector instructions."""
    least = np.int32(2**31 - 1)
    for j in range(n):
        x = np.int32(column[j] - np.int32(1))
        column[j] = x
        least = min(least, x)
    return least


@njit
def _more(column, n):  # type: ignore[no-untyped-def]
    """One more at each of the first `n` places."""
    for j in range(n):
        column[j] += np.int32(1)


@inlined
def _own_key(q, w, r):  # type: ignore[no-untyped-def]
    """The key of the first block of request `r`'s prompt behind what it shares; -1 where nobody could look for it."""
    if q.prompt[r] >= 0:
        return np.int64(w.prompt_key[q.prompt[r]])
    return np.int64(w.region[r])


@inlined
def _key(q, w, r, i):  # type: ignore[no-untyped-def]
    """The key of block `i` of request `r`'s prompt; -1 where nobody could look for it."""
    shared = np.int64(q.shared_blocks[r])
    if i < shared:
        return np.int64(w.group_key[q.group[r]] + i)
    own = _own_key(q, w, r)
    return own + i - shared if own >= 0 and i < q.prompt_blocks[r] else np.int64(-1)


@inlined
def _head(w, s):  # type: ignore[no-untyped-def]
    """The first waiting request; those that gave up are passed over."""
    while s.stacked > 0:
        r = np.int64(w.stack[s.stacked - 1])
        if w.outcome[r] == UNFINISHED:
            return r
        s.stacked -= 1
    while w.outcome[s.head] != UNFINISHED:
        s.head += 1
    return s.head


@inlined
def _leave(w, c, s, j):  # type: ignore[no-untyped-def]
    """The request at place `j` of the batch gives back its blocks and its slot; the order of the others stays."""
    i = w.order[j]
    if w.born[i] == NEVER:
        s.filling -= 1
    else:
        s.context -= w.progress[i]
    _free(w, c, s, i)
    for other in range(j, s.running - 1):
        w.order[other] = w.order[other + 1]
    s.running -= 1


@inlined
def _free(w, c, s, i):  # type: ignore[no-untyped-def]
    """Blocks and slot `i` are free again."""
    release(c.blocks, c.counts, w.table[i], w.held[i])
    w.free_slots[s.slots] = i
    s.slots += 1
    w.spare[i], w.left[i] = FAR, FAR


@njit
def _preempt(q, rules, w, c, s, log, reach, k):  # type: ignore[no-untyped-def]
    """The last request of the batch goes back to the head of the queue and starts from scratch."""
    i = w.order[s.running - 1]
    r = w.who[i]
    _forget(w, log, reach, i, k)
    ours = np.int64(q.prompt_blocks[r]) - q.shared_blocks[r]
    if rules.caching and q.prompt[r] < 0 and w.region[r] < 0 and ours > 0:  # from now on it looks for its blocks itself
        w.region[r] = s.keys
        s.keys += ours
        stored = w.held[i] * rules.block - w.spare[i]
        if stored >= w.progress[i]:  # its prompt was not found whole
            for b in range(q.shared_blocks[r], min(stored // rules.block, np.int64(q.prompt_blocks[r]))):
                name(c.blocks, c.holder, w.table[i, b], _key(q, w, r, b))
    if s.running == 1:
        s.alone = s.alone + 1 if s.lone == r else 1
        s.lone = r
    _leave(w, c, s, s.running - 1)
    w.stack[s.stacked] = r
    s.stacked += 1
    s.waiting += 1
    s.preemptions += 1


@njit
def _give_up(w, c, s, log, reach, r):  # type: ignore[no-untyped-def]
    """The client of request `r` leaves: out of the batch or the queue."""
    w.outcome[r] = GAVE_UP
    for j in range(s.running):
        if w.who[w.order[j]] == r:
            _forget(w, log, reach, w.order[j], s.step)
            _leave(w, c, s, j)
            return
    s.waiting -= 1


@njit
def _forget(w, log, reach, i, k):  # type: ignore[no-untyped-def]
    """The tokens that slot `i` decoded before step `k` count no longer."""
    if log.us.size > 0 and w.born[i] < k:
        for step in range(w.born[i] - log.first[0], k - log.first[0]):
            if w.serial[i] <= reach[step]:
                log.tokens[step] -= 1


@njit
def _single_contexts(q, w, s, t, ahead):  # type: ignore[no-untyped-def]
    """Variance and maxima of the contexts of the requests in the step (schema.RAW). The first `ahead` places of the
    batch have their new token counted already."""
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
    t.values[t.raw + 6] = longest
    t.values[t.raw + 7] = (size * s2 - s1 * s1) / (size * size) if size > 0 else 0.0
    t.values[t.raw + 9] = longest_decode


@inlined
def _complete(q, rules, w, c, s, times):  # type: ignore[no-untyped-def]
    """Completions in order of the batch: the last token gets its place, then all blocks are given back."""
    kept = np.int64(0)
    for j in range(s.running):
        i = w.order[j]
        if w.left[i] > 0 or w.born[i] == NEVER:
            w.order[kept] = i
            kept += 1
            continue
        r = w.who[i]
        s.context -= w.progress[i]
        if q.output_len[r] > 0 and w.spare[i] == 0:
            if c.counts[FREE] == 0:
                s.failures += 1
            else:
                w.table[i, w.held[i]] = take(c.blocks, c.holder, c.counts, np.int64(-1))
                w.held[i] += 1
        _free(w, c, s, i)
        w.outcome[r] = COMPLETED
        times.decode_us[r] = s.elapsed - w.since[i]
    s.running = kept
