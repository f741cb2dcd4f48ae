"""Found by `evolve run --config seeds/champion/config.yaml`, fitted on 20 serving runs.

The simplest program within 2 % of the lowest mean of mean error and leave-group-out error, by that configuration.
champion.json has its errors on these runs, README.md held-out ones, champion/ the journal of the search.
"""


def step_time(
    b, s, *,
    gemm: one = 0.962367,
    kernel_elementwise: one = 0.998922,
    kernel_moe: one = 1.0083,
    kernel_moe_quantized: one = 0.868276,
    kv_decode_sum_is_fp8: us/token = 0.0224406,
    kv_decode_sum_repetition_penalty: us/token = 0.0165547,
):
    return (
        gemm * (b.kernel_gemm_us + b.kernel_router_us)
        + kernel_elementwise * b.kernel_elementwise_us
        + kernel_moe * b.kernel_moe_us
        + kernel_moe_quantized * b.kernel_moe_quantized_us
        + b.kernel_decode_attention_us
        + b.kernel_prefill_attention_us
        + b.kernel_allreduce_us
        + b.kernel_lm_head_us
        + b.kernel_sampler_us
        + b.uncaptured * b.kernel_moe_quantized_us
        + b.uncaptured * b.kernel_elementwise_us
        + kv_decode_sum_is_fp8 * b.kv_decode_sum * s.is_fp8
        + b.uncaptured * b.kernel_moe_us
        + kv_decode_sum_repetition_penalty * b.kv_decode_sum * s.repetition_penalty
    )


def queueing_time(
    r, s, *,
    base: us = 10993.8,
    reference_step: one = 0.672324,
    is_moe: us = 6044.42,
    tp_log2: us = 3028.58,
):
    return base + reference_step * s.reference_step_us + is_moe * s.is_moe + tp_log2 * s.tp_log2
