"""Overheads, and a softplus of roofline ratios in units of the time to read the weights.

The softplus keeps the work positive and bends smoothly from bound by memory to bound by compute. Experts
take at least as long as their bytes say (`moe`).
Source: our form of the original exercise's SRFA; the factor of mixtures of experts multiplies their own bytes only. The
exercise's own form is srfa_recommended.
"""

def step_time(
    b, s, *,
    gamma0: us = 2000.0,
    gamma1: us = 30.0,
    gamma2: us/request = 10.0,
    beta0: one[-10, 10] = 0.5,
    beta1: one[-10, 10] = 1.0,
    beta2: one[-10, 10] = 1.0,
    beta3: one[-10, 10] = 1.0,
    beta4: one[-10, 10] = 0.5,
    moe: one[1, 10] = 1.0,
):
    gemm = beta1 * (b.prefill_gemm_us + b.decode_gemm_us) / s.weights_us
    context = beta2 * b.kv_read_us / s.weights_us + beta3 * b.prefill_attention_us / s.weights_us
    weights = beta4 * (s.shared_weights_us + moe * b.expert_read_us) / s.weights_us
    work = softplus(beta0 + gemm + context + weights)
    return gamma0 + gamma1 * s.layers + gamma2 * b.batch_size + s.weights_us * work
