"""Two regimes in microseconds under an overhead floor that lifts no step to more than three times its own time.

Source: the overhead floor with a cap of the original exercise's second round.
"""

def step_time(
    b, s, *,
    floor: us = 6000.0,
    p1: one[-100, 100] = 1.0,
    p2: one[-100, 100] = 1.0,
    p3: one[-100, 100] = 1.0,
    p4: one[-100, 100] = 1.0,
    d1: one[-100, 100] = 1.0,
    d2: one[-100, 100] = 1.0,
    d3: one[-100, 100] = 1.0,
    cap: one[3, 3] = 3.0,
):
    prompts = p1 * b.weight_read_us + p2 * b.prefill_gemm_us + p3 * b.prefill_attention_us + p4 * b.kv_read_us
    decodes = d1 * b.weight_read_us + d2 * b.decode_kv_read_us + d3 * b.decode_gemm_us
    time = prompts if b.prefill_reqs > 0 else decodes
    return max(time, min(floor, cap * time))
