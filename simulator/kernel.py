"""The compiled clock: one serving instance, step by step, at a cost per step that does not grow with the batch.

The event rules are the host's (its main branch): FCFS admission, token budget, chunked prefill, request limit,
prefix cache, steps chained end to end while work remains, and idle at once: a step that finishes everything frees
the instance at its *start*. KV capacity is taken as unlimited, so a running request never loses its place.

Nothing loops over the batch. Every running decode gains one token a step, so sums over decodes move by their
count; a decode's last step is known when its prompt is done, so completions stand in a calendar by step number.
Running decodes are served before prompt chunks, where the host goes in order of admission; the kernel notices when
that could make a difference (`ORDER_MATTERS`) and leaves the case to the plain reference.
"""

from __future__ import annotations

import numpy as np

from simulator.jit import njit
from simulator.vm import clamps, run, to_ticks

DONE, ORDER_MATTERS, HOSTILE = 0, 1, 2


@njit
def clock(  # type: ignore[no-untyped-def]
    rows, static, step, v, raw, out_step, use_squares, use_max,
    queued_us, input_len, output_len, prompt, group, prompts, groups,
    shared_len, block, caching, max_seqs, budget, threshold, stop_when_hostile,
    start_us, first_us, decode_us,
):  # fmt: skip
    """Run the requests to their end. Requests are rows in the order in which they are queued (int64 arrays).

    Fills start_us (admission), first_us (end of the step that finished the prompt) and decode_us (sum of the
    durations of its decode steps) and returns (status, steps, clamped steps, offending step time in us).
    """
    n = queued_us.size
    own = np.zeros(prompts, np.int64)  # cached tokens of each prompt, whole blocks
    common = np.zeros(groups, np.int64)  # cached tokens of each group's shared prefix, whole blocks
    shared = shared_len // block * block
    ring = np.int64(1)
    for i in range(n):
        ring = max(ring, output_len[i])
    calendar = np.full(ring + 1, -1, np.int64)  # step number modulo ring + 1 -> first request that ends there
    after = np.full(n, -1, np.int64)  # the next request that ends in the same step
    before_us = np.zeros(n, np.int64)  # clock of decode durations when the request's prompt was done
    filling = np.zeros(max_seqs, np.int64)  # requests still in their prompt, in order of admission
    progress = np.zeros(max_seqs, np.int64)
    chunk = np.zeros(max_seqs, np.int64)
    born = np.zeros(n if use_max else 1, np.int64)  # step in which the prompt was done
    alive = np.zeros(max_seqs if use_max else 1, np.int64)
    place = np.zeros(n if use_max else 1, np.int64)

    head = np.int64(0)  # first request not yet admitted
    newest = np.int64(-1)  # the request admitted last
    decodes, s1, s2 = np.int64(0), np.int64(0), np.int64(0)
    oldest = np.int64(0)  # largest (input_len - born) over decodes: PI in step k is that + k - 1
    fills = np.int64(0)
    k, elapsed, clamped = np.int64(0), np.int64(0), np.int64(0)
    if n == 0:
        return DONE, k, clamped, 0.0
    now = queued_us[0]
    while True:
        left = budget - decodes
        if left < 0:
            return ORDER_MATTERS, k, clamped, 0.0
        prefill_reqs, tokens, largest, pairs = np.int64(0), np.int64(0), np.int64(0), np.int64(0)
        fill_s1, fill_s2, fill_max = np.int64(0), np.int64(0), np.int64(0)
        for j in range(fills):
            r = filling[j]
            want = input_len[r] - progress[j]
            if threshold > 0 and want > threshold:
                want = threshold
            take = min(want, left)
            if take < want and (r != newest or take == 0):
                return ORDER_MATTERS, k, clamped, 0.0
            left -= take
            done = progress[j]
            prefill_reqs += 1
            tokens += take
            largest = max(largest, take)
            pairs += take * done + take * (take + 1) // 2
            fill_s1 += done
            fill_s2 += done * done
            fill_max = max(fill_max, done)
            chunk[j] = take
            reach = (done + take) // block * block
            own[prompt[r]] = max(own[prompt[r]], reach)
            common[group[r]] = max(common[group[r]], min(reach, shared))
        running = decodes + fills
        while head < n and running < max_seqs and left > 0 and queued_us[head] <= now:
            r = head
            cached = np.int64(0)
            if caching:
                cached = min(max(own[prompt[r]], common[group[r]]), input_len[r] // block * block)
            want = input_len[r] - cached
            if threshold > 0 and want > threshold:
                want = threshold
            take = min(want, left)
            left -= take
            if take > 0:
                prefill_reqs += 1
                tokens += take
                largest = max(largest, take)
                pairs += take * (take + 1) // 2  # PI is still 0: the cached length is not visible
            reach = (cached + take) // block * block
            own[prompt[r]] = max(own[prompt[r]], reach)
            common[group[r]] = max(common[group[r]], min(reach, shared))
            filling[fills] = r
            progress[fills] = cached
            chunk[fills] = take
            fills += 1
            start_us[r] = now
            newest = r
            head += 1
            running += 1

        v[raw] = prefill_reqs
        v[raw + 1] = decodes
        v[raw + 2] = tokens
        v[raw + 3] = largest
        v[raw + 4] = pairs
        v[raw + 5] = s1 + fill_s1
        v[raw + 8] = s1
        if use_max:
            top = oldest + k - 1 if decodes > 0 else np.int64(0)
            v[raw + 6] = max(top, fill_max)
            v[raw + 9] = top
        if use_squares:
            size = decodes + prefill_reqs
            total = s1 + fill_s1
            v[raw + 7] = (size * (s2 + fill_s2) - total * total) / (size * size) if size > 0 else 0.0
        run(rows, static, step, v)
        x = v[out_step]
        if clamps(x, 1):
            clamped += 1
            if stop_when_hostile:
                return HOSTILE, k, clamped, x
        dt = to_ticks(x, 1)
        elapsed += dt

        if use_squares:
            s2 += 2 * s1 + decodes
        s1 += decodes
        lost_oldest = False
        r = calendar[k % (ring + 1)]
        calendar[k % (ring + 1)] = -1
        while r >= 0:
            decode_us[r] = elapsed - before_us[r]
            decodes -= 1
            last = input_len[r] + output_len[r] - 1
            s1 -= last
            if use_squares:
                s2 -= last * last
            if use_max:
                lost_oldest = lost_oldest or input_len[r] - born[r] == oldest
                moved = alive[decodes]
                alive[place[r]] = moved
                place[moved] = place[r]
            r = after[r]
        if use_max and lost_oldest:
            for i in range(decodes):
                age = input_len[alive[i]] - born[alive[i]]
                oldest = age if i == 0 else max(oldest, age)

        kept = np.int64(0)
        for j in range(fills):
            r = filling[j]
            reach = progress[j] + chunk[j]
            if reach < input_len[r]:
                filling[kept] = r
                progress[kept] = reach
                kept += 1
                continue
            first_us[r] = now + dt
            before_us[r] = elapsed
            if output_len[r] <= 1:
                continue
            if use_max:
                born[r] = k
                place[r] = decodes
                alive[decodes] = r
                age = input_len[r] - k
                oldest = age if decodes == 0 else max(oldest, age)
            decodes += 1
            s1 += input_len[r]
            if use_squares:
                s2 += input_len[r] * input_len[r]
            end = (k + output_len[r] - 1) % (ring + 1)
            after[r] = calendar[end]
            calendar[end] = r
        fills = kept
        k += 1
        if decodes + fills > 0 or (head < n and queued_us[head] <= now):
            now += dt
        elif head < n:
            now = queued_us[head]  # idle at once
        else:
            return DONE, k, clamped, 0.0
