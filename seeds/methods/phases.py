"""The six analytic components and a constant: the larger of compute and memory in each phase, one after the other.

A search of the combination (configs/phases.yaml) starts from it.
Source: the analytic components of the original exercise ("idea 2"), without other overheads.
"""

def step_time(
    b, s, *,
    c1: one = 1.5,
    c2: one = 1.5,
    c3: one = 1.0,
    c4: one = 1.5,
    c5: one = 1.0,
    c6: one = 1.1,
    base: us = 2000.0,
):
    prefill = max(c1 * b.prefill_gemm_us + c2 * b.prefill_attention_us, c3 * b.prefill_bytes_us)
    decode = max(c4 * b.decode_gemm_us + c5 * b.decode_attention_us, c6 * b.decode_bytes_us)
    return prefill + decode + base


def queueing_time(r, s, *, wait: us = 7000.0, cycles: one = 1.3):
    return wait + cycles * s.reference_step_us
