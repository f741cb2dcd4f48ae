"""Three linear laws in microseconds over the datasheet's peaks: no prompt tokens in the step, fewer than 256, and more.

Source: the regimes of the original exercise's second round.
"""

def step_time(
    b, s, *,
    p0: us[-1000000, 1000000] = 3000.0,
    p1: one[-100, 100] = 1.0,
    p2: one[-100, 100] = 1.0,
    p3: one[-100, 100] = 1.0,
    p4: one[-100, 100] = 1.0,
    m0: us[-1000000, 1000000] = 3000.0,
    m1: one[-100, 100] = 1.0,
    m2: one[-100, 100] = 1.0,
    m3: one[-100, 100] = 1.0,
    m4: one[-100, 100] = 1.0,
    d0: us[-1000000, 1000000] = 3000.0,
    d1: one[-100, 100] = 1.0,
    d2: one[-100, 100] = 1.0,
    d3: one[-100, 100] = 1.0,
    split: token[256, 256] = 256.0,
):
    many = p2 * b.prefill_gemm_us + p3 * b.prefill_attention_us
    some = m2 * b.prefill_gemm_us + m3 * b.prefill_attention_us
    if b.prefill_tokens >= split:
        return p0 + p1 * b.weight_read_us + many + p4 * b.kv_read_us
    if b.prefill_tokens > 0:
        return m0 + m1 * b.weight_read_us + some + m4 * b.kv_read_us
    return d0 + d1 * b.weight_read_us + d2 * b.decode_kv_read_us + d3 * b.decode_gemm_us
