"""Exact slopes of the mean field in a program's constants.

Those of step times come from `duals.py`, that of the running decodes from the implicit function theorem.
"""

from __future__ import annotations

import math

from evaluator.fit.duals import differentiate
from evaluator.fit.machine import COLD_STEP, ENDS, QUEUE, put_deployment, step_us
from evaluator.fit.meanfield import (
    BIN_INPUT,
    BIN_SHARE,
    BINS,
    BUDGET,
    COLD,
    COLD_LEN,
    DEPLOYMENT,
    DURATION,
    FULL_HITS,
    INPUT,
    OBSERVED_N,
    RATE,
    SEQS,
    SHORTEST,
    SPAN,
    chunk_of,
    closing,
    mean_slopes,
    mean_step,
    shape,
    steps_at,
)
from simulator.clock.vm import run
from simulator.common.jit import njit
from simulator.language.opcodes import REFERENCE


@njit
def slopes(m, phi, active, fixed_load, running, slopes_ms):  # type: ignore[no-untyped-def]
    """Fill slopes_ms[stages, 3, phi] with the derivatives of `predict`, which has left `running`, at `phi`.

    v, d, e: m.v, m.d and m.moves (see `Machine`), values, their derivatives by each constant, and those of the stage's
    times. d0, d1, d2: derivatives of steps without a prompt, with one, with two; their times are in `ends`.
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
        deployment = int(row[DEPLOYMENT])
        if deployment != settled:
            put_deployment(m, phi, deployment)
            differentiate(rows, which, 0, m.static_which, v, d)
            differentiate(rows, which, m.static_which, m.step_which, v, d)  # of the reference batch
            for j in range(m.theta.size):
                d[m.request + REFERENCE, j] = d[slot, j]
            settled = deployment
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
            ttft = min(n, 1.0) * (moves * square + mean * square_moves) / 2.0 + own_moves * chunks + token
            if n < 1.0:
                ttft += more * mean * square / 2.0
            if m.results[1] >= 0:
                ttft += e[QUEUE, j]
            if late:
                ttft += rate * decodes * moves / limit * row[DURATION] / 2.0
            slowed, slows = 1.0, 0.0
            if delay > 0.0:
                share = filling * row[COLD] / row[DURATION]
                slowed, slows = 1.0 + delay * share, (e[COLD_STEP, j] - e[0, j]) * share
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
        put_deployment(m, phi, deployment)
        differentiate(m.rows, m.which, 0, m.static_which, m.v, m.d)
        n = math.floor(row[OBSERVED_N]) if row[OBSERVED_N] == row[OBSERVED_N] else 1.0
        chunk = min(row[COLD_LEN], max(row[BUDGET] - n, 1.0))
        # The contexts of the decodes are spread over the whole answer.
        step_us(
            m.rows, m.static, m.step, m.raw, m.results[0], m.v,
            n, 1, chunk, 0.0, row[INPUT], row[SHORTEST], row[SPAN] + 2.0,
        )  # fmt: skip
        differentiate(m.rows, m.which, m.static_which, m.step_which, m.v, m.d)
        for j in range(phi.size):
            slopes_us[i, j] = 0.0
        for j in range(m.theta.size):
            slopes_us[i, m.place[m.group[deployment], j]] = m.d[m.results[0], j]
