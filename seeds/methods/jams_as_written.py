"""Overheads and a line: the original exercise's JAMS (joint optimization with architecture-derived MoE scaling), as written.

The efficiencies (mfu, bw_eff) are in the constants. KV usage is the share of the cache that the batch's contexts fill;
`kv_max` and the largest chunk stand for the longest sequence. An all-to-all has a latency of 5 us, because the exercise
gives none, in log2(N) steps, rounded up (powers of two in all known models). Experts have three matrices.
Left out, because a program cannot see them: queue depth, the queue's KV usage, prefix hits, preemptions, the context of
an output token.
"""

def step_time(
    b, s, *,
    g0: us = 2000.0, g1: one[0, 100] = 1.0, g2: one[0, 100] = 1.0,
    b0: us = 0.0,
    b1: one[-1000, 1000] = 1.0, b2: one[-1000, 1000] = 1.0, b3: one[-1000, 1000] = 1.0,
    b4: us/request[-10000, 10000] = 0.0, b5: us[-1000000, 1000000] = 0.0,
    b6: us[-1000000, 1000000] = 0.0, b7: us/request[-1000000, 1000000] = 0.0,
    flops: flop/token[2, 2] = 2.0, latency: us[5, 5] = 5.0, matrices: one[3, 3] = 3.0, full: one[0.9, 0.9] = 0.9,
    token: token[1, 1] = 1.0, request_token: token/request[1, 1] = 1.0,
):
    router = flops * b.tokens * s.hidden * s.experts / s.flops_per_us
    dispatch = latency * log(s.experts) / log(2) if s.experts > 0 else 0
    imbalance = 1 + sqrt((s.experts - s.active_experts) / (s.experts * s.active_experts))
    expert = flops * b.tokens * matrices * s.hidden * s.moe_ffn * s.active_experts / s.tp / s.flops_per_us
    overheads = g0 + g1 * b.allreduce_us + g2 * s.moe_layers * (router + dispatch + imbalance * expert)
    times = b0 + b1 * b.prefill_gemm_us + b2 * b.decode_gemm_us + b3 * b.kv_read_us
    sizes = b4 * b.batch_size + b5 * log1p(max(b.kv_max, b.max_prefill_chunk) / token)
    budget = s.max_num_batched_tokens * s.max_num_batched_tokens
    mixed = b6 * b.prefill_tokens * b.decode_tokens * request_token / budget
    return overheads + times + sizes + mixed + b7 * b.batch_size * max(b.kv_sum / (s.kv_blocks * s.block_size) - full, 0)


def queueing_time(r, s, *, a0: us = 5000.0, a1: us = 0.0):
    return a0 + a1 * r.input_len / s.max_model_len
