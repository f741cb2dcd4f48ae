"""The exact clock of several data-parallel ranks: a queue that a front end shares out, and a scheduler for each rank.

Every rank has a batch and a KV cache of its own, under the same limits, and keeps the rules of exact.py. Ranks of a
mixture of experts step together, because the tokens of all of them meet at the experts (vllm/v1/engine/core.py,
DPEngineCoreProc). A step then takes as long as that of the slowest rank, and a rank without requests runs an empty one,
which is never the slowest. Ranks of other models are independent replicas. With an interval, ranks that step together
compute prompts in the same steps, every so many from the first after an idle time on.

Requests go to ranks as vLLM's front end sends them (vllm/v1/engine/core_client.py, DPLBAsyncMPClient). To ranks that
step together it sends each to the rank with the least 4 * waiting + running, the first of equal ones. It learns these
counts every 100 ms, as of the end of a step, and adds what it sends itself. Independent ranks tell no counts
(from 0.14 on), so they take turns.

With P pipeline stages, a rank has P batches in flight. Each is taken for an engine of its own here, a lane, with an
equal share of the rank's limits, and a request goes to the lane with the fewest. A step spends a P-th of its time in
each stage, begins when the first stage is free, and waits before a stage for the batch ahead. Without stages there is
one lane.

Replicas that clients share are lanes too. A router turns to the next one for every request that is sent.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from simulator.clock.batch import FAR, GAVE_UP, UNFINISHED, Exact, depart, forget, give_up, stuck
from simulator.clock.blocks import Cache
from simulator.clock.clients import end, next_us, send
from simulator.clock.exact import Plan, duration, expect, finish, not_before, schedule
from simulator.clock.queue import DONE, HOSTILE, MORE, ROOM, STUCK, QueueLog
from simulator.clock.steps import Chunks
from simulator.clock.tier import forsake, tier_of
from simulator.common.jit import inlined, njit
from simulator.serving.load import NEVER, EngineLimits

ELSEWHERE = 3  # Exact.outcome of a request that another rank has, or none yet
TOLD_US = 100_000  # from one time that the front end learns the ranks' counts to the next
WAITING, RUNNING = 0, 1  # columns of counts
WEIGHT = 4  # of a waiting request in a rank's score
STATE = np.dtype([(name, "i8") for name in ("steps", "turn", "learns_us", "since_idle")])


class Ranks(NamedTuple):
    """What is known beside the state of each lane. Lane `l` of rank `r` has number l * ranks + r."""

    together: bool  # all ranks step together
    by_row: bool  # replicas: they take turns at the requests in order of sending, not of queueing
    interval: int  # steps from one that may compute prompts to the next
    lane: Any  # int64[requests]: the lane of each
    told: Any  # int64[ranks, 2]: requests waiting and running at the start of the rank's last step
    seen: Any  # int64[ranks, 2]: those that the front end knows of
    plan: Any  # int64[lanes, 13]: the step of each
    free_us: Any  # int64[ranks, stages]: when each stage has done all that it was given
    # steps: steps of all lanes; turn: the rank that is next in turn; learns_us: when `seen` is renewed; since_idle:
    # steps since there was nothing to do
    state: Any


def new_ranks(limits: EngineLimits, requests: int, by_row: bool) -> Ranks:
    """Ranks, or replicas, without requests."""
    ranks, stages = limits.ranks, limits.stages
    counts, plan = np.zeros((ranks, 2), np.int64), np.zeros((ranks * stages, 13), np.int64)
    lane, free = np.zeros(requests, np.int64), np.zeros((ranks, stages), np.int64)
    interval = limits.interval if limits.together else 1
    return Ranks(limits.together, by_row, interval, lane, counts, counts.copy(), plan, free, np.zeros(1, STATE))


@inlined
def batch_of(w, d):  # type: ignore[no-untyped-def]
    """The batch of lane `d`."""
    return Exact(
        w.outcome[d],
        w.region[d],
        w.group_key[d],
        w.prompt_key[d],
        w.quitters[d],
        w.stack[d],
        w.leaving[d],
        w.free_slots[d],
        w.order[d],
        w.table[d],
        w.who[d],
        w.progress[d],
        w.goal[d],
        w.granted[d],
        w.spare[d],
        w.held[d],
        w.left[d],
        w.since[d],
        w.born[d],
        w.serial[d],
        w.carry[d],
    )


@inlined
def cache_of(c, d, none):  # type: ignore[no-untyped-def]
    """The KV cache of lane `d`; `none`: its tier, if no lane has one, which costs less than to look it up."""
    tier = tier_of(c.tier, d) if c.tier.blocks > 0 else none
    return Cache(c.blocks[d], c.holder[d], c.counts[d], tier)


@inlined
def log_of(log, d):  # type: ignore[no-untyped-def]
    """The log of lane `d`."""
    return QueueLog(log.us[d], log.tokens[d], log.first[d])


@njit
def route(ranks, states, now):  # type: ignore[no-untyped-def]
    """The lane to which the next request goes: the front end chooses the rank."""
    s, chosen, count = ranks.state[0], np.int64(0), len(ranks.seen)
    if not ranks.together:
        chosen = s.turn
        s.turn = (chosen + 1) % count
    else:
        if now >= s.learns_us:
            s.learns_us = now + TOLD_US
            for rank in range(count):
                for column in range(2):
                    ranks.seen[rank, column] = ranks.told[rank, column]
        least = NEVER
        for rank in range(count):
            score = WEIGHT * ranks.seen[rank, WAITING] + ranks.seen[rank, RUNNING]
            if score < least:
                least, chosen = score, np.int64(rank)
        ranks.seen[chosen, WAITING] += 1
    lane = chosen
    for other in range(chosen, states.size, count):
        if held(states[other]) < held(states[lane]):
            lane = np.int64(other)
    return lane


@inlined
def held(s):  # type: ignore[no-untyped-def]
    """The requests that a lane has."""
    return s.waiting + s.running


@njit
def wake(rules, ranks, states, d, now):  # type: ignore[no-untyped-def]
    """Lane `d` has a request: unless a step is scheduled, it and those that step with it compose one."""
    if states[d].pending:
        return
    low, high = members(ranks, d)
    for other in range(low, high):
        states[other].pending, states[other].step_us = 1, not_before(rules, states[other], now)


@inlined
def members(ranks, d):  # type: ignore[no-untyped-def]
    """The first of the lanes that step with lane `d`, and the one after the last."""
    count = len(ranks.seen)
    return (d // count * count, d // count * count + count) if ranks.together else (d, d + 1)


@njit
def tell(ranks, states, low, high):  # type: ignore[no-untyped-def]
    """The ranks of lanes `low` to `high` tell how many requests they have. Returns how many these lanes have."""
    count, total = len(ranks.told), np.int64(0)
    for d in range(low, high):
        total += held(states[d])
        waiting, running = np.int64(0), np.int64(0)
        for lane in range(d % count, states.size, count):
            waiting += states[lane].waiting
            running += states[lane].running
        ranks.told[d % count, WAITING], ranks.told[d % count, RUNNING] = waiting, running
    return total


@njit
def idle(c, states, low, high):  # type: ignore[no-untyped-def]
    """True if lanes `low` to `high` run nothing and wait for their tiers: they step again when a transfer has ended."""
    waits = False
    for d in range(low, high):
        if states[d].running > 0 or (states[d].waiting > 0 and c.tier.state[d, 0].wake_us == NEVER):
            return False
        waits = waits or c.tier.state[d, 0].wake_us < NEVER
    if waits:
        for d in range(low, high):
            states[d].pending = 0
    return waits


@njit
def through(free_us, now, us):  # type: ignore[no-untyped-def]
    """When a step of `us` that begins `now` has passed all stages, which are given it."""
    stages = free_us.size
    for i in range(stages):
        now = max(now, free_us[i]) + us * (i + 1) // stages - us * i // stages
        free_us[i] = now
    return now


@inlined
def keep(row, plan):  # type: ignore[no-untyped-def]
    """Keep the plan of a step until those of all ranks are known."""
    k = plan.chunks
    row[0], row[1], row[2], row[3], row[4] = k.count, k.tokens, k.largest, k.pairs, k.prompts
    row[5], row[6], row[7] = k.context, k.squares, k.longest
    row[8], row[9], row[10], row[11], row[12] = plan.decodes, plan.context, plan.ahead, plan.finished, plan.reached


@inlined
def kept(row):  # type: ignore[no-untyped-def]
    """The plan that was kept."""
    chunks = Chunks(row[0], row[1], row[2], row[3], row[4], row[5], row[6], row[7])
    return Plan(chunks, row[8], row[9], row[10], row[11], row[12])


@njit
def ranks_clock(q, rules, t, w, c, cl, states, times, log, reach, ranks, last_step):  # type: ignore[no-untyped-def]
    """Run until nothing is left to happen or the horizon (DONE), step `last_step` (MORE), or more keys (ROOM).

    The arguments are those of `exact_clock` with one row for each lane; lane 0 also keeps what belongs to the queue:
    its tail, and the clients that may give up.
    """
    #   now, dt      time of the event, and duration of the step, us
    #   low, high    the lanes of the step, which begins at `start`; free_us, the stages that it passes
    #   own, every   new tokens of a lane, and of all lanes of the step
    queued_us, deadline_us, quitters = q.queued_us, q.deadline_us, w.quitters[0]
    n, widest, size, logging = queued_us.size, w.table.shape[2], states.size, log.us.size > 0
    first, all_states, none = states[0], ranks.state[0], tier_of(c.tier, 0)
    for d in range(size):
        for i in range(states[d].slots):
            w.left[d, w.free_slots[d, i]], w.spare[d, w.free_slots[d, i]] = FAR, FAR
    while True:
        if all_states.steps >= last_step:
            return MORE
        for d in range(size):  # if all running requests were preempted, see `preempt`
            if states[d].keys + states[d].running * widest > c.holder.shape[1]:
                return ROOM

        # The next event: of several at one time the arrival first, then the step, then the client that gives up.
        arrival = queued_us[first.tail] if first.tail < n else NEVER
        step, low, high = NEVER, np.int64(0), np.int64(0)
        for d in range(size):
            begins = states[d].step_us if states[d].pending else c.tier.state[d, 0].wake_us
            if begins < step:
                step = begins
                low, high = members(ranks, d)
        quit_us = deadline_us[quitters[first.quitter]] if first.quitter < first.quitters else NEVER
        now = min(arrival, step, quit_us)
        if cl.closed:
            sent = min(next_us(cl), arrival if cl.state[0].ready == first.tail else NEVER)
            if sent < NEVER and sent <= min(now, rules.horizon_us):
                send(cl, q, sent)
                continue
        if now == NEVER or now > rules.horizon_us:
            break
        if arrival == now or step == now:
            first.last_us = max(first.last_us, now)
        if arrival == now:
            r = first.tail
            first.tail += 1
            d = cl.row[r] % size if ranks.by_row else route(ranks, states, now)
            ranks.lane[r] = d
            w.outcome[d, r] = UNFINISHED
            if not rules.patient and deadline_us[r] > 0 and deadline_us[r] <= now:
                w.outcome[d, r] = GAVE_UP
                if cl.closed:
                    end(cl, now, cl.faithful)
                continue
            if cl.closed and now < deadline_us[r]:
                expect(q, batch_of(w, 0), first, r)
            states[d].waiting += 1
            wake(rules, ranks, states, d, now)
            continue
        if step != now:
            r = quitters[first.quitter]
            first.quitter += 1
            d = ranks.lane[r]
            if w.outcome[d, r] == UNFINISHED:
                first.last_us = max(first.last_us, now)
                give_up(batch_of(w, d), cache_of(c, d, none), states[d], log_of(log, d), reach[d], r)
                forsake(batch_of(w, d), cache_of(c, d, none), states[d], r)
                if cl.closed:
                    end(cl, now, cl.faithful)
                if states[d].waiting > 0:
                    wake(rules, ranks, states, d, now)
            continue
        if tell(ranks, states, low, high) == 0:
            for d in range(low, high):
                states[d].pending = 0
            continue
        free_us = ranks.free_us[low % len(ranks.seen)]
        if free_us.size > 1 and free_us[0] > now:  # another batch is in the first stage
            for d in range(low, high):
                states[d].pending, states[d].step_us = 1, free_us[0]
            continue

        every, late, running = np.int64(0), all_states.since_idle % ranks.interval > 0, np.int64(0)
        start = not_before(rules, states[low], now)
        for d in range(low, high):
            s = states[d]
            own_log, batch, cache = log_of(log, d), batch_of(w, d), cache_of(c, d, none)
            depart(batch, cache, s, now)
            plan = schedule(q, rules, batch, cache, s, own_log, reach[d], times, now, start, s.step, late)
            keep(ranks.plan[d], plan)
            every += plan.decodes * rules.width + plan.chunks.tokens
            running += s.running
        if running == 0 and now < start:  # no room before the step that runs ends
            for d in range(low, high):
                states[d].step_us = start
            continue
        if c.tier.blocks > 0 and idle(c, states, low, high):
            continue
        all_states.since_idle += 1
        dt = np.int64(0)
        for d in range(low, high):
            plan = kept(ranks.plan[d])
            own = plan.decodes * rules.width + plan.chunks.tokens
            if own == 0 and every > 0:
                continue
            if ranks.together:
                t.values[t.unequal] = every - (high - low) * own
            us = duration(q, rules, batch_of(w, d), states[d], t, plan)
            if us < 0:
                first.offending = states[d].offending
                return HOSTILE
            dt = max(dt, us)
        if free_us.size > 1:
            dt = through(free_us, now, dt) - now
        all_states.steps += high - low
        left = np.int64(0)
        for d in range(low, high):
            s, plan, cache = states[d], kept(ranks.plan[d]), cache_of(c, d, none)
            if logging:
                at = s.step - log.first[d, 0]
                log.us[d, at], log.tokens[d, at], reach[d, at] = dt, plan.decodes, plan.reached
            finish(q, rules, batch_of(w, d), cache, cl, s, times, plan, now, s.step, dt, start + dt)
            s.step += 1
            s.step_us = start if rules.ahead else start + dt
            left += s.running + s.waiting
            if stuck(q, rules, cache, s, first.quitter < first.quitters):
                return STUCK
        for d in range(low, high):
            states[d].pending = 1 if left > 0 or rules.busy or rules.ahead else 0
        if left == 0:
            tell(ranks, states, low, high)
            all_states.since_idle = 0
    if logging:
        for d in range(size):
            for j in range(states[d].running):
                forget(batch_of(w, d), log_of(log, d), reach[d], w.order[d, j], states[d].step)
    return DONE
