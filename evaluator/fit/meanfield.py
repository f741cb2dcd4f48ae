"""The mean field of load stages: Little's law instead of a replay, microseconds of work instead of milliseconds.

In a steady stage n decodes run at once, n = rate x (output_len - 1) x mean step time(n), at most the request limit,
and a share of the steps carries prompt chunks. Straight lines join the step times at whole n, so that the prediction
moves smoothly with the constants. What is lost (fluctuation, order, saturation) comes back by the ratio to a full
replay, with which `corrections.py` scales these figures.

Its slopes in the constants are exact: those of step times come from `duals.py`, that of n from the implicit function
theorem.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from evaluator.fit.duals import differentiate, varying
from simulator.bind import settle
from simulator.jit import njit
from simulator.language.opcodes import REFERENCE, Code
from simulator.schema import (
    DECODE_REQS,
    KV_DECODE_MAX,
    KV_DECODE_SUM,
    KV_MAX,
    KV_SUM,
    KV_VAR,
    MAX_PREFILL_CHUNK,
    PREFILL_PAIRS,
    PREFILL_REQS,
    PREFILL_TOKENS,
)
from simulator.vm import run

# Columns of the table of load stages.
(
    RATE,  # requests/us
    OUTPUT, INPUT,  # output and prompt tokens of a request
    UNCACHED,  # prompt tokens that a request computes, if it computes any
    FULL_HITS,  # share of the requests whose whole prompt is cached
    SEQS, BUDGET,  # limits on requests and tokens of a step
    DURATION,  # us
    DEPLOYMENT,  # position of the experiment
    OBSERVED_N,  # decodes that run at once by the observed ITL, NaN without one
    COLD, COLD_LEN,  # prompts computed in full because nothing is cached yet, and their tokens
) = range(12)  # fmt: skip
ENDS = 6  # step times around a number of decodes: with 0, 1, 2 prompts there, and at one decode more


class Machine(NamedTuple):
    """A program ready to run on the deployments of some experiments, with room to work in.

    rows, static, step, raw, request, results: of simulator.language.opcodes.Code. which, static_which, step_which: see
    duals.varying. table: float64[stages, 12], the load stages. base: float64[experiments, slots], value vectors.
    group: int64[experiments], of each experiment. place: int64[groups, theta], where the constants of a group are in
    phi, the vector of all. Room to work in: v: float64[slots], values; d: float64[slots, theta], their slopes; theta:
    float64[theta], constants; times: float64[ENDS] and moves: float64[ENDS + 1, theta], step times and their slopes.
    """

    rows: np.ndarray
    static: int
    step: int
    raw: int
    request: int
    results: tuple[int, int, int, int]
    which: np.ndarray
    static_which: int
    step_which: int
    table: np.ndarray
    base: np.ndarray
    group: np.ndarray
    place: np.ndarray
    v: np.ndarray
    d: np.ndarray
    theta: np.ndarray
    times: np.ndarray
    moves: np.ndarray


def machine(
    code: Code, table: np.ndarray, base: np.ndarray, members: Sequence[Sequence[int]], place: np.ndarray
) -> Machine:
    """The machine of a program; `members` are the experiments of each group, the other arguments as in `Machine`."""
    which, static_which, step_which = varying(code)
    group = np.zeros(len(base), np.int64)
    for g, experiments in enumerate(members):
        group[list(experiments)] = g
    d = np.zeros((code.slots, code.constants))
    np.fill_diagonal(d, 1.0)  # the constants are in the first slots
    a, b, c, e = code.results
    return Machine(
        code.rows, code.static, code.step, code.raw, code.request, (a, b, c, e), which, static_which, step_which,
        table, base, group, np.ascontiguousarray(place, dtype=np.int64).reshape(len(members), code.constants),
        np.zeros(code.slots), d, np.zeros(code.constants), np.zeros(ENDS), np.zeros((ENDS + 1, code.constants)),
    )  # fmt: skip


@njit
def _load(m, phi, deployment):  # type: ignore[no-untyped-def]
    """Put a deployment's values and its group's constants into the machine."""
    for i in range(m.v.size):
        m.v[i] = m.base[deployment, i]
    group = m.group[deployment]
    for j in range(m.theta.size):
        m.theta[j] = phi[m.place[group, j]]
    settle(m.rows, m.static, m.step, m.raw, m.request, m.results[0], m.theta, m.v)


@njit
def _step(rows, static, step, raw, slot, v, n, k, chunk, shortest, span):  # type: ignore[no-untyped-def]
    """Step time in us with n decodes, their contexts evenly spread over `span` tokens from `shortest`, and k prompt
    chunks of `chunk` tokens."""
    context = shortest + span / 2.0
    longest = shortest + span * n / (n + 1.0) if n > 0 else 0.0
    v[raw + PREFILL_REQS] = k if chunk > 0 else 0.0
    v[raw + DECODE_REQS] = n
    v[raw + PREFILL_TOKENS] = k * chunk
    v[raw + MAX_PREFILL_CHUNK] = chunk if k > 0 else 0.0
    v[raw + PREFILL_PAIRS] = k * chunk * (chunk + 1.0) / 2.0
    v[raw + KV_SUM] = n * context
    v[raw + KV_MAX] = longest
    v[raw + KV_VAR] = span * span / 12.0 if n > 0 else 0.0  # of the uniform distribution
    v[raw + KV_DECODE_SUM] = n * context
    v[raw + KV_DECODE_MAX] = longest
    run(rows, static, step, v)
    return v[slot]


@njit
def _ends(rows, static, step, raw, slot, v, low, chunk, shortest, span):  # type: ignore[no-untyped-def]
    """Step times with 0, 1 and 2 prompts at `low` decodes, and at one decode more."""
    t0 = _step(rows, static, step, raw, slot, v, low, 0, chunk, shortest, span)
    t3 = _step(rows, static, step, raw, slot, v, low + 1, 0, chunk, shortest, span)
    if not chunk > 0.0:  # nothing is computed of any prompt
        return t0, t0, t0, t3, t3, t3
    return (
        t0,
        _step(rows, static, step, raw, slot, v, low, 1, chunk, shortest, span),
        _step(rows, static, step, raw, slot, v, low, 2, chunk, shortest, span),
        t3,
        _step(rows, static, step, raw, slot, v, low + 1, 1, chunk, shortest, span),
        _step(rows, static, step, raw, slot, v, low + 1, 2, chunk, shortest, span),
    )


@njit
def _mean_step(ends, part, rate, chunks, hits):  # type: ignore[no-untyped-def]
    """(mean step time, mean step time for a request in prefill, relative second moment) a `part` of the way between the
    two numbers of decodes of `ends`."""
    t0 = ends[0] + part * (ends[3] - ends[0])
    t1 = ends[1] + part * (ends[4] - ends[1])
    t2 = ends[2] + part * (ends[5] - ends[2])
    load = rate * (1.0 - hits) * chunks * t0  # chunks that arrive during a step
    for _ in range(2):  # the share of steps with chunks depends on how long these steps are
        p0 = math.exp(-min(load, 50.0))
        p1 = load * p0
        p2 = 1.0 - p0 - p1
        mean = p0 * t0 + p1 * t1 + p2 * t2
        load = rate * (1.0 - hits) * chunks * mean
    # A request that computes a prompt is in a step with at least its own chunk.
    own = hits * mean + (1.0 - hits) * (p0 * t1 + (1.0 - p0) * t2)
    square = p0 * t0 * t0 + p1 * t1 * t1 + p2 * t2 * t2
    return mean, own, square / (mean * mean) if mean > 0.0 else 1.0


@njit
def _mean_slopes(ends, part, rate, chunks, hits, d0, d1, d2):  # type: ignore[no-untyped-def]
    """The slopes of `_mean_step` in the direction in which its three step times move by d0, d1, d2."""
    t0 = ends[0] + part * (ends[3] - ends[0])
    t1 = ends[1] + part * (ends[4] - ends[1])
    t2 = ends[2] + part * (ends[5] - ends[2])
    arrive = rate * (1.0 - hits) * chunks
    load, grows = arrive * t0, arrive * d0
    for _ in range(2):
        p0 = math.exp(-min(load, 50.0))
        p1 = load * p0
        p2 = 1.0 - p0 - p1
        q0 = -p0 * grows if load < 50.0 else 0.0
        q1 = grows * p0 + load * q0
        q2 = -q0 - q1
        mean = p0 * t0 + p1 * t1 + p2 * t2
        moves = p0 * d0 + p1 * d1 + p2 * d2 + q0 * t0 + q1 * t1 + q2 * t2
        load, grows = arrive * mean, arrive * moves
    own = hits * moves + (1.0 - hits) * (q0 * t1 + p0 * d1 - q0 * t2 + (1.0 - p0) * d2)
    if not mean > 0.0:
        return moves, own, 0.0
    square = p0 * t0 * t0 + p1 * t1 * t1 + p2 * t2 * t2
    bends = 2.0 * (p0 * t0 * d0 + p1 * t1 * d1 + p2 * t2 * d2) + q0 * t0 * t0 + q1 * t1 * t1 + q2 * t2 * t2
    return moves, own, (bends - 2.0 * square * moves / mean) / (mean * mean)


@njit
def _solve(rows, static, step, raw, slot, v, row, chunk, chunks, shortest, span, limit):  # type: ignore[no-untyped-def]
    """The number of running decodes n with n = need x mean step time(n), at most `limit`.

    Newton's method on need x mean step time(n) - n from the observed number, halving the bracket where that fails.
    """
    rate, hits, need = row[RATE], row[FULL_HITS], row[RATE] * (row[OUTPUT] - 1.0)
    a, b = 0.0, limit  # more arrives than is served at a, less at b (above the limit nothing is known at first)
    c = min(row[OBSERVED_N], limit) if row[OBSERVED_N] == row[OBSERVED_N] else limit / 2.0
    low, before = math.floor(c), np.inf
    ends = _ends(rows, static, step, raw, slot, v, low, chunk, shortest, span)
    tried = False  # the limit itself
    for _ in range(100):
        if math.floor(c) != low:  # the step times depend on the whole numbers around c only
            low = math.floor(c)
            ends = _ends(rows, static, step, raw, slot, v, low, chunk, shortest, span)
        gap = need * _mean_step(ends, c - low, rate, chunks, hits)[0] - c
        if abs(gap) <= 1e-10 * limit:
            break
        if gap < 0.0:
            b = c
        elif c >= limit or not gap > 0.0:
            return limit
        else:
            a = c
        rises = ends[3] - ends[0], ends[4] - ends[1], ends[5] - ends[2]
        closing = 1.0 - need * _mean_slopes(ends, c - low, rate, chunks, hits, rises[0], rises[1], rises[2])[0]
        c = c + gap / closing if closing > 0.0 else limit
        if c >= limit and b >= limit and not tried:
            c, tried = limit, True
        elif not (a < c and c < b) or abs(gap) > 0.5 * before:
            c = (a + b) / 2.0
        before = abs(gap)
    return c


@njit
def _room(row, fixed_load):  # type: ignore[no-untyped-def]
    """The token budget that decodes leave for prompts, which decides into how many chunks a prompt is cut."""
    decodes = row[OBSERVED_N] if fixed_load else row[SEQS]
    return max(row[BUDGET] - min(decodes, row[BUDGET] - 1.0), 1.0)


@njit
def predict(m, phi, active, fixed_load, running, means_ms):  # type: ignore[no-untyped-def]
    """Fill means_ms[stages, 3] with mean E2E, TTFT, ITL in ms at the constants `phi`, and running[stages] with the
    decodes that run at once. Only the `active` stages are computed.

    `fixed_load`: take the number of running decodes from the observed ITL instead of solving for it.
    """
    rows, static, step, raw, v, slot = m.rows, m.static, m.step, m.raw, m.v, m.results[0]
    settled = -1
    for i in range(m.table.shape[0]):
        if not active[i]:
            continue
        row = m.table[i]
        deployment = int(row[DEPLOYMENT])
        if deployment != settled:
            _load(m, phi, deployment)
            settled = deployment
        token = v[m.results[2]] if m.results[2] >= 0 else 0.0
        completion = v[m.results[3]] if m.results[3] >= 0 else 0.0
        queueing = 0.0
        if m.results[1] >= 0:
            v[m.request] = row[INPUT]
            run(rows, step, rows.shape[0], v)
            queueing = v[m.results[1]]
        decodes = row[OUTPUT] - 1.0
        shortest, span = row[INPUT], max(decodes - 1.0, 0.0)
        limit = row[SEQS]
        room = _room(row, fixed_load)
        chunks = max(math.ceil(row[UNCACHED] / room), 1.0)
        chunk = row[UNCACHED] / chunks
        wait = 0.0
        n = row[OBSERVED_N]
        if not fixed_load or n != n:
            n = _solve(rows, static, step, raw, slot, v, row, chunk, chunks, shortest, span, limit)
        running[i] = n
        low = math.floor(n)
        ends = _ends(rows, static, step, raw, slot, v, low, chunk, shortest, span)
        mean, own, square = _mean_step(ends, n - low, row[RATE], chunks, row[FULL_HITS])
        if n >= limit:  # more arrives than is served: the queue grows until the stage ends
            served = limit / max(decodes * mean, 1e-9)
            wait = max(row[RATE] / served - 1.0, 0.0) * row[DURATION] / 2.0
        # A request first waits for the rest of a running step: E[t**2] / (2 E[t]), as long steps are hit more often.
        ttft = queueing + wait + mean * square / 2.0 + own * chunks + token
        slowed = 1.0
        if row[COLD] > 0.0:  # every step that fills the cold cache delays all running requests
            parts = math.ceil(row[COLD_LEN] / room)
            full = _step(rows, static, step, raw, slot, v, low, 1, row[COLD_LEN] / parts, shortest, span)
            slowed += max(full - ends[0], 0.0) * parts * row[COLD] / row[DURATION]
        decode = decodes * (mean * slowed + token)
        means_ms[i, 0] = (ttft + decode + completion) / 1e3
        means_ms[i, 1] = ttft / 1e3
        means_ms[i, 2] = (decode + completion) / max(decodes, 1.0) / 1e3


@njit
def slopes(m, phi, active, fixed_load, running, slopes_ms):  # type: ignore[no-untyped-def]
    """Fill slopes_ms[stages, 3, phi] with the derivatives of `predict`, which has left `running`, at `phi`."""
    rows, static, step, raw, v, slot = m.rows, m.static, m.step, m.raw, m.v, m.results[0]
    which, d, e = m.which, m.d, m.moves
    settled = -1
    for i in range(m.table.shape[0]):
        for c in range(3):
            for j in range(phi.size):
                slopes_ms[i, c, j] = 0.0
        if not active[i]:
            continue
        row = m.table[i]
        deployment = int(row[DEPLOYMENT])
        if deployment != settled:
            _load(m, phi, deployment)
            differentiate(rows, which, 0, m.static_which, v, d)
            differentiate(rows, which, m.static_which, m.step_which, v, d)  # of the reference batch
            for j in range(m.theta.size):
                d[m.request + REFERENCE, j] = d[slot, j]
            settled = deployment
        if m.results[1] >= 0:
            v[m.request] = row[INPUT]
            run(rows, step, rows.shape[0], v)
            differentiate(rows, which, m.step_which, which.size, v, d)
        decodes = row[OUTPUT] - 1.0
        shortest, span = row[INPUT], max(decodes - 1.0, 0.0)
        rate, hits, limit = row[RATE], row[FULL_HITS], row[SEQS]
        room = _room(row, fixed_load)
        chunks = max(math.ceil(row[UNCACHED] / room), 1.0)
        chunk = row[UNCACHED] / chunks
        n = running[i]
        low = math.floor(n)
        part = n - low
        for k in range(ENDS):
            prompts = k % 3 if chunk > 0.0 else 0
            m.times[k] = _step(rows, static, step, raw, slot, v, low + k // 3, prompts, chunk, shortest, span)
            differentiate(rows, which, m.static_which, m.step_which, v, d)
            for j in range(m.theta.size):
                e[k, j] = d[slot, j]
        ends = m.times[0], m.times[1], m.times[2], m.times[3], m.times[4], m.times[5]
        mean, _, square = _mean_step(ends, part, rate, chunks, hits)
        saturated = n >= limit
        solved = not saturated and (not fixed_load or row[OBSERVED_N] != row[OBSERVED_N])
        rises = ends[3] - ends[0], ends[4] - ends[1], ends[5] - ends[2]  # with one decode more
        need = rate * decodes
        closing = 1.0 - need * _mean_slopes(ends, part, rate, chunks, hits, rises[0], rises[1], rises[2])[0]
        parts, delay = 0.0, 0.0
        if row[COLD] > 0.0:
            parts = math.ceil(row[COLD_LEN] / room)
            full = _step(rows, static, step, raw, slot, v, low, 1, row[COLD_LEN] / parts, shortest, span)
            differentiate(rows, which, m.static_which, m.step_which, v, d)
            for j in range(m.theta.size):
                e[ENDS, j] = d[slot, j]
            delay = full - ends[0]
        late = saturated and rate * max(decodes * mean, 1e-9) > limit
        for j in range(m.theta.size):
            d0 = e[0, j] + part * (e[3, j] - e[0, j])
            d1 = e[1, j] + part * (e[4, j] - e[1, j])
            d2 = e[2, j] + part * (e[5, j] - e[2, j])
            moves, own_moves, square_moves = _mean_slopes(ends, part, rate, chunks, hits, d0, d1, d2)
            if solved:  # n moves too
                more = need * moves / closing
                d0, d1, d2 = d0 + more * rises[0], d1 + more * rises[1], d2 + more * rises[2]
                moves, own_moves, square_moves = _mean_slopes(ends, part, rate, chunks, hits, d0, d1, d2)
            token = d[m.results[2], j] if m.results[2] >= 0 else 0.0
            completion = d[m.results[3], j] if m.results[3] >= 0 else 0.0
            ttft = (moves * square + mean * square_moves) / 2.0 + own_moves * chunks + token
            if m.results[1] >= 0:
                ttft += d[m.results[1], j]
            if late:
                ttft += rate * decodes * moves / limit * row[DURATION] / 2.0
            slowed, slows = 1.0, 0.0
            if delay > 0.0:
                share = parts * row[COLD] / row[DURATION]
                slowed, slows = 1.0 + delay * share, (e[ENDS, j] - e[0, j]) * share
            decode = decodes * (moves * slowed + mean * slows + token)
            p = m.place[m.group[deployment], j]
            slopes_ms[i, 0, p] += (ttft + decode + completion) / 1e3
            slopes_ms[i, 1, p] += ttft / 1e3
            slopes_ms[i, 2, p] += (decode + completion) / max(decodes, 1.0) / 1e3


@njit
def cold_slopes(m, phi, slopes_us):  # type: ignore[no-untyped-def]
    """Fill slopes_us[stages, phi] with the time in us that a unit of each constant adds to a step that prefills one
    whole prompt alongside the observed decodes."""
    for i in range(m.table.shape[0]):
        row = m.table[i]
        deployment = int(row[DEPLOYMENT])
        _load(m, phi, deployment)
        differentiate(m.rows, m.which, 0, m.static_which, m.v, m.d)
        n = math.floor(row[OBSERVED_N]) if row[OBSERVED_N] == row[OBSERVED_N] else 1.0
        chunk = min(row[COLD_LEN], max(row[BUDGET] - n, 1.0))
        _step(m.rows, m.static, m.step, m.raw, m.results[0], m.v, n, 1, chunk, row[INPUT], row[OUTPUT])
        differentiate(m.rows, m.which, m.static_which, m.step_which, m.v, m.d)
        for j in range(phi.size):
            slopes_us[i, j] = 0.0
        for j in range(m.theta.size):
            slopes_us[i, m.place[m.group[deployment], j]] = m.d[m.results[0], j]
