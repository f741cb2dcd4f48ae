"""The mean field of load stages: Little's law instead of a replay, microseconds of work instead of milliseconds.

In a steady stage n decodes run at once, n = rate x mean (output_len - 1) x mean step time(n) / tokens that a decode
emits in a step, at most the request limit, and a share of the steps carries prompt chunks. Where requests differ in
length, a histogram of at most MOST_BINS bins stands for the prompts, and a uniform distribution of the same mean and
variance for the contexts of the decodes.
Straight lines join the step times at whole n, so that predictions are continuous in the constants.

A closed load has no rate, and its schedule, counted in steps, hardly depends on how long these last. So a histogram of
the steps that its requests see, the first wave of all clients and the last, draining one among them, stands for them.

The model leaves out fluctuation, order and saturation; `fit.py` restores them as ratios to full replays.
`slopes` has exact derivatives: those of step times by `machine.differentiate`, that of n by the implicit function
theorem.
"""

from __future__ import annotations

import math

import numpy as np

from evaluator.fit import lanes
from evaluator.fit.machine import (
    AT_E2E,
    AT_ITL,
    AT_TTFT,
    BIN_COMPUTED,
    BIN_INPUT,
    BIN_SHARE,
    BIN_UNCACHED,
    BINS,
    BUDGET,
    CLOSED,
    COLD,
    COLD_LEN,
    COLD_STEP,
    DEPLOYMENT,
    DURATION,
    ENDS,
    FULL_HITS,
    GAIN,
    GAPS,
    INPUT,
    MISSED,
    OBSERVED_N,
    OUTPUT,
    QUEUE,
    RATE,
    SEQS,
    SHORTEST,
    SPAN,
    WIDTH,
    differentiate,
    put_deployment,
    step_us,
)
from simulator.clock.vm import run
from simulator.common.jit import njit
from simulator.language.opcodes import REFERENCE

MOST_BINS = 16
MOST_LOAD = 50.0  # chunks during a step, more than which make no difference


@njit
def _chances(load):  # type: ignore[no-untyped-def]
    """The shares of steps with no, one and more chunks, if `load` chunks arrive during a step on average."""
    p0 = math.exp(-min(load, MOST_LOAD))
    p1 = load * p0
    return p0, p1, 1.0 - p0 - p1


@njit
def steps_at(ends, part, arrive):  # type: ignore[no-untyped-def]
    """The quantities that `mean_step` and `mean_slopes` share: three step times, then load, chances and mean of two
    rounds.

    The number of decodes is a `part` of the way between the two of `ends`. `arrive`: chunks per us.
    """
    t0 = ends[0] + part * (ends[3] - ends[0])
    t1 = ends[1] + part * (ends[4] - ends[1])
    t2 = ends[2] + part * (ends[5] - ends[2])
    load = arrive * t0  # chunks that arrive during a step
    p0, p1, p2 = _chances(load)
    mean = p0 * t0 + p1 * t1 + p2 * t2
    again = arrive * mean  # the share of steps with chunks depends on how long these steps are
    r0, r1, r2 = _chances(again)
    return t0, t1, t2, load, p0, p1, p2, again, r0, r1, r2, r0 * t0 + r1 * t1 + r2 * t2


@njit
def mean_step(steps, hits):  # type: ignore[no-untyped-def]
    """(mean step time, mean step time for a request in prefill, relative second moment) of `steps_at`."""
    t0, t1, t2, _, _, _, _, _, p0, p1, p2, mean = steps
    # A request that computes a prompt is in a step with at least its own chunk.
    own = hits * mean + (1.0 - hits) * (p0 * t1 + (1.0 - p0) * t2)
    square = p0 * t0 * t0 + p1 * t1 * t1 + p2 * t2 * t2
    return mean, own, square / (mean * mean) if mean > 0.0 else 1.0


