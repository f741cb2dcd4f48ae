"""The exact clock: every rule of the host's main branch, request by request and KV block by block, compiled.

Blocks, prefix hits, eviction of cached content, preemption of the last request, head-of-line blocking, prefill
threshold, horizon, clients that give up. Events run in the host's order: (time, kind, order of pushing), the kinds
being queued, step, time out. All effects of a step happen when it is composed. Section numbers are those of the host's
semantics (blis-des-semantics).

The host composes a step as it begins. An engine with asynchronous scheduling (`Rules.ahead`) composes it as the one
before begins, so that a request misses one step more, and what a step frees can be used by the one after the next.
With nothing to compose, it waits for the step that runs (vllm/v1/engine/core.py, `step_with_batch_queue`).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from simulator.clock.batch import (
    DROPPED,
    FAR,
    GAVE_UP,
    UNFINISHED,
    complete,
    depart,
    first_waiting,
    forget,
    give_up,
    join,
    key_of,
    lift,
    lower,
    pop,
    preempt,
    seat,
    single_contexts,
    stuck,
    tell,
)
from simulator.clock.blocks import FREE, REFERENCES, claim, name, take
from simulator.clock.clients import end, next_us, send
from simulator.clock.queue import DONE, HOSTILE, MORE, ROOM, STUCK
from simulator.clock.steps import NO_CHUNKS, piece_for, put, recall, with_chunk
from simulator.clock.tier import GO, LATER, consult, drop, forsake, land, rest, store
from simulator.clock.transferred import admit_transferred, first_tokens, next_transfer_us, reserve, unreserve
from simulator.clock.vm import clamps, run, to_ticks
from simulator.common.jit import inlined, njit
from simulator.serving.load import NEVER

# The state of the clock. Each line names a field (int64), and says what it holds.
_STATE = """\
tail: next request to be queued
head: next request to be admitted, if none was preempted
waiting: requests queued and not running
stacked: preempted requests, which are admitted before others
saturated: 1 if requests waited after the last step that could admit them
running: requests in the batch
step_us: when the pending step is composed
free_us: when the last step that was composed ends
pending: 1 if a step is scheduled
step: number of steps done
clamped: step times outside [1, 10^10] us
preemptions
failures: last tokens that found no block
quitter: next request whose client may give up
quitters: requests known whose client may give up
last_us: time of the last event
keys: block keys handed out
serial: admissions so far
slots: free slots
leaving: slots of requests whose last step has not ended, if steps are composed ahead
outgoing: those of them that leave before the next step is composed
lone: last request that was preempted while it ran alone, and how often in a row, see `stuck`
alone
filling: running requests still in their prompt
context: sum of the decodes' progress
elapsed: sum of all step times
top: slots that were ever used"""
STATE = np.dtype([*((line.split(":")[0], "i8") for line in _STATE.splitlines()), ("offending", "f8")])


@inlined
def decode_all(q, rules, w, c, s):  # type: ignore[no-untyped-def]
    """4.2 where all running requests decode and each gets a token and a block. Returns the requests that finish.

    The columns are swept in order of slot: which request takes which block makes no difference. Free slots are swept
    too, which is why their `spare` and `left` are FAR.
    """
    if rules.turns:
        for j in range(s.running):
            if w.spare[w.order[j]] == 1:
                tell(q, rules, w, c, w.order[j])
    if lower(w.spare, s.top) < 0:
        for i in range(s.top):
            if w.spare[i] < 0:  # its last block was full
                w.table[i, w.held[i]] = take(c.blocks, c.holder, c.counts, np.int64(-1))
                w.held[i] += 1
                w.spare[i] = rules.block - 1
    lift(w.progress, s.top)
    finished = np.int64(lower(w.left, s.top) == 0)  # 1 for any number of them: only whether it is 0 matters
    s.context += s.running
    return finished


@inlined
def accepted(rules, w, i, tokens_left):  # type: ignore[no-untyped-def]
    """The tokens that a decode emits in a step that verifies drafts, as many as its positions at most.

    What the mean rate leaves over is carried to its next step (the host's sim/simulator.go, `peekDecodeTokens`).
    """
    wanted = np.int64(w.carry[i] + rules.rate)
    emitted = min(max(wanted, np.int64(1)), rules.width, tokens_left, np.int64(w.left[i]))
    w.carry[i] = max(w.carry[i] + (rules.rate - emitted), 0.0)
    return emitted


@inlined
def serve_running(q, rules, w, c, s, log, reach, k, defer):  # type: ignore[no-untyped-def]
    """4.2: tokens and blocks for the running requests, in order of admission; `defer`: not for those in their prompt.

    A decode takes as many tokens of the budget as it verifies, and blocks for those alone that are accepted.

    Returns the chunks, the decodes, the sum of their contexts, the tokens left in the budget, True if a request was
    preempted, and the serial number of the last request that was reached (NEVER: all).
    """
    chunks, decodes, context = NO_CHUNKS, np.int64(0), np.int64(0)
    tokens_left, evicted, reached = np.int64(rules.budget), False, NEVER
    at = np.int64(0)
    while at < s.running and tokens_left > 0:
        i = w.order[at]
        r, done = w.who[i], np.int64(w.progress[i])
        want = q.input_len[r] - done
        prompt = want > 0
        if prompt and defer:
            w.granted[i] = 0
            at += 1
            continue
        if prompt:
            if rules.threshold > 0 and want > rules.threshold:
                want = rules.threshold
            want = min(want, tokens_left)
        else:
            want = np.int64(1) if rules.width == 1 else accepted(rules, w, i, tokens_left)
        need = (want - w.spare[i] + rules.block - 1) // rules.block if want > w.spare[i] else np.int64(0)
        while need > c.counts[FREE] and s.running > at:  # 4.4: the last request makes room, in the end this one
            evicted = True
            preempt(q, rules, w, c, s, log, reach, k)
        if s.running <= at:
            break
        if prompt:
            row, own = w.table[i], w.held[i]
            if 0 < w.spare[i] <= want:  # the chunk fills the block that was begun
                key = key_of(q, rules, w, r, own - 1)
                if key >= 0:
                    name(c.blocks, c.holder, row[own - 1], key)
            stored = own * rules.block - w.spare[i] + want
            for b in range(own, own + need):  # only full blocks can be found
                key = key_of(q, rules, w, r, b) if (b + 1) * rules.block <= stored else np.int64(-1)
                row[b] = take(c.blocks, c.holder, c.counts, key)
            w.goal[i] += want
            chunks = with_chunk(chunks, want, done, q.input_len[r])
        else:
            if rules.turns and 0 < w.spare[i] <= want:
                tell(q, rules, w, c, i)
            for b in range(w.held[i], w.held[i] + need):
                w.table[i, b] = take(c.blocks, c.holder, c.counts, np.int64(-1))
            decodes += 1
            context += done
        w.spare[i] += need * rules.block - want
        w.held[i] += need
        w.granted[i] = want
        tokens_left -= want if prompt else min(rules.width, tokens_left)
        at += 1
    if at < s.running:  # no tokens left for the others
        reached = w.serial[w.order[at]] - 1
        for j in range(at, s.running):
            w.granted[w.order[j]] = 0
    return chunks, decodes, context, tokens_left, evicted, reached


@inlined
def admit(q, rules, w, c, s, times, now, begin_us, tokens_left, chunks):  # type: ignore[no-untyped-def]
    """4.3: admissions from the head of the queue, until one finds no room. Returns the chunks.

    Without chunked prefill, no room for all its tokens is no room (vllm/v1/core/sched/scheduler.py, `schedule`).
    Requests that the tier set aside come first, see tier.py.
    """
    tier, tiered, at = c.tier, c.tier.blocks > 0, np.int64(0)  # at: how many of those set aside were looked at
    while s.running + s.leaving < rules.max_seqs and s.waiting > 0 and tokens_left > 0:
        aside = tiered and at < tier.state[0].aside
        if tiered and not aside and s.waiting == tier.state[0].aside:
            break
        r = np.int64(tier.aside[at]) if aside else first_waiting(w, s)
        cached, idle, whole = np.int64(0), np.int64(0), np.int64(q.prompt_blocks[r])
        i = np.int64(tier.slot[r]) if aside else np.int64(-1)
        loaded = i >= 0
        if loaded:
            if tier.done_us[i] > now:
                at += 1
                continue
            cached = land(q, rules, w, c, i)
        while not loaded and cached < whole:  # find the prompt's blocks in order, up to the first that is missing
            key = key_of(q, rules, w, r, cached)
            if key < 0 or c.holder[key] < 0:
                break
            idle += c.blocks[c.holder[key], REFERENCES] == 0
            cached += 1
        if tiered and not loaded:
            fate = consult(q, rules, w, c, s, r, cached, idle, now)
            if fate == LATER:
                if not aside:
                    pop(s)
                    tier.aside[at] = r
                    tier.state[0].aside += 1
                at += 1
                continue
            if fate != GO:
                break
        want = q.input_len[r] - cached * rules.block
        if loaded:
            want = max(want, np.int64(1))
        if rules.threshold > 0 and want > rules.threshold:
            want = rules.threshold
        if want > tokens_left and not rules.chunked:
            break
        want = min(want, tokens_left)
        stored = min(cached * rules.block + want, np.int64(q.input_len[r]))
        need = (stored + rules.block - 1) // rules.block - cached
        if need + idle > c.counts[FREE]:  # blocks found idle leave the free list too
            break
        if aside:
            drop(tier, at)
        else:
            pop(s)
        if loaded:
            tier.slot[r] = -1
            tier.state[0].loading -= 1
        else:
            i = seat(w, s)
        join(w, s, i, r)
        w.progress[i], w.goal[i], w.granted[i] = 0, stored, want
        w.spare[i], w.held[i], w.born[i], w.carry[i] = 0, 0, NEVER, 0.0
        s.filling += 1
        if tiered:  # what was loaded is in the tier, and a prompt found whole has no blocks to store
            tier.stored[i] = cached if loaded or want == 0 else 0
        if want > 0:  # a prompt found whole claims no block
            row = w.table[i]
            for b in range(0 if loaded else cached):
                row[b] = c.holder[key_of(q, rules, w, r, b)]
                claim(c.blocks, c.counts, row[b])
            for b in range(cached, cached + need):
                key = key_of(q, rules, w, r, b) if (b + 1) * rules.block <= stored else np.int64(-1)
                row[b] = take(c.blocks, c.holder, c.counts, key)
            w.spare[i], w.held[i] = (cached + need) * rules.block - stored, cached + need
            chunks = with_chunk(chunks, want, np.int64(0), q.input_len[r])  # PI is still 0: no cached length is visible
        tokens_left -= want
        times.start_us[r], times.begun_us[r] = now, begin_us
        times.cached[r] = cached
    return chunks


@inlined
def advance(q, w, s, times, k, dt, end_us, first):  # type: ignore[no-untyped-def]
    """Progress and first tokens of the batch from place `first` on. Returns the requests that finish."""
    finished = np.int64(0)
    for j in range(first, s.running):
        i = w.order[j]
        r = w.who[i]
        size = q.input_len[r]
        if w.progress[i] < size:
            w.progress[i] = w.goal[i]
            if w.progress[i] == size:
                times.first_us[r] = end_us
                w.born[i], w.since[i] = k + 1, s.elapsed
                w.left[i] = max(q.output_len[r] - 1, 0)
                finished += w.left[i] == 0
                s.filling -= 1
                s.context += size
        elif w.granted[i] > 0:
            w.progress[i] += w.granted[i]
            w.left[i] -= w.granted[i]
            finished += w.left[i] == 0
            s.context += w.granted[i]
        else:
            w.since[i] += dt  # the step passed it by: not part of its decode time
    return finished


class Plan(NamedTuple):
    """A step that is scheduled and has no duration yet. Lengths and contexts in tokens."""

    chunks: Any  # its prompt chunks
    decodes: Any  # requests that decode in it
    context: Any  # the sum of their contexts before it
    ahead: Any  # places of the batch that have their token already: all that ran before if all decode, else 0
    finished: Any  # above 0 if any of those ends in it
    reached: Any  # serial number of the last request that got tokens, NEVER: all


@inlined
def schedule(q, rules, w, c, s, log, reach, times, now, begin_us, k, late):  # type: ignore[no-untyped-def]
    """4.2 to 4.4: running requests, then admissions, unless there was a preemption. Returns the plan of step `k`.

    It is composed `now` and begins at `begin_us`.

    `late`: prompts wait for another step, if there is something to decode and the last step that could admit requests
    left none over (vllm/v1/core/sched/scheduler.py, `defer_prefills`).
    """
    defer = late and s.saturated == 0 and s.filling < s.running
    finished, ahead, reached = np.int64(0), np.int64(0), NEVER
    chunks, evicted = NO_CHUNKS, False
    # all running requests decode, with a token and a free block for each
    if rules.width == 1 and s.filling == 0 and s.running <= rules.budget and s.running <= c.counts[FREE]:
        decodes, context, ahead = s.running, s.context, s.running
        tokens_left = np.int64(rules.budget) - decodes
        finished = decode_all(q, rules, w, c, s)
    else:
        chunks, decodes, context, tokens_left, evicted, reached = serve_running(q, rules, w, c, s, log, reach, k, defer)
    if c.tier.blocks > 0:
        c.tier.state[0].retry_us, c.tier.state[0].wake_us = NEVER, NEVER
    if not evicted and not defer:
        if rules.transferred:
            chunks, decodes, context = admit_transferred(
                q, rules, w, c, s, times, now, k, tokens_left, chunks, decodes, context
            )
        else:
            while True:
                chunks = admit(q, rules, w, c, s, times, now, begin_us, tokens_left, chunks)
                if c.tier.blocks == 0 or s.running + s.leaving > 0 or s.waiting == 0 or not rest(w, c, s, now):
                    break
        s.saturated = s.waiting > 0
    return Plan(chunks, decodes, context, ahead, finished, reached)


@inlined
def duration(q, rules, w, s, t, plan):  # type: ignore[no-untyped-def]
    """4.5: the step's duration in us, recalled where its composition is known and all chunks start at 0.

    -1 if it is outside [1, 10^10] us and the rules say to stop there.
    """
    chunks, context = plan.chunks, plan.context
    dt, tall = np.int64(-1), np.int64(0)
    if t.longest or t.spread:
        tall = single_contexts(q, w, s, t, plan.ahead)
    if t.lines and chunks.context == 0 and chunks.count <= t.chunks:
        i = piece_for(
            t, t.longest, chunks.count, plan.decodes, chunks.tokens, chunks.largest, chunks.pairs, context, tall
        )
        dt = np.int64(recall(t.pieces, i, context, tall))
    if dt < 0:
        put(
            t.values,
            t.raw,
            chunks.count,
            plan.decodes,
            chunks.tokens,
            chunks.largest,
            chunks.pairs,
            chunks.prompts,
            context + chunks.context,
            context,
        )
        run(t.rows, t.first, t.last, t.values)
        x = t.values[t.out]
        dt = np.int64(to_ticks(x, 1))
        if clamps(x, 1):
            s.clamped += 1
            if rules.hostile_stops:
                s.offending = x
                dt = np.int64(-1)
    return dt


@inlined
def finish(q, rules, w, c, cl, s, times, plan, now, k, dt, end_us):  # type: ignore[no-untyped-def]
    """4.5: progress and first tokens (`decode_all` has advanced those that ran before), then completions."""
    s.elapsed += dt
    s.free_us = end_us
    if rules.transferred:
        first_tokens(q, w, s, times, plan.ahead, end_us - dt, end_us)
    finished = plan.finished + advance(q, w, s, times, k, dt, end_us, plan.ahead)
    if c.tier.blocks > 0:
        store(q, rules, w, c, s, plan.ahead, now, end_us)
        if finished > 0:
            s.alone = 0
    if finished > 0:
        complete(q, rules, w, c, cl, s, times, end_us)
        if end_us <= rules.horizon_us:
            s.last_us = max(s.last_us, end_us)


@inlined
def not_before(rules, s, now):  # type: ignore[no-untyped-def]
    """When a step begins that is composed `now`, or is composed if the engine is idle `now`."""
    return max(now, s.free_us) if rules.ahead else now


@njit
def expect(q, w, s, r):  # type: ignore[no-untyped-def]
    """The client of request `r`, just queued, may give up: put it among those by deadline."""
    j = s.quitters
    while j > s.quitter and q.deadline_us[w.quitters[j - 1]] > q.deadline_us[r]:
        w.quitters[j] = w.quitters[j - 1]
        j -= 1
    w.quitters[j] = r
    s.quitters += 1


@njit
def exact_clock(q, rules, t, w, c, cl, state, times, log, reach, last_step):  # type: ignore[no-untyped-def]
    """Run until nothing is left to happen or the horizon (DONE), step `last_step` (MORE), or more keys (ROOM)."""
    # Given: q the queue, rules the limits, t the program's step times, w the batch (batch.Exact), c the KV
    # cache, cl the clients that fill the queue, if they do, log and reach what is logged per step. Kept between calls:
    # s, see STATE.
    #
    #   now, dt      time of the event, and duration of the step, us
    #   start        when the step begins
    #   k            number of this step
    queued_us, deadline_us, quitters = q.queued_us, q.deadline_us, w.quitters
    log_us, log_tokens, logging, logged = log.us, log.tokens, log.us.size > 0, log.first[0]
    n, widest = queued_us.size, w.table.shape[1]
    s = state[0]
    for i in range(s.slots):
        w.left[w.free_slots[i]], w.spare[w.free_slots[i]] = FAR, FAR
    while True:
        if s.step >= last_step:
            return MORE
        if s.keys + s.running * widest > c.holder.size:  # if all running requests were preempted, see `preempt`
            return ROOM

        # The next event: of several at one time the arrival first, then the step, then the client that gives up.
        arrival = queued_us[s.tail] if s.tail < n else NEVER
        step = s.step_us if s.pending else c.tier.state[0].wake_us
        quit_us = deadline_us[quitters[s.quitter]] if s.quitter < s.quitters else NEVER
        now = min(arrival, step, quit_us)
        if cl.closed:
            sent = min(next_us(cl), arrival if cl.state[0].ready == s.tail else NEVER)
            if sent < NEVER and sent <= min(now, rules.horizon_us):
                send(cl, q, sent)
                continue
        if rules.transferred and next_transfer_us(q.transferred) <= min(now, rules.horizon_us, NEVER - 1):
            reserve(q, rules, w, c)
            continue
        if now == NEVER or now > rules.horizon_us:
            break
        if arrival == now or step == now:
            s.last_us = max(s.last_us, now)
        if arrival == now:  # 3: queued
            r = s.tail
            s.tail += 1
            if w.outcome[r] == DROPPED:
                continue
            if not rules.patient and deadline_us[r] > 0 and deadline_us[r] <= now:
                w.outcome[r] = GAVE_UP
                if rules.transferred:
                    unreserve(q, c, r)
                if cl.closed:
                    end(cl, now, cl.faithful)
                continue
            if cl.closed and now < deadline_us[r]:
                expect(q, w, s, r)
            s.waiting += 1
            if not s.pending:  # the instance was idle
                s.pending, s.step_us = 1, not_before(rules, s, now)
            continue
        if step != now:  # 4.6: a client gives up
            r = quitters[s.quitter]
            s.quitter += 1
            if w.outcome[r] == UNFINISHED:  # the host skips the alarm of a completed request: no event, no time passes
                s.last_us = max(s.last_us, now)
                give_up(w, c, s, log, reach, r)
                if rules.transferred:
                    unreserve(q, c, r)
                forsake(w, c, s, r)
                if cl.closed:
                    end(cl, now, cl.faithful)
                if s.running == 0 and not s.pending and s.waiting > 0:
                    s.pending, s.step_us = 1, not_before(rules, s, now)
            continue
        if s.running == 0 and s.waiting == 0:
            s.pending = 0
            continue

        k, start = s.step, not_before(rules, s, now)
        depart(w, c, s, now)
        plan = schedule(q, rules, w, c, s, log, reach, times, now, start, k, False)
        if s.running == 0 and now < start:  # no room before the step that runs ends
            s.step_us = start
            continue
        if rules.transferred and s.running == 0 and c.counts[FREE] == 0 and min(quit_us, rules.horizon_us) == NEVER:
            s.lone = first_waiting(w, s)  # those that wait hold all blocks, and nothing will free any
            return STUCK
        if c.tier.blocks > 0 and c.tier.state[0].wake_us < NEVER:
            s.pending = 0
            continue
        dt = duration(q, rules, w, s, t, plan)
        if dt < 0:
            return HOSTILE
        if logging:
            log_us[k - logged], log_tokens[k - logged], reach[k - logged] = dt, plan.decodes, plan.reached
        finish(q, rules, w, c, cl, s, times, plan, now, k, dt, start + dt)
        s.step += 1
        s.pending = 1 if s.running > 0 or s.waiting > 0 or rules.busy or rules.ahead else 0
        s.step_us = start if rules.ahead else start + dt
        if rules.transferred and s.tail < n:
            s.alone = 0  # those to come may hold the blocks that it lacks
        if stuck(q, rules, c, s, s.quitter < s.quitters):
            return STUCK  # it is preempted again and again, with nothing that could ever change
    if logging:
        for j in range(s.running):
            forget(w, log, reach, w.order[j], s.step)
    return DONE
