"""Physical times that add up, and an exponential: the original exercise's HAMM (hybrid additive and multiplicative), as written.

Times in the exponent are in ms. KV usage is the share of the cache that the batch's contexts fill. `correction` is that
of a mixture of experts.
Left out, because a program cannot see them: offloaded bytes, the queue's depth and KV usage, prefix hits, the context
of an output token; all-to-all, because no deployment has expert parallelism.
"""

def step_time(
    b, s, *,
    g0: us = 2000.0, g1: one[0, 100] = 1.0,
    b0: one[-30, 20] = 7.5,
    b1: one[-1000, 1000] = 0.0, b2: one[-1000, 1000] = 0.0, b3: one[-1000, 1000] = 0.0, b4: one[-1000, 1000] = 0.0,
    b5: one[-1000, 1000] = 0.0, b6: one[-1000, 1000] = 0.0,
    correction: one[-20, 20] = 0.0,
    unit: us[1, 1] = 1.0, ms: us[1000, 1000] = 1000.0,
    token: token[1, 1] = 1.0, request: request[1, 1] = 1.0, k_tokens: token[1024, 1024] = 1024.0,
):
    prefill = b1 * log1p(b.prefill_tokens / token) * s.gemm_us_per_token * token / ms
    longest = b2 * sqrt(b.max_prefill_chunk / k_tokens)
    decode = b3 * log1p(b.decode_tokens / request) * b.kv_read_us / ms
    batch = b4 * log1p(b.batch_size / request) + b5 * b.kv_sum / (s.kv_blocks * s.block_size)
    experts = s.is_moe * (b6 * log1p(b.tokens / token) + correction)
    return g0 + g1 * b.allreduce_us + unit * exp(b0 + prefill + longest + decode + batch + experts)


def queueing_time(r, s, *, a0: one[-20, 20] = 8.5, a1: one[-10, 10] = 0.0, unit: us[1, 1] = 1.0, token: token[1, 1] = 1.0):
    return unit * exp(a0 + a1 * log1p(r.input_len / token))
