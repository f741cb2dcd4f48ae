"""The twelve constants of components_12, all six factors of times corrected by the batch and for mixtures of experts.

c1 gains multiples of log(batch) and is_moe, c4 of log1p(kv_max) and is_moe, c5 of log1p(kv_mean) and is_moe, and the
other factor of compute and that of memory in each phase likewise. None falls below 0.1. What is fixed by its bounds is
not fitted.
Source: the analytic components of the original exercise ("idea 2"), which counts 24 constants but names the corrections
of c1, c4 and c5 only (components_18); c2, c3 and c6 are corrected in the same way.
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
    c1_batch: one[-5, 5] = 0.0,
    c1_is_moe: one[-5, 5] = 0.0,
    c2_kv_max: one[-5, 5] = 0.0,
    c2_is_moe: one[-5, 5] = 0.0,
    c3_batch: one[-5, 5] = 0.0,
    c3_is_moe: one[-5, 5] = 0.0,
    c4_kv_max: one[-5, 5] = 0.0,
    c4_is_moe: one[-5, 5] = 0.0,
    c5_kv_mean: one[-5, 5] = 0.0,
    c5_is_moe: one[-5, 5] = 0.0,
    c6_kv_mean: one[-5, 5] = 0.0,
    c6_is_moe: one[-5, 5] = 0.0,
    kv_unit: token[1024, 1024] = 1024.0,
    request: request[1, 1] = 1.0,
    token: token[1, 1] = 1.0,
    least: one[0.1, 0.1] = 0.1,
):
    c1_here = max(c1 + c1_batch * log(b.batch_size / request) + c1_is_moe * s.is_moe, least)
    c2_here = max(c2 + c2_kv_max * log1p(b.kv_max / token) + c2_is_moe * s.is_moe, least)
    c3_here = max(c3 + c3_batch * log(b.batch_size / request) + c3_is_moe * s.is_moe, least)
    c4_here = max(c4 + c4_kv_max * log1p(b.kv_decode_max / token) + c4_is_moe * s.is_moe, least)
    c5_here = max(c5 + c5_kv_mean * log1p(b.kv_decode_mean / token) + c5_is_moe * s.is_moe, least)
    c6_here = max(c6 + c6_kv_mean * log1p(b.kv_decode_mean / token) + c6_is_moe * s.is_moe, least)
    prefill_compute = c1_here * b.prefill_gemm_us + c2_here * b.prefill_attention_us
    decode_compute = c4_here * b.decode_gemm_us + c5_here * b.decode_attention_us * pow(b.kv_decode_mean / kv_unit, e)
    prefill = max(prefill_compute, c3_here * b.prefill_bytes_us)
    decode = max(decode_compute, c6_here * b.decode_bytes_us)
    phases = a * max(prefill, decode) + (1 - a) * (prefill + decode)
    return phases + c7 + c8 * b.batch_size + c9 * s.layers / s.tp + c10 * b.kv_sum
