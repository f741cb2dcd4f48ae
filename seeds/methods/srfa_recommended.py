"""Overheads and a softplus: the original exercise's SRFA (softplus regression with complete feature alignment), as its reviewers changed it.

The imbalance of experts is at least 1. The training starts from the roofline, which these values are. Settings of KV
thresholds and a history of preemptions concern what a program cannot see, cached FLOPs only what a training costs.
The rest is as in srfa_as_written, which says what is left out; recent preemptions are, too.
"""

def step_time(
    b, s, *,
    g0: us = 2000.0, g1: one[0, 100] = 1.0, g2: one[0, 100] = 1.0, g3: us = 30.0,
    imbalance: one[1, 1000] = 1.5,
    b0: us[-1000000, 1000000] = 0.0,
    b1: one[-1000, 1000] = 1.0, b2: one[-1000, 1000] = 1.0, b3: one[-1000, 1000] = 1.0,
    b4: us[-1000000, 1000000] = 0.0, b5: us[-1000000, 1000000] = 0.0, b6: us[-1000000, 1000000] = 0.0,
    flops: flop/token[2, 2] = 2.0, latency: us[5, 5] = 5.0,
    unit: us[1, 1] = 1.0, token: token[1, 1] = 1.0, request: request[1, 1] = 1.0,
):
    router = flops * b.tokens * s.hidden * s.experts / s.flops_per_us
    dispatch = latency * log(s.experts) / log(2) if s.experts > 0 else 0
    overheads = g0 + g1 * b.allreduce_us + g2 * s.moe_layers * latency + g3 * s.layers
    prefill = b1 * (b.prefill_gemm_us + b.prefill_attention_us)
    decode = b2 * (b.decode_gemm_us + b.decode_attention_us)
    sizes = b4 * log1p(b.batch_size / request) + b5 * log1p(max(b.kv_max, b.max_prefill_chunk) / token)
    mixed = b6 * (b.prefill_reqs / b.batch_size) * (b.decode_reqs / b.batch_size)
    work = unit * softplus((b0 + prefill + decode + b3 * b.kv_read_us + sizes + mixed) / unit)
    return overheads + imbalance * s.moe_layers * (router + dispatch) + work


def queueing_time(r, s, *, a0: us = 5000.0, a1: us = 0.0):
    return a0 + a1 * r.input_len / s.max_model_len
