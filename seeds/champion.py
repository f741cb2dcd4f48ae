"""Found by `evolve run --config seeds/champion/config.yaml`, fitted on 20 serving runs.

The simplest program within 2 % of the lowest mean of mean error and leave-group-out error, by that configuration.
champion.json has its errors on these runs, README.md held-out ones, champion/ the journal of the search.
"""


def step_time(
    b, s, *,
    gemm: one = 0.963349,
    kernel_moe_quantized: one = 0.846761,
    kv_decode_sum_moe_layers_sampling_sort: us/token = 0.00047249,
    kv_decode_sum_repetition_penalty: us/token = 0.0162524,
):
    return max(
        gemm * (b.kernel_gemm_us + b.kernel_router_us)
        + b.kernel_elementwise_us
        + b.kernel_small_us
        + b.kernel_moe_us
        + kernel_moe_quantized * b.kernel_moe_quantized_us
        + b.kernel_decode_attention_us
        + b.kernel_prefill_attention_us
        + b.kernel_allreduce_us
        + b.kernel_lm_head_us
        + b.kernel_sampler_us
        + b.uncaptured * b.kernel_moe_us
        + b.uncaptured * b.kernel_moe_quantized_us
        + kv_decode_sum_moe_layers_sampling_sort * b.kv_decode_sum * s.moe_layers * s.sampling_sort
        + kv_decode_sum_repetition_penalty * b.kv_decode_sum * s.repetition_penalty,
        s.issue_us,
    )


def queueing_time(
    r, s, *,
    base: us = 11312.8,
    reference_step: one = 0.643723,
    is_moe: us = 5976.32,
    tp_log2: us = 3129.13,
):
    return base + reference_step * s.reference_step_us + is_moe * s.is_moe + tp_log2 * s.tp_log2
