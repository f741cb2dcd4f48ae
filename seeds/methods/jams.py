"""Overheads and roofline times that add up, with a mixture of experts' imbalance and dispatch from its architecture.

The busiest expert holds 1 + sqrt((N - k) / (N k)) times its share, for k of N experts a token; tokens are dispatched in
log2(N) steps a layer, rounded up (powers of two in all known models). No constant is below 0.
Source: our form of the original exercise's JAMS; its own is jams_as_written.
"""

def step_time(
    b, s, *,
    gamma0: us = 2000.0,
    gamma1: us = 30.0,
    gamma2: us = 10.0,
    gamma3: us/request = 10.0,
    dispatch: us = 5.0,
    beta1: one[0, 100] = 1.0,
    beta2: one[0, 100] = 1.0,
    beta3: one[0, 100] = 1.0,
    beta4: one[0, 100] = 1.0,
    beta5: one[0, 100] = 1.0,
):
    imbalance = 1 + sqrt((s.experts - s.active_experts) / (s.experts * s.active_experts))
    doublings = log(s.experts) / log(2) if s.experts > 0 else 0
    overheads = gamma0 + gamma1 * s.layers + gamma2 * s.layers * s.tp_log2 + gamma3 * b.batch_size
    memory = beta1 * s.shared_weights_us + beta2 * b.expert_read_us * imbalance + beta3 * b.kv_read_us
    compute = beta4 * (b.prefill_gemm_us + b.decode_gemm_us) + beta5 * b.prefill_attention_us
    return overheads + dispatch * s.moe_layers * doublings + memory + compute
