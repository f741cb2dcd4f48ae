"""Overheads that add up, and work that multiplies: gamma . overheads + exp(beta . log features).

Overheads: a constant, launches a layer, all-reduces a layer, requests. Work: FLOPs and bytes over the peaks, tokens.
Source: our form of the original exercise's HAMM; its own is hamm_as_written.
"""

def step_time(
    b, s, *,
    gamma0: us = 2000.0,
    gamma1: us = 30.0,
    gamma2: us = 10.0,
    gamma3: us/request = 10.0,
    beta0: one[-30, 20] = 0.0,
    beta1: one[-3, 3] = 0.0,
    beta2: one[-3, 3] = 1.0,
    beta3: one[-3, 3] = 0.0,
    epsilon: one[1, 1] = 1.0,
    unit: us[1, 1] = 1.0,
    token: token[1, 1] = 1.0,
):
    overheads = gamma0 + gamma1 * s.layers + gamma2 * s.layers * s.tp_log2 + gamma3 * b.batch_size
    work = beta1 * log(epsilon + b.total_flops / s.flops_per_us / unit)
    traffic = beta2 * log(epsilon + b.total_bytes / s.bytes_per_us / unit)
    return overheads + unit * exp(beta0 + work + traffic + beta3 * log(epsilon + b.tokens / token))
