"""The two regimes in microseconds with nothing else: queueing and output processing take no time.

Source: the regimes of the original exercise's second round.
"""

def step_time(
    b, s, *,
    p0: us[-1000000, 1000000] = 3000.0,
    p1: one[-100, 100] = 1.0,
    p2: one[-100, 100] = 1.0,
    p3: one[-100, 100] = 1.0,
    p4: one[-100, 100] = 1.0,
    d0: us[-1000000, 1000000] = 3000.0,
    d1: one[-100, 100] = 1.0,
    d2: one[-100, 100] = 1.0,
    d3: one[-100, 100] = 1.0,
):
    prompts = p2 * b.prefill_gemm_us + p3 * b.prefill_attention_us
    if b.prefill_reqs > 0:
        return p0 + p1 * b.weight_read_us + prompts + p4 * b.kv_read_us
    return d0 + d1 * b.weight_read_us + d2 * b.decode_kv_read_us + d3 * b.decode_gemm_us


def queueing_time(r, s):
    return 0


def output_token_time(s):
    return 0


def completion_time(s):
    return 0
