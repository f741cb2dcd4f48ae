"""Every term that a study of public serving runs named, written by hand before any search on these runs.

The sum of kernels with factors, what switches adjust of them, launches and the host. Priors of public serving: a few us
a layer, more with routed experts, with all-reduces that are not fused with norms, and with activations quantized in
blocks; 0.3 ms a step of the host; before a request is queued 15 ms and 2 us a prompt token.
Source: kernel tables of configs/kernels (NVIDIA aiconfigurator-core 0.12.0 and aisimulate 0.13, Apache-2.0), and the
runs of configs/experiments_serving.yaml, all in sight when these terms were chosen.
"""


def step_time(
    b, s, *,
    gemm: one = 1.0,
    gemm_fp8: one = 0.0,
    gemm_blackwell: one = 0.0,
    elementwise: one = 1.0,
    small: one = 1.0,
    moe: one = 1.0,
    moe_quantized: one = 1.0,
    moe_4bit: one = 0.0,
    moe_widened: one = 0.0,
    moe_blackwell: one = 0.0,
    moe_spread: one = 0.0,
    moe_prompt: one = 0.0,
    moe_widened_prompt: one = 0.0,
    gemm_prompt: one = 0.0,
    decode_attention: one = 1.0,
    decode_blackwell: one = 0.0,
    prefill_attention: one = 1.0,
    prefill_blackwell: one = 0.0,
    allreduce: one = 1.0,
    allreduce_blackwell: one = 0.0,
    lm_head: one = 1.0,
    sampler: one = 1.0,
    layer: us = 0.0,
    moe_layer: us = 0.0,
    fp8_layer: us = 0.0,
    unfused_layer: us = 0.0,
    host: us = 0.0,
    request: us/request = 0.0,
    prompt: us/request = 0.0,
    prompt_token: us/token = 0.0,
    mixed: us = 0.0,
    mixed_moe_layer: us = 0.0,
    launch: us[0, 20] = 0.0,
):
    kernels = (
        gemm * (b.kernel_gemm_us + b.kernel_router_us)
        + gemm_fp8 * b.kernel_gemm_us * s.is_fp8
        + gemm_blackwell * b.kernel_gemm_us * s.is_blackwell
        + elementwise * b.kernel_elementwise_us
        + small * b.kernel_small_us
        + moe * b.kernel_moe_us
        + moe_quantized * b.kernel_moe_quantized_us
        + moe_4bit * b.kernel_moe_quantized_us * s.is_4bit
        + moe_widened * b.kernel_moe_quantized_us * s.is_widened
        + moe_blackwell * b.kernel_moe_quantized_us * s.is_blackwell
        + moe_spread * b.kernel_moe_quantized_us * s.is_spread
        + moe_prompt * b.kernel_moe_quantized_us * b.mixed
        + moe_widened_prompt * b.kernel_moe_quantized_us * s.is_widened * b.mixed
        + gemm_prompt * b.kernel_gemm_us * b.mixed
        + decode_attention * b.kernel_decode_attention_us
        + decode_blackwell * b.kernel_decode_attention_us * s.is_blackwell
        + prefill_attention * b.kernel_prefill_attention_us
        + prefill_blackwell * b.kernel_prefill_attention_us * s.is_blackwell
        + allreduce * b.kernel_allreduce_us
        + allreduce_blackwell * b.kernel_allreduce_us * s.is_blackwell
        + lm_head * b.kernel_lm_head_us
        + sampler * b.kernel_sampler_us
    )
    launches = (
        layer * s.layers
        + moe_layer * s.moe_layers
        + fp8_layer * s.layers * s.is_fp8
        + unfused_layer * s.layers * min(s.tp_log2, 1) * (1 - s.allreduce_rms_fusion)
        + mixed_moe_layer * s.moe_layers * b.mixed
        + launch * s.layers * b.uncaptured
    )
    server = (
        host
        + s.schedule_us
        + request * b.batch_size
        + mixed * b.mixed
        + prompt * b.prefill_reqs
        + prompt_token * b.prefill_tokens
    )
    return max(kernels + launches + server, s.issue_us)


def queueing_time(
    r, s, *,
    base: us = 7000.0,
    cycles: one = 1.25,
    token: us/token = 0.0,
    blackwell: us = 0.0,
    moe: us = 0.0,
    split: us = 0.0,
):
    return (
        base
        + cycles * s.reference_step_us
        + token * r.input_len
        + blackwell * s.is_blackwell
        + moe * s.is_moe
        + split * s.tp_log2
    )
