"""Every kernel of a step as it was measured by others, and what no table has as it was counted.

Their factors are near 1. Prefill and decode attention have one each: one is bound by compute, the other by memory. No
step is faster than the host can issue it.
Source: kernel tables of configs/kernels (NVIDIA aiconfigurator-core 0.12.0 and aisimulate 0.13, Apache-2.0).
"""


def step_time(
    b, s, *,
    gemm: one = 1.0,
    elementwise: one = 1.0,
    small: one = 1.0,
    moe: one = 1.0,
    moe_quantized: one = 1.0,
    decode_attention: one = 1.0,
    prefill_attention: one = 1.0,
    allreduce: one = 1.0,
    lm_head: one = 1.0,
    sampler: one = 1.0,
):
    kernels = (
        gemm * (b.kernel_gemm_us + b.kernel_router_us)
        + elementwise * b.kernel_elementwise_us
        + small * b.kernel_small_us
        + moe * b.kernel_moe_us
        + moe_quantized * b.kernel_moe_quantized_us
        + decode_attention * b.kernel_decode_attention_us
        + prefill_attention * b.kernel_prefill_attention_us
        + allreduce * b.kernel_allreduce_us
        + lm_head * b.kernel_lm_head_us
        + sampler * b.kernel_sampler_us
    )
    return max(kernels + s.schedule_us, s.issue_us)


def queueing_time(r, s, *, base: us = 7000.0, cycles: one = 0.25, token: us/token = 1.0):
    return base + cycles * s.reference_step_us + token * r.input_len