@njit
def mean_slopes(steps, arrive, hits, d0, d1, d2):  # type: ignore[no-untyped-def]
    """The slopes of `mean_step` in the direction in which its three step times move by d0, d1, d2."""
    t0, t1, t2, load, p0, p1, p2, again, r0, r1, r2, mean = steps
    grows = arrive * d0
    q0 = -p0 * grows if load < MOST_LOAD else 0.0
    q1 = grows * p0 + load * q0
    q2 = -q0 - q1
    grows = arrive * (p0 * d0 + p1 * d1 + p2 * d2 + q0 * t0 + q1 * t1 + q2 * t2)
    q0 = -r0 * grows if again < MOST_LOAD else 0.0
    q1 = grows * r0 + again * q0
    q2 = -q0 - q1
    moves = r0 * d0 + r1 * d1 + r2 * d2 + q0 * t0 + q1 * t1 + q2 * t2
    own = hits * moves + (1.0 - hits) * (q0 * t1 + r0 * d1 - q0 * t2 + (1.0 - r0) * d2)
    if not mean > 0.0:
        return moves, own, 0.0
    square = r0 * t0 * t0 + r1 * t1 * t1 + r2 * t2 * t2
    bends = 2.0 * (r0 * t0 * d0 + r1 * t1 * d1 + r2 * t2 * d2) + q0 * t0 * t0 + q1 * t1 * t1 + q2 * t2 * t2
    return moves, own, (bends - 2.0 * square * moves / mean) / (mean * mean)


@njit
def closing(ends, steps, need, arrive, hits):  # type: ignore[no-untyped-def]
    """The rate at which n overtakes need x mean step time(n) as n grows between `ends`."""
    d0, d1, d2 = ends[3] - ends[0], ends[4] - ends[1], ends[5] - ends[2]
    return 1.0 - need * mean_slopes(steps, arrive, hits, d0, d1, d2)[0]


@njit
def _solve(rows, static, step, raw, slot, v, row, bins, room, chunks, limit):  # type: ignore[no-untyped-def]
    """(the number of running decodes n = need x mean step time(n), at most `limit`; `ends_us` there).

    Newton's method from the observed number; it halves the bracket where a step leaves it or gains too little.
    """
    hits, need = row[FULL_HITS], row[RATE] * (row[OUTPUT] - 1.0) / row[GAIN]
    arrive = row[RATE] * (1.0 - hits) * chunks
    a, b = 0.0, limit  # more arrives than is served at a, less at b (above the limit nothing is known at first)
    c = min(row[OBSERVED_N], limit) if row[OBSERVED_N] == row[OBSERVED_N] else limit / 2.0
    low, before = math.floor(c), np.inf
    ends = ends_us(rows, static, step, raw, slot, v, low, row, bins, room, chunks)
    tried = False  # the limit itself
    for _ in range(100):
        if math.floor(c) != low:  # the step times depend on the whole numbers around c only
            low = math.floor(c)
            ends = ends_us(rows, static, step, raw, slot, v, low, row, bins, room, chunks)
        steps = steps_at(ends, c - low, arrive)
        gap = need * mean_step(steps, hits)[0] - c
        if abs(gap) <= 1e-10 * limit:
            break
        if gap < 0.0:
            b = c
        elif c >= limit or not gap > 0.0:
            c = limit
            break
        else:
            a = c
        closes = closing(ends, steps, need, arrive, hits)
        c = c + gap / closes if closes > 0.0 else limit
        if c >= limit and b >= limit and not tried:
            c, tried = limit, True
        elif not (a < c and c < b) or abs(gap) > 0.5 * before:
            c = (a + b) / 2.0
        before = abs(gap)
    if math.floor(c) != low:
        ends = ends_us(rows, static, step, raw, slot, v, math.floor(c), row, bins, room, chunks)
    return c, ends


@njit
def shape(row, bins, fixed_load):  # type: ignore[no-untyped-def]
    """(decode steps of a request, tokens left for prompts in a step, mean chunks of a prompt) of a load stage."""
    beside = row[OBSERVED_N] if fixed_load else row[SEQS]
    room = max(row[BUDGET] - min(beside * row[WIDTH], row[BUDGET] - 1.0), 1.0)
    chunks = 0.0
    for k in range(int(row[BINS])):
        chunks += bins[k, BIN_COMPUTED] * chunks_of(bins[k, BIN_UNCACHED], room)
    return (row[OUTPUT] - 1.0) / row[GAIN], room, chunks


