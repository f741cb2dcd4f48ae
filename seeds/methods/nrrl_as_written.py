"""A line in the twelve ratios of the original exercise's NRRL (normalized roofline residual learning), as written.

The experts' imbalance is its expected value, sqrt((N - k) / (T k)) for T tokens and k of N experts. The estimate under
the communication is the roofline. `kv_max` and the largest chunk stand for the longest sequence.
Left out, because a program cannot see them: queue depth, KV usage, running requests, chunked prefill, prompt x queue
depth, preemptions.
"""

def step_time(
    b, s, *,
    w0: us[-1000000, 1000000] = 3000.0,
    w1: one[-100000, 100000] = 1.0, w2: one[-100000, 100000] = 1.0, w3: one[-100000, 100000] = 1.0,
    w4: one[-100000, 100000] = 1.0, w5: one[-100000, 100000] = 1.0, w6: one[-100000, 100000] = 1.0,
    w7: us[-1000000, 1000000] = 0.0, w8: us[-1000000, 1000000] = 0.0, w9: us[-1000000, 1000000] = 0.0,
    w10: us[-1000000, 1000000] = 0.0, w11: us[-1000000, 1000000] = 0.0,
    token: token[1, 1] = 1.0,
):
    compute = w1 * b.prefill_gemm_us + w2 * b.decode_gemm_us + w3 * (b.prefill_attention_us + b.decode_attention_us)
    memory = w4 * b.kv_read_us + w5 * b.kv_write_us + w6 * b.weight_read_us
    batch = w7 * b.prefill_reqs / b.batch_size + w8 * max(b.kv_max, b.max_prefill_chunk) / s.max_model_len
    imbalance = sqrt((s.experts - s.active_experts) / (s.active_experts * b.tokens / token))
    experts = w9 * s.active_experts / s.experts + w10 * imbalance
    roofline = max(b.total_flops / s.flops_per_us, b.total_bytes / s.bytes_per_us)
    return w0 + compute + memory + batch + experts + w11 * b.allreduce_us / roofline


def queueing_time(r, s, *, a0: us = 5000.0, a1: us = 0.0):
    return a0 + a1 * r.input_len / s.max_model_len
