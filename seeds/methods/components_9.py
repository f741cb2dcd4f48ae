"""The larger of a compute and a memory time in each phase, and overheads: nine constants.

G: matrix products, A: attention, M: bytes of the phase (weights by the experts touched, KV cache, activations), each
over the datasheet's peak. What is fixed by its bounds is not fitted.
Source: the analytic components of the original exercise ("idea 2"), with a = 1, e = 1, c10 = 0.
"""

def step_time(
    b, s, *,
    c1: one[0.1, 10] = 1.0,
    c2: one[0.1, 10] = 1.0,
    c3: one[0.1, 10] = 1.0,
    c4: one[0.1, 10] = 1.0,
    c5: one[0.1, 10] = 1.0,
    c6: one[0.1, 10] = 1.0,
    c7: us = 2000.0,
    c8: us/request = 10.0,
    c9: us = 10.0,
    kv_unit: token[1024, 1024] = 1024.0,
):
    prefill_compute = c1 * b.prefill_gemm_us + c2 * b.prefill_attention_us
    decode_compute = c4 * b.decode_gemm_us + c5 * b.decode_attention_us * (b.kv_decode_mean / kv_unit)
    prefill = max(prefill_compute, c3 * b.prefill_bytes_us)
    decode = max(decode_compute, c6 * b.decode_bytes_us)
    return max(prefill, decode) + c7 + c8 * b.batch_size + c9 * s.layers / s.tp