@njit
def chunks_of(tokens, room):  # type: ignore[no-untyped-def]
    """The number of chunks of a prompt that computes `tokens`, at most `room` in a step."""
    return max(math.ceil(tokens / room), 1.0)


@njit
def chunk_of(bins, k, room, chunks):  # type: ignore[no-untyped-def]
    """(share of bin `k` in all chunks, tokens of each of its chunks, mean tokens of the same prompt before a chunk)."""
    parts = chunks_of(bins[k, BIN_UNCACHED], room)
    chunk = bins[k, BIN_UNCACHED] / parts
    return bins[k, BIN_COMPUTED] * parts / chunks, chunk, (bins[k, BIN_UNCACHED] - chunk) / 2.0


@njit
def ends_us(rows, static, step, raw, slot, v, low, row, bins, room, chunks):  # type: ignore[no-untyped-def]
    """Step times with 0, 1 and 2 prompts at `low` decodes, and at one decode more, averaged over the bins of prompts.

    A step without prompts has at least one decode.
    """
    shortest, span = row[SHORTEST], row[SPAN]
    t0 = step_us(rows, static, step, raw, slot, v, max(low, 1.0), 0, 0.0, 0.0, 0.0, shortest, span)
    t3 = step_us(rows, static, step, raw, slot, v, low + 1, 0, 0.0, 0.0, 0.0, shortest, span)
    t1, t2, t4, t5 = 0.0, 0.0, 0.0, 0.0
    for k in range(int(row[BINS])):
        share, chunk, earlier = chunk_of(bins, k, room, chunks)
        prompt = bins[k, BIN_INPUT]
        if chunk > 0.0:
            t1 += share * step_us(rows, static, step, raw, slot, v, low, 1, chunk, earlier, prompt, shortest, span)
            t2 += share * step_us(rows, static, step, raw, slot, v, low, 2, chunk, earlier, prompt, shortest, span)
            t4 += share * step_us(rows, static, step, raw, slot, v, low + 1, 1, chunk, earlier, prompt, shortest, span)
            t5 += share * step_us(rows, static, step, raw, slot, v, low + 1, 2, chunk, earlier, prompt, shortest, span)
        else:  # nothing is computed of any prompt
            t1, t2, t4, t5 = t1 + share * t0, t2 + share * t0, t4 + share * t3, t5 + share * t3
    return t0, t1, t2, t3, t4, t5


@njit
def queueing_us(m, row, bins):  # type: ignore[no-untyped-def]
    """The mean time in us from arrival to queue."""
    total = 0.0
    for k in range(int(row[BINS])):
        m.v[m.request] = bins[k, BIN_INPUT]
        run(m.rows, m.step, m.rows.shape[0], m.v)
        total += bins[k, BIN_SHARE] * m.v[m.results[1]]
    return total


