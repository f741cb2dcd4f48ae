"""The mean field of load stages: Little's law instead of a replay, microseconds of work instead of milliseconds.

In a steady stage n decodes run at once, n = rate x (output_len - 1) x mean step time(n), at most the request limit,
and a share of the steps carries prompt chunks. Straight lines join the step times at whole n, so that the prediction
moves smoothly with the constants. What is lost (fluctuation, order, saturation) comes back by the ratio to a full
replay, with which `corrections.py` scales these figures.
"""

from __future__ import annotations

import math

from simulator.bind import settle
from simulator.jit import njit
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

# The kernels share these arguments. rows, static, step, raw, request, results: of simulator.language.opcodes.Code, the
# opcodes, where their static part and the step's part end, and the slots of raw batch fields, request fields and
# results (step, queueing, output token, completion; -1: none). v: float64[slots], the value vector to work in. base:
# the value vectors of the deployments. theta: the constants.


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
    return (
        _step(rows, static, step, raw, slot, v, low, 0, chunk, shortest, span),
        _step(rows, static, step, raw, slot, v, low, 1, chunk, shortest, span),
        _step(rows, static, step, raw, slot, v, low, 2, chunk, shortest, span),
        _step(rows, static, step, raw, slot, v, low + 1, 0, chunk, shortest, span),
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
def predict(rows, static, step, raw, request, results, base, v, table, theta, fixed_load, means_ms):  # type: ignore[no-untyped-def]
    """Fill means_ms[stages, 3] with mean E2E, TTFT, ITL in ms under constants `theta`.

    `fixed_load`: take the number of running decodes from the observed ITL instead of solving for it.
    """
    settled = -1
    for i in range(table.shape[0]):
        row = table[i]
        deployment = int(row[DEPLOYMENT])
        if deployment != settled:
            _restore(v, base[deployment])
            settle(rows, static, step, raw, request, results[0], theta, v)
            settled = deployment
        token = v[results[2]] if results[2] >= 0 else 0.0
        completion = v[results[3]] if results[3] >= 0 else 0.0
        queueing = 0.0
        if results[1] >= 0:
            v[request] = row[INPUT]
            run(rows, step, rows.shape[0], v)
            queueing = v[results[1]]
        decodes = row[OUTPUT] - 1.0
        shortest, span = row[INPUT], max(decodes - 1.0, 0.0)
        limit = row[SEQS]
        # The token budget that decodes leave for prompts decides into how many chunks a prompt is cut.
        room = max(row[BUDGET] - min(row[OBSERVED_N] if fixed_load else limit, row[BUDGET] - 1.0), 1.0)
        chunks = max(math.ceil(row[UNCACHED] / room), 1.0)
        chunk = row[UNCACHED] / chunks
        wait = 0.0
        slot = results[0]
        n = row[OBSERVED_N]
        if not fixed_load or n != n:
            n = _solve(rows, static, step, raw, slot, v, row, chunk, chunks, shortest, span, limit)
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
            full = _step(rows, static, step, raw, slot, v, math.floor(n), 1, row[COLD_LEN] / parts, shortest, span)
            plain = _step(rows, static, step, raw, slot, v, math.floor(n), 0, chunk, shortest, span)
            slowed += max(full - plain, 0.0) * parts * row[COLD] / row[DURATION]
        decode = decodes * (mean * slowed + token)
        means_ms[i, 0] = (ttft + decode + completion) / 1e3
        means_ms[i, 1] = ttft / 1e3
        means_ms[i, 2] = (decode + completion) / max(decodes, 1.0) / 1e3


@njit
def cold_effects(rows, static, step, raw, request, results, base, v, table, theta, slopes):  # type: ignore[no-untyped-def]
    """Fill slopes[constants, stages] with the time in us that a unit of each constant adds to a step that prefills one
    whole prompt alongside the observed decodes."""
    for i in range(table.shape[0]):
        row = table[i]
        n = math.floor(row[OBSERVED_N]) if row[OBSERVED_N] == row[OBSERVED_N] else 1.0
        chunk = min(row[COLD_LEN], max(row[BUDGET] - n, 1.0))
        plain = 0.0
        for j in range(-1, theta.size):  # -1: the constants unchanged
            h = 0.0
            if j >= 0:
                here = theta[j]
                h = 1e-3 * max(abs(here), 1e-3)
                theta[j] = here + h
            _restore(v, base[int(row[DEPLOYMENT])])
            settle(rows, static, step, raw, request, results[0], theta, v)
            time = _step(rows, static, step, raw, results[0], v, n, 1, chunk, row[INPUT], row[OUTPUT])
            if j < 0:
                plain = time
            else:
                theta[j] = here
                slopes[j, i] = (time - plain) / h


@njit
def _solve(rows, static, step, raw, slot, v, row, chunk, chunks, shortest, span, limit):  # type: ignore[no-untyped-def]
    """The number of running decodes n with n = need x mean step time(n), at most `limit`.

    Finds the zero of need x mean step time(n) - n by the Illinois method: regula falsi that halves the value of an end
    kept twice.
    """
    rate, hits, need = row[RATE], row[FULL_HITS], row[RATE] * (row[OUTPUT] - 1.0)
    a, b = 0.0, limit
    low = math.floor(limit)
    ends = _ends(rows, static, step, raw, slot, v, low, chunk, shortest, span)
    fb = need * _mean_step(ends, limit - low, rate, chunks, hits)[0] - b
    if not fb < 0.0:  # even at the limit more arrives than is served
        return b
    low = 0.0
    ends = _ends(rows, static, step, raw, slot, v, low, chunk, shortest, span)
    fa = need * _mean_step(ends, 0.0, rate, chunks, hits)[0]
    side = 0
    c = a
    for _ in range(60):
        c = (a * fb - b * fa) / (fb - fa)
        if math.floor(c) != low:  # the step times depend on the whole numbers around c only
            low = math.floor(c)
            ends = _ends(rows, static, step, raw, slot, v, low, chunk, shortest, span)
        f = need * _mean_step(ends, c - low, rate, chunks, hits)[0] - c
        if abs(f) <= 1e-10 * limit:
            break
        if f > 0.0:
            a, fa = c, f
            if side == 1:
                fb *= 0.5
            side = 1
        else:
            b, fb = c, f
            if side == -1:
                fa *= 0.5
            side = -1
    return c


@njit
def jacobian(rows, static, step, raw, request, results, base, v, table, theta, which, fixed_load, size, value, slopes):  # type: ignore[no-untyped-def]
    """Fill slopes[which, stages, 3] with forward differences of `predict` at theta, where it is `value`."""
    for k in range(which.size):
        j = which[k]
        here = theta[j]
        h = 1e-5 * max(abs(here), size[j])
        theta[j] = here + h
        predict(rows, static, step, raw, request, results, base, v, table, theta, fixed_load, slopes[k])
        theta[j] = here
        for i in range(value.shape[0]):
            for c in range(3):
                slopes[k, i, c] = (slopes[k, i, c] - value[i, c]) / h


@njit
def _restore(v, base):  # type: ignore[no-untyped-def]
    """Copy a deployment's value vector into `v`."""
    for i in range(v.size):
        v[i] = base[i]
