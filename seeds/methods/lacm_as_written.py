"""The exponential of a line in the features of the original exercise's LACM (log-space additive component model), as written.

Times in the exponent are in ms. The variance coefficient in the experts' imbalance is 1: the exercise gives none. No
constant is below 0.
Left out, because a program cannot see them: queue depth, KV usage, prefix hits; is_decode of an output token.
"""

def step_time(
    b, s, *,
    b0: one[0, 50] = 8.5,
    b1: one[0, 1000] = 0.0, b2: one[0, 1000] = 0.0, b3: one[0, 1000] = 0.0,
    b4: one[0, 1000] = 0.1, b5: one[0, 1000] = 0.0, b6: one[0, 10000000] = 0.0, b7: one[0, 1000] = 0.0,
    router: flop/token[2, 2] = 2.0,
    unit: us[1, 1] = 1.0, ms: us[1000, 1000] = 1000.0,
    token: token[1, 1] = 1.0, request: request[1, 1] = 1.0,
):
    per_token = s.gemm_us_per_token * token / ms
    compute = (b1 * log1p(b.prefill_tokens / token) + b2 * log1p(b.decode_tokens / request)) * per_token
    blocks = b3 * log1p(b.kv_sum / s.block_size) * s.kv_us_per_token * s.block_size / ms
    batch = b4 * log1p(b.batch_size / request) + b5 * b.allreduce_us / ms
    routing = router * s.moe_layers * s.hidden * s.experts / s.flops_per_us * token / ms
    imbalance = 1 + (s.experts - s.active_experts) / (s.experts * s.active_experts)
    experts = b6 * log1p(b.tokens / token) * routing + b7 * s.is_moe * imbalance
    return unit * exp(b0 + compute + blocks + batch + experts)


def queueing_time(r, s, *, a0: one[0, 20] = 8.5, a1: one[0, 10] = 0.0, unit: us[1, 1] = 1.0, token: token[1, 1] = 1.0):
    return unit * exp(a0 + a1 * log1p(r.input_len / token))
