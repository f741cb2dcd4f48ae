"""Two linear laws in raw counts: steps with a prompt in them, and steps without.

Source: the regimes of the original exercise's second round.
"""

def step_time(
    b, s, *,
    p0: us[-1000000, 1000000] = 8000.0,
    p1: us/token[-1000, 1000] = 10.0,
    p2: us/request[-10000, 10000] = 30.0,
    p3: us/token[-100, 100] = 0.0,
    d0: us[-1000000, 1000000] = 8000.0,
    d1: us/request[-10000, 10000] = 30.0,
    d2: us/token[-100, 100] = 0.0,
):
    if b.prefill_reqs > 0:
        return p0 + p1 * b.prefill_tokens + p2 * b.decode_reqs + p3 * b.kv_sum
    return d0 + d1 * b.decode_reqs + d2 * b.kv_decode_sum
