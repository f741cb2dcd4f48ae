"""Two linear laws in raw counts, for a fit of logarithms: `smearing` turns the median time into the mean.

Source: the log-space target of the original exercise's second round; Duan, Smearing estimate, JASA 78 (1983).
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
    smearing: one[-1, 1] = 0.0,
):
    prompts = p0 + p1 * b.prefill_tokens + p2 * b.decode_reqs + p3 * b.kv_sum
    decodes = d0 + d1 * b.decode_reqs + d2 * b.kv_decode_sum
    return exp(smearing) * (prompts if b.prefill_reqs > 0 else decodes)