@njit
def predict(m, phi, active, fixed_load, running, means_ms):  # type: ignore[no-untyped-def]
    """Fill means_ms[stages, 3] with mean E2E, TTFT, ITL in ms at the constants `phi`, and running[stages] with the
    number of running decodes, for the `active` stages.

    `fixed_load`: take that number from the observed ITL instead of solving for it.
    """
    rows, static, step, raw, v, slot = m.rows, m.static, m.step, m.raw, m.v, m.results[0]
    settled = -1
    for i in range(m.table.shape[0]):
        if not active[i]:
            continue
        row, bins = m.table[i], m.bins[i]
        deployment = m.alike[int(row[DEPLOYMENT])]
        if deployment != settled:
            put_deployment(m, phi, deployment)
            lanes.put_alike(m.lane, v)
            settled = deployment
        token = v[m.results[2]] if m.results[2] >= 0 else 0.0
        completion = v[m.results[3]] if m.results[3] >= 0 else 0.0
        if row[CLOSED] > 0.0:
            running[i] = row[OBSERVED_N]
            queueing = 0.0
            if m.results[1] >= 0:
                v[m.request] = row[INPUT]
                run(rows, step, rows.shape[0], v)
                queueing = v[m.results[1]]
            ttft, e2e, itl = (
                queueing + token,
                queueing + token * row[OUTPUT] + completion,
                token + completion * row[GAPS],
            )
            count = int(row[BINS])
            lanes.times(m.lane, i, count)
            for k in range(count):
                at, us = bins[k], m.lane.values[m.lane.result, k]
                ttft, e2e, itl = ttft + at[AT_TTFT] * us, e2e + at[AT_E2E] * us, itl + at[AT_ITL] * us
            means_ms[i, 0], means_ms[i, 1], means_ms[i, 2] = e2e / 1e3, ttft / 1e3, itl / 1e3
            continue
        queueing = queueing_us(m, row, bins) if m.results[1] >= 0 else 0.0
        decodes, room, chunks = shape(row, bins, fixed_load)
        limit, wait = row[SEQS], 0.0
        n = row[OBSERVED_N]
        if not fixed_load or n != n:
            n, ends = _solve(rows, static, step, raw, slot, v, row, bins, room, chunks, limit)
        else:
            ends = ends_us(rows, static, step, raw, slot, v, math.floor(n), row, bins, room, chunks)
        running[i] = n
        low = math.floor(n)
        arrive = row[RATE] * (1.0 - row[FULL_HITS]) * chunks
        mean, own, square = mean_step(steps_at(ends, n - low, arrive), row[FULL_HITS])
        if n >= limit:  # more arrives than is served: the queue grows until the stage ends
            served = limit / max(decodes * mean, 1e-9)
            wait = max(row[RATE] / served - 1.0, 0.0) * row[DURATION] / 2.0
        # A request first waits for the rest of a running step: E[t**2] / (2 E[t]), as long steps are hit more often.
        # With less than one decode at once there is often no step. One that is composed already follows it.
        ttft = queueing + wait + min(n, 1.0) * mean * (square / 2.0 + row[MISSED]) + own * chunks + token
        slowed = 1.0
        if row[COLD] > 0.0:  # every step that fills the cold cache delays all running requests
            parts = math.ceil(row[COLD_LEN] / room)
            chunk = row[COLD_LEN] / parts
            full = step_us(rows, static, step, raw, slot, v, low, 1, chunk, 0.0, row[INPUT], row[SHORTEST], row[SPAN])
            slowed += max(full - ends[0], 0.0) * parts * row[COLD] / row[DURATION]
        decode = decodes * (mean * slowed + token * row[GAIN])
        means_ms[i, 0] = (ttft + decode + completion) / 1e3
        means_ms[i, 1] = ttft / 1e3
        means_ms[i, 2] = (decode + completion) / max(decodes * row[GAIN], 1.0) / 1e3


@njit
def closed_slopes(m, i, place, slopes_ms):  # type: ignore[no-untyped-def]
    """Put the derivatives of `predict` for closed load `i`, whose deployment is settled, into slopes_ms[3, phi]."""
    row = m.table[i]
    rows, which, v, d = m.rows, m.which, m.v, m.d
    e2e, ttft, itl = m.moves[0], m.moves[1], m.moves[2]
    if m.results[1] >= 0:
        v[m.request] = row[INPUT]
        run(rows, m.step, rows.shape[0], v)
        differentiate(rows, which, m.step_which, which.shape[0], v, d)
    for j in range(m.theta.size):
        token = d[m.results[2], j] if m.results[2] >= 0 else 0.0
        completion = d[m.results[3], j] if m.results[3] >= 0 else 0.0
        queueing = d[m.results[1], j] if m.results[1] >= 0 else 0.0
        e2e[j] = (queueing + token * row[OUTPUT] + completion) / 1e3
        ttft[j] = (queueing + token) / 1e3
        itl[j] = (token + completion * row[GAPS]) / 1e3
    count = int(row[BINS])
    lanes.times(m.lane, i, count)
    lanes.slopes(m.lane, count, d)
    for j in range(m.lane.first, m.lane.last):
        e2e[j], ttft[j], itl[j] = lanes.add_slopes(m.lane, i, j, count, e2e[j], ttft[j], itl[j])
    for j in range(m.theta.size):
        slopes_ms[0, place[j]], slopes_ms[1, place[j]], slopes_ms[2, place[j]] = e2e[j], ttft[j], itl[j]


