"""Three linear laws in raw counts: no prompt tokens in the step, fewer than 256, and more.

Source: the regimes of the original exercise's second round.
"""

def step_time(
    b, s, *,
    p0: us[-1000000, 1000000] = 8000.0,
    p1: us/token[-1000, 1000] = 10.0,
    p2: us/request[-10000, 10000] = 30.0,
    p3: us/token[-100, 100] = 0.0,
    m0: us[-1000000, 1000000] = 8000.0,
    m1: us/token[-1000, 1000] = 10.0,
    m2: us/request[-10000, 10000] = 30.0,
    m3: us/token[-100, 100] = 0.0,
    d0: us[-1000000, 1000000] = 8000.0,
    d1: us/request[-10000, 10000] = 30.0,
    d2: us/token[-100, 100] = 0.0,
    split: token[256, 256] = 256.0,
):
    if b.prefill_tokens >= split:
        return p0 + p1 * b.prefill_tokens + p2 * b.decode_reqs + p3 * b.kv_sum
    if b.prefill_tokens > 0:
        return m0 + m1 * b.prefill_tokens + m2 * b.decode_reqs + m3 * b.kv_sum
    return d0 + d1 * b.decode_reqs + d2 * b.kv_decode_sum
