"""The time to read the weights, times a linear form in twelve dimensionless ratios.

Ratios of the batch to the engine's limits, of each phase's compute and KV time to the weights' time, arithmetic
intensity over the machine's balance, shares of attention and of experts, and the spread of the contexts.
Source: our form of the original exercise's NRRL; its own ratios are in nrrl_as_written.
"""

def step_time(
    b, s, *,
    base: one[-100, 100] = 1.2,
    w1: one[-100, 100] = 0.0,
    w2: one[-100, 100] = 0.0,
    w3: one[-100, 100] = 0.0,
    w4: one[-100, 100] = 1.0,
    w5: one[-100, 100] = 0.0,
    w6: one[-100, 100] = 1.0,
    w7: one[-100, 100] = 1.0,
    w8: one[-100, 100] = 0.0,
    w9: one[-100, 100] = 0.0,
    w10: one[-100, 100] = 0.0,
    w11: one[-100, 100] = 0.0,
    w12: one[-100, 100] = 0.0,
):
    limits = w1 * b.prefill_tokens / s.max_num_batched_tokens + w2 * b.decode_reqs / s.max_num_seqs
    held = w3 * b.kv_sum / (s.kv_blocks * s.block_size)
    compute = w4 * b.prefill_gemm_us / s.weights_us + w5 * b.decode_gemm_us / s.weights_us
    attention = w6 * b.prefill_attention_us / s.weights_us + w7 * b.decode_kv_read_us / s.weights_us
    experts = w8 * b.expert_read_us / s.weights_us
    balance = w9 * (b.total_flops / s.flops_per_us) / (b.total_bytes / s.bytes_per_us)
    shares = w10 * b.attention_flops / b.total_flops + w11 * b.max_prefill_chunk / s.max_num_batched_tokens
    spread = w12 * b.kv_var / (b.kv_mean * b.kv_mean)
    ratios = base + limits + held + compute + attention + experts + balance + shares + spread
    return s.weights_us * ratios