@njit
def slopes(m, phi, active, fixed_load, running, slopes_ms):  # type: ignore[no-untyped-def]
    """Fill slopes_ms[stages, 3, phi] with the derivatives of `predict` at `phi`; `running` comes from `predict`.

    v, d, e: see m.v, m.d and m.moves of `Machine`. d0, d1, d2: derivatives of steps with no, one and two prompts, whose
    times are in `ends`.
    """
    rows, static, step, raw, v, slot = m.rows, m.static, m.step, m.raw, m.v, m.results[0]
    which, d, e = m.which, m.d, m.moves
    settled = -1
    for i in range(m.table.shape[0]):
        for c in range(3):
            for j in range(phi.size):
                slopes_ms[i, c, j] = 0.0
        if not active[i]:
            continue
        row, bins = m.table[i], m.bins[i]
        deployment = m.alike[int(row[DEPLOYMENT])]
        if deployment != settled:
            put_deployment(m, phi, deployment)
            lanes.put_alike(m.lane, v)
            differentiate(rows, which, 0, m.static_which, v, d)
            differentiate(rows, which, m.static_which, m.step_which, v, d)  # of the reference batch
            for j in range(m.theta.size):
                d[m.request + REFERENCE, j] = d[slot, j]
            settled = deployment
        if row[CLOSED] > 0.0:
            closed_slopes(m, i, m.place[m.group[deployment]], slopes_ms[i])
            continue
        if m.results[1] >= 0:
            for j in range(m.theta.size):
                e[QUEUE, j] = 0.0
            for k in range(int(row[BINS])):
                v[m.request] = bins[k, BIN_INPUT]
                run(rows, step, rows.shape[0], v)
                differentiate(rows, which, m.step_which, which.shape[0], v, d)
                for j in range(m.theta.size):
                    e[QUEUE, j] += bins[k, BIN_SHARE] * d[m.results[1], j]
        decodes, room, chunks = shape(row, bins, fixed_load)
        shortest, span = row[SHORTEST], row[SPAN]
        rate, hits, limit = row[RATE], row[FULL_HITS], row[SEQS]
        n = running[i]
        low = math.floor(n)
        part = n - low
        for k in range(ENDS):
            m.times[k] = 0.0
            for j in range(m.theta.size):
                e[k, j] = 0.0
            for b in range(int(row[BINS]) if k % 3 > 0 else 1):  # without a prompt all bins are alike
                share, chunk, earlier = chunk_of(bins, b, room, chunks)
                if k % 3 == 0:
                    share = 1.0
                prompts = k % 3 if chunk > 0.0 else 0
                prompt = bins[b, BIN_INPUT]
                n_at = low + k // 3 if prompts > 0 else max(low + k // 3, 1.0)
                us = step_us(rows, static, step, raw, slot, v, n_at, prompts, chunk, earlier, prompt, shortest, span)
                differentiate(rows, which, m.static_which, m.step_which, v, d)
                m.times[k] += share * us
                for j in range(m.theta.size):
                    e[k, j] += share * d[slot, j]
        ends = m.times[0], m.times[1], m.times[2], m.times[3], m.times[4], m.times[5]
        arrive = rate * (1.0 - hits) * chunks
        steps = steps_at(ends, part, arrive)
        mean, _, square = mean_step(steps, hits)
        saturated = n >= limit
        solved = not saturated and (not fixed_load or row[OBSERVED_N] != row[OBSERVED_N])
        rises = ends[3] - ends[0], ends[4] - ends[1], ends[5] - ends[2]  # with one decode more
        need = rate * decodes
        closes = closing(ends, steps, need, arrive, hits)
        filling, delay = 0.0, 0.0
        if row[COLD] > 0.0:
            filling = math.ceil(row[COLD_LEN] / room)
            chunk = row[COLD_LEN] / filling
            full = step_us(rows, static, step, raw, slot, v, low, 1, chunk, 0.0, row[INPUT], shortest, span)
            differentiate(rows, which, m.static_which, m.step_which, v, d)
            for j in range(m.theta.size):
                e[COLD_STEP, j] = d[slot, j]
            delay = full - ends[0]
        late = saturated and rate * max(decodes * mean, 1e-9) > limit
        for j in range(m.theta.size):
            d0 = e[0, j] + part * (e[3, j] - e[0, j])
            d1 = e[1, j] + part * (e[4, j] - e[1, j])
            d2 = e[2, j] + part * (e[5, j] - e[2, j])
            moves, own_moves, square_moves = mean_slopes(steps, arrive, hits, d0, d1, d2)
            more = 0.0
            if solved:  # n moves too
                more = need * moves / closes
                d0, d1, d2 = d0 + more * rises[0], d1 + more * rises[1], d2 + more * rises[2]
                moves, own_moves, square_moves = mean_slopes(steps, arrive, hits, d0, d1, d2)
            token = d[m.results[2], j] if m.results[2] >= 0 else 0.0
            completion = d[m.results[3], j] if m.results[3] >= 0 else 0.0
            missed = square / 2.0 + row[MISSED]
            ttft = min(n, 1.0) * (moves * missed + mean * square_moves / 2.0) + own_moves * chunks + token
            if n < 1.0:
                ttft += more * mean * missed
            if m.results[1] >= 0:
                ttft += e[QUEUE, j]
            if late:
                ttft += rate * decodes * moves / limit * row[DURATION] / 2.0
            slowed, slows = 1.0, 0.0
            if delay > 0.0:
                share = filling * row[COLD] / row[DURATION]
                slowed, slows = 1.0 + delay * share, (e[COLD_STEP, j] - e[0, j]) * share
            decode = decodes * (moves * slowed + mean * slows + token * row[GAIN])
            p = m.place[m.group[deployment], j]
            slopes_ms[i, 0, p] += (ttft + decode + completion) / 1e3
            slopes_ms[i, 1, p] += ttft / 1e3
            slopes_ms[i, 2, p] += (decode + completion) / max(decodes * row[GAIN], 1.0) / 1e3


