"""Phases that overlap in part, each the larger of a compute and a memory time, and overheads: twelve constants.

G: matrix products, A: attention, M: bytes of the phase (weights by the experts touched, KV cache, activations), each
over the datasheet's peak. `a` is the share in which the phases overlap. What is fixed by its bounds is not fitted.
Source: the analytic components of the original exercise ("idea 2").
"""

def step_time(
    b, s, *,
    c1: one[0.1, 10] = 1.0,
    c2: one[0.1, 10] = 1.0,
    c3: one[0.1, 10] = 1.0,
    c4: one[0.1, 10] = 1.0,
    c5: one[0.1, 10] = 1.0,
    c6: one[0.1, 10] = 1.0,
    e: one[0.5, 1.5] = 1.0,
    a: one[0, 1] = 0.5,
    c7: us = 2000.0,
    c8: us/request = 10.0,
    c9: us = 10.0,
    c10: us/token = 0.001,
    kv_unit: token[1024, 1024] = 1024.0,
):
    prefill_compute = c1 * b.prefill_gemm_us + c2 * b.prefill_attention_us
    decode_compute = c4 * b.decode_gemm_us + c5 * b.decode_attention_us * pow(b.kv_decode_mean / kv_unit, e)
    prefill = max(prefill_compute, c3 * b.prefill_bytes_us)
    decode = max(decode_compute, c6 * b.decode_bytes_us)
    phases = a * max(prefill, decode) + (1 - a) * (prefill + decode)
    return phases + c7 + c8 * b.batch_size + c9 * s.layers / s.tp + c10 * b.kv_sum
