"""The analytic components, added up: bytes over bandwidth, FLOPs over peaks, launches a layer, a wait in step times.

Attention of prefill and of decode have a constant each: prefill is bound by compute and takes 1.3 to 1.6 times its FLOP
time on long prompts, decode is bound by memory and takes 90 to 100 times as long, which the KV read counts already.
Source: roofline model (Williams, Waterman and Patterson, CACM 2009), without its max.
"""

def step_time(
    b, s, *,
    memory: one = 1.1,
    gemm: one[1, 10] = 1.5,
    prefill_attention: one[1, 10] = 1.5,
    logits: one = 1.0,
    allreduce: one = 1.0,
    layer: us = 20.0,
    base: us = 2000.0,
):
    compute = gemm * b.prefill_gemm_us + prefill_attention * b.prefill_attention_us
    memory_time = memory * (b.weight_read_us + b.kv_read_us)
    return memory_time + compute + logits * b.logits_us + allreduce * b.allreduce_us + layer * s.layers + base


def queueing_time(r, s, *, base: us = 7000.0, cycles: one = 1.3):
    return base + cycles * s.reference_step_us