@njit
def cold_slopes(m, phi, slopes_us):  # type: ignore[no-untyped-def]
    """Fill slopes_us[stages, phi] with the derivatives of a step that prefills a whole prompt beside the observed
    decodes."""
    rows, static, step, raw, slot, v = m.rows, m.static, m.step, m.raw, m.results[0], m.v
    for i in range(m.table.shape[0]):
        row = m.table[i]
        deployment = int(row[DEPLOYMENT])
        put_deployment(m, phi, deployment)
        differentiate(rows, m.which, 0, m.static_which, v, m.d)
        n = math.floor(row[OBSERVED_N]) if row[OBSERVED_N] == row[OBSERVED_N] else 1.0
        chunk = min(row[COLD_LEN], max(row[BUDGET] - n * row[WIDTH], 1.0))
        span = row[SPAN] + 2.0  # the contexts of the decodes cover the whole answer
        step_us(rows, static, step, raw, slot, v, n, 1, chunk, 0.0, row[INPUT], row[SHORTEST], span)
        differentiate(rows, m.which, m.static_which, m.step_which, v, m.d)
        for j in range(phi.size):
            slopes_us[i, j] = 0.0
        for j in range(m.theta.size):
            slopes_us[i, m.place[m.group[deployment], j]] = m.d[slot, j]
